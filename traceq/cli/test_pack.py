"""`traceq test`: run the drawn examples of a rule pack."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.errors import PackError

if TYPE_CHECKING:
    from traceq.testing.examples import Example


_FOUND = 1


def command(
    folder: Annotated[Path, typer.Argument(help="A folder of rules.")],
) -> None:
    """Run the examples of a rule pack: Bad must find its sentences, Good nothing.

    Exits 0 if all hold, 1 if one does not, 2 if the pack cannot be used.
    """
    from traceq.linter.pack import load_pack
    from traceq.testing.examples import run_examples

    rules = {rule.code: rule for rule in load_pack(folder, "_traceq_tested")}
    bare = [code for code, rule in rules.items() if not rule.examples]
    if not rules or bare:
        what = f"{', '.join(bare)} without examples" if rules else "no rule"
        msg = f"{folder} has {what}: give each rule at least one Bad and one Good"
        raise PackError(msg)
    examples = list(run_examples(rules))
    failed = [example for example in examples if not example.holds]
    for example in failed:
        output.write(_difference(example))
    output.write(f"{len(examples) - len(failed)} of {len(examples)} examples hold\n")
    if failed:
        sys.exit(_FOUND)


def _difference(example: Example) -> str:
    missing = [text for text in example.expected if text not in example.found]
    surplus = [text for text in example.found if text not in example.expected]
    if example.error:
        return f"{example.name} crashed: {example.error}\n"
    lines = [f"{example.name} does not hold"]
    lines += [f"  should find: {text}" for text in missing]
    lines += [f"  but finds:   {text}" for text in surplus]
    if not missing and not surplus:
        lines.append("  finds the right sentences in another order")
    return "\n".join(lines) + "\n"
