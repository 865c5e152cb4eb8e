"""Notes that a reader needs before trusting the figures of a point. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median

from firesteel.bench.results.context import SHARE_HIGH, SHARE_LOW, PointContext, bandwidth_share
from firesteel.bench.results.rates import (
    RepetitionSamples,
    by_repetition,
    cached_share,
    completion_tokens,
    decode_tokens_per_s,
    decoding_before_first_s,
    is_buffered,
    is_hidden,
    server_rates,
    warm_repetitions,
)
from firesteel.bench.values import MeasuredFigure, Point, RequestSample

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
            f"{share:.0%} of the tokens in {len(hidden)} answers were never shown (reasoning): nobody knows "
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
    elif share is not None and share < SHARE_LOW and context.has_gpu and not context.drafts:
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
        yield f"{discarded} good requests ran beside wrong ones and are left out too"
