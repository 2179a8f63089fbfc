"""A policy whose arguments are checked for each of many actions of a step."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

from loops import CUDA, DEVICE, loop, options, size

WIDTH, ACTIONS, BATCH, TIMES = size(512, 16), 16, 256, 24


def log_probability(logits: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    policy = Categorical(logits=logits)
    return policy.log_prob(action)


def unchecked(logits: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return Categorical(logits=logits, validate_args=False).log_prob(action)


def main() -> None:
    chosen = options(__doc__)
    compute = unchecked if chosen.fixed else log_probability
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    model.append(nn.Linear(WIDTH, ACTIONS)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    x = torch.randn(BATCH, WIDTH, device=DEVICE)
    actions = torch.randint(ACTIONS, (TIMES, BATCH), device=DEVICE)

    def step(_: int) -> None:
        optimizer.zero_grad()
        logits = model(x)
        (-sum(compute(logits, action).mean() for action in actions)).backward()
        optimizer.step()

    loop(step, chosen.steps)


if __name__ == "__main__":
    main()
