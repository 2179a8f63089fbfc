"""Runs over time: digests, jumps with their causes, and the file that keeps them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from browser import browser
from command import traceq
from conftest import ROOT
from history import KINDS, Planted, base, history, noise_of_steps, score
from msgspec import structs
from ranking import Works, write_job
from test_schemas import errors

from traceq.errors import InputError, TraceqError, UsageError
from traceq.history.bisection import bisect
from traceq.history.changes import difference
from traceq.history.digest import Digest, StepTime, Work, packed, unpacked
from traceq.history.jumps import jumps_of
from traceq.history.series import Series, series_in
from traceq.history.store import add, reading, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

COPIES = ROOT / "fixtures" / "copies"
FIXED = ROOT / "fixtures" / "twins" / "copies_fixed"
QUIET, NOISY = "segment_anything", "mingpt_adder"


def written(folder: Path, digests: Sequence[Digest]) -> Path:
    file = folder / "history.sqlite"
    add(file, [(digest.name, digest) for digest in digests])
    return file


def series_of(folder: Path, planted: Planted) -> Series:
    (series,) = series_in(written(folder, planted.digests))
    return series


def with_step(number: int, ns: float, **more: Any) -> Digest:  # noqa: ANN401 - fields
    step = StepTime(ns, 0.0, 20, "measured")
    name, commit = f"run-{number}", f"{number + 1:040x}"
    values = {"name": name, "commit": commit, "at_ns": number, "step": step, **more}
    return structs.replace(base(), **values)


@pytest.fixture(scope="module")
def sixty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    return written(folder, history(QUIET, 0).digests)


# -- Jumps -----------------------------------------------------------------------------


@pytest.mark.parametrize("program", [QUIET, "imagenet_dummy", NOISY])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_planted_jump_is_found_with_its_cause_and_no_other(
    tmp_path: Path, program: str, seed: int
) -> None:
    planted = history(program, seed)

    result = score(series_of(tmp_path, planted), planted.at)

    assert result == (len(KINDS), len(KINDS), 0)


@pytest.mark.parametrize("program", sorted(noise_of_steps()))
def test_noise_alone_is_no_jump(program: str) -> None:
    noise = noise_of_steps()[program]
    steps = [1e7 * noise[at % len(noise)] for at in range(40)]

    runs = [run_of(str(at), with_step(at, ns)) for at, ns in enumerate(steps)]

    assert jumps_of(runs) == []


def test_one_slow_run_is_no_jump_once_others_follow() -> None:
    steps = [10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 13.0, 10.0, 10.1, 9.9, 10.0]

    runs = [run_of(str(at), with_step(at, 1e6 * ms)) for at, ms in enumerate(steps)]

    assert jumps_of(runs) == []


def test_a_jump_at_the_last_run_is_not_confirmed() -> None:
    steps = [10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 13.0]

    (jump,) = jumps_of(
        [run_of(str(at), with_step(at, 1e6 * ms)) for at, ms in enumerate(steps)]
    )

    assert (jump.at, jump.confirmed) == (6, False)


def test_a_jump_and_its_repair_five_runs_later_are_two() -> None:
    usual = [10.0, 10.1, 9.9, 10.0, 10.1]
    steps = [*usual, *usual, *(2.0 + ms for ms in usual), *usual, *usual]

    jumps = jumps_of(
        [run_of(str(at), with_step(at, 1e6 * ms)) for at, ms in enumerate(steps)]
    )

    assert [jump.at for jump in jumps] == [10, 15]


def test_runs_of_another_gpu_are_a_series_of_their_own(tmp_path: Path) -> None:
    digests = [
        with_step(at, 1e7 if at % 2 else 2e7, gpu="A100" if at % 2 else "H200")
        for at in range(20)
    ]

    series = series_in(written(tmp_path, digests))

    assert [(len(column.runs), column.jumps) for column in series] == [
        (10, ()),
        (10, ()),
    ]


def test_a_run_of_an_older_commit_comes_before_later_ones(tmp_path: Path) -> None:
    file = written(tmp_path, [with_step(1, 1e7), with_step(3, 1e7)])
    add(file, [("late", with_step(2, 1e7))])

    (series,) = series_in(file)

    assert [run.name for run in series.runs] == ["run-1", "run-2", "run-3"]


# -- Digests ---------------------------------------------------------------------------


def test_a_digest_comes_back_as_it_was() -> None:
    assert unpacked(packed(base())) == base()


@pytest.mark.parametrize(
    "content",
    [
        lambda: b"",
        lambda: b"no zlib",
        lambda: packed(base())[:-9],
        lambda: zlib.compress(b"[]"),
        lambda: zlib.compress(b"{}"),
        lambda: zlib.compress(b" " * (9 << 20)),
        lambda: packed(structs.replace(base(), version=99)),
    ],
    ids=["empty", "no zlib", "cut", "a list", "no fields", "bomb", "newer"],
)
def test_other_bytes_are_no_digest(content: Callable[[], bytes]) -> None:
    written = content()

    with pytest.raises(ValueError, match=r"\w"):
        unpacked(written)


def test_the_digest_of_a_trace_has_its_step_work_findings_and_memory() -> None:
    digest = base()

    assert digest.step is not None
    assert digest.step.count == 2
    assert digest.step.deviation_ns > 0
    assert digest.busy_ns == pytest.approx(sum(work.gpu_ns for work in digest.work))
    assert digest.kernels == pytest.approx(sum(work.kernels for work in digest.work))
    assert {finding.code for finding in digest.findings} >= {"LCH004"}
    assert digest.memory is not None
    assert digest.memory.allocated > 3_000_000_000
    assert digest.gpu == "NVIDIA H200"


def test_added_runs_are_explained_by_their_digests(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    traceq("history", "add", COPIES, FIXED, "--db", file, "--commit", "abcd")

    answer = traceq(
        "history",
        "explain",
        COPIES,
        FIXED,
        "--db",
        file,
        "--digests",
        "--format",
        "json",
    )

    causes = json.loads(answer.out)["difference"]["causes"]
    assert (causes[0]["op"], causes[0]["where"]) == ("aten::to", "dev_cases.py:step")
    assert causes[0]["amount"]["before"] > 7_000_000


@pytest.mark.slow
def test_recordings_that_are_still_there_are_compared_whole(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    traceq("history", "add", COPIES, FIXED, "--db", file)

    answer = traceq("history", "explain", "1", "2", "--db", file, "--format", "json")

    assert json.loads(answer.out)["verdict"] == "faster"


def test_a_run_that_has_changed_on_disk_is_compared_by_its_digest(
    tmp_path: Path,
) -> None:
    file, trace = tmp_path / "h.sqlite", tmp_path / "trace.json.gz"
    trace.write_bytes((COPIES / "trace.json.gz").read_bytes())
    traceq("history", "add", trace, FIXED, "--db", file)
    trace.write_bytes((FIXED / "trace.json.gz").read_bytes())

    answer = traceq("history", "explain", "1", "2", "--db", file)

    assert "digests are compared" in answer.err
    assert answer.status == 0


@pytest.mark.parametrize("name", ["/", "/proc/kmsg", "/dev/zero", "no\0path"])
def test_a_path_of_a_history_is_not_opened_unless_it_is_the_run(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / "h.sqlite"
    add(file, [(str(at), with_step(at, 1e7, name=name)) for at in range(2)])

    answer = traceq("history", "explain", "1", "2", "--db", file)

    assert answer.status == 0, answer.err
    assert "digests are compared" in answer.err


def test_adding_a_run_again_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    first = traceq("history", "add", COPIES, "--db", file)
    content = file.read_bytes()

    second = traceq("history", "add", COPIES, "--db", file)

    assert first.out.startswith("added: ")
    assert second.out.startswith("already there: ")
    assert file.read_bytes() == content


def test_the_json_of_lint_is_a_run(tmp_path: Path) -> None:
    file, path = tmp_path / "h.sqlite", tmp_path / "lint.json"
    path.write_text(traceq("lint", COPIES, "--format", "json").out)
    traceq("history", "add", path, "--db", file)

    with reading(file) as stored:
        (digest,) = stored.digests(stored.runs())

    assert digest.step is not None
    assert digest.step.ns == 13_200_000
    assert {finding.code for finding in digest.findings} >= {"CPY003"}


def test_json_of_another_kind_is_refused_in_a_sentence(tmp_path: Path) -> None:
    wrong = tmp_path / "lint.json"
    wrong.write_text('{"version": 3, "recordings": [{"name": 1}]}')

    answer = traceq("history", "add", wrong, "--db", tmp_path / "h.sqlite")

    assert answer.status == 2
    assert "not of traceq lint" in answer.err
    assert not (tmp_path / "h.sqlite").exists()


def test_a_job_of_many_ranks_is_one_run(tmp_path: Path) -> None:
    file, job = tmp_path / "h.sqlite", tmp_path / "job"
    write_job(job, [Works()] * 4)

    added = traceq("history", "add", job, "--db", file)

    with reading(file) as stored:
        (run,) = stored.runs()
        (digest,) = stored.digests([run])
    assert added.status == 0, added.err
    assert run.ranks == 4
    assert [cause.name for cause in digest.causes] == ["waiting", "transfer"]
    assert digest.work


# -- Commits ---------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet")
    for number in range(9):
        git(folder, "commit", "--quiet", "--allow-empty", "-m", str(number))
    return folder


def commits(repository: Path) -> list[str]:
    return git(repository, "rev-list", "--reverse", "HEAD").split()


def test_the_commit_of_the_repository_is_stored(
    tmp_path: Path, repository: Path
) -> None:
    file = tmp_path / "h.sqlite"
    traceq("history", "add", COPIES, "--db", file, "--root", repository)

    with reading(file) as stored:
        (run,) = stored.runs()

    assert run.commit == commits(repository)[-1]


def test_a_short_commit_is_stored_in_full(tmp_path: Path, repository: Path) -> None:
    file, third = tmp_path / "h.sqlite", commits(repository)[3]
    arguments = ("--db", file, "--root", repository, "--commit", third[:8])
    traceq("history", "add", COPIES, *arguments)

    with reading(file) as stored:
        (run,) = stored.runs()

    assert run.commit == third


def measured(repository: Path, folder: Path, steps: dict[int, float]) -> Path:
    known = commits(repository)
    return written(
        folder,
        [with_step(at, 1e6 * ms, commit=known[at]) for at, ms in steps.items()],
    )


def bisected(repository: Path, file: Path) -> dict[str, Any]:
    ends = commits(repository)[0], commits(repository)[-1]
    arguments = ("--db", file, "--root", repository, "--format", "json")
    answer = traceq("history", "bisect", *ends, *arguments)
    assert answer.status == 0, answer.err
    document: dict[str, Any] = json.loads(answer.out)
    return document


def test_bisect_names_the_commit_in_the_middle(
    repository: Path, tmp_path: Path
) -> None:
    file = measured(repository, tmp_path, {0: 10.0, 8: 12.0})

    result = bisected(repository, file)

    assert (result["next"], result["runs_left"]) == (commits(repository)[4], 3)


def test_bisect_ends_at_the_first_bad_commit(repository: Path, tmp_path: Path) -> None:
    steps = {0: 10.0, 4: 10.1, 5: 12.1, 6: 12.0, 8: 12.0}

    result = bisected(repository, measured(repository, tmp_path, steps))

    assert result["next"] is None
    assert result["bad"]["commit"] == commits(repository)[5]


def test_bisect_asks_for_a_commit_again_that_tells_nothing() -> None:
    names = [f"{at:040x}" for at in range(3)]
    steps = [(0, 10.0), (0, 10.4), (0, 9.6), (1, 11.0), (2, 12.0), (2, 12.4), (2, 11.6)]
    runs = [
        run_of(str(at), with_step(at, 1e6 * ms, commit=names[commit]))
        for at, (commit, ms) in enumerate(steps)
    ]

    bisection = bisect(names, runs)

    assert (bisection.next, bisection.again) == (names[1], True)


def test_commits_whose_own_runs_differ_as_much_are_not_bisected() -> None:
    names = [f"{at:040x}" for at in range(2)]
    steps = [(0, 5.15), (0, 15.66), (1, 17.47)]
    runs = [
        run_of(str(at), with_step(at, 1e6 * ms, commit=names[commit]))
        for at, (commit, ms) in enumerate(steps)
    ]

    with pytest.raises(UsageError, match="do not differ"):
        bisect(names, runs, "step")


def test_commits_that_do_not_differ_are_not_bisected(
    repository: Path, tmp_path: Path
) -> None:
    file = measured(repository, tmp_path, {0: 10.0, 8: 10.0})
    ends = commits(repository)[0], commits(repository)[-1]

    answer = traceq("history", "bisect", *ends, "--db", file, "--root", repository)

    assert answer.status == 2
    assert "nothing to bisect" in answer.err


# -- A new run -------------------------------------------------------------------------


def test_a_new_run_is_compared_with_the_last_ten(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    add(file, [(str(at), with_step(at, 14e6 + 1e4 * (at % 3))) for at in range(12)])
    slow = tmp_path / "trace.json.gz"
    slow.write_bytes((ROOT / "fixtures/twins/attn_manual/trace.json.gz").read_bytes())

    arguments = ("--db", file, "--series", "train.py", "--step-ms", "16.08")
    answer = traceq("history", "compare", slow, *arguments, "--format", "json")

    document = json.loads(answer.out)
    assert len(document["earlier"]) == 10
    assert document["shifts"][0]["number"] == "step"
    assert traceq("history", "show", "--db", file).out.count("\n") == 14


def test_the_comment_escapes_names(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    hostile = "<img src=x>\x1b[2J @ann"
    add(file, [("a", with_step(0, 1e7, series=hostile))])

    text = traceq("history", "show", "--db", file).out
    markdown = traceq("history", "show", "--db", file, "--format", "markdown").out

    assert "\x1b" not in text + markdown
    assert "<img" not in markdown
    assert "`@ann,`" in markdown


# -- The page --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_shows_the_trend_without_complaint(
    sixty: Path, tmp_path: Path
) -> None:
    file = tmp_path / "history.html"
    traceq("history", "report", "--db", sixty, "-o", file)

    with browser(tmp_path) as page:
        page.open(file)
        points = page.value("document.querySelectorAll('circle.dot').length")
        jumps = page.value("document.querySelectorAll('ul.said > li').length")
        assert page.complaints() == []

    assert points >= 60 * 3
    assert jumps == 4


# -- The file --------------------------------------------------------------------------


def test_a_file_that_is_no_history_is_not_written_to(tmp_path: Path) -> None:
    for name, content in (("notes.txt", b"keep me"), ("other.sqlite", None)):
        file = tmp_path / name
        if content is None:
            with sqlite3.connect(file) as other:
                other.execute("CREATE TABLE mine (a)")
        else:
            file.write_bytes(content)
        before = file.read_bytes()

        answer = traceq("history", "add", COPIES, "--db", file)

        assert answer.status == 2
        assert "is not a history of traceq" in answer.err
        assert file.read_bytes() == before


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM digests; END",
        "CREATE VIEW v AS SELECT * FROM runs",
        "CREATE INDEX i ON runs (abs(id))",
        "ALTER TABLE runs ADD COLUMN more",
        "PRAGMA user_version = 2",
        "UPDATE runs SET step_ns = 9e999",
        "UPDATE runs SET at_ns = 'soon'",
        "UPDATE digests SET content = x'00'",
        "DELETE FROM digests",
    ],
)
def test_a_history_that_was_tampered_with_ends_in_a_sentence(
    tmp_path: Path, statement: str
) -> None:
    file = written(
        tmp_path, [with_step(at, 1e7 if at < 5 else 2e7) for at in range(10)]
    )
    with sqlite3.connect(file) as other:
        other.execute(statement)

    answer = traceq("history", "show", "--db", file)

    assert answer.status == 2
    assert answer.err.count("\n") == 1
    assert "is not a history of traceq" in answer.err


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_history_is_read_or_refused_in_a_sentence(
    sixty: Path, tmp_path: Path, seed: int
) -> None:
    content = bytearray(sixty.read_bytes())
    for at in range(40):
        place = (seed * 7919 + at * 104729) % len(content)
        content[place] ^= 1 << (at % 8)
    file = tmp_path / "damaged.sqlite"
    file.write_bytes(content)
    sentence = ""
    try:
        series_in(file)
    except TraceqError as error:
        sentence = str(error)

    assert "\n" not in sentence


def test_a_missing_history_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        series_in(tmp_path / "none.sqlite")


def test_an_unknown_series_is_one_sentence(sixty: Path) -> None:
    with pytest.raises(UsageError, match="no runs of the series"):
        series_in(sixty, name="another")


_ADDING = """
import sys
from pathlib import Path
from traceq.history.store import add, reading
from traceq.history.digest import Digest
file, name = Path(sys.argv[1]), sys.argv[2]
for at in range(20):
    digest = Digest(traceq="0", name=f"{name}-{at}", series="", at_ns=at)
    add(file, [(f"{name}-{at}", digest)])
