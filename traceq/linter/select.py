"""Rule selection: codes, prefixes of codes and names, as users write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from traceq.errors import UsageError
from traceq.linter.retired import RETIRED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceq.linter.pack import Rules

ALL = "ALL"


class Named(Protocol):
    """A rule, or what stands for one."""

    def name(self) -> str:
        """Return the rule's name."""


Rule = TypeVar("Rule", bound=Named)


def find_rule(rules: Mapping[str, Rule], wanted: str) -> Rule:
    """Return the rule of a code or a name."""
    codes = _matching(rules, wanted)
    if len(codes) == 1:
        return rules[codes[0]]
    if codes:
        msg = f"{wanted} is a family of rules: name one of {', '.join(codes)}"
        raise UsageError(msg)
    raise UsageError(_unknown(rules, wanted))


def selected(rules: Rules, select: Iterable[str], ignore: Iterable[str]) -> Rules:
    """Return the rules that are selected and not ignored."""
    chosen = _all_matching(rules, select) - _all_matching(rules, ignore)
    return {code: rule for code, rule in rules.items() if code in chosen}


def _all_matching(rules: Rules, wanted: Iterable[str]) -> set[str]:
    chosen: set[str] = set()
    for entry in wanted:
        codes = list(rules) if entry.upper() == ALL else _matching(rules, entry)
        if not codes:
            raise UsageError(_unknown(rules, entry))
        chosen.update(codes)
    return chosen


def _matching(rules: Mapping[str, Any], wanted: str) -> list[str]:
    by_name = [code for code, rule in rules.items() if rule.name() == wanted.lower()]
    if by_name or not wanted:
        return by_name
    if wanted.upper() in rules:
        return [wanted.upper()]
    return [code for code in rules if code.startswith(wanted.upper())]


def _unknown(rules: Mapping[str, Any], wanted: str) -> str:
    if wanted.upper() in RETIRED:
        return f"{wanted.upper()} was retired: {RETIRED[wanted.upper()]}"
    from difflib import get_close_matches  # noqa: PLC0415 - to refuse only

    names = [*rules, *(rule.name() for rule in rules.values())]
    near = get_close_matches(wanted.upper(), names, n=1) or get_close_matches(
        wanted.lower(), names, n=1
    )
    hint = f"did you mean {near[0]}?" if near else "see `traceq rules`"
    return f"there is no rule {wanted!r}: {hint}"
