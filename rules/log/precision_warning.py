"""LOG004: the log says that TF32 is there and not used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.lint import Bad, Good, Need, Rule
from traceq.lint.log_messages import Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.lint import Finding

_MESSAGES = (
    Message(
        "tf32",
        r"TensorFloat32 tensor cores for float32 matrix multiplication available but"
        r" not enabled",
        "float32 matrix products do not use the tensor cores, which TF32 would",
        "call torch.set_float32_matmul_precision('high') at the start, or compute in"
        " bfloat16",
        ("GEM001",),
    ),
)


@dataclass(frozen=True)
class PrecisionWarning(Rule):
    """The log says that float32 products could use tensor cores and do not.

    ## What it does

    Looks in the program's log for what torch.compile prints when it compiles a float32
    matrix product for a GPU that has TF32, while TF32 is off.

    ## Why is this bad?

    Without TF32 such a product runs on the ordinary cores, several times slower.

    ## How to fix it

    ``torch.set_float32_matmul_precision("high")`` once at the start; or bfloat16.

    ## When it is wrong

    Where ten bits of mantissa are not enough. Whether these products matter in a step
    is what GEM001 says, from a trace.
    """

    code = "LOG004"
    since = "0.1.0"
    needs = frozenset({Need.LOG})
    priced = False

    examples = (
        Bad(
            "",
            log="compile_fx.py:322: UserWarning: TensorFloat32 tensor cores for float32"
            " matrix multiplication available but not enabled. Consider setting\n",
            finds=(
                "float32 matrix products do not use the tensor cores, which TF32 would",
            ),
        ),
        Good("", log="float32 matmul precision: high\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for the message."""
        yield from findings(self, _MESSAGES, log)
