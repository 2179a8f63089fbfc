"""The configuration: ``traceq.toml``, or ``[tool.traceq]`` in ``pyproject.toml``."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from traceq.common import toml
from traceq.errors import ConfigError
from traceq.linter.select import ALL, find_rule
from traceq.model.finding import Severity
from traceq.model.lint_report import Allow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from traceq.linter.pack import Rules
    from traceq.linter.rule import Rule

_OWN_FILE = "traceq.toml"
_SHARED_FILE = "pyproject.toml"
_BUDGETS = "budgets"
# [tool.traceq] in each way of TOML: as a table, inside of [tool], or as a key; and keys
# with escapes, which may be any.
_MAY_SET = (
    rb"""^[ \t]*\[*[ \t]*["']?tool["']?[ \t]*(?:[]=]|\.[ \t]*["']?traceq)"""
    rb"""|^[^=\n]*\\"""
)


class Config(Struct, frozen=True):
    """Selection of rules, their options, and the severities that fail a run."""

    packs: tuple[Path, ...] = ()
    select: tuple[str, ...] = (ALL,)
    ignore: tuple[str, ...] = ()
    fail_on: Severity = Severity.warning
    min_cost_us: float = 0
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options, by the rules' codes or names."""
    allow: tuple[Allow, ...] = ()
    budgets: Mapping[str, Any] = field(default_factory=dict)
    """Limits of a fixture's numbers; ``traceq check`` reads them."""
    budget: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Limits of steps that are checked in tests, by name; the pytest plugin reads
    them."""
    own_code: frozenset[str] = frozenset()
    """Packages and modules that are the user's own, whatever they are called."""
    steps_by: str = ""
    """The source of the steps; empty for the first one that has any."""
    file: Path | None = None


def find_config(start: Path) -> Config:
    """Return the nearest configuration at or above a folder, or the default."""
    for folder in (start, *start.parents):
        own = folder / _OWN_FILE
        # A fixture's own file has only budgets, and the one above applies to it too.
        if own.is_file() and set(toml.read(own, ConfigError)) != {_BUDGETS}:
            return read_config(own)
        shared = folder / _SHARED_FILE
        if shared.is_file() and "traceq" in _tools(shared):
            return read_config(shared)
    return Config()


def _tools(file: Path) -> Mapping[str, Any]:
    """Return the tool table of a project's file; empty if it does not mention traceq.

    Most projects set nothing for it, and need not wait until their file is parsed.
    """
    with suppress(OSError):
        if not re.search(_MAY_SET, file.read_bytes(), re.MULTILINE):
            return {}
    return _table(file, toml.read(file, ConfigError), "tool")


def read_config(file: Path) -> Config:
    """Return the configuration that a file holds."""
    content = toml.read(file, ConfigError)
    if file.name == _SHARED_FILE:
        content = _table(file, _table(file, content, "tool"), "traceq")
    keys = {name.replace("_", "-") for name in Config.__struct_fields__} - {"file"}
    refuse_unknown(content, keys, f"{file}")
    readers: dict[str, Callable[[Any], Any]] = {
        "packs": lambda value: tuple(
            file.parent / entry for entry in _texts(file, "packs", value)
        ),
        "select": lambda value: tuple(_texts(file, "select", value)),
        "ignore": lambda value: tuple(_texts(file, "ignore", value)),
        "fail-on": lambda value: severity(str(value), f"{file}: fail-on"),
        "min-cost-us": lambda value: number(value, f"{file}: min-cost-us"),
        "rules": lambda value: _tables(file, value),
        "own-code": lambda value: own_names(
            _texts(file, "own-code", value), file.parent
        ),
        "steps-by": str,
        "allow": lambda value: _allows(file, value),
        "budget": lambda value: _tables(file, value, "budget", "budget.train"),
        _BUDGETS: lambda _: _table(file, content, _BUDGETS),
    }
    values = {
        key.replace("-", "_"): readers[key](value) for key, value in content.items()
    }
    return Config(**values, file=file)


