"""Two of three results are dropped, and what is free lies between the third ones.

The results lie in one segment, which a larger tensor left. The fix is
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which record.py sets.
"""

from __future__ import annotations

import torch

from parts import GIB, leave

torch.cuda.init()
leave(4 * GIB)
large = torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
del large
results = [torch.empty(128 << 20, dtype=torch.uint8, device="cuda") for _ in range(24)]
results = results[::3]
table = torch.empty(3 * GIB // 2, dtype=torch.uint8, device="cuda")  # here
print(f"{len(results)} results, {table.numel()} bytes")
