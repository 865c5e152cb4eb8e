"""Where a granted request goes: the address of a model's engine, or of one of its replicas.

An `Endpoint` is created once, when the address becomes known: for a model with one engine, finding it is a
dictionary lookup.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from urllib.parse import urlsplit

from firesteel.gateway.http.parameters import ParameterRules
from firesteel.gateway.interfaces import Counting, Endpoint, PendingRequest, ServerApiName
from firesteel.gateway.rate_limits import RateLimit, TokenBucket
from firesteel.gateway.routing import Replicas
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
        index: int | None = 0
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
        """For a request whose body has an alias, or the model that this one stands in for: the engine knows
        neither, and an alias may have parameters of its own."""
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
    urls = (running.url,) if running and not model.is_outside and len(model.urls) == 1 else model.urls
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
        has_longer="too_long" in model.fallbacks,
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