def own_names(entries: Iterable[str], folder: Path) -> frozenset[str]:
    """Return the names of packages and modules that entries stand for.

    An entry is a name, or a path from the folder: of a package, of a module, or of a
    folder of them, as ``src``, which is all that is in it.
    """
    names: set[str] = set()
    for entry in entries:
        path = folder / entry
        names.add(path.stem if path.suffix == ".py" else path.name)
        if path.is_dir() and not (path / "__init__.py").exists():
            names |= {
                item.stem
                for item in path.iterdir()
                if item.is_dir() or _is_module(item)
            }
    return frozenset(name for name in names if name.isidentifier())


def _is_module(file: Path) -> bool:
    return file.suffix == ".py"


def severity(text: str, where: str) -> Severity:
    """Return the severity that a user named."""
    if text not in list(Severity):
        msg = f"{where} cannot be {text!r}: give " + ", ".join(Severity)
        raise ConfigError(msg)
    return Severity(text)


def refuse_unknown(
    content: Mapping[str, Any], allowed: Iterable[str], where: str
) -> None:
    """Raise ``ConfigError`` at the first key that is not known."""
    for key in content:
        if key not in allowed:
            from difflib import get_close_matches  # noqa: PLC0415 - to refuse only

            near = get_close_matches(key, list(allowed), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {sorted(allowed)}"
            msg = f"{where}: unknown key {key!r}: {hint}"
            raise ConfigError(msg)


def number(value: object, where: str) -> float:
    """Return a number of 0 or more; raise ``ConfigError`` if it is not one."""
    # TOML's nan is neither below nor above anything.
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value < math.inf
    ):
        return value
    msg = f"{where} must be a number of 0 or more, not {value!r}"
    raise ConfigError(msg)


def configured(rules: Rules, chosen: Rules, config: Config) -> list[Rule]:
    """Return the chosen of all rules, with the options that the user gave them."""
    options = {
        find_rule(rules, name).code: values for name, values in config.rules.items()
    }
    # All of them, so that a mistake shows even in options of a rule that does not run.
    made = {
        code: _made(rule, options.get(code, {}), config) for code, rule in rules.items()
    }
    return [made[code] for code in chosen]


def _made(rule: type[Rule], values: Mapping[str, Any], config: Config) -> Rule:
    if not values:
        return rule()
    options = {option.name: option for option in rule.options()}
    where = f"{config.file}: rules.{rule.name()}"
    refuse_unknown(values, options, where)
    for name, value in values.items():
        wanted = type(options[name].default)
        fits = isinstance(value, wanted) or (wanted is float and isinstance(value, int))
        if not fits or (wanted is not bool and isinstance(value, bool)):
            msg = f"{where}: {name} must be of type {wanted.__name__}, not {value!r}"
            raise ConfigError(msg)
    return rule(**{name.replace("-", "_"): value for name, value in values.items()})


def _table(file: Path, content: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        msg = f"{file}: {key} must be a table, not {table!r}"
        raise ConfigError(msg)
    return table


def _texts(file: Path, key: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(
        isinstance(entry, str) for entry in value
    ):
        msg = f"{file}: {key} must be a list of texts, not {value!r}"
        raise ConfigError(msg)
    return value


def _tables(
    file: Path, value: object, key: str = "rules", example: str = "rules.SYN001"
) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(
        isinstance(options, dict) for options in value.values()
    ):
        one = key.removesuffix("s")
        msg = f"{file}: {key} must hold a table for each {one}, as [{example}]"
        raise ConfigError(msg)
    return value


def _allows(file: Path, value: object) -> tuple[Allow, ...]:
    if not isinstance(value, list) or not all(
        isinstance(entry, dict) for entry in value
    ):
        msg = f"{file}: write each allowed finding as a table [[allow]]"
        raise ConfigError(msg)
    return tuple(_allow(file, entry) for entry in value)


def _allow(file: Path, entry: Mapping[str, Any]) -> Allow:
    refuse_unknown(entry, Allow.__struct_fields__, f"{file}: allow")
    for key in ("rule", "reason"):
        if not str(entry.get(key, "")).strip():
            msg = f"{file}: an entry of allow needs a {key}"
            raise ConfigError(msg)
    return Allow(**{key: str(value) for key, value in entry.items()})
