"""Where a granted request goes: the address of a model's engine, or of one of its replicas.

An `Endpoint` is created once, when the address becomes known: for a model with one engine, finding it is a
dictionary lookup.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from firesteel.gateway.interfaces import Counting, Endpoint, PendingRequest
from firesteel.gateway.routing import Replicas
from firesteel.gateway.service_config import ModelConfig, RunningModel

_MAX_KEY_BYTES = 4096
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

    def acquire(
        self, request: PendingRequest, replica_health: Callable[[str], Sequence[bool]]
    ) -> Endpoint | None:
        """None if no replica answers. The prefix and the health are computed only if there is a choice."""
        index: int | None = 0
        if self._replicas is not None:
            prefix = request.prefix if self._by_prefix else 0
            index = self._replicas.pick(prefix, self.busy, replica_health(request.model))
        if index is None:
            return None
        self.busy[index] += 1
        return self.endpoints[index]

    def release(self, endpoint: Endpoint) -> None:
        self.busy[endpoint.replica] -= 1


def model_endpoints(model: ModelConfig, running: RunningModel | None) -> ModelEndpoints:
    """Of an outside model from the file; of one of ours from where it was started."""
    if model.is_outside:
        return ModelEndpoints(model, model.urls, _outside_key(model.key))
    return ModelEndpoints(model, (running.url,) if running else model.urls, running.key if running else None)


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
    )


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
