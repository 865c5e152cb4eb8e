"""Requests without sockets: the real connection, request and upstream over transports that only record.

`World` plays client, dispatcher, pool and engine, and keeps its own books of what was submitted and how it
ended. Bytes go in as the loop would deliver them, so nothing of `http/` is replaced but the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

from firesteel.gateway.http.client_connection import ClientConnection
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.normalize import Normalizers
from firesteel.gateway.http.request import Request, RequestState
from firesteel.gateway.http.server import HttpServer
from firesteel.gateway.http.upstream import Upstream
from firesteel.gateway.interfaces import (
    Caller,
    Endpoint,
    FallbackReason,
    GatewayResponse,
    PendingRequest,
    Rejection,
    RequestOutcome,
    Timeouts,
    WaitStatus,
)
from firesteel.values import replace
from tests.gateway.http.kit import FakeRecorder

ADDRESS = ("127.0.0.1", 9)
LIMITS = HttpLimits(hold_after_s=1.0, comment_every_s=5.0)


class FakeTransport:
    """Takes everything at once, and closes at once."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = self.is_reading_paused = False
        self.buffered = 0

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.written += data

    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def get_extra_info(self, name: str) -> None: ...


class Connecting:
    """A connection that is being opened, in place of the pool's task."""

    def __init__(self, ready: Callable[[Upstream], None], failed: Callable[[str], None]) -> None:
        self.ready, self.failed = ready, failed
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakePool:
    def __init__(self) -> None:
        self.idle: list[Upstream] = []
        self.upstreams: list[Upstream] = []
        self.connecting: list[Connecting] = []
        self.unasked: set[object] = set()
        self.shapes: dict[object, object] = {}
        self.normalizers = Normalizers()

    def take(self, endpoint: Endpoint) -> Upstream | None:
        return self.idle.pop() if self.idle else None

    def connect(
        self, endpoint: Endpoint, ready: Callable[[Upstream], None], failed: Callable[[str], None]
    ) -> Connecting:
        self.connecting.append(Connecting(ready, failed))
        return self.connecting[-1]

    def new(self) -> Upstream:
        upstream = Upstream(self.idle.append, lambda upstream: None)
        upstream.connection_made(cast(asyncio.Transport, FakeTransport()))
        self.upstreams.append(upstream)
        return upstream


