"""Against numpy, against figures of scipy, and against the truth by simulation."""

from __future__ import annotations

import math
import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.bench.compare import stats

_RATES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40)


@given(_RATES, st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], p: float) -> None:
    assert stats.percentile(values, p) == pytest.approx(float(numpy.percentile(values, p)))


@pytest.mark.parametrize("p", [-1, 101, math.nan])
def test_invalid_percentiles(p: float) -> None:
    with pytest.raises(ValueError):
        stats.percentile([1.0], p)


@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [  # scipy 1.17.1's stats.t.ppf
        (0.975, 1, 12.706204736174694),
        (0.975, 2, 4.302652729911275),
        (0.975, 4, 2.7764451051977987),
        (0.975, 7.3, 2.345066736547703),
        (0.975, 29, 2.045229642132703),
        (0.975, 1e4, 1.9602012398),
        (0.9, 10, 1.372183641110336),
        (0.975, 1e59, 1.959963984540054),  # two runs without any spread of their own
    ],
)
def test_students_t(share: float, freedom: float, value: float) -> None:
    assert stats.student_quantile(share, freedom) == pytest.approx(value, rel=2e-6)
    assert stats.student_tail(value, freedom) == pytest.approx(1 - share, rel=1e-5)


@given(_RATES)
def test_an_interval_is_around_its_value(values: list[float]) -> None:
    figure = stats.mean_interval(values)
    assert figure is not None and figure.n == len(values)
    assert 0 <= figure.low <= figure.value * (1 + 1e-12)
    assert figure.value * (1 - 1e-12) <= figure.high


def test_no_value_has_no_figure_and_one_has_a_wide_interval() -> None:
    assert stats.mean_interval([]) is None
    one = stats.mean_interval([50.0])
    assert one is not None and (one.value, one.n) == (50.0, 1)
    assert one.half_width >= 1, "a run that stops when its interval is small must go on"


@pytest.mark.parametrize("n", [3, 5, 10, 30])
@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_intervals_have_their_nominal_coverage(n: int, spread: float) -> None:
    chance = random.Random(7 * n)
    draws = [[100 * chance.lognormvariate(0, spread) for _ in range(n)] for _ in range(1000)]
    mean = 100 * math.exp(spread**2 / 2)
    figures = [stats.mean_interval(values) for values in draws]
    correct = [figure for figure in figures if figure and figure.low <= mean <= figure.high]
    assert 0.92 <= len(correct) / len(draws) <= 0.98


def test_equal_values_rarely_differ() -> None:
    chance = random.Random(1)
    wrong = 0
    for _ in range(600):
        one, other = ([chance.gauss(100, 4) for _ in range(6)] for _ in range(2))
        wrong += stats.compare_values(one, other).is_real
    assert 0.02 <= wrong / 600 <= 0.08


def test_welch_equals_scipy() -> None:
    """scipy 1.17.1, `ttest_ind(log a, log b, equal_var=False)` and its `confidence_interval`."""
    a, b = [101.0, 99.5, 103.2, 100.1, 98.7], [95.0, 96.1, 94.2, 97.3]
    found = stats.compare_values(a, b)
    assert found.p == pytest.approx(0.0020928015214, rel=1e-6)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx(
        (0.02482375207799, 0.07401421747202), rel=1e-6
    )
    assert (found.verdict, found.n) == ("faster", 4)


def test_pairs_cancel_drift() -> None:
    """Both slow down as the machine warms up; taken in turns the five per cent between them still show."""
    drift = [100.0, 92.0, 84.0, 77.0, 70.0, 64.0]
    ours = [
        each * factor for each, factor in zip(drift, (1.05, 1.049, 1.052, 1.05, 1.047, 1.051), strict=True)
    ]
    assert stats.compare_values(ours, drift).verdict == "no difference seen"
    found = stats.compare_values(ours, drift, paired=True)
    assert found.verdict == "faster" and found.low > 1.045


def test_a_lower_time_is_faster() -> None:
    fast, slow = [10.0, 10.1, 9.9, 10.05], [12.0, 12.1, 11.9, 12.2]
    assert stats.compare_values(fast, slow, is_time=True).verdict == "faster"
    assert stats.compare_values(slow, fast, is_time=True).verdict == "slower"
    assert stats.compare_values(fast, slow).verdict == "slower"


@given(_RATES, _RATES)
def test_swapping_inverts_the_ratio(a: list[float], b: list[float]) -> None:
    one, other = stats.compare_values(a, b), stats.compare_values(b, a)
    if one.verdict != "too few":
        assert one.p == pytest.approx(other.p, abs=1e-9)
        assert one.ratio * other.ratio == pytest.approx(1)
        assert one.low == pytest.approx(1 / other.high, rel=1e-6, abs=1e-300)
        assert one.is_real == (not one.low <= 1 <= one.high) or one.p == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize(
    ("a", "b"),
    [([], []), ([1.0, 2.0], [1.0, 2.0, 3.0]), ([0.0, 1.0, 2.0], [1.0] * 3), ([math.inf] * 3, [1.0] * 3)],
)
def test_too_few_or_invalid_values_have_no_verdict(a: list[float], b: list[float]) -> None:
    assert stats.compare_values(a, b).verdict == "too few"


def test_values_without_any_spread() -> None:
    assert stats.compare_values([50.0] * 4, [50.0] * 4).verdict == "no difference seen"
    found = stats.compare_values([55.0] * 4, [50.0] * 4)
    assert found.verdict == "faster"
    assert found.ratio == pytest.approx(1.1)
