"""Labels of a program's tensors for the allocator's history."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from collecting import WITH_TORCH, module

from traceq.analysis.memory.labels import category_of

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = WITH_TORCH


@pytest.fixture
def labels() -> ModuleType:
    module_type: ModuleType = module("agent.memory_labels")
    return module_type


@pytest.mark.slow
def test_a_trained_model_has_all_its_tensors_labelled(labels: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    states = [t for state in optimizer.state.values() for t in state.values()]
    expected = {
        "traceq: parameters": list(model.parameters()),
        "traceq: gradients": [parameter.grad for parameter in model.parameters()],
        "traceq: buffers": list(model.buffers()),
        "traceq: optimizer state": states,
    }
    own = {id(t): label for label, tensors in expected.items() for t in tensors}
    result = {id(t): label for t, label in labels.labelled() if id(t) in own}

    assert result == own


def test_a_parameter_of_two_modules_is_labelled_once(labels: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight
    count = Counter(id(tensor) for tensor, _ in labels.labelled())

    assert count[id(first.weight)] == 1


def test_every_label_is_one_that_memory_reads(labels: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.BatchNorm1d(8)
    texts = {label for tensor, label in labels.labelled() if tensor is model.weight}

    assert {category_of(text) for text in texts} == {"weights"}


def test_a_torch_that_cannot_label_is_left_alone(labels: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    if hasattr(torch.cuda.memory, "_annotate_tensor"):
        pytest.skip("this torch can label")
    assert labels.annotate() == 0
