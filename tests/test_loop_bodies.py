"""Values that one iteration of a loop leaves for the next, by its source."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from traceq.graph.source import loop_bodies
from traceq.graph.source.control_flow import read_program
from traceq.graph.source.loop_bodies import LoopBody, body_of


def of(loop: str) -> LoopBody:
    """Return the body of the loop that begins at the second line of a function."""
    source = "def f(self):\n" + indent(dedent(loop).strip(), "    ")
    function = read_program(source).find("f", 1)
    assert function is not None
    body = body_of(function, 2)
    assert body is not None
    return body


@pytest.mark.parametrize(
    ("loop", "carried"),
    [
        ("for t in range(9):\n    h = cell(x[t], h)\n    outs.append(h)", ("h",)),
        ("for t in ts:\n    eps = model(x, t)\n    x = x - eps * t", ("x",)),
        ("for t in ts:\n    x = update(x, t)", ("x",)),
        ("for t in ts:\n    self.h = cell(x, self.h)", ("self.h",)),
        ("for t in ts:\n    h, c = cell(x, (h, c))", ("h", "c")),
        ("for t in range(9):\n    y[t] = a * y[t - 1]", ("y",)),
        ("for t in range(9):\n    outs.append(f(outs[-1]))", ("outs",)),
        ("for t in range(9):\n    x.mul_(t)", ("x",)),
        ("for t in range(9):\n    w *= f(t)", ("w",)),
        ("while err > 1:\n    x = f(x)\n    err = g(x)", ("err", "x")),
        ("for t in ts:\n    x = x.tanh() - x.abs()", ("x",)),
        # What is only added up is the same in any order.
        ("for t in range(9):\n    total += f(x[t])", ()),
        ("for t in range(9):\n    total = total + f(x[t])", ()),
        ("for t in range(9):\n    total = total + f(total)", ("total",)),
        ("for t in range(9):\n    x.add_(f(t))", ()),
        ("for i in range(9):\n    y = f(x[i])\n    outs.append(y)", ()),
        ("for i in range(9):\n    out[i] = f(x[i])", ()),
        ("for i in range(9):\n    out[i] = f(out[i])", ()),
        ("for p, t in zip(ps, ts):\n    t.copy_(0.1 * p + 0.9 * t)", ()),
        ("for i in a:\n    if i:\n        y = f(i)\n    else:\n        y = g(i)\n"
         "    out.append(y)", ()),
        ("for i in a:\n    if i:\n        y = f(i)\n    out.append(y)", ("y",)),
        ("outs = [f(x[i]) for i in range(9)]", ()),
        ("for i in a:\n    outs.append(f(i))\n    y = g(outs[-1])", ()),
        ("for i in a:\n    out['y'] = f(i, batch['x'], out['x'])", ()),
        ("while i < n:\n    outs.append(f(x[i]))\n    i += 1", ()),
        ("while i < n:\n    outs.append(f(x[i]))\n    i = i + 1", ()),
    ],
)  # fmt: skip
def test_what_the_next_iteration_needs_is_carried(
    loop: str, carried: tuple[str, ...]
) -> None:
    assert of(loop).carried == carried


@pytest.mark.parametrize(
    ("iterated", "over"),
    [
        ("self.model.parameters()", loop_bodies.PARAMETERS),
        ("losses.items()", loop_bodies.LOSSES),
        ("scheduler.timesteps", loop_bodies.STEPS),
        ("enumerate(loader)", loop_bodies.BATCHES),
        ("self.heads", loop_bodies.LAYERS),
        ("range(x.size(1))", ""),
    ],
)
def test_what_a_loop_goes_over_is_named(iterated: str, over: str) -> None:
    assert of(f"for x in {iterated}:\n    f(x)").over == over


def test_a_loop_that_updates_weights_trains() -> None:
    assert of("for x in y:\n    f(x).backward()\n    optimizer.step()").trains
    assert not of("for x in y:\n    x = scheduler.step(x)").trains


@pytest.mark.parametrize(
    ("loop", "leaves", "calls"),
    [
        ("for x in y:\n    z = torch.sin(x) * len(y)", False, False),
        ("for x in y:\n    z = self.lif(x)", False, True),
        ("for x in y:\n    z = net(x)", False, True),
        ("for x in y:\n    if x > 3:\n        break", True, False),
        ("z = [layer(x) for x in y]", False, True),
    ],
)
def test_a_body_may_leave_the_loop_or_call_what_keeps_a_state(
    loop: str, *, leaves: bool, calls: bool
) -> None:
    assert (of(loop).leaves, of(loop).calls) == (leaves, calls)


def test_a_function_of_very_many_nodes_is_not_followed() -> None:
    lines = "".join(f"        x{n} = x\n" for n in range(8_000))
    function = read_program(f"def f(x):\n    for t in x:\n{lines}").find("f", 1)

    assert function is not None
    assert body_of(function, 2) is None


def test_a_loop_over_a_very_deep_expression_is_not_followed() -> None:
    calls = "f" + ".g()" * 900
    program = read_program(f"def f(x):\n    for t in {calls}:\n        x(t)\n")
    function = program.find("f", 1)

    assert function is not None
    assert body_of(function, 2) is None
