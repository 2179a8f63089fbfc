"""Peak bandwidth of the links between GPUs."""

from __future__ import annotations

import re

# GB/s in one direction, all links of a GPU together. NVLink and xGMI by the vendors'
# data sheets (half of the sum of both directions), PCIe by its generation, 16 lanes.
_INSIDE = (
    (r"V100.*SXM|V100-SXM", 150.0),
    (r"A100.*SXM|A800.*SXM|A100-PG5", 300.0),
    (r"H800", 200.0),
    (r"H100.*(HBM3|SXM)|H200(?!.*NVL)|H20\b|GH200", 450.0),
    (r"GB200|B200|B300", 900.0),
    (r"MI300X|MI325X|MI308X", 448.0),
    (r"MI350|MI355", 537.0),
    (r"MI250", 200.0),
    (r"H100 PCIe|H100 NVL|H200 NVL|L40S|L40|L4\b|RTX 4090|A100?\b|A10G|A30|A40", 32.0),
    (r"V100.*PCIE|T4", 16.0),
)
# One port of 400 Gbit/s for each GPU, as usual since H100. Older clusters have less.
_NETWORK = 50.0


def link_peak(device: str, *, one_machine: bool) -> float | None:
    """Return the GB/s between GPUs, as far as the device's name says.

    >>> link_peak("Tesla V100-SXM2-16GB", one_machine=True)
    150.0
    >>> link_peak("NVIDIA A100-PG509-200", one_machine=True)
    300.0
    >>> link_peak("", one_machine=True) is None
    True
    """
    if not device:
        return None
    if not one_machine:
        return _NETWORK
    return next((peak for name, peak in _INSIDE if re.search(name, device)), None)
