"""The little least-squares fit against figures that are known, because the runs were made from them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.planner.fit import FitVariable, Point, fit, fit_even

TRUE = {"bytes": 1.25, "layer": 0.05}
UNKNOWNS = (FitVariable("bytes", 1.0, 2.0, 1.0), FitVariable("layer", 0.0, 0.3, 0.0))


def made(costs: Mapping[str, float] = TRUE) -> list[Point]:
    parts = [{"bytes": float(size), "layer": float(layers)} for size in (5, 20, 80) for layers in (20, 60)]
    return [(each, sum(costs[name] * value for name, value in each.items()), 1.0) for each in parts]


def test_known_figures_are_found_again() -> None:
    found = fit(made(), UNKNOWNS, pull=0.0)
    assert found == pytest.approx(TRUE, rel=1e-6)
    assert fit_even(made(), UNKNOWNS) == pytest.approx(TRUE, rel=0.05)


def test_bounds_hold_even_where_the_runs_say_otherwise() -> None:
    found = fit(made({"bytes": 0.6, "layer": 0.5}), UNKNOWNS, pull=0.0)
    assert found["bytes"] >= 1.0
    assert found["layer"] <= 0.3


def test_what_no_run_tells_stays_at_its_prior() -> None:
    found = fit(made(), (*UNKNOWNS, FitVariable("never seen", 0.0, 9.0, 4.0)))
    assert found["never seen"] == 4.0


def test_a_run_that_counts_more_is_met_more_closely() -> None:
    slow: Point = ({"bytes": 10.0}, 20.0, 1.0)
    fast: Point = ({"bytes": 10.0}, 12.0, 1.0)
    even = fit([slow, fast], UNKNOWNS[:1], pull=0.0)["bytes"]
    heavy = fit([(slow[0], slow[1], 9.0), fast], UNKNOWNS[:1], pull=0.0)["bytes"]
    assert heavy > even


def test_half_and_twice_are_equally_wrong_where_asked() -> None:
    points: list[Point] = [({"bytes": 1.0}, 1.0, 1.0), ({"bytes": 1.0}, 4.0, 1.0)]
    wide = (FitVariable("bytes", 0.0, 9.0, 2.0),)
    assert fit(points, wide, pull=0.0)["bytes"] < 1.4  # forgives a time told too short
    assert fit_even(points, wide)["bytes"] == pytest.approx(2.0, rel=0.05)  # between the two, by ratio


@given(st.permutations(range(6)))
def test_the_order_of_runs_does_not_matter(order: list[int]) -> None:
    points = made()
    again = fit([points[at] for at in order], UNKNOWNS)
    assert again == pytest.approx(fit(points, UNKNOWNS), rel=1e-9)
