"""HST003: Python of the program's own that the GPU waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.time import host_activity, serving
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    fill_false,
    often,
    option,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_LESS = "do it once in many steps, or in the DataLoader's workers"
_VECTOR = (
    "make it with operators on the GPU, as torch.arange(n, device=…) <"
    " lengths[:, None], or once before the loop"
)
# What a function looks like by what it calls, and what to do about it.
_LOOKS = (
    (
        "formats tensors",
        r"_tensor_str\.py|_tensor\.py\(\d+\): __(format|repr|str)__",
        "keep the tensor, and format it once in many steps",
    ),
    ("calls `.tolist()`", r"method tolist of", "keep the values on the GPU"),
    (
        "writes logs",
        r"^logging/|^(wandb|tensorboard|tensorboardX|mlflow|tqdm)/|function print>",
        "write once in many steps",
    ),
    (
        "works on text",
        r"tokeniz|sentencepiece|tiktoken|^re/|method (split|strip|lower|upper|join"
        r"|replace|encode|decode|format) of (str|bytes) object",
        f"{_LESS}; tokenise before training",
    ),
    (
        "makes tensors of lists",
        r"method (tensor|as_tensor|from_numpy|stack) of type",
        _VECTOR,
    ),
    (
        "loops over a tensor",
        r"method (__getitem__|unbind|select|item|__iter__) of Tensor|__iter__",
        "replace the loop with operators on the whole tensor",
    ),
    ("reads or writes JSON", r"^json/", _LESS),
    ("copies objects", r"^copy\.py|deepcopy", "copy once, before the loop"),
)
_WORKS = "works in Python"
# Those that the page's example is of: what need not be in every step.
_SELDOM = (_WORKS, "formats tensors", "writes logs")
# What takes less of a function's time is not what it does. Chosen by judgement.
_LEAST_OF_FUNCTION = 0.1
# A function that calls nothing for this long does something that is in no trace. Chosen
# by judgement: a loop that takes as long calls something, mostly.
_LONG_NS = 1_000_000
_SILENT = "takes long without calling anything"
_UNKNOWN = (
    "what it does is not in the trace: it may free the memory of a large result (keep"
    " it in a buffer that is allocated once), or loop in plain Python (replace the loop"
    " with operators)"
)
_ADVICE = f"take it out of the step: {_LESS}; or replace loops with operators"
_HOOKS = (
    "remove the hooks (handle.remove()) when they are not needed, or let them return at"
    " once in all but one of many steps"
)
_MOST_CALLED = 3
# Where calling operators takes more of a function's time, the rest is no more than an
# error of what that takes. Chosen by judgement.
_MOSTLY_CALLS = 0.75
_STEP = """
            host   [ProfilerStep#1                                                  ]
            host    [torch/nn.py(5): f    ] [train.py(30): tokenise                ]
            host     [aten::mm           ]   [<built-in method split of str object>]
            host      [cudaLaunchKernel>1]
            gpu 7                   [gemm<1]
"""
_HOOK = """
            host   [ProfilerStep#1                                                    ]
            host    [nn.Module: Linear_0                                             ]
            host     [torch/nn/modules/module.py(9): _call_impl                     ]
            host      [torch/nn/modules/linear.py(5): forward]  [train.py(9): keep ]
            host       [aten::mm           ]                    [aten::mean        ]
            host        [cudaLaunchKernel>1]                    [cudaLaunchKernel>2]
            gpu 7                      [gemm<1]                             [mean<2]
"""


@dataclass(frozen=True)
class PythonOverhead(Rule):
    """A function of the program's own works in Python while the GPU waits.

    ## What it does

    Looks at the program's own functions in the account of the host's time (``traceq
    summary --host``): their time in Python without their callees, with built-in
    functions and libraries other than torch that they call. What Python needs to call
    operators does not count, and a function that does little else is not reported.
    Hooks on modules count whole, with operators, launches and GPU work. The time is
    estimated without the profiler, since recording Python calls slows them down several
    times, and only what the GPU waits for is a saving.

    ## Why is this bad?

    While Python builds a mask from lists, splits texts or formats a log line, nothing
    is launched. Unless the GPU still has work to do, it idles as long. A hook on every
    module does this a hundred times a step.

    ## How to fix it

    Take the work out of the step: do it once in many steps, before the loop, or in the
    DataLoader's workers; replace loops over elements with operators. Remove hooks that
    only watch.

    ```diff
      for step, batch in enumerate(loader):
          loss = train(batch)
    -     log(describe(batch))
    +     if step % 100 == 0:
    +         log(describe(batch))
    ```

    ## When it is wrong

    The line is where the function begins, not the one that takes long. Memory that is
    freed where a large result is dropped looks like Python that calls nothing. What a
    thread of its own would do holds the interpreter's lock nevertheless: use a process.

    ## Measured

    On an H200, in ms a step. A mask made on the GPU instead of lists:
    ``python_spans`` 11.2 → 9.1, and with a log line once in 50 steps ``python_in_step``
    6.3 → 4.5. Without statistics in hooks on modules: ``forward_hooks`` 23.3 → 7.2,
    ``hooks_on_modules`` 25.2 → 14.5. Neighbours of a graph sampled by operators instead
    of lists: 23.5 → 8.9. Metrics logged by Lightning once in 50 steps: 17.3 → 7.5.
    """

    code = "HST003"
    since = "0.2.0"
    see = ("torch.compile",)
    needs = frozenset({Need.GPU, Need.OPS, Need.STEPS, Need.STACKS, Need.WARM})
    of_function = True
    advice = _ADVICE

    seen = Seen(
        of="fixtures/python_in_step",
        text="""
        HST003 python-overhead  saves 2.40 ms/step (33%)
          described works on text once a step
          in        described (fixtures/programs/python_in_step.py:27)
                    > 27 | def described(number: int, texts: list[str], loss: torch…
                      28 |     \"\"\"Format what a logger would write, tokens counted …
                      29 |     counts: dict[str, int] = {}
          python    2.42 ms a step, estimated without the profiler
          recorded  6.89 ms a step
          calls     <built-in method strip of str object> ×7,680
          calls     <built-in method get of dict object> ×3,840
          calls     <built-in method split of str object> ×8
          fix       do it once in many steps, or in the DataLoader's workers;
                    tokenise before training
        """,
    )

    examples = (
        Bad(_STEP, finds="tokenise works on text once a step"),
        Bad(_HOOK, finds="keep, a hook on modules, runs once a step"),
        Good(_STEP.replace("train.py(30): tokenise", "torch/opt.py(30): step")),
    )

    min_share: float = option(
        0.03, "Functions that take a smaller share of the step are not reported."
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the time in Python by function, and that of hooks."""
        least = self.min_share * view.bound.step_ns * view.steps
        for row in _functions(view, least).iter_rows(named=True):
            yield self._of_function(view, row)
        if not (
            view.host_account.described.things["kind"] == host_activity.HOOKS
        ).any():
            return
        hooks = view.host_account.of(pl.col("kind") == host_activity.HOOKS)
        for row in _grouped(hooks).iter_rows(named=True):
            if row["estimated"] >= least:
                yield self._of_hook(view, row, hooks)

    def _of_function(self, view: View, row: Mapping[str, Any]) -> Finding:
        mine = _inside(view, _at(row)).with_columns(text("library"), text("called"))
        silent = _silent(mine)
        looks, advice = (_SILENT, _UNKNOWN) if silent else _looks(mine)
        row = {**row, "recorded": int(mine["recorded"].sum())}
        own = mine["caller"].filter(mine["kind"] == host_activity.PYTHON)
        calls = (silent or own.n_unique()) / view.steps
        return self.finding(
            f"{row['function']} {looks} {often(calls)}",
            subject=row["function"],
            place=view.place(row),
            count=calls,
            fix=Fix(spans=mine, host_share=row["extra"] / row["estimated"]),
            gpu_idle_ns=int(mine["idle"].sum()) / view.steps,
            evidence=[*_times(view, row, "python"), *_called(view, mine)],
            advice=advice,
            example=None if looks in _SELDOM else "",
        )

    def _of_hook(
        self, view: View, row: Mapping[str, Any], hooks: pl.DataFrame
    ) -> Finding:
        ops = view.ops.filter(_at(row), pl.col("phase") != "backward")["id"]
        kernels = view.kernels.filter(pl.col("op").is_in(ops.implode()))["id"]
        calls = row["calls"] / view.steps
        return self.finding(
            f"{row['function']}, a hook on modules, runs {often(calls)}",
            subject=row["function"],
            place=view.place(row),
            count=calls,
            fix=Fix(spans=hooks.filter(_at(row)), kernels=kernels.to_list()),
            gpu_idle_ns=row["idle"] / view.steps,
            ops=ops,
            evidence=[
                *_times(view, row, "host"),
                Evidence("kernels", value=len(kernels) / view.steps, note="a step"),
            ],
            advice=_HOOKS,
        )


def _inside(view: View, where: pl.Expr, *columns: str) -> pl.DataFrame:
    """Return the time in Python of the program's own, edges of the steps aside.

    Where a step begins and ends, the profiler itself is at work. What is done between
    two decode iterations is left to SRV002.
    """
    windows = view.steady.windows
    edge = pl.col("start").is_in(windows["start"].implode()) | pl.col("end").is_in(
        windows["end"].implode()
    )
    called = text("library")
    torch, looks = called.str.contains("^(torch|<)"), called.str.contains(_LOOKS[0][1])
    library = (pl.col("kind") == host_activity.LIBRARY) & (~torch | looks)
    own = pl.col("file").is_not_null() & (
        (pl.col("kind") == host_activity.PYTHON) | library
    )
    found = view.host_account.of(own & where, *columns).filter(~edge)
    between = serving.token_work(view.trace)
    if not len(between):
        return found
    return found.filter(~pl.col("start").is_in(between.implode()))


def _grouped(segments: pl.DataFrame) -> pl.DataFrame:
    return (
        segments.group_by(host_activity.PLACE)
        .agg(
            pl.col("recorded", "idle", "estimated").sum(),
            calls=pl.col("caller").n_unique(),
        )
        .sort(-pl.col("estimated"), *host_activity.PLACE)
    )


def _functions(view: View, least: float) -> pl.DataFrame:
    """Return the functions that take this long beyond what calling operators takes.

    That is ``extra``, in all steps.
    """
    asked = ("start", "end", "thing", "estimated")
    segments = _inside(view, pl.lit(value=True), *asked)
    # What things are is looked up for their sums: of spans there are many more.
    sums = segments.group_by("thing").agg(pl.col("estimated").sum())
    things = view.host_account.described.things
    found = (
        sums.hstack(things[["kind", *host_activity.PLACE]][sums["thing"]])
        .group_by(host_activity.PLACE)
        .agg(
            pl.col("estimated").sum(),
            own=(pl.col("kind") == host_activity.PYTHON).any(),
        )
        .filter("own", pl.col("estimated") >= least)
        .sort(-pl.col("estimated"), *host_activity.PLACE)
    )
    if not found.height:
        return found
    called = view.ops["parent"].is_null() & (view.ops["phase"] != "backward")
    ops = (
        view.ops[[*host_activity.PLACE]]
        .filter(called)
        .group_by(host_activity.PLACE)
        .agg(ops=pl.len())
        .with_columns(pl.col("file", "function").cast(pl.String))
    )
    needed = pl.col("ops").fill_null(0) * assumptions.PYTHON_PER_OP_NS
    return (
        found.join(
            ops,
            on=host_activity.PLACE,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        .with_columns(extra=pl.col("estimated") - needed)
        .filter(
            pl.col("extra") >= least,
            pl.col("extra") >= (1 - _MOSTLY_CALLS) * pl.col("estimated"),
        )
    )


def _at(row: Mapping[str, Any]) -> pl.Expr:
    return pl.all_horizontal(
        pl.col(column).cast(pl.String).eq_missing(pl.lit(row[column]).cast(pl.String))
        for column in host_activity.PLACE
    )


def _silent(segments: pl.DataFrame) -> int:
    """Return how often a function calls nothing for long, if that is most it does."""
    long = segments.filter(
        pl.col("kind") == host_activity.PYTHON,
        pl.col("end") - pl.col("start") >= _LONG_NS,
        ~fill_false(pl.col("called").str.starts_with("<")),
    )
    mostly = 2 * int(long["recorded"].sum()) > int(segments["recorded"].sum())
    return long.height if mostly else 0


def _looks(segments: pl.DataFrame) -> tuple[str, str]:
    """Return what a function does, by what takes longest of what is known."""
    name = pl.coalesce("library", "called")
    looks = pl.coalesce(
        pl.when(name.str.contains(pattern)).then(pl.lit(text))
        for text, pattern, _ in _LOOKS
    )
    found = (
        segments.with_columns(looks=looks)
        .drop_nulls("looks")
        .group_by("looks")
        .agg(pl.col("estimated").sum())
        .sort(-pl.col("estimated"), "looks")
    )
    least = _LEAST_OF_FUNCTION * float(segments["estimated"].sum())
    if not found.height or found["estimated"][0] < least:
        return _WORKS, _ADVICE
    best = found["looks"][0]
    return best, next(advice for text, _, advice in _LOOKS if text == best)


def _times(view: View, row: Mapping[str, Any], label: str) -> Iterator[Evidence]:
    for called, column, note in (
        (label, "estimated", "a step, estimated without the profiler"),
        ("recorded", "recorded", "a step"),
    ):
        yield Evidence(called, value=row[column] / view.steps, unit="ns", note=note)


def _called(view: View, segments: pl.DataFrame) -> Iterator[Evidence]:
    """Yield what the function calls longest."""
    found = (
        segments.with_columns(call=pl.coalesce("library", "called"))
        .filter(pl.col("library").is_not_null() | pl.col("call").str.starts_with("<"))
        .group_by("call")
        .agg(
            pl.col("estimated").sum(),
            count=pl.col("at").n_unique(),
            # Of a library's function that is all that it calls, not how often it is.
            counted=pl.col("library").is_null().all(),
        )
        .sort(-pl.col("estimated"), "call")
    )
    for row in found.head(_MOST_CALLED).iter_rows(named=True):
        count = round(row["count"] / view.steps) if row["counted"] else None
        yield Evidence("calls", row["call"], count=count)
