"""`traceq fix`: findings as edits of the program's source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.cli import output
from traceq.cli.completion import codes
from traceq.cli.options import ConfigFile, NoCache, NoPacks, Packs, Root
from traceq.common.safe_text import printable
from traceq.common.words import counted
from traceq.errors import UsageError

if TYPE_CHECKING:
    from traceq.api.lint import LintResult
    from traceq.fix.edit import Proposal
    from traceq.fix.propose import Changed

_REFUSED = 1


def command(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder or a trace; the newest run in traceq-runs by default.",
            metavar="RUN",
        ),
    ] = None,
    *,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Edit only these: codes or names of rules, or names of edits.",
            metavar="RULE",
            autocompletion=codes,
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--diff", help="Print the edits as a diff: the default.")
    ] = False,
    write: Annotated[
        bool,
        typer.Option("--write", help="Edit the files, which needs a clean git tree."),
    ] = False,
    packs: Packs = None,
    no_packs: NoPacks = False,
    config: ConfigFile = None,
    root: Root = None,
    no_cache: NoCache = False,
) -> None:
    """Edit the lines that findings name, where the fix needs no decision.

    The program is parsed and never run. An edit is refused, with the reason, where the
    code is not what was recorded or the recording does not prove it. Exits 0 if no
    edit was refused, 1 if one was, 2 if traceq could not do its work.
    """
    from traceq.api.lint import lint
    from traceq.fix.diff import render
    from traceq.fix.propose import combine, require_libcst

    if show and write:
        msg = "--diff shows the edits and --write makes them: choose one"
        raise UsageError(msg)
    require_libcst()
    result = lint(
        path or _newest(),
        rules=packs,
        packs=not no_packs,
        config=config,
        root=root,
        tables=False,
        cache=not no_cache,
    )
    if result.repository is None:
        msg = "the source is not in a git repository: --root DIR says where it is"
        raise UsageError(msg)
    wanted = _wanted(result, result.proposals(), only)
    proposals, files = combine(wanted, result.repository)
    if write:
        _write(result.repository, files, proposals)
    else:
        _print(render(files))
    refused = [proposal for proposal in proposals if proposal.refusal]
    for proposal in refused:
        output.say(f"{proposal.code} not edited: {proposal.refusal}")
    if not proposals:
        output.say("no finding has an edit that needs no decision")
    if refused:
        sys.exit(_REFUSED)


def _newest() -> Path:
    from traceq.inputs.discovery import newest_run

    run = newest_run()
    output.say(f"edits of the newest run, {run}")
    return run


def _wanted(
    result: LintResult, by_recording: list[list[Proposal]], only: list[str] | None
) -> list[Proposal]:
    """Return the proposals of the findings that were asked for, worst first.

    Without names these are all but the minor ones.
    """
    pairs = [
        (finding, proposal)
        for outcome, proposals in zip(result.report.outcomes, by_recording, strict=True)
        for finding, proposal in zip(outcome.findings, proposals, strict=True)
    ]
    if not only:
        return [
            proposal
            for finding, proposal in pairs
            if proposal.edit and not finding.minor
        ]
    names = [name for text in only for name in text.split(",") if name]
    chosen: list[Proposal] = []
    for name in names:
        matching = [
            proposal
            for finding, proposal in pairs
            if name in {finding.name, proposal.edit} or finding.code.startswith(name)
        ]
        if not matching:
            msg = f"--only {name}: no finding has this code, name or edit"
            raise UsageError(msg)
        with_edit = [proposal for proposal in matching if proposal.edit]
        if not with_edit:
            msg = (
                f"--only {name}: its fix needs a decision; traceq lint shows the advice"
            )
            raise UsageError(msg)
        chosen += [proposal for proposal in with_edit if proposal not in chosen]
    return chosen


def _write(root: Path, files: list[Changed], proposals: list[Proposal]) -> None:
    """Write the files, if git can undo it."""
    from traceq.common.atomic_files import write_files
    from traceq.common.git_repository import changed_files, is_tracked

    changed = changed_files(root)
    if changed is None:
        msg = f"--write needs git to undo its edits, and {root} is in no repository"
        raise UsageError(msg)
    if changed:
        msg = f"--write needs a clean git tree: commit or stash {changed[0]} first"
        raise UsageError(msg)
    for edited in files:
        if not is_tracked(root.resolve(), edited.path):
            msg = f"--write needs git to undo its edits, and {edited.file} is not in it"
            raise UsageError(msg)
    write_files({file.path: file.content for file in files})
    for edited in files:
        edits = [
            f"{made.code} {made.edit}"
            for made in proposals
            if any(change.file == edited.file for change in made.replacements)
        ]
        count = counted(len(edits), "edit")
        output.write(printable(f"{edited.file}: {count}, {', '.join(edits)}") + "\n")


def _print(text: str) -> None:
    """Print a diff: as it is for git, escaped for a terminal."""
    if sys.stdout.isatty():
        text = "".join(printable(line) + "\n" for line in text.split("\n")[:-1])
    output.write(text)
