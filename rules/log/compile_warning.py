"""LOG001: the log shows torch.compile giving up, recompiling or breaking graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.lint import Bad, Good, Need, Rule, Severity
from traceq.lint.log_messages import Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.lint import Finding

_DYNAMIC = (
    "make what changes dynamic: torch._dynamo.mark_dynamic(tensor, dim) or compile("
    "dynamic=True) for a size, a tensor instead of a Python number for a value; or pad"
    " to a few sizes"
)
_REASON = r"last reason: (?P<reason>[^\n]+)"
_FUNCTION = r"function: '(?P<function>[^']+)' \((?P<file>[^\s:]+):(?P<line>\d+)\)"
_MESSAGES = (
    Message(
        "recompile limit",
        r"torch\._dynamo hit config\.(?P<limit>\w+) \((?P<count>\d+)\)",
        "torch.compile gave up on {function} after {count} recompilations, and it now"
        " runs uncompiled: {reason}",
        _DYNAMIC,
        ("JIT002",),
        details=(_FUNCTION, _REASON),
    ),
    Message(
        "recompilation",
        r"Recompiling function (?P<function>\S+) in (?P<file>[^\s:]+):(?P<line>\d+)",
        "torch.compile recompiles {function}: {reason}",
        _DYNAMIC,
        ("JIT002",),
        to_confirm=True,
        details=(r"guard failure\(s\):[^\n]*\n[^\n]*?- (?P<reason>[^\n]+)",),
    ),
    Message(
        "graph break",
        r"Graph break in user code at (?P<file>[^\s:]+):(?P<line>\d+)",
        "torch.compile breaks the graph: {reason}",
        "write what it cannot compile in torch operations, or move it out of the"
        " compiled function; fullgraph=True shows every break as an error",
        ("JIT003",),
        details=(r"(?i)graph break reason: (?P<reason>[^\n]+)",),
    ),
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
    needs = frozenset({Need.LOG})
    priced = False

    examples = (
        Bad(
            "",
            log="""
W0101 torch/_dynamo/convert_frame.py:1016] [0/8] torch._dynamo hit config.recompile_limit (8)
W0101 torch/_dynamo/convert_frame.py:1016] [0/8]    function: 'forward' (/src/model.py:12)
W0101 torch/_dynamo/convert_frame.py:1016] [0/8]    last reason: 0/7: tensor 'x' size mismatch
""",  # noqa: E501 - as torch writes it
            finds=(
                "torch.compile gave up on forward after 8 recompilations, and it now"
                " runs uncompiled: 0/7: tensor 'x' size mismatch",
            ),
        ),
        Good("", log="step 1 loss 2.31\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for each message."""
        yield from findings(self, _MESSAGES, log)
