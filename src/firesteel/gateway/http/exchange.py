"""One request and its response: submits it, sends it to the granted endpoint, and forwards the response.

Implements the dispatcher's `PendingRequest` and the upstream's `ResponseReceiver`. However it ends, it calls
`dispatcher.finish` once for each `submit`, or `abandon` if the client left while the request waited.
`reply.py` writes what the client receives.
"""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from firesteel.gateway.http.body import SEARCH_BYTES, Edit, ModelField, prompt_prefix
from firesteel.gateway.http.forward import (
    caller_headers,
    repeat_request,
    request_parts,
    without_encoding,
)
from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.http.responses import rejection_response
from firesteel.gateway.http.retries import Retries
from firesteel.gateway.http.routes import Route
from firesteel.gateway.http.upstream import PIECES, ChunkBoundaries, Upstream
from firesteel.gateway.http.usage import TAIL_BYTES, ResponseTail
from firesteel.gateway.interfaces import (
    Caller,
    Endpoint,
    FallbackReason,
    LatencyRecorder,
    OutcomeKind,
    Rejection,
    RequestOutcome,
    Timeouts,
    WaitStatus,
)
from firesteel.units import show_seconds

if TYPE_CHECKING:
    from firesteel.gateway.http.client_connection import ClientConnection

STOPPING = Rejection(503, "stopping", "the gateway is shutting down. Retry in a moment.", 5.0)
_KEPT_BYTES = 64 * 1024
"""Of a body, for a log that keeps prompts; it stores no more."""


