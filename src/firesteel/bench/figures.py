"""Samples -> figures. Pure.

    decode     (completion_tokens - 1) / (last - first): tokens after the first, by the time they took
    total      all tokens of a visit, by the time from the first request to the last word
    prefill    prompt tokens that were not cached, by the time to the first word; one user only, since with
               several a prompt waits for others
    intervals  over visits: streams that ran side by side are one observation, not many

A figure is made of samples that went right, and of visits in which all did: where one of four streams
failed, the other three had more than their share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from firesteel.bench.stats import mean_interval, percentile
from firesteel.bench.values import Figure, Figures, Point, Sample

SHARE_LOW, SHARE_HIGH = 0.45, 0.95
"""Of the bandwidth, what single-user decode came to in 222 published runs on a GB10; outside something is
off."""
_SHALLOW = 4096
"""Tokens to which the plan's bytes of a token, given about a thousand tokens in, hold well enough."""
_LEAST_PROMPT = 128
"""Below, a prompt's time is mostly not its reading."""
_BATCHED_S = 0.0005
"""Chunks closer than that came in one piece."""
_APART = 0.1
_TEMPLATE = 64
Visits = list[list[Sample]]


@dataclass(frozen=True, slots=True)
class Around:
    """What was known or seen beside the samples of one point; None: not known."""

    plan: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, float] = field(default_factory=dict)
    watts: float | None = None
    accepted_per_step: float | None = None
    cached_share: float | None = None
    """As the engine's own counters have it; `usage` goes before."""
    kv_usage: float | None = None
    preemptions: int | None = None
    drafts: bool = False
    has_gpu: bool = True
    """The usual share was found on GB10s; a CPU reaches less, and nothing is wrong with it."""


def decode_tps(sample: Sample) -> float | None:
    """None where the answer came in one piece, or was one token."""
    made, first, last = sample.completion_tokens, sample.first_s, sample.last_s
    if made is None or made < 2 or first is None or last is None or is_in_one_piece(sample):
        return None
    return (made - 1) / (last - first)


def is_in_one_piece(sample: Sample) -> bool:
    """Something between the engine and us gathers: the times say nothing of the engine."""
    arrivals = 1 + sum(gap > _BATCHED_S for gap in sample.gaps_s)
    return arrivals < 2 or ((sample.completion_tokens or 0) >= 32 and arrivals < 4)


def prefill_tps(sample: Sample) -> float | None:
    new = (sample.prompt_tokens or 0) - (sample.cached_tokens or 0)
    return new / sample.first_s if sample.first_s and new >= _LEAST_PROMPT else None


def figures(point: Point, samples: Sequence[Sample], around: Around | None = None) -> Figures:
    known = around or Around()
    warm = [each for each in samples if not each.is_cold]
    visits = _visits(point, warm)
    good = [sample for visit in visits for sample in visit]
    decode = _over(visits, decode_tps)
    tokens = [rate for sample in good if (rate := decode_tps(sample))]
    return Figures(
        point=point,
        samples=len(good),
        wrong=dict(Counter(str(each.wrong) for each in samples if each.wrong)),
        decode_tps=decode,
        total_tps=_total(point, visits),
        prefill_tps=_over(visits, prefill_tps) if point.users == 1 and point.rate_per_s is None else None,
        ttft_ms=_spread([1000 * each.first_s for each in good if each.first_s is not None]),
        inter_token_ms=_spread([1000 * gap for each in good for gap in each.gaps_s]),
        time_per_output_token_ms=_spread([1000 / rate for rate in tokens]),
        goodput_per_s=_goodput(visits, known.target),
        bandwidth_share=_share(point, decode, known),
        joules_per_token=_joules(visits, known.watts),
        cached_share=_cached(good) if _cached(good) is not None else known.cached_share,
        accepted_per_step=known.accepted_per_step,
        ttft_mean_ms=_over(visits, lambda each: 1000 * each.first_s if each.first_s else None),
        visits=len(visits),
        cold=_cold(samples),
        server=_server(good),
        kv_usage=known.kv_usage,
        preemptions=known.preemptions,
        notes=tuple(_notes(point, warm, visits, decode, known)),
    )


def _visits(point: Point, samples: Iterable[Sample]) -> Visits:
    """By repetition, those that count: without wrong samples. Of open loops the good samples of each."""
    by_visit: dict[int, list[Sample]] = defaultdict(list)
    for each in samples:
        by_visit[each.repetition].append(each)
    if point.rate_per_s is not None or point.users == 1:
        found = [[each for each in visit if not each.wrong] for visit in by_visit.values()]
        return [visit for visit in found if visit]
    return [visit for visit in by_visit.values() if not any(each.wrong for each in visit)]


def _over(visits: Visits, rate: Callable[[Sample], float | None]) -> Figure | None:
    means = []
    for visit in visits:
        rates = [found for each in visit if (found := rate(each)) is not None]
        if rates:
            means.append(fmean(rates))
    return mean_interval(means)


def _total(point: Point, visits: Visits) -> Figure | None:
    rates = [_tokens(visit) / took for visit in visits if (took := _load_s(visit)) > 0]
    return mean_interval(rates) if point.users > 1 or point.turns > 1 else None


def _tokens(visit: Sequence[Sample]) -> int:
    return sum(each.completion_tokens or 0 for each in visit)


