"""An engine's health and metrics, read beside everything else: a stuck engine must not hold up its keeper.

`http.client` alone: a keeper lives as long as its model and stays small.
"""

from __future__ import annotations

import http.client
import threading
from urllib.parse import urlsplit

from firesteel.edge.host.process import uptime

_PATIENCE_S = 3
_MAX_BYTES = 4 * 2**20


class HealthPoller(threading.Thread):
    """Asks every few seconds until told to end; what it saw last is there to read at any time."""

    def __init__(self, url: str, key: str | None, every_s: float = 5) -> None:
        super().__init__(daemon=True)
        self._url, self._key, self._every_s = url, key, every_s
        self._ended = threading.Event()
        self.is_healthy = False
        self.metrics: tuple[float, str | None] | None = None
        """When it was asked last, and what it answered; None in place of text: no answer."""

    def run(self) -> None:
        while not self._ended.is_set():
            self.is_healthy = self._get("/health") is not None
            self.metrics = (uptime(), self._get("/metrics"))
            self._ended.wait(self._every_s)

    def end(self) -> None:
        self._ended.set()

    def _get(self, path: str) -> str | None:
        status, text = get_from_engine(self._url + path, self._key)
        return text if status == 200 else None


def get_from_engine(url: str, key: str | None = None) -> tuple[int | None, str]:
    """Status and text; no status: nobody answered in time."""
    parts = urlsplit(url)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_PATIENCE_S)
    try:
        link.request("GET", parts.path, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = link.getresponse()
        return answer.status, answer.read(_MAX_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None, ""
    finally:
        link.close()
