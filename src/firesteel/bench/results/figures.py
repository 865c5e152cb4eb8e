"""Samples -> rates -> figures, with the notes that a reader needs before trusting them. Pure.

Figures are made of samples that went right, and of repetitions in which all of them did. Intervals are over
repetitions: streams that ran side by side are one observation, not many. In a closed loop, where users ask
again and again, only the window in which all of them are active counts: while they start and stop, the load
is another one. Prefill is measured with one user only, since with several a prompt waits for others. Goodput
counts all requests, also wrong and unsent ones; in an open loop, over the time in which they arrived.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from math import inf
from statistics import fmean, median

from firesteel.bench.compare.stats import mean_interval, spread
from firesteel.bench.measurements import (
    SHARE_HIGH,
    SHARE_LOW,
    BenchRun,
    MeasuredFigure,
    Point,
    PointContext,
    PointFigures,
    RequestSample,
    bandwidth_share,
)
from firesteel.values import Value, replace

_MIN_PROMPT_TOKENS = 128
"""The time of a shorter prompt is mostly overhead."""
_SAME_PIECE_S = 0.0005
"""Chunks closer together than this arrived in one piece."""
_MAX_DECODE_SHARE = 0.75
"""Share of the time to the first arrival that may be decode: an error of 5 % in it is 15 % in prefill."""
_MAX_HIDDEN_SHARE = 0.2
"""Hidden share of an answer's tokens above which its times say nothing about the rest."""
_LATE_S, _MAX_LATE_SHARE = 0.001, 0.02
"""How late the client may be: in seconds, and as a share of the time to the first chunk or after it."""
_ENOUGH_IN_TIME = 3
_TOLERATED_FAILURE = 10
"""One failure in this many requests does not spoil a closed loop, where every user asks again."""


# --- rates of one request and of one repetition ---
#
#     decode     tokens after the first arrival, over the time from that arrival to the last
#     total      all tokens of a repetition, over the time from the first request to the last chunk
#     TTFT       from when a request was due: in an open loop, waiting for a free slot is part of it
#     prefill    prompt tokens that were not cached, over the time to the first token. Where several tokens
#                arrive at first, the decode rate says how long the others took; if most of the wait was
#                decode, or there is no decode rate, prefill is unknown
#     hidden     tokens that were counted and never shown have no times: above a fifth there is no decode rate


def decode_tokens_per_s(sample: RequestSample) -> float | None:
    """None if the answer came in one piece, was one token, or was mostly hidden."""
    if sample.first_s is None or sample.last_s is None or is_buffered(sample) or is_hidden(sample):
        return None
    early = _gaps_in_first_arrival(sample)
    later = _tokens_after_first(sample) * (1 - early / len(sample.gaps_s))
    duration_s = sample.last_s - sample.first_s - sum(sample.gaps_s[:early])
    return later / duration_s if later >= 1 and duration_s > 0 else None


def prefill_tokens_per_s(sample: RequestSample) -> float | None:
    """None if the prompt was short or cached, or if it is unknown when its first token was ready."""
    new = (sample.prompt_tokens or 0) - (sample.cached_tokens or 0)
    decoding_s = decoding_before_first_s(sample)
    if not sample.first_s or new < _MIN_PROMPT_TOKENS or decoding_s is None:
        return None
    return new / (sample.first_s - decoding_s)


def decoding_before_first_s(sample: RequestSample) -> float | None:
    """How long the tokens took that arrived together with the first one. None: it is unknown, or most of the
    wait."""
    if sample.first_s is None or is_hidden(sample) or is_buffered(sample):
        return None
    early = _gaps_in_first_arrival(sample)
    early_tokens = sample.first_tokens - 1 + early * _tokens_after_first(sample) / max(1, len(sample.gaps_s))
    if early_tokens < 1:
        return 0.0
    rate = decode_tokens_per_s(sample)
    taken_s = early_tokens / rate if rate else inf
    return taken_s if taken_s <= _MAX_DECODE_SHARE * sample.first_s else None


def _gaps_in_first_arrival(sample: RequestSample) -> int:
    """How many chunks came together with the first one."""
    return sum(1 for _ in takewhile(lambda gap: gap <= _SAME_PIECE_S, sample.gaps_s))


def ttft_ms(sample: RequestSample) -> float | None:
    """From when the request was due."""
    return None if sample.first_s is None else 1000 * (sample.first_s + sample.late_s)


def is_hidden(sample: RequestSample) -> bool:
    """Too many tokens were never shown, so it is unknown when they were generated."""
    return sample.hidden_tokens > _MAX_HIDDEN_SHARE * (sample.completion_tokens or 0)


