"""Reads an engine's health and metrics in a thread: a stuck engine must not block its supervisor.

No aiohttp here: a supervisor lives as long as its model and stays small.
"""

from __future__ import annotations

import errno
import http.client
import threading
from collections.abc import Callable

from firesteel.edge.host.process import uptime
from firesteel.edge.http.sync_client import Deadline, bearer, get

_TIMEOUT_S = 3
_MAX_BYTES = 4 * 2**20


class HealthPoller(threading.Thread):
    """Asks every few seconds until stopped; the last results can be read at any time."""

    def __init__(
        self,
        url: str,
        key: str | None,
        interval_s: float = 2,
        metrics_s: float = 5,
        find_pid: Callable[[], int | None] = lambda: None,
        health: str = "/health",
    ) -> None:
        super().__init__(daemon=True)
        self._find_pid, self._health = find_pid, health
        self._url, self._key, self._interval_s, self._metrics_s = url, key, interval_s, metrics_s
        self._stopped = threading.Event()
        self.pid: int | None = None
        """The first process of the engine; None until it answers. Asked here, since docker may block, too."""
        self.is_healthy = False
        self.metrics: tuple[float, str | None] | None = None
        """When `/metrics` was read last, and its text; None in place of text: no answer."""
        self.answered_at: float | None = None
        """When it answered last, whatever it said. None: not yet, or it could not be asked lately."""

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._ask()
            except _CannotAsk:
                self.answered_at = None
            self._stopped.wait(self._interval_s)

    def _ask(self) -> None:
        self.is_healthy = self._get(self._health) is not None
        if self.is_healthy and self.pid is None:
            self.pid = self._find_pid()
        if self.metrics is None or uptime() - self.metrics[0] >= self._metrics_s:
            self.metrics = (uptime(), self._get("/metrics"))

    def stop(self) -> None:
        self._stopped.set()

    def _get(self, path: str) -> str | None:
        try:
            status, text = _get(self._url + path, self._key)
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = getattr(error, "reason", error)  # urllib wraps it
            if isinstance(cause, OSError) and cause.errno in _OUR_OWN:
                raise _CannotAsk from error
            return None
        self.answered_at = uptime()
        return text if status == 200 else None


class _CannotAsk(Exception):
    """For want of something of our own, which says nothing about the engine."""


_OUR_OWN = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


def get_from_engine(url: str, key: str | None = None) -> tuple[int | None, str]:
    """Status and text; the status is None when no answer came in time."""
    try:
        return _get(url, key)
    except (OSError, http.client.HTTPException, ValueError):
        return None, ""


def _get(url: str, key: str | None) -> tuple[int, str]:
    response = get(url, bearer(key), limit_bytes=_MAX_BYTES, deadline=Deadline(_TIMEOUT_S), direct=True)
    return response.status, response.body.decode(errors="replace")
