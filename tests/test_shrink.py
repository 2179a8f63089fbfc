"""A trace made small: the same is found, whole steps are kept, nothing is private."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from conftest import ROOT
from linting import bundled_rules

from traceq.check.budgets import read_budgets
from traceq.check.fixture import read_fixture
from traceq.errors import InputError, UsageError
from traceq.formats.log import log_lines
from traceq.formats.sanitize.members import members
from traceq.formats.sanitize.paths import Paths
from traceq.formats.sanitize.regions import Regions
from traceq.formats.sanitize.snapshot import clean_snapshot
from traceq.formats.sanitize.trace import read_written
from traceq.inputs.load_recording import load_recording
from traceq.inputs.load_trace import load
from traceq.inputs.options import UNCACHED
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.shrink import shrink
from traceq.shrink.lines import needed_lines
from traceq.shrink.shrink import ShrinkInput
from traceq.testing.timeline import draw

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

COPIES = ROOT / "fixtures" / "copies" / "trace.json.gz"
TWINS = ROOT / "fixtures" / "twins"
MANUAL = ROOT / "fixtures" / "attn_manual" / "snapshot.pickle.gz"
LARGE = 10**9
# What is drawn here has nothing for the other rules.
FEW = Config(select=("SYN", "TRC", "LOG"))

STEP = """
host  [ProfilerStep#{n}                                                      ]
host   [/home/alice/secret/train.py(3): main                              ]
host    [/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py(9): f ]
host     [aten::item                                 ] [aten::view]
host      [aten::_local_scalar_dense               ]
host       [cudaMemcpyAsync>1] [cudaStreamSynchronize]
gpu 7                         [Memcpy DtoH (Device -> Pageable)<1 ]
"""


def steps(count: int) -> dict[str, Any]:
    """Return a drawn trace of equal steps, one after the other."""
    events = []
    for number in range(count):
        for event in draw(STEP.replace("{n}", str(number)))["traceEvents"]:
            event["ts"] += number * 100
            if "correlation" in event["args"]:
                event["args"]["correlation"] += number
            events.append(event)
    return {"schemaVersion": 1, "traceEvents": events}


def written(folder: Path, trace: dict[str, Any]) -> Path:
    file = folder / "trace.json"
    file.write_text(json.dumps(trace), encoding="utf-8")
    return file


def shrunk(file: Path, limit: int = LARGE, **given: Any) -> Any:  # noqa: ANN401
    return shrink(ShrinkInput(file, **given), bundled_rules(), FEW, limit=limit)


def unpacked(content: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(content))
    return document


def findings(path: Path, **other: Any) -> set[tuple[Any, ...]]:  # noqa: ANN401
    recording = load_recording(path, UNCACHED, **other)
    (outcome,) = lint([recording], bundled_rules(), Config()).outcomes
    return {
        (finding.code, finding.place, finding.message, finding.count)
        for finding in outcome.findings
    }


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shrink a real trace by the command line; return the new fixture."""
    folder = tmp_path_factory.mktemp("shrunk") / "copies"
    answer = traceq("shrink", COPIES, "-o", folder, "--step-ms", "13.2")
    assert answer.status == 0, answer.err
    return folder


@pytest.mark.slow
def test_the_same_is_found_in_less_than_half(copies: Path) -> None:
    file = copies / "trace.json.gz"

    assert findings(file) == findings(COPIES)
    assert file.stat().st_size < COPIES.stat().st_size / 2


@pytest.mark.slow
def test_shrinking_what_is_shrunk_gives_the_same_bytes(
    copies: Path, tmp_path: Path
) -> None:
    traceq("shrink", copies, "-o", tmp_path / "again")

    for name in ("trace.json.gz", "origin.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (copies / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copies_fixed", "graph_rerecord", "oom_fragmented"])
def test_committed_fixtures_are_as_small_as_they_get(name: str, tmp_path: Path) -> None:
    answer = traceq("shrink", TWINS / name, "-o", tmp_path / name)

    assert answer.status == 0, answer.err
    for file in (tmp_path / name).iterdir():
        # Budgets of the committed one may have been written by hand.
        if file.name != "traceq.toml":
            assert file.read_bytes() == (TWINS / name / file.name).read_bytes()


def test_committed_fixtures_are_small() -> None:
    files = list(TWINS.glob("*/*.gz"))

    assert len(files) > 15
    # Two steps of many experts, each with launches of its own, take more.
    large = [file.parent.name for file in files if file.stat().st_size > 256_000]
    assert large == ["moe_dropless_fixed"]
    assert all(file.stat().st_size <= 500_000 for file in files)


