"""Template of a new rule: it loads, and its first example fails until it is written."""

from __future__ import annotations

import re
from string import Template

from traceq.errors import UsageError
from traceq.linter.measured import NOT_TRIED

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
_CODE = re.compile(r"[A-Z]{2,5}\d{3}")
_ROWS = "rows = ["
_ROW = re.compile(r'\s*\{ rule = "(\w+)"')
_RULE = Template('''"""$code: say in one line what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    kernel_lines,
    module_line,
    often,
    option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_OP = "aten::the_op_to_look_for"


@dataclass(frozen=True)
class $name(Rule):
    """One sentence: what is wrong.

    ## What it does

    What it looks for, and what it leaves to other rules.

    ## Why is this bad?

    What it costs, and by what mechanism.

    ## How to fix it

    ```diff
    - what is written now
    + what to write instead
    ```

    ## When it is wrong

    Where the finding is right and the advice is not to be followed.
    """

    code = "$code"
    since = "$since"
    preview = True
    needs = frozenset({Need.GPU, Need.OPS})
    advice = "what to write instead"

    min_calls: int = option(1, "Fewer calls a step are not reported.")

    seen = Seen(text="")

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                  ]
            host    [aten::sort         ]
            host     [cudaLaunchKernel>1]
            gpu 7                [sort<1     ]
            """,
            finds="$subject once a step",
        ),
        Good(
            """
            host   [ProfilerStep#1                  ]
            host    [aten::mm           ]
            host     [cudaLaunchKernel>1]
            gpu 7                [gemm<1     ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the kernels by the line that asks for them, all layers together."""
        by_line = view.by_place(
            view.owned_kernels(view.roots(pl.col("name") == _OP)),
            ops=pl.col("owner").unique(),
            gpu_ns=pl.col("dur").sum(),
        )
        for row in by_line.iter_rows(named=True):
            calls = len(row["ops"]) / view.steps
            if calls < self.min_calls:
                continue
            yield self.finding(
                f"$subject {often(calls)}",
                subject=_OP,
                place=view.place(row),
                count=calls,
                fix=Fix(kernels=row["ids"], ops=row["ops"]),
                evidence=[
                    Evidence("gpu", value=row["gpu_ns"] / view.steps, unit="ns"),
                    *kernel_lines(view, row["ids"]),
                    *module_line(row["modules"]),
                ],
            )
''')


def new_rule(name: str, code: str, since: str = "0.1.0") -> str:
    """Return the file of a new rule, as ``nonzero-in-forward``, ``DYN001``, ``0.1``."""
    if not _NAME.fullmatch(name):
        msg = f"{name!r} is not a rule's name: write it as nonzero-in-forward"
        raise UsageError(msg)
    if not _CODE.fullmatch(code):
        msg = f"{code!r} is not a rule's code: write it as DYN001"
        raise UsageError(msg)
    words = name.split("-")
    return _RULE.substitute(
        code=code,
        since=since,
        name="".join(word.capitalize() for word in words),
        subject=" ".join(words),
    )


def with_row(text: str, code: str) -> str:
    r"""Return a measured.toml with the row of a new rule, in the order of the codes.

    >>> text = 'rows = [\n  { rule = "ABC001", note = "…" },\n]\n'
    >>> print(with_row(text, "ABC002"), end="")
    rows = [
      { rule = "ABC001", note = "…" },
      { rule = "ABC002", note = "Not tried on a GPU." },
    ]
    """
    lines = text.splitlines(keepends=True)
    before = [
        number
        for number, line in enumerate(lines)
        if line.strip() == _ROWS or ((row := _ROW.match(line)) and row[1] < code)
    ]
    if not before:
        msg = f"{_ROWS} is missing: write the rows a line each, as in rules/README.md"
        raise UsageError(msg)
    lines.insert(before[-1] + 1, f'  {{ rule = "{code}", note = "{NOT_TRIED}" }},\n')
    return "".join(lines)


def file_of(name: str) -> str:
    """Return the name of a rule's file.

    >>> file_of("nonzero-in-forward")
    'nonzero_in_forward.py'
    """
    return name.replace("-", "_") + ".py"
