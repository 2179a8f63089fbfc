"""Add trials to the ledger.

    python benchmarks/ledger/add.py FOLDER...

A folder is one of `traceq try` or `python collect try`. What it measured is written to
benchmarks/ledger/trials/NAME.json, where NAME is the folder's: blocks, outcomes and
predictions, without paths, commands and names of machines. Outcomes are computed from
the blocks by the rules of this version. A trial on a machine with torch alone predicts
nothing: its recordings are linted here.

A trial whose control has too few blocks is refused: nothing can be concluded from it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from collect.launcher import linting, outcomes, try_options  # noqa: E402
from collect.shared import differences  # noqa: E402

TRIALS = HERE / "trials"
_LINT = [sys.executable, "-m", "traceq", "lint", "--format", "json", "--no-cache"]
_FACTS = ("tool", "version", "state", "minutes", "seconds", "started", "asked")
_BLOCK = ("run", "base", "on", "median_ms", "mean_ms", "p10_ms", "discarded")
_REMEDY = (
    *("remedy", "class", "outcome", "why", "n", "ms", "half_width_ms", "smallest_ms"),
    *("share", "predicted", "proof", "compile_seconds", "pays_off_after_steps"),
)
_CONTROL = ("outcome", "n", "ms", "half_width_ms", "smallest_ms", "deviation_ms")
_KEPT = ("remedies", "n", "ms", "half_width_ms", "predicted_ms", "share")
_FOLDERS = re.compile(r"(?<![\w.])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\":]+[/\\])*")


class UnusableError(Exception):
    """A trial that says nothing."""


def row(folder: Path, name: str) -> dict[str, Any]:
    """Return what the ledger keeps of a trial."""
    trial = json.loads((folder / "try.json").read_text(encoding="utf-8"))
    blocks = [
        {key: block[key] for key in _BLOCK if block.get(key) not in (None, "")}
        for block in trial.get("blocks") or []
    ]
    state = {
        "blocks": blocks,
        "statistic": _statistic(trial, blocks),
        "remedies": {remedy["remedy"]: _facts(remedy) for remedy in trial["remedies"]},
        "kept": (trial.get("kept") or {}).get("remedies", []),
    }
    predictions, bound = _predictions(folder, trial, state)
    figures = outcomes.outcomes(state, predictions)
    control = figures["control"]
    if control is None or control["n"] < differences.FEWEST:
        count = control["n"] if control else 0
        least = differences.FEWEST
        msg = f"the control has {count} blocks, fewer than {least}: try it for longer"
        raise UnusableError(msg)
    return {
        "program": name,
        **{key: trial[key] for key in _FACTS if key in trial},
        "device": ((trial.get("devices") or [{}])[0]).get("name"),
        "torch": (trial.get("versions") or {}).get("torch"),
        "bound": bound,
        "as_it_is": figures["as_it_is"],
        "control": _picked(control, _CONTROL),
        "restart_control": _picked(figures["restart_control"], _CONTROL),
        "remedies": [_stripped(remedy) for remedy in figures["remedies"]],
        "kept": _picked(figures["kept"], _KEPT),
        "blocks": blocks,
    }


def _statistic(trial: dict[str, Any], blocks: list[Any]) -> str:
    """Return the figure of a block that this version compares."""
    known = trial.get("statistic")
    return known if known == "mean_ms" else differences.statistic(blocks)


def _facts(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a remedy from its outcome."""
    outcome, why = entry["outcome"], entry["why"]
    facts = {
        "error": why if outcome == differences.FAILED else "",
        "why": why if outcome == differences.NOT_APPLIED else "",
        "late": why if outcome == differences.INCONCLUSIVE else "",
        "proof": entry.get("proof"),
    }
    seconds = {"compile_seconds": entry.get("compile_seconds")}
    return {**facts, **{key: one for key, one in seconds.items() if one}}


def _predictions(
    folder: Path, trial: dict[str, Any], state: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """Return the predictions of a trial, and what bounds its step."""
    predicted = trial.get("predictions") or {}
    bound = next((entry.get("bound") for entry in predicted.values()), None)
    if predicted or not (folder / "plain" / "run.json").is_file():
        return predicted, bound
    with tempfile.TemporaryDirectory() as place:
        linter = linting.Linter(_LINT, folder / "plain", Path(place))
        linter.wait(linting.LINT_S)
        if not linter.read():
            return {}, None
        predicted = try_options.predictions(str(linter.file))
        report = json.loads(linter.file.read_text(encoding="utf-8"))
        linting.prove(state, folder, predicted, _LINT, Path(place))
    bounds = [
        (recording.get("bound") or {}).get("by") for recording in report["recordings"]
    ]
    return predicted, next(filter(None, bounds), None)


def _picked(entry: dict[str, Any] | None, keys: tuple[str, ...]) -> Any:  # noqa: ANN401
    return None if entry is None else {key: _rounded(entry[key]) for key in keys}


def _stripped(entry: dict[str, Any]) -> dict[str, Any]:
    retained = {
        key: _rounded(entry[key]) for key in _REMEDY if entry.get(key) is not None
    }
    retained["why"] = without_folders(entry["why"])
    proof = retained.pop("proof", None)
    if proof is not None:
        retained["proof"] = {key: proof[key] for key in proof if key != "text"}
    return {"n": 0, "predicted": None, **retained}


def without_folders(text: str) -> str:
    """Return a text whose paths are the names of files."""
    return _FOLDERS.sub("", text)


def _rounded(value: Any) -> Any:  # noqa: ANN401 - of JSON
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def text(entry: dict[str, Any]) -> str:
    """Return a row as JSON, with a line for each block and each remedy."""
    lines = []
    for key, value in entry.items():
        shown = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            shown = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        lines.append(f" {json.dumps(key)}: {shown}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(folders: list[str]) -> int:
    """Add each folder; say which were refused, and why."""
    if not folders:
        sys.exit(__doc__)
    refused = 0
    for folder in map(Path, folders):
        name = folder.resolve().name
        try:
            entry = row(folder, name)
        except (OSError, ValueError, KeyError, UnusableError) as error:
            refused += 1
            print(f"{name}: not added: {error}")
            continue
        file = TRIALS / f"{name}.json"
        file.write_text(text(entry), encoding="utf-8")
        result = [
            f"{remedy['remedy']} {remedy['outcome']}" for remedy in entry["remedies"]
        ]
        print(f"{name}: {', '.join(result) or 'no remedy applied'}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
