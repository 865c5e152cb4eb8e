"""PromptPlace a granted request goes: the address of a model's engine, or of one of its replicas.

An `Endpoint` is created once, when the address becomes known: for a model with one engine, finding it is a
dictionary lookup. `Replicas` chooses between several; a `RequestRecord` is a request between `submit` and
`finish`, with the endpoints that it has tried.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from urllib.parse import urlsplit

from firesteel.gateway.admin.meter import ModelCounters
from firesteel.gateway.http.body_edits import ParameterRules
from firesteel.gateway.interfaces import Counting, Endpoint, PendingRequest, ServerApiName
from firesteel.gateway.key_limits import RateLimit, Reservation, TokenBucket
from firesteel.gateway.prompt_chain import SeenPrompt
from firesteel.gateway.service_config import ModelConfig, ModelParameters, RunningModel
from firesteel.values import replace

_MAX_KEY_BYTES = 4096
RETRY_LIMIT = RateLimit(20, 10)
"""Of a model: 20 at once, 2 a second in the long run."""
MAX_RETRIES = 2
"""Of a request."""
AVOID_S = 5.0
_COUNTING: dict[str, Counting] = {
    "vllm": "continuous",
    "sglang": "continuous or null",
    "llamacpp": "timings",
}
_MOVES_SYSTEM = ("vllm", "sglang")
"""vLLM 0.28.0 and SGLang 0.5.21, where the template wants one system message at the head (their sources)."""


class ModelEndpoints:
    """The endpoints of one model, and how many requests each serves."""

    def __init__(self, model: ModelConfig, urls: Sequence[str], key: str | None) -> None:
        self.urls = tuple(urls)
        self.endpoints = tuple(_endpoint(model, url, key, index) for index, url in enumerate(urls))
        self.busy = [0] * len(self.endpoints)
        self._replicas = Replicas(len(self.endpoints)) if len(self.endpoints) > 1 else None
        self._by_prefix = model.route == "prefix"
        self._model = model
        self._failed_s = [-inf] * len(self.endpoints)
        """When each last failed before it answered."""
        self._retries = TokenBucket(RETRY_LIMIT, monotonic())
        self._by_name: dict[tuple[str, int], Endpoint] = {}

    def acquire(
        self, request: PendingRequest, replica_health: Callable[[str], Sequence[bool]]
    ) -> Endpoint | None:
        """None if no replica answers. The prefix and the health are computed only if there is a choice."""
        index: int | None = 0 if self.endpoints else None
        if self._replicas is not None:
            prefix = request.prefix if self._by_prefix else 0
            health = replica_health(request.model)
            index = self._replicas.pick(prefix, self.busy, self._usable(health))
        if index is None:
            return None
        self.busy[index] += 1
        return self.endpoints[index]

    def may_retry(self, endpoint: Endpoint, retries: int, now: float) -> bool:
        """Whether another replica may try what this one failed at. Retries have a budget: when all replicas
        are broken, their clients get errors and the servers no more load."""
        if self._replicas is None:
            return False
        self._failed_s[endpoint.replica] = now
        if retries >= min(len(self.endpoints) - 1, MAX_RETRIES) or self._retries.seconds_until(1, now):
            return False
        if all(now - failed_s < AVOID_S for failed_s in self._failed_s):
            return False
        self._retries.take(1, now)
        return True

    def _usable(self, health: Sequence[bool]) -> Sequence[bool]:
        """Those that have just failed are avoided, unless all have: a health check takes its time."""
        oldest = monotonic() - AVOID_S
        usable = [is_up and failed_s < oldest for is_up, failed_s in zip(health, self._failed_s, strict=True)]
        return usable if any(usable) else health

    def by_another_name(self, endpoint: Endpoint, asked: str) -> Endpoint:
        """For a request whose body has an alias, or the model that this one replaces: the engine knows
        neither, and an alias may have its own parameters."""
        found = self._by_name.get((asked, endpoint.replica))
        if found is None:
            own = self._model.alias_parameters.get(asked)
            name = own.served_name.encode() if own and own.served_name else endpoint.served_name
            found = self._by_name[asked, endpoint.replica] = replace(
                endpoint,
                served_name=name or self._model.name.encode(),
                parameters=endpoint.parameters if own is None else _rules(own),
            )
        return found

    @staticmethod
    def limited(endpoint: Endpoint, max_tokens: int) -> Endpoint:
        """For a request whose answer may have no more tokens."""
        rules = endpoint.parameters or ParameterRules(ModelParameters())
        return replace(endpoint, parameters=rules.limited(max_tokens))

    def release(self, endpoint: Endpoint) -> None:
        self.busy[endpoint.replica] -= 1


def model_endpoints(
    model: ModelConfig,
    running: RunningModel | None,
    apis: Mapping[str, tuple[ServerApiName, ...]] = MappingProxyType({}),
) -> ModelEndpoints:
    """Of an outside model from the file; of one of ours from where it was started. `apis`: what servers were
    found to speak, by URL, where the file does not say."""
    # Several URLs of one of ours: it runs on as many nodes.
    urls = (running.url,) if running and not model.is_outside and len(model.urls) < 2 else model.urls
    key = _outside_key(model.key) if model.is_outside else running.key if running else None
    found = next((apis[url] for url in urls if url in apis), ())
    return ModelEndpoints(replace(model, speaks=found) if found and not model.speaks else model, urls, key)


def _endpoint(model: ModelConfig, url: str, key: str | None, index: int) -> Endpoint:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    name = model.model if model.model and model.model != model.name else None
    return Endpoint(
        model.name,
        (parts.hostname or "", port),
        authority=parts.netloc.rpartition("@")[2].encode("idna" if not parts.netloc.isascii() else "ascii"),
        is_tls=is_tls,
        path=parts.path.rstrip("/").encode(),
        headers=_key_header(model, key),
        served_name=name.encode() if name else None,
        policy=model.cancel,
        replica=index,
        counting=_COUNTING.get(model.engine or "", "at the end"),
        timeouts=model.timeouts,
        speaks=model.speaks,
        parameters=_rules(model.parameters),
        moves_system=model.engine in _MOVES_SYSTEM,
    )


def _rules(parameters: ModelParameters) -> ParameterRules | None:
    return ParameterRules(parameters) if parameters.edits_body else None


def _key_header(model: ModelConfig, key: str | None) -> bytes:
    if not key:
        return b""
    name = "x-api-key: " if model.speaks == ("messages",) else "Authorization: Bearer "
    return f"{name}{key}\r\n".encode()


def _outside_key(source: str | None) -> str | None:
    """`source` is an environment variable or a path. If it cannot be read, the server will ask for a key."""
    if not source:
        return None
    if "/" not in source:
        return _one_line(os.environ.get(source))
    try:
        with Path(source).expanduser().open(encoding="ascii") as file:
            return _one_line(file.read(_MAX_KEY_BYTES))
    except (OSError, ValueError):
        return None


def _one_line(text: str | None) -> str | None:
    """A line break in a key would start another header line."""
    key = (text or "").strip()
    return key if key and key.isascii() and key.isprintable() else None


SLACK = 2
MAX_PREFIXES = 4096
"""Prefixes remembered; the least recently used is forgotten first. An engine forgets much sooner."""


class Replicas:
    """The replicas of one model, and the prefixes that each has processed.

    Chosen is the least busy replica, or one that has processed the same prefix. An engine caches the
    attention state of prompts that it has processed. An agent's next turn is its last one plus a little
    more: on the same replica only the new part is computed. But a replica that every request prefers
    becomes a queue, and waiting costs more than computing. So a replica that knows the prefix is chosen
    while it has at most `SLACK` requests more than the least busy one; otherwise the least busy one is
    chosen, and knows the prefix from then on.

    Among equals, the replica with the fewest prefixes is chosen, so that conversations spread before there
    is load.
    """

    def __init__(self, count: int, *, slack: int = SLACK, max_prefixes: int = MAX_PREFIXES) -> None:
        self._slack = slack
        self._max_prefixes = max_prefixes
        self._by_prefix: OrderedDict[int, set[int]] = OrderedDict()
        self._prefix_counts = [0] * count

    def pick(self, prefix: int, busy: Sequence[int], is_up: Sequence[bool]) -> int | None:
        """Return an index, or None if no replica is up. `prefix` 0: unknown."""
        candidates = [index for index, up in enumerate(is_up) if up]
        if not candidates:
            return None
        least = min(busy[index] for index in candidates)
        knowing = self._by_prefix.get(prefix, ())
        preferred = [index for index in candidates if index in knowing and busy[index] <= least + self._slack]
        chosen = min(preferred or candidates, key=lambda i: (busy[i], self._prefix_counts[i], i))
        if prefix:
            self._remember(prefix, chosen)
        return chosen

    def _remember(self, prefix: int, index: int) -> None:
        knowing = self._by_prefix.setdefault(prefix, set())
        self._by_prefix.move_to_end(prefix)
        if index not in knowing:
            knowing.add(index)
            self._prefix_counts[index] += 1
        if len(self._by_prefix) > self._max_prefixes:
            _, forgotten = self._by_prefix.popitem(last=False)
            for replica in forgotten:
                self._prefix_counts[replica] -= 1


_UNREACHABLE_S = 30.0
"""By then an engine that has ended is no longer reported as ready: its reaper takes up to 10 s to end what it
left behind. Our choice."""


class RequestRecord:
    """A request between `submit` and `finish`, as the dispatcher keeps it. The scheduler uses it as the
    request's identity."""

    __slots__ = (
        "answer_limit", "asked", "counters", "endpoint", "endpoints", "fallback", "is_between", "loaded_s",
        "loads_since", "request", "reservation", "retries", "seen", "tried", "unreachable_since",
        "waits_since", "was_in_flight",
    )  # fmt: skip

    def __init__(self, request: PendingRequest) -> None:
        self.request = request
        self.asked = request.model
        """By its client: a model or an alias."""
        self.was_in_flight = self.is_between = False
        """In flight: when its engine failed. Between: it was granted, and waits for another replica."""
        self.unreachable_since = 0.0
        """By `monotonic`; 0: its engine could always be reached."""
        self.retries = self.answer_limit = 0
        """The limit: of an answer that sets none and cannot be counted while it is made; 0: none."""
        self.reservation: Reservation | None = None
        self.tried: tuple[str, ...] = ()
        """Models that could not serve it."""
        self.fallback = ""
        """The model or alias that serves it in their place."""
        self.loads_since = self.loaded_s = 0.0
        """Since when its model is loaded, while it waits; and how long that took."""
        self.seen: SeenPrompt | None = None
        """What is known of its prompt, once it was sent."""
        self.endpoint: Endpoint | None = None
        self.endpoints: ModelEndpoints
        self.counters: ModelCounters
        """These two are set together with the endpoint."""
        self.waits_since: float
        """Seconds since 1970. Set when it begins to wait."""

    def may_be_held(self, *, was_sent: bool) -> bool:
        """Whether it waits for the return of an engine that has failed.

        Once if the engine may have received it: a request that was in flight at two crashes may be their
        cause. One that could not connect is not.
        """
        if was_sent:
            was_in_flight, self.was_in_flight = self.was_in_flight, True
            return not was_in_flight
        self.unreachable_since = self.unreachable_since or monotonic()
        return monotonic() - self.unreachable_since < _UNREACHABLE_S
