"""Counters and histograms of the gateway, as plain lists; `prometheus.py` writes them.

    counters = meter.counters("coder", "laptop")      once per request: a dictionary lookup
    counters.first(0.21); counters.gap(0.02)          a chunk costs one call
    counters.finish(route_kind(path), outcome)
    meter.families(gauges) -> what /metrics shows; `gauges` are values that only the dispatcher knows

Label values are bounded: models of the service file, names of keys, and words from closed lists. Any other
name is counted as `unknown`, so that no client can fill the memory with labels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TypeVar

from firesteel.gateway.admin.prometheus import Kind, Labels, MetricFamily, MetricSample
from firesteel.gateway.http.routes import DIRECT_ROUTES, ROUTES
from firesteel.gateway.interfaces import RequestOutcome
from firesteel.values import Value

K = TypeVar("K")
UNKNOWN = "unknown"
OTHER = "other"
MAX_KEYS = 1000
_MAX_LABELS = 64
"""Distinct failure reasons, rejection kinds, or routes with their outcomes."""

FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0, 300.0, 900.0)
GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 0.8, 2.0, 10.0)
_TOTAL_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
_WAIT_S = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
_ENGINE_ERRORS = (500, 502, 504)
"""503 is also what the gateway itself answers while a model cannot be loaded."""
_LOAD_S = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 1800.0)


Seen = tuple[float, float]
"""The least and the most of some values."""
NOTHING_SEEN: Seen = (inf, 0.0)


def all_seen(parts: Sequence[Seen]) -> Seen:
    return min(least for least, _ in (NOTHING_SEEN, *parts)), max(most for _, most in (NOTHING_SEEN, *parts))


def route_kind(path: bytes) -> str:
    """The `kind` of the path's route."""
    route = ROUTES.get(path) or DIRECT_ROUTES.get(path)
    return OTHER if route is None else route.kind


