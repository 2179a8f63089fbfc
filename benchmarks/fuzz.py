"""Mutated inputs through the commands: no crash, no hang, no flood of memory.

    python benchmarks/fuzz.py --count 20000 --seed 1

Makes traces, snapshots, logs, configurations, run folders, fixtures and packs of small
real ones, and runs a command on each in a worker, which is replaced when it dies. An
input fails where the command ends with a traceback, an internal error, a rule that
crashed or a status above 2, takes more than 10 s of a processor, or more memory than
10 times the input and 300 MB beyond what the worker had before, or where what it wrote
is no JSON, SARIF or HTML, as its format should be. The input number N of
a seed is always the same: ``--seed SEED --only N`` makes it again, and ``--keep
FOLDER`` keeps the inputs that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mutate
from fuzz_seeds import PACK, RUN, Seeds, read_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess


_SECONDS = 10.0
# The limit is on the processor's time, as others may keep the machine busy.
_WAIT = 6
_START_SECONDS = 120.0
_FACTOR = 10
_BEYOND = 300 * 10**6
# The kernel's limit is on addresses, of which threads reserve many and use few.
_ADDRESSES = 6 << 30
_INPUTS_OF_A_WORKER = 500
_OWN_PACK = "_traceq_pack0"
_ASSIGNS_TO_POLARS = re.compile(
    rb"\bpl\s*\.\s*\w+\s*(:[^=\n]*|[-+*/%|&^]|,[^=\n(]*)?=(?!=)|\b(for|as|del)\s+pl\s*\."
)
_WORST_STATUS = 2
_FAULT = re.compile(
    r"internal error|rules? crashed|Traceback \(most recent", re.IGNORECASE
)


class Result(NamedTuple):
    """How a command took an input; ``fault`` is empty where it did as it should."""

    number: int
    kind: str
    command: str
    status: int
    seconds: float
    bytes: int
    memory: int
    fault: str


class Made(NamedTuple):
    """An input on disk, and a command line that reads it."""

    kind: str
    arguments: list[str]


# ---- inputs


def _trace(rng: random.Random, seeds: Seeds, folder: Path) -> Made:
    file = _write_trace(rng, seeds, folder / "trace.json")
    plain = folder / "plain.json"
    plain.write_bytes(json.dumps(rng.choice(seeds.traces)).encode())
    both = [str(plain), str(file)]
    rng.shuffle(both)
    one = [str(file), "--no-cache"]
    small = rng.choice(("", ".gz"))
    commands = (
        ["annotate", *one, "-o", str(folder / f"annotated.json{small}")],
        ["annotate", *one, "-o", str(folder / "annotated.json"), "--steps", "1"],
        ["report", *one, "-o", str(folder / "page.html")],
        ["report", *both, "--no-cache", "-o", str(folder / "page.html")],
        ["ranks", *both, "--no-cache", "--format", rng.choice(("text", "json"))],
        ["open", *one, "--no-browser"],
        ["open", str(file), "--as-is", "--no-browser"],
        ["regions", *one],
        ["roofline", *one],
        ["summary", *one, "--format", "json"],
        ["lint", *one, "--format", rng.choice(("full", "json", "markdown", "sarif"))],
        ["lint", *one],
        ["summary", *one],
        ["summary", *one, "--critical-path"],
        ["summary", *one, "--host"],
        ["diff", *both, "--no-cache"],
        ["memory", *one],
        ["shrink", str(file), "-o", str(folder / "small")],
    )
    return Made("trace", rng.choice(commands))


def _write_trace(rng: random.Random, seeds: Seeds, file: Path) -> Path:
    content = mutate.json_of(rng, rng.choice(seeds.traces))
    file.write_bytes(mutate.packed(rng, content) if rng.random() < 0.2 else content)
    return file


def _snapshot(rng: random.Random, seeds: Seeds, folder: Path) -> Made:
    file = _write_snapshot(rng, seeds, folder / "snapshot.pickle")
    plain = folder / "plain.pickle"
    plain.write_bytes(pickle.dumps(rng.choice(seeds.snapshots)))
    commands = (
        ["memory", str(file)],
        ["memory", str(file), "--format", "html", "-o", str(folder / "page.html")],
        ["lint", str(file)],
        ["diff", str(plain), str(file)],
        ["memory", str(plain), str(file)],
    )
    return Made("snapshot", [*rng.choice(commands), "--no-cache"])


def _write_snapshot(rng: random.Random, seeds: Seeds, file: Path) -> Path:
    content = mutate.pickle_of(rng, rng.choice(seeds.snapshots))
    file.write_bytes(mutate.packed(rng, content) if rng.random() < 0.2 else content)
    return file


def _log(rng: random.Random, seeds: Seeds, folder: Path) -> Made:
    file = folder / "train.log"
    change = rng.choice((mutate.lines_of, mutate.bytes_of))
    content = change(rng, rng.choice(seeds.logs))
    file.write_bytes(mutate.packed(rng, content) if rng.random() < 0.1 else content)
    return Made("log", ["lint", str(file), "--no-cache"])


def _config(rng: random.Random, seeds: Seeds, folder: Path) -> Made:
    file = folder / "traceq.toml"
    file.write_bytes(mutate.text_of(rng, rng.choice(seeds.configs)))
    log = folder / "train.log"
    log.write_bytes(seeds.logs[0])
    return Made("config", ["lint", str(log), "--config", str(file), "--no-cache"])


def _run_folder(rng: random.Random, seeds: Seeds, folder: Path) -> Made:
    run = folder / "run"
    run.mkdir()
    # One part of it is mutated: of a run in which all is bad little is looked at.
    part = rng.choice(("manifest", "log", "trace", "snapshot", "missing"))
    (run / "run.json").write_bytes(json.dumps(RUN).encode())
    (run / "stderr.log").write_bytes(seeds.logs[0])
    for rank in (0, 1):
        trace, snapshot = rng.choice(seeds.traces), rng.choice(seeds.snapshots)
        (run / f"rank-{rank}.trace.json").write_bytes(json.dumps(trace).encode())
        memory = run / f"rank-{rank}.snapshot.pickle"
        memory.write_bytes(pickle.dumps(snapshot))
    if part == "manifest":
        (run / "run.json").write_bytes(mutate.json_of(rng, RUN))
    elif part == "log":
        (run / "stderr.log").write_bytes(mutate.lines_of(rng, rng.choice(seeds.logs)))
    elif part == "trace":
        _write_trace(rng, seeds, run / "rank-1.trace.json")
    elif part == "snapshot":
        _write_snapshot(rng, seeds, run / "rank-1.snapshot.pickle")
    else:
        rng.choice(sorted(run.iterdir())).unlink()
    command = rng.choice(("lint", "summary", "memory", "diff"))
    other = folder / "plain.json"
    other.write_bytes(json.dumps(seeds.traces[0]).encode())
    paths = [str(other), str(run)] if command == "diff" else [str(run)]
    return Made("run folder", [command, *paths, "--no-cache"])


def _fixture(rng: random.Random, seeds: Seeds, folder: Path) -> Made:
    fixture = folder / "fixture"
    fixture.mkdir()
    at = rng.randrange(len(seeds.findings))
    files: dict[str, bytes] = {
        "trace.json": json.dumps(seeds.traces[at]).encode(),
        "findings.json": seeds.findings[at],
        "traceq.toml": seeds.configs[at + 1],
        "origin.toml": seeds.origin,
    }
    for name in rng.sample(sorted(files), rng.randint(1, 3)):
        files[name] = mutate.text_of(rng, files[name])
    packed = gzip.compress(files.pop("trace.json"), 1)
    for name, content in {**files, "trace.json.gz": packed}.items():
        if rng.random() < 0.95:
            (fixture / name).write_bytes(content)
    update = ["--update"] if rng.random() < 0.2 else []
    return Made("fixture", ["check", str(fixture), "--no-cache", *update])


def _pack(rng: random.Random, seeds: Seeds, folder: Path) -> Made:
    rules = folder / "pack"
    rules.mkdir()
    # A pack is code: one that assigns to polars would break every later input.
    code = mutate.text_of(rng, PACK.encode())
    while _ASSIGNS_TO_POLARS.search(code):
        code = mutate.text_of(rng, PACK.encode())
    (rules / "rule.py").write_bytes(code)
    plain = folder / "plain.json"
    plain.write_bytes(json.dumps(seeds.traces[0]).encode())
    lint = ["lint", str(plain), "--no-cache", "--select", "DYN001"]
    command = rng.choice((lint, ["rules"]))
    return Made("pack", [*command, "--rules", str(rules)])


_MAKERS: tuple[Callable[[random.Random, Seeds, Path], Made], ...] = (
    *(_trace, _trace, _trace, _trace, _snapshot, _snapshot, _snapshot, _log, _log),
    *(_config, _config, _run_folder, _fixture, _pack, _pack),
)


def _make(seed: int, number: int, seeds: Seeds, folder: Path) -> Made:
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - the same again each time
    return rng.choice(_MAKERS)(rng, seeds, folder)


# ---- the worker


def _work(seed: int, folder: Path, numbers: Connection) -> None:
    """Run inputs until no more come; send what became of each."""
    from traceq.cli import main  # noqa: PLC0415 - by the worker, not by its parent

    os.environ["TRACEQ_TRACEBACK"] = "1"
    os.environ["TRACEQ_CACHE"] = str(folder / "cache")
    seeds = read_seeds()
    _let_open_end()
    _warm(seeds, folder, main)
    numbers.send("ready")
    while (number := numbers.recv()) is not None:
        place = folder / "input"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        made = _make(seed, number, seeds, place)
        numbers.send(made)
        numbers.send(_result(number, made, place, main))


def _let_open_end() -> None:
    """Let `traceq open` serve on any port, and not wait for a page to fetch."""
    from traceq.annotate import serving  # noqa: PLC0415 - by the worker
    from traceq.cli import open as opening  # noqa: PLC0415 - as above

    opening._PATIENCE_S = 0.0  # noqa: SLF001
    serving.server.__defaults__ = (0,)


def _warm(seeds: Seeds, folder: Path, main: Callable[[], None]) -> None:
    """Let the worker import and allocate what every command needs."""
    place = folder / "warm"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "trace.json").write_bytes(json.dumps(seeds.traces[0]).encode())
    for command in ("lint", "summary"):
        _call([command, str(place / "trace.json"), "--no-cache"], main)
    used = _memory("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESSES, used + _ADDRESSES))


def _result(number: int, made: Made, place: Path, main: Callable[[], None]) -> Result:
    size = sum(each.stat().st_size for each in place.rglob("*") if each.is_file())
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, start = _memory("VmRSS"), time.process_time()
    status, out, err = _call(made.arguments, main)
    seconds = time.process_time() - start
    more = max(_memory("VmHWM") - before, 0)
    fault = _fault(made, status, out + err, seconds, more - _FACTOR * size)
    if not fault and status < _WORST_STATUS:
        fault = _invalid(made.arguments, out, place)
    return Result(
        number, made.kind, made.arguments[0], status, seconds, size, more, fault
    )


def _memory(what: str) -> int:
    """Return a figure of this process's memory, in bytes."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    match = re.search(rf"{what}:\s*(\d+) kB", text)
    return int(match[1]) * 1024 if match else 0


