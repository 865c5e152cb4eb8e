"""One request and its response: submits it, sends it to the granted endpoint, and forwards the response.

Implements the dispatcher's `PendingRequest` and the upstream's `ResponseReceiver`. However it ends, it calls
`dispatcher.finish` once for each `submit`, or `abandon` if the client left while the request waited.

If a response breaks after it has begun: an event stream gets an error event and a proper end, never a
`[DONE]`. Any other body is cut off by closing the connection, so that nobody takes it for complete.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from firesteel.gateway.http.body import ModelField, prompt_prefix, replace_model, wants_stream
from firesteel.gateway.http.chunks import LAST_CHUNK, encode_chunk
from firesteel.gateway.http.error_format import error_event, wait_comment
from firesteel.gateway.http.forward import (
    caller_headers,
    connection_header,
    request_parts,
    response_head,
    without_encoding,
)
from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.http.pool import Connecting
from firesteel.gateway.http.responses import STREAM_HEAD, rejection_response
from firesteel.gateway.http.routes import Route
from firesteel.gateway.http.upstream import ChunkBoundaries, Upstream
from firesteel.gateway.http.usage import find_usage
from firesteel.gateway.interfaces import (
    Caller,
    Endpoint,
    LatencyRecorder,
    OutcomeKind,
    Rejection,
    RequestOutcome,
    WaitStatus,
)

if TYPE_CHECKING:
    from firesteel.gateway.http.client_connection import ClientConnection

_TAIL_BYTES = 4096
_TAIL_PIECES = 32
"""The end of a response is kept, to find its token counts there."""
STOPPING = Rejection(503, "stopping", "the gateway is shutting down. Retry in a moment.", 5.0)


class Exchange:
    """One request."""

    # Defaults that most requests never change are class attributes: creating an exchange sets fewer fields.
    model = ""
    is_leaving = False
    body: bytes = b""
    """Unchanged, as the client sent it."""
    _model_field: ModelField | None = None
    _route: Route | None = None
    _endpoint: Endpoint | None = None
    _recorder: LatencyRecorder | None = None
    _upstream: Upstream | None = None
    _connecting: Connecting | None = None
    _timer: asyncio.TimerHandle | None = None
    _error_head: ResponseHead | None = None
    _wait_status = WaitStatus("waiting")
    _prefix: int | None = None
    _first_s: float | None = None
    _waited_s = 0.0
    _extra_headers = _first_piece = _pending_head = b""
    _bytes_in = _bytes_out = 0
    _status = 0
    _keeps_alive = True
    _is_submitted = _has_head = _adds_framing = _is_direct = _is_stream = _is_over = _has_retried = False

    def __init__(self, client: ClientConnection, head: RequestHead, caller: Caller, began: float) -> None:
        self.path = head.path
        self.caller = caller
        self._client = client
        self._head = head
        self._began = self._last = began
        self._tail: list[bytes] = []

    # -- submitting --

    def submit(self, route: Route, model_field: ModelField, body: bytes) -> None:
        self.model = model_field.model
        self._route, self._model_field, self.body = route, model_field, body
        self._bytes_in = len(body)
        self._is_submitted = True
        self._client.dispatcher.submit(self)
        must_wait = self._endpoint is None and not self._is_over
        if must_wait and route.is_streamable and self._head.is_11 and wants_stream(body):
            self._schedule_comment(self._client.limits.hold_after_s)

    def forward_to(self, endpoint: Endpoint, body: bytes) -> None:
        """Send it to an endpoint of the gateway itself, with the caller's name."""
        self.body = body
        self._extra_headers = caller_headers(self.caller, self._head.host)
        self.granted(endpoint, None)

    @property
    def prefix(self) -> int:
        """Computed only on demand: a model with one replica does not need it."""
        if self._prefix is None:
            self._prefix = prompt_prefix(self.body)
        return self._prefix

    @prefix.setter
    def prefix(self, value: int) -> None:
        self._prefix = value

    # -- called by the dispatcher --

    def granted(self, endpoint: Endpoint, recorder: LatencyRecorder | None) -> None:
        if self._is_over:
            return
        if self._timer is not None and not self._has_head:
            self._stop_timer()  # the engine responds soon: wait for its real status
        self._waited_s = monotonic() - self._began
        self._endpoint, self._recorder = endpoint, recorder
        upstream = self._client.pool.take(endpoint)
        if upstream is None:
            self._connect()
        else:
            self._send(upstream)

    def rejected(self, rejection: Rejection) -> None:
        if self._is_over:
            return
        self._waited_s = monotonic() - self._began
        self._reject(rejection, "refused")

    def update_wait_status(self, wait_status: WaitStatus) -> None:
        self._wait_status = wait_status
        if self._has_head and not self._is_over:
            self._client.transport.write(encode_chunk(wait_comment(wait_status)))

    # -- while it waits --

    def _schedule_comment(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._write_comment)

    def _write_comment(self) -> None:
        """Keep the connection alive; the first comment follows the head of the stream."""
        comment = encode_chunk(wait_comment(self._wait_status))
        if not self._has_head:
            self._has_head = self._is_stream = True
            self._status = 200
            self._keeps_alive = self._client.keeps_alive()
            comment = STREAM_HEAD % connection_header(is_11=True, keeps=self._keeps_alive) + comment
        self._client.transport.write(comment)
        self._schedule_comment(self._client.limits.comment_every_s)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- sending to the engine --

    def _connect(self) -> None:
        assert self._endpoint is not None
        self._connecting = self._client.pool.connect(self._endpoint, self._connected, self._unreachable)

    def _connected(self, upstream: Upstream) -> None:
        self._connecting = None
        if self._is_over:
            upstream.drop()
        else:
            self._send(upstream)

    def _unreachable(self, why: str) -> None:
        self._connecting = None
        if not self._is_over:
            self._fail_upstream("engine_unreachable", f"the engine cannot be reached: {why}")

    def _send(self, upstream: Upstream) -> None:
        assert self._endpoint is not None
        self._upstream = upstream
        upstream.send(self, self._request(self._endpoint), is_head_only=self._head.method == b"HEAD")

    def _request(self, endpoint: Endpoint) -> tuple[bytes, ...]:
        head, body = self._head, self.body
        if endpoint.served_name is not None and self._model_field is not None and body:
            body = replace_model(body, self._model_field, endpoint.served_name)
        lines = without_encoding(head.lines) if self._has_head else head.lines
        return request_parts(head, endpoint, body, lines, self._extra_headers)

    # -- called by the upstream --

    def response_started(self, head: ResponseHead) -> ChunkBoundaries:
        if self._upstream is not None and self._client.is_write_paused() and not self.is_leaving:
            self._upstream.pause()
        if self._has_head:
            return self._join_stream(head)
        request = self._head
        self._status = head.status
        self._is_stream = head.is_event_stream and not head.is_encoded
        has_end = head.is_chunked or head.length is not None or head.status in (204, 304)
        has_end = has_end or request.method == b"HEAD"
        self._adds_framing = request.is_11 and not has_end
        self._keeps_alive = self._client.keeps_alive() and (
            request.is_11 or (has_end and not head.is_chunked)
        )
        if self.is_leaving:
            return ChunkBoundaries.AS_THEY_COME
        self._has_head = True
        self._pending_head = response_head(
            head,
            connection_header(is_11=request.is_11, keeps=self._keeps_alive),
            is_chunked=request.is_11 and (head.is_chunked or self._adds_framing),
            is_stream=self._is_stream,
        )
        if not request.is_11:
            return ChunkBoundaries.WITHOUT_FRAMING
        return ChunkBoundaries.WHOLE_CHUNKS if self._is_stream else ChunkBoundaries.AS_THEY_COME

    def _join_stream(self, head: ResponseHead) -> ChunkBoundaries:
        """The client already has a head; the response must match it, or becomes an error event."""
        if head.status != 200 or not head.is_event_stream or head.is_encoded:
            self._error_head = head
            return ChunkBoundaries.WITHOUT_FRAMING
        self._adds_framing = not head.is_chunked
        return ChunkBoundaries.WHOLE_CHUNKS

    def flush(self) -> None:
        if self._pending_head:
            pending, self._pending_head = self._pending_head, b""
            self._client.transport.write(pending)

    def body_received(self, piece: bytes) -> None:
        now = monotonic()
        if self._first_s is None:
            self._record_first(piece, now)
        elif self._recorder is not None and self._is_stream:
            self._recorder.gap(now - self._last)
        self._last = now
        self._bytes_out += len(piece)
        tail = self._tail
        tail.append(piece if len(piece) <= _TAIL_BYTES else piece[-_TAIL_BYTES:])
        if len(tail) > _TAIL_PIECES:
            del tail[: _TAIL_PIECES // 2]
        if self._is_direct:
            self._client.transport.write(piece)
        else:
            self._forward(piece)

    def _forward(self, piece: bytes) -> None:
        """The first piece is written together with the head; later ones are written directly if possible."""
        if self.is_leaving or self._error_head is not None:
            return
        if self._adds_framing:
            piece = encode_chunk(piece)
        else:
            self._is_direct = True
        if self._pending_head:
            piece, self._pending_head = self._pending_head + piece, b""
        self._client.transport.write(piece)

    def _record_first(self, piece: bytes, now: float) -> None:
        self._first_s = now - self._began
        self._first_piece = piece
        if not self._client.limits.keeps_bodies:
            self.body = b""  # it will not be sent again
        self._stop_timer()
        if self._recorder is not None and self._is_stream:
            self._recorder.first(self._first_s)

    def response_ended(self) -> None:
        self._upstream = None
        if self.is_leaving:
            self._finish("left")
        elif self._error_head is not None:
            self._end_stream_with_error(self._engine_error(self._error_head), "whole")
        else:
            self.flush()
            if self._adds_framing:
                self._client.transport.write(LAST_CHUNK)
            self._finish("whole")
            self._client.done(keep=self._keeps_alive)

    def response_failed(self, why: str, *, is_retryable: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if self.is_leaving:
            self._finish("left", why)
        elif is_retryable and not self._has_retried:
            self._has_retried = True
            self._connect()
        else:
            self._adds_framing = self._adds_framing or (upstream is not None and upstream.is_between_chunks())
            self._fail_upstream("engine_broke", f"the engine closed the connection: {why}")

    # -- ending --

    def client_left(self) -> None:
        """End the request in the same turn of the loop; with the policy `drain` the engine is not
        cancelled."""
        if self._is_over or self.is_leaving:
            return
        self._stop_timer()
        if self._is_submitted and self._endpoint is None:
            self._is_over = True
            self._client.dispatcher.abandon(self, monotonic() - self._began)
        elif self._upstream is not None and self._endpoint is not None and self._endpoint.policy == "drain":
            self.is_leaving = True
            self._is_direct = False
            self._upstream.resume()
        else:
            self._drop_upstream()
            self._finish("left")

    def stop(self, rejection: Rejection = STOPPING) -> None:
        """End it before its response is complete; tell the client if the format allows it."""
        if self._is_over or self.is_leaving:
            return
        self._stop_timer()
        upstream = self._upstream
        self._adds_framing = self._adds_framing or (upstream is not None and upstream.is_between_chunks())
        if self._is_submitted and self._endpoint is None:
            self._is_over = True
            self._client.dispatcher.abandon(self, monotonic() - self._began)
        self._drop_upstream()
        self._reject(rejection, "refused")

    def pause(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def _drop_upstream(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.drop()
        self._connecting = self._upstream = None

    def _fail_upstream(self, kind: str, why: str) -> None:
        if self._can_be_held() and self._client.dispatcher.hold(self):
            self._endpoint, self._has_retried = None, False
            if self._timer is None and self._head.is_11 and wants_stream(self.body):
                self._schedule_comment(self._client.limits.hold_after_s)
            return
        src = f"engine:{self.model}" if self._route is not None else "gateway"
        self._reject(Rejection(502, kind, why, src=src), "broke")

    def _can_be_held(self) -> bool:
        """Whether nothing of an answer has reached the client, so that it may wait for another one."""
        if self._pending_head:
            self._pending_head, self._has_head, self._status = b"", False, 0
        is_silent = self._first_s is None and self._error_head is None and self._route is not None
        return is_silent and (not self._has_head or (self._is_stream and self._head.is_11))

    def _engine_error(self, head: ResponseHead) -> Rejection:
        text = b"".join(self._tail)[:512].decode("utf-8", "replace").strip()
        status = head.status if head.status >= 400 else 502
        why = f"the engine answered HTTP {head.status}: {text}"
        return Rejection(status, "engine_error", why, src=f"engine:{self.model}")

    def _reject(self, rejection: Rejection, how: OutcomeKind) -> None:
        if self._has_head and not self._pending_head:
            self._end_stream_with_error(rejection, how)
            return
        self._status = rejection.status
        self._finish(how, rejection.why)
        self._client.respond(rejection_response(rejection, self._route.family if self._route else "openai"))

    def _end_stream_with_error(self, rejection: Rejection, how: OutcomeKind) -> None:
        """Send the error in the stream, unless the client has received a part of a chunk."""
        is_open = self._adds_framing or self._has_own_head() or not self._head.is_11
        can_send_event = self._is_stream and self._route is not None and is_open
        self._finish(how, rejection.why)
        if not can_send_event or self._route is None:
            self._client.abort()
            return
        event = b"\n\n" + error_event(rejection, self._route)
        self._client.transport.write(encode_chunk(event) + LAST_CHUNK if self._head.is_11 else event)
        self._client.done(keep=self._keeps_alive and self._head.is_11)

    def _has_own_head(self) -> bool:
        """Whether the head is ours and nothing from the engine has followed it."""
        return self._first_s is None or self._error_head is not None

    def _finish(self, how: OutcomeKind, why: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        self._stop_timer()
        if not self._is_submitted:
            return
        tail = b"".join(self._tail)[-_TAIL_BYTES:]
        usage = find_usage(tail, self._is_stream, self._first_piece) if tail else None
        self._client.dispatcher.finish(self, RequestOutcome(
            how, self._status, usage, self._is_stream, self._bytes_in, self._bytes_out,
            self._waited_s, self._first_s, monotonic() - self._began, why,
        ))  # fmt: skip