def test_committed_fixtures_name_no_folder_of_a_machine() -> None:
    for file in TWINS.glob("*/*.gz"):
        content = gzip.decompress(file.read_bytes())
        assert not re.search(rb"/(home|root|Users|usr|work)/", content), file


def test_what_is_kept_keeps_its_bytes(copies: Path) -> None:
    before = gzip.decompress(COPIES.read_bytes()).decode()
    after = gzip.decompress((copies / "trace.json.gz").read_bytes()).decode()
    kernels = re.findall(r'\n  \{\n    "ph": "X", "cat": "kernel".*\n.*\n', after)

    assert len(kernels) == 228
    assert all(kernel in before for kernel in kernels)
    assert before[: before.index('"trace_id"')] == after[: after.index('"with_stack"')]


def test_the_fixture_says_how_it_was_made(copies: Path) -> None:
    text = (copies / "origin.toml").read_text(encoding="utf-8")

    assert 'gpu = "NVIDIA H200"' in text
    assert "true_step_ms = 13.2" in text
    assert "2 of 2 steps, 2,672 of 4,655 events" in text


@pytest.mark.slow
def test_two_of_many_steps_are_kept_whole(tmp_path: Path) -> None:
    made = shrunk(written(tmp_path, steps(6)))
    file = tmp_path / "small.json.gz"
    file.write_bytes(made.trace)
    trace = load(file, cache=False)

    assert made.steps == (2, 6)
    assert trace.steps["step"].to_list() == [4, 5]
    assert trace.kernels["step"].to_list() == [4, 5]
    assert trace.kernels["launch"].null_count() == 0
    assert trace.ops.height == 6


@pytest.mark.slow
def test_work_that_the_gpu_was_still_busy_with_is_kept(tmp_path: Path) -> None:
    trace = steps(4)
    late = [
        event for event in trace["traceEvents"] if event["name"].startswith("Memcpy")
    ][1]
    late["dur"] = 130
    made = shrunk(written(tmp_path, trace))
    retained = [
        event for event in unpacked(made.trace)["traceEvents"] if event["tid"] == 7
    ]

    assert [entry["args"]["correlation"] for entry in retained] == [2, 3, 4]


@pytest.mark.slow
def test_one_step_is_kept_only_where_two_are_too_large(tmp_path: Path) -> None:
    made = shrunk(written(tmp_path, steps(6)), limit=1)

    assert made.steps == (1, 6)
    assert {finding.code for finding in made.seen.findings} >= {"SYN001", "TRC002"}


@pytest.mark.slow
def test_what_cannot_go_is_said_with_what_would_be_otherwise(tmp_path: Path) -> None:
    trace = steps(2)
    for event in trace["traceEvents"]:
        # The second step does what the first one does not.
        if event["name"] == "aten::item" and event["ts"] > 100:
            event["name"] = "aten::nonzero"

    made = shrunk(written(tmp_path, trace), limit=1)

    assert made.steps == (2, 2)
    assert made.stays["steps before the last 1"] == [
        "SYN001 in main (train.py:3) is lost",
        "TRC002 is new",
    ]


@pytest.mark.slow
def test_a_trace_that_stays_too_large_says_why(tmp_path: Path) -> None:
    answer = traceq("shrink", TWINS / "moe_loop", "-o", tmp_path / "x", "--max-kb", "1")

    assert "larger than 1 kB, since the rest is needed:" in answer.out
    assert "without operators that start nothing on the GPU: LCH001 in" in answer.out


@pytest.mark.slow
def test_operators_that_start_nothing_go_only_if_it_is_too_large(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, steps(2))

    def names(limit: int) -> set[str]:
        events = unpacked(shrunk(file, limit).trace)["traceEvents"]
        return {event["name"] for event in events}

    assert "aten::view" in names(LARGE)
    assert "aten::view" not in names(1)


PRIVATE = {
    "host_name": "gpu-box-17",
    "traceName": "/home/alice/out/trace.json",
    "PT_PROFILER_JOB_NAME": "nightly of alice",
    "my_key": {"token": "hf_abcdefgh"},
    "trace_id": "599D",
}


