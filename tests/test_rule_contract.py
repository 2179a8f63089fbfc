"""The rule contract: what rules import, and how long their files are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT

import traceq.linter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = sorted((ROOT / "rules").glob("*/*.py"))
PAGE = (ROOT / "rules" / "README.md").read_text(encoding="utf-8")
RULE_LINES = 250
# Names that rules import beside those of `traceq.linter`; it was 276 of 71 modules.
# A new rule adds none: what a second family asks for is in `traceq.linter`, or in a
# module that is listed, and what one family asks for is in a `_*.py` beside its rules.
MOST_NAMES = 58
# Members of listed modules that rules use, but for assumptions: each rule has its own.
MOST_MEMBERS = 118
# Some are modules, which are used by their members, as `assumptions.COPY_EFFICIENCY`.
ALLOWED = {
    "traceq.analysis.base": "assumptions callers ownership",
    "traceq.analysis.base.gpu_idle": "busy_spans idle_gaps",
    "traceq.analysis.base.profiler_overhead": "recorder_keeps recorder_overhead",
    "traceq.analysis.base.start_up": "start_up",
    "traceq.analysis.base.steady": "SteadySteps in_steps steady_steps",
    "traceq.analysis.base.sync_calls": "TO_GPU copy_directions",
    "traceq.analysis.memory": "fragmentation oom_changes",
    "traceq.analysis.memory.leaks": "memory_leaks",
    "traceq.analysis.memory.weight_copies": "weight_copies",
    "traceq.analysis.patterns": (
        "attention compilation compile_reasons iteration_marks kv_cache matmul"
        " optimizers"
    ),
    "traceq.analysis.patterns.attention_handwritten": (
        "handwritten_attention writes_attention"
    ),
    "traceq.analysis.patterns.collectives": "exposed_by_collective",
    "traceq.analysis.patterns.copies": "PARTS",
    "traceq.analysis.patterns.host_calls": "value_reads",
    "traceq.analysis.patterns.host_collectives": (
        "exposed_through_host serves_collective"
    ),
    "traceq.analysis.patterns.iterations": "iterations",
    "traceq.analysis.patterns.loops": "Loops loops",
    "traceq.analysis.patterns.weights_stored": "scaled_after",
    "traceq.analysis.replay.host_account": "HostAccount",
    "traceq.analysis.replay.simulation": "Change NO_SPANS",
    "traceq.analysis.time": "device_syncs host_activity serving",
    "traceq.analysis.time.launch_overhead": "launches_outside_captures",
    "traceq.analysis.time.new_sizes": "in_model new_sizes",
    "traceq.analysis.time.op_calls": "on_host",
    "traceq.analysis.time.roofline": "roofline",
    "traceq.common": "intervals",
    "traceq.common.expressions": "elements",
    "traceq.common.words": "times",
    "traceq.linter.minor": "WORTH_FIXING",
    "traceq.model": "dtypes names",
    "traceq.model.finding": "Json",
    "traceq.model.owners": "third_party",
    "traceq.model.run": "CompiledPlace",
    "traceq.model.torch_versions": "version",
    "traceq.ranks.analysis": "Analysis Straggler",
}
MODULES = {
    name
    for module, names in ALLOWED.items()
    for name in names.split()
    if name != "assumptions"
    and (ROOT / module.replace(".", "/") / f"{name}.py").is_file()
}
OTHERS = {"polars", "__future__", *sys.stdlib_module_names}


def imports(file: Path) -> Iterator[tuple[str, str, int]]:
    """Yield module, name and level of all imports of a file, those in functions too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from ((module, alias.name, node.level) for alias in node.names)


@pytest.mark.parametrize(
    "file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}"
)
def test_a_file_of_rules_keeps_to_the_contract(file: Path) -> None:
    lines = len(file.read_text(encoding="utf-8").splitlines())
    allowed = {(module, name) for module in ALLOWED for name in ALLOWED[module].split()}

    assert lines <= RULE_LINES
    for module, name, level in imports(file):
        if level:
            # A sibling of the same family that is no rule.
            assert level == 1
            assert (file.parent / f"{module}.py").is_file()
            assert module.startswith("_")
        elif module == "traceq.linter":
            assert name in traceq.linter.__all__
        else:
            root = module.partition(".")[0]
            assert root in OTHERS or (module, name) in allowed, (module, name)


def test_the_list_of_what_rules_import_is_short_and_all_of_it_is_used() -> None:
    used = defaultdict(set)
    for file in FILES:
        for module, name, level in imports(file):
            if not level and module.startswith("traceq") and module != "traceq.linter":
                used[module].add(name)

    assert {module: " ".join(sorted(used[module])) for module in used} == ALLOWED
    assert sum(map(len, used.values())) <= MOST_NAMES


@pytest.mark.real
def test_few_members_of_listed_modules_are_used() -> None:
    members = set()
    for file in FILES:
        modules = {name for module, name, level in imports(file) if not level}
        modules &= MODULES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = node.value.id
                if module in modules:
                    members.add((module, node.attr))

    assert len(members) <= MOST_MEMBERS


def test_every_name_of_the_linter_is_there_and_on_the_page() -> None:
    names = traceq.linter.__all__

    assert [name for name in names if not hasattr(traceq.linter, name)] == []
    assert [name for name in names if not re.search(rf"`{name}[`(]", PAGE)] == []


def test_a_name_of_the_linter_is_imported_when_it_is_asked_for() -> None:
    code = "import sys, traceq.linter; print('polars' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "False\n"
