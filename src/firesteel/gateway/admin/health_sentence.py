"""One sentence a model: is it healthy, and if not, why? Pure.

    health_sentence(view, recent, gpu) -> ModelHealth

What is watched: does it answer, do requests end well, is the GPU slowed down, is the KV cache full, are
drafted tokens accepted, do later turns of a cached conversation start at once, does it decode as planned.
A model that is not loaded is healthy unless its last load failed, and the wait for a load or for other
requests is not counted as its own slowness. Thresholds are our choice unless a source
stands beside them; each needs enough requests, so that one slow answer is no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.facts.host.gpus import GpuReading
from firesteel.gateway.curves.sampler import RECENT_S, RecentActivity
from firesteel.gateway.curves.samples import first_quantile
from firesteel.gateway.executor import ModelView
from firesteel.gateway.state import ModelHealth
from firesteel.units import show_seconds

MIN_REQUESTS = 5
MAX_BROKEN_SHARE = 0.1
FULL_KV = 0.97
"""With preemptions at any fill. vLLM fills its cache with old prefixes only when they are not counted as
used, so a cache this full holds requests that run."""
MIN_DRAFTED = 500
MIN_ACCEPTANCE = 0.1
"""Below it drafting costs more than it gains: one drafted token adds about a quarter to a step."""
MIN_LATER_TURNS = 5
SPIKE_S = 3.0
"""A later turn reads only what is new. Slower than this, and than three times the median: a spike."""
SPIKE_TIMES = 3.0
MIN_GAPS = 200


_GOOD_NEWS = ("answers again", "was already running", "was started outside the gateway")
"""Notes on a model that has just become ready; the next check removes them."""


def health_sentence(view: ModelView, recent: RecentActivity, gpu: GpuReading | None) -> ModelHealth:
    name, status = view.config.name, view.status
    if status is None:
        return _verdict(False, f"{name} cannot be served: {view.config.why_not}")
    if status.phase != "ready":
        return _not_ready(view)
    problem = next(_problems(view, recent, gpu), None)
    return _verdict(False, problem) if problem else _verdict(True, f"healthy: {_doing(recent, status.busy)}")


def _verdict(ok: bool, text: str) -> ModelHealth:
    """One line: reasons of engines may have several."""
    return ModelHealth(ok, " ".join(text.split()))


def _not_ready(view: ModelView) -> ModelHealth:
    status, progress = view.status, view.progress
    assert status is not None
    if status.phase == "off":
        if status.why:
            return _verdict(False, f"its last load failed: {status.why}")
        if view.note:
            return _verdict(False, view.note)
        return _verdict(True, "not loaded; a request loads it")
    if progress:
        left = f", about {show_seconds(progress.eta_s)} left" if progress.eta_s else ""
        return _verdict(True, f"{progress.text}{left}")
    if view.note:
        return _verdict(False, view.note)
    return _verdict(True, status.phase)


def _problems(view: ModelView, recent: RecentActivity, gpu: GpuReading | None) -> Iterator[str]:
    """The most serious first."""
    if view.note and not any(part in view.note for part in _GOOD_NEWS):
        yield view.note
    if recent.requests >= MIN_REQUESTS and recent.broke > MAX_BROKEN_SHARE * recent.requests:
        yield f"{recent.broke} of {recent.requests} requests failed in the last {_WINDOW}; see its log"
    if gpu and gpu.throttle and not view.config.is_outside:
        hot = f" at {gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else ""
        yield f"the GPU is slowed down{hot} ({gpu.throttle}); check its cooling and its power supply"
    yield from _cache_problems(recent)
    yield from _speed_problems(view, recent)


def _cache_problems(recent: RecentActivity) -> Iterator[str]:
    if recent.preempted:
        yield (
            f"its KV cache was full: {recent.preempted} requests lost their place and started again in the "
            f"last {_WINDOW}; fewer users or a shorter context help"
        )
    if recent.kv_used is not None and recent.kv_used >= FULL_KV:
        yield f"its KV cache is {_percent(recent.kv_used)} full; fewer users or a shorter context help"
    acceptance = recent.acceptance
    if acceptance is not None and recent.drafted >= MIN_DRAFTED and acceptance < MIN_ACCEPTANCE:
        yield (
            f"only {_percent(acceptance)} of its drafted tokens are accepted: speculation slows it down; "
            "check that the drafter belongs to this model, or run without it"
        )
    later, slow_s = recent.cached_firsts, first_quantile(recent.cached_firsts, 0.95) or 0.0
    usual_s = first_quantile(later, 0.5) or 0.0
    if sum(later) >= MIN_LATER_TURNS and slow_s > max(SPIKE_S, SPIKE_TIMES * usual_s):
        yield (
            f"later turns of a conversation are slow to start, {slow_s:.1f} s at worst instead of "
            f"{usual_s:.1f} s: their prefixes fall out of the cache or wait behind long prompts"
        )


def _speed_problems(view: ModelView, recent: RecentActivity) -> Iterator[str]:
    planned = view.config.planned.decode_tokens_per_s if view.config.planned else None
    rate = stream_rate(recent)
    if planned is None or rate is None or rate >= planned.low:
        return
    yield (
        f"slower than planned: a stream gets {rate:.3g} tokens/s, the plan says {planned.low:.3g} to "
        f"{planned.high:.3g}; `firesteel verify {view.config.name}` looks for the cause"
    )


def stream_rate(recent: RecentActivity) -> float | None:
    """Tokens a second of one stream, on average; None: too few to say. By the sum of all gaps, not their
    median: with speculation several tokens arrive at once, and then none for a step."""
    gaps = sum(recent.gaps)
    if gaps < MIN_GAPS or recent.gaps_s <= 0:
        return None
    return max(1.0, recent.tokens / recent.pieces) * gaps / recent.gaps_s


def _doing(recent: RecentActivity, busy: int) -> str:
    parts = []
    if recent.tokens and recent.busy_s:
        parts.append(f"{_figure(recent.tokens / recent.busy_s)} tokens/s")
    if (first_s := first_quantile(recent.unqueued_firsts, 0.95)) is not None:
        parts.append(f"first token within {_figure(first_s, 2)} s")
    if recent.kv_used is not None:
        parts.append(f"KV cache {_percent(recent.kv_used)} used")
    if recent.acceptance is not None:
        parts.append(f"{_percent(recent.acceptance)} of drafts accepted")
    if recent.requests or recent.tokens:
        return ", ".join(parts)
    return "a request is running" if busy else f"no request in the last {_WINDOW}"


def _figure(value: float, digits: int = 3) -> str:
    """Never as a power of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:.{digits}g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


_WINDOW = show_seconds(RECENT_S)
