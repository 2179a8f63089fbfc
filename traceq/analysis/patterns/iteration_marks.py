"""Iteration names of serving engines, parsed.

vLLM ``execute_context_1(512)_generation_3(3)``, requests and their new tokens, and with
detailed annotations ``execute_515_context_1(sq512sk900…)_generation_3(sq3sk2000…)``,
the sums of new tokens and of KV lengths; SGLang ``step[EXTEND bs=2 toks=12 sk=…]``,
``step[DECODE bs=32]``, ``step[MIXED bs=9 c=1 g=8 c_sq=512 g_sk=…]``; ATOM
``prefill[bs=2 tok=16384]`` and ``decode[bs=64 tok=64]``; vLLM-Omni
``execute_diffusion_1_1024x1024``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import END, text

if TYPE_CHECKING:
    from traceq.model.trace import Trace

PREFILL, DECODE, MIXED, DIFFUSION = "prefill", "decode", "mixed", "diffusion"

_VLLM = r"^execute_(?:\d+_)?context_(\d+)\((.*?)\)_generation_(\d+)\((.*?)\)"
_NEW = r"^(\d+)$|^sq[=_]?(\d+)"
_KEYS = r"^sq[=_]?\d+[ _,]*sk[=_]?(\d+)"
_SGLANG = r"^step\[([A-Z_]+) (?:raw_)?bs=\d+"
_ATOM = r"^(prefill|decode)\[bs=\d+"
_DIFFUSION = r"^execute_diffusion_(\d+)_\d+x\d+"
# SGLang's modes: those that are not here, as IDLE, are of no phase.
_PHASE_OF_MODE = {
    "EXTEND": PREFILL,
    "SPLIT_PREFILL": PREFILL,
    "DLLM_EXTEND": PREFILL,
    "DECODE": DECODE,
    # Several tokens of a request that were guessed are checked at once.
    "TARGET_VERIFY": DECODE,
    "DRAFT_LOOP": DECODE,
    "MIXED": MIXED,
}
_COUNTS = ("requests", "tokens", "context", "prefill_requests", "prefill_tokens")
COLUMNS = {"phase": pl.String, **dict.fromkeys((*_COUNTS, "graph_batch"), pl.Int64)}
"""Columns parsed from the name of an iteration."""


def marked_iterations(trace: Trace) -> pl.DataFrame:
    """Return the iterations whose engine names them: ``step``, COLUMNS, ``decodes``.

    Where a step has several of them, as one that the profiler marks may, they are
    added up; ``decodes`` is how many of them decode.
    """
    names = _marks_in_names(trace.annotations.select(name=text("name").unique()))
    if not names.height:
        return pl.DataFrame(schema={"step": pl.Int64, **COLUMNS, "decodes": pl.Int64})
    marks = (
        trace.annotations.filter(~pl.col("on_gpu"), pl.col("step").is_not_null())
        .with_columns(text("name"), end=END)
        .join(names, on="name")
        .sort("ts", -pl.col("end"))
    )
    before = pl.col("end").cum_max().shift(1, fill_value=-1).over("thread")
    outer = marks.filter(pl.col("ts") >= before)
    one_phase = pl.col("phase").n_unique() == 1
    added = ("tokens", "prefill_requests", "prefill_tokens")
    return (
        outer.group_by("step")
        .agg(
            phase=pl.when(one_phase)
            .then(pl.col("phase").first())
            .otherwise(pl.lit(MIXED)),
            **{
                name: _all(pl.col(name), add=name in added)
                for name in COLUMNS
                if name != "phase"
            },
            decodes=(pl.col("phase") == DECODE).sum().cast(pl.Int64),
        )
        .select("step", *COLUMNS, "decodes")
        .sort("step")
    )


def _all(counts: pl.Expr, *, add: bool) -> pl.Expr:
    """Return the sum or the maximum of counts; None if one is unknown."""
    whole = counts.sum() if add else counts.max()
    return pl.when(counts.is_not_null().all()).then(whole)


def _marks_in_names(names: pl.DataFrame) -> pl.DataFrame:
    """Return the names of engines' iterations, with their parsed values."""
    name = pl.col("name")
    engines = {_VLLM: _of_vllm, _SGLANG: _of_sglang, _ATOM: _of_atom}
    parsed = [
        names.filter(name.str.contains(pattern)).with_columns(**columns())
        for pattern, columns in engines.items()
    ]
    parsed.append(
        names.filter(name.str.contains(_DIFFUSION)).with_columns(
            phase=pl.lit(DIFFUSION), requests=_number(_DIFFUSION)
        )
    )
    return (
        pl.concat(
            [pl.DataFrame(schema={"name": pl.String, **COLUMNS}), *parsed],
            how="diagonal_relaxed",
        )
        .unique("name", keep="first")
        .cast(pl.Schema(COLUMNS))
        .drop_nulls("phase")
    )


