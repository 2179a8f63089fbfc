"""Last words of a trial: the table, remedies beside it, and the next command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import outcomes, trial_folder
from .screen import Screen

_NOTHING_TO_TRY = (
    "no finding of the program has a remedy; --only tries others: see --help"
)


def say(
    screen: Screen, report: dict[str, Any], shown: Path, *, linted: bool, fixes: bool
) -> None:
    """Print what a trial has measured.

    ``shown`` is the trial's folder as the user knows it, ``linted`` says whether its
    recording was, and ``fixes`` whether there is a `traceq fix` to go on with.
    """
    if report["traceq_error"]:
        screen.say(f"traceq crashed: {report['traceq_error']}")
    for line in outcomes.table(report):
        screen.line(line)
    if linted and not report["remedies"]:
        screen.say(_NOTHING_TO_TRY)
    for words in (*outcomes.left_out(report), *(report.get("notes") or ())):
        screen.say(words)
    if report["state"] == "out of time":
        screen.say(f"--minutes {report['minutes']:g} were over")
    if fixes and (codes := outcomes.rules_to_fix(report)):
        run = shown / trial_folder.PLAIN
        screen.line(f"Next: traceq fix {run} --only {','.join(codes)} --diff")
    screen.say(f"see {shown / 'try.json'}")
