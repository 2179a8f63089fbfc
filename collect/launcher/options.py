"""The command line, which `traceq collect` and `python collect` share."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ..shared import rank_set

DEFAULT_OUT = "traceq-runs"
CANNOT_WORK = 2

_DESCRIPTION = """\
Run an unmodified PyTorch program and record a few of its steps: a profiler trace, the
history of the CUDA memory allocator, warnings, and the step time measured without the
profiler. Everything goes into a new run folder, which `traceq lint` and
`traceq summary` read.
"""

_EPILOG = """\
examples:
  {prog} -- python train.py --batch 32
  {prog} --label seq_len=512 --then-exit -- torchrun --nproc-per-node 8 train.py
  {prog} --steps-by forward -- python serve.py
  srun {prog} --name job --ranks 0,8-15 -- torchrun --nnodes 4 ... train.py

jobs of several ranks: every process of the command records, or those of --ranks, and
all of them trace the same steps. On several nodes, run the command once per node with
--out on a shared disk and the same --name; `traceq ranks` reads the folder.

what a step is (--steps-by):
  auto       optimizer steps; without an optimizer, calls of the outermost module
  optimizer  from one optimizer.step() to the next, of the first optimizer used
  forward    from the end of one call of the outermost module to the end of the next
  mark       whatever the program runs inside
             `with torch.profiler.record_function("traceq: step"):`
  time       no steps: records --seconds of the program after --warmup seconds

exit status: the program's own (128 + n if signal n ended it), whatever --lint finds;
0 after --then-exit; 2 if the program succeeded but nothing could be recorded, or the
command line is wrong. A crash of traceq inside the program does not change it.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors point to --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(CANNOT_WORK, f"{self.prog}: {message} (try {self.prog} --help)\n")


class _Raising(_Parser):
    """A parser for a program that records itself: it must not exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def chosen(words: list[str], command: list[str]) -> argparse.Namespace:
    """Return the options of a program that records itself.

    Raises ``ValueError`` that says what is wrong with them.
    """
    return _parsed(_make_parser("traceq", _Raising), [*words, "--", *command], "traceq")


def parse(words: list[str], prog: str) -> argparse.Namespace:
    """Return the options, and the program's command line as ``command``."""
    return _parsed(_make_parser(prog), words, prog)


def completions(words: list[str], incomplete: str) -> list[tuple[str, str]]:
    """Return the completions of the word after these, with their help.

    Nothing after ``--``, and nothing for a free value: the shell names files there.
    """
    return completed(_make_parser("traceq collect"), words, incomplete)


def completed(
    parser: argparse.ArgumentParser, words: list[str], incomplete: str
) -> list[tuple[str, str]]:
    """Return the completions of the word after these, of a parser's options."""
    if "--" in words:
        return []
    actions = {
        name: action
        for action in parser._actions  # noqa: SLF001 - argparse lists them nowhere else
        for name in action.option_strings
    }
    last = actions.get(words[-1]) if words else None
    if last is not None and last.nargs != 0:
        pairs = [(str(choice), "") for choice in last.choices or ()]
    else:
        pairs = [(name, _help(action)) for name, action in actions.items()]
        pairs.append(("--", "the command to run follows"))
    return [pair for pair in pairs if pair[0].startswith(incomplete)]


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default}


def _parsed(
    parser: argparse.ArgumentParser, words: list[str], prog: str
) -> argparse.Namespace:
    if "--" in words:
        place = words.index("--")
        options = parser.parse_args(words[:place])
        if options.command:
            parser.error(f"unexpected {options.command[0]!r} before --")
        options.command = words[place + 1 :]
    else:
        options = parser.parse_args(words)
    if not options.command:
        parser.error(f"no command to run, as in: {prog} -- python train.py")
    if options.keep_slow and options.then_exit:
        parser.error("--keep-slow watches the whole run: leave --then-exit out")
    if options.name is not None and not _is_plain(options.name):
        parser.error("--name is a folder name, not a path; see --out")
    return options


def _is_plain(name: str) -> bool:
    return bool(name) and not set(name) & set("/\\\0") and not name.startswith(".")


