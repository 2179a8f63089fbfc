"""View of the steady-state steps of a trace, for rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.assumptions import PROFILER_SLOWDOWN
from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.lines import has_source_lines
from traceq.analysis.base.ownership import (
    called_ops,
    has_like,
    has_named,
    named,
    named_like,
    outermost_ops,
    owned,
    same_place,
)
from traceq.analysis.base.roofline import saved_share
from traceq.analysis.base.start_up import start_up
from traceq.analysis.base.steady import (
    SteadySteps,
    are_in_steps,
    in_steps,
    steady_steps,
)
from traceq.analysis.patterns.compilation import REGION
from traceq.analysis.patterns.copies import copies
from traceq.analysis.patterns.kv_cache import cache_cats
from traceq.analysis.replay.bound import (
    bound_of,
    calibration_of,
    host_account_of,
    replay_of,
    waits_after,
)
from traceq.analysis.time.fusible_chains import fusible_chains
from traceq.analysis.time.gpu_account import gpu_account
from traceq.analysis.time.new_sizes import layers_vary
from traceq.common.expressions import known
from traceq.graph.nesting import nearest
from traceq.linter.need import Need
from traceq.model.finding import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceq.analysis.base.device import Gpu
    from traceq.analysis.replay.calibration import Calibration
    from traceq.analysis.replay.host_account import HostAccount
    from traceq.analysis.replay.idle_account import IdleAccount
    from traceq.analysis.replay.simulation import Change, Replay
    from traceq.analysis.time.fusible_chains import Chains
    from traceq.analysis.time.gpu_account import GpuAccount
    from traceq.model.lint_report import Bound
    from traceq.model.trace import Trace

PLACE = ("file", "line", "function", "module", "via")


@dataclass(frozen=True)
class View:
    """The steady steps of a trace, without what ran while compiling.

    Where the trace has no steps it is the whole trace, and counts as one step.
    """

    trace: Trace
    step_ns: int | None = None
    """Duration of a step without the profiler, where that was measured."""
    fixed: tuple[Change, ...] = ()
    """The host's part of the other findings' fixes, for rules that report what
    remains."""
    named: frozenset[int] = frozenset()
    """Kernels that the other findings are about, likewise."""
    changed: frozenset[int] = frozenset()
    """Kernels that the other findings' fixes change, likewise."""

    @cached_property
    def steady(self) -> SteadySteps:
        """The steady steps and their kernels."""
        return steady_steps(self.trace)

    @property
    def steps(self) -> int:
        """Number of steps, to divide totals by."""
        return self.steady.count

    @property
    def bound(self) -> Bound:
        """Bound of a step, GPU or host, and its time by cause."""
        return bound_of(self.trace, self.step_ns)

    @property
    def replay(self) -> Replay:
        """The steps, ready to be run again with changes."""
        return replay_of(self.trace)

    @property
    def calibration(self) -> Calibration:
        """Speed of host and GPU without the profiler."""
        return calibration_of(self.trace, self.step_ns)

    @property
    def host_account(self) -> HostAccount:
        """The host's time of a step, entry by entry."""
        return host_account_of(self.trace, self.step_ns)

    @property
    def gpu_account(self) -> GpuAccount:
        """The GPU's busy time of a step: what its work needs, and named losses."""
        return gpu_account(self.trace)

    @cached_property
    def waits(self) -> IdleAccount:
        """Host activity while the GPU waits for the host, with ``fixed`` applied."""
        return waits_after(self.trace, self.step_ns, self.fixed)

    def after(self, fixed: tuple[Change, ...]) -> View:
        """Return the same steps for rules that report what remains after fixes."""
        return replace(self, fixed=fixed) if fixed else self

    @cached_property
    def chains(self) -> Chains:
        """Chains of memory-bound ops that a compiler would fuse, without ``named``."""
        return self.all_chains.without(self.named)

    @property
    def all_chains(self) -> Chains:
        """The same, with the kernels of other findings."""
        return fusible_chains(self.trace)

    @cached_property
    def host_scale(self) -> float:
        """The share of a recorded time of the host that is there without the profiler.

        It is known where a step was measured without the profiler; else, with stacks,
        the host is assumed to be slowed down as much as it may be.
        """
        if self.bound.measured and self.bound.recorded_step_ns:
            return min(1.0, self.bound.step_ns / self.bound.recorded_step_ns)
        facts = self.trace.facts
        return 1 / PROFILER_SLOWDOWN if facts.stacks and not facts.recorder else 1.0

    @property
    def kernels(self) -> pl.DataFrame:
        """GPU work of these steps."""
        return self.steady.kernels

    @cached_property
    def copies(self) -> pl.DataFrame:
        """The kernels of these steps that copy, and why each does."""
        return copies(self.trace, self.kernels)

    @cached_property
    def ops(self) -> pl.DataFrame:
        """The ops that the host ran in these steps."""
        ran = self.trace.host_ops
        chosen = are_in_steps(ran, self.trace, self.steady) & ~ran["compiling"]
        return ran if chosen.all() else ran.filter(chosen)

    @cached_property
    def kernel_ops(self) -> pl.DataFrame:
        """The ops whose kernels ran in these steps, also in replays of CUDA graphs.

        Of a captured op there is one for each replay, so that counts are as elsewhere.
        """
        ops = self.trace.ops
        chosen = are_in_steps(ops, self.trace, self.steady) & self.trace.ran
        return ops if chosen.all() else ops.filter(chosen)

    @cached_property
    def runtime(self) -> pl.DataFrame:
        """The runtime calls of these steps."""
        return in_steps(self.trace.runtime, self.trace, self.steady)

    @cached_property
    def annotations(self) -> pl.DataFrame:
        """The regions of these steps."""
        return in_steps(self.trace.annotations, self.trace, self.steady)

    @property
    def gpu(self) -> Gpu:
        """The GPU that ran the steps: its name, peaks and capability."""
        return used_gpu(self.trace)

    @property
    def compiled(self) -> bool:
        """True if code of torch.compile ran in these steps."""
        return has_like(self.ops, REGION)

    @property
    def sizes_vary(self) -> bool:
        """True if steps bring the layers new sizes, or tokens a longer KV cache."""
        varies = layers_vary(self.trace, self.steady)
        return varies or cache_cats(self.trace).height > 0

    @property
    def trains(self) -> bool:
        """True if the recording has a backward or an optimizer."""
        return bool(self.trace.ops["phase"].is_in(["backward", "optimizer"]).any())

    @cached_property
    def distributed(self) -> bool:
        """True if the recording shows several GPUs."""
        several = (self.trace.facts.world_size or 1) > 1
        return several or bool((self.trace.kernels["kind"] == "communication").any())

    def has_op(self, names: Iterable[str]) -> bool:
        """Return whether any op of the trace is one of these, in any overload.

        It costs next to nothing: ask it before any work on ops that may not be there.
        """
        return has_named(self.trace.ops, names)

    def ops_named(self, names: Iterable[str]) -> pl.Series:
        """Return for each op of the trace whether it is one of these, in any overload.

        The result is as long as ``trace.ops``, so that an op's id is its place in it.
        """
        return named(self.trace.ops, names)

    def ops_matching(self, pattern: str) -> pl.Series:
        """Return for each op of the trace whether its name matches a pattern."""
        return named_like(self.trace.ops, pattern)

    @property
    def outermost_ops(self) -> pl.Series:
        """The outermost op around each op of the trace, or itself."""
        return outermost_ops(self.trace)

    @property
    def called_ops(self) -> pl.Series:
        """The outermost op that the program calls around each op, or itself."""
        return called_ops(self.trace)

    def with_inputs(self, ops: pl.DataFrame) -> pl.DataFrame:
        """Add ``dims``, ``types``, ``strides`` and ``values`` of the ops' inputs."""
        inputs = self.trace.inputs.drop("id")[ops["inputs"]]
        return ops.with_columns(inputs.get_columns())

    def roots(self, marked: pl.Expr) -> pl.Series:
        """Return for each op of the trace itself, if marked, or the nearest around it.

        The result is as long as ``trace.ops``, so that an op's id is its place in it.
        """
        ops = self.trace.ops
        return nearest(ops["parent"], ops.select(known(marked)).to_series())

    def owned_kernels(self, owners: pl.Series) -> pl.DataFrame:
        """Return the kernels of ops that have an owner, and of their backward.

        Owners are as of ``roots``. They are added as ``owner``, and in ``back`` is
        whether a kernel ran in the backward.
        """
        return owned(self.trace, self.kernels, owners)

    @staticmethod
    def by_place(rows: pl.DataFrame, *keys: str, **more: pl.Expr) -> pl.DataFrame:
        """Group rows by their line, so that the same line in all layers is one group.

        Without stacks the modules, less their numbers, stand in for the line. A group
        has the place, ``ids``, ``modules`` and the first ``module``, and ``more``.
        """
        module = pl.col("module").drop_nulls()
        return rows.group_by(*keys, *same_place(), maintain_order=True).agg(
            ids=pl.col("id"),
            # As text once for each, not for each row: a name may be long.
            modules=module.unique(maintain_order=True).cast(pl.String),
            module=module.first().cast(pl.String),
            **more,
        )

    @staticmethod
    def saved_share(now_ns: float, then_ns: float | None) -> float:
        """Return the fraction of a time that a fix removes.

        Where it is unknown what is left, as that of ``roofline_ns``, it is half.
        """
        return saved_share(now_ns, then_ns)

    def meets(self, need: Need) -> bool:
        """Return whether a need of a rule is met."""
        return need in self._met

    @cached_property
    def _met(self) -> frozenset[Need]:
        """The needs that are met."""
        trace = self.trace
        met = {
            Need.GPU: trace.facts.gpu,
            Need.NO_GPU: not trace.facts.gpu,
            Need.STEPS: trace.steps.height > 0,
            Need.WARM: start_up(trace) is None,
            Need.SHAPES: trace.facts.shapes,
            # PyTorch's profiler records them with the shapes, others do not.
            Need.VALUES: not trace.facts.recorder,
            Need.STACKS: trace.facts.stacks,
            Need.LINES: has_source_lines(trace),
            Need.OPS: trace.ops.height > 0,
        }
        return frozenset(need for need, there in met.items() if there)

    @staticmethod
    def place(row: Mapping[str, object]) -> Place:
        """Return the place of a row that has the columns of PLACE."""
        return Place(**{column: row[column] for column in PLACE if column in row})  # type: ignore[arg-type]  # a row's values are what the schema says

    @staticmethod
    def place_of_group(row: Mapping[str, Any]) -> Place:
        """Return the place of a group, whose row has its modules in a list.

        The first module is named only where the line is not known.
        """
        module = None if row["file"] else next(iter(row["module"]), None)
        place = Place(row["file"], row["line"], row["function"], module)
        return replace(place, via=row.get("via"))


@dataclass(frozen=True)
class WithoutGpu(View):
    """The steady steps of a trace without GPU work, with a kernel for each op.

    What is asked of times is answered by the trace as it was recorded.
    """

    recorded: View = field(kw_only=True)

    @property
    def bound(self) -> Bound:
        """Bound of a step: the host."""
        return self.recorded.bound

    @property
    def replay(self) -> Replay:
        """The steps as recorded, ready to be run again with changes."""
        return self.recorded.replay

    @property
    def calibration(self) -> Calibration:
        """Speed of the host without the profiler."""
        return self.recorded.calibration

    @property
    def host_account(self) -> HostAccount:
        """The host's time of a step, entry by entry."""
        return self.recorded.host_account

    def meets(self, need: Need) -> bool:
        """Return whether a need is met: ops stand in for the work of a GPU."""
        if need is Need.GPU:
            return self.recorded.meets(Need.OPS)
        return self.recorded.meets(need)