@pytest.fixture
def private(tmp_path: Path) -> str:
    """Return the text of a shrunk trace that was full of private things."""
    trace = steps(2)
    region = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "load /mnt/alice/data.bin on gpu-box-17 for alice",
        "pid": 1000,
        "tid": 1,
        "ts": 1,
        "dur": 2,
        "secret": "alice",
        "args": {"kernel_file": "/home/alice/x.py", "cwd": "/home/alice"},
    }
    trace["traceEvents"].append(region)
    device = {"id": 0, "name": "NVIDIA H200", "uuid": "GPU-1234"}
    head = {"deviceProperties": [device], "cuda_runtime_version": 13000}
    made = shrunk(written(tmp_path, head | PRIVATE | trace))
    return gzip.decompress(made.trace).decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "word",
    [
        "alice",
        "gpu-box",
        "hf_",
        "secret",
        "uuid",
        "599D",
        "/mnt",
        "/home",
        "kernel_file",
    ],
)
def test_nothing_private_is_left(word: str, private: str) -> None:
    assert word not in private


@pytest.mark.slow
def test_what_is_known_to_be_harmless_is_kept(private: str) -> None:
    document = json.loads(private)

    assert document["cuda_runtime_version"] == 13000
    assert document["deviceProperties"] == [{"id": 0, "name": "NVIDIA H200"}]
    assert {"train.py(3): main"} <= {event["name"] for event in document["traceEvents"]}


def test_findings_are_the_same_with_short_paths(tmp_path: Path) -> None:
    made = shrunk(written(tmp_path, steps(2)))

    (sync,) = [finding for finding in made.seen.findings if finding.code == "SYN001"]
    where = sync.place
    assert (where.file, where.line, where.function) == ("train.py", 3, "main")


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/bob/proj/train.py", "train.py"),
        ("/home/bob/proj/models/block.py", "models/block.py"),
        ("/home/bob/env/lib/python3.11/site-packages/a/b.py", None),
        ("/tmp/torchinductor_bob/ab/c.py", "/tmp/torchinductor/ab/c.py"),  # noqa: S108
        ("/data/other.py", "other.py"),
        ("src/train.py", "src/train.py"),
        ("<string>", "<string>"),
    ],
)
def test_paths_lose_the_folders_of_a_machine(path: str, short: str | None) -> None:
    known = ["/home/bob/proj/train.py", "/home/bob/proj/models/block.py"]
    paths = Paths(known)

    text = paths.short(path)

    assert text == (short or "/lib/python3.11/site-packages/a/b.py")
    assert paths.short(text) == Paths([text]).short(text) == text


def test_files_of_two_people_lose_all_folders() -> None:
    paths = Paths(["/home/ann/a.py", "/home/bob/b/c.py"])

    assert [paths.short("/home/ann/a.py"), paths.short("/home/bob/b/c.py")] == [
        "a.py",
        "c.py",
    ]


def test_windows_paths_are_paths() -> None:
    paths = Paths(["C:\\Users\\carol\\proj\\train.py"])

    assert paths.frame("C:\\Users\\carol\\proj\\train.py(3): main") == (
        "train.py(3): main"
    )
    assert paths.text("by carol") == "by user"


def test_stacks_that_are_text_lose_the_folders_too(tmp_path: Path) -> None:
    trace = steps(2)
    stack = "/home/bob/proj/net.py(7): forward; /home/bob/proj/train.py(3): main"
    for event in trace["traceEvents"]:
        if event["name"] == "aten::item":
            event["args"]["Call stack"] = stack.replace("; ", ";")
    # The other folder of the drawing would leave nothing in common.
    text = json.dumps(trace).replace("/home/alice/secret", "/home/bob/proj")
    made = read_written(written(tmp_path, json.loads(text)))

    assert (
        '"Call stack": "net.py(7): forward;train.py(3): main"' in made.json().decode()
    )


def test_members_of_what_is_no_object_are_none() -> None:
    assert members('"a": 1, nonsense') is None
    assert members('"a": 1 "b": 2') is None
    assert members('"a": [1') is None


