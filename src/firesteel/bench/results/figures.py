"""Samples -> figures. Pure.

    decode     tokens after the first chunk's, by the time from that chunk to the last
    total      all tokens of a visit, by the time from the first request to the last word
    TTFT       from when a request was due: in an open loop what it waited for room is part of it
    loops      where users ask again and again, decode, total and TTFT are of the window in which all of them
               were at it: while they come and go it is another load
    goodput    of all requests, wrong and unsent ones too; of an open loop by the time in which they arrived
    prefill    prompt tokens that were not cached, by the time to the first word; one user only, since with
               several a prompt waits for others
    hidden     tokens that were counted and never shown have no times: above a fifth there is no decode
    intervals  over visits: streams that ran side by side are one observation, not many

A figure is made of samples that went right, and of visits in which all did: where one of four streams
failed, the other three had more than their share. Users of a loop ask again at once, so that one failure
in ten is borne there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from firesteel.bench.compare.stats import mean_interval, percentile
from firesteel.bench.values import MeasuredFigure, Point, PointFigures, RequestSample

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
_HIDDEN = 0.2
"""Of an answer's tokens, how many may be unseen before its times say nothing of the rest."""
_BORNE = 10
"""One wrong of so many does not spoil a visit in which everybody asks again."""
_KEEPS_UP = 0.95


@dataclass(frozen=True, slots=True)
class PointContext:
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


def decode_tokens_per_s(sample: RequestSample) -> float | None:
    """None where the answer came in one piece, was one token, or was mostly hidden."""
    first, last, after = sample.first_s, sample.last_s, _after_first(sample)
    if first is None or last is None or after < 1 or is_in_one_piece(sample) or is_hidden(sample):
        return None
    return after / (last - first)


def _after_first(sample: RequestSample) -> int:
    """Tokens that were shown after the first chunk."""
    return (sample.completion_tokens or 0) - sample.hidden_tokens - sample.first_tokens


def is_hidden(sample: RequestSample) -> bool:
    """More was made than was shown: when it was made nobody knows."""
    return sample.hidden_tokens > _HIDDEN * (sample.completion_tokens or 0)


def ttft_s(sample: RequestSample) -> float | None:
    """From when it was due."""
    return None if sample.first_s is None else sample.first_s + sample.late_s


def is_in_one_piece(sample: RequestSample) -> bool:
    """Something between the engine and us gathers: the times say nothing of the engine."""
    arrivals = 1 + sum(gap > _BATCHED_S for gap in sample.gaps_s)
    return arrivals < 2 or ((sample.completion_tokens or 0) >= 32 and arrivals < 4)


def prefill_tokens_per_s(sample: RequestSample) -> float | None:
    new = (sample.prompt_tokens or 0) - (sample.cached_tokens or 0)
    if is_hidden(sample) or not sample.first_s or new < _LEAST_PROMPT:
        return None
    return new / sample.first_s


