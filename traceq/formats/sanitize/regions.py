"""What the program called its regions, without words that may be private."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.model.names import describe_regions

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
    r"|region-\d+(?: (?:forward|backward|optimizer|data loading))?"
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
_WORD = re.compile(r"[A-Za-z0-9]+")
_PLAIN = re.compile(r"[\w \-+>#().,:/]*")
_LONGEST_NUMBER = 4
_PLACEHOLDER = re.compile(r"region-(\d+)")
_IN_WORDS = {"data": "data loading"}
# Shorter texts are in other words by chance.
_SHORTEST_TEXT = 4


class Regions:
    """How to write the texts of one recording's regions.

    A text that torch writes, or that is made of everybody's words, stays. Any other
    is ``region-3``, with the phase that its text names; equal texts are one region.
    """

    def __init__(
        self, paths: Paths, *, keep: bool = False, taken: Iterable[str] = ()
    ) -> None:
        self._paths = paths
        self._keep = keep
        self._names: dict[str, str] = {}
        numbers = [found[1] for text in taken if (found := _PLACEHOLDER.search(text))]
        self._last = max(map(int, numbers), default=0)

    def name(self, text: str) -> str:
        """Return how a region is called."""
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
        self._last += 1
        phase = describe_regions(pl.Series("name", [text]))["phase"].item()
        word = f" {_IN_WORDS.get(phase, phase)}" if phase else ""
        return f"region-{self._last}{word}"


def _is_common(text: str) -> bool:
    return bool(_PLAIN.fullmatch(text)) and all(
        _COMMON.fullmatch(word) or (word.isdigit() and len(word) <= _LONGEST_NUMBER)
        for word in _WORD.findall(text.replace("_", " "))
    )
