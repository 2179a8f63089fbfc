"""Remedies on the CPU: each is applied and undone, and says why it cannot be."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

import pytest
from collecting import COLLECT, WITH_TORCH, Late, module

torch = Late("torch")
programs = Late("trial.program")
remedies = module("remedies")
pytestmark = WITH_TORCH


class Small:
    """A program with one module and one optimizer."""

    def __init__(self, kind: str = "AdamW", **options: Any) -> None:  # noqa: ANN401
        module_ = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        self.modules = [module_]
        self.outermost = module_
        self.optimizers = [getattr(torch.optim, kind)(module_.parameters(), **options)]
        self.loaders: list[Any] = []
        self.cuda = False
        self.graphs = 0
        self.names = None

    def step(self) -> None:
        (optimizer,) = self.optimizers
        optimizer.zero_grad(set_to_none=False)
        self.outermost(torch.ones(2, 3, 8, 8)).sum().backward()
        optimizer.step()


def state() -> dict[str, Any]:
    """Return what remedies change outside of the program's own objects."""
    data = importlib.import_module("torch.utils.data")
    checkpoint = importlib.import_module("torch.utils.checkpoint")
    return {
        "precision": torch.get_float32_matmul_precision(),
        "benchmark": torch.backends.cudnn.benchmark,
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "to": torch.Tensor.to,
        "own": {"to", "cuda"} & set(vars(torch.Tensor)),
        "zero_grad": torch.optim.Optimizer.zero_grad,
        "module_zero_grad": torch.nn.Module.zero_grad,
        "gc": gc.isenabled(),
        "loader": data.DataLoader.__init__,
        "checkpoint": checkpoint.CheckpointFunction,
        "validate": torch.distributions.Distribution._validate_args,  # noqa: SLF001
        "init": torch.distributions.Distribution.__init__,
    }


def inside(program: Small) -> list[Any]:
    """Return what remedies change in the program's own objects."""
    (optimizer,) = program.optimizers
    weight = next(program.outermost.parameters())
    return [
        [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
        weight.stride(),
        vars(optimizer).get("_step_supports_amp_scaling"),
        len(vars(program.outermost)["_forward_pre_hooks"]),
        compiled_call(program),
    ]


def compiled_call(program: Small) -> Any:  # noqa: ANN401
    return getattr(program.outermost, "_compiled_call_impl", None)


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
@pytest.mark.parametrize("name", [*remedies.NAMES, remedies.CONTROL])
@pytest.mark.slow
def test_a_remedy_is_applied_and_undone(name: str) -> None:
    program = Small()
    program.step()
    before, own = state(), inside(program)
    one = remedies.load(name)

    one.apply(program)
    if not one.slow:
        program.step()
    one.undo(program)

    assert state() == before
    assert inside(program) == own
    program.step()


@pytest.mark.parametrize("name", remedies.NAMES)
def test_the_facts_of_a_remedy_are_those_of_its_class(name: str) -> None:
    one, said = remedies.load(name), remedies.facts(name)

    assert {key: getattr(one, key) for key in said} == said
    assert one.name == name
    assert one.rules
    assert one.edit


@pytest.mark.parametrize(
    ("name", "options", "flag"),
    [
        ("fused_optimizer", {}, "fused"),
        ("foreach_optimizer", {"foreach": False}, "foreach"),
    ],
)
def test_an_optimizer_is_switched(
    name: str, options: dict[str, Any], flag: str
) -> None:
    program = Small(**options)
    one = remedies.load(name)

    assert one.why_not(program) == ""
    one.apply(program)
    assert program.optimizers[0].param_groups[0][flag] is True


def test_a_fused_step_computes_what_the_plain_one_does() -> None:
    torch.manual_seed(0)
    plain = Small()
    torch.manual_seed(0)
    fused = Small()
    one = remedies.load("fused_optimizer")
    for number in range(4):
        if number == 2:
            one.apply(fused)
        plain.step()
        fused.step()
    one.undo(fused)
    plain.step()
    fused.step()

    pairs = zip(plain.outermost.parameters(), fused.outermost.parameters(), strict=True)
    assert all(torch.allclose(*pair, atol=1e-6) for pair in pairs)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("fused_optimizer", {"fused": True}, "fused already"),
        ("fused_optimizer", {"capturable": True}, "capturable"),
        ("tf32", {}, "does not use CUDA"),
        ("pinned_copy", {}, "does not use CUDA"),
        ("channels_last", {}, "does not use CUDA"),
        ("dataloader", {}, "no DataLoader"),
    ],
)
def test_a_remedy_says_why_it_cannot_be_applied(
    name: str, options: dict[str, Any], why: str
) -> None:
    assert why in remedies.load(name).why_not(Small(**options))


def test_gradients_are_set_to_none() -> None:
    program = Small()
    program.step()
    one = remedies.load("set_to_none")
    one.apply(program)
    program.optimizers[0].zero_grad(set_to_none=False)
    one.undo(program)

    assert next(program.outermost.parameters()).grad is None
    assert one.idle() == ""


def test_checkpointing_is_switched_off() -> None:
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
    calls = []

    def forward(x: Any) -> Any:  # noqa: ANN401
        calls.append(1)
        return (x * x).sum()

    one = remedies.load("no_checkpointing")
    one.apply(Small())
    for reentrant in (False, True):
        value = torch.ones(3, requires_grad=True)
        checkpoint(forward, value, use_reentrant=reentrant).backward()
    one.undo(Small())

    assert len(calls) == 2
    assert one.used == 2


def test_distributions_check_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Importing the compiler turns the checks off.
    kind = torch.distributions.Distribution
    monkeypatch.setattr(kind, "_validate_args", True)
    one = remedies.load("validate_args")
    one.apply(Small())
    torch.distributions.Normal(torch.tensor(0.0), torch.tensor(-1.0))
    one.undo(Small())

    assert one.used
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(torch.tensor(0.0), torch.tensor(-1.0))


def test_a_loader_gets_workers() -> None:
    data = importlib.import_module("torch.utils.data")
    one = remedies.load("dataloader")
    one.apply(Small())
    loader = data.DataLoader(list(range(8)))
    one.undo(Small())

    assert loader.num_workers >= 1
    assert loader.persistent_workers


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_a_module_is_compiled_in_place_only() -> None:
    program = Small()
    one = remedies.load("compile")

    assert one.why_not(program) == ""
    one.apply(program)
    assert compiled_call(program) is not None


def test_a_recording_imports_no_remedy() -> None:
    code = (
        "import runpy, sys\n"
        f"main = runpy.run_path({str(COLLECT)!r}, run_name='collect')\n"
        "main['completions']([], '--')\n"
        "import _traceq_collect.launcher.launch\n"
        "assert not [one for one in sys.modules if 'remedies' in one]\n"
    )
    done = importlib.import_module("subprocess").run([sys.executable, "-c", code])

    assert done.returncode == 0
