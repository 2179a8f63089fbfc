"""Tests that a reworded finding breaks, beside its rule's examples and the goldens.

    python benchmarks/reword.py SYN001 CPY001 LCH002 ATT001 MEM003

Replaces the verbs in the sentence of each rule's findings, and leaves its facts: what,
where and how often. Runs the tests that mention the rule, one rule at a time, and
prints those that fail. Exits 1 if these are more than two of a rule. ``--all`` runs all
tests that are not slow.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from traceq.linter.pack import load_rules
from traceq.model.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Generator

_ROOT = Path(__file__).resolve().parents[1]
_CODE = "TRACEQ_REWORDED"
_MOST = 2
_FAILED = "reworded: "
# No word replaces another's replacement, so that a finding is reworded once.
_WORDS = dict(
    pair.split(":")
    for pair in (  # noqa: SIM905 - a table
        "makes:lets wait:sleep waits:sleeps takes:needs runs:goes"
        " run:go leaks:loses copies:moves spends:uses splits:divides idles:rests"
        " computes:derives keeps:holds falls:drops launches:starts"
    ).split()
)
_SMALL = re.compile(rf"(?<![\w.:`])({'|'.join(_WORDS)})(?![\w.:`])")


def reworded(sentence: str) -> str:
    """Return a sentence in other words, with the same facts.

    >>> reworded("aten::item waits for the GPU 3 times")
    'aten::item sleeps for the GPU 3 times'
    """
    return _SMALL.sub(lambda word: _WORDS[word[1]], sentence)


def pytest_configure() -> None:
    """Reword what a rule finds: this module is a plugin of pytest, too."""
    code, made = os.environ[_CODE], Finding.__init__

    def init(finding: Finding, *values: object, **named: object) -> None:
        made(finding, *values, **named)  # type: ignore[arg-type]
        if finding.code == code:
            object.__setattr__(finding, "message", reworded(finding.message))

    Finding.__init__ = init  # type: ignore[assignment, method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name a test that fails, unless it holds sentences."""
    report = yield
    holds_sentences = item.get_closest_marker("golden") is not None
    if report.failed and not holds_sentences:
        sys.__stdout__.write(f"\n{_FAILED}{item.nodeid}\n")  # type: ignore[union-attr]
    return report


def main() -> int:
    """Run the tests with one rule after the other reworded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codes", nargs="+", metavar="CODE")
    parser.add_argument("--all", action="store_true", help="run all tests, not slow")
    options = parser.parse_args()
    most = 0
    for code in options.codes:
        files = ["tests"] if options.all else _mentioning(code)
        broken = _broken(code, files)
        most = max(most, len(broken))
        print(f"{code}: {len(broken)} tests of {len(files)} files break")
        print("".join(f"  {test}\n" for test in broken), end="", flush=True)
    return int(most > _MOST)


def _mentioning(code: str) -> list[str]:
    """Return the files of tests that mention a rule, by its code or name."""
    mentioned = re.compile(rf"\b({code}|{load_rules()[code].name()})\b")
    return [
        str(file)
        for file in sorted((_ROOT / "tests").rglob("test_*.py"))
        if mentioned.search(file.read_text(encoding="utf-8"))
    ]


def _broken(code: str, files: list[str]) -> list[str]:
    """Return the tests that fail with a rule reworded."""
    command = [sys.executable, "-m", "pytest", "-p", "reword", "-q", "--tb=no"]
    path = os.pathsep.join(
        (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    )
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-m", "not slow and not collect", *files],
        cwd=_ROOT,
        env={**os.environ, _CODE: code, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode not in (0, 1):
        sys.exit(done.stdout + done.stderr)
    failed = (line.removeprefix(_FAILED) for line in lines if line.startswith(_FAILED))
    return sorted(set(failed))


if __name__ == "__main__":
    sys.exit(main())
