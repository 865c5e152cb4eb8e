"""How much: counters and histograms of the gateway, as plain lists. `prometheus.py` writes them down.

    tally = meter.tally("coder", "laptop")      once a request: a look into a dict
    tally.first(0.21); tally.gap(0.02)          a chunk costs one call
    tally.finish(route_of(path), end)
    meter.families(now) -> what /metrics shows, with what only the desk knows as `now`

What is counted is bounded: the models of the service file, the keys of the ring, words of closed lists. A
name that somebody made up is `unknown`, so that no client can fill the memory with labels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from firesteel.gateway.admin.prometheus import Labels, MetricFamily, MetricSample
from firesteel.gateway.http.routes import ROUTES
from firesteel.gateway.interfaces import RequestOutcome

K = TypeVar("K")
UNKNOWN = "unknown"
OTHER = "other"
MAX_KEYS = 1000
_MAX_WORDS = 64
"""Of one kind: reasons of failed loads, kinds of refusals, routes with their ends."""

_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0, 300.0, 900.0)
_GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 0.8, 2.0, 10.0)
_TOTAL_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
_WAIT_S = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
_LOAD_S = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 1800.0)


def route_of(path: bytes) -> str:
    """A path as one of the words that the plane has for its routes."""
    route = ROUTES.get(path)
    return OTHER if route is None else route.kind


class Histogram:
    """How many were at most so long, for fixed bounds; `counts` has one more, for what is longer than all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class ModelCounters:
    """One model under one key. A `Tally` of talk.py, and where the request's end is counted."""

    __slots__ = (
        "cached_tokens", "completion_tokens", "firsts", "gaps", "prompt_tokens", "requests", "totals",
        "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.firsts = Histogram(_FIRST_S)
        self.gaps = Histogram(_GAP_S)
        self.totals = Histogram(_TOTAL_S)
        self.waits = Histogram(_WAIT_S)
        self.requests: dict[tuple[str, str, int], int] = {}
        """By route, how it ended, status."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0

    def first(self, seconds: float) -> None:
        self.firsts.add(seconds)

    def gap(self, seconds: float) -> None:
        gaps = self.gaps  # for every chunk, and so without the call of `add`
        gaps.counts[bisect_left(_GAP_S, seconds)] += 1
        gaps.total += seconds

    def finish(self, route: str, end: RequestOutcome) -> None:
        kind = (route, end.how, end.status)
        if kind in self.requests:
            self.requests[kind] += 1
        else:
            _count(self.requests, kind, (OTHER, end.how, 0))
        self.waits.add(end.waited_s)
        if end.how == "whole":
            self.totals.add(end.total_s)
        if (usage := end.usage) is not None:
            self.prompt_tokens += usage.prompt_tokens or 0
            self.completion_tokens += usage.completion_tokens or 0
            self.cached_tokens += usage.cached_tokens or 0


@dataclass(frozen=True, slots=True)
class ModelGauges:
    phase: str = "off"
    """One of `PHASES`."""
    busy: int = 0
    waiting: int = 0
    bytes: int = 0
    """What it holds, measured where that is known; 0 when it is off."""


@dataclass(frozen=True, slots=True)
class GatewayGauges:
    """What only the desk knows, at the time when somebody asks."""

    models: Mapping[str, ModelGauges] = field(default_factory=dict)
    ceiling_bytes: int | None = None
    available_bytes: int | None = None
    """What the host has left."""
    log_rows: int = 0
    log_dropped: int = 0


PHASES = ("off", "loading", "ready", "unloading")


class Meter:
    def __init__(self, models: Iterable[str] = ()) -> None:
        self._models: frozenset[str] = frozenset()
        self._tallies: dict[tuple[str, str], ModelCounters] = {}
        self._keys: set[str] = set()
        self._turned_away: dict[str, int] = {}
        self._loads: dict[str, Histogram] = {}
        self._unloads: dict[str, int] = {}
        self._failures: dict[str, dict[str, int]] = {}
        """By model, then by reason."""
        self.know(models)

    def know(self, models: Iterable[str]) -> None:
        """The models of the service file. What was counted of one that went stays."""
        self._models |= frozenset(models)

    def tally(self, model: str, key: str) -> ModelCounters:
        found = self._tallies.get((model, key))
        return self._new_tally(model, key) if found is None else found

    def _new_tally(self, model: str, key: str) -> ModelCounters:
        model = model if model in self._models else UNKNOWN
        if key not in self._keys and len(self._keys) >= MAX_KEYS:
            key = OTHER
        self._keys.add(key)
        found = self._tallies.get((model, key))
        if found is None:
            found = self._tallies[model, key] = ModelCounters()
        return found

    def turned_away(self, kind: str) -> None:
        """Refused before a model was known: a wrong key, a rate used up, a head that is none."""
        _count(self._turned_away, kind, OTHER)

    def loaded(self, model: str, seconds: float) -> None:
        self._loads.setdefault(self._known(model), Histogram(_LOAD_S)).add(seconds)

    def unloaded(self, model: str) -> None:
        model = self._known(model)
        self._unloads[model] = self._unloads.get(model, 0) + 1

    def load_failed(self, model: str, reason: str) -> None:
        """`reason` is a word: `does_not_fit`, `not_verified`, `crashed`."""
        _count(self._failures.setdefault(self._known(model), {}), reason, OTHER)

    def _known(self, model: str) -> str:
        return model if model in self._models else UNKNOWN

    def families(self, now: GatewayGauges) -> Iterator[MetricFamily]:
        yield from self._request_families()
        yield from self._token_families()
        yield from self._time_families()
        yield from self._swap_families()
        yield from _now_families(now)

    def _request_families(self) -> Iterator[MetricFamily]:
        yield MetricFamily(
            "firesteel_requests_total",
            "counter",
            "Requests that ended: whole, left by the client, broken by the engine, refused by the gateway.",
            (
                MetricSample(
                    "", (*_whose(at), ("route", route), ("how", how), ("status", str(status))), count
                )
                for at, tally in list(self._tallies.items())
                for (route, how, status), count in list(tally.requests.items())
            ),
        )
        yield MetricFamily(
            "firesteel_turned_away_total",
            "counter",
            "Requests refused before a model was known.",
            [MetricSample("", (("kind", kind),), count) for kind, count in self._turned_away.items()],
        )

    def _token_families(self) -> Iterator[MetricFamily]:
        for name in ("prompt", "completion", "cached"):
            yield MetricFamily(
                f"firesteel_{name}_tokens_total",
                "counter",
                f"{name.capitalize()} tokens as the engines counted them in `usage`.",
                [
                    MetricSample("", _whose(at), getattr(tally, f"{name}_tokens"))
                    for at, tally in self._tallies.items()
                ],
            )

    def _time_families(self) -> Iterator[MetricFamily]:
        about = {
            "firsts": (
                "time_to_first_token",
                "From the request's head to the first byte of the answer's body.",
            ),
            "gaps": ("inter_token", "Between two chunks of a stream; most engines send each token as one."),
            "totals": ("request", "From the request's head to the last byte, of answers that came whole."),
            "waits": ("wait", "From the request's head until an engine was free for it, loads included."),
        }
        tallies = [(_whose(at), tally) for at, tally in self._tallies.items()]
        for key, (name, help) in about.items():
            samples = _all_samples(tallies, key)
            yield MetricFamily(f"firesteel_{name}_seconds", "histogram", help, samples)

    def _swap_families(self) -> Iterator[MetricFamily]:
        loads = [
            each for model, found in self._loads.items() for each in _samples((("model", model),), found)
        ]
        yield MetricFamily(
            "firesteel_load_seconds", "histogram", "Loads that ended with a model that answers.", loads
        )
        yield MetricFamily(
            "firesteel_unloads_total",
            "counter",
            "Models that were stopped, with their memory back.",
            [MetricSample("", (("model", model),), count) for model, count in self._unloads.items()],
        )
        yield MetricFamily(
            "firesteel_load_failures_total",
            "counter",
            "Loads that failed, by reason.",
            [
                MetricSample("", (("model", model), ("reason", reason)), count)
                for model, reasons in self._failures.items()
                for reason, count in reasons.items()
            ],
        )


def _now_families(now: GatewayGauges) -> Iterator[MetricFamily]:
    yield _gauge("firesteel_model_busy", "Requests that the model serves now.", now, "busy")
    yield _gauge("firesteel_model_waiting", "Requests that wait for the model.", now, "waiting")
    yield _gauge("firesteel_model_bytes", "Memory that the model holds, measured or planned.", now, "bytes")
    yield MetricFamily(
        "firesteel_model_phase",
        "gauge",
        "1 for the phase that the model is in.",
        [
            MetricSample("", (("model", name), ("phase", phase)), int(model.phase == phase))
            for name, model in now.models.items()
            for phase in PHASES
        ],
    )
    waiting = sum(model.waiting for model in now.models.values())
    yield MetricFamily(
        "firesteel_queue_length",
        "gauge",
        "Requests that wait, all together.",
        [MetricSample("", (), waiting)],
    )
    for name, help, value in (
        ("memory_ceiling_bytes", "What all models together may hold.", now.ceiling_bytes),
        ("memory_available_bytes", "What the host has left.", now.available_bytes),
    ):
        yield MetricFamily(
            f"firesteel_{name}", "gauge", help, [] if value is None else [MetricSample("", (), value)]
        )
    for name, help, value in (
        ("request_log_rows_total", "Rows written to the request log.", now.log_rows),
        ("request_log_dropped_total", "Rows that the request log could not take.", now.log_dropped),
    ):
        yield MetricFamily(f"firesteel_{name}", "counter", help, [MetricSample("", (), value)])


def _gauge(name: str, help: str, now: GatewayGauges, of: str) -> MetricFamily:
    samples = [MetricSample("", (("model", model),), getattr(each, of)) for model, each in now.models.items()]
    return MetricFamily(name, "gauge", help, samples)


def _whose(at: tuple[str, str]) -> Labels:
    return ("model", at[0]), ("key", at[1])


def _all_samples(tallies: list[tuple[Labels, ModelCounters]], which: str) -> Iterator[MetricSample]:
    for labels, tally in tallies:
        yield from _samples(labels, getattr(tally, which))


def _samples(labels: Labels, histogram: Histogram) -> Iterator[MetricSample]:
    """Cumulative, as Prometheus wants them; of one moment, though chunks are counted meanwhile."""
    counts, total = list(histogram.counts), histogram.total
    so_far = 0
    for bound, count in zip((*histogram.bounds, float("inf")), counts, strict=True):
        so_far += count
        le = "+Inf" if bound == float("inf") else repr(bound)
        yield MetricSample("_bucket", (*labels, ("le", le)), so_far)
    yield MetricSample("_sum", labels, total)
    yield MetricSample("_count", labels, so_far)


def _count(counts: dict[K, int], key: K, otherwise: K) -> None:
    """Adds one; what would be one kind too many is counted with all the others."""
    if key not in counts and len(counts) >= _MAX_WORDS:
        key = otherwise
    counts[key] = counts.get(key, 0) + 1