def _invalid(arguments: list[str], out: str, place: Path) -> str:
    """Return why what a command wrote is not what its format says, or nothing."""
    command, form = arguments[0], ""
    if "--format" in arguments:
        form = arguments[arguments.index("--format") + 1]
    texts: dict[str, str | bytes] = {}
    if form in ("json", "sarif"):
        texts["output"] = out
    for file in place.rglob("annotated.json*"):
        texts[file.name] = file.read_bytes()
    if command == "shrink":
        texts |= {path.name: path.read_bytes() for path in place.glob("small/*.json*")}
    for name, text in texts.items():
        try:
            plain = gzip.decompress(text) if name.endswith(".gz") else text  # type: ignore[arg-type]
            content = json.loads(plain, parse_constant=_refuse)
        except (ValueError, OSError, EOFError) as error:
            return f"{name} is no JSON: {error}"
        if form == "sarif" and content.get("version") != "2.1.0":
            return f"{name} is no SARIF"
    for page in place.rglob("page.html"):
        if why := _unclosed(page.read_text(encoding="utf-8")):
            return f"{page.name} is no HTML: {why}"
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _unclosed(page: str) -> str:
    """Return which elements of a page are not closed, or nothing."""
    if not page.lstrip().lower().startswith("<!doctype html>"):
        return "it does not begin as one"
    tags = _Tags()
    tags.feed(page)
    tags.close()
    odd = {name: n for name, n in tags.open.items() if n}
    return f"elements that are not closed: {odd}" if odd else ""


