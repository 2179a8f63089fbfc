"""Jobs of several ranks under collect/: which ranks record, and which steps."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from collecting import LOOP, QUICK, WITH_TORCH, Late, Run, collect, module
from command import traceq

if TYPE_CHECKING:
    from pathlib import Path

torch = Late("torch")
meeting = Late("agent.meeting")
process_facts = Late("agent.process_facts")
rank_set = module("shared.rank_set")

# Rank 2 sleeps in every step. Rank 0 profiles itself for a while, so it can start to
# trace several steps after the others.
JOB = """
import time
import torch.distributed as dist
dist.init_process_group("gloo")
LOOP
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(model)
def whole_step():
    step()
    if rank == 2:
        with torch.profiler.record_function("augment"):
            time.sleep(0.4)
    message = torch.full((64,), float(rank))
    dist.all_to_all_single(torch.empty_like(message), message)
    dist.all_reduce(message)
if rank == 0:
    with torch.profiler.profile():
        for _ in range(9):
            whole_step()
while True:
    whole_step()
"""


def torchrun(folder: Path, program: str, ranks: int, options: tuple[str, ...]) -> Run:
    """Record a program of several processes."""
    (folder / "job.py").write_text(program.replace("LOOP", LOOP))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, f"--nproc-per-node={ranks}", "job.py"]
    return collect(folder, command, (*QUICK, *options))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("job")
    # In fewer steps a rank that is always late looks like one that was by chance.
    options = ("--ranks", "0,2-3", "--then-exit", "--active", "8")
    return torchrun(folder, JOB, 4, options)


@pytest.mark.collect
class TestAJobOfFourRanks:
    """One job, recorded once."""

    pytestmark = WITH_TORCH

    def test_the_chosen_ranks_alone_record(self, job: Run) -> None:
        assert job.status == 0, job.err
        assert [rank["rank"] for rank in job.facts["ranks"]] == [0, 2, 3]
        assert [rank["state"] for rank in job.facts["ranks"]] == ["done"] * 3
        assert not any(name.startswith("rank-1") for name in job.files)

    def test_the_run_knows_its_job(self, job: Run) -> None:
        assert job.facts["world_size"] == 4
        assert job.facts["options"]["ranks"] == "0,2-3"
        assert job.facts["missing"] == []
        assert len({rank["machine"] for rank in job.facts["ranks"]}) == 1

    def test_all_trace_the_same_steps_though_one_was_ready_later(
        self, job: Run
    ) -> None:
        ready = {rank["warmup"]["steps"] for rank in job.facts["ranks"]}
        assert len(ready) == 2
        first = {rank["trace"]["first_step"] for rank in job.facts["ranks"]}
        assert len(first) == 1
        assert "different steps" not in job.err

    def test_the_same_collectives_are_in_every_trace(self, job: Run) -> None:
        counts = {
            sum(event.get("name") == "gloo:all_reduce" for event in job.events(name))
            for name in ("rank-0", "rank-2", "rank-3")
        }
        assert len(counts) == 1
        assert min(counts) >= 2 * 2

    def test_ranks_names_the_rank_that_sleeps_and_where(self, job: Run) -> None:
        answer = traceq("ranks", job.folder, "--no-cache", "--format", "json")
        assert answer.status == 1
        document = json.loads(answer.out)
        assert document["matched"]["unmatched_parts"] == 0
        late = document["stragglers"][0]
        assert late["ranks"] == [2]
        assert (late["cause"], late["region"]) == ("host", "augment")
        assert late["place"]["file"] == "job.py"
        assert 0.5 < late["saved_ns"] / document["steps"] / 400e6 < 1.1

    def test_the_next_command_is_named(self, job: Run) -> None:
        assert f"traceq ranks {job.folder}" in job.err

    def test_the_sleep_is_in_the_trace_of_its_rank(self, job: Run) -> None:
        asleep = [
            name
            for name in ("rank-0", "rank-2", "rank-3")
            if any(event.get("name") == "augment" for event in job.events(name))
        ]
        assert asleep == ["rank-2"]


@pytest.mark.collect
class TestAJobOfTwoRanks:
    """A job of which no rank, or one that it has not, is chosen."""

    pytestmark = WITH_TORCH

    def test_ranks_that_the_job_has_not_are_named(self, tmp_path: Path) -> None:
        program = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        program += "LOOP\nfor _ in range(3):\n    step()\n"
        run = torchrun(tmp_path, program, 2, ("--ranks", "4-7"))
        assert run.status == 2
        assert "the job has 2 ranks, 0 to 1" in run.err
        assert not any(name.startswith("rank-") for name in run.files)


def meetings(count: int, *, numbered: bool = True) -> list[Any]:
    store = torch.distributed.HashStore()
    return [
        meeting.Meeting(store, "run", count, lambda: numbered) for _ in range(count)
    ]


@pytest.mark.collect
class TestAMeeting:
    """The agreement alone, through a real store in this process."""

    pytestmark = WITH_TORCH

    @pytest.mark.slow
    def test_nobody_starts_before_the_last_is_ready(self) -> None:
        first, second = meetings(2)
        first.ready(10, 0.0)
        assert not any(first.starts(seen, 0.1) for seen in range(11, 40))
        second.ready(40, 0.2)
        starts = [
            next(seen for seen in range(40, 60) if entry.starts(seen, 0.3))
            for entry in (first, second)
        ]
        assert starts == [40 + meeting.MARGIN] * 2

    def test_a_rank_that_never_comes_is_not_waited_for_forever(self) -> None:
        first, second, _absent = meetings(3)
        first.ready(10, 0.0)
        second.ready(11, 0.0)
        starts = [
            next(seen for seen in range(11, 90) if entry.starts(seen, 0.0))
            for entry in (first, second)
        ]
        assert starts == [10 + meeting.PATIENCE + meeting.MARGIN] * 2

    def test_steps_without_a_common_number_start_at_a_time_of_day(self) -> None:
        first, second = meetings(2, numbered=False)
        first.ready(10, 0.0)
        second.ready(900, 0.0)
        assert not first.starts(5000, 0.0)

    def test_a_store_that_is_gone_holds_nobody_up(self) -> None:
        alone = meeting.Meeting(object(), "run", 2, lambda: True)
        alone.ready(10, 0.0)
        assert alone.starts(11, 0.0)
        assert alone.all_done()
        assert alone.over


@pytest.mark.collect
class TestTheRankOfAProcess:
    """Rank, local rank and world size as the launchers of clusters say them."""

    pytestmark = WITH_TORCH

    @pytest.mark.parametrize(
        ("variables", "expected"),
        [
            ({}, (0, 0, 1)),
            ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (5, 1, 8)),
            (
                {
                    "OMPI_COMM_WORLD_RANK": "3",
                    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
                    "OMPI_COMM_WORLD_SIZE": "4",
                },
                (3, 3, 4),
            ),
            (
                {
                    "SLURM_PROCID": "2",
                    "SLURM_LOCALID": "0",
                    "SLURM_STEP_NUM_TASKS": "4",
                    "SLURM_STEP_ID": "0",
                },
                (2, 0, 4),
            ),
            ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 0, 1)),
        ],
    )
    def test_is_what_its_launcher_says(
        self,
        variables: dict[str, str],
        expected: tuple[int, int, int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert process_facts.rank() == expected


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", [0]),
        ("0,8-15", [0, 8, 9, 10, 11, 12, 13, 14, 15]),
        ("0-31:8", [0, 8, 16, 24]),
        ("3,1-2", [1, 2, 3]),
    ],
)
def test_a_set_of_ranks_has(text: str, ranks: list[int]) -> None:
    assert rank_set.within(text, 32) == ranks
    assert [rank for rank in range(32) if rank_set.has(text, rank)] == ranks


def test_ranks_are_written_as_they_are_read() -> None:
    assert rank_set.written([15, 0, 8, 9, 11]) == "0,8-9,11,15"


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "1,,2", "0-8:0"])
def test_what_names_no_ranks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        rank_set.parse(text)


def test_a_launcher_leaves_alone_what_another_node_is_still_writing(
    tmp_path: Path,
) -> None:
    partial = tmp_path / "out" / "run" / ".rank-5.trace.json"
    partial.parent.mkdir(parents=True)
    partial.touch()
    collect(tmp_path, [sys.executable, "-c", "pass"], ("--node", "1"))
    assert partial.exists()
