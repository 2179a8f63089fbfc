"""Out of memory: what collect writes when it happens, and what lint says of it."""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

from collecting import WITH_TORCH, Late

from traceq.analysis.memory.oom import failures
from traceq.analysis.memory.oom_changes import changes, failure
from traceq.inputs.load_recording import load_recording
from traceq.inputs.options import LoadOptions
from traceq.linter.snapshot_view import snapshot_views
from traceq.testing.history import draw_history

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from traceq.linter.snapshot_view import SnapshotView

pytestmark = WITH_TORCH

torch = Late("torch")
open_code = Late("agent.open_code")
out_of_memory = Late("agent.out_of_memory")
rank_file = Late("agent.rank_file")
manifest = Late("shared.manifest")

GIB = 1 << 30
FULL = """
activation = torch/nn/modules/module.py:9 _call_impl, train.py:20 forward
segment              <4G
weights             <1G
activation            [1G
activation              [1G
oom activation             [2G of 0G]
"""


EVALUATED = FULL.replace("[2G of 0G]", "[512M of 0G]")


def runs_out(
    folder: Path, drawn: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[[], None], Any]:
    """Return what torch calls when memory runs out, of a process of its own.

    Without a GPU there is no allocator: its snapshot is a drawn one.
    """
    rank = rank_file.RankFile(folder, 0)

    def claim() -> bool:
        if rank.name is None:
            rank.claim()
        return True

    observer = out_of_memory.OutOfMemory(rank, claim, lambda: 3)
    snapshot = draw_history(drawn)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: snapshot)
    asked = [device_trace["size"] for device_trace in snapshot["device_traces"][0]][-1]
    return lambda: observer.failed(0, asked, 4 * GIB, 0), observer


def view_of(folder: Path) -> SnapshotView:
    manifest.write(folder / "run.json", {"format": 1, "command": ["train"]})
    (view,) = snapshot_views(load_recording(folder, LoadOptions()))
    return view


def first_change(view: SnapshotView) -> dict[str, Any]:
    (row,) = failures(view).to_dicts()
    return changes(failure(view, row, view.oom)).row(0, named=True)


def model(called: Callable[[], Any], *, layers: int = 4) -> Any:  # noqa: ANN401
    """Return layers of which the second one calls something in its forward."""

    class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]  # imported late
        def __init__(self, number: int) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)
            self.number = number

        def forward(self, x: Any) -> Any:  # noqa: ANN401
            if self.number == 1:
                called()
            return self.inner(x)

    return torch.nn.Sequential(*(Layer(number) for number in range(layers)))


def test_the_open_modules_are_named_from_the_outermost_one() -> None:
    seen: list[dict[str, Any]] = []
    model(lambda: seen.append(open_code.describe()))(torch.randn(16, 8))
    outer, layer = seen[0]["modules"]
    assert (outer["path"], outer["class"]) == ("", "Sequential")
    assert (layer["path"], layer["position"], layer["siblings"]) == ("1", 1, 4)
    assert layer["input_bytes"] == 16 * 8 * 4
    assert seen[0]["phase"] == "forward"


def test_the_line_of_the_program_is_the_innermost_of_its_own() -> None:
    seen: list[dict[str, Any]] = []
    model(lambda: seen.append(open_code.describe()))(torch.randn(16, 8))
    functions = [entry["function"] for entry in seen[0]["stack"]]
    assert functions[:2] == ["<lambda>", "forward"]


def test_the_batch_is_the_first_size_of_the_input() -> None:
    seen: list[dict[str, Any]] = []
    model(lambda: seen.append(open_code.describe()))(torch.randn(16, 8))
    assert seen[0]["inputs"] == [[16, 8]]


def test_a_backward_names_its_node_and_a_parameter_of_it() -> None:
    seen: list[dict[str, Any]] = []
    net = torch.nn.Linear(8, 8)
    out = net(torch.randn(4, 8).requires_grad_())
    out.grad_fn.register_prehook(lambda _: seen.append(open_code.describe()))
    out.sum().backward()
    assert seen[0]["phase"] == "backward"
    assert seen[0]["node"] == "AddmmBackward0"
    assert seen[0]["parameter"] in {"weight", "bias"}


def test_a_variable_that_the_program_deletes_is_freed() -> None:
    def attempt() -> bool:
        held = torch.zeros(8)
        removed = weakref.ref(held)
        open_code.describe()
        del held
        return removed() is None

    assert attempt()


def test_variables_are_as_they_were() -> None:
    held = [1, 2]
    open_code.describe()
    assert held == [1, 2]


def test_an_optimizer_is_seen_with_the_size_of_its_state() -> None:
    seen: list[dict[str, Any]] = []
    net = torch.nn.Linear(8, 8)

    class Adam(torch.optim.Adam):  # type: ignore[misc,name-defined]  # imported late
        def step(self, closure: Any = None) -> None:  # noqa: ANN401
            super().step(closure)
            seen.append(open_code.describe())

    optimizer = Adam(net.parameters())
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    assert seen[0]["phase"] == "optimizer"
    (entry,) = seen[0]["optimizers"]
    # Each of the two parameters has a step count beside its states.
    assert entry["state_bytes"] == 2 * entry["parameter_bytes"] + 2 * 4


def test_what_runs_out_leaves_a_snapshot_and_the_open_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, _ = runs_out(tmp_path, FULL, monkeypatch)
    model(fails)(torch.randn(16, 8))
    content = json.loads((tmp_path / "rank-0.oom.json").read_text())
    (entry,) = content["failures"]
    assert entry["requested_bytes"] == 2 * GIB
    assert entry["step"] == 3
    assert [module["path"] for module in entry["modules"]] == ["", "1"]
    assert (tmp_path / content["snapshot"]).stat().st_size