@dataclass(frozen=True, slots=True)
class RepetitionSamples:
    """What one visit to a point gave."""

    every: Sequence[RequestSample]
    is_loop: bool
    window: tuple[float, float]
    """When all of its users were at it, on the run's clock."""

    @classmethod
    def of(cls, every: Sequence[RequestSample]) -> RepetitionSamples:
        by_user: dict[int | None, list[RequestSample]] = defaultdict(list)
        for each in every:
            by_user[each.stream].append(each)
        users = by_user.values()
        low = max(min(each.started_s for each in user) for user in users)
        high = min(max(each.started_s + each.total_s for each in user) for user in users)
        return cls(every, None not in by_user, (low, high))

    @property
    def good(self) -> list[RequestSample]:
        return [each for each in self.every if not each.wrong]

    @property
    def counted(self) -> list[RequestSample]:
        """Those that were asked under the whole load."""
        low, high = self.window
        return [each for each in self.good if not self.is_loop or low <= each.started_s <= high]

    def counts(self, point: Point) -> bool:
        wrong = len(self.every) - len(self.good)
        if point.rate_per_s is not None or point.users == 1:
            return wrong < len(self.every)
        return wrong * _BORNE <= len(self.every) if self.is_loop else not wrong

    def mean(self, rate: Callable[[RequestSample], float | None]) -> float | None:
        rates = [found for each in self.counted if (found := rate(each)) is not None]
        return fmean(rates) if rates else None

    def decode_tokens_per_s(self) -> float | None:
        """Of a loop, what was written within the window by the time that it took: an answer that began or
        ended outside of it counts with its part."""
        if not self.is_loop:
            return self.mean(decode_tokens_per_s)
        told = [_written(each, *self.window) for each in self.good if decode_tokens_per_s(each) is not None]
        tokens, took = (sum(each) for each in zip(*told, strict=True)) if told else (0.0, 0.0)
        return tokens / took if took > 0 else None

    def total_tokens_per_s(self) -> float | None:
        low, high = self.window if self.is_loop else (0.0, _load_s(self.every))
        if high <= low:
            return None
        if not self.is_loop:
            return _tokens(self.good) / (high - low)
        if any(is_hidden(each) or is_in_one_piece(each) for each in self.good):
            return None
        firsts = sum(
            each.first_tokens for each in self.good if low <= each.started_s + (each.first_s or 0) <= high
        )
        return (firsts + sum(_written(each, low, high)[0] for each in self.good)) / (high - low)


Visits = Sequence[RepetitionSamples]


def _written(sample: RequestSample, low: float, high: float) -> tuple[float, float]:
    """Tokens after the first chunk that came between these times, and how long it wrote there."""
    at = sample.started_s + (sample.first_s or 0.0)
    share = _after_first(sample) / len(sample.gaps_s) if sample.gaps_s else 0.0
    tokens = took = 0.0
    for gap in sample.gaps_s:
        inside = min(at + gap, high) - max(at, low)
        if gap > 0 and inside > 0:
            tokens, took = tokens + share * inside / gap, took + inside
        elif gap <= 0 and low <= at <= high:
            tokens += share
        at += gap
    return tokens, took


def by_repetition(point: Point, samples: Iterable[RequestSample]) -> dict[int, RepetitionSamples]:
    """Warm ones, by repetition, those that count."""
    return {at: visit for at, visit in _every(samples).items() if visit.counts(point)}


def _every(samples: Iterable[RequestSample]) -> dict[int, RepetitionSamples]:
    found: dict[int, list[RequestSample]] = defaultdict(list)
    for each in samples:
        if not each.is_cold:
            found[each.repetition].append(each)
    return {at: RepetitionSamples.of(every) for at, every in found.items()}


def figures(
    point: Point, samples: Sequence[RequestSample], around: PointContext | None = None
) -> PointFigures:
    known = around or PointContext()
    warm = [each for each in samples if not each.is_cold]
    visits = list(by_repetition(point, warm).values())
    good = [sample for visit in visits for sample in visit.good]
    counted = [sample for visit in visits for sample in visit.counted]
    decode = _over(visit.decode_tokens_per_s() for visit in visits)
    tokens = [rate for sample in counted if (rate := decode_tokens_per_s(sample))]
    return PointFigures(
        point=point,
        samples=len(good),
        wrong=dict(Counter(str(each.wrong) for each in samples if each.wrong)),
        decode_tokens_per_s=decode,
        total_tokens_per_s=_total(point, visits),
        prefill_tokens_per_s=_prefill(point, visits),
        ttft_ms=_spread([wait for each in counted if (wait := _ttft_ms(each)) is not None]),
        inter_token_ms=_spread([1000 * gap for each in counted for gap in each.gaps_s]),
        time_per_output_token_ms=_spread([1000 / rate for rate in tokens]),
        goodput_per_s=_goodput(point, list(_every(warm).values()), known.target),
        bandwidth_share=_share(point, decode, known),
        joules_per_token=_joules(visits, known.watts),
        cached_share=_cached(good) if _cached(good) is not None else known.cached_share,
        accepted_per_step=known.accepted_per_step,
        ttft_mean_ms=_over(visit.mean(_ttft_ms) for visit in visits),
        repetitions=len(visits),
        cold=_cold(samples),
        server=_server(counted),
        kv_usage=known.kv_usage,
        preemptions=known.preemptions,
        notes=tuple(_notes(point, warm, visits, decode, known)),
    )


