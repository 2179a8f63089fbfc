"""Figures as text: significant digits without an exponent."""

from __future__ import annotations


def digits(value: float, count: int = 3, *, sign: bool = False) -> str:
    """Write a number with ``count`` digits, as 12000 and not as 1.2e+04.

    >>> digits(1361.5), digits(12034, 2), digits(0.0349, 2), digits(2.5, sign=True)
    ('1360', '12000', '0.035', '+2.5')
    """
    rounded = float(f"{value:.{count}g}")
    return f"{rounded:+g}" if sign else f"{rounded:g}"
