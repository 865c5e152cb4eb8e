"""Requests that reach a model's server as they are: its own paths, and WebSockets.

    GET  /v1/realtime?model=voice    a WebSocket, where the engine has one
    POST /upstream/comfy/prompt      POST /prompt of the server of `comfy`, if the file says `upstream: true`
    GET  /upstream/comfy/ws          its WebSocket

The model is loaded, granted and logged as for any other request. Nothing is read in what passes, so tokens
are not counted; keys with a limit of tokens may not do this (`dispatcher.check_direct`). After the server has
agreed to a WebSocket (101, with the right answer to the client's key), bytes go both ways until one side
closes, nothing passes for `timeouts: {gap: ...}`, or the gateway ends.
"""

from __future__ import annotations

import asyncio
import copy
import re
from base64 import b64encode
from dataclasses import dataclass, replace
from hashlib import sha1
from time import monotonic
from typing import Literal
from urllib.parse import unquote_to_bytes

from firesteel.gateway.http.exchange import STOPPING, Exchange
from firesteel.gateway.http.forward import request_parts
from firesteel.gateway.http.head import ProtocolError, RequestHead, ResponseHead
from firesteel.gateway.http.request_checks import model_in_query
from firesteel.gateway.http.routes import UPSTREAM_AT
from firesteel.gateway.http.upstream import ChunkBoundaries, Upstream
from firesteel.gateway.interfaces import Endpoint, LatencyRecorder, Rejection, Timeouts

_UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
_ACCEPTED = re.compile(rb"^sec-websocket-accept:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE | re.MULTILINE)
_WEBSOCKET_ID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, 1.3."""
_GOING_AWAY = b"\x88\x02\x03\xe9"
"""A close frame with code 1001, for a client that has received nothing for a while, so whole frames only."""
_DRAIN_IDLE_S = 1.0
"""When the gateway ends, a session that is silent for so long is closed."""
_CLOSE_S = 5.0
"""For the server to read what its client sent last."""


@dataclass(frozen=True, slots=True)
class DirectRequest:
    model: str
    head: RequestHead
    """As the server gets it."""
    path: bytes
    """For the log and the metrics: without what follows the model."""


def direct_request(head: RequestHead) -> DirectRequest | Rejection:
    if not head.path.startswith(UPSTREAM_AT):
        field = model_in_query(head)
        return field if isinstance(field, Rejection) else DirectRequest(field.model, head, head.path)
    segment, slash, rest = head.target[len(UPSTREAM_AT) :].partition(b"/")
    try:
        model = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        model = ""
    if not model or not slash:
        return Rejection(404, "unknown_path", "write it like /upstream/MODEL/path")
    head = copy.copy(head)
    head.target, head.forward_cache = b"/" + rest, None
    head.path = head.target.partition(b"?")[0]
    return DirectRequest(model, head, UPSTREAM_AT)


class DirectExchange(Exchange):
    """A request on a path that only the server knows: nothing of it is edited or translated."""

    def granted(self, endpoint: Endpoint, recorder: LatencyRecorder | None) -> None:
        super().granted(replace(endpoint, served_name=None, parameters=None, speaks=()), recorder)


class Tunnel(DirectExchange):
    """A WebSocket."""

    _is_open = False

    def _send(self, upstream: Upstream) -> None:
        assert self._endpoint is not None
        self._upstream = upstream
        upstream.tunnel_drained = self._client.resume
        head = self._head
        parts = request_parts(head, self._endpoint, b"", head.lines, _UPGRADE, [])
        upstream.send(self, parts, is_head_only=False)

    def response_started(self, head: ResponseHead) -> ChunkBoundaries:
        upstream, client = self._upstream, self._client
        assert upstream is not None
        if head.status != 101:
            upstream.tunnel_drained = None
            return super().response_started(head)
        accepted = _ACCEPTED.search(head.lines)
        digest = sha1(self._head.websocket_key + _WEBSOCKET_ID, usedforsecurity=False).digest()
        if accepted is None or accepted[1] != b64encode(digest):
            raise ProtocolError(502, "bad_answer", "`Sec-WebSocket-Accept` does not fit the client's key")
        self._is_open = self._has_head = True
        self._status, self._last = 101, monotonic()
        self._first_s = self._last - self._began
        client.transport.write(b"HTTP/1.1 101 Switching Protocols\r\n%b%b\r\n" % (head.lines, _UPGRADE))
        client.begin_tunnel(self._last + self._idle_s())
        return ChunkBoundaries.AS_THEY_COME

    # -- bytes --

    def body_received(self, piece: bytes) -> None:
        if not self._is_open:
            super().body_received(piece)
            return
        self._last = monotonic()
        self._bytes_out += len(piece)
        self._client.transport.write(piece)

    def client_sent(self, data: bytes) -> bool:
        """Return whether the client may send more; otherwise the client is resumed."""
        if self._upstream is None:
            return True
        self._last = monotonic()
        self._bytes_in += len(data)
        self._upstream.transport.write(data)
        return not self._upstream.is_sending

    # -- its end --

    def tick(self, now: float) -> float:
        if not self._is_open:
            return super().tick(now)
        closes_at = self._last + self._idle_s()
        if now >= closes_at:
            self._close("broke", "nothing passed for a while; `timeouts: {gap: ...}` sets how long")
        return closes_at

    def _idle_s(self) -> float:
        assert self._endpoint is not None
        return _DRAIN_IDLE_S if self._client.is_draining() else self._endpoint.timeouts.gap_s

    def _silence_limit(self, timeouts: Timeouts) -> tuple[str, float]:
        return "first_byte", timeouts.first_byte_s

    def write_comment(self) -> bool:
        return False

    def response_ended(self) -> None:
        if not self._is_open:
            super().response_ended()
            return
        self._upstream = None
        self._finish("whole")
        self._client.done(keep=False)

    def response_failed(self, why: str, *, is_retryable: bool) -> None:
        if not self._is_open:
            super().response_failed(why, is_retryable=is_retryable)
            return
        self._upstream = None
        self._finish("broke", why)
        self._client.done(keep=False)

    def client_left(self) -> None:
        if not self._is_open or self._is_over:
            super().client_left()
            return
        upstream, self._upstream = self._upstream, None
        if upstream is not None:  # what the client sent last, such as a close frame, still arrives
            upstream.receiver = None
            upstream.transport.close()
            asyncio.get_running_loop().call_later(_CLOSE_S, upstream.transport.abort)
        self._finish("whole")

    def stop(self, rejection: Rejection = STOPPING) -> None:
        if self._is_open and not self._is_over:
            self._close("refused", rejection.why)
        else:
            super().stop(rejection)

    def _close(self, how: Literal["broke", "refused"], why: str) -> None:
        self._drop_upstream()
        self._finish(how, why)
        self._client.transport.write(_GOING_AWAY)
        self._client.done(keep=False)
