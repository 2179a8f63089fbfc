"""The cases by which an allocation gets its category: an example of each, drawn."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import polars as pl
import pytest

from traceq.analysis.memory import categories
from traceq.analysis.memory.history import History
from traceq.formats.snapshot import read_snapshot
from traceq.testing import draw_history

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
CALL = "torch/nn/modules/module.py:1 _call_impl"
NAMES = f"""
    linear = at::_ops::linear::call, model.py:5 forward, {CALL}
    bmm = at::_ops::bmm::call, model.py:6 attend, {CALL}
    softmax = at::_ops::_softmax::call, model.py:7 attend, {CALL}
    loss = at::_ops::_log_softmax::call, at::_ops::cross_entropy_loss::call
    gradient = MmBackward0::apply, torch::autograd::Engine::thread_main
    update = at::_ops::zeros_like::call, torch/optim/adamw.py:90 step, train.py:12 step
    bucket = c10d::Reducer::initialize_buckets, train.py:4 main
    workspace = at::cuda::getCUDABlasLtWorkspace, train.py:9 step
    moved = at::_ops::to::call, torch/nn/modules/module.py:9 _apply, train.py:3 main
    graph = at::_ops::empty::call, torch/cuda/graphs.py:9 __enter__, train.py:3 main
"""
PASSES = "    region      [forward      ][backward   ][optimizer][forward ]\n"
FOUR_GRADIENTS = "    gradient                     [8M          ]\n" * 4


def drawing(*lines: str) -> str:
    return NAMES + PASSES + "\n".join(f"    {line}" for line in lines)


def from_before(*sizes: str) -> str:
    """Draw blocks from before the history, and a backward with four gradients."""
    blocks = "\n".join(f"    kept{at}      <{size}" for at, size in enumerate(sizes))
    return NAMES + PASSES + FOUR_GRADIENTS + blocks


ATTENTION = drawing("bmm          [8M  ]", "softmax         [4M          ]")
LOGITS = drawing("linear       [5M        ]", "loss            [10M    ]")
NO_BACKWARD = "region [forward ]\n    kept   <5M\n    linear  [3M ]"
# Outside of modules, while a backward runs, which no region is around.
BETWEEN = (
    NAMES
    + """
    gradient    [1M ]
    update              [1M ]
    train.py:4 main          [{}
    gradient                     [2M ]
"""
)
CERTAIN, LIKELY, GUESS = categories.CONFIDENCE
EXAMPLES = {
    3: (drawing("bucket       [8M"), 8, "communication buffers", CERTAIN),
    4: (drawing(f"update {'[3M ]':>36}"), 3, "temporaries", CERTAIN),
    5: (drawing(f"update {'[5M':>34}"), 5, "optimizer state", CERTAIN),
    6: (drawing("workspace      [32M"), 32, "temporaries", CERTAIN),
    7: (drawing("loss           [5M      ]"), 5, "logits and loss", CERTAIN),
    8: (LOGITS, 5, "logits and loss", LIKELY),
    9: (ATTENTION, 4, "attention scores", CERTAIN),
    10: (ATTENTION, 8, "attention scores", LIKELY),
    11: (from_before(*["8M"] * 12), 8, "weights", LIKELY),
    12: (from_before(*["8M"] * 11), 8, "weights", GUESS),
    13: (from_before(*["8M"] * 12), 8, "optimizer state", LIKELY),
    14: (from_before(*["8M"] * 11), 8, "optimizer state", GUESS),
    15: (from_before(*["8M"] * 4, *["16M"] * 8), 16, "optimizer state", LIKELY),
    16: (drawing("kept        <5M", "bucket       [5M"), 5, "activations", LIKELY),
    17: (from_before("32M"), 32, "temporaries", GUESS),
    18: (NAMES + NO_BACKWARD, 5, "weights", GUESS),
    19: (from_before(f"8M{']':>28}"), 8, "gradients", LIKELY),
    20: (drawing(f"gradient {'[7M          ]':>34}"), 7, "gradients", CERTAIN),
    21: (drawing(f"gradient {'[3M  ]':>26}"), 3, "temporaries", CERTAIN),
    22: (drawing("moved       [8M"), 8, "weights", CERTAIN),
    23: (drawing("linear       [3M  ]"), 3, "temporaries", CERTAIN),
    24: (drawing("linear       [8M              ]"), 8, "activations", CERTAIN),
    25: (drawing("linear       [5M"), 5, "activations", LIKELY),
    26: (BETWEEN.format("5M          ]"), 5, "activations", GUESS),
    27: (BETWEEN.format("5M]"), 5, "temporaries", GUESS),
}


CASES = categories._cases()  # noqa: SLF001 - the list that the examples are of


def others(number: int) -> Iterator[categories.Case]:
    """Return all cases but one."""
    return (case for at, case in enumerate(CASES, start=1) if at != number)


def decided(path: Path) -> set[tuple[int, str, str]]:
    """Return the size, the category and the confidence of each allocation."""
    rows = History(read_snapshot(path)).allocations.select(
        pl.col("size") // MIB, "category", "confidence"
    )
    return set(rows.iter_rows())


@pytest.mark.parametrize("number", EXAMPLES)
def test_each_case_decides_its_example(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, *expected = EXAMPLES[number]
    path = tmp_path / "drawn.pickle"
    path.write_bytes(pickle.dumps(draw_history(text)))

    assert tuple(expected) in decided(path)
    monkeypatch.setattr(categories, "_cases", lambda: [*others(number)])
    assert tuple(expected) not in decided(path)


@pytest.mark.parametrize(
    ("text", "confidence"),
    [("graph      [8M", "certain"), ("kept      <8M", "guess")],
    ids=["1", "2"],
)
def test_a_private_pool_is_a_graphs(text: str, confidence: str, tmp_path: Path) -> None:
    content = draw_history(NAMES + text)
    content["segments"][0]["segment_pool_id"] = (0, 1)
    path = tmp_path / "drawn.pickle"
    path.write_bytes(pickle.dumps(content))

    assert decided(path) == {(8, "CUDA-graph pools", confidence)}


def test_every_case_has_its_example() -> None:
    assert [*EXAMPLES] == [*range(3, len(CASES) + 1)]


def test_a_gradient_that_belongs_to_no_weight_hides_no_state(tmp_path: Path) -> None:
    """The gradient of an input outlives the backward too, and nothing of its size."""
    stray = "    gradient                      [5M         ]\n"
    path = tmp_path / "drawn.pickle"
    path.write_bytes(
        pickle.dumps(draw_history(from_before(*["8M"] * 12) + "\n" + stray))
    )

    retained = History(read_snapshot(path)).allocations.filter(
        pl.col("alloc").is_null()
    )

    assert retained["category"].value_counts().sort("count").rows() == [
        ("weights", 4),
        ("optimizer state", 8),
    ]
