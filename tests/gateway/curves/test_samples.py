"""Rows of the curves: merging them, and percentiles from histograms."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.gateway.admin.meter import FIRST_S, Histogram
from firesteel.gateway.curves.samples import CurveRow, first_quantile, merged, packed, quantile, unpacked

BOUNDS = (1.0, 2.0, 4.0)
buckets = st.lists(st.integers(0, 1000), min_size=17, max_size=17).map(tuple)


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ((), 0.5, None),
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 0.5),
        ((0, 10, 0, 0), 0.5, 1.5),
        ((5, 5, 0, 0), 0.5, 1.0),
        ((50, 45, 5, 0), 0.95, 2.0),
        ((0, 0, 0, 3), 0.5, 4.0),  # beyond the last bound: at least that
    ],
)
def test_a_percentile_is_interpolated_in_its_bucket(
    counts: tuple[int, ...], share: float, value: float | None
) -> None:
    assert quantile(BOUNDS, counts, share) == value


@given(st.lists(st.floats(0.001, 800), min_size=20, max_size=200))
def test_a_percentile_is_in_the_bucket_of_the_true_one(values: list[float]) -> None:
    histogram = Histogram(FIRST_S)
    for value in values:
        histogram.add(value)
    true, found = statistics.median_low(values), first_quantile(tuple(histogram.counts), 0.5)
    assert found is not None
    edges = (0.0, *FIRST_S)
    bucket = next(index for index, edge in enumerate(edges) if true <= edge)
    assert edges[bucket - 1] <= found <= edges[bucket] * (1 + 1e-9)


@given(st.lists(buckets, min_size=1, max_size=6))
def test_merging_all_at_once_or_in_parts_is_the_same(histograms: list[tuple[int, ...]]) -> None:
    rows = [CurveRow("m", 5 * i, 5.0, 2.0, counts) for i, counts in enumerate(histograms)]
    whole = merged(rows, 0)
    assert whole == merged([merged(rows[:1], 0), *([merged(rows[1:], 0)] if rows[1:] else [])], 0)
    assert sum(whole.firsts) == sum(map(sum, histograms))


def test_what_a_longer_step_shows() -> None:
    rows = [
        CurveRow("m", 0, 5.0, 100.0, queue=0.0, kv_used=None, memory_bytes=7.0, power_w=10.0),
        CurveRow("m", 5, 15.0, 0.0, queue=4.0, kv_used=0.5, memory_bytes=None, power_w=50.0),
    ]
    both = merged(rows, 0)
    assert (both.seconds, both.tokens_per_s) == (20.0, 5.0)
    assert (both.queue, both.kv_used, both.memory_bytes) == (4.0, 0.5, 7.0), "the most"
    assert both.power_w == 40.0, "the average, by time"


@given(buckets)
def test_a_histogram_survives_the_database(counts: tuple[int, ...]) -> None:
    assert unpacked(packed(counts)) == (counts if any(counts) else ())


def test_bytes_that_are_no_histogram() -> None:
    assert unpacked(b"abc") == ()
