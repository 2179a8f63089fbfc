"""`with traceq.profile() as run:` records a loop of the program that calls it."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from collecting import COLLECT, WITH_TORCH, Late, environment

import traceq
from traceq.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = WITH_TORCH

torch: Any = Late("torch")
QUICK: dict[str, Any] = {"warmup": 2, "timed": 3, "active": 2, "overhead": False}
STEPS = 15


@pytest.fixture(scope="module")
def step() -> Callable[[], None]:
    """A training step."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def made() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()

    return made


@pytest.fixture(scope="module")
def whole(step: Callable[[], None], tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ANN401
    """A loop that says where its steps end, recorded whole."""
    out = tmp_path_factory.mktemp("runs")
    with traceq.profile(out=out, labels={"seq_len": 512}, **QUICK) as run:
        for _ in range(STEPS):
            step()
            run.step()
    return run


def rank_of(run: Any) -> dict[str, Any]:  # noqa: ANN401
    document: dict[str, Any] = json.loads((run.folder / "rank-0.json").read_text())
    return document


def test_a_run_folder_has_the_trace_and_the_step_time(whole: Any) -> None:  # noqa: ANN401
    rank = rank_of(whole)

    assert rank["state"] == "done"
    assert rank["steps"]["by"] == "call"
    assert rank["step_time"]["steps"] == 3
    assert rank["trace"]["steps"] == [1, 2]
    assert (whole.folder / "rank-0.trace.json.gz").is_file()


def test_the_run_file_says_who_recorded_what(whole: Any) -> None:  # noqa: ANN401
    run = json.loads((whole.folder / "run.json").read_text())

    assert run["tool"] == "traceq.profile"
    assert run["state"] == "finished"
    assert run["labels"] == {"seq_len": "512"}
    assert [rank["name"] for rank in run["ranks"]] == ["rank-0"]


def test_what_was_recorded_is_linted(whole: Any) -> None:  # noqa: ANN401
    result = whole.lint()

    assert result.report.outcomes[0].steps == 2
    assert result.report.outcomes[0].name == str(whole.folder)


def test_the_recorder_is_not_taken_for_the_program(whole: Any) -> None:  # noqa: ANN401
    trace = traceq.load(whole.folder)

    own = trace.frames.filter("own")["file"].cast(str).unique().to_list()
    assert any(file.endswith("test_profile.py") for file in own)
    assert not [file for file in own if "collect/" in file or "traceq/" in file]


def test_all_is_left_as_it_was(whole: Any, step: Callable[[], None]) -> None:  # noqa: ANN401
    assert whole.done
    shown = warnings.showwarning
    with traceq.profile(out=whole.folder.parent, **QUICK) as run:
        step()
        run.step()
    step()

    assert warnings.showwarning == shown
    assert not torch.autograd._profiler_enabled()  # noqa: SLF001
    assert rank_of(run)["steps"]["seen"] == 1


def test_without_a_call_the_optimizer_tells_steps(
    step: Callable[[], None], tmp_path: Path
) -> None:
    with traceq.profile(out=tmp_path, name="mine", **QUICK) as run:
        for _ in range(STEPS):
            step()

    assert run.folder == tmp_path / "mine"
    assert rank_of(run)["steps"]["by"] == "optimizer"
    assert rank_of(run)["state"] == "done"


def test_a_loop_that_ends_early_leaves_what_there_is_and_says_so(
    step: Callable[[], None], tmp_path: Path
) -> None:
    with traceq.profile(out=tmp_path, **QUICK) as run:
        for _ in range(4):
            step()
            run.step()

    assert rank_of(run)["state"] == "ended early"
    assert rank_of(run)["ended_in"] == "timing"
    assert "no trace: the loop ended after 4 steps, while timing them" in run.missing
    with pytest.raises(InputError, match="nothing to lint: no"):
        run.lint()


def test_an_error_of_the_loop_passes(step: Callable[[], None], tmp_path: Path) -> None:
    run = traceq.profile(out=tmp_path, **QUICK)

    def loop() -> None:
        with run:
            for number in range(STEPS):
                step()
                run.step()
                assert number < 9, "mine"

    with pytest.raises(AssertionError, match="mine"):
        loop()

    (why,) = {name for name in run.missing if "memory" in name}
    assert "the loop raised AssertionError after 10 steps, while tracing them" in why
    assert rank_of(run)["state"] == "ended early"


def test_a_loop_without_steps_says_how_to_make_some(tmp_path: Path) -> None:
    with traceq.profile(out=tmp_path, **QUICK) as run:
        pass

    (why,) = run.missing
    assert "call step() at the end of each" in why
    assert why in repr(run)


def test_another_profiler_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with (
        torch.profiler.profile(),
        pytest.raises(UsageError, match="torch's profiler is running already"),
        traceq.profile(out=tmp_path),
    ):
        pass


def test_two_recordings_at_once_are_refused(tmp_path: Path) -> None:
    with (
        traceq.profile(out=tmp_path, **QUICK),
        pytest.raises(UsageError, match="records itself already"),
        traceq.profile(out=tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"warmup": -1}, "--warmup"),
        ({"name": "a/b"}, "not a path"),
        ({"steps_by": "epoch"}, "--steps-by"),
        ({"steps_by": "time"}, "call step"),
        ({"ranks": "x"}, "--ranks"),
    ],
)
def test_an_option_that_cannot_be_is_refused(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        traceq.profile(**options)


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()

    with (
        pytest.raises(UsageError, match="choose another name"),
        traceq.profile(out=tmp_path, name="mine"),
    ):
        pass


def test_a_folder_is_asked_for_after_the_start() -> None:
    with pytest.raises(UsageError, match="with traceq"):
        assert traceq.profile().folder


JOB = """
import torch, torch.distributed as dist, traceq
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
with traceq.profile(warmup=1, timed=2, active=2, overhead=False) as run:
    for _ in range(20):
        model(torch.randn(2, 4)).sum().backward()
        run.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_ranks_of_a_job_share_a_folder_and_trace_the_same_steps(
    tmp_path: Path,
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run(
        [*launcher, "--standalone", "job.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        check=True,
    )

    (run,) = (tmp_path / "traceq-runs").glob("[!.]*")
    ranks = [json.loads((run / f"rank-{item}.json").read_text()) for item in (0, 1)]
    assert {rank["state"] for rank in ranks} == {"done"}
    assert len({rank["trace"]["first_step"] for rank in ranks}) == 1


ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from collect.inline.recording import Recording
model = torch.nn.Linear(4, 4)
run = Recording(warmup=1, timed=2, active=1, overhead=False)
run.start()
for _ in range(8):
    model(torch.randn(2, 4)).sum().backward()
    run.step()
run.stop()
assert not [name for name in sys.modules if name.split(".")[0] == "traceq"]
print(run.folder)
"""


@pytest.mark.slow
def test_the_folder_alone_records_a_loop_where_traceq_is_not_installed(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(COLLECT.parent)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )

    (run,) = (tmp_path / "traceq-runs").glob("[!.]*")
    assert done.stdout.strip() == str(run)
    assert json.loads((run / "run.json").read_text())["ranks"][0]["state"] == "done"
