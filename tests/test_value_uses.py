"""Uses of values that a program reads on the host, by its source."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest

from traceq.graph.source import uses as use
from traceq.graph.source.uses import Uses

TRAIN = """
def train(model, loader, env):
    total = 0
    for step, batch in enumerate(loader):
        loss = model(batch)
{body}
    print(total)
"""


def of_line(body: str, text: str, method: str = "") -> set[str]:
    """Return the uses of what a line of a training loop reads."""
    lines = dedent(body).strip().splitlines()
    source = TRAIN.format(body="\n".join(f"        {line}" for line in lines))
    tree = ast.parse(source)
    function = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    line = next(n for n, code in enumerate(source.splitlines(), 1) if text in code)
    return set(Uses(tree).of_read(function, line, method))


@pytest.mark.parametrize(
    ("body", "uses"),
    [
        ("print(loss.item())", {use.LOGGED}),
        ("pbar.set_postfix(loss=float(loss))", {use.LOGGED}),
        ("log.info(f'{loss.item():.3f}')", {use.LOGGED}),
        ("x = loss.item()\nwandb.log({'loss': x})", {use.LOGGED}),
        ("stats = {'loss': loss.item()}\nlogger.log_dict(stats)", {use.LOGGED}),
        ("meter.update(loss.item(), 5)", {use.LOGGED}),
        ("x = round(loss.item(), 3)\nwriter.add_scalar('x', x, 1)", {use.LOGGED}),
        ("if step % 10 == 0:\n    print(loss.item())", {use.LOGGED, use.SELDOM}),
        ("total += loss.item()", {use.ADDED, use.LOGGED}),
        ("self.sum = 0.0\nself.sum += loss.item()", {use.ADDED}),
        ("n = [0] * 3\nn[1] += loss.item()", {use.ADDED}),
        ("s = torch.zeros(3, device=d)\ns[1] += loss.item()", {use.ADDED}),
        ("s = torch.zeros(3).cuda()\ns[1] += loss.item()", {use.ADDED}),
        # A tensor on the CPU takes none of the GPU; of others it is not known.
        ("s = torch.zeros(3)\ns[1] += loss.item()", {use.ACCUMULATED}),
        ("s = 2 * torch.zeros(3)\ns[1] += loss.item()", {use.ACCUMULATED}),
        ("s = torch.zeros(3, device='cpu')\ns[1] += loss.item()", {use.ACCUMULATED}),
        ("self.log[-1, i] += loss.item()", {use.ACCUMULATED}),
        ("losses.append(loss.item())", {use.COLLECTED}),
        ("preds.extend(out.argmax(1).cpu().numpy())", {use.COLLECTED}),
        ("loss.item()", {use.UNUSED}),
        ("if torch.isnan(loss).item():\n    raise ValueError", {use.FINITE}),
        ("if not math.isfinite(loss.item()):\n    break", {use.FINITE}),
        ("x = loss.item()\nif x != x:\n    continue", {use.FINITE}),
        ("if (d < eps).item():\n    break", {use.STOPS}),
        ("while err.item() > eps:\n    err = f()", {use.STOPS}),
        ("if mask.any().item():\n    y = g(mask)", {use.GUARDS}),
        ("if not mask.any().item():\n    continue", {use.GUARDS}),
        ("if mask.any().item():\n    continue", {use.DECIDES}),
        ("if not (a == b).all().item():\n    continue", {use.DECIDES}),
        ("assert x.max().item() < 5", {use.CHECKS}),
        ("if loss.item() < best:\n    best = g()\nelse:\n    h()", {use.DECIDES}),
        ("for i in range(lengths.max().item()):\n    f(i)", {use.SIZE}),
        ("n = lengths.max().item()\nx = torch.arange(n)", {use.SIZE}),
        ("y = x[: n.item()]", {use.SIZE}),
        ("y = x[i.item()]", {use.INDEX}),
        ("pack_padded_sequence(x, lengths.cpu())", {use.SIZE}),
        ("for n in lengths.tolist():\n    f(n)", {use.LOOPED}),
        ("ys = [f(n) for n in lengths.tolist()]", {use.LOOPED}),
        ("a = pi(x).cpu().numpy()\nobs = env.step(a)", {use.ACTED}),
        ("acc = accuracy_score(y, out.cpu().numpy())", {use.METRIC}),
        ("x.mul_(norm.item())", {use.COMPUTED}),
        ("y = torch.tensor(loss.item())", {use.COMPUTED}),
        ("process(loss.item())", {use.UNKNOWN}),
        ("self.loss = loss.item()", {use.UNKNOWN}),
    ],
)
def test_the_use_of_a_value_is_what_is_done_with_it(body: str, uses: set[str]) -> None:
    line = next(
        line
        for line in body.splitlines()
        if any(read in line for read in ("item()", "cpu()", "tolist()", "float("))
    )

    assert of_line(body, line) == uses


@pytest.mark.parametrize(
    ("body", "uses"),
    [
        ("if torch.isnan(loss):\n    raise ValueError", {use.FINITE}),
        ("while not done.all():\n    done = f()", {use.STOPS}),
        ("y = x[:n]", {use.SIZE}),
        ("y = x[i]", {use.INDEX}),
        ("y = torch.arange(n)", {use.SIZE}),
        ("y = x + 1", set()),
    ],
)
def test_a_tensor_that_python_reads_has_a_use_too(body: str, uses: set[str]) -> None:
    assert of_line(body, body.splitlines()[0]) == uses


def test_a_name_is_followed_to_its_next_assignment() -> None:
    body = """
        x = loss.item()
        print(x)
        x = 5
        if x > 3:
            f()
    """

    assert of_line(body, "x = loss.item()") == {use.LOGGED}


def test_a_name_that_a_branch_may_set_again_is_followed_on() -> None:
    body = """
        x = loss.item()
        if step:
            x = 5
        x = [
            f(x),
        ]
        print(x)
    """

    assert of_line(body, "x = loss.item()") == {use.UNKNOWN}
    assert of_line(body.replace("f(x)", "round(x)"), "x = loss") == {use.LOGGED}


def test_what_the_other_branch_sets_is_not_set_again() -> None:
    body = """
        if step:
            x = loss.item()
        else:
            x = 5
        print(x)
    """

    assert of_line(body, "x = loss.item()") == {use.LOGGED}


def test_a_value_that_is_returned_is_followed_to_the_call() -> None:
    source = dedent("""
        def step(batch):
            loss = model(batch)
            return loss.item()
        def main():
            for batch in loader:
                losses.append(step(batch))
    """)
    tree = ast.parse(source)
    function = tree.body[0]

    assert Uses(tree).of_read(function, 4) == {use.COLLECTED}
    assert Uses(function).of_read(function, 4) == {use.RETURNED}


@pytest.mark.parametrize("name", ["select_action", "act"])
def test_what_an_agent_returns_as_its_action_is_acted_on(name: str) -> None:
    source = f"def {name}(self, x):\n    return self.pi(x).cpu().numpy()[0]\n"
    tree = ast.parse(source)

    assert Uses(tree).of_read(tree.body[0], 2, "cpu") == {use.ACTED}


def test_a_read_that_is_known_is_the_one_of_its_line() -> None:
    body = "f(x.cpu()); print(y.tolist())"

    assert of_line(body, "f(x", "tolist") == {use.LOGGED}
    assert of_line(body, "f(x", "cpu") == {use.UNKNOWN}


@pytest.mark.parametrize(
    ("code", "uses"),
    [
        ("y = x[mask].mean()", {use.REDUCED}),
        ("y = torch.sum(x[mask])", {use.REDUCED}),
        ("y = F.cross_entropy(x[mask], t[mask])", {use.LOSS}),
        ("y = self.criterion(x[mask].float(), t)", {use.LOSS}),
        ("y = torch.masked_select(x, mask).mean()", {use.REDUCED}),
        ("y = f(x[mask])", {use.UNKNOWN}),
        ("x[mask] = b[mask, None] * x[mask]", {use.REPLACED}),
        ("x[mask] += 1", {use.REPLACED}),
        ("x[mask] = f(y[other])", {use.UNKNOWN}),
        ("x[mask] = 1", set()),
    ],
)
def test_what_a_mask_selects_has_a_use(code: str, uses: set[str]) -> None:
    tree = ast.parse(f"def f(x):\n    {code}\n")

    assert Uses(tree).of_index(tree.body[0], 2) == uses


def test_a_source_is_followed_up_to_a_number_of_steps() -> None:
    assigned = "\n".join(f"y{n} = y{n - 1}" for n in range(1, 5))
    tree = ast.parse(f"def f(x):\n    y0 = x.item()\n{indent(assigned, '    ')}")
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    whole, cut = Uses(tree), Uses(tree)
    cut._steps = use.MOST_STEPS - 30  # noqa: SLF001 - a source as long takes seconds

    assert whole.of_read(function, 2) == {use.UNUSED}
    assert cut.of_read(function, 2) == {use.UNKNOWN}
    assert cut.of_read(function, 2) == set()
