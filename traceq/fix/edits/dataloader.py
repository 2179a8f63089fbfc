"""``persistent_workers=True`` and ``pin_memory=True`` for a loader with workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from traceq.fix.edit import RefusedError
from traceq.fix.loaders import loader_of, loops, pinned, switched_on, workers

if TYPE_CHECKING:
    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.fix.syntax import Code
    from traceq.model.finding import Finding


def edit(program: Program, finding: Finding) -> list[Replacement]:
    """Return the constructor of the loader that the recorded loop goes over."""
    codes = [program.code(finding), *program.codes(finding)[1:]]
    code, call = loader_of(codes, _loop(codes[0], finding))
    count = workers(call)
    if count is None:
        msg = f"num_workers of the DataLoader in {code.file} is decided when it runs"
        raise RefusedError(msg)
    if count == 0:
        msg = "how many workers to start depends on the machine: set num_workers first"
        raise RefusedError(msg)
    changes = switched_on(code, call, "persistent_workers") + pinned(code, call)
    if not changes:
        msg = f"the DataLoader of {code.file} has persistent workers and pins already"
        raise RefusedError(msg)
    return changes


def _loop(code: Code, finding: Finding) -> cst.For:
    """Return the loop whose line the finding is at, else the one of its function."""
    place = finding.place
    every = [node for node in code.nodes(cst.For) if isinstance(node, cst.For)]
    if place.exact:
        here = [node for node in every if code.lines(node)[0] == place.line]
    else:
        function = code.function_at(place)
        here = [node for node in every if function in set(code.parents(node))]
        # Of nested loops the outer one is over epochs as often as over batches.
        here = (
            [node for node in here if not loops(code, node)] if len(here) > 1 else here
        )
    if len(here) != 1:
        msg = f"the recording does not say which loop of {code.file} takes the batches"
        raise RefusedError(msg)
    return here[0]
