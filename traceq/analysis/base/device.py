"""Device facts of the GPU that a trace was recorded on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.analysis.base.cached import cached_per_trace
from traceq.model.gpu_peaks import Peak, peak_of

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_AMD = re.compile(r"AMD|Instinct|Radeon|\bMI\d{3}")


class Gpu(Struct, frozen=True):
    """Facts about a GPU; a capability of (0, 0) is unknown."""

    name: str = ""
    sms: int | None = None
    capability: tuple[int, int] = (0, 0)
    amd: bool = False

    @property
    def peak(self) -> Peak | None:
        """Its peak rates, if the model is known."""
        return peak_of(self.name, self.sms)


@cached_per_trace
def used_gpu(trace: Trace) -> Gpu:
    """Return the first GPU that ran something, else the first GPU."""
    devices = trace.devices.sort("used", descending=True, maintain_order=True)
    hip = trace.facts.runtime_version.startswith("HIP")
    for row in devices.head(1).iter_rows(named=True):
        return Gpu(
            name=row["name"] or "",
            sms=row["sms"],
            capability=(row["compute_major"] or 0, row["compute_minor"] or 0),
            amd=hip or bool(_AMD.search(row["name"] or "")),
        )
    return Gpu(amd=hip)