class Histogram:
    """`counts[i]` is the number of values up to `bounds[i]`; the last count is for larger values."""

    __slots__ = ("bounds", "counts", "least", "most", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.least, self.most = NOTHING_SEEN
        """Since `take_seen`."""

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        if value < self.least:
            self.least = value
        if value > self.most:
            self.most = value

    def take_seen(self) -> Seen:
        seen = self.least, self.most
        self.least, self.most = NOTHING_SEEN
        return seen


class ModelCounters:
    """Counters of one model and one key; the `LatencyRecorder` of its requests."""

    __slots__ = (
        "cached_firsts", "cached_tokens", "completion_tokens", "firsts", "gaps", "prompt_tokens", "requests",
        "reread_tokens", "stream_tokens", "totals", "unqueued_firsts", "unqueued_most_s", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.firsts = Histogram(FIRST_S)
        self.gaps = Histogram(GAP_S)
        self.totals = Histogram(_TOTAL_S)
        self.waits = Histogram(_WAIT_S)
        self.requests: dict[tuple[str, str, int], int] = {}
        """By route, outcome and HTTP status."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.reread_tokens: dict[str, int] = {}
        """Tokens that were read again, by cause."""
        self.stream_tokens = 0
        """The part of `completion_tokens` that was streamed."""
        self.unqueued_firsts = [0] * (len(FIRST_S) + 1)
        """Times to the first token of streams, without the wait for a load or for other requests."""
        self.cached_firsts = [0] * (len(FIRST_S) + 1)
        """Those of later turns: at least half of the prompt was cached."""
        self.unqueued_most_s = 0.0
        """Since `Meter.totals`."""

    def take_unqueued_most(self) -> float:
        most, self.unqueued_most_s = self.unqueued_most_s, 0.0
        return most

    def first(self, seconds: float) -> None:
        self.firsts.add(seconds)

    def gap(self, seconds: float) -> None:
        gaps = self.gaps  # called for every chunk, so `add` is inlined
        gaps.counts[bisect_left(GAP_S, seconds)] += 1
        gaps.total += seconds
        if seconds > gaps.most:
            gaps.most = seconds
        if seconds < gaps.least:
            gaps.least = seconds

    def record_gaps(self, last: float, arrivals: Sequence[float]) -> None:
        gaps = self.gaps
        counts, before = gaps.counts, last
        for arrival in arrivals:
            gap, before = arrival - before, arrival
            counts[bisect_left(GAP_S, gap)] += 1
            if gap > gaps.most:
                gaps.most = gap
            if gap < gaps.least:
                gaps.least = gap
        gaps.total += before - last

    def finish(self, route: str, outcome: RequestOutcome) -> None:
        label = (route, outcome.how, outcome.status)
        if label in self.requests:
            self.requests[label] += 1
        else:
            _count(self.requests, label, (OTHER, outcome.how, 0))
        waits, waited_s = self.waits, outcome.waited_s  # every request ends here, so `add` is inlined
        waits.counts[bisect_left(_WAIT_S, waited_s)] += 1
        waits.total += waited_s
        if outcome.how == "whole":
            totals, total_s = self.totals, outcome.total_s
            totals.counts[bisect_left(_TOTAL_S, total_s)] += 1
            totals.total += total_s
        first: int | None = None
        if outcome.is_stream and outcome.first_s is not None:
            unqueued_s = outcome.first_s - waited_s
            first = bisect_left(FIRST_S, unqueued_s)
            self.unqueued_firsts[first] += 1
            self.unqueued_most_s = max(self.unqueued_most_s, unqueued_s)
        if (cache := outcome.cache) is not None:
            reread = self.reread_tokens
            reread[cache.cause] = reread.get(cache.cause, 0) + cache.reread_tokens
        if (usage := outcome.usage) is not None:
            prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
            self.prompt_tokens += prompt
            self.completion_tokens += completion
            if outcome.is_stream:
                self.stream_tokens += completion
            if cached := usage.cached_tokens:
                self.cached_tokens += cached
                if 2 * cached >= prompt and first is not None:
                    self.cached_firsts[first] += 1


class ModelTotals(Value):
    """The counters of one model, all keys together, as of now."""

    firsts: tuple[int, ...]
    gaps: tuple[int, ...]
    gaps_s: float
    """All of them together."""
    unqueued_firsts: tuple[int, ...]
    cached_firsts: tuple[int, ...]
    completion_tokens: int
    stream_tokens: int
    requests: int
    broke: int
    """Requests that the engine broke off or answered with 5xx."""
    first_seen: Seen = NOTHING_SEEN
    """The least and the most since the last time that totals were taken; so for the next two."""
    gap_seen: Seen = NOTHING_SEEN
    unqueued_most_s: float = 0.0


class ModelGauges(Value):
    phase: str = "off"
    """One of `PHASES`."""
    busy: int = 0
    waiting: int = 0
    bytes: int = 0
    """Memory that it holds, measured if possible; 0 when it is off."""


class GatewayGauges(Value):
    """Values that only the dispatcher knows, at the time of the request."""

    models: Mapping[str, ModelGauges] = {}
    ceiling_bytes: int | None = None
    available_bytes: int | None = None
    """Free on the host."""
    log_rows: int = 0
    log_dropped: int = 0


PHASES = ("off", "loading", "ready", "unloading")


class Meter:
    def __init__(self, models: Iterable[str] = ()) -> None:
        self._models: frozenset[str] = frozenset()
        self._counters: dict[tuple[str, str], ModelCounters] = {}
        self._keys: set[str] = set()
        self._rejected_early: dict[str, int] = {}
        self._loads: dict[str, Histogram] = {}
        self._unloads: dict[str, int] = {}
        self._failures: dict[str, dict[str, int]] = {}
        """By model, then by reason."""
        self.add_models(models)

    def add_models(self, models: Iterable[str]) -> None:
        """Add models of the service file. The counters of a removed model stay."""
        self._models |= frozenset(models)

    def counters(self, model: str, key: str) -> ModelCounters:
        counters = self._counters.get((model, key))
        return self._new_counters(model, key) if counters is None else counters

    def _new_counters(self, model: str, key: str) -> ModelCounters:
        model = model if model in self._models else UNKNOWN
        if key not in self._keys and len(self._keys) >= MAX_KEYS:
            key = OTHER
        self._keys.add(key)
        counters = self._counters.get((model, key))
        if counters is None:
            counters = self._counters[model, key] = ModelCounters()
        return counters

    def totals(self) -> dict[str, ModelTotals]:
        """By model of the service file; those without a request are left out. For the sampler alone: the
        least and the most are since the last call."""
        by_model: dict[str, list[ModelCounters]] = {}
        for (model, _), counters in self._counters.items():
            if model in self._models:
                by_model.setdefault(model, []).append(counters)
        return {model: _totals(counters) for model, counters in by_model.items()}

    def rejected_early(self, kind: str) -> None:
        """Rejected before its model was known: an invalid key, or a rate limit."""
        _count(self._rejected_early, kind, OTHER)

    def loaded(self, model: str, seconds: float) -> None:
        self._loads.setdefault(self._known(model), Histogram(_LOAD_S)).add(seconds)

    def unloaded(self, model: str) -> None:
        model = self._known(model)
        self._unloads[model] = self._unloads.get(model, 0) + 1

    def load_failed(self, model: str, reason: str) -> None:
        """`reason` is one word: `does_not_fit`, `not_verified`, `crashed`."""
        _count(self._failures.setdefault(self._known(model), {}), reason, OTHER)

    def _known(self, model: str) -> str:
        return model if model in self._models else UNKNOWN

    def families(self, gauges: GatewayGauges) -> Iterator[MetricFamily]:
        yield from self._request_families()
        yield from self._latency_families()
        yield from self._load_families()
        yield from _gauge_families(gauges)

    def _request_families(self) -> Iterator[MetricFamily]:
        yield _family(
            "requests_total",
            "counter",
            "Finished requests: whole, left by the client, broken by the engine, refused by the gateway.",
            (
                ((*_labels(owner), ("route", route), ("how", how), ("status", str(status))), count)
                for owner, counters in list(self._counters.items())
                for (route, how, status), count in list(counters.requests.items())
            ),
        )
        early = [((("kind", kind),), count) for kind, count in self._rejected_early.items()]
        yield _family("rejected_early_total", "counter", "Rejected before their model was known.", early)
        for name in ("prompt", "completion", "cached"):
            tokens = [(_labels(o), getattr(c, f"{name}_tokens")) for o, c in self._counters.items()]
            help = f"{name.capitalize()} tokens as the engines counted them in `usage`."
            yield _family(f"{name}_tokens_total", "counter", help, tokens)
        reread = [
            ((*_labels(owner), ("cause", cause)), tokens)
            for owner, counters in list(self._counters.items())
            for cause, tokens in list(counters.reread_tokens.items())
        ]
        help = "Prompt tokens that engines read again although a prompt before had them, by cause."
        yield _family("reread_tokens_total", "counter", help, reread)

    def _latency_families(self) -> Iterator[MetricFamily]:
        for attribute, name, help in (
            (
                "firsts",
                "time_to_first_token",
                "From the request's head to the first byte of the response's body.",
            ),
            ("gaps", "inter_token", "Between two chunks of a stream; most engines send each token as one."),
            ("totals", "request", "From the request's head to the last byte, for complete responses."),
            ("waits", "wait", "From the request's head until an engine was available, including loads."),
        ):
            samples = (
                sample
                for owner, counters in list(self._counters.items())
                for sample in _histogram_samples(_labels(owner), getattr(counters, attribute))
            )
            yield MetricFamily(f"firesteel_{name}_seconds", "histogram", help, samples)

    def _load_families(self) -> Iterator[MetricFamily]:
        loads = [
            sample
            for model, histogram in self._loads.items()
            for sample in _histogram_samples((("model", model),), histogram)
        ]
        yield MetricFamily("firesteel_load_seconds", "histogram", "Successful loads.", loads)
        unloads = [((("model", model),), count) for model, count in self._unloads.items()]
        yield _family("unloads_total", "counter", "Unloaded models, with their memory freed.", unloads)
        failures = [
            ((("model", model), ("reason", reason)), count)
            for model, reasons in self._failures.items()
            for reason, count in reasons.items()
        ]
        yield _family("load_failures_total", "counter", "Failed loads, by reason.", failures)


def _totals(parts: list[ModelCounters]) -> ModelTotals:
    outcomes = [item for part in parts for item in part.requests.items()]
    return ModelTotals(
        _summed(part.firsts for part in parts),
        _summed(part.gaps for part in parts),
        sum(part.gaps.total for part in parts),
        tuple(map(sum, zip(*(part.unqueued_firsts for part in parts), strict=True))),
        tuple(map(sum, zip(*(part.cached_firsts for part in parts), strict=True))),
        sum(part.completion_tokens for part in parts),
        sum(part.stream_tokens for part in parts),
        sum(count for _, count in outcomes),
        sum(count for (_, how, status), count in outcomes if how == "broke" or status in _ENGINE_ERRORS),
        all_seen([part.firsts.take_seen() for part in parts]),
        all_seen([part.gaps.take_seen() for part in parts]),
        max([part.take_unqueued_most() for part in parts]),
    )


def _summed(histograms: Iterable[Histogram]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(histogram.counts for histogram in histograms), strict=True)))


def _gauge_families(gauges: GatewayGauges) -> Iterator[MetricFamily]:
    models = gauges.models.items()
    for attribute, help in (
        ("busy", "Requests that the model is serving."),
        ("waiting", "Requests that wait for the model."),
        ("bytes", "Memory that the model holds, measured or planned."),
    ):
        values = [((("model", name),), getattr(model, attribute)) for name, model in models]
        yield _family(f"model_{attribute}", "gauge", help, values)
    phases = [
        ((("model", name), ("phase", phase)), int(model.phase == phase))
        for name, model in models
        for phase in PHASES
    ]
    yield _family("model_phase", "gauge", "1 for the current phase of the model.", phases)
    waiting = sum(model.waiting for _, model in models)
    yield _family("queue_length", "gauge", "Requests that wait, for all models.", [((), waiting)])
    single: tuple[tuple[str, Kind, str, int | None], ...] = (
        ("memory_ceiling_bytes", "gauge", "Memory that all models may hold.", gauges.ceiling_bytes),
        ("memory_available_bytes", "gauge", "Memory available on the host.", gauges.available_bytes),
        ("request_log_rows_total", "counter", "Rows written to the request log.", gauges.log_rows),
        ("request_log_dropped_total", "counter", "Rows that the request log dropped.", gauges.log_dropped),
    )
    for name, kind, help, value in single:
        yield _family(name, kind, help, [] if value is None else [((), value)])


def _family(name: str, kind: Kind, help: str, values: Iterable[tuple[Labels, float]]) -> MetricFamily:
    samples = (MetricSample("", labels, value) for labels, value in values)
    return MetricFamily(f"firesteel_{name}", kind, help, samples)


def _labels(model_and_key: tuple[str, str]) -> Labels:
    model, key = model_and_key
    return ("model", model), ("key", key)


def _histogram_samples(labels: Labels, histogram: Histogram) -> Iterator[MetricSample]:
    """Cumulative, as Prometheus requires; copied first, because chunks are counted meanwhile."""
    counts, total = list(histogram.counts), histogram.total
    so_far = 0
    for bound, count in zip((*histogram.bounds, float("inf")), counts, strict=True):
        so_far += count
        le = "+Inf" if bound == float("inf") else repr(bound)
        yield MetricSample("_bucket", (*labels, ("le", le)), so_far)
    yield MetricSample("_sum", labels, total)
    yield MetricSample("_count", labels, so_far)


def _count(counts: dict[K, int], key: K, otherwise: K) -> None:
    """Add one; beyond the maximum number of labels, count it as `otherwise`."""
    if key not in counts and len(counts) >= _MAX_LABELS:
        key = otherwise
    counts[key] = counts.get(key, 0) + 1
