"""Score of lint's reports on recorded OOMs: cause, line, first advice.

``python benchmarks/oom/score.py OUT``, where ``record.py`` has written; no GPU needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import traceq

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Print a row for each program, and the totals."""
    out = Path(sys.argv[1])
    expected = json.loads((HERE / "expected.json").read_text())
    results = json.loads((out / "results.json").read_text())
    rows = {
        name: score(out / name, results.get(name), expected[name]) for name in expected
    }
    for name, row in rows.items():
        print(f"{name:12}", json.dumps(row))
    for what in ("cause", "line", "fixed", "same_end"):
        right = sum(bool(row.get(what)) for row in rows.values())
        print(f"{what}: {right} of {len(rows)}")


def score(
    folder: Path, result: dict[str, Any] | None, expected: dict[str, Any]
) -> dict[str, Any]:
    """Return which of the expectations the findings of a run meet."""
    if result is None or not folder.is_dir():
        return {"missing": True}
    (outcome,) = traceq.lint(folder).report.outcomes
    findings = [item for item in outcome.findings if item.code == "MEM010"]
    if not findings:
        return {"cause": False, "why": "no MEM010"}
    finding = findings[0]
    changes: Any = finding.data["changes"]
    first = changes[0] if changes else {}
    at = f"{finding.place.file}:{finding.place.line}"
    if (
        expected["change"] == "leak"
    ):  # what fails is any allocation; the leak has a line
        at = str(first.get("subject", "")).partition(" ")[0]
    plain, recorded = result["plain"], result["recorded"]
    return {
        "cause": first.get("change") == expected["change"]
        and expected["phase"] in (None, finding.data["phase"]),
        "line": at == f"{expected['file']}:{line_of(expected)}",
        "fixed": result["fixed"]["status"] == 0,
        "same_end": (plain["status"], bool(plain["error"]))
        == (recorded["status"], bool(recorded["error"])),
        "first": first.get("change"),
        "enough": first.get("enough"),
        "at": at,
        "advice": finding.advice,
    }


def line_of(expected: dict[str, Any]) -> int:
    """Return the number of the marked line."""
    lines = (HERE / "programs" / expected["file"]).read_text().splitlines()
    (number,) = [
        number for number, line in enumerate(lines, 1) if expected["marker"] in line
    ]
    return number


if __name__ == "__main__":
    main()