def test_an_event_that_is_no_json_is_left_out(tmp_path: Path) -> None:
    text = json.dumps(steps(2)).replace("aten::view", 'aten::"view"', 1)
    file = tmp_path / "trace.json"
    file.write_text(text, encoding="utf-8")

    assert read_written(file).unreadable == 1


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(steps(2))[:-40], encoding="utf-8")

    answer = traceq("shrink", file, "-o", tmp_path / "small")

    assert answer.status == 2
    assert "is incomplete" in answer.err
    assert not (tmp_path / "small").exists()


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text('{"traceEvents": []}', encoding="utf-8")

    with pytest.raises(InputError):
        shrunk(file)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")

    answer = traceq("shrink", COPIES, "-o", tmp_path / "mine")

    assert answer.status == 2
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_rule_that_fails_keeps_everything_as_it_is(tmp_path: Path) -> None:
    rules = dict(bundled_rules())

    def broken(_: object, view: object) -> object:
        raise ValueError(view)

    rule = rules["SYN001"]
    rules["SYN001"] = type(rule.__name__, (rule,), {"check": broken})
    given = ShrinkInput(written(tmp_path, steps(2)))

    with pytest.raises(UsageError, match="SYN001 crashed"):
        shrink(given, rules, FEW, limit=LARGE)


WARNING = (
    "/home/alice/train.py:7: UserWarning: called a synchronizing CUDA operation"
    " (Triggered internally at x.cpp:1.)"
)
NEEDED = WARNING.partition(" (Triggered")[0]


def test_only_lines_that_rules_read_are_kept() -> None:
    lines = ["password: hunter2", "epoch 1", WARNING, "  x.item()", "bye"]

    assert needed_lines(lines, bundled_rules(), FEW) == [NEEDED]


@pytest.mark.slow
def test_a_log_comes_along_without_private_paths(tmp_path: Path) -> None:
    log = log_lines(f"my token\n{WARNING}\n")

    made = shrunk(written(tmp_path, steps(2)), log=log)

    assert made.log == NEEDED.replace("/home/alice/", "") + "\n"