def _load_s(visit: Sequence[Sample]) -> float:
    began = min(each.started_s for each in visit)
    return max(each.started_s + (each.last_s or each.total_s) for each in visit) - began


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    shares = {f"p{share}": percentile(values, share) for share in (50, 90, 99)}
    return {**shares, "mean": fmean(values)}


def _goodput(visits: Visits, target: Mapping[str, float]) -> float | None:
    """Requests a second that met the target; None where none was stated."""
    took = sum(_load_s(visit) for visit in visits)
    if not target or took <= 0:
        return None
    return sum(_meets(each, target) for visit in visits for each in visit) / took


def _meets(sample: Sample, target: Mapping[str, float]) -> bool:
    rate = decode_tps(sample)
    first = sample.first_s is not None and 1000 * sample.first_s <= target.get("ttft_ms", float("inf"))
    limit = target.get("inter_token_ms")
    return first and (limit is None or (rate is not None and 1000 / rate <= limit))


def _share(point: Point, decode: Figure | None, known: Around) -> float | None:
    """Steps a second x bytes of a step / bandwidth. A step gives several tokens where drafts are taken."""
    size, bandwidth = known.plan.get("bytes_per_token"), known.plan.get("bandwidth_bytes_per_s")
    if decode is None or not size or not bandwidth or point.users != 1 or point.depth > _SHALLOW:
        return None
    if known.drafts and known.accepted_per_step is None:
        return None
    return float(decode.value / (known.accepted_per_step or 1.0) * size / bandwidth)


def _joules(visits: Visits, watts: float | None) -> float | None:
    tokens, took = sum(map(_tokens, visits)), sum(map(_load_s, visits))
    return watts * took / tokens if watts is not None and tokens and took > 0 else None


def _cached(good: Sequence[Sample]) -> float | None:
    told = [
        (s.cached_tokens, s.prompt_tokens) for s in good if s.cached_tokens is not None and s.prompt_tokens
    ]
    return sum(cached for cached, _ in told) / sum(all_ for _, all_ in told) if told else None


def _is_reused(good: Sequence[Sample]) -> bool:
    """More than a chat template's own words."""
    cached = [each.cached_tokens - _TEMPLATE for each in good if each.cached_tokens is not None]
    return bool(cached) and fmean(cached) > 0.1 * fmean(each.prompt_tokens or 0 for each in good)


def _cold(samples: Sequence[Sample]) -> dict[str, float]:
    cold = [each for each in samples if each.is_cold and not each.wrong]
    firsts = [1000 * each.first_s for each in cold if each.first_s is not None]
    rates = [rate for each in cold if (rate := decode_tps(each)) is not None]
    found = {"ttft_ms": firsts, "decode_tps": rates}
    return {name: fmean(values) for name, values in found.items() if values}


def _server(good: Sequence[Sample]) -> dict[str, float]:
    found = {
        "decode_tps": [each.server_decode_tps for each in good if each.server_decode_tps],
        "prefill_tps": [each.server_prefill_tps for each in good if each.server_prefill_tps],
    }
    return {name: fmean(values) for name, values in found.items() if values}


# --- what a reader must know ---


def _notes(
    point: Point, warm: Sequence[Sample], visits: Visits, decode: Figure | None, known: Around
) -> Iterable[str]:
    good = [sample for visit in visits for sample in visit]
    yield from _wrong_words(warm, len(good))
    gathered = sum(map(is_in_one_piece, good))
    if gathered:
        yield f"{gathered} answers came in one piece: something gathers them, and decode cannot be told"
    share = _share(point, decode, known)
    if share is not None and share > SHARE_HIGH:
        yield f"decode is {share:.2f} of the bandwidth bound, above {SHARE_HIGH}: it reads less than planned"
    elif share is not None and share < SHARE_LOW and known.has_gpu and not known.drafts:
        yield f"decode is {share:.2f} of the bandwidth bound, under {SHARE_LOW}: something slows it"
    elif known.drafts and known.accepted_per_step is None and known.plan.get("bytes_per_token"):
        yield "it drafts and does not tell how many are taken, so its share of the bandwidth is not known"
    yield from _disagreement(good, decode)
    if not point.shared_tokens and point.turns == 1 and _is_reused(good):
        yield f"{_cached(good) or 0:.0%} of the prompts came from the cache, though each was new"
    if known.preemptions:
        yield f"{known.preemptions} requests lost their cache and began again: its cache is too small"


def _wrong_words(warm: Sequence[Sample], used: int) -> Iterable[str]:
    kinds: dict[str, list[Sample]] = defaultdict(list)
    for each in warm:
        if each.wrong:
            kinds[each.wrong].append(each)
    for kind, found in kinds.items():
        yield f"{len(found)} of {len(warm)} requests {kind}: {found[0].why}"
    beside = len(warm) - used - sum(map(len, kinds.values()))
    if beside > 0:
        yield f"{beside} good requests ran beside wrong ones and are left out too"


def _disagreement(good: Sequence[Sample], decode: Figure | None) -> Iterable[str]:
    told = _server(good).get("decode_tps")
    if told and decode and abs(told / decode.value - 1) > _APART:
        yield f"the engine itself counts {told:.1f} tok/s of decode, {told / decode.value:.2f} of this"


def usual_gap_s(samples: Iterable[Sample]) -> float | None:
    gaps = [gap for each in samples if not each.wrong for gap in each.gaps_s]
    return median(gaps) if gaps else None
