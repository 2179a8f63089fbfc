"""The command line of `traceq try` and `python collect try`."""

from __future__ import annotations

import argparse
import json
from typing import Any, NoReturn

from .. import remedies
from . import options

_DESCRIPTION = """\
Run a PyTorch program and try remedies in it: blocks of steps with and without each of
them, in one process, with a control that changes nothing. Says which of them make the
program faster, by how much, and what could not be determined.
"""

_EPILOG = """\
examples:
  {prog} -- python train.py
  {prog} --only tf32,fused_optimizer --minutes 3 -- python train.py
  {prog} --findings lint.json -- python train.py

remedies:
{remedies}

The program is stopped once everything was measured, unless --to-end is set. Remedies
that need a restart run in a scratch copy of the working directory, with loggers such
as Weights & Biases disabled.

exit status: the program's own; 0 if it was stopped; 2 if the program succeeded but
nothing could be measured, or the command line is wrong.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors point to --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(
            options.CANNOT_WORK, f"{self.prog}: {message} (try {self.prog} --help)\n"
        )


def parse(words: list[str], prog: str) -> argparse.Namespace:
    """Return the options of a recording, and those of the trial."""
    parser = _make_parser(prog)
    place = words.index("--") if "--" in words else len(words)
    chosen = parser.parse_args(words[:place])
    command = words[place + 1 :]
    if not command:
        parser.error(f"no command to run, as in: {prog} -- python train.py")
    try:
        recording = options.chosen(_recording_words(chosen), command)
    except ValueError as error:
        parser.error(str(error))
    for key, value in vars(chosen).items():
        setattr(recording, key, value)
    recording.then_exit = not chosen.to_end
    recording.predictions = {}
    if chosen.findings is not None:
        try:
            recording.predictions = predictions(chosen.findings)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            parser.error(f"--findings {chosen.findings}: {error}")
    try:
        recording.remedies = _wanted(chosen.only, recording.predictions, chosen)
    except KeyError as error:
        parser.error(f"no remedy and no rule of a remedy is called {error.args[0]!r}")
    return recording


def _recording_words(chosen: argparse.Namespace) -> list[str]:
    words = ["--out", chosen.out, "--steps-by", chosen.steps_by]
    words += ["--no-captures", "--no-compiled", "--no-overhead", "--no-memory"]
    words += ["--no-oom"]
    words += ["--name", chosen.name] if chosen.name is not None else []
    words += ["--ranks", chosen.ranks] if chosen.ranks is not None else []
    return [*words, *(["--keep-paths"] if chosen.keep_paths else [])]


def completions(words: list[str], incomplete: str) -> list[tuple[str, str]]:
    """Return the completions of the word after these, with their help."""
    return options.completed(_make_parser("traceq try"), words, incomplete)


def predictions(file: str) -> dict[str, dict[str, Any]]:
    """Return the savings that a report of `traceq lint` predicts, by rule.

    The largest comes first; several findings of one rule add up, and those that each
    remedy addresses. Raises ``ValueError``
    if it is no such file.
    """
    with open(file, encoding="utf-8") as stream:
        report = json.load(stream)
    recordings = report.get("recordings") if isinstance(report, dict) else None
    if not isinstance(recordings, list):
        msg = "it is no JSON report of traceq lint"
        raise ValueError(msg)  # noqa: TRY004 - of the file, not of an argument
    result: dict[str, dict[str, Any]] = {}
    for recording in recordings:
        for finding in recording.get("findings", []):
            bound = (recording.get("bound") or {}).get("by")
            entry = result.setdefault(
                finding["code"], {**_nothing(bound), "remedies": {}}
            )
            _add(entry, finding)
            advice = str(finding.get("advice") or "")
            for name in remedies.of_finding(finding["code"], advice):
                _add(entry["remedies"].setdefault(name, _nothing(bound)), finding)
    return dict(sorted(result.items(), key=lambda pair: -pair[1]["ms"]))


def _nothing(bound: Any) -> dict[str, Any]:
    return {"ms": 0.0, "low_ms": 0.0, "high_ms": 0.0, "findings": 0, "bound": bound}


def _add(entry: dict[str, Any], finding: dict[str, Any]) -> None:
    entry["ms"] += _ms(finding.get("saves_ns"))
    entry["low_ms"] += _ms(finding.get("saves_low_ns"))
    entry["high_ms"] += _ms(finding.get("saves_high_ns"))
    entry["findings"] += 1


def _ms(value: Any) -> float:
    return float(value) / 1e6 if isinstance(value, (int, float)) else 0.0


def addressing(predicted: dict[str, Any]) -> list[str]:
    """Return the remedies of findings, in the order of what they are to save."""
    names = [name for entry in predicted.values() for name in entry["remedies"]]
    return list(dict.fromkeys(names))


def _wanted(
    only: str | None, predicted: dict[str, Any], chosen: argparse.Namespace
) -> list[str]:
    """Return the remedies to try, the most valuable first."""
    if only is not None:
        result: list[str] = []
        for word in filter(None, only.replace(" ", "").split(",")):
            result += _named(word)
        return list(dict.fromkeys(result))
    if chosen.findings is not None:
        return addressing(predicted)
    return list(remedies.NAMES)


def _named(word: str) -> list[str]:
    """Return the remedies of a name or a rule; raise ``KeyError`` if there is none."""
    if word in remedies.NAMES or word == remedies.CONTROL:
        return [word]
    result = remedies.of_rule(word.upper())
    if not result:
        raise KeyError(word)
    return result


def _make_parser(prog: str) -> argparse.ArgumentParser:
    listed = "\n".join(
        f"  {name:<24} {remedies.facts(name)['summary']}" for name in remedies.NAMES
    )
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [OPTION...] -- COMMAND [ARGUMENT...]",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(prog=prog, remedies=listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--only",
        metavar="NAMES",
        help="remedies or rules to try, as tf32,LCH003 (default: all that apply)",
    )
    parser.add_argument(
        "--findings",
        metavar="FILE",
        help="report of `traceq lint --format json`: tries what it finds, in its order",
    )
    parser.add_argument(
        "--minutes",
        type=options.above_zero,
        default=10.0,
        metavar="M",
        help="time for all of it (default %(default)g)",
    )
    parser.add_argument(
        "--allow", action="store_true", help="also try remedies that change results"
    )
    parser.add_argument(
        "--no-record", action="store_true", help="record no steps as proof of effect"
    )
    parser.add_argument(
        "--no-restart", action="store_true", help="do not restart the program"
    )
    parser.add_argument(
        "--to-end",
        action="store_true",
        help="let the program run to its end once everything was measured",
    )
    parser.add_argument(
        "--out",
        default=options.DEFAULT_OUT,
        metavar="DIR",
        help="folder for trial folders (default %(default)s)",
    )
    parser.add_argument(
        "--name", help="name of the trial folder; one that exists is continued"
    )
    parser.add_argument(
        "--steps-by",
        choices=("auto", "optimizer", "forward", "mark"),
        default="auto",
        help="what counts as a step, as in collect (default %(default)s)",
    )
    parser.add_argument("--ranks", metavar="RANKS", help=argparse.SUPPRESS)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print try.json to standard output at the end",
    )
    parser.add_argument("--keep-paths", action="store_true", help="store full paths")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    return parser
