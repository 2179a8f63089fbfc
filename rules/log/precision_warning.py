"""LOG004: the log warns that float32 matmuls run without TF32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Bad, Good, Need, Rule, Seen, dataclass

from ._messages import Message, findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.linter import Finding

_MESSAGES = (
    Message(
        "tf32",
        r"TensorFloat32 tensor cores for float32 matrix multiplication available but"
        r" not enabled",
        "float32 matmuls do not use tensor cores, since TF32 is off",
        "call torch.set_float32_matmul_precision('high') at the start, or compute in"
        " bfloat16",
        ("GEM001",),
        to_confirm=True,
    ),
)


@dataclass(frozen=True)
class PrecisionWarning(Rule):
    """The log warns that float32 matmuls run without tensor cores, since TF32 is off.

    ## What it does

    Looks in the program's log for the warning that torch.compile prints when it
    compiles a float32 matmul for a GPU that has TF32 while TF32 is off.

    ## Why is this bad?

    Without TF32 a matmul runs on the ordinary cores, several times slower.

    ## How to fix it

    Call ``torch.set_float32_matmul_precision("high")`` once at the start, or compute in
    bfloat16.

    ```diff
    + torch.set_float32_matmul_precision("high")
      main()
    ```

    ## When it is wrong

    If the ten bits of mantissa that TF32 has are not enough. GEM001 shows, from a
    trace, whether these matmuls matter in a step; if it ran and found none that do, the
    warning is minor.
    """

    code = "LOG004"
    since = "0.1.0"
    see = ("torch.set_float32_matmul_precision",)
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        text="""
        LOG004 precision-warning
          float32 matmuls do not use tensor cores, since TF32 is off
          line  compile_fx.py:322: UserWarning: TensorFloat32 tensor cores for
                float32 matrix multiplication available but not enabled. Consider
                setting (line 1)
          fix   call torch.set_float32_matmul_precision('high') at the start, or
                compute in bfloat16
        """,
    )

    examples = (
        Bad(
            "",
            log="compile_fx.py:322: UserWarning: TensorFloat32 tensor cores for float32"
            " matrix multiplication available but not enabled. Consider setting\n",
            finds=("float32 matmuls do not use tensor cores, since TF32 is off",),
        ),
        Good("", log="float32 matmul precision: high\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for the message."""
        yield from findings(self, _MESSAGES, log)
