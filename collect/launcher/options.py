"""The command line of `traceq collect` and `python collect`, which is the same."""

from __future__ import annotations

import argparse
from typing import NoReturn

DEFAULT_OUT = "traceq-runs"
CANNOT_WORK = 2

_DESCRIPTION = """\
Run a PyTorch program as it is and record a few of its steps: a trace, the memory
allocator's history, warnings, and the true time of a step, measured with the profiler
off. No line of the program changes. Everything goes into a new folder, which
`traceq lint` and `traceq summary` read.
"""

_EPILOG = """\
examples:
  {prog} -- python train.py --batch 32
  {prog} --label seq_len=512 --then-exit -- torchrun --nproc-per-node 8 train.py
  {prog} --steps-by forward -- python serve.py

what a step is (--steps-by):
  auto       optimizer steps; calls of the outermost module if there are none
  optimizer  from one step of the first optimizer to its next
  forward    from the end of one call of the outermost module to the end of the next
  mark       what the program puts into
             `with torch.profiler.record_function("traceq: step"):`
  time       no steps: --seconds of the program, after --warmup seconds

exit status: that of the program (128 + n if signal n ended it); 0 after --then-exit;
2 if nothing could be recorded of a program that ended well, or the command line is
wrong.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors say where to read on."""

    def error(self, message: str) -> NoReturn:
        self.exit(CANNOT_WORK, f"{self.prog}: {message} (try {self.prog} --help)\n")


def parse(words: list[str], prog: str) -> argparse.Namespace:
    """Return the options, and the program's command line as ``command``."""
    parser = _make_parser(prog)
    if "--" in words:
        place = words.index("--")
        options = parser.parse_args(words[:place])
        if options.command:
            parser.error(f"unexpected {options.command[0]!r} before --")
        options.command = words[place + 1 :]
    else:
        options = parser.parse_args(words)
    if not options.command:
        parser.error(f"give a command to run: {prog} -- python train.py")
    if options.name is not None and not _is_plain(options.name):
        parser.error("--name is the name of a folder, not a path; see --out")
    return options


def _is_plain(name: str) -> bool:
    return bool(name) and not set(name) & set("/\\\0") and not name.startswith(".")


def _make_parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [OPTION...] -- COMMAND [ARGUMENT...]",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    where = parser.add_argument_group("where")
    where.add_argument(
        "--out", default=DEFAULT_OUT, metavar="DIR", help="for runs; %(default)s"
    )
    where.add_argument("--name", help="of the run; else program, date and time")
    where.add_argument(
        "--label",
        action="append",
        default=[],
        type=_label,
        metavar="KEY=VALUE",
        help="kept with the run; may be given several times",
    )
    where.add_argument(
        "--node",
        type=_count,
        metavar="N",
        help="which of several nodes this is; else asked of the environment",
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--steps-by",
        choices=("auto", "optimizer", "forward", "mark", "time"),
        default="auto",
        help="what a step is; %(default)s",
    )
    _add_count(what, "--warmup", 10, "steps to let pass first; %(default)s")
    _add_count(what, "--timed", 20, "steps to time with the profiler off; %(default)s")
    _add_count(what, "--active", 3, "steps to trace; %(default)s")
    _add_count(what, "--memory-steps", 2, "steps of memory history; %(default)s")
    what.add_argument(
        "--seconds",
        type=_seconds,
        default=2.0,
        metavar="S",
        help="to trace with --steps-by time; %(default)s",
    )
    what.add_argument("--no-stack", action="store_true", help="no Python stacks")
    what.add_argument(
        "--no-memory", action="store_true", help="no memory history, no memory events"
    )
    what.add_argument(
        "--max-mb",
        type=_positive,
        default=1000,
        metavar="MB",
        help="of trace, before compression, per rank; %(default)s",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--then-exit", action="store_true", help="stop the program when all is written"
    )
    how.add_argument(
        "--keep-paths", action="store_true", help="keep host name and full paths"
    )
    how.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_count(
    group: argparse._ArgumentGroup, name: str, default: int, text: str
) -> None:
    group.add_argument(name, type=_count, default=default, metavar="N", help=text)


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise ValueError(text)
    return key, value
