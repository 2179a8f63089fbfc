"""Evidence and advice in the form that many rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import has_like
from traceq.common.words import MODULE_LEVEL, counted, layer_name, shape
from traceq.model.dtypes import dtype_name
from traceq.model.finding import Evidence
from traceq.model.torch_versions import newer_than

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from traceq.analysis.base.ownership import Row
    from traceq.linter.view import View


_EXPERTS = r"(^|/)transformers/integrations/moe\.py"
_GROUPED = (
    'load the model with experts_implementation="grouped_mm" (transformers 5), which'
    " runs all experts at once"
)


def kernel_lines(view: View, kernels: Collection[int], most: int = 3) -> list[Evidence]:
    """Return the kernels and how often they run in a step, longest time first."""
    rows = kernels if isinstance(kernels, pl.Series) else pl.Series([*kernels])
    ran = view.trace.kernels[["name", "dur"]][rows.cast(pl.UInt32)]
    by_name = ran.group_by("name").agg(calls=pl.len(), time=pl.col("dur").sum())
    longest = sorted(by_name.iter_rows(), key=lambda row: (-row[2], row[0] or ""))
    return [
        Evidence("kernel", name, count=calls / view.steps)
        for name, calls, _ in longest[:most]
    ]


def module_line(modules: Sequence[str | None]) -> list[Evidence]:
    """Return the first of the modules that something is in, and how many more."""
    named = [module for module in modules if module]
    if not named:
        return []
    if len(named) == 1:
        return [Evidence("module", named[0])]
    return [Evidence("modules", named[0], note=f"and {len(named) - 1:,} more")]


def tensor(recorded: str | None, dims: Sequence[int]) -> str:
    """Write what a tensor is, from its dtype as recorded and its shape.

    >>> tensor("c10::Half", [8, 64]), tensor("long int", [8])
    ('a float16 [8,64]', 'an int64 [8]')
    """
    name = dtype_name(recorded)
    return f"{'an' if name.startswith('int') else 'a'} {name} {shape(dims)}"


def share_of_steps(view: View, count: int) -> str:
    """Write in how many of the steps something is, as ``2 of 3 steps``."""
    if not view.trace.steps.height:
        return "this trace"
    return f"{count} of {counted(view.steps, 'step')}"


def own_function(row: Row) -> str | None:
    """Return the user's function, unless what is to change is a library's.

    >>> own_function({"via": None, "function": "<module>", "file": "train.py"})
    'train.py'
    """
    if row["via"]:
        return None
    return row["file"] if row["function"] == MODULE_LEVEL else row["function"]


def rewritten(row: Row) -> str | None:
    """Return the code to rewrite: the user's function, or a library's.

    >>> forward = "forward (transformers/models/llama/modeling_llama.py:62)"
    >>> rewritten({"via": forward, "module": "LlamaModel_0/LlamaRMSNorm_3"})
    'your own version of LlamaRMSNorm (transformers)'
    >>> rewritten({"via": "attend (torchvision/swin.py:9)", "module": "Mine_0"})
    'your own version of attend (torchvision)'
    """
    if not row["via"]:
        return own_function(row)
    function, _, path = row["via"].partition(" (")
    library = path.partition("/")[0].rstrip(")")
    return f"your own version of {library_module(row) or function} ({library})"


def library_module(row: Row) -> str | None:
    """Return the class of a module whose forward a library has, if it is one's."""
    via, module = row["via"] or "", row["module"]
    if isinstance(module, list):
        module = next(filter(None, module), None)
    if not via.startswith("forward (") or not module:
        return None
    return layer_name(module).rpartition("/")[2]


def most_of_library(view: View, ops: Collection[int]) -> str:
    """Return the library that most of these ops are in, as ``transformers``; or none.

    It is the one whose function the user's calls.
    """
    rows = ops if isinstance(ops, pl.Series) else pl.Series([*ops], dtype=pl.UInt32)
    via = view.trace.ops["via"][rows].cast(pl.String)
    if 2 * via.null_count() >= len(via):
        return ""
    called = via.drop_nulls().str.extract(r"\(([^/)]+)").mode().sort()
    return str(called[0] or "")


def experts_switch(view: View, ops: Collection[int]) -> str:
    """Return the switch of a library that runs these ops of experts at once, or none.

    Models of transformers 5 call their experts through the function that is looked for.
    """
    if most_of_library(view, ops) != "transformers":
        return ""
    return _GROUPED if has_like(view.trace.frames, _EXPERTS) else ""


def located_advice(view: View, function: str | None, advice: str) -> str:
    """Return advice with the function to change, and what of it needs a newer torch."""
    newer = newer_than(view.trace.facts, advice)
    notes = "".join(f"; {name} needs torch {first}" for name, first in newer.items())
    return (f"in {function}: " if function else "") + advice + notes
