"""Graphs and generated code of torch.compile, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

TRITON = "triton"
EXTERN = "extern"
CPP = "cpp"


class Frame(NamedTuple):
    """A function of the stack at which an op was called."""

    file: str
    first_line: int | None
    """The first line of the function."""
    function: str
    line: int


class Module(NamedTuple):
    """An ``nn.Module`` around an op."""

    key: str
    """The same for the same module in all graphs of a process."""
    path: str
    name: str
    """Its class."""


class Size(NamedTuple):
    """A tensor's shape as text, symbols included, and its dtype."""

    shape: tuple[str, ...]
    dtype: str


@dataclass(frozen=True)
class Node:
    """An op of the program, as Dynamo saw it."""

    name: str
    op: str
    """``placeholder``, ``call_function``, …"""
    target: str
    inputs: tuple[str, ...]
    frames: tuple[Frame, ...]
    """Outermost first."""
    modules: tuple[Module, ...]
    """Outermost first."""
    size: Size | None


@dataclass(frozen=True)
class LoweredNode:
    """An op of the graph that inductor generated its code from."""

    name: str
    target: str
    """As ``aten.mm``."""
    inputs: tuple[str, ...]
    frame: Frame | None
    """The innermost function; of a backward op, that of its forward."""
    size: Size | None


@dataclass(frozen=True)
class KernelCall:
    """A kernel or an operator that generated code runs, in its order."""

    kind: str
    """TRITON, EXTERN or CPP."""
    name: str
    """As a trace names it: the kernel's name, or ``aten::mm``."""
    nodes: tuple[str, ...]
    """The ops that it computes, or takes as they are, in the order of the graph."""
    aten: tuple[str, ...]
    """The ops that these were lowered to, as ``aten.mm``; each once."""
    reads: tuple[int, ...] = ()
    """Numbers of the graph's inputs among its arguments, from 1."""
    handle: str = ""
    """The name and number by which torch's provenance knows it, as ``kernel:3``."""
    of_lowered: bool = False
    """True if ``nodes`` are those of ``GeneratedCode.lowered``, by provenance."""


@dataclass(frozen=True)
class GeneratedCode:
    """One output file of inductor: a graph's forward, or its backward."""

    graph: str
    """The graph's id, as 0/0; empty where it is not known."""
    key: str
    """The KEY in the trace's region ``## Call CompiledFxGraph KEY ##``."""
    name: str
    """The file's name without its ending."""
    backward: bool
    cudagraphs_disabled: str | None
    calls: tuple[KernelCall, ...]
    hashes: Mapping[str, str] = field(default_factory=dict)
    """The file of each Triton kernel, without its ending, by the kernel's name."""
    lowered: Mapping[str, LoweredNode] = field(default_factory=dict)
    """Nodes of the graph by name, in its order."""
    outputs: tuple[str, ...] = ()
    """Outputs of the graph, in order; of a backward, the gradients of its inputs."""
    made_of: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Of each kernel, as first used: the lowered nodes of each node in ``nodes``."""


@dataclass(frozen=True)
class CompiledCode:
    """All that is known of the compiled code of a process."""

    graphs: Mapping[str, tuple[Node, ...]]
    """Nodes in order, by the graph's id."""
    code: tuple[GeneratedCode, ...]
