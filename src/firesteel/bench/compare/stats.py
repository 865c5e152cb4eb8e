"""How certain a measured number is, whether two of them differ, and how much one server varies by itself.

Intervals are of 95 %, Student's for a mean (`mean_interval`). Two sets of values are compared by their ratio,
so in logarithms: with Welch's test if they were measured separately, with the paired test if they were
interleaved. The interval and the verdict come from the same test and never contradict each other. Values that
depend on the ones before (heat, clocks) count for fewer: `effective_n`. The repetitions of one run say
nothing about how much runs of one unchanged server differ: `run_variation` estimates that from earlier runs
of the same launch, settings and load, or takes `DEFAULT_SPREAD`. Nothing here is random. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import exp, floor, fsum, isfinite, lgamma, log, log1p, pi, sqrt
from statistics import fmean, variance
from typing import Literal

from firesteel.bench.load.contention import NOTE as CONTENTION
from firesteel.bench.measurements import BenchRun, MeasuredFigure, Point
from firesteel.values import Value, replace

Measure = Literal["decode", "total", "prefill", "TTFT"]
FIELDS: Mapping[Measure, str] = {
    "decode": "decode_tokens_per_s",
    "total": "total_tokens_per_s",
    "prefill": "prefill_tokens_per_s",
    "TTFT": "ttft_mean_ms",
}
PINNED = ("thinking", "temperature", "max_num_seqs", "ignores_eos")
"""Settings that must be equal for a comparison."""
DEFAULT_SPREAD = 0.02
"""Standard deviation of a run's figure, as a share. Of 88 pairs of runs with equal model, flags and load on
Sparks (`data/measured/runs.csv`, source `djangodevreng`), decode has 0.9 % by the median pair and 3.0 % by
the pooled variance, TTFT 1.3 % by the median; two runs of one unchanged embedded engine differed by 4.2 %
(2026-11-15)."""
_MIN_FREEDOM = 3
"""Degrees of freedom below which an estimate from earlier runs is worth less than the default."""
_MIN_REPETITIONS = 3
_KNOWN = 1e6
"""Degrees of freedom of a figure that counts as known."""


class RunVariation(Value):
    spread: float = DEFAULT_SPREAD
    """Standard deviation of a run's figure, as a share of it."""
    freedom: float = _KNOWN
    runs: int = 0
    """Earlier runs that it was estimated from; 0: the default."""

    def widen(self, squared_error: float, freedom: float) -> tuple[float, float]:
        """The squared error of a difference of two runs, and its degrees of freedom. Earlier runs show the
        whole error of a run's figure, the default only what is added to that within the run."""
        between = 2 * self.spread**2
        if not self.runs:
            total = squared_error + between
            return total, freedom * (total / squared_error) ** 2 if squared_error > 0 else _KNOWN
        return max((squared_error, freedom), (between, self.freedom))


def run_variation(
    point: Point, measure: Measure, first: BenchRun, second: BenchRun, earlier: Iterable[BenchRun]
) -> RunVariation:
    """`earlier`: other runs of the history. Runs of a server that we did not start are not used: it may
    have been changed between them."""
    by_launch: dict[str, list[float]] = {}
    for run in earlier:
        key = run.subject.launch_key
        is_same = any(_is_same_server(run, side) for side in (first, second))
        figure = _figure(run, point, measure)
        if key and is_same and figure and run.id not in (first.id, second.id):
            by_launch.setdefault(key, []).append(log(figure.value))
    groups = [values for values in by_launch.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in groups)
    if freedom < _MIN_FREEDOM:
        return RunVariation()
    pooled = sum((len(values) - 1) * variance(values) for values in groups) / freedom
    return RunVariation(pooled**0.5, freedom, sum(map(len, groups)))


def _is_same_server(run: BenchRun, side: BenchRun) -> bool:
    one, other = run.subject, side.subject
    return (
        (one.launch_key, one.host.get("title")) == (other.launch_key, other.host.get("title"))
        and all(getattr(run.settings, name) == getattr(side.settings, name) for name in PINNED)
        and CONTENTION not in run.notes
    )


def _figure(run: BenchRun, point: Point, measure: Measure) -> MeasuredFigure | None:
    load = replace(point, shape="")
    figures = next((found for found in run.figures if replace(found.point, shape="") == load), None)
    figure: MeasuredFigure | None = getattr(figures, FIELDS[measure], None)
    return figure if figure and figure.n >= _MIN_REPETITIONS and figure.value > 0 else None


