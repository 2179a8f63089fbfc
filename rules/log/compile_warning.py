"""LOG001: the log shows torch.compile giving up, recompiling or breaking graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from traceq.analysis.patterns import compile_reasons
from traceq.linter import Bad, Evidence, Good, Need, Rule, Seen, Severity, dataclass

from ._compile_hits import by_cause, by_line, frames, place_of_hit
from ._messages import Message, findings, frames_of, hits

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.linter import Finding, Place

    from ._messages import Hit

_REASON = r"last reason: (?P<reason>[^\n]+)"
_FUNCTION = r"function: '(?P<function>[^']+)' \((?P<file>[^\s:]+):(?P<line>\d+)\)"
_LIMIT = Message(
    "recompile limit",
    r"torch\._dynamo hit config\.(?P<limit>\w+) \((?P<count>\d+)\)",
    "torch.compile gave up on {function} after {count} recompilations, and it now"
    " runs uncompiled: {why}",
    "",
    ("JIT002",),
    details=(_FUNCTION, _REASON),
)
_AGAIN = Message(
    "recompilation",
    r"Recompiling function (?P<function>\S+) in (?P<file>[^\s:]+):(?P<line>\d+)",
    "torch.compile recompiles {function}: {why}",
    "",
    ("JIT002",),
    to_confirm=True,
    details=(r"guard failure\(s\):[^\n]*\n[^\n]*?- (?P<reason>[^\n]+)",),
)
# The reason is in the same line, or, where it is in another function's words, after an
# empty one.
_TITLE = (
    r"(?i)\breason: (?:(?:Encountered graph break when|Failed to handle graph break)"
    r"[^\n]*\s+)?(?P<reason>[^\n]+)"
)
_BREAK = Message(
    "graph break",
    r"Graph break in user code at (?P<file>[^\s:]+):(?P<line>\d+)",
    "torch.compile breaks the graph{where}: {why}",
    "",
    ("JIT003",),
    details=(
        _TITLE,
        r"Explanation: (?P<explanation>[^\n]+)",
        r"Hint: (?P<hint>[^\n]+)",
        r"frame skipped: (?P<skipped>\S+) \((?P<of>[^\n]+?),? line (?P<first>\d+)\)",
    ),
    # With the stack of the program, in which a call of a module has four lines.
    lines=100,
)
_OTHERS = (
    Message(
        "graph break by item",
        r"Graph break (?:from|due to unsupported) `?Tensor\.item\(\)",
        "torch.compile breaks the graph at Tensor.item()",
        "keep the value on the GPU, or set torch._dynamo.config.capture_scalar_outputs"
        " = True",
        ("JIT003", "SYN001"),
    ),
    Message(
        "few SMs",
        r"Not enough SMs to use max_autotune_gemm mode",
        "this GPU has too few SMs for max-autotune of matmuls",
        "nothing to fix: mode='default' compiles faster, with the same result",
        severity=Severity.info,
    ),
)


@dataclass(frozen=True)
class CompileWarning(Rule):
    """The log shows torch.compile giving up, recompiling or breaking graphs.

    ## What it does

    Looks in the program's log for what torch.compile prints: which function has reached
    the recompile limit, and, if ``TORCH_LOGS`` asks for it, each recompilation with its
    reason and each graph break with its line.

    ## Why is this bad?

    A function past the limit runs uncompiled from then on, and this line is the only
    sign of it. Every recompilation stops the program for seconds.

    ## How to fix it

    Make what changes dynamic, or stop it from changing; the reason names the guard that
    failed. Run with ``TORCH_LOGS=recompiles,graph_breaks`` to see all of them.

    ```diff
    - loss = compiled(batch, step)  # a number that changes is a guard that fails
    + loss = compiled(batch, torch.tensor(step))
    ```

    ## When it is wrong

    A few recompilations in the first steps, one for each kind of batch, are normal:
    where a trace shows none in its steps (JIT002), they are minor.
    """

    code = "LOG001"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.compile", "torch._logging.set_logs")
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        text="""
        LOG001 compile-warning
          torch.compile gave up on forward after 8 recompilations, and it now runs
            uncompiled: the size of dim 1 of `x` changes (8, then 9)
          in     forward (/src/model.py:12)
          line   W0101 torch/_dynamo/convert_frame.py:1016] [0/8] torch._dynamo hit
                 config.recompile_limit (8) (line 2)
          guard  tensor 'x' size mismatch at index 1. expected 8, actual 9
          fix    call torch._dynamo.mark_dynamic(x, 1) before the first call, or pad
                 it to a few sizes
        """,
    )

    examples = (
        Bad(
            "",
            log="""
