"""LOG010: a structured log of torch.compile, with what it compiled and why again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compile_reasons
from traceq.linter import (
    NOWHERE,
    Bad,
    Evidence,
    Good,
    Need,
    Place,
    Rule,
    Seen,
    Severity,
    counted,
    dataclass,
)

from ._messages import RESUME, library_file, resumed
from ._torch_trace import (
    cache_results,
    compilations,
    is_structured,
    kernel_origins,
    recompilations,
    short_reason,
    unended,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_MOST_FUNCTIONS = 3
_LOGGED = """
V0804 12:34:14.100000 7 torch/_logging/structured.py:28] {"str": ["/src/model.py", 1]}
V0804 12:34:15.529000 7 torch/_dynamo/utils.py:1626] {"compilation_metrics": {"compile_id": "0/0", "co_name": "forward", "co_filename": "/src/model.py", "co_firstlineno": 12, "entire_frame_compile_time_s": 2.7, "backend_compile_time_s": 2.5, "inductor_compile_time_s": 0.9, "code_gen_time_s": 0.6, "fail_type": null}, "frame_id": 0, "frame_compile_id": 0, "attempt": 0}
V0804 12:34:16.315000 7 torch/_dynamo/guards.py:3824] {"artifact": {"name": "recompile_reasons", "encoding": "json"}, "rank": 0, "frame_id": 0, "frame_compile_id": 1, "attempt": 0, "has_payload": "dedd"}
	[
	"0/0: tensor 'x' size mismatch at index 1. expected 8, actual 9"
	]