def _over(means: Iterable[float | None]) -> MeasuredFigure | None:
    return mean_interval([each for each in means if each is not None])


def _prefill(point: Point, visits: Visits) -> MeasuredFigure | None:
    if point.users > 1 or point.rate_per_s is not None:
        return None
    return _over(visit.mean(prefill_tokens_per_s) for visit in visits)


def _ttft_ms(sample: RequestSample) -> float | None:
    wait = ttft_s(sample)
    return None if wait is None else 1000 * wait


def _total(point: Point, visits: Visits) -> MeasuredFigure | None:
    return (
        _over(visit.total_tokens_per_s() for visit in visits) if point.users > 1 or point.turns > 1 else None
    )


def _tokens(visit: Sequence[RequestSample]) -> int:
    return sum(each.completion_tokens or 0 for each in visit)


def _load_s(visit: Sequence[RequestSample]) -> float:
    began = min(each.started_s for each in visit)
    return max(each.started_s + (each.last_s or each.total_s) for each in visit) - began


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    shares = {f"p{share}": percentile(values, share) for share in (50, 90, 99)}
    return {**shares, "mean": fmean(values)}


def _goodput(point: Point, visits: Visits, target: Mapping[str, float]) -> float | None:
    """Requests a second that met the target, of all that there were; None where none was stated."""
    asked = [each for visit in visits for each in _ended(visit)]
    if point.rate_per_s is not None:
        took = len(asked) / point.rate_per_s
    else:
        took = sum(_goodput_s(visit) for visit in visits)
    if not target or took <= 0:
        return None
    return sum(_meets(each, target) for each in asked) / took


def _ended(visit: RepetitionSamples) -> Sequence[RequestSample]:
    low, high = visit.window
    return [each for each in visit.every if not visit.is_loop or low < each.started_s + each.total_s <= high]


def _goodput_s(visit: RepetitionSamples) -> float:
    low, high = visit.window
    return max(0.0, high - low) if visit.is_loop else _load_s(visit.every)


def _meets(sample: RequestSample, target: Mapping[str, float]) -> bool:
    rate, wait, limit = decode_tokens_per_s(sample), _ttft_ms(sample), target.get("inter_token_ms")
    is_soon = not sample.wrong and wait is not None and wait <= target.get("ttft_ms", float("inf"))
    return is_soon and (limit is None or (rate is not None and 1000 / rate <= limit))


def _share(point: Point, decode: MeasuredFigure | None, known: PointContext) -> float | None:
    """Steps a second x bytes of a step / bandwidth. A step gives several tokens where drafts are taken."""
    size, bandwidth = known.plan.get("bytes_per_token"), known.plan.get("bandwidth_bytes_per_s")
    if decode is None or not size or not bandwidth or point.users != 1 or point.depth > _SHALLOW:
        return None
    if known.drafts and known.accepted_per_step is None:
        return None
    return float(decode.value / (known.accepted_per_step or 1.0) * size / bandwidth)


def _joules(visits: Visits, watts: float | None) -> float | None:
    tokens, took = sum(_tokens(each.good) for each in visits), sum(_load_s(each.every) for each in visits)
    return watts * took / tokens if watts is not None and tokens and took > 0 else None


def _cached(good: Sequence[RequestSample]) -> float | None:
    told = [
        (s.cached_tokens, s.prompt_tokens) for s in good if s.cached_tokens is not None and s.prompt_tokens
    ]
    return sum(cached for cached, _ in told) / sum(all_ for _, all_ in told) if told else None


def _is_reused(good: Sequence[RequestSample]) -> bool:
    """More than a chat template's own words."""
    cached = [each.cached_tokens - _TEMPLATE for each in good if each.cached_tokens is not None]
    return bool(cached) and fmean(cached) > 0.1 * fmean(each.prompt_tokens or 0 for each in good)