W0101 torch/_dynamo/convert_frame.py:1016] [0/8] torch._dynamo hit config.recompile_limit (8)
W0101 torch/_dynamo/convert_frame.py:1016] [0/8]    function: 'forward' (/src/model.py:12)
W0101 torch/_dynamo/convert_frame.py:1016] [0/8]    last reason: 0/7: tensor 'x' size mismatch at index 1. expected 8, actual 9
""",  # noqa: E501 - as torch writes it
            finds=(
                "torch.compile gave up on forward after 8 recompilations, and it now"
                " runs uncompiled: the size of dim 1 of `x` changes (8, then 9)",
            ),
        ),
        Good("", log="step 1 loss 2.31\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for each message: one finding for each function and cause."""
        given_up = by_cause(hits(_LIMIT, log))
        yield from (self._recompiled(_LIMIT, *group) for group in given_up.items())
        again = by_cause(hits(_AGAIN, log))
        yield from (
            self._recompiled(_AGAIN, cause, group)
            for cause, group in again.items()
            if cause not in given_up
        )
        breaks = by_line(hits(_BREAK, log))
        yield from (self._broken(*group) for group in breaks.items())
        # With a message of its own a break is named by that.
        yield from findings(self, _OTHERS[1:] if breaks else _OTHERS, log)

    def _recompiled(
        self, message: Message, cause: tuple[Place, str], group: list[Hit]
    ) -> Finding:
        place, _ = cause
        last = group[-1]
        guard = last.groups.get("reason", "?")
        why = compile_reasons.guard_reason(guard)
        used = next(reversed(frames_of(last.whole)), None)
        named = {"function": "?", **last.groups, "why": why.text}
        return self.finding(
            message.means.format_map(named),
            subject=message.subject,
            place=place,
            count=len(group),
            evidence=[
                replace(last.evidence, count=len(group) if len(group) > 1 else None),
                Evidence(
                    "guard", compile_reasons.guard_text(guard), note=place_of_hit(used)
                ),
            ],
            data={"reason": guard, "why": why.text, "frames": frames(group)},
            advice=why.advice,
            explains=message.explains,
            confirmed_by=message.explains if message.to_confirm else (),
        )

    def _broken(self, place: Place, group: list[Hit]) -> Finding:
        last = group[-1].groups
        why = compile_reasons.break_reason(
            last.get("reason", "?"), last.get("explanation", ""), last.get("hint", "")
        )
        where = f" in {place.function}" if place.function else ""
        skipped = [hit.groups for hit in group if "skipped" in hit.groups]
        return self.finding(
            _BREAK.means.format_map({"where": where, "why": why.text}),
            subject=_BREAK.subject,
            place=place,
            count=len(group),
            evidence=[
                replace(
                    group[0].evidence, count=len(group) if len(group) > 1 else None
                ),
                *(
                    Evidence(
                        "skipped",
                        f"{item['skipped']}"
                        f" ({PurePath(item['of']).name}:{item['first']})",
                        note="runs uncompiled: a break in a loop ends its compilation",
                    )
                    for item in skipped[:1]
                ),
            ],
            data={
                "reason": last.get("reason", ""),
                "why": why.text,
                "frames": frames(group),
            },
            advice=why.advice,
            explains=_BREAK.explains,
        )
