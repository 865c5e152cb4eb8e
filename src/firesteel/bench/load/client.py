"""Send one request over its own connection, record when each piece of the response arrived, and measure
what this costs the client.

The clock is read as bytes arrive; parsing waits until the stream has ended (`transcript.py`), so that the
JSON of one stream never delays the clock of another. Time counts from sending: a handshake says nothing about
the model. Bytes, waits and the total time are bounded. `ClientCost` measures how late the clock is read under
load: `ticker.py` writes the time into a pipe, which the same event loop reads as it reads the streams. If the
ticker itself was woken up late, the machine is busy.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

from firesteel.bench.compare.stats import percentile
from firesteel.bench.load import ticker
from firesteel.errors import UsageError
from firesteel.values import Value

End = Literal["whole", "closed", "refused", "stalled", "endless", "not HTTP"]
"""whole: the response ended as HTTP requires. closed: the connection ended first."""
_CONNECT_S = 10.0
_MAX_CHUNK_BYTES = 4096
"""The most that one token may take on the wire; engines send 150 to 400 bytes."""
_BASE_BYTES = 2**18
_MIN_PIECE_BYTES = 64
"""A response with smaller pieces than this on average is not an answer, only a way to exhaust our memory."""
_STARTED_PIECES = 3
"""Pieces until a response counts as started: some engines send the role at once and then read the prompt."""


class TargetServer(Value):
    host: str
    port: int
    is_tls: bool = False
    path: str = "/v1/chat/completions"
    key: str | None = None

    def __repr__(self) -> str:
        return f"TargetServer({self.host!r}, {self.port})"  # a traceback may be pasted somewhere

    @classmethod
    def at(cls, url: str, key: str | None = None) -> TargetServer:
        """From a base address such as `http://127.0.0.1:8000`."""
        parts = urlsplit(url)
        if not parts.hostname:
            raise UsageError(f"`{url}` is not the address of a server", next="firesteel ps")
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/") + "/v1/chat/completions"
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, path, key)

    def request(self, body: bytes) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"POST {self.path} HTTP/1.1", f"Host: {host}:{self.port}", "Content-Type: application/json",
            "Accept: text/event-stream", "User-Agent: firesteel-bench", f"Content-Length: {len(body)}",
            "Connection: close",
        ]  # fmt: skip
        lines += [f"Authorization: Bearer {self.key}"] if self.key else []
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


class RequestTimeouts(Value):
    """How long a stream may be silent before it counts as stalled, and how long it may take in total."""

    first_s: float = 120.0
    between_s: float = 60.0
    whole_s: float = 1800.0


class RawResponse(Value):
    """A response as it arrived. Times are of `time.perf_counter`."""

    sent: float
    ended: float
    end: End
    status: int | None = None
    pieces: tuple[tuple[float, bytes], ...] = ()
    """Parts of the body, each with its arrival time."""
    why: str = ""


def chat_body(
    model: str, messages: list[dict[str, str]], max_tokens: int, extra: Mapping[str, Any] | None = None
) -> bytes:
    """A request for a stream that ends with the server's own token counts."""
    request = {
        "model": model, "messages": messages, "max_tokens": max_tokens, "stream": True,
        "stream_options": {"include_usage": True}, **(extra or {}),
    }  # fmt: skip
    return json.dumps(request).encode()


@cache
def _tls_context() -> ssl.SSLContext:
    """Made once: reading all certificates takes tens of milliseconds, in which no stream is read."""
    return ssl.create_default_context()


async def stream_request(
    server: TargetServer, body: bytes, timeouts: RequestTimeouts, max_tokens: int
) -> RawResponse:
    """Send one request and wait for the end of the response, however it ends. Failures are never raised."""
    loop, began = asyncio.get_running_loop(), time.perf_counter()
    max_bytes = _BASE_BYTES + _MAX_CHUNK_BYTES * max_tokens
    tls = _tls_context() if server.is_tls else None
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, stream = await loop.create_connection(
                lambda: _Stream(timeouts, max_bytes), server.host, server.port, ssl=tls
            )
    except (OSError, TimeoutError, ValueError) as error:
        why = str(error) or f"no connection within {_CONNECT_S:.0f} s"
        return RawResponse(began, time.perf_counter(), "refused", why=why)
    try:
        stream.send(server.request(body))
        return await stream.response
    finally:
        stream.close()


