"""Region names without words that may be private."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.model.names import USER_ITERATION, describe_regions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.formats.sanitize.paths import Paths

# A name in a program: of a class, a function, an operator.
CODE = r"(?:[\w.~]|::|\(anonymous namespace\)|<[\w:<>,]*>)+"
_COMPILE_IDS = r"\w+=(?:True|False|None|[\d/_]+)"
# Regions that torch, its libraries and traceq name themselves.
_KNOWN = re.compile(
    r"(?:ProfilerStep|traceq: step)#\d+"
    r"|Optimizer\.(?:step|zero_grad)#[\w.]+"
    r"|enumerate\(DataLoader\)#\w+\.__next__"
    r"|(?:nccl|gloo|mpi|ucc|xccl|hccl):\w+"
    r"|(?:DistributedDataParallel|FullyShardedDataParallel)\.forward"
    r"|FSDP::\w+(?: \([\w.]*\))?"
    r"|## Call CompiledFxGraph \w+ ##"
    r"|Torch-Compiled Region: [\d/_]+"
    r"|TorchDynamo Cache Lookup|Pregraph bytecode"
    r"|AOTDispatcher Runtime Wrapper Prologue|<(?:forward|backward) op>"
    rf"|[\w.]+: {_COMPILE_IDS}(?:, {_COMPILE_IDS})*"
    r"|[\w.:<>]+ \(dynamo_timed\)"
    r"|dynamo|entire_(?:frame|backward)_compile|backend_compile|inductor_compile"
    r"|async_compile\.wait|CachingAutotuner\.benchmark_all_configs"
    r"|CUDAGraphNode\.record|cudagraphify"
    # Iterations that engines and trainers mark, as names.ITERATIONS has them.
    r"|step\[[A-Z_]+ bs=\d+(?: toks=\d+)?\]"
    r"|execute_(?:\d+_)?context_\d+\([sqk\d]*\)_generation_\d+\([sqk\d]*\)"
    r"|(?:prefill|decode)\[bs=\d+(?: [a-z]+=\d+)*\]"
    r"|execute_diffusion_\d+_\d+x\d+"
    r"|\[pl\]\[profile\]run_training_batch"
    r"|gpu_model_runner: \w+"
    r"|region-\d+(?: (?:forward|backward|optimizer|data loading))?(?: step)?(?: \d+)?"
)
# Words that are in everybody's training loop.
_COMMON = re.compile(
    r"all|and|attention|backward|batch|bwd|clip|compute|copy|cpu|d2h|data|dataloader"
    r"|decode|device|embedding|epoch|eval|evaluation|forward|fwd|generate|get|gpu|grads?"
    r"|h2d|inference|iter|iteration|load|loader|loading|loss|lr|mlp|model|next|norm|of"
    r"|optim|optimizer|pass|prefill|region|sample|scheduler|step|sync|test|the|timed|to"
    r"|train|training|update|val|validation|wait|warmup|zero",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"[A-Za-z0-9]+")
_PLAIN = re.compile(r"[\w \-+>#().,:/]*")
_LONGEST_NUMBER = 4
_PLACEHOLDER = re.compile(r"region-(\d+)")
_IN_WORDS = {"data": "data loading"}
# Shorter texts are in other words by chance.
_SHORTEST_TEXT = 4


class Regions:
    """Writer of the texts of one recording's regions.

    A text that torch writes, or that is made of everybody's words, stays. Any other
    is ``region-3``, with the phase that its text names; equal texts are one region.
    One that steps are known by is ``region-3 step 17``, with the last number of its
    text; texts that differ in numbers are one region then.
    """

    def __init__(
        self, paths: Paths, *, keep: bool = False, taken: Iterable[str] = ()
    ) -> None:
        self._paths = paths
        self._keep = keep
        self._names: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        numbers = [match[1] for text in taken if (match := _PLACEHOLDER.search(text))]
        self._last = max(map(int, numbers), default=0)

    def name(self, text: str) -> str:
        """Return the sanitized name of a region."""
        if text not in self._names:
            self._names[text] = self._new(text)
        return self._names[text]

    def text(self, text: str) -> str:
        """Return a sentence in which regions are called as ``name`` calls them."""
        others = [
            (old, new)
            for old, new in self._names.items()
            if old != new and len(old) >= _SHORTEST_TEXT and old in text
        ]
        for old, new in sorted(others, key=lambda pair: -len(pair[0])):
            text = text.replace(old, new)
        return self._paths.text(text)

    def _new(self, text: str) -> str:
        if self._keep:
            return self._paths.text(text)
        if _KNOWN.fullmatch(text) or _is_common(text):
            return text
        if re.search(USER_ITERATION, text):
            return self._iteration(text)
        return self._numbered(text)

    def _iteration(self, text: str) -> str:
        *_, number = ["", *_DIGITS.findall(text)]
        kind = _DIGITS.sub("…", text)
        if kind not in self._kinds:
            self._kinds[kind] = f"{self._numbered(kind)} step"
        short = number[-_LONGEST_NUMBER:]
        return f"{self._kinds[kind]} {short}" if short else self._kinds[kind]

    def _numbered(self, text: str) -> str:
        self._last += 1
        phase = describe_regions(pl.Series("name", [text]))["phase"].item()
        word = f" {_IN_WORDS.get(phase, phase)}" if phase else ""
        return f"region-{self._last}{word}"


def _is_common(text: str) -> bool:
    return bool(_PLAIN.fullmatch(text)) and all(
        _COMMON.fullmatch(word) or (word.isdigit() and len(word) <= _LONGEST_NUMBER)
        for word in _WORD.findall(text.replace("_", " "))
    )
