"""One row of the curves: what happened to one model in one step. Pure.

    merged([row, row]) -> the same for a longer step
    quantile(FIRST_S, counts, 0.95) -> seconds

A percentile of percentiles is wrong, so a row keeps the histograms that its percentiles come from: a longer
step adds up the counts and computes its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from firesteel.gateway.admin.meter import FIRST_S, GAP_S
from firesteel.values import Value

Counts = tuple[int, ...]


class CurveRow(Value):
    """`model` is empty for the whole machine. None: not known."""

    model: str
    start: int
    """Seconds since 1970, a multiple of the step."""
    seconds: float
    """How much of the step was watched."""
    tokens: float = 0.0
    firsts: Counts = ()
    """Histogram of times to the first token; empty: none."""
    gaps: Counts = ()
    queue: float | None = None
    """The longest; so for the cache and the memory."""
    kv_used: float | None = None
    """Share of the KV cache, 0 to 1."""
    memory_bytes: float | None = None
    power_w: float | None = None
    """The average."""

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None


def merged(rows: Sequence[CurveRow], start: int) -> CurveRow:
    """Rows of one model as one row of a longer step."""
    seconds = sum(row.seconds for row in rows)
    powers = [(row.power_w, row.seconds) for row in rows if row.power_w is not None]
    power_s = sum(weight for _, weight in powers)
    return CurveRow(
        rows[0].model,
        start,
        seconds,
        sum(row.tokens for row in rows),
        added(row.firsts for row in rows),
        added(row.gaps for row in rows),
        _most(row.queue for row in rows),
        _most(row.kv_used for row in rows),
        _most(row.memory_bytes for row in rows),
        sum(power * weight for power, weight in powers) / power_s if power_s > 0 else None,
    )


def added(histograms: Iterable[Counts]) -> Counts:
    """Position by position; empty if all are."""
    known = [counts for counts in histograms if counts]
    return tuple(map(sum, zip(*known, strict=False))) if known else ()


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def first_quantile(counts: Counts, share: float) -> float | None:
    return quantile(FIRST_S, counts, share)


def gap_quantile(counts: Counts, share: float) -> float | None:
    return quantile(GAP_S, counts, share)


def quantile(bounds: Sequence[float], counts: Counts, share: float) -> float | None:
    """Interpolated within its bucket, as Prometheus does: right to the width of the bucket.

    None without values; beyond the last bound that bound, a lower limit.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    below, so_far = 0.0, 0
    for bound, count in zip(bounds, counts, strict=False):
        if so_far + count >= rank:
            return below + (bound - below) * (rank - so_far) / count
        below, so_far = bound, so_far + count
    return bounds[-1]


def packed(counts: Counts) -> bytes | None:
    """For the database: 4 bytes a bucket, and nothing for an empty histogram."""
    return array("I", (min(count, 2**32 - 1) for count in counts)).tobytes() if any(counts) else None


def unpacked(data: bytes | None) -> Counts:
    return tuple(array("I", data)) if data and len(data) % 4 == 0 else ()
