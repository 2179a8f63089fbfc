"""Parts of a step that a compiled model replays as a CUDA graph, and the rest."""

from __future__ import annotations

from typing import Any

import pytest
from linting import drawn_findings, rule_module

from traceq.analysis.base.steady import steady_steps
from traceq.testing import load_drawn

MODEL = rule_module("launch._graphed_model")
WIDTH = 60
NET = ("nn.Module: Net_0", "aten::mm", 40)


def drawn(*parts: tuple[str, str, int], inner: str = "") -> str:
    """Draw a step of parts: in which frame, which op at both ends, how many ops."""
    frames, ops = "", ""
    for frame, op, count in parts:
        width = count * WIDTH
        frames += f"[{frame.ljust(width - 2)}]" if frame else " " * width
        # All others differ: they are no loop.
        others = (f"aten::op{len(ops) // WIDTH + n}" for n in range(2, count))
        names = (op, *others, op)[:count]
        ops += "".join(f"[{name.ljust(WIDTH - 2)}]" for name in names)
    numbers = range(1, len(ops) // WIDTH + 1)
    calls = "".join(f" [cuLaunchKernel>{n}]".ljust(WIDTH) for n in numbers)
    kernels = "".join(f"[k<{n}]".ljust(WIDTH) for n in numbers)
    return "\n".join(
        (
            f"host  [ProfilerStep#1{' ' * (len(ops) - 10)}]",
            f"host   {frames.rstrip()}",
            f"host   {inner}",
            f"host   {ops}",
            f"host   {calls.rstrip()}",
            f"gpu 7  {' ' * 20}{kernels.rstrip()}",
        )
    )


def model_of(drawing: str) -> Any:  # noqa: ANN401 - a class of the rules
    """Return what of a drawn step is replayed."""
    trace = load_drawn(drawing)
    return MODEL.graphed_model(trace, steady_steps(trace))


@pytest.mark.real
def test_what_runs_outside_of_modules_stays() -> None:
    """As averaged weights: a U-Net with them was promised 64%, and saved 44%."""
    drawing = drawn(NET, ("", "aten::lerp_", 40))
    result = model_of(drawing)

    assert len(result.kernels) == 40
    # A call takes the host as long as ten kernels do, and a replay 3% of all.
    assert result.host_share == pytest.approx(0.97 - 10 / 40)
    (finding,) = drawn_findings(drawing, "LCH002")
    (inside,) = drawn_findings(drawn(("nn.Module: Net_0", "aten::mm", 80)), "LCH002")
    assert 0 < finding.saves_ns < 0.6 * inside.saves_ns
    (around,) = (
        evidence for evidence in finding.evidence if evidence.label == "around"
    )
    assert "outside of modules" in around.note


def test_python_that_walks_the_modules_is_not_a_call_of_them() -> None:
    """As ``model.train()`` and ``model.parameters()`` of a trainer."""
    walk = ("torch/nn/modules/module.py(9): named_modules", "aten::lerp_", 40)

    assert len(model_of(drawn(NET, walk)).kernels) == 40


def test_a_module_of_few_kernels_is_not_worth_a_call_of_compiled_code() -> None:
    result = model_of(drawn(NET, ("nn.Module: Loss_0", "aten::mm", 5)))

    assert result.modules is not None
    assert result.modules.to_list() == ["Net_0"]
    assert len(result.kernels) == 40


def test_nothing_is_promised_to_a_model_of_few_kernels() -> None:
    (finding,) = drawn_findings(drawn(("nn.Module: Net_0", "aten::mm", 8)), "LCH002")

    assert finding.saves_ns == 0
    assert finding.advice.startswith("give each launch more to do")
    assert not finding.example


BACKWARD = ("autograd::engine::evaluate_function: MmBackward0", "aten::mm", 40)


@pytest.mark.parametrize(
    ("parts", "result"), [((NET,), "y"), ((NET, BACKWARD), "loss")]
)
def test_the_example_has_a_loss_only_where_the_steps_have_a_backward(
    parts: tuple[tuple[str, str, int], ...], result: str
) -> None:
    (finding,) = drawn_findings(drawn(*parts), "LCH002")

    assert finding.example.splitlines() == [
        '+ model.compile(mode="reduce-overhead")  # once, before the loop',
        f"  {result} = model(batch)",
    ]


@pytest.mark.real
def test_small_modules_are_compiled_with_the_function_that_calls_them() -> None:
    """As the blocks of a list, which a loop of the user's calls."""
    blocks = ((f"nn.Module: Block_{n}", "aten::mm", 9) for n in range(4))
    drawing = drawn(*blocks)
    result = model_of(drawing)

    assert result.is_function
    assert len(result.kernels) == 36
    (finding,) = drawn_findings(drawing, "LCH002")
    assert finding.saves_ns > 0
    assert "of the function that calls the modules" in finding.advice
    assert not finding.example


def test_layers_that_a_backward_computes_again_are_of_the_model() -> None:
    """Checkpointing calls them without the module around them."""
    again = ("<built-in method run_backward", "aten::mm", 22)
    block = f"[{'nn.Module: Block_0'.ljust(20 * WIDTH)}]".rjust(21 * WIDTH + 1)
    inner = block.ljust(40 * WIDTH) + block
    result = model_of(drawn(NET, again, inner=inner))

    assert result.modules is not None
    assert sorted(result.modules) == ["Block_0", "Net_0"]
    assert len(result.kernels) == 60


def test_without_modules_the_model_is_between_the_first_and_last_weights() -> None:
    result = model_of(
        drawn(
            ("", "aten::rand", 5),
            ("", "aten::mm", 20),
            ("", "aten::tanh", 20),
            ("", "aten::mm", 1),
            ("", "aten::cumprod", 12),
        )
    )

    assert result.modules is None
    assert len(result.kernels) == 41
    assert result.host_share == pytest.approx(0.97 - 10 / 41)


def test_the_gradient_of_a_weight_is_accumulated_as_before() -> None:
    node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    trace = load_drawn(
        f"""
        host  [ProfilerStep#1{" " * 180}]
        host   [{node}                  ][aten::mm                    ]
        host    [aten::detach                                         ]
        host                                {" " * 60}[cuLaunchKernel>1]
        gpu 7                               {" " * 70}[k<1]
        """
    )

    stays = dict(
        zip(trace.ops["name"], MODEL.accumulates(trace, trace.ops["id"]), strict=True)
    )
    assert stays == {node: True, "aten::detach": True, "aten::mm": False}
