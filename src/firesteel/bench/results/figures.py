"""Samples to figures. Pure.

Rates of single requests and repetitions are defined in `rates.py`. Figures are made of samples that went
right, and of repetitions in which all of them did. Intervals are over repetitions: streams that ran side by
side are one observation, not many. Prefill is measured with one user only, since with several a prompt waits
for others. Goodput counts all requests, also wrong and unsent ones; in an open loop, over the time in which
they arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from firesteel.bench.compare.stats import mean_interval, spread
from firesteel.bench.results.context import PointContext, bandwidth_share
from firesteel.bench.results.point_notes import point_notes
from firesteel.bench.results.rates import (
    RepetitionSamples,
    by_repetition,
    cached_share,
    completion_tokens,
    decode_tokens_per_s,
    prefill_tokens_per_s,
    server_rates,
    ttft_ms,
    warm_repetitions,
)
from firesteel.bench.values import MeasuredFigure, Point, PointFigures, RequestSample


def figures(
    point: Point, samples: Sequence[RequestSample], context: PointContext | None = None
) -> PointFigures:
    context = context or PointContext()
    repetitions = list(by_repetition(point, samples).values())
    good = [sample for repetition in repetitions for sample in repetition.good]
    counted = [sample for repetition in repetitions for sample in repetition.counted]
    decode = _over(repetition.decode_tokens_per_s() for repetition in repetitions)
    cached = cached_share(good)
    return PointFigures(
        point=point,
        samples=len(good),
        wrong=dict(Counter(str(sample.wrong) for sample in samples if sample.wrong)),
        decode_tokens_per_s=decode,
        total_tokens_per_s=_total(point, repetitions),
        prefill_tokens_per_s=_prefill(point, repetitions),
        ttft_ms=spread(_known(map(ttft_ms, counted))),
        inter_token_ms=spread([1000 * gap for sample in counted for gap in sample.gaps_s]),
        time_per_output_token_ms=spread([1000 / r for r in _known(map(decode_tokens_per_s, counted)) if r]),
        goodput_per_s=_goodput(point, list(warm_repetitions(samples).values()), context.target),
        bandwidth_share=bandwidth_share(point, decode, context),
        joules_per_token=_joules(repetitions, context.watts),
        cached_share=cached if cached is not None else context.cached_share,
        accepted_per_step=context.accepted_per_step,
        ttft_mean_ms=_over(repetition.mean(ttft_ms) for repetition in repetitions),
        repetitions=len(repetitions),
        cold=_cold(samples),
        server=server_rates(counted),
        kv_usage=context.kv_usage,
        preemptions=context.preemptions,
        notes=tuple(point_notes(point, samples, decode, context)),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _over(means: Iterable[float | None]) -> MeasuredFigure | None:
    return mean_interval(_known(means))


def _prefill(point: Point, repetitions: Sequence[RepetitionSamples]) -> MeasuredFigure | None:
    if point.users > 1 or point.rate_per_s is not None:
        return None
    return _over(repetition.mean(prefill_tokens_per_s) for repetition in repetitions)


def _total(point: Point, repetitions: Sequence[RepetitionSamples]) -> MeasuredFigure | None:
    if point.users == 1 and point.turns == 1:
        return None
    return _over(repetition.total_tokens_per_s() for repetition in repetitions)


def _goodput(
    point: Point, repetitions: Sequence[RepetitionSamples], target: Mapping[str, float]
) -> float | None:
    """Requests per second that met the target, out of all requests; None if there is no target."""
    requests: list[RequestSample] = []
    duration_s = 0.0
    for repetition in repetitions:
        low, high = repetition.window
        if repetition.is_loop:
            duration_s += max(0.0, high - low)
            ended = [each for each in repetition.every if low < each.started_s + each.total_s <= high]
            requests += ended
        else:
            duration_s += repetition.load_s
            requests += repetition.every
    if point.rate_per_s is not None:
        duration_s = len(requests) / point.rate_per_s
    if not target or duration_s <= 0:
        return None
    return sum(_meets(sample, target) for sample in requests) / duration_s


def _meets(sample: RequestSample, target: Mapping[str, float]) -> bool:
    rate, wait_ms, max_gap_ms = decode_tokens_per_s(sample), ttft_ms(sample), target.get("inter_token_ms")
    if sample.wrong or wait_ms is None or wait_ms > target.get("ttft_ms", float("inf")):
        return False
    return max_gap_ms is None or (rate is not None and 1000 / rate <= max_gap_ms)


def _joules(repetitions: Sequence[RepetitionSamples], watts: float | None) -> float | None:
    tokens = sum(completion_tokens(repetition.good) for repetition in repetitions)
    duration_s = sum(repetition.load_s for repetition in repetitions)
    return watts * duration_s / tokens if watts is not None and tokens and duration_s > 0 else None


def _cold(samples: Sequence[RequestSample]) -> dict[str, float]:
    cold = [sample for sample in samples if sample.is_cold and not sample.wrong]
    first_ms = [1000 * sample.first_s for sample in cold if sample.first_s is not None]
    found = {"ttft_ms": first_ms, "decode_tokens_per_s": _known(map(decode_tokens_per_s, cold))}
    return {name: fmean(values) for name, values in found.items() if values}