def _make_parser(prog: str, kind: type[_Parser] = _Parser) -> argparse.ArgumentParser:
    parser = kind(
        prog=prog,
        usage=f"{prog} [OPTION...] -- COMMAND [ARGUMENT...]",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    folder = parser.add_argument_group("run folder")
    folder.add_argument(
        "--out",
        default=DEFAULT_OUT,
        metavar="DIR",
        help="folder for run folders (default %(default)s)",
    )
    folder.add_argument(
        "--name", help="name of the run folder (default: program, date, time)"
    )
    folder.add_argument(
        "--label",
        action="append",
        default=[],
        type=_label,
        metavar="KEY=VALUE",
        help="stored with the run; repeatable",
    )
    folder.add_argument(
        "--node",
        type=_count,
        metavar="N",
        help="number of this node, from 0 (default: from the environment)",
    )
    what = parser.add_argument_group("what to record")
    what.add_argument(
        "--steps-by",
        choices=("auto", "optimizer", "forward", "mark", "time"),
        default="auto",
        help="what counts as a step, see below (default %(default)s)",
    )
    what.add_argument(
        "--ranks",
        type=_ranks,
        metavar="RANKS",
        help="ranks of a job that record, as 0,8-15 or 0-63:8 (default: all)",
    )
    _add_count(what, "--warmup", 10, "warm-up steps to skip (default %(default)s)")
    _add_count(
        what, "--timed", 20, "steps to time without the profiler (default %(default)s)"
    )
    _add_count(what, "--active", 3, "steps to trace (default %(default)s)")
    _add_count(
        what, "--memory-steps", 2, "steps of memory history (default %(default)s)"
    )
    what.add_argument(
        "--seconds",
        type=above_zero,
        default=2.0,
        metavar="S",
        help="length of the trace with --steps-by time (default %(default)s)",
    )
    what.add_argument("--no-stack", action="store_true", help="record no Python stacks")
    what.add_argument(
        "--no-source",
        action="store_true",
        help="copy none of the program's own source files that the trace names",
    )
    what.add_argument(
        "--no-compiled",
        action="store_true",
        help="keep none of the graphs, code and messages that torch.compile makes",
    )
    what.add_argument(
        "--no-captures",
        action="store_true",
        help="do not profile the captures of CUDA graphs",
    )
    what.add_argument(
        "--no-memory",
        action="store_true",
        help="record no memory history and no memory events",
    )
    what.add_argument(
        "--no-oom",
        action="store_true",
        help="keep no memory history from the start, for when memory runs out",
    )
    what.add_argument(
        "--keep-slow",
        type=_factor,
        metavar="FACTOR",
        help="watch the whole run, and keep steps this many times as long as the"
        " running median, as 1.5x, with what happened in them",
    )
    what.add_argument(
        "--max-mb",
        type=positive,
        default=1000,
        metavar="MB",
        help="largest trace per rank, before compression (default %(default)s)",
    )
    how = parser.add_argument_group("how to run")
    how.add_argument(
        "--then-exit",
        action="store_true",
        help="stop the program once everything is recorded",
    )
    how.add_argument(
        "--no-overhead",
        action="store_true",
        help="do not measure what recording costs, which takes seconds at the end",
    )
    how.add_argument(
        "--lint", action="store_true", help="lint the run when the program has ended"
    )
    how.add_argument(
        "--report",
        action="store_true",
        help="write report.html into the run folder when the program has ended",
    )
    how.add_argument(
        "--keep-paths", action="store_true", help="store host name and full paths"
    )
    how.add_argument("--quiet", action="store_true", help="print no progress")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_count(
    group: argparse._ArgumentGroup, name: str, default: int, text: str
) -> None:
    group.add_argument(name, type=_count, default=default, metavar="N", help=text)


def _count(text: str) -> int:
    if not text.isdecimal():
        msg = f"{text!r} is no whole number"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _ranks(text: str) -> str:
    try:
        rank_set.parse(text)
    except ValueError:
        msg = f"{text!r} is no list of ranks, as 0,8-15"
        raise argparse.ArgumentTypeError(msg) from None
    return text.replace(" ", "")


def positive(text: str) -> int:
    """Return a whole number above zero; the parser reports any other text."""
    if not text.isdecimal() or not int(text):
        msg = f"{text!r} is no whole number above 0"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def above_zero(text: str) -> float:
    """Return a finite number above zero; the parser reports any other text."""
    return _above(0.0, text, text)


def _factor(text: str) -> float:
    return _above(1.0, text.rstrip("xX"), text)


def _above(least: float, number: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = least
    if not least < value < float("inf"):
        msg = f"{text!r} is no number above {least:g}"
        raise argparse.ArgumentTypeError(msg)
    return value


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        msg = f"{text!r} is no KEY=VALUE"
        raise argparse.ArgumentTypeError(msg)
    return key, value
