"""Dumps of the flight recorder: who has not joined, and at which line."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from conftest import ROOT
from test_schemas import errors

from traceq.errors import InputError
from traceq.formats.flight_recorder import rank_of, read_dump

if TYPE_CHECKING:
    from pathlib import Path

DUMPS = ROOT / "tests" / "data" / "hangs"
PROGRAM = (ROOT / "benchmarks" / "hangs" / "hangs.py").read_text(encoding="utf-8")
_MUTATIONS = 400


def report(*paths: str | Path) -> dict[str, Any]:
    answer = traceq("ranks", *paths, "--format", "json")
    document: dict[str, Any] = json.loads(answer.out)
    assert errors("ranks_hangs", document) == []
    return document


def first(*paths: str | Path) -> dict[str, Any]:
    problem: dict[str, Any] = report(*paths)["problems"][0]
    return problem


def source(call: dict[str, Any]) -> str:
    """Return the line of the program that a call is at."""
    assert call["file"] == "/job/hangs.py"
    return PROGRAM.splitlines()[call["line"] - 1].strip()


@pytest.mark.parametrize(
    ("scenario", "kind", "ranks", "line"),
    [
        ("missing", "not-joined", [2], "dist.all_reduce(gradient)"),
        ("size", "different-size", [1], "dist.all_reduce(outputs)"),
        ("dtype", "different-dtype", [0], "dist.all_reduce(loss)"),
        ("order", "different-collective", [3], "dist.broadcast(buffers, 0)"),
        (
            "order_async",
            "different-collective",
            [0],
            "works = [dist.broadcast(buffers, 0, async_op=True)]",
        ),
        (
            "skipped",
            "different-collective",
            [1],
            "works += [dist.broadcast(torch.ones(64), 0, async_op=True)]",
        ),
        (
            "circle",
            "circle",
            [0, 1],
            "dist.all_reduce(torch.ones(8), group=first)",
        ),
        ("slow", "late", [1], "dist.all_reduce(gradient)"),
    ],
)
def test_a_job_is_reported_with_its_rank_and_line(
    scenario: str, kind: str, ranks: list[int], line: str
) -> None:
    problem = first(DUMPS / scenario)

    assert (problem["kind"], problem["ranks"]) == (kind, ranks)
    assert source(problem["calls"][0]) == line


def test_the_last_call_of_the_missing_rank_has_its_line() -> None:
    _, last = first(DUMPS / "missing")["calls"]

    assert last["rank"] == 2
    assert source(last) == "dist.broadcast(torch.zeros(1), 0)"


def test_the_others_wait_for_the_missing_rank() -> None:
    assert first(DUMPS / "missing")["waiting"] == [0, 1, 3]


def test_another_order_of_the_same_collectives_is_named() -> None:
    assert first(DUMPS / "order_async")["how"] == "order"


def test_a_collective_that_one_rank_left_out_is_named_by_its_line() -> None:
    problem = first(DUMPS / "skipped")

    assert problem["how"] == "left-out"
    assert source(problem["calls"][-1]) == (
        "works += [dist.all_reduce(torch.ones(4), async_op=True)]"
    )


def test_the_text_names_rank_collective_and_line() -> None:
    answer = traceq("ranks", DUMPS / "missing", width=200)

    assert answer.status == 1
    assert "Rank 2 has not joined all_reduce 18" in answer.lines[0]
    assert "/job/hangs.py:" in answer.lines[0]


def test_a_job_of_even_ranks_is_clean() -> None:
    answer = traceq("ranks", DUMPS / "even")

    assert (answer.status, report(DUMPS / "even")["problems"]) == (0, [])


def test_a_late_rank_fails_only_as_a_warning() -> None:
    assert traceq("ranks", DUMPS / "slow").status == 1
    assert traceq("ranks", DUMPS / "slow", "--fail-on", "error").status == 0


def test_files_by_name_are_as_their_folder() -> None:
    files = sorted((DUMPS / "size").iterdir())

    assert report(*files) == report(DUMPS / "size")


@pytest.mark.parametrize("order", [1, -1])
def test_dumps_and_other_files_together_are_refused(order: int) -> None:
    trace = ROOT / "fixtures" / "copies" / "trace.json.gz"
    answer = traceq("ranks", *[trace, DUMPS / "size"][::order])

    assert (answer.status, answer.err.count("\n")) == (2, 1)


def test_a_folder_of_traces_and_dumps_is_one_of_traces(tmp_path: Path) -> None:
    for file in (DUMPS / "size").iterdir():
        shutil.copy(file, tmp_path)
    shutil.copy(ROOT / "fixtures" / "copies" / "trace.json.gz", tmp_path)

    assert "the traces are read" in traceq("ranks", tmp_path).err


def test_lint_of_a_dump_points_at_ranks() -> None:
    answer = traceq("lint", DUMPS / "size" / "rank_0.pickle.gz")

    assert answer.status == 2
    assert answer.err.count("\n") == 1
    assert "traceq ranks" in answer.err


def test_lint_of_a_folder_of_dumps_points_at_ranks() -> None:
    answer = traceq("lint", DUMPS / "size")

    assert (answer.status, "traceq ranks" in answer.err) == (2, True)


def entry(seq: int, op: str = "all_reduce", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an entry as torch writes of NCCL; ``more`` replaces or adds fields."""
    frame = {"name": "step", "filename": "/job/train.py", "line": 10 + seq}
    return {
        "frames": [{"name": "f", "filename": "torch/x.py", "line": 1}, frame],
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": seq * 1_000_000_000,
        "input_sizes": [[8, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8, 4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "is_p2p": False,
    } | more


def pending(seq: int, op: str = "all_reduce", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return entry(seq, op, state="scheduled", retired=False, **more)


def write(
    folder: Path, *ranks: list[dict[str, Any]], members: str = "[0, 1]", **top: object
) -> Path:
    """Write the dumps of ranks from 0 on, as JSON."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": members}}
    for rank, entries in enumerate(ranks):
        content = {"version": "2.10", "pg_config": config, "entries": entries} | top
        (folder / f"rank_{rank}.json").write_text(json.dumps(content))
    return folder


def test_a_collective_of_nccl_that_a_rank_has_not_joined(tmp_path: Path) -> None:
    problem = first(write(tmp_path, [entry(1), pending(2)], [entry(1)]))

    assert (problem["kind"], problem["ranks"]) == ("not-joined", [1])
    assert problem["calls"][0]["line"] == 12


def test_a_retired_call_that_did_not_complete_still_waits(tmp_path: Path) -> None:
    timed_out = entry(2, state="started")

    assert first(write(tmp_path, [entry(1), timed_out], [entry(1)]))["ranks"] == [1]


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    ranks = [[entry(1), pending(2)]] * 2
    problem = first(write(tmp_path, *ranks, members="[0, 1, 2]"))

    assert (problem["ranks"], problem["how"]) == ([2], "no-dump")


def test_who_waits_for_a_rank_that_waits_is_not_blamed(tmp_path: Path) -> None:
    def pair(name: str, seq: int) -> dict[str, Any]:
        return pending(seq, process_group=[name, "mesh"])

    config = {
        "0": {"ranks": "[0, 1, 2]"},
        "1": {"ranks": "[0, 1]"},
        "2": {"ranks": "[1, 2]"},
    }
    ranks = [[entry(1), pair("1", 1)], [entry(1), pair("2", 1)], [entry(1)]]
    problems = report(write(tmp_path, *ranks, pg_config=config))["problems"]

    assert [problem["ranks"] for problem in problems] == [[2]]


def test_all_ranks_that_have_not_joined_are_named(tmp_path: Path) -> None:
    waiting = [entry(1), pending(2)]
    ranks = [waiting, [entry(1)], waiting, [entry(1)]]
    problem = first(write(tmp_path, *ranks, members="[0, 1, 2, 3]"))

    assert (problem["ranks"], problem["waiting"]) == ([1, 3], [0, 2])


def test_the_last_calls_of_several_absent_ranks_are_named(tmp_path: Path) -> None:
    ranks = [[entry(1), entry(2), pending(3)], [entry(1), entry(2)], [entry(1)]]
    (problem,) = report(write(tmp_path, *ranks, members="[0, 1, 2]"))["problems"]

    assert "train.py:12 step on rank 1" in problem["message"]
    assert "train.py:11 step on rank 2" in problem["message"]


def test_who_waits_for_a_circle_is_not_in_it(tmp_path: Path) -> None:
    def pair(name: str) -> dict[str, Any]:
        return pending(1, process_group=[name, "mesh"])

    config = {"0": {"ranks": "[0, 1, 2]"}} | {
        name: {"ranks": "[0, 1]"} for name in ("1", "2")
    }
    ranks = [[entry(1), pair("1")], [entry(1), pair("2")], [entry(1), pending(2)]]
    (problem,) = report(write(tmp_path, *ranks, pg_config=config))["problems"]

    assert (problem["kind"], problem["ranks"]) == ("circle", [0, 1])


def test_a_rank_whose_calls_end_earlier_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, [entry(1), entry(2), entry(3)], [entry(1)])

    assert "rank 1 is behind" in report(folder)["verdict"]


def test_ended_calls_do_not_say_that_the_job_runs(tmp_path: Path) -> None:
    verdict = report(write(tmp_path, [entry(1)], [entry(1)]))["verdict"]

    assert verdict.startswith("No rank waits")


def test_groups_of_one_name_and_other_ranks_are_two(tmp_path: Path) -> None:
    for rank, members in enumerate(("[0, 1]", "[0, 1]", "[2, 3]", "[2, 3]")):
        content = {
            "pg_config": {"0": {"ranks": members}},
            "entries": [entry(1, "broadcast" if "2" in members else "all_reduce")],
        }
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(content))

    assert report(tmp_path)["problems"] == []


def test_a_receive_without_its_send_names_the_sender(tmp_path: Path) -> None:
    receive = pending(1, "recv 0<-1", is_p2p=True, p2p_seq_id=3)
    sent = entry(1, "send 1->0", is_p2p=True, p2p_seq_id=2)
    problem = first(write(tmp_path, [entry(1), receive], [entry(1), sent]))

    assert (problem["kind"], problem["ranks"]) == ("not-joined", [1])


def test_other_shapes_of_as_many_elements_are_the_same(tmp_path: Path) -> None:
    flat = entry(1, input_sizes=[[32]], output_sizes=[[32]])

    assert report(write(tmp_path, [entry(1)], [flat]))["problems"] == []


def test_sizes_of_all_to_all_may_differ(tmp_path: Path) -> None:
    fewer = entry(1, "all_to_all", input_sizes=[[3, 4]])
    ranks = [[entry(1, "all_to_all")], [fewer]]

    assert report(write(tmp_path, *ranks))["problems"] == []


def test_what_all_ranks_joined_and_none_completed_is_a_warning(tmp_path: Path) -> None:
    problem = first(write(tmp_path, [pending(1)], [pending(1)]))

    assert (problem["kind"], problem["severity"]) == ("not-completed", "warning")


def test_a_dump_of_the_first_version_is_read(tmp_path: Path) -> None:
    def old(seq: int, state: str) -> dict[str, Any]:
        return {
            "pg_id": 0,
            "seq_id": seq,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": seq,
            "input_sizes": [[4]],
            "output_sizes": [[4]],
            "state": state,
            "frames": [{"name": "f", "filename": "/job/a.py", "line": seq}],
        }

    done = old(1, "completed")
    for rank, entries in enumerate(([done, old(2, "started")], [done])):
        content = {"version": "1.0", "entries": entries}
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(content))
    problem = first(tmp_path)

    assert (problem["ranks"], problem["calls"][0]["line"]) == ([1], 2)


def test_steady_lateness_may_be_the_clock(tmp_path: Path) -> None:
    late = [
        entry(seq, time_created_ns=seq * 1_000_000_000 + 400_000_000)
        for seq in range(1, 20)
    ]
    result = report(write(tmp_path, [entry(seq) for seq in range(1, 20)], late))

    assert result["problems"][0]["ranks"] == [1]
    assert any("clock" in note for note in result["notes"])


def test_dumps_without_calls_are_refused_with_the_variable(tmp_path: Path) -> None:
    answer = traceq("ranks", write(tmp_path, [], []))

    assert (answer.status, "TORCH_FR_BUFFER_SIZE" in answer.err) == (2, True)


def test_one_dump_is_refused(tmp_path: Path) -> None:
    answer = traceq("ranks", write(tmp_path, [entry(1)]))

    assert (answer.status, answer.err.count("\n")) == (2, 1)


def test_a_job_with_an_unreadable_dump_is_not_called_clean(tmp_path: Path) -> None:
    write(tmp_path, [entry(1)], [entry(1)])
    whole = (DUMPS / "size" / "rank_0.pickle.gz").read_bytes()
    cut = gzip.decompress(whole)[:-100]
    (tmp_path / "rank_2").write_bytes(cut)
    answer = traceq("ranks", tmp_path)

    assert (answer.status, answer.out.startswith("Unknown")) == (2, True)


def test_the_rank_is_in_the_name() -> None:
    names = ("nccl_trace_rank_12", "comm_lib_trace_rank_3.pickle.gz", "fr7", "dump")

    assert [rank_of(name) for name in names] == [12, 3, 7, None]


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this ran",)


def test_nothing_in_a_dump_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"pg_config": {}, "entries": [_Runs()]}
    for protocol in range(2, 6):
        dump = tmp_path / f"rank_{protocol}"
        dump.write_bytes(pickle.dumps(content, protocol=protocol))
        with pytest.raises(InputError):
            read_dump(dump)

    assert "this ran" not in capsys.readouterr().out


@pytest.mark.parametrize("text", [b"", b"{", b"\x80\x02.", b"\x80\x02}.", b"[]", b"{}"])
def test_what_is_no_dump_is_refused_in_a_sentence(tmp_path: Path, text: bytes) -> None:
    dump = tmp_path / "rank_0"
    dump.write_bytes(text)
    with pytest.raises(InputError) as raised:
        read_dump(dump)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_mutated_dumps_are_read_or_refused(tmp_path: Path, form: str) -> None:
    chance = random.Random(f"dumps {form}")  # noqa: S311 - not for secrets
    packed = (DUMPS / "skipped" / "rank_1.pickle.gz").read_bytes()
    whole = gzip.decompress(packed)
    if form == "json":
        whole = json.dumps(pickle.loads(whole)).encode()  # noqa: S301 - our own file
    dump = tmp_path / "rank_0"
    refused = 0
    for _ in range(_MUTATIONS):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20))):
            at = chance.randrange(len(data))
            data[at : at + chance.choice((0, 1, 1, 8))] = chance.randbytes(
                chance.choice((0, 1, 1, 3))
            )
        dump.write_bytes(data)
        try:
            read_dump(dump)
        except InputError:
            refused += 1

    assert 0 < refused < _MUTATIONS


@pytest.mark.slow
def test_mutated_jobs_end_with_a_verdict_or_a_sentence(tmp_path: Path) -> None:
    chance = random.Random("jobs")  # noqa: S311 - not for secrets
    values: list[Any] = [None, -1, 0, 2**70, "", "x", [], [[]], {}, True, 1.5, [-1]]
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        ranks = [[entry(seq) for seq in range(3)] + [pending(3)] for _ in range(3)]
        for _ in range(6):
            victim = chance.choice(chance.choice(ranks))
            victim[chance.choice([*victim])] = chance.choice(values)
        answer = traceq("ranks", write(folder, *ranks))

        assert answer.status in (0, 1, 2)
        assert "internal error" not in answer.err
