"""The command line of `traceq sweep` and `python collect sweep`, and sweep.toml."""

from __future__ import annotations

import argparse
import importlib
import re
import secrets
from typing import Any, NoReturn

from . import options, sweep_plan

_DESCRIPTION = """\
Run a program over a grid of configurations, each in a run of its own, in random order.
The result is one folder: step times, peak memory and the program's own numbers of each
run, and its trace. `traceq sweep report FOLDER` compares the configurations.
"""

_EPILOG = """\
examples:
  {prog} --grid seq_len=512,1024,2048 --grid attention=dense,sparse -- \\
      python bench.py --seq-len {{seq_len}} --attn {{attention}}
  {prog} --times-only --repeat 3 --tokens '{{batch}}*{{seq_len}}' sweep.toml
  {prog} --resume traceq-runs/attention

All options of collect work, too, as --name, --out, --steps-by, --warmup, --timed and
--then-exit. The program's own numbers come from traceq.record(loss=...), or from what
it prints, with --number.

exit status: 0 if a run was measured; 2 if none was, or the command line is wrong; 130
if it was interrupted, after which the same command or --resume continues.
"""

SAME = ("times_only", "steps_by", "warmup", "timed", "active")
"""Options that a sweep keeps when it is continued."""
_IN_FILE = ("repeat", "times_only", "tokens", "flops", "peak_tflops", "timeout", "seed")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors point to --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(
            options.CANNOT_WORK, f"{self.prog}: {message} (try {self.prog} --help)\n"
        )


def parse(words: list[str], prog: str) -> argparse.Namespace:
    """Return the options of a recording, and those of the sweep."""
    parser = _make_parser(prog)
    place = words.index("--") if "--" in words else len(words)
    own, command = words[:place], words[place + 1 :]
    file = next((word for word in own if word.endswith(".toml")), None)
    chosen, rest = parser.parse_known_args([word for word in own if word != file])
    try:
        if file is not None:
            command = command or _from_file(file, chosen)
        return _complete(chosen, rest, command)
    except ValueError as error:
        parser.error(str(error))


def completions(words: list[str], incomplete: str) -> list[tuple[str, str]]:
    """Return the completions of the word after these, with their help."""
    return options.completed(_make_parser("traceq sweep"), words, incomplete)


def number_name(pattern: str) -> str:
    """Return the name of a number that a pattern finds in the output.

    That is the name of its group, or the word that it begins with. Raises
    ``ValueError`` for a pattern that finds no number.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        msg = f"--number {pattern}: {error}"
        raise ValueError(msg) from None
    named = list(compiled.groupindex)
    word = re.match(r"[A-Za-z_]\w*", pattern)
    if compiled.groups != 1 or not (named or word):
        msg = (
            f"--number {pattern}: write a name and one group, as in 'loss=([0-9.]+)'"
            " or 'at (?P<rate>[0-9.]+)/s'"
        )
        raise ValueError(msg)
    return named[0] if named else word[0] if word else ""


def peak_of(text: str | None, labels: dict[str, str]) -> float | None:
    """Return the GPU's peak of a configuration in TFLOPS: ``bf16=989,fp32=67``."""
    if text is None:
        return None
    peaks = _peaks(text)
    results = [peaks[value] for value in labels.values() if value in peaks]
    return results[0] if results else peaks.get("")


def _complete(
    chosen: argparse.Namespace, rest: list[str], command: list[str]
) -> argparse.Namespace:
    if chosen.resume is not None and not chosen.grid and not command:
        recording = options.chosen(rest, ["resumed"])
    else:
        if not command:
            msg = "no command to run, as in: -- python bench.py --seq-len {seq_len}"
            raise ValueError(msg)
        recording = options.chosen(rest, command)
    for key, value in vars(chosen).items():
        setattr(recording, key, value)
    recording.grid = _grid(chosen.grid)
    recording.words = rest
    if chosen.resume is None:
        check(recording)
    return recording


def check(chosen: Any) -> None:
    """Complete the options of a sweep; raise ``ValueError`` if one is wrong."""
    if not chosen.grid:
        msg = "no --grid, as in: --grid seq_len=512,1024"
        raise ValueError(msg)
    for key in chosen.grid:
        if not sweep_plan.used(chosen.command, key):
            msg = f"the command has no {{{key}}}, so --grid {key} would change nothing"
            raise ValueError(msg)
    for pattern in chosen.number:
        number_name(pattern)
    for name in ("tokens", "flops"):
        if getattr(chosen, name) is not None:
            _check_amounts(name, getattr(chosen, name), chosen.grid)
    if chosen.peak_tflops is not None:
        _peaks(chosen.peak_tflops)
    chosen.repeat = chosen.repeat or 1
    chosen.seed = secrets.randbelow(10**6) if chosen.seed is None else chosen.seed
    if chosen.times_only:
        chosen.active = 0
        chosen.no_memory = chosen.no_captures = chosen.no_compiled = True
    chosen.no_overhead = True  # it would be measured once for each run
    chosen.peak = True


