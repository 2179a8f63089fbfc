"""Hook after the optimizer steps of a process, which a call of it may end."""

from __future__ import annotations

from typing import Any, Callable

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from . import torch_state


def after_optimizer_steps(call: Callable[[Optimizer], None]) -> Callable[[], None]:
    """Call ``call`` after each step of an optimizer; return what ends that.

    The hook itself stays, and does nothing then: torch goes through its hooks without
    a copy, so that removing one during a step would end the program with an error if
    the program has a hook, too. A hook that compiling sees must not change either, or
    the optimizer would be compiled again.
    """
    calls = [call]

    def hook(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not torch_state.compiling():
            for item in calls:
                item(optimizer)

    register_optimizer_step_post_hook(hook)
    return calls.clear