class Exchange(Retries):
    """One request."""

    reserved_bytes = 0
    """Of the common buffers, for its body, when its client has left."""
    _recorder: LatencyRecorder | None = None
    _connecting: asyncio.Task[None] | None = None
    _prefix: int | None = None
    _waited_s = _commented = 0.0
    _extra_headers = b""
    _bytes_in = _bytes_out = 0
    _is_submitted = _is_over = False

    def __init__(self, client: ClientConnection, head: RequestHead, caller: Caller, began: float) -> None:
        self.path = head.path
        self.caller = caller
        self._client = client
        self._head = head
        self._began = self._last = began

    # -- submitting --

    def submit(self, route: Route, model_field: ModelField, body: bytes) -> None:
        self.model = model_field.model
        self._route, self._model_field, self.body = route, model_field, body
        self._tail = ResponseTail()
        self._bytes_in = len(body)
        self._is_submitted = True
        self._client.dispatcher.submit(self)
        if self._endpoint is None and not self._is_over:
            self._client.deadline = self._began + self._client.limits.hold_after_s

    def forward_to(self, endpoint: Endpoint, body: bytes) -> None:
        """Send it to an endpoint of the gateway itself, with the caller's name."""
        self.body = body
        self._tail = ResponseTail()
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
        self._last = monotonic()
        self._waited_s = self._last - self._began
        self._endpoint, self._recorder = endpoint, recorder
        if endpoint.speaks and self._translate(endpoint, self.model):
            return
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
        if self._has_head and not self._is_over and self._endpoint is None:
            self.write_comment()
            self._commented = monotonic()

    # -- called when the client's deadline has passed --

    def tick(self, now: float) -> float:
        """Write a comment if nothing else was written for a while, or give up. Return when to call again."""
        if self._arrivals:
            self._record_forwarded()
        limits, endpoint = self._client.limits, self._endpoint
        if self._route is None:
            return inf
        give_up_at = inf
        if endpoint is not None:
            self._wait_status = WaitStatus(f"{self.model} is processing the request")
            key, limit_s = self._silence_limit(endpoint.timeouts)
            give_up_at = self._last + limit_s
            if now >= give_up_at:
                self._time_out(key, limit_s)
                return inf
        must_hold = endpoint is None and not self._has_head
        pause_s = limits.hold_after_s if must_hold else limits.comment_every_s
        comment_at = max(self._last, self._commented) + pause_s
        if now >= comment_at and not self.is_leaving:
            if not self.write_comment() and not self._has_head:
                return give_up_at  # it does not stream, and just waits
            self._commented = now
            comment_at = now + limits.comment_every_s
        return min(comment_at, give_up_at)

    def _silence_limit(self, timeouts: Timeouts) -> tuple[str, float]:
        """The key of the limit in the service file, and its value."""
        if self._first_s is not None:
            return "gap", timeouts.gap_s
        if self._is_stream or self.expects_stream():
            return "first_byte", timeouts.first_byte_s
        return "answer", timeouts.answer_s

    def _time_out(self, key: str, limit_s: float) -> None:
        why = (
            f"`{self.model}` sent nothing for {show_seconds(limit_s)}. If it may take longer, set"
            f" `timeouts: {{{key}: {round(limit_s * 2)}s}}` for `{self.model}` in the service file."
        )
        if self.is_leaving:
            self._drop_upstream()
            self._finish("left", why)
            return
        self._settle_framing(self._upstream)
        self._drop_upstream()
        self._reject(Rejection(504, "engine_timeout", why, src=f"engine:{self.model}"), "broke")

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
            self._fail_upstream("engine_unreachable", f"cannot be reached: {why}", was_sent=self._has_retried)

    def _send(self, upstream: Upstream) -> None:
        endpoint = self._endpoint
        assert endpoint is not None
        self._upstream = upstream
        if self._translation is not None:
            upstream.send(self, self._translated_parts(self._translation, endpoint), is_head_only=False)
            return
        head, body, route = self._head, self.body, self._route
        edits: list[Edit] = []
        if endpoint.served_name is not None or endpoint.parameters is not None or (
            route is not None and route.has_usage and (len(body) > SEARCH_BYTES or b'"stream"' in body)
        ):  # fmt: skip
            found = self._edits(endpoint)
            if isinstance(found, Rejection):
                self._drop_upstream()
                self._reject(found, "refused")
                return
            edits = found
        if body and not edits and not self._has_head and not self._extra_headers:
            parts = repeat_request(head, endpoint, body)
        else:
            lines = without_encoding(head.lines) if self._has_head else head.lines
            parts = request_parts(head, endpoint, body, lines, self._extra_headers, edits)
        upstream.send(self, parts, is_head_only=head.method == b"HEAD")

    def _retry(self, reason: FallbackReason) -> bool:
        if self.is_leaving or not self._client.dispatcher.retry(self, reason):
            return False
        self._drop_upstream()
        self._await_grant()
        return True

    # -- called by the upstream --

    def response_started(self, head: ResponseHead) -> ChunkBoundaries:
        if self._upstream is not None and self._client.is_write_paused and not self.is_leaving:
            self._upstream.pause()
        if head.status >= 400 and (boundaries := self._retry_error(head)) is not None:
            return boundaries
        if self._filter is not None and self._translation is not None:
            return self._begin_translated(self._translation, head)
        if self._is_unasked and head.status == 200 and self._endpoint is not None:
            self._client.pool.unasked.add(self._endpoint.address)
        return self._join_stream(head) if self._has_head else self._begin(head)

    def body_received(self, piece: bytes) -> None:
        if self._arrivals:
            self._record_forwarded()
        now = monotonic()
        tail = self._tail
        if self._first_s is None:
            self._record_first(now)
        elif self._recorder is not None and self._is_stream:
            self._recorder.gap(now - self._last)
        self._last = now
        self._bytes_out += len(piece)
        tail.append(piece if len(piece) <= TAIL_BYTES else tail.end_of(piece))
        if len(tail) > PIECES:
            tail.trim()
        if self._is_direct:
            self._client.transport.write(piece)
        else:
            self._forward(piece)

    def _record_forwarded(self) -> None:
        """What the upstream has written by itself; the tail has it already."""
        arrivals = self._arrivals
        assert arrivals
        self._bytes_out += sum(map(len, self._tail[-len(arrivals) :]))
        if self._recorder is not None and self._is_stream:
            self._recorder.record_gaps(self._last, arrivals)
        self._last = arrivals[-1]
        arrivals.clear()

    def _record_first(self, now: float) -> None:
        if self._error_body is not None:
            return  # it may be sent to another model
        self._first_s = now - self._began
        self._drop_body()
        if self._is_stream:
            target = self._translation.target if self._translation is not None else self.path
            self._tail.is_response = target == b"/v1/responses"
            if self._recorder is not None:
                self._recorder.first(self._first_s)

    def _drop_body(self) -> None:
        """An answer has begun, so the request will not be sent again."""
        self.body = bytes(self.body[:_KEPT_BYTES]) if self._client.limits.keeps_bodies else b""
        is_sent = self._upstream is not None and not self._upstream.is_sending
        if self._client.reserved_bytes and is_sent:
            self._client.free_body()  # an engine may answer before it has read everything

    def response_ended(self) -> None:
        self._upstream = None
        if self.is_leaving:
            self._finish("left")
        elif self._error_head is not None and self._translation is not None:
            self._end_translated(self._translation.answer(self._error_head, self.model))
        elif self._error_head is not None and self._error_body is not None:
            self._end_kept_error(self._error_head, self._error_body)
        elif self._error_head is not None:
            rejection = self._engine_error(self._error_head, self.model)
            self._finish("whole", rejection.why)
            self._end_stream_with_error(rejection)
        else:
            if self._pending_head or self._adds_framing or self._filter is not None:
                self._write_end()
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
            self._settle_framing(upstream)
            self._fail_upstream("engine_broke", f"closed the connection: {why}", was_sent=True)

    # -- ending --

    def client_left(self) -> None:
        """End the request in the same turn of the loop. The engine is not cancelled with the policy `drain`,
        or if it has finished and its answer, with the token counts at the end, is on the way."""
        if self._is_over or self.is_leaving:
            return
        if self._is_submitted and self._endpoint is None:
            self._abandon()
        elif self._upstream is not None and self._endpoint is not None and (
            self._endpoint.policy == "drain" or (self._is_submitted and self._upstream.has_length())
        ):  # fmt: skip
            self.is_leaving = True
            self._is_direct = False
            self._upstream.stop_forwarding()
            self._client.watch_leaving(self)
            self._upstream.resume()
        else:
            self._drop_upstream()
            self._finish("left")

    def stop(self, rejection: Rejection = STOPPING) -> None:
        """End it before its response is complete; tell the client if the format allows it."""
        if self._is_over or self.is_leaving:
            return
        self._settle_framing(self._upstream)
        if self._is_submitted and self._endpoint is None:
            self._abandon()
        self._drop_upstream()
        self._reject(rejection, "refused")

    def pause(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        if self._arrivals:
            self._record_forwarded()
        self._last = monotonic()  # it was the client that was slow
        if self._upstream is not None:
            self._upstream.resume()

    def _abandon(self) -> None:
        self._is_over = True
        self._client.dispatcher.abandon(self, monotonic() - self._began)

    def is_over(self) -> bool:
        return self._is_over

    def _drop_upstream(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.drop()
        self._connecting = self._upstream = None

    def _fail_upstream(self, kind: str, why: str, *, was_sent: bool) -> None:
        if self._can_be_held() and self._client.dispatcher.hold(self, was_sent=was_sent):
            self._await_grant()
            return
        src = f"engine:{self.model}" if self._route is not None else "gateway"
        self._reject(Rejection(502, kind, f"the engine {why}", src=src), "broke")

    def _reject(self, rejection: Rejection, how: OutcomeKind) -> None:
        if self._has_head and not self._pending_head:
            self._finish(how, rejection.why)
            self._end_stream_with_error(rejection)
            return
        self._status = rejection.status
        self._finish(how, rejection.why)
        self._client.respond(rejection_response(rejection, self._route.family if self._route else "openai"))

    def _finish(self, how: OutcomeKind, why: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        if self.is_leaving:
            self._client.buffers.give(self.reserved_bytes)
        if not self._is_submitted:
            return
        if self._arrivals:
            self._record_forwarded()
        usage = self._tail.usage(self._is_stream, how == "whole")
        self._client.dispatcher.finish(self, RequestOutcome(
            how, self._status, usage, self._is_stream, self._bytes_in, self._bytes_out,
            self._waited_s, self._first_s, monotonic() - self._began, why,
        ))  # fmt: skip
