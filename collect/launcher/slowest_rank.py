"""Blocks of several ranks as one: the slowest rank counts."""

from __future__ import annotations

from typing import Any

_LARGEST = ("median_ms", "mean_ms", "p10_ms", "p90_ms", "max_ms", "peak_bytes")


def merged(states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the leader's state first, with the figures of the slowest rank.

    States of ranks that did not switch together are returned as they are.
    """
    followers = [state for state in states if state.get("follows")]
    others = [state for state in states if not state.get("follows")]
    if not others or not followers:
        return [*others, *followers]
    leader = others[0]
    for block in leader["blocks"]:
        for follower in followers:
            _merge_block(block, follower)
    for follower in followers:
        for name, facts in follower["remedies"].items():
            own = leader["remedies"].get(name)
            if own is not None and facts["error"] and not own["error"]:
                own["error"] = f"rank {follower['rank']}: {facts['error']}"
    return [leader, *followers]


def _merge_block(block: dict[str, Any], follower: dict[str, Any]) -> None:
    """Take over what is larger in the same block of another rank."""
    for other in follower["blocks"]:
        if (other["run"], other["switch"]) != (block["run"], block["switch"]):
            continue
        for figure in _LARGEST:
            values = [
                entry[figure] for entry in (block, other) if entry[figure] is not None
            ]
            block[figure] = max(values, default=None)
        ranks = block.setdefault("ranks", {})
        ranks[str(follower["rank"])] = other["median_ms"]
        block["discarded"] = block["discarded"] or other["discarded"]
