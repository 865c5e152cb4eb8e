"""Rates of one request and of one repetition. Pure.

    decode     tokens after the first arrival, over the time from that arrival to the last
    total      all tokens of a repetition, over the time from the first request to the last chunk
    TTFT       from when a request was due: in an open loop, waiting for a free slot is part of it
    prefill    prompt tokens that were not cached, over the time to the first token. Where several tokens
               arrive at first, the decode rate says how long the others took; if most of the wait was
               decode, or there is no decode rate, prefill cannot be told
    hidden     tokens that were counted and never shown have no times: above a fifth there is no decode rate

In a closed loop, where users ask again and again, only the window in which all of them are active counts:
while they start and stop, the load is another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from math import inf
from statistics import fmean, median

from firesteel.bench.values import Point, RequestSample
from firesteel.values import Value

_MIN_PROMPT_TOKENS = 128
"""The time of a shorter prompt is mostly overhead."""
_SAME_PIECE_S = 0.0005
"""Chunks closer together than this arrived in one piece."""
_MAX_DECODE_SHARE = 0.75
"""Share of the time to the first arrival that may be decode: an error of 5 % in it is 15 % in prefill."""
_MAX_HIDDEN_SHARE = 0.2
"""Hidden share of an answer's tokens above which its times say nothing about the rest."""
_LATE_S, _MAX_LATE_SHARE = 0.001, 0.02
"""How late the client may be: by so much, and by so much of the time to the first chunk or after it."""
_ENOUGH_IN_TIME = 3
_TOLERATED_FAILURE = 10
"""One failure in so many requests does not spoil a closed loop, where everybody asks again."""


def decode_tokens_per_s(sample: RequestSample) -> float | None:
    """None if the answer came in one piece, was one token, or was mostly hidden."""
    if sample.first_s is None or sample.last_s is None or is_buffered(sample) or is_hidden(sample):
        return None
    early = _gaps_in_first_arrival(sample)
    later = _tokens_after_first(sample) * (1 - early / len(sample.gaps_s))
    duration_s = sample.last_s - sample.first_s - sum(sample.gaps_s[:early])
    return later / duration_s if later >= 1 and duration_s > 0 else None


def prefill_tokens_per_s(sample: RequestSample) -> float | None:
    """None if the prompt was short or cached, or if nobody can tell when its first token was ready."""
    new = (sample.prompt_tokens or 0) - (sample.cached_tokens or 0)
    decoding_s = decoding_before_first_s(sample)
    if not sample.first_s or new < _MIN_PROMPT_TOKENS or decoding_s is None:
        return None
    return new / (sample.first_s - decoding_s)


def decoding_before_first_s(sample: RequestSample) -> float | None:
    """How long the tokens took that arrived together with the first one. None: it cannot be told, or it is
    most of the wait."""
    if sample.first_s is None or is_hidden(sample) or is_buffered(sample):
        return None
    early = _gaps_in_first_arrival(sample)
    beside = sample.first_tokens - 1 + early * _tokens_after_first(sample) / max(1, len(sample.gaps_s))
    if beside < 1:
        return 0.0
    rate = decode_tokens_per_s(sample)
    taken_s = beside / rate if rate else inf
    return taken_s if taken_s <= _MAX_DECODE_SHARE * sample.first_s else None


def _gaps_in_first_arrival(sample: RequestSample) -> int:
    """How many chunks came together with the first one."""
    return sum(1 for _ in takewhile(lambda gap: gap <= _SAME_PIECE_S, sample.gaps_s))


def ttft_ms(sample: RequestSample) -> float | None:
    """From when the request was due."""
    return None if sample.first_s is None else 1000 * (sample.first_s + sample.late_s)


def is_hidden(sample: RequestSample) -> bool:
    """Too many tokens were never shown: nobody knows when they were generated."""
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