def is_buffered(sample: RequestSample) -> bool:
    """Something between the engine and the client buffers: the times say nothing about the engine."""
    arrivals = 1 + sum(gap > _SAME_PIECE_S for gap in sample.gaps_s)
    return arrivals < 2 or ((sample.completion_tokens or 0) >= 32 and arrivals < 4)


def usual_gap_s(samples: Iterable[RequestSample]) -> float | None:
    gaps = [gap for sample in samples if not sample.wrong for gap in sample.gaps_s]
    return median(gaps) if gaps else None


def completion_tokens(samples: Iterable[RequestSample]) -> int:
    return sum(sample.completion_tokens or 0 for sample in samples)


def cached_share(samples: Sequence[RequestSample]) -> float | None:
    known = [
        (sample.cached_tokens, sample.prompt_tokens)
        for sample in samples
        if sample.cached_tokens is not None and sample.prompt_tokens
    ]
    return sum(cached for cached, _ in known) / sum(prompt for _, prompt in known) if known else None


def server_rates(samples: Sequence[RequestSample]) -> dict[str, float]:
    """The engine's own rates, where it reports them."""
    decode = [rate for sample in samples if (rate := sample.server_decode_tokens_per_s)]
    prefill = [rate for sample in samples if (rate := sample.server_prefill_tokens_per_s)]
    found = {"decode_tokens_per_s": decode, "prefill_tokens_per_s": prefill}
    return {name: fmean(values) for name, values in found.items() if values}


def _tokens_after_first(sample: RequestSample) -> int:
    """Tokens shown after the first chunk."""
    return (sample.completion_tokens or 0) - sample.hidden_tokens - sample.first_tokens


def _tokens_within(sample: RequestSample, low: float, high: float) -> tuple[float, float]:
    """Tokens after the first chunk that arrived between these times, and how long they took."""
    now = sample.started_s + (sample.first_s or 0.0)
    per_gap = _tokens_after_first(sample) / len(sample.gaps_s) if sample.gaps_s else 0.0
    tokens = duration_s = 0.0
    for gap in sample.gaps_s:
        inside_s = min(now + gap, high) - max(now, low)
        if gap > 0 and inside_s > 0:
            tokens, duration_s = tokens + per_gap * inside_s / gap, duration_s + inside_s
        elif gap <= 0 and low <= now <= high:
            tokens += per_gap
        now += gap
    return tokens, duration_s


class RepetitionSamples(Value):
    """The samples of one repetition of a point."""

    every: Sequence[RequestSample]
    is_loop: bool
    window: tuple[float, float]
    """When all users were active, on the clock of the run."""

    @classmethod
    def of(cls, samples: Sequence[RequestSample]) -> RepetitionSamples:
        by_user: dict[int | None, list[RequestSample]] = defaultdict(list)
        for sample in samples:
            by_user[sample.stream].append(sample)
        low = max(min(sample.started_s for sample in user) for user in by_user.values())
        high = min(max(sample.started_s + sample.total_s for sample in user) for user in by_user.values())
        return cls(samples, None not in by_user, (low, high))

    @property
    def good(self) -> list[RequestSample]:
        return [sample for sample in self.every if not sample.wrong]

    @property
    def counted(self) -> list[RequestSample]:
        """Good samples that were sent under the full load."""
        low, high = self.window
        return [sample for sample in self.good if not self.is_loop or low <= sample.started_s <= high]

    @property
    def load_s(self) -> float:
        """From the first request to the last chunk."""
        began = min(sample.started_s for sample in self.every)
        return max(sample.started_s + (sample.last_s or sample.total_s) for sample in self.every) - began

    def counts(self, point: Point) -> bool:
        """Whether figures may use it. Where one of four streams failed, the others had more than their
        share."""
        wrong = len(self.every) - len(self.good)
        if point.rate_per_s is not None or point.users == 1:
            return wrong < len(self.every)
        return wrong * _TOLERATED_FAILURE <= len(self.every) if self.is_loop else not wrong

    @property
    def client_was_late(self) -> bool:
        """By more than a little of what was measured."""
        late_s = max((sample.client_late_s for sample in self.good), default=0.0)
        times = [(s.first_s, s.last_s - s.first_s) for s in self.good if s.first_s and s.last_s]
        shortest_s = min((median(column) for column in zip(*times, strict=True)), default=0.0)
        return late_s > max(_LATE_S, _MAX_LATE_SHARE * shortest_s)

    def mean(self, rate: Callable[[RequestSample], float | None]) -> float | None:
        rates = [value for sample in self.counted if (value := rate(sample)) is not None]
        return fmean(rates) if rates else None

    def decode_tokens_per_s(self) -> float | None:
        """In a closed loop, of the tokens within the window: an answer that began or ended outside of it
        counts in part."""
        if not self.is_loop:
            return self.mean(decode_tokens_per_s)
        parts = [
            _tokens_within(sample, *self.window)
            for sample in self.good
            if decode_tokens_per_s(sample) is not None
        ]
        duration_s = sum(duration for _, duration in parts)
        return sum(tokens for tokens, _ in parts) / duration_s if duration_s > 0 else None

    def total_tokens_per_s(self) -> float | None:
        low, high = self.window if self.is_loop else (0.0, self.load_s)
        if high <= low:
            return None
        if not self.is_loop:
            return completion_tokens(self.good) / (high - low)
        if any(is_hidden(sample) or is_buffered(sample) for sample in self.good):
            return None
        tokens = 0.0
        for sample in self.good:
            tokens += _tokens_within(sample, low, high)[0]
            if low <= sample.started_s + (sample.first_s or 0) <= high:
                tokens += sample.first_tokens
        return tokens / (high - low)