class _Tags(HTMLParser):
    """Counts elements that have to be closed."""

    counted = ("html", "head", "body", "script", "style", "table", "svg", "section")

    def __init__(self) -> None:
        super().__init__()
        self.open: Counter[str] = Counter()

    def handle_starttag(self, tag: str, _: object) -> None:
        self.open[tag] += tag in self.counted

    def handle_endtag(self, tag: str) -> None:
        self.open[tag] -= tag in self.counted


def _call(arguments: list[str], main: Callable[[], None]) -> tuple[int, str, str]:
    """Return the exit status of a command, and what it wrote to stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["traceq", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(bool(end.code))
        except BaseException:  # noqa: BLE001 - that is what is looked for
            return 3, out.getvalue(), err.getvalue() + traceback.format_exc()
        else:
            status = 0
    return status, out.getvalue(), err.getvalue()


def _fault(made: Made, status: int, text: str, seconds: float, beyond: int) -> str:
    """Return what is wrong with how a command ended, or nothing."""
    if status > _WORST_STATUS:
        return f"exit {status}: {text[-2000:]}"
    # A pack's own rule may crash; that is said, and no fault of traceq.
    match = _FAULT.search(text)
    if match and not (made.kind == "pack" and "crashed" in match[0]):
        return f"{match[0]}: {text[-2000:]}"
    if beyond > _BEYOND:
        return f"too much memory: {beyond / 1e6:,.0f} MB beyond {_FACTOR} × the input"
    return f"slow: {seconds:.1f} s" if seconds > _SECONDS else ""


# ---- the parent


@dataclass
class _Worker:
    """A process that runs inputs, started when it is first needed."""

    seed: int
    folder: Path
    process: BaseProcess | None = None
    pipe: Any = None
    left: int = 0
    started: int = field(default=0)

    def run(self, number: int) -> Result:
        """Run one input; a worker that hangs or dies is replaced."""
        if self.process is None or self.left == 0:
            self.start()
        self.left -= 1
        self.pipe.send(number)
        made, start = Made("unknown", ["unknown"]), time.perf_counter()
        try:
            made = self.pipe.recv()
            if not self._ends():
                return self._lost(number, made, start, f"no end in {_SECONDS:.0f} s")
            result: Result = self.pipe.recv()
        except (EOFError, ConnectionError):
            self._join()
            code = self.process.exitcode if self.process else None
            return self._lost(number, made, start, f"the process died: {code}")
        return result

    def _ends(self) -> bool:
        """Return whether the worker answers in time: its own, or far more of ours."""
        used, start = self._used(), time.perf_counter()
        while not self.pipe.poll(0.5):
            waited = time.perf_counter() - start
            if self._used() - used > _SECONDS or waited > _WAIT * _SECONDS:
                return False
        return True

    def _used(self) -> float:
        """Return the processor's time that the worker has used, in seconds."""
        pid = self.process.pid if self.process else None
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def start(self) -> None:
        self.stop()
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(
            target=_work, args=(self.seed, self.folder, other), daemon=True
        )
        self.process.start()
        other.close()
        self.left, self.started = _INPUTS_OF_A_WORKER, self.started + 1
        if not self.pipe.poll(_START_SECONDS):
            msg = "the worker does not start"
            raise SystemExit(msg)
        self.pipe.recv()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._join()
            self.process = None

    def _join(self) -> None:
        if self.process is not None:
            self.process.join()

    def _lost(self, number: int, made: Made, start: float, fault: str) -> Result:
        self.stop()
        seconds = time.perf_counter() - start
        return Result(number, made.kind, made.arguments[0], -1, seconds, 0, 0, fault)


