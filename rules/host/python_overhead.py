"""HST003: Python of the program's own that the GPU waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time import host_activity
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Place,
    Rule,
    Seen,
    View,
    dataclass,
    often,
    option,
)

from ._python_examples import DRAWN, HOOKED
from ._python_functions import called_line, grouped, is_at, silent_calls, times
from ._python_kinds import ADVICE, logs, looks_like
from ._python_lines import NOT_SHOWN, hot_lines, silent_time
from ._small_functions import TIMES, Group, advice_on, by_caller, member_lines, message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_HOOKS = (
    "remove the hooks (handle.remove()) when they are not needed, or let them return at"
    " once in all but one of many steps"
)


@dataclass(frozen=True)
class PythonOverhead(Rule):
    """A function of the program's own works in Python while the GPU waits.

    ## What it does

    Looks at the program's own functions in the account of the host's time (``traceq
    summary --host``): their time in Python without their callees, with built-in
    functions and libraries other than torch that they call. What Python needs to call
    operators does not count, and a function that does little else is not reported; nor
    is one whose time is a library's, around operators that it runs: LCH002 has that.
    Hooks on modules count whole, with operators, launches and GPU work. The time is
    estimated without the profiler, since recording Python calls slows them down several
    times, and only what the GPU waits for is a saving. Small functions that one
    function calls, itself or by others, and that together take long, are one finding.

    ## Why is this bad?

    While Python builds a mask from lists, splits texts or formats a log line, nothing
    is launched. Unless the GPU still has work to do, it idles as long. A hook on every
    module does this a hundred times a step.

    ## How to fix it

    Replace loops over elements with operators on whole arrays, and make what does not
    change once. Log once in many steps; make batches in the DataLoader's workers, and
    where processes make them already, start more or send smaller messages. What a
    model's forward needs stays in it: compile the model.
    Triton kernels that are launched by hand are launched in Python: launch fewer, or
    make them operators (``torch.library.triton_op``) and compile. Remove hooks that
    only watch.

    ```diff
      for step, batch in enumerate(loader):
          loss = train(batch)
    -     log(describe(batch))
    +     if step % 100 == 0:
    +         log(describe(batch))
    ```

    ```diff
      def watch(module, inputs, output):
    +     if step % 100:
    +         return
          log(module, output.norm())
    ```

    ## When it is wrong

    The line is where the function begins, unless the lines of calls were recorded and
    one of them takes most of the time. What calls nothing, as memory that is freed
    where a large result is dropped, is in no trace: the lines around it are. What a
    thread of its own would do holds the interpreter's lock nevertheless: use a process.
    """

    code = "HST003"
    since = "0.2.0"
    see = ("torch.compile",)
    needs = frozenset({Need.GPU, Need.OPS, Need.STEPS, Need.STACKS, Need.WARM})
    without_gpu = True
    of_function = True
    advice = ADVICE

    seen = Seen(
        of="fixtures/python_in_step",
        text="""
        HST003 python-overhead  saves 2.40 ms/step (33%), 1.93 ms to 4.78 ms
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
          fix       do it once in many steps; tokenise before training
        """,
    )

    examples = (
        Bad(DRAWN, finds="tokenise works on text once a step"),
        Bad(HOOKED, finds="keep, a hook on modules, runs once a step"),
        Good(DRAWN.replace("train.py(30): tokenise", "torch/opt.py(30): step")),
    )

    min_share: float = option(
        0.03, "Functions that take a smaller share of the step are not reported."
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the time in Python by function, and that of hooks."""
        least = self.min_share * view.bound.step_ns * view.steps
        alone, shared = by_caller(view, least)
        for row, rows in alone:
            yield self._of_function(view, row, rows)
        for group, rows in shared:
            yield self._of_group(view, group, rows)
        if not (
            view.host_account.described.activities["kind"] == host_activity.HOOKS
        ).any():
            return
        hooks = view.host_account.of(pl.col("kind") == host_activity.HOOKS)
        for row in grouped(hooks).iter_rows(named=True):
            if row["estimated"] >= least:
                yield self._of_hook(view, row, hooks)

    def check_without_gpu(self, view: View) -> Iterator[Finding]:
        """Return those that call something: others may have waited for a core.

        On a CPU the program's own operators and other programs use it up.
        """
        for finding in self.check(view):
            if not finding.advice.startswith(NOT_SHOWN):
                yield finding

    def _of_group(self, view: View, group: Group, table: pl.DataFrame) -> Finding:
        own, extra = (float(group.members[name].sum()) for name in TIMES)
        summed = {"estimated": own, "recorded": int(table["recorded"].sum())}
        return self.finding(
            message(group),
            subject=f"functions of {group.function}",
            place=Place(group.file, group.line, group.function),
            count=table["caller"].n_unique() / view.steps,
            fix=Fix(spans=table, host_share=extra / own),
            gpu_idle_ns=int(table["idle"].sum()) / view.steps,
            evidence=[*times(view, summed, "python"), *member_lines(view, group)],
            advice=advice_on(table),
            example=None if logs(table) else "",
        )

    def _of_function(
        self, view: View, row: Mapping[str, Any], table: pl.DataFrame
    ) -> Finding:
        silent, place = silent_calls(table), view.place(row)
        if silent:
            why = silent_time(view, place, table)
            looks, advice, place = why.does, why.advice, why.place
            lines = [*why.evidence]
        else:
            looks, advice = looks_like(table)
            place, lines = hot_lines(view, place, table)
        row = {**row, "recorded": int(table["recorded"].sum())}
        python = pl.col("kind") == host_activity.PYTHON
        own = table.filter(python, is_at(row))["caller"]
        # A call that goes on through all steps, as the loop itself, is one in each.
        calls = max(silent or own.n_unique(), table["step"].n_unique()) / view.steps
        return self.finding(
            f"{row['function']} {looks} {often(calls)}",
            subject=row["function"],
            place=place,
            count=calls,
            fix=Fix(spans=table, host_share=row["extra"] / row["estimated"]),
            gpu_idle_ns=int(table["idle"].sum()) / view.steps,
            evidence=[
                *times(view, row, "python"),
                *lines,
                *([] if silent else called_line(view, table)),
            ],
            advice=advice,
            # The page's example is of what need not be in every step.
            example=None if logs(table) else "",
        )

    def _of_hook(
        self, view: View, row: Mapping[str, Any], hooks: pl.DataFrame
    ) -> Finding:
        ops = view.ops.filter(is_at(row), pl.col("phase") != "backward")["id"]
        kernels = view.kernels.filter(pl.col("op").is_in(ops.implode()))["id"]
        calls = row["calls"] / view.steps
        return self.finding(
            f"{row['function']}, a hook on modules, runs {often(calls)}",
            subject=row["function"],
            place=view.place(row),
            count=calls,
            fix=Fix(spans=hooks.filter(is_at(row)), kernels=kernels.to_list()),
            gpu_idle_ns=row["idle"] / view.steps,
            ops=ops,
            evidence=[
                *times(view, row, "host"),
                Evidence("kernels", value=len(kernels) / view.steps, note="a step"),
            ],
            advice=_HOOKS,
            example=self.example(1),
        )