def warm_repetitions(samples: Iterable[RequestSample]) -> dict[int, RepetitionSamples]:
    by_number: dict[int, list[RequestSample]] = defaultdict(list)
    for sample in samples:
        if not sample.is_cold:
            by_number[sample.repetition].append(sample)
    return {number: RepetitionSamples.of(found) for number, found in by_number.items()}


def by_repetition(point: Point, samples: Iterable[RequestSample]) -> dict[int, RepetitionSamples]:
    """Warm repetitions that count. Those in which the client was late do not, if enough others are left."""
    found = {number: each for number, each in warm_repetitions(samples).items() if each.counts(point)}
    in_time = {number: each for number, each in found.items() if not each.client_was_late}
    return in_time if len(in_time) >= _ENOUGH_IN_TIME else found


# --- notes of a point ---

_MAX_DISAGREEMENT = 0.1
_TEMPLATE_TOKENS = 64
KEEPS_UP = 0.95


def point_notes(
    point: Point, samples: Iterable[RequestSample], decode: MeasuredFigure | None, context: PointContext
) -> Iterator[str]:
    warm = [sample for sample in samples if not sample.is_cold]
    good = [sample for found in by_repetition(point, warm).values() for sample in found.good]
    repetitions = list(warm_repetitions(warm).values())
    yield from _overload(point, repetitions)
    yield from _failures(warm, sum(len(found.good) for found in repetitions if found.counts(point)))
    if buffered := sum(map(is_buffered, good)):
        yield (
            f"{buffered} answers came in one piece: something buffers them, so decode and prefill cannot be "
            "measured"
        )
    if hidden := [sample for sample in good if is_hidden(sample)]:
        share = sum(sample.hidden_tokens for sample in hidden) / completion_tokens(hidden)
        yield (
            f"{share:.0%} of the tokens in {len(hidden)} answers were never shown (reasoning): it is unknown "
            "when they were generated, so decode and prefill cannot be measured"
        )
    yield from _late_client(point, warm)
    yield from _late_first_token(point, good)
    yield from _bandwidth(bandwidth_share(point, decode, context), context)
    own = server_rates(good).get("decode_tokens_per_s")
    if own and decode and abs(own / decode.value - 1) > _MAX_DISAGREEMENT:
        yield f"the engine itself reports {own:.1f} tok/s of decode, {own / decode.value:.2f} of this"
    is_new = not point.shared_tokens and point.turns == 1 and not point.prompts
    if is_new and _reuses_cache(good):
        yield f"{cached_share(good) or 0:.0%} of the prompt tokens came from the cache, although all were new"
    if context.preemptions:
        yield f"{context.preemptions} requests were preempted and started again: the KV cache is too small"


def _late_client(point: Point, warm: Sequence[RequestSample]) -> Iterator[str]:
    every = [found for found in warm_repetitions(warm).values() if found.counts(point)]
    late = [found for found in every if found.client_was_late]
    if not late:
        return
    most_ms = 1000 * max(sample.client_late_s for found in late for sample in found.good)
    are_used = any(found.client_was_late for found in by_repetition(point, warm).values())
    what = "its times may be that much too long" if are_used else "these are left out"
    yield f"the client was up to {most_ms:.1f} ms late in {len(late)} of {len(every)} repetitions: {what}"


def _late_first_token(point: Point, good: Sequence[RequestSample]) -> Iterator[str]:
    """Where several tokens arrive at first, the first of them was ready earlier than it came."""
    if point.users > 1 or point.rate_per_s is not None:  # prefill is a figure of one user
        return
    decoding_s = [decoding_before_first_s(sample) for sample in good if decode_tokens_per_s(sample)]
    if unknown := decoding_s.count(None):
        yield (
            f"the first piece of {unknown} answers holds so many tokens that decoding them was most of the "
            "wait: prefill cannot be measured there"
        )
    known = [taken_s for taken_s in decoding_s if taken_s]
    if known:
        yield (
            f"the first piece of {len(known)} answers holds several tokens: prefill leaves out the "
            f"{1000 * fmean(known):.0f} ms in which the others were decoded"
        )