"""


def test_runs_that_are_added_at_once_are_all_there(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    command = [sys.executable, "-c", _ADDING, str(file)]
    adding = [
        subprocess.Popen([*command, name], env={**os.environ, "PYTHONPATH": str(ROOT)})
        for name in ("a", "b", "c")
    ]

    assert [process.wait() for process in adding] == [0, 0, 0]
    with reading(file) as stored:
        assert len(stored.runs()) == 60


def test_of_several_runs_none_is_added_if_one_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    huge = with_step(1, 1e7, at_ns=1 << 70)

    with pytest.raises(InputError):
        add(file, [("a", with_step(0, 1e7)), ("b", huge)])

    assert not traceq("history", "show", "--db", file).out.count("run-")


# -- Differences -----------------------------------------------------------------------


def test_a_version_that_changed_is_named() -> None:
    before = structs.replace(base(), versions={"torch": "2.10"})
    after = structs.replace(base(), versions={"torch": "2.11"})

    assert difference([before], [after]).versions == (("torch", "2.10", "2.11"),)


def test_kernels_that_take_turns_as_the_longest_are_not_others() -> None:
    def run(kernel: str, ns: int) -> Digest:
        work = structs.replace(_SYNC, kernel=kernel, kernels=2, gpu_ns=ns, syncs=0)
        return structs.replace(base(), work=(work,))

    before = [run("gemm", 5_000_000), run("splitk", 5_010_000)]
    (cause,) = difference(before, [run("gemm", 6_000_000)]).causes
    assert cause.kind == "kernel time"

    (cause,) = difference(before, [run("cutlass", 6_000_000)]).causes
    assert (cause.kind, cause.kernels[1]) == ("other kernel", "cutlass")


def on_cpu(file: Path, longest: str) -> Path:
    """Write a trace without a GPU: an op of 10 ms, one of two inside takes most."""
    times = {"aten::relu": 6000 if longest == "aten::relu" else 1000}
    times["aten::clamp_min"] = 4000 if longest == "aten::relu" else 5000
    events = []
    for step in range(3):
        at = 20_000 * step
        inside = times["aten::clamp_min"]
        for name, begin, dur, category in (
            (f"ProfilerStep#{step}", at, 20_000, "user_annotation"),
            ("aten::relu", at + 10, inside + times["aten::relu"], "cpu_op"),
            ("aten::clamp_min", at + 20, inside, "cpu_op"),
        ):
            times_of = {"ts": begin, "dur": dur, "pid": 1, "tid": 1}
            events.append({"ph": "X", "cat": category, "name": name, **times_of})
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return file


def test_without_a_gpu_calls_are_slower_and_no_kernels(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    for number, longest in enumerate(("aten::clamp_min", "aten::relu")):
        trace = on_cpu(tmp_path / f"{number}.json", longest)
        words = ("--db", file, "--commit", f"{number:040x}", "--series", "train")
        added = traceq("history", "add", trace, *words)
        assert added.status == 0, added.err
    answer = traceq("history", "explain", "#1", "#2", "--db", file, "--digests")

    assert answer.status == 0, answer.err
    assert "same calls slower: aten::relu" in answer.out
    assert "kernel" not in answer.out


def test_the_same_digest_has_no_difference() -> None:
    result = difference([base()], [base()])

    assert (result.causes, result.findings, result.versions) == ((), (), ())


def test_a_finding_that_is_gone_is_named() -> None:
    after = structs.replace(base(), findings=base().findings[1:])

    (change,) = difference([base()], [after]).findings

    assert (change.state, change.finding) == ("gone", base().findings[0])


# -- Documentation ---------------------------------------------------------------------

_STEPS = (9.28, 9.30, 9.27, 9.31, 9.29, 9.30, 9.67, 9.70, 9.68, 9.66, 9.69, 9.68)
_FIRST_DAY_NS = 1_793_491_200_000_000_000
_DAY_NS = 86_400_000_000_000
_BUSY_NS = 9_000_000
_SYNC = Work(
    phase="optimizer",
    module="",
    where="train.py:step",
    op="aten::item",
    role="compute",
    kernel="Memcpy DtoH (Device -> Pinned)",
    calls=1,
    kernels=0,
    gpu_ns=0,
    idle_ns=0,
    syncs=1,
    sync_ns=370_000,
)


def documented() -> list[Digest]:
    """Return the runs of the page: from the seventh on with one more sync."""
    digests = []
    for at, ms in enumerate(_STEPS):
        ns, syncs = 1e6 * ms, int(at >= 6)
        digests.append(
            with_step(
                at,
                ns,
                at_ns=_FIRST_DAY_NS + at * _DAY_NS,
                commit=hashlib.sha256(str(at).encode()).hexdigest()[:40],
                step=StepTime(ns, 0.01 * ns, 20, "measured"),
                busy_ns=_BUSY_NS,
                idle_ns=ns - _BUSY_NS,
                syncs=syncs,
                work=(*base().work, *[_SYNC] * syncs),
            )
        )
    return digests


_SHOWN = "history-show"


def test_the_page_shows_what_show_prints(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    (shown,) = re.findall(rf"<!-- {_SHOWN} -->\n```\n(.*?)```", page, re.DOTALL)

    answer = traceq("history", "show", "--db", written(tmp_path, documented()))

    assert answer.out == shown


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ("history", ["show"]),
        ("history_explain", ["explain", "1", "60"]),
        ("history_compare", ["compare", COPIES, "--series", "train.py"]),
    ],
)
def test_json_fits_its_schema(
    sixty: Path, schema: str, arguments: list[str | Path]
) -> None:
    answer = traceq("history", *arguments, "--db", sixty, "--format", "json")

    assert errors(schema, json.loads(answer.out)) == []


def test_the_next_commit_fits_its_schema(repository: Path, tmp_path: Path) -> None:
    file = measured(repository, tmp_path, {0: 10.0, 8: 12.0})

    assert errors("history_bisect", bisected(repository, file)) == []


def test_a_digest_fits_its_schema() -> None:
    for digest in history(QUIET, 0).digests[-1:]:
        assert (
            errors("history_digest", json.loads(zlib.decompress(packed(digest)))) == []
        )
