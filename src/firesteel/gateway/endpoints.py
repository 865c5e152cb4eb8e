"""Where a granted request goes: the address of a model's engine, or of one of its replicas.

A seat is made once, when the address becomes known, and handed out as it is: the way of a request to a model
that has one place is a look into a dict.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from firesteel.gateway.interfaces import Endpoint, PendingRequest
from firesteel.gateway.routing import Replicas
from firesteel.gateway.service_config import ModelConfig, RunningModel

_MAX_KEY_BYTES = 4096


class ModelEndpoints:
    """The seats of one model, and how busy each is."""

    def __init__(self, served: ModelConfig, urls: Sequence[str], key: str | None) -> None:
        self.urls = tuple(urls)
        self.seats = tuple(_seat(served, url, key, at) for at, url in enumerate(urls))
        self.busy = [0] * len(self.seats)
        self._replicas = Replicas(len(self.seats)) if len(self.seats) > 1 else None
        self.by_prefix = served.route == "prefix" and len(self.seats) > 1

    def take(self, caller: PendingRequest, answers: Callable[[str], Sequence[bool]]) -> Endpoint | None:
        """The prefix, and who answers, are only asked for where they decide something. None: nobody does."""
        at = 0 if self._replicas is None else self._pick(self._replicas, caller, answers)
        if at is None:
            return None
        self.busy[at] += 1
        return self.seats[at]

    def _pick(
        self, replicas: Replicas, caller: PendingRequest, answers: Callable[[str], Sequence[bool]]
    ) -> int | None:
        prefix = caller.prefix if self.by_prefix else 0
        return replicas.pick(prefix, self.busy, answers(caller.model))

    def leave(self, seat: Endpoint) -> None:
        self.busy[seat.replica] -= 1


def model_endpoints(served: ModelConfig, up: RunningModel | None) -> ModelEndpoints:
    """An outside model's as the file has them; one of ours where it came up."""
    if served.is_outside:
        return ModelEndpoints(served, served.urls, _outside_key(served.key))
    return ModelEndpoints(served, (up.url,) if up else served.urls, up.key if up else None)


def _seat(served: ModelConfig, url: str, key: str | None, at: int) -> Endpoint:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    name = served.model if served.model and served.model != served.name else None
    return Endpoint(
        served.name,
        (parts.hostname or "", port),
        authority=parts.netloc.rpartition("@")[2].encode("idna" if not parts.netloc.isascii() else "ascii"),
        is_tls=is_tls,
        path=parts.path.rstrip("/").encode(),
        headers=f"Authorization: Bearer {key}\r\n".encode() if key else b"",
        served_name=name.encode() if name else None,
        policy=served.cancel,
        replica=at,
    )


def _outside_key(where: str | None) -> str | None:
    """The file names a variable, or a path; what cannot be read is no key, and its server will say so."""
    if not where:
        return None
    if "/" not in where:
        return _one_line(os.environ.get(where))
    try:
        with Path(where).expanduser().open(encoding="ascii") as file:
            return _one_line(file.read(_MAX_KEY_BYTES))
    except (OSError, ValueError):
        return None


def _one_line(text: str | None) -> str | None:
    """A key with a line break in it would be another head line."""
    key = (text or "").strip()
    return key if key and key.isascii() and key.isprintable() else None