def _number(pattern: str, group: int = 1) -> pl.Expr:
    return pl.col("name").str.extract(pattern, group).cast(pl.Int64, strict=False)


def _of_vllm() -> dict[str, pl.Expr]:
    contexts, generations = _number(_VLLM, 1), _number(_VLLM, 3)
    inside = [pl.col("name").str.extract(_VLLM, group) for group in (2, 4)]
    new = [
        pl.coalesce(expression.str.extract(_NEW, group) for group in (1, 2)).cast(
            pl.Int64, strict=False
        )
        for expression in inside
    ]
    keys = [
        expression.str.extract(_KEYS, 1).cast(pl.Int64, strict=False)
        for expression in inside
    ]
    return {
        "phase": _phase(contexts, generations),
        "requests": contexts + generations,
        "tokens": new[0] + new[1],
        "context": keys[0] + keys[1],
        "prefill_requests": contexts,
        "prefill_tokens": new[0],
    }


def _phase(prefills: pl.Expr, decodes: pl.Expr) -> pl.Expr:
    return (
        pl.when((prefills > 0) & (decodes > 0))
        .then(pl.lit(MIXED))
        .when(prefills > 0)
        .then(pl.lit(PREFILL))
        .when(decodes > 0)
        .then(pl.lit(DECODE))
    )


def _field(name: str) -> pl.Expr:
    return _number(rf"[ \[]{name}=(\d+)")


def _of_sglang() -> dict[str, pl.Expr]:
    mode = pl.col("name").str.extract(_SGLANG)
    phase = mode.replace_strict(_PHASE_OF_MODE, default=None, return_dtype=pl.String)
    # A graph may be wider than the batch that it runs.
    real = pl.coalesce(_field("raw_bs"), _field("bs"))
    wide = pl.when(_field("raw_bs").is_not_null()).then(_field("bs"))
    parts = _field("c_sq") + _field("g_sq")
    one_each = pl.when(mode == "DECODE").then(real)
    tokens = pl.coalesce(_field("toks"), parts, _field("sq"), one_each)
    is_prefill = phase == PREFILL
    return {
        "phase": phase,
        "requests": real,
        "tokens": tokens,
        "context": pl.coalesce(_field("sk"), _field("c_sk") + _field("g_sk")),
        "prefill_requests": pl.when(is_prefill)
        .then(real)
        .when(phase == DECODE)
        .then(0)
        .otherwise(_field("c")),
        "prefill_tokens": pl.when(is_prefill)
        .then(tokens)
        .when(phase == DECODE)
        .then(0)
        .otherwise(_field("c_sq")),
        "graph_batch": wide,
    }


def _of_atom() -> dict[str, pl.Expr]:
    phase = pl.col("name").str.extract(_ATOM)
    requests, tokens = _field("bs"), pl.coalesce(_field("toks?"), _field("tokens"))
    return {
        "phase": phase,
        "requests": requests,
        "tokens": pl.coalesce(tokens, pl.when(phase == DECODE).then(requests)),
        "prefill_requests": pl.when(phase == PREFILL).then(requests).otherwise(0),
        "prefill_tokens": pl.when(phase == PREFILL).then(tokens).otherwise(0),
    }
