"""Write the table of recordings in docs/record.md from ``results.jsonl``.

    python benchmarks/recordings/table.py

"Plain" is the program without ``collect``: a profile of six later steps, or of the
same ones, and the range of its step time over as many successive steps as ``collect``
times, in the plain run and after the recording in the other.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_PAGE = _HERE.parents[1] / "docs" / "record.md"
_BEGIN, _END = "<!-- recordings -->\n", "<!-- end of recordings -->"
_SAME_GPU_TIME, _SAME_STEP_TIME = 0.10, 0.03
# Steps as collect counts them that are one step of the author.
_STEPS_OF_AUTHOR = {"cleanrl_ppo": 16, "segment_anything": 3}
_NOTES = {
    "cleanrl_dqn": "a varying number of environment steps",
    "cleanrl_ppo": "16 optimizer steps are one iteration; all 16 are recorded;"
    " step time: four programs ran at once",
    "cleanrl_sac": "same kernels, GPU shared with three other programs",
    "clip_linear_probe": "step time: four programs ran at once",
    "cuda_graph_training": "counts replays queued before the trace",
    "gpytorch_exact_gp": "a varying number of solver iterations",
    "hf_assisted_gpt2": "drafts of varying length",
    "imagenet_dummy": "step time: two programs shared the GPU",
    "lightning_autoencoder": "same kernels, 0.2 ms of them",
    "ddp_spawn": "same kernels, 0.02 ms of them",
    "nanogpt_train": "counts kernels queued before the trace; GPU shared",
    "peft_lora": "sequences of varying length",
    "raft_optical_flow": "step time: two programs ran at once",
    "segment_anything": "3 prompts are one image; all 3 are recorded",
    "service_streamer_threaded": "batches of 1, later of 64",
    "torchdiffeq_ode_demo": "a varying number of solver steps",
    "tv_evaluate": "the plain run was too short to be profiled",
    "unet": "step time: evaluation falls into some steps",
    "whisper": "step time: four programs ran at once",
    "x_transformers": "prints randomly sampled text",
}


def main() -> None:
    """Write the table."""
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _PAGE.write_text(before + _BEGIN + table() + _END + after, encoding="utf-8")


def table() -> str:
    """Return the summary and the table, in Markdown."""
    lines = (_HERE / "results.jsonl").read_text(encoding="utf-8").splitlines()
    rows = sorted((_row(json.loads(line)) for line in lines), key=_order)
    columns = (
        *("program", "steps", "GPU ms per step", "plain", "kernels", "plain"),
        *("step ms", "plain", "pause s", "note"),
    )
    header = f"| {' | '.join(columns)} |\n| --- | --- |{' ---: |' * 7} --- |\n"
    return f"{_summary(rows)}\n\n{header}{''.join(map(_cells, rows))}"


def _row(result: dict[str, Any]) -> dict[str, Any]:
    plain, recorded = result["plain"][0], result["recorded"][0]
    name, traced = result["name"], max(recorded["traced_steps"], 1)
    per = _STEPS_OF_AUTHOR.get(name, 1)
    ranges = [
        entry["step_range_ms"] for entry in (plain, recorded) if entry["step_range_ms"]
    ]
    row = {
        "name": name,
        "kind": result["kind"],
        "by": recorded["counted_steps"]["of"],
        "gpu_ms": recorded["gpu_ms"] / traced * per,
        "plain_gpu_ms": plain.get("gpu_ms"),
        "kernels": recorded["kernels"] / traced * per,
        "plain_kernels": plain.get("kernels"),
        "step_ms": recorded["step_ms"] * per,
        "range_ms": [min(item[0] for item in ranges), max(item[1] for item in ranges)],
        "pause_s": recorded["pause_s"],
        "unchanged": recorded["status"] == 0 and result["output_is_the_same"],
    }
    least, most = row["range_ms"]
    row["step_agrees"] = (
        least * (1 - _SAME_STEP_TIME) <= row["step_ms"] <= most * (1 + _SAME_STEP_TIME)
    )
    row["gpu_agrees"] = bool(row["plain_gpu_ms"]) and (
        abs(row["gpu_ms"] / row["plain_gpu_ms"] - 1) <= _SAME_GPU_TIME
    )
    return row


def _order(row: dict[str, Any]) -> tuple[bool, str]:
    return row["kind"] != "training", row["name"]


def _summary(rows: list[dict[str, Any]]) -> str:
    training = sum(row["kind"] == "training" for row in rows)
    pauses = [row["pause_s"] for row in rows]
    both = sum(row["gpu_agrees"] and row["step_agrees"] for row in rows)
    return (
        f"{len(rows)} programs, {training} of them training:"
        f" {sum(row['kernels'] > 0 for row in rows)} recordings contain GPU work;"
        f" of {sum(row['gpu_agrees'] for row in rows)} the GPU time per step is within"
        f" 10% of the plain profile; of {sum(row['step_agrees'] for row in rows)} the"
        f" true step time is within the program's own range; of {both} both hold."
        f"\nThe exit status is unchanged in all, the output in"
        f" {sum(row['unchanged'] for row in rows)}. Recording stopped the programs"
        f" for {statistics.median(pauses):.1f} s at the median,"
        f" {max(pauses):.1f} s at most."
    )


def _cells(row: dict[str, Any]) -> str:
    kind = "" if row["kind"] == "training" else " (inference)"
    least, most = row["range_ms"]
    cells = (
        row["name"] + kind,
        row["by"],
        _number(row["gpu_ms"]),
        _number(row["plain_gpu_ms"]),
        _number(row["kernels"]),
        _number(row["plain_kernels"]),
        _number(row["step_ms"]),
        f"{_number(least)} to {_number(most)}",
        f"{row['pause_s']:.1f}",
        _NOTES.get(row["name"], ""),
    )
    return f"| {' | '.join(cells)} |\n"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
