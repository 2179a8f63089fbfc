"""torch.compile of the outermost module."""

from __future__ import annotations

from typing import Any

import torch

from .base import ROUNDING, Base, Patches, has


class Remedy(Base):
    """The outermost module compiled in place: calls go to compiled code or not."""

    name = "compile"
    rules: tuple[str, ...] = ("LCH001", "LCH002", "HST003", "NRM002")
    advice = "compile"
    summary = "torch.compile of the outermost module"
    kind = ROUNDING
    edit = "model.compile()"
    first = 12
    settle = 3
    slow = True
    mode: Any = None

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any]] = []
        self._patches = Patches()
        self._graphs = 0

    def why_not(self, program: Any) -> str:
        module = program.outermost
        if module is None:
            return "no module is called"
        if not hasattr(module, "_compiled_call_impl"):
            return "this torch cannot compile a module in place"
        held = module._compiled_call_impl  # noqa: SLF001
        if held is not None or hasattr(module, "_orig_mod"):
            return "the module is compiled already"
        if has(program.names or {}, "CompiledFunction", "Torch-Compiled"):
            return "the program compiles already"
        return ""

    def apply(self, program: Any) -> None:
        kind: Any = torch.distributions.Distribution
        checks = kind._validate_args  # noqa: SLF001 - which the next import turns off
        import torch._dynamo as dynamo  # noqa: PLC0415 - takes seconds

        self._patches.call(lambda: kind.set_default_validate_args(checks))
        module = program.outermost
        if not self._calls:
            call = torch.compile(module._call_impl, mode=self.mode)  # noqa: SLF001
            self._calls.append((module, call))
        self._patches.set(dynamo.config, "suppress_errors", value=True)
        for one, call in self._calls:
            self._patches.set(one, "_compiled_call_impl", call)
        self.used += 1

    def undo(self, program: Any) -> None:  # noqa: ARG002
        self._patches.undo()
        self._graphs = max(self._graphs, _graphs())

    def idle(self) -> str:
        return "" if _graphs() or self._graphs else "torch.compile made no graph"


def _graphs() -> int:
    from torch._dynamo import utils  # noqa: PLC0415 - imported by then

    return int(utils.counters["stats"]["unique_graphs"])
