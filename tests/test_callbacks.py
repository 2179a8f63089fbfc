"""Callbacks of training libraries record a run folder: with the real libraries."""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from collecting import WITH_TORCH, Late

import traceq

if TYPE_CHECKING:
    from pathlib import Path

torch: Any = Late("torch")
QUICK: dict[str, Any] = {"warmup": 2, "timed": 3, "active": 2, "overhead": False}

pytestmark = [
    *WITH_TORCH,
    # Their own, of one another.
    pytest.mark.filterwarnings("ignore"),
]
with_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed"
)
with_lightning = pytest.mark.skipif(
    find_spec("lightning") is None, reason="lightning is not installed"
)


def rank_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "rank-0.json").read_text())
    return document


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def rows(count: int) -> list[dict[str, Any]]:
    return [{"x": torch.randn(8), "labels": torch.zeros(1)} for _ in range(count)]


def train_with_transformers(folder: Path, callback: Any, steps: int) -> None:  # noqa: ANN401
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:  # noqa: ANN401
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    arguments = TrainingArguments(
        output_dir=str(folder / "model"),
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(
        model=Model(),
        args=arguments,
        train_dataset=rows(4 * steps),
        callbacks=[callback],
    ).train()


@pytest.mark.slow
@with_transformers
def test_a_trainer_of_hugging_face_records_its_steps(tmp_path: Path) -> None:
    from traceq.callbacks.huggingface import TraceqCallback  # noqa: PLC0415

    callback = TraceqCallback(out=tmp_path / "runs", **QUICK)
    train_with_transformers(tmp_path, callback, steps=12)

    rank = rank_of(callback.folder)
    assert rank["state"] == "done"
    assert rank["steps"]["by"] == "call"
    assert rank["trace"]["steps"] == [1, 2]
    # Two batches are one step of the optimizer.
    calls = traceq.load(callback.folder).frames.filter(function="forward", own=True)
    assert calls.height == 2 * 2
    assert traceq.lint(callback.folder).report.outcomes[0].steps == 2


@pytest.mark.slow
@with_transformers
def test_training_goes_on_where_nothing_can_be_recorded(tmp_path: Path) -> None:
    from traceq.callbacks.huggingface import TraceqCallback  # noqa: PLC0415

    callback = TraceqCallback(out=tmp_path / "runs", **QUICK)
    with (
        warnings.catch_warnings(record=True) as warning_messages,
        torch.profiler.profile(),
    ):
        warnings.simplefilter("always")
        train_with_transformers(tmp_path, callback, steps=2)

    assert any(
        "traceq records nothing: torch's profiler" in str(warning_message)
        for warning_message in warning_messages
    )
    assert callback.folder is None


def train_with_lightning(folder: Path, callback: Any, steps: int) -> None:  # noqa: ANN401
    import lightning  # noqa: PLC0415

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, number: int) -> Any:  # noqa: ANN401
            assert number < 40, "mine"
            return (self.layer(batch["x"]) ** 2).mean()

        def configure_optimizers(self) -> Any:  # noqa: ANN401
            return torch.optim.SGD(self.parameters(), lr=0.1)

    lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        accumulate_grad_batches=2,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    ).fit(Model(), torch.utils.data.DataLoader(rows(4 * steps), batch_size=2))


@pytest.mark.slow
@with_lightning
def test_a_trainer_of_lightning_records_its_steps(tmp_path: Path) -> None:
    from traceq.callbacks.lightning import TraceqCallback  # noqa: PLC0415

    callback = TraceqCallback(out=tmp_path / "runs", name="mine", **QUICK)
    train_with_lightning(tmp_path, callback, steps=12)

    rank = rank_of(callback.folder)
    assert callback.folder == tmp_path / "runs" / "mine"
    assert rank["state"] == "done"
    assert rank["trace"]["steps"] == [1, 2]
    frames = traceq.load(callback.folder).frames
    calls = frames.filter(function="training_step", own=True)
    assert calls.height == 2 * 2


@with_lightning
@pytest.mark.slow
def test_an_error_of_the_training_passes_and_leaves_what_there_is(
    tmp_path: Path,
) -> None:
    from traceq.callbacks.lightning import TraceqCallback  # noqa: PLC0415

    callback = TraceqCallback(out=tmp_path / "runs", **{**QUICK, "timed": 50})
    with pytest.raises(AssertionError, match="mine"):
        train_with_lightning(tmp_path, callback, steps=30)

    assert rank_of(callback.folder)["state"] == "ended early"
    assert any("the training raised AssertionError" in why for why in callback.missing)
