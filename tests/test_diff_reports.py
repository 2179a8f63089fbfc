"""Diff as its users call it: formats, limits, exit status, bad input, hostile names."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from command import traceq
from conftest import ROOT
from goldens import assert_block, assert_golden, block
from recordings import CAPTURES, OWN_SNAPSHOTS

from traceq.api import diff as api
from traceq.api.diff import diff
from traceq.testing.timeline import draw

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

Steps: TypeAlias = tuple[int | None, int | None]
COMPARED: dict[object, object] = {}
FORMATS = ("full", "concise", "json", "github", "markdown", "html")
BEFORE = """
    host   [ProfilerStep#1                                                       ]
    host    [model.py(3): forward    ]
    host     [aten::linear          ]
    host      [cudaLaunchKernel>1]
    gpu 7                      [volta_sgemm_128x64_tn<1      ]
"""
AFTER = """
    host   [ProfilerStep#1                                                       ]
    host    [model.py(3): forward                            ]
    host     [aten::linear          ][aten::clone           ]
    host      [cudaLaunchKernel>1]    [cudaLaunchKernel>2 ]
    gpu 7                      [nvjet_tst_128x64<1]        [direct_copy_kernel<2  ]
"""


def write(folder: Path, name: str, drawing: str) -> Path:
    path = folder / name
    path.write_text(json.dumps(draw(drawing)))
    return path


@pytest.fixture(autouse=True)
def _compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the same two files once, in whatever format that is reported."""

    def once(two: tuple[Path, Path], steps: Steps, *more: Any, force: bool) -> object:  # noqa: ANN401 - passed on
        contents = tuple(path.read_bytes() for path in two if path.is_file())
        key = (two, contents, steps, force)
        if key not in COMPARED:
            COMPARED[key] = compare(two, steps, *more, force=force)
        return COMPARED[key]

    compare = api._compared  # noqa: SLF001 - what takes longest
    monkeypatch.setattr(api, "_compared", once)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two traces, by names that are the same on every machine."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "before.json", BEFORE)
    write(tmp_path, "after.json", AFTER)
    return "before.json", "after.json"


@pytest.mark.golden
@pytest.mark.parametrize("form", ["full", "markdown", "concise"])
def test_what_people_read_is_as_it_was_reviewed(
    pair: tuple[str, str], form: str
) -> None:
    answer = traceq("diff", *pair, "--step-ms", "0.06,0.09", "--format", form, width=80)

    assert_golden(f"diff_{form}.txt", answer.out)
    assert answer.status == 0


def test_json_has_everything_and_adds_up(pair: tuple[str, str]) -> None:
    document = json.loads(
        traceq("diff", *pair, "--step-ms", "0.06,0.09", "--format", "json").out
    )

    assert document["version"] == 2
    assert document["verdict"] == "slower"
    assert document["change_ns"] == 30_000
    assert sum(cause["ns"] for cause in document["causes"]) == pytest.approx(
        30_000, abs=9
    )
    assert document["metrics"]["launches"] == {"before": 1.0, "after": 2.0}
    assert document["only_after"] == {"aten::clone": 1.0}


def test_a_broken_limit_is_the_first_line_and_the_status(
    pair: tuple[str, str],
) -> None:
    limits = "slower:5%,launches:+10,kernels:+1,copies:+0"
    answer = traceq(
        "diff", *pair, "--step-ms", "0.06,0.09", "--fail-on", limits, width=100
    )

    assert answer.status == 1
    assert answer.lines[:2] == [
        "FAILED slower:5%: step 60.0 µs -> 90.0 µs, +30.0 µs (+50%)",
        "FAILED copies:+0: copies 0 -> 1, +1 (from nothing)",
    ]
    assert answer.lines[2].startswith(
        "60.0 µs -> 90.0 µs a step (+50%), 30.0 µs slower without the profiler"
    )


@pytest.mark.parametrize("form", FORMATS)
def test_a_broken_limit_is_in_every_format(pair: tuple[str, str], form: str) -> None:
    answer = traceq("diff", *pair, "--fail-on", "launches:+0", "--format", form)

    assert answer.status == 1
    assert "launches:+0" in answer.out


def test_limits_that_hold_are_no_failure(pair: tuple[str, str]) -> None:
    limits = "slower:90%,launches:+1,kernels:100%,slower:1s"
    answer = traceq("diff", *pair, "--step-ms", "0.06,0.09", "--fail-on", limits)

    assert answer.status == 0


def test_new_findings_break_their_limit() -> None:
    names = ("attn_flash", "attn_manual")
    cases = [CAPTURES.trace(name) for name in names]
    steps = ",".join(str(CAPTURES.step_ms[name]) for name in names)

    answer = traceq("diff", *cases, "--step-ms", steps, "--fail-on", "new-findings")

    assert answer.status == 1
    assert answer.lines[0].startswith("FAILED new-findings: ")


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ("slwer:5%", "--fail-on has no limit 'slwer'; did you mean slower?"),
        ("slower:5", "--fail-on 'slower:5': give a unit, one of %, ns, us, µs, ms, s"),
        ("launches:5ms", "--fail-on 'launches:5ms': give an amount, as launches:5%"),
        ("memory:x", "--fail-on 'memory:x': give an amount, as memory:5%"),
        ("memory:+2%", "--fail-on memory:+2% cannot be checked: not both recordings"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    pair: tuple[str, str], limits: str, sentence: str
) -> None:
    answer = traceq("diff", *pair, "--fail-on", limits)

    assert answer.status == 2
    assert sentence in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    "times", ["12", "1,2,3", "a,b", "0,1", "-1,2", "nan,1", "inf,1"]
)
def test_step_times_that_make_no_sense_are_refused(
    pair: tuple[str, str], times: str
) -> None:
    answer = traceq("diff", *pair, f"--step-ms={times}")

    assert answer.status == 2
    assert "give two times in milliseconds" in answer.err


def test_whether_a_slowed_down_step_is_slower_cannot_be_checked() -> None:
    cases = [CAPTURES.trace(name) for name in ("attn_mask_fmha", "attn_flash")]

    answer = traceq("diff", *cases, "--fail-on", "slower:5%")

    assert answer.status == 2
    assert "the profiler slowed the host down" in answer.err


def test_snapshots_are_compared_by_their_peaks() -> None:
    cases = [OWN_SNAPSHOTS[name] for name in ("copies_fixed", "copies")]

    answer = traceq("diff", *cases, "--fail-on", "memory:+2%")

    assert answer.status == 1
    assert answer.lines[0].startswith("FAILED memory:+2%: peak memory ")
    assert answer.lines[1].startswith("memory: the peak rises by ")


@pytest.mark.parametrize("form", FORMATS)
def test_snapshots_are_compared_in_every_format(form: str) -> None:
    case = OWN_SNAPSHOTS["copies"]

    answer = traceq("diff", case, case, "--format", form)

    assert answer.status == 0
    assert "memory: no change" in answer.out.lower()


def test_a_snapshot_is_not_compared_with_a_trace(pair: tuple[str, str]) -> None:
    case = OWN_SNAPSHOTS["copies"]

    answer = traceq("diff", pair[0], case)

    assert answer.status == 2
    assert "has no trace, and the other one has: give two of a kind" in answer.err


def test_what_is_read_is_never_overwritten(pair: tuple[str, str]) -> None:
    content = (ROOT / "README.md").read_bytes()
    answer = traceq("diff", *pair, "--output", pair[1], "--overwrite")

    assert answer.status == 2
    assert "will not be overwritten" in answer.err
    assert (ROOT / "README.md").read_bytes() == content


def test_a_report_in_a_file_is_replaced_only_if_asked(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    order = ("diff", *pair, "--format", "html", "-o", page)

    assert traceq(*order).status == 0
    first = page.read_text()
    assert traceq(*order).status == 2
    assert traceq(*order, "--overwrite").status == 0
    assert page.read_text() == first


def test_a_missing_file_is_one_sentence(pair: tuple[str, str]) -> None:
    answer = traceq("diff", pair[0], "nowhere.json")

    assert answer.status == 2
    assert answer.err == "traceq: nowhere.json does not exist: check the name\n"


@pytest.mark.golden
def test_the_readme_shows_the_answer_and_the_causes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    order, *_ = block("diff").split("\n\n")
    _, *arguments = order.replace("\\\n", "").removeprefix("$ ").split()

    first, *others = traceq(*arguments, width=80).out.strip().split("\n\n")

    (causes,) = (part for part in others if part.startswith("Why"))
    headline, *_ = first.partition("\nbefore ")
    assert_block("diff", f"{order}\n\n{headline}\n\n{causes}\n")


class _Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_nothing_else(pair: tuple[str, str]) -> None:
    page = _Page(traceq("diff", *pair, "--format", "html").out)

    assert all(link.startswith("#") for link in page.links)
    assert not {"link", "img", "iframe"} & set(page.tags)


EVIL = "<script>alert(1)</script>\x1b[2J|`*::error::\u202e"


@pytest.mark.parametrize("form", FORMATS)
def test_names_from_strangers_stay_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    document = draw(AFTER)
    for event in document["traceEvents"]:
        if event["name"] in ("aten::clone", "direct_copy_kernel"):
            event["name"] = EVIL
    (tmp_path / "evil.json").write_text(json.dumps(document))
    before = write(tmp_path, "before.json", BEFORE)

    out = traceq("diff", before, "evil.json", "--format", form).out

    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "alert" in out
    if form in ("html", "markdown"):
        assert "<script>alert" not in out
    if form == "github":
        assert not any(line.startswith("::error") for line in out.splitlines())


def test_the_first_line_says_that_a_side_is_incomplete(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    whole = (tmp_path / pair[0]).read_text()
    (tmp_path / pair[0]).write_text(whole[: len(whole) * 9 // 10])

    answer = traceq("diff", *pair)

    assert answer.out.startswith("of what could be read (before is incomplete): ")


def test_what_is_missing_of_both_sides_is_said_in_their_order(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    # The second is the shorter one, and so the first to be read.
    for name, tenths in zip(pair, (9, 6), strict=True):
        whole = (tmp_path / name).read_text()
        (tmp_path / name).write_text(whole[: len(whole) * tenths // 10])

    said_of = [note.partition(" ")[0] for note in diff(*pair, cache=False).notes]

    assert set(said_of) == set(pair)
    assert said_of == sorted(said_of, key=pair.index)
