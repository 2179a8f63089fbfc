"""LOG003: the log reports that RMSNorm falls back from its fused kernel."""

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
        "rms norm",
        r"Mismatch dtype between input and weight: input dtype = (?P<input>[^,]+),"
        r" weight dtype = (?P<weight>[^,]+), Cannot dispatch to fused implementation",
        "RMSNorm falls back from its fused kernel: its input is {input}, its weight"
        " {weight}",
        "give the norm's weight the dtype of its input: model.to(torch.bfloat16) or"
        " nn.RMSNorm(..., dtype=torch.bfloat16)",
        ("NRM001",),
        to_confirm=True,
    ),
)


@dataclass(frozen=True)
class NormDtypeWarning(Rule):
    """The log reports that RMSNorm falls back from its fused kernel because of a dtype.

    ## What it does

    Looks in the program's log for the warning of ``rms_norm`` about input and weight of
    different dtypes, which torch 2.9 and later print once in a process.

    ## Why is this bad?

    Instead of one kernel, six to eight run, each of which reads and writes the whole
    activation.

    ## How to fix it

    Give the norm's weight the dtype of its input, or compile the model.

    ```diff
    - self.norm = nn.RMSNorm(width)
    + self.norm = nn.RMSNorm(width, dtype=torch.bfloat16)
    ```

    ## When it is wrong

    The warning is printed once for all norms: it shows neither how many there are nor
    whether they matter. NRM001 does, from a trace; if it finds none, the warning is
    minor.
    """

    code = "LOG003"
    since = "0.1.0"
    see = ("torch.nn.RMSNorm", "torch.autocast")
    needs = frozenset({Need.LOG})
    priced = False

    seen = Seen(
        text="""
        LOG003 norm-dtype-warning
          RMSNorm falls back from its fused kernel: its input is c10::BFloat16, its
            weight float
          line  UserWarning: Mismatch dtype between input and weight: input dtype =
                c10::BFloat16, weight dtype = float, Cannot dispatch to fused
                implementation. (Triggered internally) (line 1)
          fix   give the norm's weight the dtype of its input:
                model.to(torch.bfloat16) or nn.RMSNorm(..., dtype=torch.bfloat16)
        """,
    )

    examples = (
        Bad(
            "",
            log="UserWarning: Mismatch dtype between input and weight: input dtype ="
            " c10::BFloat16, weight dtype = float, Cannot dispatch to fused"
            " implementation. (Triggered internally)\n",
            finds=(
                "RMSNorm falls back from its fused kernel: its input is c10::BFloat16,"
                " its weight float",
            ),
        ),
        Good("", log="input dtype = c10::BFloat16, weight dtype = c10::BFloat16\n"),
    )

    def check_log(self, log: pl.DataFrame) -> Iterator[Finding]:
        """Look for the message."""
        yield from findings(self, _MESSAGES, log)
