"""Events of a snapshot that are read as rows, as they were pickled."""

from __future__ import annotations

import pickle
import random
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from traceq.errors import InputError
from traceq.formats.pickles import read_pickle
from traceq.formats.snapshot import read_snapshot
from traceq.native import available

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from traceq.formats.pickled_columns import Batch

# Those between and after are made of the same commands.
PROTOCOLS = (2, 4)
FRAMES = [
    {"name": f"f{at}", "filename": f"/a/{at % 7}.py", "line": at} for at in range(900)
]


@pytest.fixture(params=["compiled", "reference"], autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read events by compiled code, and without."""
    name: str = request.param
    if name == "reference":
        monkeypatch.setenv("TRACEQ_PURE", "1")
    elif not available():
        pytest.skip("the compiled reader is not built")
    return name


def event(number: int, **more: object) -> dict[str, Any]:
    """Return an event as torch writes it, with texts and a stack of its own."""
    action = "alloc" if number % 2 else "free_completed"
    result = {
        "action": action,
        "addr": (1 << 46) + 512 * number,
        "size": number**2,
        "stream": 0,
        "time_us": 1_700_000_000_000_000 + number,
        "compile_context": str(b"N/A", "ascii"),
        "user_metadata": "",
        "frames": [FRAMES[(number + at) % len(FRAMES)] for at in range(number % 40)],
    }
    return result | more


def with_shared_stacks(number: int) -> dict[str, Any]:
    return event(number, frames=SHARED[number // 3 % len(SHARED)])


SHARED = [[FRAMES[at], FRAMES[at + 1], FRAMES[0]] for at in range(50)]


def with_texts(number: int) -> dict[str, Any]:
    return event(number, compile_context=f"Region {'1' * (number % 12)}")


def without_frames_when_freed(number: int) -> dict[str, Any]:
    result = event(number)
    if number % 2 == 0:
        del result["frames"]
    return result


def with_pools(number: int) -> dict[str, Any]:
    result = event(number)
    frames = result.pop("frames")
    return result | {"pool_id": (0, number % 3), "frames": frames}


def with_ooms(number: int) -> dict[str, Any]:
    result = event(number)
    if number % 50 == 0:
        result["device_free"] = result.pop("addr")
    return result


def with_names_to_mistake(number: int) -> dict[str, Any]:
    # 0x7565 is "eu", the two commands that end a stack and its event.
    return event(number, size=0x7565, addr=0x6575_6575_6575)


SHAPES = (
    event,
    with_shared_stacks,
    with_texts,
    without_frames_when_freed,
    with_pools,
    with_ooms,
    with_names_to_mistake,
)


@cache
def events(
    shape: Callable[[int], dict[str, Any]], begin: int, count: int
) -> list[dict[str, Any]]:
    """Return this many events, made once for all readers and protocols."""
    return [shape(number) for number in range(begin, begin + count)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("shape", SHAPES)
def test_events_are_read_as_they_were_pickled(
    shape: Callable[[int], dict[str, Any]], protocol: int, tmp_path: Path
) -> None:
    traces = [events(shape, begin, 3500) for begin in (0, 5)]
    assert read_back(tmp_path, traces, protocol) == expected(traces)


class Counting:
    """Counts the events that it is given."""

    def __init__(self) -> None:
        self.events = self.compiled = 0

    def keep(self, name: bytes, stack: list[Any]) -> None:
        pass

    def take(self, events: list[tuple[Any, ...]]) -> None:
        self.events += len(events)

    def take_columns(self, events: Batch, _values: list[Any]) -> None:
        self.events += events.height
        self.compiled += events.height


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != with_texts])
def test_nearly_all_events_are_rows(
    shape: Callable[[int], dict[str, Any]], protocol: int, reader: str, tmp_path: Path
) -> None:
    trace = events(shape, 0, 12_000)
    counting = Counting()
    read_pickle(written(tmp_path, [trace], protocol), counting)
    assert counting.events > 0.9 * len(trace)
    if reader == "compiled":
        assert counting.compiled > 0.9 * len(trace)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_text_of_an_event_may_be_named_later(protocol: int, tmp_path: Path) -> None:
    traces = [[event(number) for number in range(2000)]]
    text = traces[0][-1]["compile_context"]
    path = written(
        tmp_path,
        traces,
        protocol,
        external_annotations=[
            {
                "device": 0,
                "name": text,
                "stage": "START",
                "time_us": 1_700_000_000_000_000,
            }
        ],
    )
    assert read_snapshot(path).annotations["name"].to_list() == ["N/A"]


@pytest.mark.parametrize("number", [-1, 0, 255, 256, -(1 << 31), 1 << 31, -(1 << 40)])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_of_all_lengths_are_read(
    number: int, protocol: int, tmp_path: Path
) -> None:
    traces = [[event(at, addr=number) for at in range(100)]]
    path = written(tmp_path, traces, protocol)
    assert read_snapshot(path).events["address"].unique().to_list() == [number]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("shape", [event, with_shared_stacks, with_pools])
def test_of_broken_snapshots_the_same_is_read_with_and_without_compiled_code(
    shape: Callable[[int], dict[str, Any]],
    protocol: int,
    reader: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reader == "reference":
        pytest.skip("is compared with it")
    chance = random.Random(protocol)  # noqa: S311 - the same each time
    whole = written(tmp_path, [[*map(shape, range(150))]], protocol).read_bytes()
    path = tmp_path / "broken.pickle"
    for _ in range(40):
        broken = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.randrange(len(whole) // 2, len(whole))
            broken[at] = chance.choice((chance.randrange(256), broken[at] ^ 1))
        path.write_bytes(broken)
        monkeypatch.delenv("TRACEQ_PURE", raising=False)
        compiled = tables(path)
        monkeypatch.setenv("TRACEQ_PURE", "1")
        assert compiled == tables(path)


def tables(path: Path) -> list[Any] | None:
    """Return what is read from a file; none if it is refused."""
    try:
        snapshot = read_snapshot(path)
    except InputError:
        return None
    return [snapshot.events.rows(), snapshot.stacks.rows(), snapshot.frames.rows()]


def written(tmp_path: Path, traces: list[Any], protocol: int, **more: object) -> Path:
    path = tmp_path / "snapshot.pickle"
    content = {"segments": [], "device_traces": traces} | more
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def read_back(tmp_path: Path, traces: list[Any], protocol: int) -> list[Any]:
    """Return device, action, address, size, texts, pool and stack of all events."""
    snapshot = read_snapshot(written(tmp_path, traces, protocol))
    names = snapshot.frames["function"].to_list()
    stacks = [
        [names[frame] for frame in stack]
        for stack in snapshot.stacks["frames"].to_list()
    ]
    columns = ("device", "action", "address", "size", "device_free", "ts")
    texts = ("compile_context", "user_metadata", "pool")
    return [
        (*row[:-1], stacks[row[-1]] if row[-1] is not None else [])
        for row in snapshot.events.select(*columns, *texts, "stack").iter_rows()
    ]


def expected(traces: list[Any]) -> list[Any]:
    start = min(event["time_us"] for trace in traces for event in trace)
    return [
        (
            device,
            event["action"],
            event.get("addr"),
            event["size"],
            event.get("device_free"),
            1000 * (event["time_us"] - start),
            event["compile_context"],
            event["user_metadata"],
            "{}.{}".format(*event["pool_id"]) if "pool_id" in event else None,
            [frame["name"] for frame in event.get("frames", [])],
        )
        for device, trace in enumerate(traces)
        for event in trace
    ]
