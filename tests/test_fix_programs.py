"""Edits of small programs in different styles: the right one, or a refusal."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from fixing import Case, proposal, source

from traceq.model.finding import Evidence

if TYPE_CHECKING:
    from pathlib import Path

_LOADER = "from torch.utils.data import DataLoader\n"

OPTIMIZERS = [
    Case(
        "a constructor in one line",
        "LCH004",
        "opt.step()",
        "import torch\nopt = torch.optim.AdamW(ps, lr=1e-4)\nopt.step()\n",
        "import torch\nopt = torch.optim.AdamW(ps, lr=1e-4, fused=True)\nopt.step()\n",
    ),
    Case(
        "one argument a line with a comma at the end",
        "LCH004",
        "step()",
        """
        from torch.optim import AdamW
        opt = AdamW(
            ps,
            lr=1e-4,  # small, at first
        )
        opt.step()
        """,
        """
        from torch.optim import AdamW
        opt = AdamW(
            ps,
            lr=1e-4,  # small, at first
            fused=True,
        )
        opt.step()
        """,
    ),
    Case(
        "one argument a line without a comma at the end",
        "LCH004",
        "step()",
        """
        from torch.optim import AdamW as Optimizer
        opt = Optimizer(
            ps,
            lr=1e-4
        )
        opt.step()
        """,
        """
        from torch.optim import AdamW as Optimizer
        opt = Optimizer(
            ps,
            lr=1e-4,
            fused=True
        )
        opt.step()
        """,
    ),
    Case(
        "a comment after the last argument",
        "LCH004",
        "step()",
        """
        from torch import optim
        opt = optim.AdamW(
            ps,
            lr=1e-4  # small
        )
        opt.step()
        """,
        """
        from torch import optim
        opt = optim.AdamW(
            ps,
            lr=1e-4, fused=True  # small
        )
        opt.step()
        """,
    ),
    Case(
        "a generator as the only argument",
        "LCH004",
        "step()",
        """
        import torch.optim as optim
        opt = optim.AdamW(p for p in ps if p.requires_grad)
        opt.step()
        """,
        """
        import torch.optim as optim
        opt = optim.AdamW((p for p in ps if p.requires_grad), fused=True)
        opt.step()
        """,
    ),
    Case(
        "a parenthesized argument",
        "LCH004",
        "step()",
        "import torch\nopt = torch.optim.AdamW((a if b else c))\nopt.step()\n",
        "import torch\nopt = torch.optim.AdamW((a if b else c), fused=True)\n"
        "opt.step()\n",
    ),
    Case(
        "foreach=False goes",
        "LCH003",
        "step()",
        "import torch\nopt = torch.optim.AdamW(ps, foreach=False, lr=1)\nopt.step()\n",
        "import torch\nopt = torch.optim.AdamW(ps, fused=True, lr=1)\nopt.step()\n",
    ),
    Case(
        "fused=False is replaced",
        "LCH004",
        "step()",
        "import torch\nopt = torch.optim.AdamW(ps, fused = False)\nopt.step()\n",
        "import torch\nopt = torch.optim.AdamW(ps, fused=True)\nopt.step()\n",
    ),
    Case(
        "of two optimizers, the one whose step is at the line",
        "LCH004",
        "self.second.step()",
        """
        import torch
        class Trainer:
            def __init__(self):
                self.first = torch.optim.AdamW(a)
                self.second = torch.optim.AdamW(b)
            def train(self):
                self.first.step()
                self.second.step()
        """,
        """
        import torch
        class Trainer:
            def __init__(self):
                self.first = torch.optim.AdamW(a)
                self.second = torch.optim.AdamW(b, fused=True)
            def train(self):
                self.first.step()
                self.second.step()
        """,
        function="train",
    ),
    Case(
        "two optimizers and no line of a step",
        "LCH004",
        "def train",
        """
        import torch
        a = torch.optim.AdamW(x)
        b = torch.optim.AdamW(y)
        def train():
            a.step()
            b.step()
        """,
        refused="several lines (train.py:2, train.py:3)",
        function="train",
        exact=False,
    ),
    Case(
        "a class of the same name from elsewhere",
        "LCH004",
        "step()",
        "from transformers import AdamW\nopt = AdamW(ps)\nopt.step()\n",
        refused="has no torch.optim.AdamW(…) that can be edited",
    ),
    Case(
        "a name that two imports give",
        "LCH004",
        "step()",
        """
        try:
            from fast import AdamW
        except ImportError:
            from torch.optim import AdamW
        opt = AdamW(ps)
        opt.step()
        """,
        refused="has no torch.optim.AdamW(…) that can be edited",
    ),
    Case(
        "arguments from a dict",
        "LCH004",
        "step()",
        "import torch\nopt = torch.optim.AdamW(ps, **options)\nopt.step()\n",
        refused="has * or ** arguments",
    ),
    Case(
        "a switch that is decided later",
        "LCH004",
        "step()",
        "import torch\nopt = torch.optim.AdamW(ps, fused=CUDA)\nopt.step()\n",
        refused="`fused=CUDA` is decided when the program runs",
    ),
    Case(
        "a differentiable optimizer",
        "LCH004",
        "step()",
        "import torch\nopt = torch.optim.AdamW(ps, differentiable=True)\nopt.step()\n",
        refused="differentiable",
    ),
    Case(
        "SGD before it had a fused implementation",
        "LCH003",
        "step()",
        "import torch\nopt = torch.optim.SGD(ps, foreach=False)\nopt.step()\n",
        refused="no fused implementation in this torch",
        torch="2.1",
        data={"optimizer": "SGD"},
    ),
]
PRECISION = [
    Case(
        "TF32 after the imports",
        "GEM001",
        "x @ y",
        """
        '''Train.'''
        import torch
        from torch import nn  # layers

        x @ y
        """,
        """
        '''Train.'''
        import torch
        from torch import nn  # layers

        torch.set_float32_matmul_precision("high")

        x @ y
        """,
    ),
    Case(
        "TF32 where torch has another name",
        "GEM001",
        "x @ y",
        "import torch as th\nx @ y\n",
        'import torch as th\n\nth.set_float32_matmul_precision("high")\nx @ y\n',
    ),
    Case(
        "a precision that is set to float32",
        "GEM001",
        "x @ y",
        "import torch\ntorch.set_float32_matmul_precision('highest')\nx @ y\n",
        "import torch\ntorch.set_float32_matmul_precision('high')\nx @ y\n",
    ),
    Case(
        "a switch that is off",
        "GEM001",
        "x @ y",
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = False\nx @ y\n",
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\nx @ y\n",
    ),
    Case(
        "a precision from the command line",
        "GEM001",
        "x @ y",
        "import torch\ntorch.set_float32_matmul_precision(options.precision)\nx @ y\n",
        refused="sets the precision of float32 matmuls itself",
    ),
    Case(
        "no import of torch",
        "GEM001",
        "x @ y",
        "from torch import nn\nx @ y\n",
        refused="has no `import torch` at its beginning",
    ),
]
ATTENTION = [
    Case(
        "a mask by keyword",
        "ATT005",
        "scaled",
        """
        import torch.nn.functional as F
        def attend(q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        """,
        """
        import torch.nn.functional as F
        def attend(q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        """,
        function="attend",
    ),
    Case(
        "a mask by position, and tabs",
        "ATT005",
        "sdpa(q",
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def attend(q):\n\treturn sdpa(q, q, q, mask, dropout_p=0.1)  # scaled\n",
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def attend(q):\n\treturn sdpa(q, q, q, is_causal=True, dropout_p=0.1)"
        "  # scaled\n",
        function="attend",
    ),
    Case(
        "a mask before other arguments by position",
        "ATT005",
        "scaled",
        "import torch\n"
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, m, 0.1)\n",
        "import torch\n"
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, None, 0.1,"
        " is_causal=True)\n",
    ),
    Case(
        "two calls in a function without a line",
        "ATT005",
        "def attend",
        """
        from torch.nn import functional as F
        def attend(q, m):
            a = F.scaled_dot_product_attention(q, q, q, m)
            return F.scaled_dot_product_attention(a, a, a, m)
        """,
        refused="several lines",
        function="attend",
        exact=False,
    ),
    Case(
        "a mask that was not proved",
        "ATT001",
        "scaled",
        "import torch.nn.functional as F\n"
        "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n",
        refused="does not show that the mask is the lower triangle",
        data={"kind": "square"},
    ),
    Case(
        "a function of the same name",
        "ATT005",
        "attn_mask",
        "from mine import scaled_dot_product_attention\n"
        "scaled_dot_product_attention(q, k, v, attn_mask=mask)\n",
        refused="has no scaled_dot_product_attention(…)",
    ),
]
BATCHES = [
    Case(
        "a batch of a loop over a loader",
        "CPY003",
        "x.to(",
        f"""
        {_LOADER.strip()}
        loader = DataLoader(data, batch_size=64)
        for x, y in loader:
            x, y = x.to("cuda"), y.to("cuda")
        """,
        f"""
        {_LOADER.strip()}
        loader = DataLoader(data, batch_size=64, pin_memory=True)
        for x, y in loader:
            x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        """,
    ),
    Case(
        "a dict, counted",
        "CPY003",
        ".cuda()",
        f"""
        {_LOADER.strip()}
        def train(loader):
            for step, batch in enumerate(loader):
                x = batch["x"].cuda()
        train(DataLoader(data, pin_memory=False))
        """,
        f"""
        {_LOADER.strip()}
        def train(loader):
            for step, batch in enumerate(loader):
                x = batch["x"].cuda(non_blocking=True)
        train(DataLoader(data, pin_memory=True))
        """,
        function="train",
    ),
    Case(
        "a tensor of no loader",
        "CPY003",
        ".to(",
        "import torch\nx = torch.randn(8)\nfor _ in range(9):\n    x.to('cuda')\n",
        refused="is not a batch of a loop over a DataLoader",
    ),
    Case(
        "a loader of two that is passed on",
        "CPY003",
        ".to(",
        f"""
        {_LOADER.strip()}
        def train(loader):
            for x in loader:
                x = x.to("cuda")
        train(DataLoader(data))
        test(DataLoader(other))
        """,
        refused="several lines",
        function="train",
    ),
    Case(
        "a loader that pins already",
        "CPY003",
        ".to(",
        f"{_LOADER}for x in DataLoader(data, pin_memory=True):\n    x = x.to('cuda')\n",
        refused="pins already",
    ),
    Case(
        "a batch that is written to after its copy",
        "CPY003",
        ".to(",
        f"{_LOADER}for x in DataLoader(data):\n    y = x.to('cuda')\n    x.zero_()\n",
        refused="writes to `x`",
    ),
    Case(
        "a copy to the host",
        "CPY003",
        ".cpu()",
        "import torch\ny = x.cpu()\n",
        refused="needs a buffer",
        data={"direction": "to the host"},
    ),
    Case(
        "workers that are started again",
        "DAT001",
        "for x in",
        f"""
        {_LOADER.strip()}
        loader = DataLoader(
            data, batch_size=64,
            num_workers=4, pin_memory=True,
        )
        for x in loader:
            pass
        """,
        f"""
        {_LOADER.strip()}
        loader = DataLoader(
            data, batch_size=64,
            num_workers=4, pin_memory=True, persistent_workers=True,
        )
        for x in loader:
            pass
        """,
    ),
    Case(
        "no workers",
        "DAT001",
        "for x in",
        f"{_LOADER}loader = DataLoader(data)\nfor x in loader:\n    pass\n",
        refused="set num_workers first",
    ),
    Case(
        "a loader that is wrapped",
        "DAT001",
        "for x in",
        f"{_LOADER}loader = DataLoader(data, num_workers=2)\nloader = wrap(loader)\n"
        "for x in loader:\n    pass\n",
        refused="assigns several things to `loader`",
    ),
]
OTHERS = [
    Case(
        "gradients that are filled with zeros",
        "LCH002",
        "zero_grad",
        "opt.zero_grad(set_to_none=False)\n",
        "opt.zero_grad(set_to_none=True)\n",
    ),
    Case(
        "gradients that an old torch fills with zeros",
        "LCH002",
        "zero_grad",
        "opt.zero_grad()\n",
        "opt.zero_grad(set_to_none=True)\n",
        torch="1.13",
    ),
    Case(
        "a distribution at the line",
        "SYN001",
        "Normal(",
        "from torch.distributions import Normal\np = Normal(mean, scale).log_prob(x)\n",
        "from torch.distributions import Normal\n"
        "p = Normal(mean, scale, validate_args=False).log_prob(x)\n",
    ),
    Case(
        "a distribution that was made before",
        "SYN001",
        "log_prob",
        """
        import torch.distributions as D
        def loss(logits, action):
            policy = D.Categorical(logits=logits)
            return -policy.log_prob(action)
        """,
        """
        import torch.distributions as D
        def loss(logits, action):
            policy = D.Categorical(logits=logits, validate_args=False)
            return -policy.log_prob(action)
        """,
        function="loss",
    ),
    Case(
        "checks that are asked for by position",
        "SYN001",
        "Normal(",
        "from torch.distributions import Normal\np = Normal(mean, scale, True)\n",
        refused="by position",
    ),
    Case(
        "a distribution of another function",
        "SYN001",
        "log_prob",
        "def loss(policy, action):\n    return policy.log_prob(action)\n",
        refused="has no constructor of a distribution",
        function="loss",
    ),
]
_NORM = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        {body}
"""


def _norm(*body: str) -> str:
    return _NORM.format(body="\n        ".join(body))


NORMS = [
    Case(
        "a norm in one line",
        "NRM002",
        "def forward",
        _norm(
            "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)"
            " * self.weight"
        ),
        _norm(
            "return nn.functional.rms_norm(x, (x.size(-1),), None, self.eps)"
            " * self.weight"
        ),
        function="forward",
        exact=False,
    ),
    Case(
        "a norm of float32",
        "NRM002",
        "def forward",
        _norm(
            "var = torch.mean(x ** 2, dim=-1, keepdim=True)",
            "return self.weight * (x / torch.sqrt(var + self.eps))",
        ),
        _norm("return nn.functional.rms_norm(x, (x.size(-1),), self.weight, self.eps)"),
        function="forward",
        exact=False,
        evidence=(Evidence("input", "float32 [8,768]"),),
    ),
    Case(
        "a norm that casts its input and back",
        "NRM002",
        "def forward",
        _norm(
            "dtype = x.dtype",
            "x = x.to(torch.float32)",
            "variance = x.pow(2).mean(-1, keepdim=True)",
            "x = x * torch.rsqrt(variance + self.eps)",
            "return self.weight * x.to(dtype)",
        ),
        _norm(
            "return nn.functional.rms_norm(x, (x.size(-1),), None, self.eps)"
            " * self.weight"
        ),
        function="forward",
        exact=False,
    ),
    Case(
        "a norm whose result is cast back",
        "NRM002",
        "def forward",
        _norm(
            "y = x.float() * torch.rsqrt("
            "x.float().square().mean(-1, keepdim=True) + 1e-5)",
            "return (y * self.weight).type_as(x)",
        ),
        _norm("return nn.functional.rms_norm(x, (x.size(-1),), self.weight, 1e-5)"),
        function="forward",
        exact=False,
    ),
    Case(
        "a norm with something more",
        "NRM002",
        "def forward",
        _norm(
            "x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
            "return self.drop(x * self.weight)",
        ),
        refused="not exactly an RMSNorm",
        function="forward",
        exact=False,
    ),
    Case(
        "a norm over another dim",
        "NRM002",
        "def forward",
        _norm(
            "return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps)"
            " * self.weight"
        ),
        refused="not exactly an RMSNorm",
        function="forward",
        exact=False,
    ),
    Case(
        "a norm with one more than its weight",
        "NRM002",
        "def forward",
        _norm(
            "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)"
            " * (1 + self.weight)"
        ),
        refused="not exactly an RMSNorm",
        function="forward",
        exact=False,
    ),
    Case(
        "a norm of a torch without a fused kernel",
        "NRM002",
        "def forward",
        _norm("return x"),
        refused="has no fused RMSNorm",
        function="forward",
        exact=False,
        torch="2.5",
    ),
]
CASES = [*OPTIMIZERS, *PRECISION, *ATTENTION, *BATCHES, *OTHERS, *NORMS]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.after], ids=lambda case: case.name
)
def test_the_edit_is_right(case: Case, tmp_path: Path) -> None:
    made, after = proposal(case, tmp_path)

    assert made.refusal == ""
    assert after == source(case.after)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.refused], ids=lambda case: case.name
)
def test_a_refusal_says_why(case: Case, tmp_path: Path) -> None:
    made, after = proposal(case, tmp_path)

    assert case.refused in made.refusal
    assert after == source(case.before)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.after], ids=lambda case: case.name
)
def test_hunks_have_the_lines_of_the_file(case: Case, tmp_path: Path) -> None:
    made, _ = proposal(case, tmp_path)

    lines = source(case.before).splitlines()
    for hunk in made.hunks:
        count = len(hunk.before.splitlines())
        assert lines[hunk.line - 1 : hunk.line - 1 + count] == hunk.before.splitlines()
    assert made.hunks


def test_there_are_forty_programs_of_different_styles() -> None:
    assert len({ast.dump(ast.parse(source(case.before))) for case in CASES}) >= 40