def variation_note(variations: Mapping[Measure, RunVariation]) -> str:
    """For the figures of a comparison of two runs that were not measured in turns."""
    known = {name: found for name, found in variations.items() if found.runs}
    if not known:
        return (
            f"runs of one unchanged server vary by themselves, by about {DEFAULT_SPREAD:.0%} (a usual value; "
            "with four more runs of the same launch it is measured here), so differences below about "
            f"{3.3 * DEFAULT_SPREAD:.0%} are not called; `--ab` measures both in turns and sees smaller ones"
        )
    shares = ", ".join(f"{name} {found.spread:.1%}" for name, found in known.items())
    count = fmean(found.runs for found in known.values())
    return (
        f"runs of one unchanged server vary by themselves; {count:.0f} earlier runs here by: {shares} "
        "(standard deviation). That is in each interval; `--ab` measures both in turns and sees less"
    )


# --- intervals and differences ---
# The interval of a mean is Student's: in 600 draws of five normal values it contained the true mean in 96 of
# 100 cases, a bootstrap (BCa) in 83. If values are very skewed, both contain it less often: for lognormal
# values with sigma 1, Student's did so in 84 of 100 cases with five or ten values, in 88 with thirty.

Verdict = Literal["faster", "slower", "no difference seen", "too few"]
_CONFIDENCE = 0.95
_MIN_VALUES = 3
"""Values on each side below which there is no verdict: two may agree by chance."""
_MIN_CORRELATED = 6
"""Values needed to estimate the correlation of neighbours."""
_MAX_CORRELATION = 0.95
_MAX_STEPS = 300
_TINY = 1e-300


class FigureDifference(Value):
    """One set of values against another: their ratio, its interval, and whether it is more than chance."""

    ratio: float
    low: float
    high: float
    p: float
    """How often chance alone would show as much; 1 if there are too few values."""
    verdict: Verdict
    n: int = 0
    """Values on the side that has fewer, or pairs."""

    @property
    def is_real(self) -> bool:
        return self.verdict in ("faster", "slower")


def percentile(values: Sequence[float], p: float) -> float:
    """`p` from 0 to 100, interpolated between the two nearest values (numpy's `linear`)."""
    if not values or not 0 <= p <= 100:
        raise ValueError("a percentile needs values, and a share from 0 to 100")
    ordered = sorted(values)
    position = (len(ordered) - 1) * p / 100
    below = floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def spread(values: Sequence[float]) -> dict[str, float]:
    """`p50`, `p90`, `p99` and `mean`; empty without values."""
    if not values:
        return {}
    return {**{f"p{p}": percentile(values, p) for p in (50, 90, 99)}, "mean": fmean(values)}


def mean_interval(values: Sequence[float]) -> MeasuredFigure | None:
    """None without values. One value has no known spread: its interval is from 0 to twice itself."""
    n = len(values)
    if not n:
        return None
    mean = fsum(values) / n
    if n == 1:
        return MeasuredFigure(mean, min(0.0, 2 * mean), max(0.0, 2 * mean), 1)
    margin = student_quantile(0.5 + _CONFIDENCE / 2, n - 1) * sqrt(_variance(values) / n)
    low = mean - margin
    is_never_negative = min(values) >= 0  # as rates and times are
    return MeasuredFigure(mean, max(0.0, low) if is_never_negative else low, mean + margin, n)


def compare_values(
    a: Sequence[float],
    b: Sequence[float],
    *,
    paired: bool = False,
    is_time: bool = False,
    variation: RunVariation | None = None,
) -> FigureDifference:
    """Is `a` faster than `b`? Both are rates, or times with `is_time`. `paired`: interleaved, in order.
    `variation`: how much two runs differ by themselves."""
    n = min(len(a), len(b))
    if paired and len(a) != len(b):
        raise ValueError("pairs need as many values on both sides")
    if n < _MIN_VALUES or not all(isfinite(value) and value > 0 for value in (*a, *b)):
        return FigureDifference(_ratio_of_means(a, b), 0.0, 0.0, 1.0, "too few", n)
    logs_a, logs_b = [log(value) for value in a], [log(value) for value in b]
    difference, error, freedom = _paired(logs_a, logs_b) if paired else _welch(logs_a, logs_b)
    if variation:
        squared_error, freedom = variation.widen(error**2, freedom)
        error = sqrt(squared_error)
    return log_difference(difference, error, freedom, n, is_time=is_time)


