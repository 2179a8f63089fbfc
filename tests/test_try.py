"""Programs under `collect try`: outcomes, endings, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from collecting import COLLECT, WITH_TORCH, environment
from test_schemas import errors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [*WITH_TORCH, pytest.mark.slow]

# A step of 20 ms; SWITCH is what the program does if its optimizer is fused.
PROGRAM = """
import os, random, sys, time
import torch
torch.manual_seed(0)
class Net(torch.nn.Linear):
    def forward(self, x):
        return x @ self.weight.T + self.bias
model = Net(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
data = torch.randn(16, 4)
for number in range(STEPS):
    optimizer.zero_grad()
    fused = bool(optimizer.param_groups[0]["fused"])
    loss = (model(data) ** 2).mean()
    wait = 0.02
    SWITCH
    loss.backward()
    optimizer.step()
    time.sleep(wait)
print("the end")
END
"""
ONLY = ("--only", "fused_optimizer", "--minutes", "3")


@dataclass(frozen=True)
class Tried:
    """A program that was tried, and ended."""

    status: int
    out: str
    err: str
    folder: Path

    @property
    def facts(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "try.json").read_text())
        return document

    def remedy(self, name: str = "fused_optimizer") -> dict[str, Any]:
        (result,) = [
            remedy for remedy in self.facts["remedies"] if remedy["remedy"] == name
        ]
        entry: dict[str, Any] = result
        return entry


def words(folder: Path, options: tuple[str, ...]) -> list[str]:
    out = ["--out", str(folder.parent / f"{folder.name}-out"), "--name", "run"]
    command = [sys.executable, "program.py"]
    return [sys.executable, str(COLLECT), "try", *out, *options, "--", *command]


def write(folder: Path, switch: str, steps: str, end: str) -> None:
    text = PROGRAM.replace("SWITCH", switch).replace("STEPS", steps)
    (folder / "program.py").write_text(text.replace("END", end))


def tried(
    folder: Path,
    switch: str = "pass",
    options: tuple[str, ...] = ONLY,
    steps: str = "10**9",
    end: str = "",
) -> Tried:
    """Run the program under try and return what came of it."""
    write(folder, switch, steps, end)
    done = subprocess.run(
        words(folder, options),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    place = folder.parent / f"{folder.name}-out" / "run"
    return Tried(done.returncode, done.stdout, done.stderr, place)


@pytest.fixture(scope="module")
def faster(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    folder = tmp_path_factory.mktemp("faster")
    options = ("--only", "fused_optimizer,no_op,tf32", "--minutes", "3")
    return tried(folder, "wait = 0.005 if fused else 0.1", options)


def test_a_remedy_that_helps_is_faster(faster: Tried) -> None:
    result = faster.remedy()

    assert result["outcome"] == "faster"
    assert result["ms"] < -50
    assert faster.facts["kept"]["remedies"] == ["fused_optimizer"]


def test_a_no_op_is_not_applied(faster: Tried) -> None:
    assert faster.remedy("no_op")["outcome"] == "not applied"


def test_a_remedy_that_cannot_be_applied_says_why(faster: Tried) -> None:
    result = faster.remedy("tf32")

    assert (result["outcome"], result["why"]) == (
        "not applied",
        "the program does not use CUDA",
    )


def test_the_program_is_stopped_once_everything_was_measured(faster: Tried) -> None:
    assert faster.status == 0
    assert faster.facts["exit"]["stopped_by_traceq"]


def test_the_effect_is_recorded_and_labelled(faster: Tried) -> None:
    run = json.loads((faster.folder / "fused_optimizer" / "run.json").read_text())

    assert run["labels"] == {"remedy": "fused_optimizer"}
    assert run["ranks"][0]["trace"]["bytes"]
    assert "_fused_sgd_" in faster.remedy()["proof"]["text"]


def test_the_trial_fits_its_schema(faster: Tried) -> None:
    assert errors("try", faster.facts) == []


def test_where_it_ran_is_kept(faster: Tried) -> None:
    facts = faster.facts

    assert facts["command"][-1] == "program.py"
    assert facts["versions"]["torch"]
    assert facts["steps"]["by"] == "optimizer"


def test_a_remedy_that_breaks_the_program_failed(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    switch = "assert not fused, 'no fused step'"
    result = tried(folder, switch, ("--only", "fused_optimizer", "--minutes", "3"))

    assert result.remedy()["outcome"] == "failed"
    assert "no fused step" in result.remedy()["why"]


def test_a_remedy_that_changes_the_loss_is_marked(tmp_path: Path) -> None:
    folder = tmp_path / "loss"
    folder.mkdir()
    result = tried(folder, "loss = loss * (3 if fused else 1)").remedy()

    assert result["numerics"]["loss"]["beyond_drift"]
    assert result["numerics"]["gradient_norm"]["beyond_drift"]


def test_noise_hides_an_effect(tmp_path: Path) -> None:
    folder = tmp_path / "noise"
    folder.mkdir()
    # Plateaus as long as a block: neither its median nor its shortest steps are steady.
    switch = "wait = 0.01 + 0.05 * random.Random(number // 40).random() - 0.001 * fused"
    result = tried(folder, switch).remedy()

    assert result["outcome"] in ("inconclusive", "no difference")


def test_a_whole_period_of_steps_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "period"
    folder.mkdir()
    switch = "wait = 0.02 if number % 4 else 0.1"
    place = tried(folder, switch, (*ONLY[:-1], "1")).folder
    facts = json.loads((place / "plain" / "rank-0.json").read_text())

    assert len(facts["trace"]["steps"]) == 4


def test_a_slow_first_switch_ends_no_rounds(tmp_path: Path) -> None:
    folder = tmp_path / "slow_switch"
    folder.mkdir()
    switch = """
    if fused and not globals().get("slept"):
        slept = wait = 15
"""
    options = ("--only", "fused_optimizer", "--minutes", "0.7")

    assert tried(folder, switch.strip(), options).remedy()["n"] >= 3


def test_remedies_that_compile_come_last(tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    folder.mkdir()
    result = tried(folder, options=("--only", "fused_optimizer,compile"))
    order = [block["on"] for block in result.facts["blocks"] if block["on"]]

    assert ["compile"] in order
    first = order.index(["compile"])
    assert ["fused_optimizer"] not in order[first:]
    assert order.count(["fused_optimizer"]) >= 3


# In a process that is forked within a block, as a worker of a DataLoader.
FORKS = """
    import gc
    def timers():
        return sum(type(one).__name__ == "StepTimer" for one in gc.get_objects())
    if fused and timers() and not globals().get("forked"):
        forked = True
        if os.fork() == 0:
            gc.collect()
            os.write(1, b"%d\\n" % timers())
            os._exit(0)
        os.wait()
"""


def test_a_fork_within_a_block_frees_no_timer_in_the_child(tmp_path: Path) -> None:
    """A CUDA event that is freed where CUDA cannot be used ends the process."""
    folder = tmp_path / "forks"
    folder.mkdir()

    assert tried(folder, FORKS.strip()).out == "1\n"


def test_a_program_that_fails_keeps_its_status(tmp_path: Path) -> None:
    folder = tmp_path / "failing"
    folder.mkdir()
    options = (*ONLY, "--no-restart")
    result = tried(folder, options=options, steps="60", end="sys.exit(3)")

    assert result.status == 3
    assert result.out == "the end\n"
    assert result.facts["exit"]["status"] == 3


def test_runs_of_ours_leave_no_files_and_print_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    end = "open('done.txt', 'a').write('once ')"
    result = tried(
        folder,
        "wait = 0.01 if fused else 0.02",
        ("--only", "fused_optimizer", "--minutes", "3"),
        steps="70",
        end=end,
    )

    assert (folder / "done.txt").read_text() == "once "
    assert result.out == "the end\n"
    assert max(block["run"] for block in result.facts["blocks"]) > 1


def test_ctrl_c_leaves_a_folder_and_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "interrupted"
    folder.mkdir()
    write(
        folder,
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))",
        "10**9",
        "",
    )
    process = subprocess.Popen(
        words(folder, ("--only", "fused_optimizer", "--minutes", "4")),
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    blocks = tmp_path / "interrupted-out" / "run" / "blocks" / "rank-0.json"
    until = time.monotonic() + 100
    while time.monotonic() < until and '"p10_ms"' not in _text(blocks):
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(60)

    facts = json.loads((blocks.parent.parent / "try.json").read_text())
    assert facts["as_it_is"]["ms"]
    child = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_a_program_without_steps_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    folder.mkdir()
    result = tried(folder, steps="0")

    assert result.status == 2
    assert "nothing was measured" in result.err


def test_an_unknown_remedy_is_refused(tmp_path: Path) -> None:
    result = tried(tmp_path, options=("--only", "wishes"))

    assert result.status == 2
    assert "wishes" in result.err
