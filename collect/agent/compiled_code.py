"""Watch on the compiled code of this process, which it does not change."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any

MOST = 50  # places of each kind
_LONGEST = 200  # characters of a reason


class CompiledCode:
    """Compilations of torch.compile from here on."""

    def __init__(self) -> None:
        # Kept as objects: torch forgets old ones, so their number says nothing.
        self._before: list[Any] = []
        self._graphs = 0
        with contextlib.suppress(Exception):  # private to torch
            utils: Any = sys.modules["torch._dynamo.utils"]
            self._before = [
                *utils.get_compilation_metrics(),
                *(getattr(utils, "graph_break_reasons", None) or ()),
            ]
            self._graphs = int(utils.counters["stats"].get("unique_graphs", 0))

    def facts(self) -> dict[str, Any] | None:
        """Return graphs, graph breaks and recompilations; None if nothing compiles."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        try:
            if utils is None or not utils.counters["frames"].get("total", 0):
                return None
            known = {id(code) for code in self._before}
            made = utils.get_compilation_metrics()
            new = [code for code in made if id(code) not in known]
            return _facts(utils, new, known, self._graphs)
        except Exception:  # noqa: BLE001 - private to torch; without it, nothing is known
            return None


def _facts(utils: Any, made: list[Any], known: set[int], graphs: int) -> dict[str, Any]:
    # Of a backward, and of what is not compiled any more, torch names no function.
    again = [code for code in made if _version(code) and code.co_filename]
    return {
        # Less than before, if somebody has set the counters to 0.
        "graphs": max(0, int(utils.counters["stats"].get("unique_graphs", 0)) - graphs),
        "ops": sum(
            getattr(code, "graph_op_count", None) or 0
            for code in made
            if not _version(code)
        ),
        "graph_breaks": _counted(_breaks(utils, known)),
        "recompiles": _counted(
            (
                *_place(code.co_filename, code.co_firstlineno, code.co_name),
                _sentence(getattr(code, "recompile_reason", None)),
                *_guarded_at(getattr(code, "recompile_reason", None)),
            )
            for code in again
        ),
    }


def _version(made: Any) -> int:
    """Return the number of earlier compilations of the function: R of F/R."""
    number = str(getattr(made, "compile_id", "") or "").rpartition("/")[2]
    return int(number) if number.isdigit() else 0


def _breaks(utils: Any, known: set[int]) -> set[tuple[Any, ...]]:
    """Return each graph break once, however often the code around it was compiled."""
    reasons = getattr(utils, "graph_break_reasons", None)
    if reasons is None:  # older torch knows no places
        return {
            (None, None, None, _sentence(key)) for key in utils.counters["graph_break"]
        }
    breaks = set()
    for reason in reasons:
        if id(reason) in known:
            continue
        at = reason.user_stack[-1] if reason.user_stack else None
        where = _place(at.filename, at.lineno, at.name) if at else (None, None, None)
        breaks.add((*where, _sentence(reason.reason)))
    return breaks


def _place(file: str, line: int, function: str) -> tuple[str, int, str]:
    # Code after a graph break is called torch_dynamo_resume_in_forward_at_12.
    name = function.partition("torch_dynamo_resume_in_")[2].rpartition("_at_")[0]
    return os.path.basename(file), line, name or function


def _sentence(text: str | None) -> str:
    """Return the first line of a reason, without the code that torch quotes."""
    first = (text or "").strip().partition("\n")[0].partition("  #")[0]
    return re.sub(r"^\d+/\d+: ", "", first.strip())[:_LONGEST]


def _guarded_at(text: str | None) -> tuple[str | None, int | None]:
    """Return file and line for which the guard that failed was made, if torch says it.

    That is the last frame of a stack, or what follows the quoted line: ``self.n == 3
    # x = x * self.n  # model.py:9 in forward (HINT: ...)``.
    """
    places = re.findall(r'^ *File "(.+)", line (\d+), in ', text or "", re.MULTILINE)
    first = (text or "").strip().partition("\n")[0].partition("  #")[2]
    places = places or re.findall(r"# (\S+):(\d+) in \S+", first)[:1]
    if not places:
        return None, None
    return os.path.basename(places[-1][0]), int(places[-1][1])


def _counted(places: Any) -> list[dict[str, Any]]:
    counts: dict[tuple[Any, ...], int] = {}
    for place in places:
        counts[place] = counts.get(place, 0) + 1
    keys = ("file", "line", "function", "why", "guard_file", "guard_line")
    rows = [{**dict(zip(keys, place)), "count": counts[place]} for place in counts]
    return sorted(rows, key=lambda row: [str(row.get(key)) for key in keys])[:MOST]