def _bandwidth(share: float | None, context: PointContext) -> Iterator[str]:
    if share is not None and share > SHARE_HIGH:
        yield f"decode is {share:.2f} of the bandwidth bound, above {SHARE_HIGH}: it reads less than planned"
    elif share is not None and share < SHARE_LOW and context.is_one_gpu and not context.drafts:
        yield f"decode is {share:.2f} of the bandwidth bound, below {SHARE_LOW}: something slows it down"
    elif context.drafts and context.accepted_per_step is None and context.plan.get("bytes_per_token"):
        yield "the engine drafts and does not report how many drafts it accepts: bandwidth share unknown"


def _reuses_cache(good: Sequence[RequestSample]) -> bool:
    """More than the chat template was cached."""
    cached = [s.cached_tokens - _TEMPLATE_TOKENS for s in good if s.cached_tokens is not None]
    return bool(cached) and fmean(cached) > 0.1 * fmean(sample.prompt_tokens or 0 for sample in good)


def _overload(point: Point, repetitions: Sequence[RepetitionSamples]) -> Iterator[str]:
    """In an overloaded open loop, waits grow for as long as it lasts."""
    share = served_share(point, repetitions)
    if share is not None and point.rate_per_s and share < KEEPS_UP:
        yield (
            f"served {share * point.rate_per_s:.2f} of {point.rate_per_s:g} requests per second: it does not "
            "keep up, and TTFT has no steady value"
        )


def served_share(point: Point, repetitions: Sequence[RepetitionSamples]) -> float | None:
    """Share of the requests of an open loop that were answered in time; None of anything else."""
    requests = sum(len(repetition.every) for repetition in repetitions)
    if point.rate_per_s is None or not requests:
        return None
    return sum(map(_in_time, repetitions)) / requests


def _in_time(repetition: RepetitionSamples) -> int:
    """How many were answered soon after arrivals ended: within twice the usual time of the first ones."""
    good = sorted(repetition.good, key=_due_s)
    if not good:
        return 0
    early = [sample.late_s + sample.total_s for sample in good[: max(2, len(good) // 4)]]
    deadline = max(map(_due_s, repetition.every)) + 2 * median(early)
    return sum(sample.started_s + sample.total_s <= deadline for sample in good)


def _due_s(sample: RequestSample) -> float:
    return sample.started_s - sample.late_s


def _failures(warm: Sequence[RequestSample], used: int) -> Iterator[str]:
    by_kind: dict[str, list[RequestSample]] = defaultdict(list)
    for sample in warm:
        if sample.wrong:
            by_kind[sample.wrong].append(sample)
    for kind, failed in by_kind.items():
        yield f"{len(failed)} of {len(warm)} requests {kind}: {failed[0].why}"
    discarded = len(warm) - used - sum(map(len, by_kind.values()))
    if discarded > 0:
        yield f"{discarded} good requests ran at the same time as wrong ones and are also left out"


def figures(
    point: Point, samples: Sequence[RequestSample], context: PointContext | None = None
) -> PointFigures:
    """Turn the samples of a point into its figures, with intervals over repetitions and notes about what is
    doubtful."""
    context = context or PointContext()
    repetitions = list(by_repetition(point, samples).values())
    good = [sample for repetition in repetitions for sample in repetition.good]
    counted = [sample for repetition in repetitions for sample in repetition.counted]
    decode = _over(repetition.decode_tokens_per_s() for repetition in repetitions)
    total = prefill = None
    if point.users > 1 or point.turns > 1:
        total = _over(repetition.total_tokens_per_s() for repetition in repetitions)
    if point.users == 1 and point.rate_per_s is None:
        prefill = _over(repetition.mean(prefill_tokens_per_s) for repetition in repetitions)
    cached = cached_share(good)
    return PointFigures(
        point=point,
        samples=len(good),
        wrong=dict(Counter(str(sample.wrong) for sample in samples if sample.wrong)),
        decode_tokens_per_s=decode,
        total_tokens_per_s=total,
        prefill_tokens_per_s=prefill,
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


def with_figures(run: BenchRun, samples: Sequence[RequestSample]) -> BenchRun:
    """Power, cache use and engine counters are lost; everything else follows from the samples."""
    if run.figures or not samples:
        return run
    context = PointContext.of(run.subject, run.settings)
    by_point: dict[int, list[RequestSample]] = {index: [] for index in range(len(run.points))}
    for sample in samples:
        by_point.get(sample.point, []).append(sample)
    found = tuple(figures(point, by_point[index], context) for index, point in enumerate(run.points))
    note = f"the run was interrupted: its figures are of the {len(samples):,} requests that were stored"
    return replace(run, figures=found, notes=run.notes if run.is_whole else (*run.notes, note))