class _Stream(asyncio.Protocol):
    """Feeds httptools, which calls back the `on_...` methods."""

    def __init__(self, timeouts: RequestTimeouts, max_bytes: int) -> None:
        self.response: asyncio.Future[RawResponse] = asyncio.get_running_loop().create_future()
        self._timeouts, self._max_bytes = timeouts, max_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: list[tuple[float, bytes]] = []
        self._bytes = 0
        self._sent = self._last_data = time.perf_counter()
        self._status: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass of it

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._sent = self._last_data = time.perf_counter()
        self._transport.write(request)
        self._timer = asyncio.get_running_loop().call_later(self._max_silence_s, self._check_timeouts)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._transport:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._last_data = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end("not HTTP", str(error))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self._pieces.append((self._last_data, piece))
        self._bytes += len(piece)
        if self._bytes > self._max_bytes or len(self._pieces) > self._max_bytes // _MIN_PIECE_BYTES:
            self._end("endless", f"no end after {self._bytes:,} bytes in {len(self._pieces):,} pieces")

    def on_message_complete(self) -> None:
        self._end("whole")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("closed", str(exc) if exc else "the server closed the connection")

    @property
    def _max_silence_s(self) -> float:
        has_started = len(self._pieces) >= _STARTED_PIECES
        return self._timeouts.between_s if has_started else self._timeouts.first_s

    def _check_timeouts(self) -> None:
        # One timer that re-arms itself is cheaper than one that is cancelled with every chunk.
        now = time.perf_counter()
        silent_s, elapsed_s = now - self._last_data, now - self._sent
        left = min(self._max_silence_s - silent_s, self._timeouts.whole_s - elapsed_s)
        if left > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(left, 1.0) + 0.001, self._check_timeouts)
        elif elapsed_s >= self._timeouts.whole_s:
            self._end("stalled", f"not finished after {self._timeouts.whole_s:.0f} s")
        else:
            self._end("stalled", f"no data for {silent_s:.1f} s")

    def _end(self, how: End, why: str = "") -> None:
        if not self.response.done():
            ended = self._last_data if how == "whole" else time.perf_counter()
            self.response.set_result(
                RawResponse(self._sent, ended, how, self._status, tuple(self._pieces), why)
            )


# --- the client's own cost ---

MAX_LAG_MS = 1.0
"""Lateness that is not worth reporting."""
_MAX_VALUES = 100_000


class Lateness(Struct):
    """Of the client and of the machine, in seconds, one value per tick."""

    began: float = 0.0
    """By `time.perf_counter`. Ticks from before waited for something else than the load."""
    client_s: list[float] = []
    machine_s: list[float] = []

    @property
    def p99_s(self) -> float:
        """Of the client; 0 if there was no tick."""
        return percentile(self.client_s, 99) if self.client_s else 0.0


class ClientCost:
    """`with cost: ...`, inside a running loop, and there `with cost.under_load() as lateness: ...`"""

    def __init__(self) -> None:
        self._all = Lateness()
        self._current: Lateness | None = None
        self._began = self._cpu_before_s = 0.0
        self._ticker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ClientCost:
        self._began, self._cpu_before_s = time.perf_counter(), time.process_time()
        with suppress(OSError):  # without it, the lateness is unknown
            self._ticker = subprocess.Popen(
                (sys.executable, "-I", "-S", ticker.__file__),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        if self._ticker and self._ticker.stdout:
            self._pipe = self._ticker.stdout.fileno()
            os.set_blocking(self._pipe, False)
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._pipe, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ticker and self._ticker.stdout:
            self._loop.remove_reader(self._pipe)
            self._ticker.kill()
            self._ticker.wait()
            self._ticker.stdout.close()

    @contextmanager
    def under_load(self) -> Iterator[Lateness]:
        """Ticks count, and the garbage collector waits: a full collection can take tens of milliseconds."""
        was_enabled = gc.isenabled()
        gc.disable()
        self._current = lateness = Lateness(time.perf_counter())
        try:
            yield lateness
        finally:
            self._current = None
            if was_enabled:
                gc.enable()
            for every, new in (
                (self._all.client_s, lateness.client_s),
                (self._all.machine_s, lateness.machine_s),
            ):
                every += new
                if len(every) > _MAX_VALUES:
                    del every[::2]

    def _read(self) -> None:
        now = time.perf_counter()
        try:
            data = os.read(self._pipe, 4096)
        except BlockingIOError:
            return
        if not data:  # it was killed
            self._loop.remove_reader(self._pipe)
        elif self._current:
            size = ticker.RECORD.size
            for sent, late in ticker.RECORD.iter_unpack(data[: len(data) // size * size]):
                if sent >= self._current.began:
                    self._current.client_s.append(now - sent)
                    self._current.machine_s.append(late)

    def summary(self) -> dict[str, float]:
        elapsed = time.perf_counter() - self._began
        used = time.process_time() - self._cpu_before_s
        found = {"cpu_share": used / elapsed if self._began and elapsed > 0 else 0.0}
        for name, values in (
            ("p99_lag_ms", self._all.client_s),
            ("machine_p99_lag_ms", self._all.machine_s),
        ):
            if values:
                found[name] = 1000 * percentile(values, 99)
        return found


def late_text(client: Mapping[str, float]) -> str | None:
    """None unless the client was late; the sentence states whether the whole machine was."""
    lag, machine = client.get("p99_lag_ms", 0.0), client.get("machine_p99_lag_ms", 0.0)
    if lag <= MAX_LAG_MS:
        return None
    if machine > lag / 2:
        reason = f"this machine was busy, and woke up other programs {machine:.1f} ms late"
    else:
        reason = f"the machine itself was not ({machine:.1f} ms)"
    return f"the client was up to {lag:.1f} ms late under load (p99); {reason}"
