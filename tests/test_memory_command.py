"""`traceq memory` as its users call it: text, JSON, Markdown, a page, scaling."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import re
import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from browser import browser
from command import traceq
from conftest import ROOT
from goldens import assert_block
from recordings import path_of

from traceq.testing.history import draw_history

if TYPE_CHECKING:
    from pathlib import Path

FIXTURE = ROOT / "fixtures" / "attn_manual" / "snapshot.pickle.gz"
MODULE = "torch/nn/modules/module.py:1790 _call_impl"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J"
LEAK = """
    region   [ProfilerStep#1][ProfilerStep#2][ProfilerStep#3]
    weights <64M
    train.py:7 main    [16M
    train.py:7 main                    [16M
    train.py:7 main                                    [16M
"""


def drawn(folder: Path, drawing: str, name: str = "drawn.pickle") -> Path:
    path = folder / name
    path.write_bytes(pickle.dumps(draw_history(drawing), protocol=4))
    return path


def hostile(folder: Path) -> Path:
    """Return a snapshot all of whose names would do harm."""
    content = draw_history(LEAK)
    for event in content["device_traces"][0]:
        for frame in event.get("frames", []):
            frame |= {"filename": f"{HOSTILE}.py", "name": HOSTILE}
    content["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": HOSTILE}
    path = folder / "hostile.pickle"
    path.write_bytes(pickle.dumps(content))
    return path


def run_folder(
    folder: Path, name: str, snapshot: Path, labels: dict[str, str], trace: Path | None
) -> Path:
    """Make a run folder as traceq collect does."""
    run = folder / name
    run.mkdir()
    rank: dict[str, Any] = {"name": "rank-0", "rank": 0, "state": "done"}
    for key, file in (("memory", snapshot), ("trace", trace)):
        if file is not None:
            shutil.copy(file, run / file.name)
            rank[key] = {"file": file.name}
    result = {"format": 1, "command": ["python", "train.py"], "labels": labels}
    result |= {"state": "finished", "ranks": [rank]}
    (run / "run.json").write_text(json.dumps(result))
    return run


# Text.


def test_a_screen_says_the_peak_and_what_is_live_at_it() -> None:
    answer = traceq("memory", FIXTURE, width=100)

    assert answer.status == 0
    assert "3.98 GiB allocated, 4.40 GiB reserved; reached in backward of step 0" in (
        " ".join(answer.out.split())
    )
    assert re.search(r"^logits and loss +1\.95 GiB +49% ", answer.out, re.MULTILINE)
    assert re.search(r"^dev_cases\.py:54 manual +820 MiB ", answer.out, re.MULTILINE)


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    answer = traceq("memory", FIXTURE, width=width)

    assert max(map(len, answer.lines)) <= width


def test_the_timeline_is_as_high_as_what_is_allocated() -> None:
    lines = traceq("memory", FIXTURE, width=100).lines
    start = lines.index("allocated over time")
    rows = [line[10:] for line in lines[start + 1 : start + 17]]

    assert set(rows[-1]) == {"w"}
    # The peak is reached twice, in narrow spikes of what the loss makes.
    assert len(re.findall(r"l+", rows[0])) == 2
    assert set("".join(rows)) <= set("wogaslt? ")


def test_several_snapshots_are_a_row_each(tmp_path: Path) -> None:
    other = drawn(tmp_path, LEAK)

    answer = traceq("memory", FIXTURE, other)

    assert len(answer.lines) == 3
    assert "32.0 MiB" not in answer.lines[1]


def test_a_leak_is_reported_with_its_line(
    tmp_path: Path,
) -> None:
    text = " ".join(traceq("memory", drawn(tmp_path, LEAK)).out.split())

    assert "each leaks 16.0 MiB: 16.0 MiB at train.py:7 main" in text


def test_an_oom_is_reported_with_its_line(tmp_path: Path) -> None:
    drawing = """
        train.py:7 main     [16M
        oom train.py:9 main        [512M of 1G]
    """

    text = " ".join(traceq("memory", drawn(tmp_path, drawing)).out.split())

    assert "OOM 512 MiB at train.py:9 main, with " in text
    assert "1.00 GiB free on the device" in text


def test_of_equal_allocations_those_that_stay_have_their_own_row(
    tmp_path: Path,
) -> None:
    drawing = "train.py:7 main [16M     ]\ntrain.py:7 main [16M"

    rows = json.loads(
        traceq("memory", drawn(tmp_path, drawing), "--format", "json").out
    )["devices"][0]["largest"]

    assert sorted((row["count"], row["never_freed"]) for row in rows) == [
        (1, False),
        (1, True),
    ]


def test_one_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pickle"
    broken.write_bytes(b"\x80\x04}")

    answer = traceq("memory", FIXTURE, broken)

    assert answer.status == 2
    assert "is cut off" in answer.err
    assert "1 of 2 files could not be read" in answer.err
    assert "3.98 GiB" in answer.out


def test_a_trace_is_refused_in_one_sentence() -> None:
    trace = ROOT / "fixtures" / "attn_mask_fmha" / "trace.json.gz"

    answer = traceq("memory", trace)

    assert answer.status == 2
    assert answer.err.count("\n") == 1
    assert "is JSON, such as a trace" in answer.err


def test_a_history_that_lost_its_beginning_is_called_incomplete() -> None:
    path = path_of("public/snapshot_no_history.pickle.gz")

    assert "INCOMPLETE" in traceq("memory", path, width=100).out


@pytest.mark.golden
def test_the_readme_shows_parts_of_what_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)

    out = traceq("memory", FIXTURE.relative_to(ROOT), width=80).out

    facts, live, lines, *_, curve = out.split("\n\n")
    first, most = facts.partition("\nSteps ")[0], "\n".join(lines.splitlines()[:5])
    assert_block("memory", f"{first}\n…\n{live}\n\n{most}\n…\n{curve}")


# JSON and Markdown.


def test_json_has_integers_for_programs() -> None:
    document = json.loads(traceq("memory", FIXTURE, "--format", "json").out)

    assert document["version"] == 2
    (device,) = document["devices"]
    assert device["peak"]["allocated"] == 4272016388
    assert sum(row["size"] for row in device["categories"]) == 4272016388
    free = device["fragmentation"]
    assert device["peak"]["reserved"] == device["peak"]["active"] + sum(
        free[key] for key in ("rounding", "fragmented", "releasable", "private")
    )
    assert device["largest"][0]["calls"][0] == "dev_cases.py:41 forward"


def test_markdown_has_the_same_tables() -> None:
    answer = traceq("memory", FIXTURE, "--format", "markdown")

    assert "| logits and loss | 1.95 GiB | 49% |" in answer.out
    assert "| dev\\_cases.py:54 manual | 820 MiB |" in answer.out


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_hostile_names_are_harmless_in_every_format(form: str, tmp_path: Path) -> None:
    answer = traceq("memory", hostile(tmp_path), "--format", form)

    assert answer.status == 0
    assert "\x1b" not in answer.out
    assert form != "markdown" or "<script>" not in answer.out


def odd(content: dict[str, Any], dice: random.Random) -> None:
    """Change a history as no allocator would write it, but a file might have it."""
    trace = content["device_traces"][0]
    for _ in range(dice.choice([1, 5, 40])):
        event, at = dice.choice(trace), dice.randrange(len(trace))
        change = dice.choice(["drop", "repeat", "action", "segment", "value", "stack"])
        if change == "drop":
            trace.remove(event)
        elif change == "repeat":
            trace.insert(at, dict(event))
        elif change == "action":
            event["action"] = dice.choice(["alloc", "free_completed", "oom", "other"])
        elif change == "segment" and content["segments"]:
            del content["segments"][dice.randrange(len(content["segments"]))]
        elif change == "stack":
            event["frames"] = [{"filename": "", "line": 0, "name": ""}]
        else:
            key = dice.choice(["addr", "size", "stream", "time_us"])
            event[key] = dice.choice([0, -1, 1 << 40] + [None] * (key != "size"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_histories_that_make_no_sense_are_shown_or_refused(
    seed: int, tmp_path: Path
) -> None:
    packed = gzip.decompress(FIXTURE.read_bytes())
    content = pickle.loads(packed)  # noqa: S301 - our own
    del content["device_traces"][0][300:]
    odd(content, random.Random(seed))  # noqa: S311 - the same each time
    path = tmp_path / "odd.pickle"
    path.write_bytes(pickle.dumps(content))

    for form in ("text", "json", "markdown"):
        answer = traceq("memory", path, "--format", form)
        assert "internal error" not in answer.err
        assert answer.status in (0, 2)
    assert "fault" not in traceq("memory", path, "--format", "html").err


# Run folders.


def test_the_trace_of_a_run_folder_gives_the_modules(tmp_path: Path) -> None:
    trace = path_of("attn_manual.trace.json.gz")
    run = run_folder(tmp_path, "run", FIXTURE, {"seq_len": "1024"}, trace)

    answer = traceq("memory", run, "--no-cache")

    assert re.search(r"^LM/Block +1\.22 GiB ", answer.out, re.MULTILINE)
    assert "python train.py · seq_len=1024" in answer.out


def test_a_run_without_a_snapshot_says_why(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    missing = [{"what": "memory", "why": "the program ended too early"}]
    rank = {"name": "rank-0", "rank": 0, "missing": missing}
    result = {"format": 1, "command": ["python"], "ranks": [rank]}
    (run / "run.json").write_text(json.dumps(result))

    answer = traceq("memory", run)

    assert answer.status == 2
    assert "has no memory snapshot: no memory: the program ended too early" in (
        answer.err
    )


# Scaling.


def runs(folder: Path, *values: tuple[str, int, int]) -> list[Path]:
    """Make runs of a label's value with these MiB of a layer and of scores."""
    return [
        run_folder(
            folder,
            f"run-{value}",
            drawn(
                folder,
                f"""
                layer = at::_ops::linear::call, model.py:4 forward, {MODULE}
                matmul = at::_ops::bmm::call, model.py:5 attend, {MODULE}
                softmax = at::_ops::_softmax::call, model.py:6 attend, {MODULE}
                region       [forward                ][backward     ]
                layer         [{layer}M                      ]
                matmul           [{scores}M  ]
                softmax             [{scores}M               ]
                """,
            ),
            {"seq_len": value},
            None,
        )
        for value, layer, scores in values
    ]


@pytest.mark.real
def test_scaling_names_the_law_of_each_category(tmp_path: Path) -> None:
    paths = runs(tmp_path, ("512", 10, 4), ("2048", 40, 64), ("1024", 20, 16))

    answer = traceq("memory", *paths, "--scaling", "seq_len")

    assert answer.status == 0
    lines = [line.split() for line in answer.lines]
    assert lines[0][-3:] == ["512", "1024", "2048"]
    by_name = {line.split("  ")[0]: line for line in answer.lines}
    assert re.search(r"quadratic +8\.00 MiB +32\.0 MiB +128 MiB", answer.out)
    assert "linear" in by_name["activations"]


@pytest.mark.real
def test_scaling_as_json_has_the_sizes(tmp_path: Path) -> None:
    paths = runs(tmp_path, ("512", 10, 4), ("1024", 20, 16), ("2048", 40, 64))

    answer = traceq("memory", *paths, "--scaling", "seq_len", "--format", "json")

    scaling = json.loads(answer.out)["scaling"]
    assert scaling["values"] == [512, 1024, 2048]
    laws = {category["category"]: category["law"] for category in scaling["categories"]}
    assert laws["attention scores"] == "quadratic"


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        ("batch", "has no label batch (it has seq_len)"),
        ("seq_len", "all runs have the same seq_len"),
    ],
)
def test_scaling_that_cannot_be_says_why(
    label: str, sentence: str, tmp_path: Path
) -> None:
    answer = traceq("memory", *runs(tmp_path, ("512", 10, 4)), "--scaling", label)

    assert answer.status == 2
    assert sentence in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.real
def test_scaling_as_a_page_draws_the_laws(tmp_path: Path) -> None:
    paths = runs(tmp_path, ("512", 10, 4), ("1024", 20, 16), ("2048", 40, 64))

    answer = traceq("memory", *paths, "--scaling", "seq_len", "--format", "html")

    assert answer.status == 0, answer.err
    named = re.findall(r">([a-z ]+)</text>\n<text[^>]*>([a-z]+)</text>", answer.out)
    assert ("attention scores", "quadratic") in named
    assert ("activations", "linear") in named


def test_scaling_needs_numbers_and_labels(tmp_path: Path) -> None:
    paths = runs(tmp_path, ("long", 10, 4))

    assert (
        "which is not a number" in traceq("memory", *paths, "--scaling", "seq_len").err
    )
    assert (
        "has no label seq_len" in traceq("memory", FIXTURE, "--scaling", "seq_len").err
    )


@pytest.mark.real
def test_scaling_takes_plain_snapshots_with_labels(tmp_path: Path) -> None:
    paths = runs(tmp_path, ("512", 10, 4), ("1024", 20, 16), ("2048", 40, 64))
    snapshots = [next(run.glob("*.pickle*")) for run in paths]
    plain = [
        shutil.copy(snapshot, tmp_path / f"{run.name}.pickle")
        for run, snapshot in zip(paths, snapshots, strict=True)
    ]
    labels = [
        part
        for path, value in zip(plain, (512, 1024, 2048), strict=True)
        for part in ("--label", f"{path}:seq_len={value}")
    ]

    answer = traceq("memory", *plain, *labels, "--scaling", "seq_len")

    assert answer.status == 0, answer.err
    assert re.search(r"quadratic +8\.00 MiB +32\.0 MiB +128 MiB", answer.out)


# The page.


class Elements(HTMLParser):
    """The elements of a page, and whether all that open close."""

    VOID = ("meta", "br", "img", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(folder: Path, snapshot: Path) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "memory.html"
    answer = traceq("memory", snapshot, "--format", "html", "-o", file)
    assert answer.status == 0, answer.err
    return file


def test_the_page_is_well_formed_and_asks_for_nothing(tmp_path: Path) -> None:
    text = page(tmp_path, FIXTURE).read_text(encoding="utf-8")

    elements = Elements(text)

    assert not elements.open
    asking = ("src", "action", "data", "xlink:href", "srcset")
    assert not [tag for tag, attrs in elements.found for key in asking if key in attrs]
    links = [attrs["href"] for _, attrs in elements.found if "href" in attrs]
    assert all(str(link).startswith("#") for link in links)
    assert "//" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
    policy = next(
        attrs["content"] for tag, attrs in elements.found if "http-equiv" in attrs
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_hostile_names_are_text_in_the_page(tmp_path: Path) -> None:
    text = page(tmp_path, hostile(tmp_path)).read_text(encoding="utf-8")

    elements = Elements(text)

    assert not elements.open
    assert "img" not in {tag for tag, _ in elements.found}
    ours = page(tmp_path / "ours", FIXTURE).read_text(encoding="utf-8")
    scripts = sum(tag == "script" for tag, _ in Elements(ours).found)
    assert sum(tag == "script" for tag, _ in elements.found) == scripts
    assert "\x1b" not in text


def test_an_older_page_is_not_overwritten_unasked(tmp_path: Path) -> None:
    file = tmp_path / "memory.html"
    file.write_text("mine")

    answer = traceq("memory", FIXTURE, "--format", "html", "-o", file)

    assert answer.status == 2
    assert "exists already" in answer.err
    assert file.read_text() == "mine"
    assert (
        traceq("memory", FIXTURE, "--format", "html", "-o", file, "--overwrite").status
        == 0
    )
    assert file.read_text() != "mine"


def test_a_snapshot_is_never_overwritten_by_its_page(tmp_path: Path) -> None:
    copy = tmp_path / "snapshot.pickle.gz"
    shutil.copy(FIXTURE, copy)

    answer = traceq("memory", copy, "--format", "html", "-o", copy, "--overwrite")

    assert answer.status == 2
    assert copy.read_bytes() == FIXTURE.read_bytes()


CHART = "document.querySelector('.memory-over-time svg')"


def test_a_browser_shows_what_is_under_the_mouse(tmp_path: Path) -> None:
    file = page(tmp_path, FIXTURE)
    with browser(tmp_path / "profile") as tab:
        tab.open(file)
        box = json.loads(tab.value(f"JSON.stringify({CHART}.getBoundingClientRect())"))
        tip = "document.getElementById('tip')"
        assert tab.value(f"{tip}.hidden")

        # The picture is from 74 to 1090 of 1100; the peak is at 4.03 of 24 ms.
        peak = (74 + 1016 * 4.03 / 24.02) / 1100
        tab.move_mouse(box["x"] + box["width"] * peak, box["y"] + box["height"] / 2)

        assert not tab.value(f"{tip}.hidden")
        text = tab.value(f"{tip}.innerText")
        assert "4.03 ms, backward, step 0" in text
        assert "allocated\n3.98 GiB" in text
        assert "logits and loss\n1.95 GiB" in text

        tab.move_mouse(5, 5)
        assert tab.value(f"{tip}.hidden")
        tab.value(f"{CHART}.parentElement.focus()")
        tab.press("ArrowRight", 39)
        assert not tab.value(f"{tip}.hidden")
        assert tab.asked_for() == [file.as_uri()]
        assert tab.complaints() == []


def test_a_browser_draws_the_areas_one_above_the_other(tmp_path: Path) -> None:
    file = page(tmp_path, FIXTURE)
    with browser(tmp_path / "profile") as tab:
        tab.open(file)
        areas = json.loads(
            tab.value(
                "JSON.stringify([...document.querySelectorAll('.area')].map(path => ["
                "path.classList[1], path.getBBox().y, path.getBBox().height]))"
            )
        )

        names = [name for name, _, _ in areas]
        assert names[:2] == ["area-weights", "area-optimizer"]
        tops = {name: top for name, top, _ in areas}
        assert tops["area-weights"] > tops["area-optimizer"] > tops["area-activations"]
        assert all(height > 0 for _, _, height in areas)


def test_a_browser_runs_nothing_of_hostile_names(tmp_path: Path) -> None:
    file = page(tmp_path, hostile(tmp_path))
    with browser(tmp_path / "profile") as tab:
        tab.open(file)

        assert tab.value("document.querySelectorAll('img').length") == 0
        assert tab.value("document.body.textContent").count("alert(1)") > 0
        assert tab.asked_for() == [file.as_uri()]
        assert tab.complaints() == []