def _cold(samples: Sequence[RequestSample]) -> dict[str, float]:
    cold = [each for each in samples if each.is_cold and not each.wrong]
    firsts = [1000 * each.first_s for each in cold if each.first_s is not None]
    rates = [rate for each in cold if (rate := decode_tokens_per_s(each)) is not None]
    found = {"ttft_ms": firsts, "decode_tokens_per_s": rates}
    return {name: fmean(values) for name, values in found.items() if values}


def _server(good: Sequence[RequestSample]) -> dict[str, float]:
    found = {
        "decode_tokens_per_s": [
            each.server_decode_tokens_per_s for each in good if each.server_decode_tokens_per_s
        ],
        "prefill_tokens_per_s": [
            each.server_prefill_tokens_per_s for each in good if each.server_prefill_tokens_per_s
        ],
    }
    return {name: fmean(values) for name, values in found.items() if values}


# --- what a reader must know ---


def _notes(
    point: Point,
    warm: Sequence[RequestSample],
    visits: Visits,
    decode: MeasuredFigure | None,
    known: PointContext,
) -> Iterable[str]:
    good = [sample for visit in visits for sample in visit.good]
    yield from _behind(point, list(_every(warm).values()))
    yield from _wrong_words(warm, len(good))
    gathered = sum(map(is_in_one_piece, good))
    if gathered:
        yield f"{gathered} answers came in one piece: something gathers them, and decode cannot be told"
    yield from _unseen(good)
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


def _unseen(good: Sequence[RequestSample]) -> Iterable[str]:
    hidden = [each for each in good if is_hidden(each)]
    if hidden:
        share = sum(each.hidden_tokens for each in hidden) / _tokens(hidden)
        yield (
            f"{len(hidden)} answers hold {share:.0%} of tokens that were never shown (thoughts): when "
            "they were made nobody knows, so decode and prefill cannot be told"
        )


def _behind(point: Point, visits: Visits) -> Iterable[str]:
    """An open loop that is too much: the longer it lasts, the longer everybody waits."""
    asked = sum(len(visit.every) for visit in visits)
    if point.rate_per_s is None or not asked:
        return
    share = sum(_in_time(visit) for visit in visits) / asked
    if share < _KEEPS_UP:
        served = share * point.rate_per_s
        yield (
            f"served {served:.2f} of {point.rate_per_s:g} a second: it does not keep up, TTFT has no steady "
            "value"
        )


def _in_time(visit: RepetitionSamples) -> int:
    """How many were answered soon after arrivals ended: as soon as the first that came, twice over."""
    good = sorted(visit.good, key=_due)
    if not good:
        return 0
    early = [each.late_s + each.total_s for each in good[: max(2, len(good) // 4)]]
    until = max(map(_due, visit.every)) + 2 * median(early)
    return sum(each.started_s + each.total_s <= until for each in good)


def _due(sample: RequestSample) -> float:
    return sample.started_s - sample.late_s


def _wrong_words(warm: Sequence[RequestSample], used: int) -> Iterable[str]:
    kinds: dict[str, list[RequestSample]] = defaultdict(list)
    for each in warm:
        if each.wrong:
            kinds[each.wrong].append(each)
    for kind, found in kinds.items():
        yield f"{len(found)} of {len(warm)} requests {kind}: {found[0].why}"
    beside = len(warm) - used - sum(map(len, kinds.values()))
    if beside > 0:
        yield f"{beside} good requests ran beside wrong ones and are left out too"


def _disagreement(good: Sequence[RequestSample], decode: MeasuredFigure | None) -> Iterable[str]:
    told = _server(good).get("decode_tokens_per_s")
    if told and decode and abs(told / decode.value - 1) > _APART:
        yield f"the engine itself counts {told:.1f} tok/s of decode, {told / decode.value:.2f} of this"


def usual_gap_s(samples: Iterable[RequestSample]) -> float | None:
    gaps = [gap for each in samples if not each.wrong for gap in each.gaps_s]
    return median(gaps) if gaps else None
