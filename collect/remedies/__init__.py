"""Remedies: what a rule advises, switched on and off in a program that runs.

One file each, named after the remedy, with a class ``Remedy``. A file is imported when
the remedy is asked for: a recording imports none.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from importlib import import_module
from typing import Any, Mapping

from . import base

# The order in which they are tried where nothing predicts what they save.
NAMES = (
    "tf32",
    "fused_optimizer",
    "foreach_optimizer",
    "sdpa_backend",
    "pinned_copy",
    "gc_freeze",
    "cudnn_benchmark",
    "channels_last",
    "set_to_none",
    "validate_args",
    "no_checkpointing",
    "compile",
    "compile_reduce_overhead",
    "dataloader",
    "allocator",
)
CONTROL = "no_op"


def load(name: str) -> Any:
    """Return a new remedy of this name; raise ``KeyError`` if there is none."""
    if name not in NAMES and name != CONTROL:
        raise KeyError(name)
    return import_module(f".{name}", __package__).Remedy()


@cache
def facts(name: str) -> dict[str, Any]:
    """Return what a remedy says of itself, from its file: torch is not needed."""
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    with open(file, encoding="utf-8") as stream:
        tree = ast.parse(stream.read())
    body = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "Remedy"
    )
    said = {key: getattr(base.Base, key) for key in _FACTS}
    for node in body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        key = getattr(target, "id", "")
        if key in said:
            said[key] = _value(node.value)  # type: ignore[attr-defined]
    return said


_FACTS = ("rules", "advice", "summary", "when", "kind", "edit", "slow", "environment")


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return getattr(base, node.id)
    return ast.literal_eval(node)


def of_rule(rule: str) -> list[str]:
    """Return the names of the remedies that address a rule."""
    return [name for name in NAMES if rule in facts(name)["rules"]]


def of_finding(rule: str, advice: str) -> list[str]:
    """Return the names of the remedies that do what a finding advises."""
    return [
        name
        for name in NAMES
        for known in [facts(name)]
        if rule in known["rules"] and known["advice"] in advice
    ]


def addressed(
    name: str, predictions: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return what is predicted of a remedy, by the rules of its findings."""
    return {
        rule: entry["remedies"][name]
        for rule, entry in predictions.items()
        if name in entry["remedies"]
    }
