"""Rule packs: folders of rules, traceq's own and the user's, loaded one way."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias

from traceq.common.import_folder import mount, walk
from traceq.common.locations import bundled
from traceq.errors import PackError
from traceq.linter.need import Need
from traceq.linter.retired import RETIRED
from traceq.linter.rule import Bad, Good, Rule, Seen
from traceq.model.finding import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from types import ModuleType

Rules: TypeAlias = "Mapping[str, type[Rule]]"

# The module of a rule tells its pack: traceq's own is the first.
_MODULE = "_traceq_pack"
_LOADING = RLock()
_CODE = re.compile(r"[A-Z]{2,5}\d{3}")
# The required type of each class variable of a rule, in words.
_VARIABLES: dict[str, tuple[Any, str]] = {
    "since": (str, "text"),
    "severity": (Severity, "a Severity"),
    "needs": ((frozenset, set, tuple, list), "a set of Need"),
    "advice": (str, "text"),
    "examples": ((tuple, list), "a tuple of Bad and Good"),
    "seen": ((Seen, type(None)), "a Seen"),
    "see": ((tuple, list), "a tuple of texts"),
}
_MEMBERS: dict[str, Any] = {"needs": Need, "examples": (Bad, Good), "see": str}


def load_rules(packs: Iterable[Path] = ()) -> Rules:
    """Return traceq's rules and those of ``packs``, by code.

    Packs are read again each time, as their author may just have changed them. They
    are imported under names of which there is one: threads wait for each other.
    """
    with _LOADING:
        return _load_rules(packs)


def _load_rules(packs: Iterable[Path]) -> Rules:
    rules: dict[str, type[Rule]] = {}
    loaded = {
        folder: load_pack(folder, f"{_MODULE}{number}")
        for number, folder in enumerate(packs, 1)
    }
    for folder, pack_rules in ((bundled("rules"), _own_rules()), *loaded.items()):
        for rule in pack_rules:
            first = rules.setdefault(rule.code, rule)
            if first is not rule:
                msg = (
                    f"{rule.code} is both {first.__name__} and {rule.__name__}:"
                    f" give the one in {folder} another code"
                )
                raise PackError(msg)
    return dict(sorted(rules.items()))


@cache
def _own_rules() -> tuple[type[Rule], ...]:
    return tuple(load_pack(bundled("rules"), f"{_MODULE}0"))


def is_own(rule: type[Rule]) -> bool:
    """Say whether a rule is one of traceq's, and not of another pack."""
    return rule.__module__.startswith(f"{_MODULE}0.")


def load_pack(folder: Path, name: str) -> Iterator[type[Rule]]:
    """Yield the rules of one folder, imported under a private name."""
    if not folder.is_dir():
        msg = f"{folder} is not a rule pack: a pack is a folder of Python files"
        raise PackError(msg)
    mount(folder, name, edited=folder != bundled("rules"))
    try:
        for file, module in walk(folder, name):
            yield from _rules_in(file, module)
    except PackError:
        raise
    except Exception as error:
        msg = (
            f"the rule pack {folder} cannot be loaded: {type(error).__name__}: {error}"
        )
        raise PackError(msg) from error


def _rules_in(file: Path, module: ModuleType) -> Iterator[type[Rule]]:
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and issubclass(value, Rule)
            and value.__module__ == module.__name__
        ):
            fault = _fault(value)
            if fault:
                msg = f"{file}: {value.__name__} {fault}"
                raise PackError(msg)
            yield value


def _fault(rule: type[Rule]) -> str:
    """Say why a class cannot be used as a rule; empty if it can."""
    code = getattr(rule, "code", "")
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        return "needs a code such as SYN001"
    if code in RETIRED:
        return f"has the code {code}, which was retired and is never used again"
    # Without it, options are fields of a dataclass that nobody has filled in.
    if "__dataclass_fields__" not in vars(rule):
        return "must be a dataclass: write @dataclass(frozen=True) above it"
    for item in fields(rule):
        if item.default is MISSING and item.default_factory is MISSING:
            return f"needs a default for its option {item.name.replace('_', '-')}"
    return _wrong_variable(rule)


def _wrong_variable(rule: type[Rule]) -> str:
    """Return a clause on a class variable of the wrong type; empty if there is none."""
    for name, (kind, words) in _VARIABLES.items():
        value = getattr(rule, name)
        if not isinstance(value, kind) or (
            name in _MEMBERS
            and not all(isinstance(entry, _MEMBERS[name]) for entry in value)
        ):
            return f"has {name} of another type: it must be {words}"
    return ""
