"""Stand-in for warp-ctc's binding: its interface, computed by torch."""

from __future__ import annotations

import torch
from torch.nn import functional


class CTCLoss(torch.nn.Module):
    """The summed loss of outputs before softmax, with labels from the CPU."""

    def forward(
        self,
        acts: torch.Tensor,
        labels: torch.Tensor,
        act_lens: torch.Tensor,
        label_lens: torch.Tensor,
    ) -> torch.Tensor:
        """Return the sum over the batch."""
        log_probs = acts.log_softmax(2)
        targets = labels.long().to(acts.device)
        return functional.ctc_loss(
            log_probs, targets, act_lens, label_lens, reduction="sum"
        )