def log_difference(
    difference: float, error: float, freedom: float, n: int, *, is_time: bool = False
) -> FigureDifference:
    """A verdict from a difference of logarithms, its standard error and its degrees of freedom."""
    if error < 1e-12:  # all values are equal: nothing is left to chance
        p, margin = float(abs(difference) < 1e-12), 0.0
    else:
        p = 2 * student_tail(abs(difference) / error, freedom)
        # An imported figure may have any interval; the limit keeps `exp` finite.
        margin = min(600.0, student_quantile(0.5 + _CONFIDENCE / 2, freedom) * error)
    verdict: Verdict = "no difference seen"
    if p < 1 - _CONFIDENCE:
        verdict = "faster" if (difference > 0) != is_time else "slower"
    low, high = exp(difference - margin), exp(difference + margin)
    return FigureDifference(exp(difference), low, high, p, verdict, n)


def _ratio_of_means(a: Sequence[float], b: Sequence[float]) -> float:
    """Shown only with `too few`; 0 if there is none."""
    over, under = fsum(a) / max(1, len(a)), fsum(b) / max(1, len(b))
    return over / under if under and isfinite(over / under) else 0.0


def _paired(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    differences = [x - y for x, y in zip(a, b, strict=True)]
    n, error = len(differences), sqrt(_variance(differences) / effective_n(differences))
    return fsum(differences) / n, error, n - 1


def _welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """The difference of the means, its error, and the degrees of freedom."""
    va, vb = _variance(a) / effective_n(a), _variance(b) / effective_n(b)
    difference = fsum(a) / len(a) - fsum(b) / len(b)
    return difference, sqrt(va + vb), satterthwaite(va, len(a), vb, len(b))


def satterthwaite(va: float, na: int, vb: float, nb: int) -> float:
    """Degrees of freedom of the difference of two means with these squared errors."""
    under = va**2 / (na - 1) + vb**2 / (nb - 1)
    return (va + vb) ** 2 / under if under > _TINY else na + nb - 2


def _variance(values: Sequence[float]) -> float:
    mean = fsum(values) / len(values)
    return fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def effective_n(values: Sequence[float]) -> float:
    """The number of independent values that these are worth: n (1 - r) / (1 + r).

    r is the correlation of neighbours, with its average bias (1 / n) added back. Values that alternate are
    not counted for more than they are, and for few values the correlation is unknown.
    """
    n = len(values)
    if n < _MIN_CORRELATED:
        return n
    mean = fsum(values) / n
    deviations = [value - mean for value in values]
    total = fsum(deviation * deviation for deviation in deviations)
    if total <= _TINY:
        return n
    r = fsum(one * other for one, other in pairwise(deviations)) / total + 1 / n
    r = min(_MAX_CORRELATION, max(0.0, r))
    return max(2.0, n * (1 - r) / (1 + r))


_NORMAL = 1e6
"""With so much freedom Student's t is the normal distribution to six digits; far beyond, rounding wins."""


@lru_cache(maxsize=4096)
def student_quantile(share: float, freedom: float) -> float:
    """The value below which Student's t stays in that share of cases (above one half).

    By Newton's method, and by halving where that would leave what is known to hold the value.
    """
    freedom = min(freedom, _NORMAL)
    low, high = 0.0, 1.0
    for _ in range(_MAX_STEPS):
        if student_tail(high, freedom) < 1 - share:
            break
        low, high = high, 2 * high
    at_zero = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(freedom * pi)
    value = (low + high) / 2
    for _ in range(_MAX_STEPS):
        excess = student_tail(value, freedom) - (1 - share)
        step = excess / (at_zero * (1 + value * value / freedom) ** (-(freedom + 1) / 2))
        if abs(step) <= 1e-12 * value:
            break
        low, high = (value, high) if excess > 0 else (low, value)
        value = value + step if low < value + step < high else (low + high) / 2
    return value


def student_tail(t: float, freedom: float) -> float:
    """How often Student's t exceeds `t` (0 or more)."""
    freedom = min(freedom, _NORMAL)
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction where it converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    return front * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Lentz's algorithm: 1/(1+ d1/(1+ d2/(1+ ...)))."""
    upper, lower = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    fraction = lower
    for m in range(1, _MAX_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = 1 / _off_zero(1 + term * lower)
            upper = _off_zero(1 + term / upper)
            fraction *= lower * upper
        if abs(lower * upper - 1) < 1e-15:
            break
    return fraction


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
