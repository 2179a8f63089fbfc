"""Proposed edits of findings, and the files with all of them."""

from __future__ import annotations

import ast
import importlib.util
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from traceq.errors import UsageError
from traceq.fix.edit import Proposal, RefusedError, apply, hunks, overlapping
from traceq.fix.edits import load_edit
from traceq.fix.remedies import always_applies, edit_of
from traceq.fix.source import read_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from traceq.common.git_repository import Repository
    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.model.finding import Finding, Place


class Changed(Struct, frozen=True):
    """A file with its edits."""

    file: str
    """Path from the root."""
    path: Path
    before: str
    after: str
    content: bytes
    """The same in the file's encoding."""


class RecordedProgram(Struct, frozen=True):
    """The recording's own knowledge of its program."""

    copies: Mapping[str, str]
    """Source files as they ran, by their names in the trace."""
    torch: str = ""
    """The version of torch; empty if it is not known."""


UNKNOWN_PROGRAM = RecordedProgram({})


def has_libcst() -> bool:
    """Return whether the package that edits need is installed."""
    return importlib.util.find_spec("libcst") is not None


def require_libcst() -> None:
    """Raise ``UsageError`` if the package that edits need is not installed."""
    if not has_libcst():
        msg = "edits need LibCST: pip install 'torch-traceq[fix]'"
        raise UsageError(msg)


def propose(
    findings: Iterable[Finding],
    repository: Repository,
    known: RecordedProgram = UNKNOWN_PROGRAM,
    entry: Place | None = None,
) -> list[Proposal]:
    """Return the edit of each finding, or why there is none.

    The findings are those of one recording, with their places in the repository.
    """
    from traceq.fix.program import Program  # noqa: PLC0415 - needs LibCST

    program = Program(repository, known.copies, known.torch, entry)
    return [_proposal(finding, program) for finding in findings]


def _proposal(finding: Finding, program: Program) -> Proposal:
    name = edit_of(finding)
    nothing = Proposal(finding.code, finding.fingerprint, "")
    if not name:
        return nothing
    try:
        changes = tuple(dict.fromkeys(load_edit(name)(program, finding)))
        files = {change.file for change in changes}
        parts = []
        for file in sorted(files):
            replacements = [change for change in changes if change.file == file]
            _refuse_nonsense(file, apply(program.text(file), replacements))
            parts += hunks(file, program.text(file), replacements)
    except RefusedError as error:
        if not always_applies(finding):
            return nothing
        return structs.replace(nothing, edit=name, refusal=str(error))
    return structs.replace(nothing, edit=name, replacements=changes, hunks=tuple(parts))


def _refuse_nonsense(file: str, text: str) -> None:
    """Raise if a changed file would not be a program any more."""
    try:
        ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        msg = f"{file} could not be parsed with the edit"
        raise RefusedError(msg) from None


def combine(
    proposals: Iterable[Proposal], root: Path
) -> tuple[list[Proposal], list[Changed]]:
    """Return the proposals, and the files with all edits that fit together.

    An edit that touches what an earlier one changes is refused, and so is one with
    which a file could not be parsed.
    """
    taken: dict[str, list[Replacement]] = {}
    done: list[Proposal] = []
    for proposal in proposals:
        merged = {file: [*of] for file, of in taken.items()}
        for change in proposal.replacements:
            of = merged.setdefault(change.file, [])
            if change not in of:
                of.append(change)
        try:
            for file in {change.file for change in proposal.replacements}:
                _refuse_overlaps(root, file, merged[file])
        except RefusedError as error:
            done.append(
                structs.replace(proposal, replacements=(), hunks=(), refusal=str(error))
            )
            continue
        taken = merged
        done.append(proposal)
    return done, [_changed(root, file, of) for file, of in sorted(taken.items()) if of]


def _refuse_overlaps(root: Path, file: str, changes: list[Replacement]) -> None:
    """Raise if edits of a file do not fit together."""
    if overlapping(changes):
        msg = f"an earlier edit changes the same place of {file}"
        raise RefusedError(msg)
    _refuse_nonsense(file, apply(read_source(root, file).text, changes))


def _changed(root: Path, file: str, replacements: list[Replacement]) -> Changed:
    source = read_source(root, file)
    after = apply(source.text, replacements)
    return Changed(file, source.path, source.text, after, source.encoded(after))
