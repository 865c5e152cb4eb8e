"""The least-squares fit against synthetic runs whose true costs are known."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from calibration.least_squares import FitVariable, Point, fit, fit_log_ratios
from hypothesis import given
from hypothesis import strategies as st

TRUE = {"bytes": 1.25, "layer": 0.05}
VARIABLES = (FitVariable("bytes", 1.0, 2.0, 1.0), FitVariable("layer", 0.0, 0.3, 0.0))


def synthetic_points(costs: Mapping[str, float] = TRUE) -> list[Point]:
    parts = [{"bytes": float(size), "layer": float(layers)} for size in (5, 20, 80) for layers in (20, 60)]
    return [(terms, sum(costs[name] * value for name, value in terms.items()), 1.0) for terms in parts]


def test_known_costs_are_recovered() -> None:
    found = fit(synthetic_points(), VARIABLES, pull=0.0)
    assert found == pytest.approx(TRUE, rel=1e-6)
    assert fit_log_ratios(synthetic_points(), VARIABLES) == pytest.approx(TRUE, rel=0.05)


def test_bounds_hold_against_the_runs() -> None:
    found = fit(synthetic_points({"bytes": 0.6, "layer": 0.5}), VARIABLES, pull=0.0)
    assert found["bytes"] >= 1.0
    assert found["layer"] <= 0.3


def test_a_variable_in_no_run_stays_at_its_prior() -> None:
    found = fit(synthetic_points(), (*VARIABLES, FitVariable("never seen", 0.0, 9.0, 4.0)))
    assert found["never seen"] == 4.0


def test_a_heavier_run_is_fitted_more_closely() -> None:
    slow: Point = ({"bytes": 10.0}, 20.0, 1.0)
    fast: Point = ({"bytes": 10.0}, 12.0, 1.0)
    even = fit([slow, fast], VARIABLES[:1], pull=0.0)["bytes"]
    heavy = fit([(slow[0], slow[1], 9.0), fast], VARIABLES[:1], pull=0.0)["bytes"]
    assert heavy > even


def test_log_ratios_treat_half_and_twice_as_equally_wrong() -> None:
    points: list[Point] = [({"bytes": 1.0}, 1.0, 1.0), ({"bytes": 1.0}, 4.0, 1.0)]
    wide = (FitVariable("bytes", 0.0, 9.0, 2.0),)
    assert fit(points, wide, pull=0.0)["bytes"] < 1.4  # favours a time that is too short
    assert fit_log_ratios(points, wide)["bytes"] == pytest.approx(2.0, rel=0.05)  # between the two, by ratio


@given(st.permutations(range(6)))
def test_the_order_of_runs_does_not_matter(order: list[int]) -> None:
    points = synthetic_points()
    again = fit([points[index] for index in order], VARIABLES)
    assert again == pytest.approx(fit(points, VARIABLES), rel=1e-9)