def test_a_snapshot_keeps_its_findings_and_loses_its_folders(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    folder = "/home/user/train"
    paths = Paths([f"{folder}/dev_cases.py"])
    content = clean_snapshot(MANUAL, paths, Regions(paths))
    file.write_bytes(content)

    assert folder.encode() in gzip.decompress(MANUAL.read_bytes())
    assert b"/home" not in content
    assert {finding[0] for finding in findings(file)} == {"MEM006"}
    assert {finding[1].file for finding in findings(file)} == {"dev_cases.py"}


def test_a_pickle_that_is_no_snapshot_is_refused() -> None:
    with pytest.raises(InputError):
        clean_snapshot(COPIES, Paths([]), Regions(Paths([])))


@pytest.mark.slow
def test_a_run_folder_brings_what_is_known_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(TWINS / "copies_fixed" / "trace.json.gz", run / "rank-0.trace.json.gz")
    step_time = {"ms": 3.5, "median_ms": 3.5, "min_ms": 3, "max_ms": 4, "steps": 20}
    rank = {
        "format": 1,
        "name": "rank-0",
        "rank": 0,
        "state": "done",
        "step_time": step_time,
        "trace": {"file": "rank-0.trace.json.gz"},
        "versions": {"torch": "2.11.0+cu130"},
    }
    manifest = {"format": 1, "command": ["python", "train.py"], "ranks": [rank]}
    (run / "run.json").write_text(json.dumps(manifest))

    answer = traceq("shrink", run, "-o", tmp_path / "small")
    text = (tmp_path / "small" / "origin.toml").read_text(encoding="utf-8")

    assert answer.status == 0, answer.err
    assert 'program = "python train.py"' in text
    assert 'torch = "2.11.0+cu130"' in text
    assert "true_step_ms = 3.5" in text


# Replacing a fixture, and how its program is run.


def as_run(folder: Path, *command: str, **more: object) -> Path:
    """Draw a run folder of a program."""
    folder.mkdir()
    source = TWINS / "copies_fixed" / "trace.json.gz"
    shutil.copy(source, folder / "rank-0.trace.json.gz")
    rank = {
        "format": 1,
        "name": "rank-0",
        "rank": 0,
        "state": "done",
        "trace": {"file": "rank-0.trace.json.gz"},
        **more,
    }
    manifest = {"format": 1, "command": list(command), "ranks": [rank]}
    (folder / "run.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.slow
def test_a_replaced_fixture_keeps_its_budgets_and_its_words(tmp_path: Path) -> None:
    fixture = tmp_path / "fixtures" / "x"
    shutil.copytree(TWINS / "attn_flash", fixture)
    (fixture / "log.txt").write_text("old\n")
    before = {
        name: (fixture / name).read_bytes() for name in ("findings.json", "traceq.toml")
    }
    program = read_fixture(fixture).origin["program"]
    run = as_run(tmp_path / "run", "python", "train.py")

    refused = traceq("shrink", run, "-o", fixture)
    answer = traceq("shrink", run, "-o", fixture, "--replace")

    assert refused.status == 2
    assert "give another name, or --replace" in refused.err
    assert answer.status == 0, answer.err
    for name, content in before.items():
        assert (fixture / name).read_bytes() == content
    assert not (fixture / "log.txt").exists()
    now = read_fixture(fixture)
    assert now.origin["program"] == program
    assert now.origin["command"] == "traceq collect -- python train.py"
    assert "launches 57, the budget is" in traceq("check", fixture).out


def test_only_a_fixture_can_be_replaced(tmp_path: Path) -> None:
    answer = traceq("shrink", COPIES, "-o", tmp_path / "none", "--replace")

    assert answer.status == 2
    assert "is not a fixture that --replace could replace" in answer.err


@pytest.mark.slow
def test_the_command_of_a_run_names_files_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "jobs").mkdir()
    for name in ("train.py", "small.yaml"):
        (tmp_path / "jobs" / name).touch()
    monkeypatch.chdir(tmp_path / "jobs")
    words = ["/usr/bin/python3", "train.py", "--config=small.yaml", "--lr", "0.1"]
    run = as_run(tmp_path / "run", *words, "--data", "/home/alice/secret")

    answer = traceq("shrink", run, "-o", tmp_path / "small")

    said = read_fixture(tmp_path / "small").origin["command"]
    assert said == (
        "traceq collect -- python3 jobs/train.py --config=jobs/small.yaml --lr 0.1"
        " --data …"
    )
    assert "words of the command were left out" in answer.out


@pytest.mark.slow
def test_a_command_can_be_given(tmp_path: Path) -> None:
    answer = traceq(
        *("shrink", COPIES, "-o", tmp_path / "small", "--program", "Copies."),
        *("--command", "python copies.py"),
    )

    assert answer.status == 0, answer.err
    origin = read_fixture(tmp_path / "small").origin
    assert (origin["program"], origin["command"]) == ("Copies.", "python copies.py")


@pytest.mark.slow
def test_graph_breaks_of_a_run_become_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    at = {"file": "a.py", "line": 3, "function": "f", "why": "print", "count": 1}
    compiled = {"graphs": 2, "ops": 5, "graph_breaks": [at], "recompiles": []}
    run = as_run(tmp_path / "run", "python", "train.py", compiled=compiled)
    fixture = tmp_path / "small"
    traceq("shrink", run, "-o", fixture)

    assert traceq("check", fixture, "--update").status == 0
    assert read_budgets(fixture / "traceq.toml").limits["graph-breaks"].value == 1
    assert traceq("check", fixture).status == 0
    more = as_run(
        *(tmp_path / "more", "python", "train.py"),
        compiled={**compiled, "graph_breaks": [at, {**at, "line": 4}]},
    )
    answer = traceq("check", fixture, "--against", more)
    assert "graph-breaks 2, the budget is 1" in answer.out
    assert answer.status == 1


@pytest.mark.slow
def test_a_step_time_can_be_given_for_a_fixture(tmp_path: Path) -> None:
    traceq("shrink", TWINS / "copies_fixed", "-o", tmp_path / "x", "--step-ms", "3.25")

    assert read_fixture(tmp_path / "x").step_ns == 3_250_000


def test_half_of_a_surrogate_pair_in_a_region_is_no_obstacle(tmp_path: Path) -> None:
    document = draw("""
        host   [ProfilerStep#1      ] [ProfilerStep#2      ]
        host    [REGION           ]    [aten::mm         ]
        host      [aten::mm     ]
    """)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document).replace("REGION", r"a region \ud800"))

    answer = traceq("shrink", path, "-o", tmp_path / "fixture")

    assert answer.status == 0, answer.err
    content = gzip.decompress((tmp_path / "fixture" / "trace.json.gz").read_bytes())
    names = [event["name"] for event in json.loads(content)["traceEvents"]]
    assert "region-1" in names


def test_an_event_without_any_known_member_is_left_out(tmp_path: Path) -> None:
    document = draw("""
        host   [ProfilerStep#1      ] [ProfilerStep#2      ]
        host    [aten::mm         ]    [aten::mm         ]
    """)
    document["traceEvents"].insert(1, {"a": []})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))

    events = json.loads(read_written(path).json())["traceEvents"]

    assert len(events) == len(document["traceEvents"]) - 1
    assert all(event["name"] for event in events)


def test_a_number_that_json_does_not_have_is_no_member() -> None:
    assert members('"a": NaN') is None