V0804 12:34:16.415000 7 torch/_dynamo/convert_frame.py:231] {"dynamo_start": {"stack": [{"line": 40, "name": "main", "filename": 1}]}, "rank": 0, "frame_id": 0, "frame_compile_id": 1, "attempt": 0}
V0804 12:34:17.635000 7 torch/_dynamo/utils.py:1626] {"compilation_metrics": {"compile_id": "0/1", "co_name": "forward", "co_filename": "/src/model.py", "co_firstlineno": 12, "entire_frame_compile_time_s": 1.3, "backend_compile_time_s": 1.2, "inductor_compile_time_s": 1.0, "code_gen_time_s": 0.9, "fail_type": null}, "frame_id": 0, "frame_compile_id": 1, "attempt": 0}
"""  # noqa: E501 - as torch writes it


@dataclass(frozen=True)
class CompileLog(Rule):
    """A ``TORCH_TRACE`` log shows recompilations, failed compilations and their time.

    ## What it does

    Reads the structured log that torch writes with ``TORCH_TRACE=folder``: each
    recompilation with the guard that failed and its seconds, each compilation that
    failed, and what was compiled in all, by function and phase, with the nodes of the
    graph that each kernel computes where the log has them. Graph breaks in it are
    LOG001's. Every such log gets an overview: a log without compilations too.

    ## Why is this bad?

    Every recompilation stops the program for as long as the log says; a function whose
    compilation fails runs uncompiled.

    ## How to fix it

    Make what changes dynamic, or stop it from changing. The overview is for comparison:
    compile less, or keep the caches between runs (``TORCHINDUCTOR_CACHE_DIR``).

    ```diff
    - loss = compiled(batch, step)  # a number that changes is a guard that fails
    + loss = compiled(batch, torch.tensor(step))
    ```

    ## When it is wrong

    One recompilation with dynamic shapes, after the first size that changes, is normal.
    Of a log longer than 16 MB the first part is read, of a line the first 4,000
    characters.
    """

    code = "LOG010"
    several_fixes = True
    since = "0.5.0"
    see = ("torch.compile",)
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        text="""
        LOG010 compile-log
          torch.compile recompiles forward: the size of dim 1 of `x` changes (8,
            then 9)
          in     forward (/src/model.py:12)
          took   1.3 s ×1
          guard  tensor 'x' size mismatch at index 1. expected 8, actual 9 (line 4)
          fix    call torch._dynamo.mark_dynamic(x, 1) before the first call, or pad
                 it to a few sizes
        """,
    )

    examples = (
        Bad(
            "",
            log=_LOGGED,
            finds=(
                "torch.compile recompiles forward: the size of dim 1 of `x` changes"
                " (8, then 9)",
                "torch.compile took 4.0 s for 2 compilations of 1 function",
            ),
        ),
        Good("", log="step 1 loss 2.31\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Report each cause of recompilations, each failure, and the whole."""
        if not is_structured(log):
            return
        compiled = compilations(log)
        yield from self._recompiled(log, compiled)
        failed = compiled.drop_nulls("fail_type")
        yield from (self._failed(row) for row in failed.iter_rows(named=True))
        yield self._overview(log, compiled)

    def _recompiled(
        self, log: pl.DataFrame, compiled: pl.DataFrame
    ) -> Iterator[Finding]:
        by_id = {row["compile_id"]: row for row in compiled.iter_rows(named=True)}
        groups: dict[tuple[Place, str], list[Mapping[str, Any]]] = {}
        for row in recompilations(log):
            metrics = by_id.get(row["compile_id"], {})
            place = _place(metrics) or row["place"]
            key = compile_reasons.guard_reason(row["reason"]).key
            groups.setdefault((place, key), []).append({**metrics, **row})
        for (place, _), rows in groups.items():
            last = rows[-1]
            why = compile_reasons.guard_reason(last["reason"])
            seconds = sum(row.get("seconds") or 0.0 for row in rows)
            function = place.function or last.get("function") or "?"
            yield self.finding(
                f"torch.compile recompiles {resumed(function)}: {why.text}",
                subject=f"recompilation {function}",
                place=place,
                count=len(rows),
                evidence=[
                    Evidence("took", f"{seconds:.1f} s", count=len(rows)),
                    Evidence(
                        "guard",
                        compile_reasons.guard_text(last["reason"]),
                        note=f"(line {last['line']})",
                    ),
                ],
                data={
                    "reason": last["reason"],
                    "why": why.text,
                    "frames": sorted({row["compile_id"].split("/")[0] for row in rows}),
                },
                advice=why.advice,
                explains=("JIT002",),
            )

    def _failed(self, row: Mapping[str, Any]) -> Finding:
        # This type is of whatever torch has no code for: the reason names it.
        kind, reason = row["fail_type"], short_reason(row["fail_reason"] or "")
        what = reason if kind == "Unsupported" and reason else kind
        return self.finding(
            f"torch.compile failed on {resumed(row['function'] or '?')}: {what}",
            subject=f"failure {row['function']}",
            place=_place(row) or NOWHERE,
            evidence=[Evidence("reason", reason, note=f"(line {row['line']})")],
            data={"type": kind, "reason": reason},
            advice="change what the reason names, or keep the function out with"
            " torch.compiler.disable: it runs uncompiled, or ends the program",
        )

    def _overview(self, log: pl.DataFrame, compiled: pl.DataFrame) -> Finding:
        caches, kernels, left = cache_results(log), kernel_origins(log), unended(log)
        functions = (
            compiled.filter(~pl.col("backward"))
            .with_columns(pl.col("function").str.replace(RESUME, "$1"))
            .group_by("function", maintain_order=True)
            .agg(seconds=pl.col("seconds").sum(), times=pl.len())
            .sort("seconds", descending=True, maintain_order=True)
        )
        seconds = float(compiled["seconds"].sum() or 0.0)
        message = (
            f"torch.compile took {seconds:.1f} s for"
            f" {counted(compiled.height, 'compilation')} of"
            f" {counted(functions.height, 'function')}"
            if compiled.height
            else "a TORCH_TRACE log without a compilation that ended"
        )
        message += "; one more did not end" if left and compiled.height else ""
        # Of the frame's time the backend's is a part, the rest is Dynamo's.
        dynamo = pl.when(~pl.col("backward")).then(
            pl.col("seconds") - pl.col("backend").fill_null(0.0)
        )
        taken = compiled.with_columns(dynamo=dynamo)
        phases = ", ".join(
            f"{name.replace('_', ' ')} {float(taken[name].sum() or 0.0):.1f} s"
            for name in ("dynamo", "backend", "inductor", "code_generation")
        )
        return self.finding(
            message,
            subject="compile time",
            count=compiled.height,
            evidence=[
                *(
                    Evidence(
                        "took",
                        f"{row['seconds']:.1f} s in {row['function'] or '?'}",
                        count=row["times"],
                    )
                    for row in functions.head(_MOST_FUNCTIONS).iter_rows(named=True)
                ),
                *([Evidence("phases", phases)] if compiled.height else []),
                *left,
                *(
                    Evidence("cache", f"{name} of an FX graph", count=times)
                    for name, times in caches.items()
                ),
                *(
                    Evidence("kernel", name, note=f"({', '.join(made)})")
                    for name, made in [*kernels.items()][:_MOST_FUNCTIONS]
                ),
            ],
            data={
                "seconds": round(seconds, 3),
                "caches": {**caches},
                "kernels": {name: ", ".join(made) for name, made in kernels.items()},
            },
            advice="nothing to fix by itself: keep the caches between runs"
            " (TORCHINDUCTOR_CACHE_DIR), and compile fewer or smaller functions",
            severity=Severity.info,
        )


def _place(row: Mapping[str, Any]) -> Place | None:
    """Return the function that was compiled, if it is the user's."""
    file = row.get("file")
    if not file or library_file(file):
        return None
    function = resumed(row["function"] or "?")
    return Place(file, row["first_line"], function, line_is="function")
