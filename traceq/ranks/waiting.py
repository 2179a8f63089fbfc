"""Wait and transfer: the two parts of the time in a collective.

All times are on one clock. A rank waits from its own start to the last one's; what
remains until the end is the transfer.
"""

from __future__ import annotations

import polars as pl

from traceq.ranks.links import link_peak

# Times that a rank's data crosses its link, by kind; n is the number of ranks.
_ON_THE_WIRE: dict[str, tuple[int, int]] = {
    # times (n - 1), and whether divided by n
    "all_reduce": (2, 1),
    "reduce_scatter": (1, 1),
    "all_to_all": (1, 1),
    "all_gather": (1, 0),
}
# Smaller messages are bound by latency, and say nothing of the link.
RATED_BYTES = 1 << 20


# Sends and receives are two sides of one transfer, and counted together.
_ONE_KIND = pl.col("kind").cast(pl.String).replace("recv", "send")


def instances(cells: pl.DataFrame, *, all_here: bool = True) -> pl.DataFrame:
    """Return the collectives that several ranks took part in, one row each.

    They have rates if all their ranks are known: else part of the transfer may be a
    wait, and where the size of the group is unknown, so is what crosses the links.

    ``last`` and ``end`` are when the last rank came and when it was done, ``late`` who
    came last and ``margin`` how much later than the one before; ``wait`` is what all
    ranks waited together, ``transfer`` the time after the last one came, ``imbalance``
    what the rank with the most to send sends, relative to the mean, and ``ordinal``
    which of its kind in the step it is.
    """
    matched = (
        cells.drop_nulls("instance")
        .sort("rank", "start", "cell")
        .with_columns(ordinal=pl.int_range(pl.len()).over("rank", "step", _ONE_KIND))
    )
    by_start = pl.col("start").sort()
    # Sent data may lie in a buffer until the other rank comes for it.
    received = pl.col("kind") == "recv"
    passed = received.any() & (pl.col("kind") == "send").any()
    ends, arrived = pl.col("end"), pl.col("end").filter(received)
    rows = matched.group_by("instance").agg(
        pl.col("kind").mode().sort().first(),
        pl.col("lane", "token").first(),
        # A window that begins in the middle of a step counts fewer.
        ordinal=pl.col("ordinal").max(),
        ranks=pl.col("rank").n_unique(),
        first_rank=pl.col("rank").min(),
        group_size=pl.col("group_size").max(),
        step=pl.col("step").median().round().cast(pl.Int64),
        bytes=pl.col("bytes").max(),
        mean_bytes=pl.col("bytes").mean(),
        first=pl.col("start").min(),
        last=pl.col("start").max(),
        margin=by_start.last() - by_start.slice(-2, 1).first(),
        late=pl.col("rank").sort_by("start").last(),
        end=pl.when(passed)
        .then(arrived.max())
        .otherwise(ends.median().round().cast(pl.Int64)),
        soonest=pl.when(passed).then(arrived.min()).otherwise(ends.min()),
    )
    size = pl.coalesce("group_size", "ranks").cast(pl.Float64)
    factor = pl.coalesce(
        *(
            pl.when(pl.col("kind") == kind).then(times * (size - 1) / size**divided)
            for kind, (times, divided) in _ON_THE_WIRE.items()
        ),
        pl.lit(1.0),
    )
    # What an all-gather gathers is the parts of all ranks.
    whole = pl.when(pl.col("kind") == "all_gather").then(size).otherwise(1.0)
    end = pl.max_horizontal("end", "last")
    transfer = end - pl.col("last")
    whole_group = pl.col("ranks") >= pl.col("group_size")
    rated = pl.when(
        pl.col("bytes") >= RATED_BYTES, transfer > 0, whole_group.fill_null(all_here)
    )
    return (
        rows.with_columns(
            end=end,
            transfer=transfer,
            imbalance=pl.col("bytes") / pl.col("mean_bytes"),
            missing=(pl.col("group_size") - pl.col("ranks")).clip(lower_bound=0),
            algorithm_rate=rated.then(pl.col("bytes") * whole / transfer),
            bus_rate=rated.then(pl.col("bytes") * factor / transfer),
        )
        .drop("mean_bytes")
        .sort("instance")
    )


def waits(cells: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """Return cells of collectives with ``wait``, ``sending`` and ``waited_exposed``.

    The last is the part of the wait in which the GPU computed nothing, at most.
    """
    joined = cells.drop_nulls("instance").join(
        instances.select("instance", "last", "transfer"), on="instance"
    )
    length = pl.col("end") - pl.col("start")
    wait = (pl.col("last") - pl.col("start")).clip(0, length)
    return joined.with_columns(
        wait=wait,
        sending=length - wait,
        waited_exposed=pl.min_horizontal(wait, "exposed"),
    )


def impossible(instances: pl.DataFrame, tolerance: int) -> pl.Series:
    """Return the instances in which a rank was done before another one came."""
    late = instances.filter(pl.col("last") > pl.col("soonest") + tolerance)
    return late["instance"]


def rates(instances: pl.DataFrame, device: str, *, one_machine: bool) -> pl.DataFrame:
    """Return the bandwidth by kind and size, with the link's peak, all in GB/s.

    As NCCL's tests define them: the ``algorithm`` one is what is reduced or gathered in
    the time of a transfer; the ``rate`` is that of the bus, what crosses each link.
    """
    rated = instances.drop_nulls("bus_rate")
    peak = link_peak(device, one_machine=one_machine)
    return (
        rated.group_by("kind", "group_size", "bytes")
        .agg(
            count=pl.len(),
            algorithm=pl.col("algorithm_rate").median(),
            rate=pl.col("bus_rate").median(),
            slowest=pl.col("bus_rate").min(),
            time=pl.col("transfer").sum(),
        )
        .with_columns(peak=pl.lit(peak, pl.Float64))
        .sort("time", "kind", "bytes", descending=[True, False, True])
    )
