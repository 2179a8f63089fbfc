"""Runs of the program in turns with and without remedies that need a restart."""

from __future__ import annotations

from typing import Any

from .. import remedies
from ..remedies.base import START

ROUNDS = 3  # the fewest from which something is concluded
BLOCK_S = 3.0  # of a run: the measured steps, and the end of the process
WARM_S = 5.0  # of a run: steps that are not measured


def order(state: dict[str, Any], start_s: float, left_s: float) -> list[list[str]]:
    """Return the remedies of each run: without, with each and the control, without.

    ``start_s`` is the time until the first step. Remedies for which the time is too
    short are left out, and the state says so.
    """
    names = [
        name
        for name, facts in state["remedies"].items()
        if not facts["why"]
        and not facts["error"]
        and remedies.facts(name)["when"] == START
    ]
    each = start_s + WARM_S + BLOCK_S
    while names:
        runs = ROUNDS * (len(names) + 2) + 1
        if runs * each < left_s:
            break
        last = state["remedies"][names.pop()]
        last["late"] = (
            f"it needs {runs} runs of {each:.0f} s, and {left_s:.0f} s were left"
        )
    if not names:
        return []
    turns: list[list[str]] = [[]]
    for number in range(ROUNDS):
        tried = [remedies.CONTROL, *names]
        turns += [[name] for name in (tried if number % 2 == 0 else reversed(tried))]
        turns.append([])
    return turns


def has_failed(state: dict[str, Any], on: list[str]) -> bool:
    """Return whether something speaks against the remedies of a run by now."""
    facts = [state["remedies"][name] for name in on]
    return any(fact["why"] or fact["error"] for fact in facts)


def is_complete(state: dict[str, Any], on: list[str], why: str) -> bool:
    """Return whether the runs can go on after one; note ``why`` one was incomplete."""
    if state["state"] == "done":
        return True
    tried = [name for name in on if name != remedies.CONTROL]
    for name in tried:
        state["remedies"][name]["error"] = why
    if not tried:
        state["notes"].append(f"a restarted run was not complete: {why}")
    state["state"] = "done"  # but for this
    return bool(tried)
