"""One streamed request over a connection of its own: what came, and when each piece of it came.

The clock is read as bytes arrive, before anything looks at them. What they say is read only when the stream
has ended (`heard.py`), so that one stream's JSON never delays the clock of another: with 64 streams on one
core this is what keeps the client out of its own figures. The connection is open before the request is
sent, and the time counts from the sending: a handshake is not the model's doing.

Everything is bounded: the bytes of an answer, the wait for its first word, every wait between, and the
whole.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import httptools

from firesteel.errors import UsageError

End = Literal["whole", "closed", "refused", "stalled", "endless", "not HTTP"]
"""whole: the answer ended as HTTP says. closed: the connection ended first."""
_CONNECT_S = 10.0
_CHUNK_BYTES = 4096
"""The most that one token may take on the way; engines send 150 to 400 bytes."""
_BASE_BYTES = 2**18
_LEAST_BYTES = 64
"""More pieces than one for so many bytes are no answer but a way to fill our memory."""
_BEGUN = 3
"""Pieces before an answer counts as begun: some engines send the role at once and then read the prompt."""


@dataclass(frozen=True, slots=True)
class TargetServer:
    host: str
    port: int
    is_tls: bool = False
    path: str = "/v1/chat/completions"
    key: str | None = field(default=None, repr=False)

    @classmethod
    def at(cls, url: str, key: str | None = None) -> TargetServer:
        """Of a base address, `http://127.0.0.1:8000`."""
        parts = urlsplit(url)
        if not parts.hostname:
            raise UsageError(f"`{url}` is no address of a server", next="firesteel ps")
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/") + "/v1/chat/completions"
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, path, key)

    def request(self, body: bytes) -> bytes:
        named = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"POST {self.path} HTTP/1.1", f"Host: {named}:{self.port}", "Content-Type: application/json",
            "Accept: text/event-stream", "User-Agent: firesteel-bench", f"Content-Length: {len(body)}",
            "Connection: close",
        ]  # fmt: skip
        lines += [f"Authorization: Bearer {self.key}"] if self.key else []
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
    """How long nothing may come before a stream counts as stalled, and how long all of it may take."""

    first_s: float = 120.0
    between_s: float = 60.0
    whole_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class RawResponse:
    """An answer as it came. Times are of `time.perf_counter`."""

    sent: float
    ended: float
    end: End
    status: int | None = None
    pieces: tuple[tuple[float, bytes], ...] = ()
    """Of the body, each with the time at which it came."""
    why: str = ""


def chat_body(
    model: str, messages: list[dict[str, str]], max_tokens: int, extra: Mapping[str, Any] | None = None
) -> bytes:
    """A request for a stream with its own count of tokens at the end."""
    asked = {
        "model": model, "messages": messages, "max_tokens": max_tokens, "stream": True,
        "stream_options": {"include_usage": True}, **(extra or {}),
    }  # fmt: skip
    return json.dumps(asked).encode()


async def exchange(
    endpoint: TargetServer, body: bytes, patience: RequestTimeouts, max_tokens: int
) -> RawResponse:
    """Sends one request and waits for the end of its answer, whatever that is. Never raises for it."""
    loop, began = asyncio.get_running_loop(), time.perf_counter()
    most = _BASE_BYTES + _CHUNK_BYTES * max_tokens
    tls = ssl.create_default_context() if endpoint.is_tls else None
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, stream = await loop.create_connection(
                lambda: _Stream(patience, most), endpoint.host, endpoint.port, ssl=tls
            )
    except (OSError, TimeoutError, ValueError) as error:
        why = str(error) or f"no connection within {_CONNECT_S:.0f} s"
        return RawResponse(began, time.perf_counter(), "refused", why=why)
    try:
        stream.send(endpoint.request(body))
        return await stream.ended
    finally:
        stream.close()


class _Stream(asyncio.Protocol):
    """What httptools finds in the bytes comes back to it as `on_...`."""

    def __init__(self, patience: RequestTimeouts, most_bytes: int) -> None:
        self.ended: asyncio.Future[RawResponse] = asyncio.get_running_loop().create_future()
        self._patience, self._most = patience, most_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: list[tuple[float, bytes]] = []
        self._bytes = 0
        self._sent = self._now = time.perf_counter()
        self._status: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is not a subclass of it

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._sent = self._now = time.perf_counter()
        self._transport.write(request)
        self._timer = asyncio.get_running_loop().call_later(self._quiet_s, self._look)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._transport:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end("not HTTP", str(error))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self._pieces.append((self._now, piece))
        self._bytes += len(piece)
        if self._bytes > self._most or len(self._pieces) > self._most // _LEAST_BYTES:
            self._end(
                "endless", f"{self._bytes:,} bytes came in {len(self._pieces):,} pieces, and it went on"
            )

    def on_message_complete(self) -> None:
        self._end("whole")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("closed", str(exc) if exc else "the server closed the connection")

    @property
    def _quiet_s(self) -> float:
        return self._patience.first_s if len(self._pieces) < _BEGUN else self._patience.between_s

    def _look(self) -> None:
        """Is anything still coming? Looks again when the wait would be over."""
        now = time.perf_counter()
        left = min(self._quiet_s - (now - self._now), self._patience.whole_s - (now - self._sent))
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(min(left, 1.0) + 0.001, self._look)
        elif now - self._sent >= self._patience.whole_s:
            self._end("stalled", f"it had not ended after {self._patience.whole_s:.0f} s")
        else:
            self._end("stalled", f"nothing came for {now - self._now:.1f} s")

    def _end(self, how: End, why: str = "") -> None:
        if not self.ended.done():
            now = self._now if how == "whole" else time.perf_counter()
            self.ended.set_result(RawResponse(self._sent, now, how, self._status, tuple(self._pieces), why))
