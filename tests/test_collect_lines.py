"""The lines of calls and the source files that collect records, with real torch."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

import polars as pl
import pytest
from collecting import QUICK, WITH_TORCH, Late, Run, collect_program, module

from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x):
        y = self.first(
            x,
        )
        return scaled(torch.relu(y)).sum()  # RELU SUM SCALED

def scaled(x):
    return (x.float()  # FLOAT
        .clamp(0, 1))  # CLAMP

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(40):
    loss = net(torch.randn(4, 8))  # NET RANDN
    loss.backward()  # BACKWARD
    optimizer.step()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return collect_program(tmp_path_factory.mktemp("lines"), PROGRAM)


def line_of(mark: str, program: str = PROGRAM) -> int:
    """Return the number of the line with a mark in its comment."""
    (result,) = (
        number
        for number, text in enumerate(program.splitlines(), 1)
        if mark in text.partition("#")[2].split()
    )
    return result


def callers(run: Run) -> dict[str, set[str]]:
    """Return the callers of each Python call of the trace, by the call's name."""
    result: dict[str, set[str]] = {}
    for event in run.events():
        if "caller" in event:
            name = event["name"].partition(" of ")[0].strip("<>")
            result.setdefault(name, set()).add(event["caller"])
    return result


@pytest.mark.parametrize(
    ("call", "mark", "function"),
    [
        ("built-in method relu", "RELU", "forward"),
        ("built-in method sum", "SUM", "forward"),
        ("built-in method float", "FLOAT", "scaled"),
        ("built-in method clamp", "CLAMP", "scaled"),
        ("nn.Module: Net_0", "NET", "<module>"),
        ("built-in method randn", "RANDN", "<module>"),
    ],
)
def test_a_call_has_the_line_that_its_caller_was_at(
    recorded: Run, call: str, mark: str, function: str
) -> None:
    assert callers(recorded)[call] == {f"program.py({line_of(mark)}): {function}"}


def test_calls_that_torch_makes_have_no_caller(recorded: Run) -> None:
    files = {text.partition("(")[0] for of in callers(recorded).values() for text in of}

    assert files == {"program.py"}


def test_the_source_file_is_copied_under_its_digest(recorded: Run) -> None:
    (result,) = recorded.rank["sources"]
    content = (recorded.folder / "sources" / result["file"]).read_bytes()

    assert content.decode() == PROGRAM
    assert result["name"] == result["path"] == "program.py"
    assert result["sha256"] == hashlib.sha256(content).hexdigest()
    assert "copied 1 source file" in recorded.err


def test_no_source_is_copied_if_told_so(tmp_path: Path) -> None:
    run = collect_program(tmp_path, PROGRAM, (*QUICK, "--no-source"))

    assert run.rank["sources"] == []
    assert not (run.folder / "sources").exists()
    assert callers(run)["built-in method relu"]


def test_a_source_with_a_credential_is_not_copied(tmp_path: Path) -> None:
    secret = 'HF_TOKEN = "hf_' + "abcdefghijklmnop" + '"\n'
    run = collect_program(tmp_path, secret + PROGRAM)

    assert run.rank["sources"] == []
    assert any("seems to contain a credential" in text for text in run.rank["notes"])


HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("program", "is_credential"),
    [
        (f"# as of {HASH}\nx = 1\n", False),
        (f'"""See https://example.org/blob/{HASH}/train.py."""\n', False),
        (f'md5 = "{HASH[:32]}"\n', False),
        (f'revision="{HASH}"\n', False),
        (f'client = connect(key="{HASH}")\n', True),
        (f'WANDB = "{HASH}"\n', True),
    ],
)
def test_a_hash_is_a_credential_only_if_it_is_a_text_of_its_own(
    program: str, *, is_credential: bool
) -> None:
    assert module("shared.redact").in_source(program) is is_credential


def test_the_line_at_which_recording_starts_is_known_of_each_open_function(
    recorded: Run,
) -> None:
    entries = recorded.rank["trace"]["open_functions"]
    (top,) = [entry for entry in entries if entry["function"] == "<module>"]
    assert PROGRAM.splitlines()[top["at"] - 1].strip() == "optimizer.step()"


def test_what_is_not_known_of_a_trace_stays_as_it_is() -> None:
    text = b'{"traceEvents": [{"ph": "X", "cat": "python_function", "name": "f"}]}'
    result = Late("agent.callers").Callers()

    assert b"".join(result.written(io.BytesIO(text))) == text


EVENTS = b"""{ "baseTimeNanoseconds": 1000, "traceEvents": [
  { "ph": "X", "cat": "python_function", "name": "a.py(1): f", "pid": 1, "tid": 1,
    "ts": 2.005, "dur": 1.000, "args": {} },
  { "ph": "X", "cat": "python_function", "name": "a.py(1): f", "pid": 1, "tid": 1,
    "ts": 3.005, "dur": 1.000, "args": {} } ]}"""


@pytest.mark.parametrize("block", [50, 100, 1 << 20])
def test_a_caller_is_written_wherever_the_text_is_cut(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Late("agent.callers").Callers()
    result.lines[3005, "a.py(1): f"] = b"b.py(7): g"
    monkeypatch.setitem(type(result).written.__globals__, "_BLOCK", block)

    written = b"".join(result.written(io.BytesIO(EVENTS)))

    expected = EVENTS.replace(
        b'"a.py(1): f", "pid"', b'"a.py(1): f", "caller": "b.py(7): g", "pid"', 1
    )
    assert written == expected


SYMBOLS = PROGRAM.replace(
    "return scaled(torch.relu(y)).sum()  # RELU SUM SCALED",
    """z = y * 2  # MUL
        for _ in range(2):
            z = torch.relu(z)
            z = z[:, :4] @ z[:, 4:].t()  # SLICE MATMUL
            z = torch.cat([z, z], 1)
            z += 1  # ADD
        return scaled(z).sum()""",
)


def test_operators_have_lines_from_the_source(tmp_path: Path) -> None:
    trace = load(collect_program(tmp_path, SYMBOLS).folder, cache=False)

    for op, mark in (
        ("aten::mul", "MUL"),
        ("aten::slice", "SLICE"),
        ("aten::matmul", "MATMUL"),
        ("aten::add_", "ADD"),
        ("MulBackward0", "MUL"),
        ("MmBackward0", "MATMUL"),
    ):
        rows = trace.ops.filter(
            pl.col("name").cast(pl.String) == op,
            pl.col("function").cast(pl.String) == "forward",
            pl.col("forward").is_null() | pl.lit("Backward" in op),
        )
        assert set(rows["call_line"]) == {line_of(mark, SYMBOLS)}, op
