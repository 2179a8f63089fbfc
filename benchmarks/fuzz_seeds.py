"""Small real inputs, of which fuzz.py makes its mutated ones."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from traceq.linter.pack import load_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parents[1]
_FIXTURES = _ROOT / "fixtures"
_TRACES = (
    *("copies", "graph_replay", "moe_dropless", "python_in_step", "recompile"),
    *("twins/attn_flash", "twins/optimizer_loop_sync", "twins/norm_mismatch"),
)
_SNAPSHOTS = ("twins/attn_flash", "twins/memory_leak", "twins/oom_fragmented")
_ANCHORS = 60
_ENTRIES = 150
_SEGMENTS = 20

CONFIG = """
packs = []
select = ["SYN", "attention-fallback", "LOG006"]
ignore = ["SYN002"]
fail-on = "warning"
min-cost-us = 20

[rules.SYN001]
min-wait-us = 5

[[allow]]
rule = "SYN001"
where = "train.py"
reason = "known"

[budgets]
launches = 211
syncs = { value = 3, tolerance = 0.1 }
step-ms = { value = 12.231, tolerance = 0.1 }
peak-bytes = 3482832896

[budgets.layers]
"LM/Block" = { kernels = 48, backends = ["aten", "xformers"] }
"""
PACK = '''
from __future__ import annotations
from dataclasses import dataclass
import polars as pl
from traceq.linter import Bad, Evidence, Fix, Good, Need, Rule, View

@dataclass(frozen=True)
class NonzeroInForward(Rule):
    """The forward pass asks the GPU which elements are not zero."""

    code = "DYN001"
    needs = frozenset({Need.GPU, Need.OPS})
    advice = "use torch.where(mask, a, b)"
    least: int = 3

    def check(self, view: View):
        found = view.by_place(view.ops.filter(pl.col("name") == "aten::copy_"))
        for row in found.iter_rows(named=True):
            calls = view.runtime.filter(pl.col("op").is_in(row["ids"]))
            yield self.finding(
                "the forward copies",
                subject="aten::copy_",
                place=view.place(row),
                count=len(row["ids"]) / view.steps,
                fix=Fix(syncs=calls["id"]),
            )
'''
RUN = {
    "format": 1,
    "command": ["python", "train.py", "--lr", "0.1"],
    "labels": {"seq_len": "512"},
    "state": "finished",
    "log": {"file": "stderr.log"},
    "ranks": [
        {
            "format": 1,
            "name": f"rank-{rank}",
            "rank": rank,
            "state": "done",
            "cores": 16,
            "step_time": {
                "ms": 13.2,
                "median_ms": 13.1,
                "min_ms": 13,
                "max_ms": 14,
                "steps": 20,
            },
            "versions": {"torch": "2.11.0+cu130"},
            "warmup": {"steps": 5},
            "trace": {
                "file": f"rank-{rank}.trace.json",
                "compiled_during_trace": False,
                "open_functions": [{"file": "t.py", "function": "main", "line": 3}],
            },
            "memory": {"file": f"rank-{rank}.snapshot.pickle"},
            "missing": [{"what": "memory", "why": "no GPU"}],
        }
        for rank in (0, 1)
    ],
}


class Seeds(NamedTuple):
    """What is mutated: documents, and texts."""

    traces: list[dict[str, Any]]
    snapshots: list[dict[str, Any]]
    logs: list[bytes]
    configs: list[bytes]
    findings: list[bytes]
    origin: bytes


def read_seeds() -> Seeds:
    """Return small inputs cut out of the fixtures, and the logs of rules' examples."""
    return Seeds(
        traces=[_small_trace(_FIXTURES / name) for name in _TRACES],
        snapshots=[_small_snapshot(_FIXTURES / name) for name in _SNAPSHOTS],
        logs=[*_logs()],
        configs=[
            CONFIG.encode(),
            *((_FIXTURES / name / "traceq.toml").read_bytes() for name in _TRACES),
        ],
        findings=[
            (_FIXTURES / name / "findings.json").read_bytes() for name in _TRACES
        ],
        origin=(_FIXTURES / "copies" / "origin.toml").read_bytes(),
    )


def _small_trace(folder: Path) -> dict[str, Any]:
    """Return some calls of a trace with all that encloses and all that follows them."""
    document: dict[str, Any] = json.loads(
        gzip.decompress((folder / "trace.json.gz").read_bytes()), strict=False
    )
    events = document["traceEvents"]
    spans = [each for each in events if each.get("ph") == "X"]
    calls = [each for each in spans if _correlation(each) and "runtime" in each["cat"]]
    some = calls[:: len(calls) // _ANCHORS + 1]
    tied = {_correlation(each) for each in some}
    retained = [
        each
        for each in events
        if each.get("ph") == "M"
        or each.get("id") in tied
        or _correlation(each) in tied
        or each.get("name", "").startswith("ProfilerStep#")
        or any(_encloses(each, call) for call in some)
    ]
    return {**document, "traceEvents": retained}


def _correlation(event: dict[str, Any]) -> int:
    return int(event.get("args", {}).get("correlation", 0))


def _encloses(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    return bool(
        outer.get("ph") == "X"
        and outer["tid"] == inner["tid"]
        and outer["ts"] <= inner["ts"]
        and outer["ts"] + outer["dur"] >= inner["ts"] + inner["dur"]
    )


def _small_snapshot(folder: Path) -> dict[str, Any]:
    content = gzip.decompress((folder / "snapshot.pickle.gz").read_bytes())
    result: dict[str, Any] = pickle.loads(content)  # noqa: S301 - one of ours
    result["device_traces"] = [each[-_ENTRIES:] for each in result["device_traces"]]
    result["segments"] = result["segments"][:_SEGMENTS]
    return result


def _logs() -> Iterator[bytes]:
    texts = [
        example.log.encode()
        for rule in load_rules().values()
        for example in rule.examples
        if example.log
    ]
    yield b"\n".join(texts)
    yield from texts
    for path in sorted((_FIXTURES / "captures").glob("*.log")):
        yield path.read_bytes()