def _check_amounts(name: str, text: str, grid: dict[str, list[str]]) -> None:
    for run in sweep_plan.runs(grid, 1, 0):
        try:
            sweep_plan.amount(text, run.labels)
        except ValueError:  # noqa: PERF203 - it says for which
            msg = f"--{name} {text} is no number for {_written(run.labels)}"
            raise ValueError(msg) from None


def _written(labels: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _peaks(text: str) -> dict[str, float]:
    peaks = {}
    try:
        for part in text.replace(" ", "").split(","):
            name, _, value = part.rpartition("=")
            peaks[name] = float(value)
    except ValueError:
        peaks = {}
    if not peaks or not all(0 < value < float("inf") for value in peaks.values()):
        msg = f"--peak-tflops {text}: write a number, or one by label: bf16=989,fp32=67"
        raise ValueError(msg)
    return peaks


def _grid(entries: list[str]) -> dict[str, list[str]]:
    grid: dict[str, list[str]] = {}
    for entry in entries:
        key, _, values = entry.partition("=")
        listed = [value.strip() for value in values.split(",")]
        if not re.fullmatch(r"\w+", key) or not all(listed):
            msg = f"--grid {entry}: write a name and its values, as in seq_len=512,1024"
            raise ValueError(msg)
        known = grid.setdefault(key, [])
        known += [value for value in dict.fromkeys(listed) if value not in known]
    return grid


def _from_file(file: str, chosen: argparse.Namespace) -> list[str]:
    """Set the options that a file has and the command line has not."""
    content = _read(file)
    unknown = set(content) - {*_IN_FILE, "command", "grid", "number"}
    if unknown:
        msg = f"{file}: there is no option {min(unknown)}"
        raise ValueError(msg)
    grid, command = content.get("grid", {}), content.get("command", [])
    if not isinstance(grid, dict) or not isinstance(command, list):
        msg = f"{file}: command is a list of words, and [grid] has a list for each name"
        raise ValueError(msg)  # noqa: TRY004 - of the file
    for key, values in grid.items():
        listed = values if isinstance(values, list) else [values]
        chosen.grid.append(f"{key}={','.join(map(str, listed))}")
    numbers = content.get("number", [])
    chosen.number += numbers if isinstance(numbers, list) else [numbers]
    for key in _IN_FILE:
        if key in content and getattr(chosen, key) in (None, False):
            setattr(chosen, key, _setting(file, key, content[key]))
    return [str(word) for word in command]


def _setting(file: str, key: str, value: Any) -> Any:
    kinds: dict[str, Any] = {"repeat": int, "seed": int, "timeout": (int, float)}
    kinds["times_only"] = bool
    if isinstance(value, dict):  # the peak by label
        return ",".join(f"{name}={peak}" for name, peak in value.items())
    if key in kinds and not isinstance(value, kinds[key]):
        msg = f"{file}: {key} = {value!r} is of the wrong kind"
        raise ValueError(msg)
    return value if key in kinds else str(value)


def _read(file: str) -> dict[str, Any]:
    for name in ("tomllib", "tomli"):
        try:
            toml = importlib.import_module(name)
            break
        except ImportError:
            continue
    else:
        msg = f"{file}: this Python reads no TOML (3.11 does); use --grid and --"
        raise ValueError(msg)
    try:
        with open(file, "rb") as stream:
            result: dict[str, Any] = toml.load(stream)
    except OSError as error:
        msg = f"{file}: {error.strerror}"
        raise ValueError(msg) from None
    except ValueError as error:
        msg = f"{file}: {error}"
        raise ValueError(msg) from None
    return result


def _make_parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [OPTION...] [FILE.toml] [-- COMMAND [ARGUMENT...]]",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="values of a label, which replace {KEY} in the command; repeatable",
    )
    add("--repeat", type=options.positive, metavar="N", help="runs per configuration")
    add(
        "--times-only",
        action="store_true",
        help="run without the profiler: step times and peak memory, no traces",
    )
    add(
        "--number",
        action="append",
        default=[],
        metavar="PATTERN",
        help="number in the program's output, as 'loss=([0-9.]+)'; repeatable",
    )
    add(
        "--tokens",
        metavar="N",
        help="tokens per step, also of labels: '{batch}*{seq_len}'",
    )
    add("--flops", metavar="N", help="FLOPs per step, also of labels")
    add(
        "--peak-tflops",
        metavar="N",
        help="peak of the GPU for MFU, also by label: bf16=989,fp32=67",
    )
    add("--seed", type=int, metavar="N", help="seed of the order of the runs")
    add("--timeout", type=options.above_zero, metavar="S", help="most seconds of a run")
    add("--resume", metavar="DIR", help="continue the sweep of this folder")
    return parser
