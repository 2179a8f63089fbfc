"""Nanoseconds, bytes and fractions formatted as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def time(nanoseconds: float) -> str:
    """Write a duration with three digits and a unit that suits it.

    >>> time(1_234_567), time(980), time(0)
    ('1.23 ms', '980 ns', '0 ns')
    """
    for size, unit in _TIMES:
        if abs(nanoseconds) >= size:
            return f"{_three_digits(nanoseconds / size)} {unit}"
    return f"{nanoseconds:.0f} ns"


def milliseconds(nanoseconds: float) -> str:
    """Write a duration in milliseconds, the unit in which steps are compared.

    >>> milliseconds(9_303_000)
    '9.30'
    """
    return f"{nanoseconds / 1e6:,.2f}"


def size(count: float) -> str:
    """Write a number of bytes.

    >>> size(3_470_000_000), size(512)
    ('3.23 GiB', '512 B')
    """
    for unit_size, unit in _SIZES:
        if abs(count) >= unit_size:
            return f"{_three_digits(count / unit_size)} {unit}"
    return f"{count:.0f} B"


def share(part: float, whole: float) -> str:
    """Write a part of a whole in percent, without claiming more than is known.

    >>> share(1, 3), share(1, 100_000), share(0, 5), share(1, 0)
    ('33%', '<1%', '0%', '-')
    """
    if not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < percent < 1:
        return "<1%"
    return f"{percent:.0f}%"


def percents(parts: Sequence[float], whole: float) -> list[int]:
    """Return parts of a whole in percent, which together are not more than it.

    >>> percents([1, 1, 1], 3), percents([3, 4], 8)
    ([34, 33, 33], [38, 50])
    """
    exact = [100 * part / whole for part in parts]
    floors = [int(percent) for percent in exact]
    left = round(min(100.0, sum(exact))) - sum(floors)
    largest = sorted(range(len(exact)), key=lambda at: floors[at] - exact[at])
    rounded = set(largest[: max(0, left)])
    return [floor + (at in rounded) for at, floor in enumerate(floors)]


def amount(value: float, unit: str) -> str:
    """Write a number of nanoseconds, of bytes, of a whole, or of things.

    >>> amount(1500, "ns"), amount(2048, "bytes"), amount(0.25, "share"), amount(3, "")
    ('1.50 µs', '2.00 KiB', '25%', '3')
    """
    if unit == "ns":
        return time(value)
    if unit == "bytes":
        return size(value)
    if unit == "share":
        return share(value, 1)
    return number(value)


def number(value: float, digits: int = 3) -> str:
    """Write a number with this many digits, and all of a large one.

    >>> number(1361.5), number(999.7), number(122.5), number(0.333333), number(12.0)
    ('1,362', '1,000', '122', '0.333', '12')
    """
    rounded = float(f"{value:.{digits}g}")
    if value == value // 1 or abs(rounded) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{rounded:g}"


def average(count: float) -> str:
    """Write how many there are on average, as of launches in a step.

    >>> average(2679), average(122.5)
    ('2,679', '122.5')
    """
    tenths = round(count, 1)
    return f"{tenths:,.0f}" if tenths == round(tenths) else f"{tenths:,.1f}"


def three_digits(value: float) -> float:
    """Return a number without the digits that nobody can trust.

    >>> three_digits(503_709.4), three_digits(12.345)
    (504000.0, 12.3)
    """
    return float(f"{value:.3g}")


def _three_digits(value: float) -> str:
    for limit, digits in ((9.995, 2), (99.95, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"