def test_an_error_of_ours_is_not_raised_into_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, observer = runs_out(tmp_path, FULL, monkeypatch)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: 1 / 0)
    fails()
    (missing,) = observer.rank.facts["missing"]
    assert "ZeroDivisionError" in missing["why"]


def test_the_history_rests_only_in_a_training_that_uses_little_memory() -> None:
    may_rest = out_of_memory.may_rest
    assert may_rest(50, 26 * GIB, 80 * GIB)
    assert not may_rest(50, 27 * GIB, 80 * GIB)
    assert not may_rest(49, GIB, 80 * GIB)


def test_only_the_first_failures_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, observer = runs_out(tmp_path, FULL, monkeypatch)
    for _ in range(out_of_memory.MOST + 5):
        fails()
    assert observer.count == out_of_memory.MOST + 5
    assert len(observer.failures) == out_of_memory.MOST


def test_a_failure_that_the_history_lacks_is_added_to_the_snapshot() -> None:
    snapshot = draw_history(FULL)
    del snapshot["device_traces"][0][-1]
    seen = {"requested_bytes": 5, "device_free_bytes": 7, "stack": []}
    last = out_of_memory.with_failure(snapshot, 0, seen)["device_traces"][0][-1]
    assert (last["action"], last["size"], last["device_free"]) == ("oom", 5, 7)


def test_a_training_layer_is_advised_to_be_checkpointed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, _ = runs_out(tmp_path, FULL, monkeypatch)
    model(fails)(torch.randn(16, 8))
    result = first_change(view_of(tmp_path))
    assert (result["change"], result["subject"], result["value"]) == (
        *("checkpoint", "Layer"),
        4,
    )
    assert result["enough"]


def test_layers_are_advised_to_be_checkpointed_where_the_backward_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, _ = runs_out(tmp_path, FULL.replace("[2G of 0G]", "[1G of 0G]"), monkeypatch)
    net = model(lambda: None)
    out = net(torch.randn(16, 8))
    # A backward runs without gradients: what it computes has none itself.
    out.grad_fn.register_prehook(lambda _: fails())
    out.sum().backward()
    result = first_change(view_of(tmp_path))
    assert (result["change"], result["subject"], result["value"]) == (
        *("checkpoint", "Layer"),
        4,
    )


def test_what_is_no_input_of_a_model_is_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, _ = runs_out(tmp_path, FULL, monkeypatch)
    table = torch.randn(16, 8)
    fails()
    del table
    view = view_of(tmp_path)
    row = failures(view).row(0, named=True)
    kinds = changes(failure(view, row, view.oom))["change"].cast(str)
    assert "batch" not in kinds


def test_an_evaluation_with_gradients_is_advised_no_grad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, _ = runs_out(tmp_path, EVALUATED, monkeypatch)
    model(fails).eval()(torch.randn(16, 8))
    assert first_change(view_of(tmp_path))["change"] == "no_grad"


def test_an_evaluation_without_gradients_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, _ = runs_out(tmp_path, EVALUATED, monkeypatch)
    with torch.no_grad():
        model(fails).eval()(torch.randn(16, 8))
    assert first_change(view_of(tmp_path))["change"] != "no_grad"


def test_a_smaller_batch_is_one_that_frees_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, _ = runs_out(tmp_path, FULL, monkeypatch)
    alone = model(fails, layers=2)[1]
    alone(torch.randn(32, 8))
    result = first_change(view_of(tmp_path))
    # 2 GiB are missing of 4 GiB that grow with the batch.
    assert (result["change"], result["subject"], result["value"]) == ("batch", "32", 16)


def test_states_of_a_first_step_are_advised_to_be_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = """
    state = torch/optim/adamw.py:9 _init_group, train.py:30 main
    segment             <3G
    weights            <1G
    gradients          <1G
    state                [1G
    oom state                [1G of 0G]
    """
    fails, observer = runs_out(tmp_path, drawn, monkeypatch)
    net = torch.nn.Linear(8, 8)

    class AdamW(torch.optim.AdamW):  # type: ignore[misc,name-defined]  # imported late
        def step(self, _closure: Any = None) -> None:  # noqa: ANN401
            fails()

    AdamW(net.parameters()).step()
    entry = observer.failures[0]["optimizers"][0]
    entry["parameter_bytes"] = GIB
    observer.write(draw_history(drawn))
    result = first_change(view_of(tmp_path))
    assert result["change"] == "optimizer_state"
    assert result["subject"] == "AdamW"


def test_a_leak_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = """
    segment                <3600M
    region             [ProfilerStep#1][ProfilerStep#2][ProfilerStep#3]
    weights           <500M
    train.py:9 step      [64M    ]       [64M    ]       [64M    ]
    train.py:12 step              [1G
    train.py:12 step                              [1G
    train.py:12 step                                             [1G
    oom train.py:9 step                                              [1G of 0G]
    """
    fails, _ = runs_out(tmp_path, drawn, monkeypatch)
    fails()
    result = first_change(view_of(tmp_path))
    assert (result["change"], result["subject"]) == ("leak", "train.py:12 step")


def test_a_run_without_the_file_beside_the_snapshot_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, _ = runs_out(tmp_path, FULL, monkeypatch)
    fails()
    (tmp_path / "rank-0.oom.json").write_text("[]")
    view = view_of(tmp_path)
    assert view.oom is None
    assert failures(view).height == 1
