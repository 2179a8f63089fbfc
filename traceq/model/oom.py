"""Out-of-memory error of a process, as ``traceq collect`` wrote it."""

from __future__ import annotations

from msgspec import Struct


class Line(Struct, frozen=True):
    """A line of the program."""

    file: str
    line: int
    function: str


class OpenModule(Struct, frozen=True):
    """A module that was running."""

    path: str
    """Its name in the outermost module, as layers.3.mlp; empty for that one."""
    kind: str
    """Its class."""
    training: bool
    input_bytes: int
    position: int | None
    """Its number among its siblings, as 3 of layers.3."""
    siblings: int | None


class Layers(Struct, frozen=True):
    """The repeated submodules of a model."""

    path: str
    kind: str
    count: int


class Optimizer(Struct, frozen=True):
    """An optimizer that the program holds."""

    kind: str
    parameter_bytes: int
    state_bytes: int
    fused: bool


class OutOfMemory(Struct, frozen=True):
    """The last failed allocation of a process: what the program was doing then."""

    step: int
    """Steps that had ended."""
    requested: int
    """Bytes of the allocation, as the allocator rounds it."""
    device_bytes: int
    limit: int | None
    """Limit of the process on the device, in bytes; None if it has none."""
    phase: str
    """``forward``, ``backward``, ``optimizer``, or empty."""
    stack: tuple[Line, ...]
    """The program's lines, the innermost first; in a backward those that called it."""
    modules: tuple[OpenModule, ...]
    """The modules that ran, outermost first."""
    node: str
    """The node of autograd that ran, as MmBackward0; empty outside a backward."""
    parameter: str
    """A parameter that its operator uses; empty if there is none."""
    grad_enabled: bool
    inputs: tuple[tuple[int, ...], ...]
    """Shapes of the step's inputs."""
    trainable_bytes: int
    layers: Layers | None
    optimizers: tuple[Optimizer, ...]
    count: int
    """Number of allocations of the process that failed."""
    steps_after: int
    """Steps that the program made after it; 0 if it ended."""

    @property
    def batch(self) -> int | None:
        """The first size of a model's first input; None if that is no batch."""
        if not self.modules and self.layers is None and not self.optimizers:
            return None
        sizes = next((shape for shape in self.inputs if shape), ())
        return sizes[0] if sizes and sizes[0] > 1 else None

    @property
    def module(self) -> OpenModule | None:
        """The innermost module that ran; None if none did."""
        return self.modules[-1] if self.modules else None

    @property
    def layer(self) -> OpenModule | None:
        """The outermost of the running modules that has siblings, as one layer."""
        repeated = (module for module in self.modules if (module.siblings or 0) > 1)
        return next(repeated, None)

    @property
    def evaluates(self) -> bool:
        """True if a model in evaluation mode runs with gradients enabled."""
        return (
            bool(self.modules)
            and self.phase == "forward"
            and self.grad_enabled
            and not self.modules[0].training
        )