class World:
    """One client at a time; the dispatcher decides nothing by itself."""

    def __init__(self, limits: HttpLimits = LIMITS) -> None:
        self.endpoint = Endpoint("m", ADDRESS, timeouts=Timeouts(60.0, 30.0, 90.0))
        self.may_hold = self.may_retry = False
        self.open: list[PendingRequest] = []
        """Submitted, and neither finished nor abandoned."""
        self.waiting: list[PendingRequest] = []
        self.submitted = self.abandoned = 0
        self.outcomes: list[RequestOutcome] = []
        self.kept_alive: list[float] = []
        self.request: Request
        """The last one."""
        self.server = HttpServer(cast(Any, self), limits)
        self.pool = FakePool()
        self.server.pool = cast(Any, self.pool)
        self.connect_client()

    def connect_client(self) -> None:
        self.client = ClientConnection(self.server)
        self.transport = FakeTransport()
        self.client.connection_made(cast(asyncio.Transport, self.transport))

    # -- the dispatcher --

    def admit(self, token: bytes | None) -> Caller:
        return Caller("somebody")

    def public_response(self, method: bytes, path: bytes) -> None: ...

    def check_direct(self, model: str, caller: Caller, *, is_path: bool) -> None: ...

    def local_target(self, method: bytes, path: bytes, caller: Caller) -> Endpoint | GatewayResponse | None:
        return Endpoint("gateway", ADDRESS) if path.startswith(b"/api/") else None

    def submit(self, request: PendingRequest) -> None:
        assert isinstance(request, Request)
        self.submitted += 1
        self.open.append(request)
        self.waiting.append(request)
        self.request = request

    def abandon(self, request: PendingRequest, waited_s: float) -> None:
        self.waiting.remove(request)
        self.open.remove(request)
        self.abandoned += 1

    def hold(self, request: PendingRequest, *, was_sent: bool) -> bool:
        return self._wait_again(request, is_so=self.may_hold)

    def retry(self, request: PendingRequest, reason: FallbackReason) -> bool:
        return self._wait_again(request, is_so=self.may_retry)

    def _wait_again(self, request: PendingRequest, *, is_so: bool) -> bool:
        assert request in self.open and request not in self.waiting, "held, though nothing runs"
        if is_so:
            self.waiting.append(request)
        return is_so

    def sent(self, request: PendingRequest, prompt: bytes) -> None: ...

    def keep_alive(self, model: str, seconds: float, caller: Caller) -> None:
        self.kept_alive.append(seconds)

    def finish(self, request: PendingRequest, outcome: RequestOutcome) -> None:
        assert request not in self.waiting, "finished, though it was not granted"
        self.open.remove(request)
        self.outcomes.append(outcome)

    # -- what can happen --

    def send(self, data: bytes) -> None:
        self.client.data_received(data)

    def grant(self, *, pooled: bool = False, **changes: Any) -> None:
        if pooled and not self.pool.idle:
            upstream = self.pool.new()
            upstream._is_fresh = False
            self.pool.idle.append(upstream)
        if not pooled:
            self.pool.idle.clear()
        request = self.waiting.pop()
        request.granted(replace(self.endpoint, **changes), FakeRecorder())

    def reject(self) -> None:
        self.waiting.pop().rejected(Rejection(503, "queue_full", "Full.", 1.0))

    def wait_status(self) -> None:
        for request in self.waiting:
            request.update_wait_status(WaitStatus("loading m"))

    def connected(self) -> None:
        self.connecting().ready(self.pool.new())

    def unreachable(self) -> None:
        self.connecting().failed("refused")

    def connecting(self) -> Connecting:
        (only,) = [each for each in self.pool.connecting if not each.is_cancelled]
        self.pool.connecting.clear()
        return only

    def is_connecting(self) -> bool:
        return any(not each.is_cancelled for each in self.pool.connecting)

    def upstream(self) -> Upstream | None:
        """The connection that a response may come from."""
        live = [each for each in self.pool.upstreams if each.receiver is not None]
        assert len(live) < 2
        return live[0] if live else None

    def engine_sends(self, data: bytes) -> None:
        upstream = self.upstream()
        assert upstream is not None
        upstream.data_received(data)

    def engine_closes(self, exc: Exception | None = None) -> None:
        upstream = self.upstream()
        assert upstream is not None
        upstream.transport.close()
        upstream.connection_lost(exc)

    def client_leaves(self) -> None:
        self.transport.close()
        self.client.connection_lost(None)

    def client_half_closes(self) -> None:
        if not self.client.eof_received():
            self.client_leaves()

    def tick(self, after_s: float) -> None:
        self.request.tick(monotonic() + after_s)

    def settle(self) -> None:
        """As the loop does next: a transport that was closed is lost."""
        if self.transport.closed and self.client in self.server._clients:
            self.client.connection_lost(None)

    # -- what must hold at the end --

    def end(self) -> None:
        """The client leaves, and an engine that is not cancelled ends. Then nothing is left of anything."""
        self.client_leaves()
        if self.upstream() is not None:
            self.engine_closes(ConnectionResetError())
        assert not self.open and not self.waiting, "a request that never ended"
        assert self.submitted == len(self.outcomes) + self.abandoned, "one end for each submit"
        assert self.upstream() is None and not self.is_connecting(), "a connection that serves nobody"
        assert not self.server.buffers.used_bytes, "buffers that nobody uses"
        for request in self.server.leaving:
            assert request.is_done()

    def state(self) -> RequestState:
        return self.request.state
