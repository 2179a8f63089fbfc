"""Scaling laws fitted to a few measurements, and their crossings."""

from __future__ import annotations

import pytest

from traceq.analysis.base.scaling_laws import best_fit, crossing

LENGTHS = (512.0, 1024.0, 2048.0)


@pytest.mark.parametrize(
    ("law", "amounts"),
    [
        ("constant", (5.0, 5.1, 4.95)),
        ("linear", (10.0, 19.6, 40.5)),
        ("linear", (31.0, 50.2, 91.0)),
        ("quadratic", (1.3, 4.1, 16.2)),
        ("quadratic", (10.5, 13.9, 26.1)),
        ("cubic", (1.0, 8.0, 64.0)),
    ],
)
def test_noisy_points_have_their_law(law: str, amounts: tuple[float, ...]) -> None:
    fit = best_fit(LENGTHS, amounts)

    assert fit is not None
    assert fit.law == law
    assert fit.error < 0.03


def test_two_points_have_no_law() -> None:
    assert best_fit((512.0, 1024.0), (1.0, 2.0)) is None
    assert best_fit((512.0, 512.0, 1024.0), (1.0, 1.1, 2.0)) is None


def test_steps_that_wait_for_the_host_up_to_a_size_have_a_floor() -> None:
    # Block-sparse attention on an H200, in ms.
    lengths = (1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
    fit = best_fit(lengths, (1.89, 1.32, 1.78, 2.72, 5.30), floors=True)

    assert fit is not None
    assert (fit.law, fit.floor) == ("linear", True)
    assert 4096 < (fit.begins or 0) < 8192


def test_a_sum_of_two_parts_has_no_floor() -> None:
    lengths = (1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
    fit = best_fit(lengths, [3 + n / 1000 for n in lengths], floors=True)

    assert fit is not None
    assert (fit.law, fit.floor) == ("linear", False)


def test_points_that_follow_no_law_have_a_large_error() -> None:
    fit = best_fit((1.0, 2.0, 3.0, 4.0), (1.0, 9.0, 2.0, 8.0))

    assert fit is not None
    assert fit.error > 0.2


def test_a_quadratic_overtakes_a_line_where_they_meet() -> None:
    quadratic = best_fit(LENGTHS, [n * n for n in LENGTHS])
    line = best_fit(LENGTHS, [1500 * n for n in LENGTHS])
    assert quadratic is not None
    assert line is not None

    overtakes, result = crossing(quadratic, line, LENGTHS) or (False, None)

    assert overtakes
    assert result is not None
    assert result.at == pytest.approx(1500)
    assert not result.extrapolated


def test_a_meeting_beyond_the_points_is_extrapolated() -> None:
    quadratic = best_fit(LENGTHS, [n * n for n in LENGTHS])
    line = best_fit(LENGTHS, [5000 * n for n in LENGTHS])
    assert quadratic is not None
    assert line is not None

    overtakes, result = crossing(line, quadratic, LENGTHS) or (True, None)

    assert not overtakes
    assert result is not None
    assert result.at == pytest.approx(5000)
    assert result.extrapolated


def test_lines_that_meet_far_away_do_not_cross() -> None:
    quadratic = best_fit(LENGTHS, [n * n for n in LENGTHS])
    line = best_fit(LENGTHS, [50_000 * n for n in LENGTHS])
    assert quadratic is not None
    assert line is not None

    assert crossing(quadratic, line, LENGTHS) is None