def _results(
    options: argparse.Namespace, worker: _Worker, place: Path
) -> Iterator[Result]:
    end = time.monotonic() + 60 * options.minutes
    for number in [options.only] if options.only is not None else range(options.count):
        if time.monotonic() > end:
            return
        result = worker.run(number)
        if result.fault:
            print(f"input {number} of seed {options.seed}, {result.kind},", end=" ")
            print(f"{result.command}: {result.fault}\n", flush=True)
            if options.keep:
                shutil.copytree(
                    place, options.keep / f"{options.seed}-{number}", dirs_exist_ok=True
                )
        yield result


def _print_figures(results: list[Result], seed: int) -> None:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[f"{result.kind}, {result.command}"].append(result)
    print(f"{'':24}{'inputs':>7}{'read':>7}{'failed':>7}{'most s':>8}{'most MB':>8}")
    for name, group in [*sorted(groups.items()), ("all", results)]:
        read = sum(0 <= each.status < _WORST_STATUS for each in group)
        failed = sum(bool(each.fault) for each in group)
        longest = max(each.seconds for each in group)
        memory = max(each.memory for each in group) / 1e6
        print(f"{name:24}{len(group):7,}{read:7,}{failed:7,}", end="")
        print(f"{longest:8.2f}{memory:8.0f}")
    statuses = sorted(Counter(each.status for each in results).items())
    print(f"seed {seed}; exits", ", ".join(f"{key}: {n:,}" for key, n in statuses))


def main() -> None:
    """Run the inputs that were asked for; exit 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run only this input")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="stop then")
    parser.add_argument("--keep", type=Path, help="keep inputs that fail here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        worker = _Worker(options.seed, Path(folder))
        try:
            results = list(_results(options, worker, Path(folder) / "input"))
        finally:
            worker.stop()
    if results:
        _print_figures(results, options.seed)
    sys.exit(any(each.fault for each in results))


if __name__ == "__main__":
    main()
