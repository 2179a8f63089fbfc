"""What rules on the host's account share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceq.lint import View


def own_time(view: View, ops: Collection[int]) -> pl.DataFrame:
    """Return when the host was at ops themselves: not in ops or launches in them."""
    return view.host_account.segments.filter("own", pl.col("op").is_in(list(ops)))
