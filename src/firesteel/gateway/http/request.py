"""One request from its arrival to its end: the states it passes through, and all decisions about it.

`DESIGN.md` has the table of states and events. Bytes are moved by three parts: `request_body.py` has what
the client sent, `attempt.py` one try at one endpoint, `reply.py` what the client gets. Implements the
dispatcher's `PendingRequest` and the upstream's `ResponseReceiver`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from functools import partial
from math import inf
from time import monotonic
from typing import Protocol

from firesteel.gateway.http.attempt import Attempt, Judgement, MeteredAttempt, Reshape, Retry, judge
from firesteel.gateway.http.body import ModelField
from firesteel.gateway.http.direct import DRAIN_IDLE_S, GOING_AWAY, UPGRADE, switching_head
from firesteel.gateway.http.head import ProtocolError, RequestHead, ResponseHead
from firesteel.gateway.http.limits import BufferBudget, HttpLimits
from firesteel.gateway.http.messages import (
    caller_headers,
    content_type,
    fallback_header,
    repeat_request,
    request_parts,
    without_encoding,
)
from firesteel.gateway.http.normalize import user_agent
from firesteel.gateway.http.reply import EMPTY, OPEN, Reply, ReplyClient
from firesteel.gateway.http.request_body import KEPT_BYTES, EndpointBody, RequestBody
from firesteel.gateway.http.routes import Route
from firesteel.gateway.http.translation import EVENTS, Dialect, OllamaCall, estimated_count
from firesteel.gateway.http.upstream import ChunkBoundaries, ConnectionPool, Upstream
from firesteel.gateway.interfaces import (
    Allowance,
    Caller,
    Dispatcher,
    Endpoint,
    FallbackReason,
    GatewayResponse,
    LatencyRecorder,
    OutcomeKind,
    Rejection,
    RequestOutcome,
    WaitStatus,
)
from firesteel.gateway.translate.shape import SystemRole
from firesteel.units import show_seconds

_GENERATES = frozenset(("chat", "completion", "response", "message"))
"""Kinds of routes with conversations and prompts, whose errors 400 are read."""
_NO_SUCH_PATH = (404, 405, 501)
STOPPING = Rejection(503, "stopping", "the gateway is shutting down. Retry in a moment.", 5.0)


class RequestState(Enum):
    NEW = "new"
    WAITING = "waiting"
    """For the dispatcher to grant or reject it."""
    CONNECTING = "connecting"
    SENT = "sent"
    """To an engine that has not answered."""
    KEEPING = "keeping"
    """An error that another model may not make; decided when all of it is here."""
    COLLECTING = "collecting"
    """A response that cannot be passed on as it arrives: it is translated as a whole, or is an error for a
    client that already receives a stream."""
    ANSWERING = "answering"
    TUNNELING = "tunneling"
    """A WebSocket: bytes go both ways."""
    DRAINING = "draining"
    """The client has left, and the rest of the response is read and discarded."""
    DONE = "done"


NEW, WAITING, CONNECTING, SENT, KEEPING, COLLECTING, ANSWERING, TUNNELING, DRAINING, DONE = RequestState


class RequestClient(ReplyClient, Protocol):
    """The connection of the client, as its request uses it."""

    dispatcher: Dispatcher
    pool: ConnectionPool
    limits: HttpLimits
    buffers: BufferBudget
    deadline: float
    """When `tick` is called."""
    is_write_paused: bool

    @property
    def reserved_bytes(self) -> int:
        """Of the common buffers, for the body."""

    def free_body(self) -> None:
        """The body was sent, or will not be."""

    def is_draining(self) -> bool: ...

    def watch_leaving(self, request: Request) -> None:
        """Keep its time limits and its body when this connection is closed."""

    def begin_tunnel(self, deadline: float) -> None:
        """From here on the client's bytes are passed to `client_sent`."""

    def resume(self) -> None:
        """Read from the client again."""


class Request:
    """The only caller of `dispatcher.submit`, `abandon` and `finish`: for each `submit` one of the others."""

    # Defaults that most requests never change are class attributes: creating one sets fewer fields.
    state = NEW
    model = ""
    reserved_bytes = 0
    """Of the common buffers, for its body, when its client has left."""
    _attempt: Attempt | None = None
    _route: Route | None = None
    """None: a path of the gateway itself."""
    _dialect: Dialect = EVENTS
    _wait_status = WaitStatus("waiting")
    _extra_headers = b""
    _bytes_in = 0
    _new_attempt: Callable[[Endpoint, LatencyRecorder | None, EndpointBody], Attempt] = Attempt
    _waits_since = _waited_s = _commented = 0.0
    _body: RequestBody
    _reply: Reply

    def __init__(self, client: RequestClient, head: RequestHead, caller: Caller, began: float) -> None:
        self.path = head.path
        self.caller = caller
        self._client = client
        self._head = head
        self._began = began

    # -- submitting --

    def submit(
        self,
        route: Route,
        model_field: ModelField,
        body: bytes,
        dialect: Dialect = EVENTS,
        call: OllamaCall | None = None,
    ) -> None:
        client, head = self._client, self._head
        self.model = model_field.model
        self._route, self._dialect = route, dialect
        self._body = RequestBody(body, head.path, route, model_field, call)
        self._reply = Reply(client, head, route, dialect)
        self._bytes_in = len(body)
        if head.websocket_key:
            self._extra_headers = UPGRADE
        self.state = WAITING
        client.dispatcher.submit(self)
        if self.state is WAITING:
            self._waits_since = self._began
            client.deadline = self._began + client.limits.hold_after_s

    def forward_to(self, endpoint: Endpoint, body: bytes) -> None:
        """Send it to an endpoint of the gateway itself, with the caller's name. It is never submitted."""
        self._body = RequestBody(body)
        self._reply = Reply(self._client, self._head, None, EVENTS)
        self._extra_headers = caller_headers(self.caller, self._head.host)
        self._try(endpoint, None)

    @property
    def prefix(self) -> int:
        return self._body.prefix

    @property
    def agent(self) -> str:
        return user_agent(self._head)

    @property
    def body(self) -> bytes:
        return self._body.content

    def is_done(self) -> bool:
        return self.state is DONE

    # -- events of the dispatcher --

    def granted(self, endpoint: Endpoint, recorder: LatencyRecorder | None) -> None:
        if self.state is WAITING:
            adapt = self._dialect.adapt
            self._try(endpoint if adapt is None else adapt(endpoint), recorder)

    def rejected(self, rejection: Rejection) -> None:
        if self.state is WAITING:
            self._waited_s = monotonic() - self._began
            self._answer(rejection, "refused")

    def update_wait_status(self, wait_status: WaitStatus) -> None:
        self._wait_status = wait_status
        if self.state is WAITING and self._reply.state is OPEN:
            self.write_comment()
            self._commented = monotonic()

    def falls_back(self, model: str, fallback: str, reason: FallbackReason) -> None:
        if self.state is not WAITING:
            return
        self._reply.extra_headers = fallback_header(model, fallback, reason)
        if self._reply.state is OPEN:
            self._wait_status = WaitStatus(f"{fallback} answers in place of {model} ({reason})")
            self.write_comment()

    def meter(self, allowance: Allowance) -> None:
        self._new_attempt = partial(MeteredAttempt, self.path, allowance, self._extend)

    def _extend(self) -> bool:
        """Whether a metered stream may go on; if not, it ends when what it may have is written."""
        why = self._client.dispatcher.extend(self) if self.state is ANSWERING else None
        if why is not None:
            asyncio.get_running_loop().call_soon(self._end_metered, self._attempt, why)
        return why is None

    def _end_metered(self, attempt: Attempt | None, why: Rejection) -> None:
        if self.state is ANSWERING and self._attempt is attempt:
            self._reply.flush()
            self.stop(why)

    def stop(self, rejection: Rejection = STOPPING) -> None:
        """End it before its response is complete; tell the client if the format allows it."""
        if self.state in (DRAINING, DONE):
            return
        if self.state is WAITING:
            self._abandon()
            self._reply.answer(rejection)
        elif self.state is TUNNELING and self._attempt is not None:
            self._close_tunnel(self._attempt, "refused", rejection.why)
        else:
            self._answer(rejection, "refused")

    # -- events of the client's connection --

    def client_left(self) -> None:
        """End the request in the same turn of the loop. The engine is not cancelled with the policy `drain`,
        or if it has finished and its answer, with the token counts at the end, is on the way."""
        attempt = self._attempt
        if self.state is WAITING:
            self._abandon()
        elif self.state in (DRAINING, DONE) or attempt is None:
            return
        elif self.state is TUNNELING:
            attempt.finish_sending()
            self._finish("whole")
        elif attempt.upstream is not None and (
            attempt.endpoint.policy == "drain"
            or (self._route is not None and attempt.is_whole_answer_coming())
        ):
            self.state = DRAINING
            attempt.stop_forwarding()
            self._client.watch_leaving(self)
            attempt.resume()
        else:
            has_all = self.state is ANSWERING and attempt.has_last_event()
            attempt.drop()
            self._finish("whole" if has_all else "left")

    def client_sent(self, data: bytes) -> bool:
        """Bytes of a WebSocket. Return whether the client may send more; otherwise it is resumed."""
        if self.state is not TUNNELING or self._attempt is None:
            return True
        self._bytes_in += len(data)
        return self._attempt.send_more(data)

    def pause(self) -> None:
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        if self._attempt is not None:
            self._attempt.resume()

    def write_comment(self) -> bool:
        """Show the client that its request is alive, if that is possible now."""
        if self.state not in (WAITING, CONNECTING, SENT, ANSWERING):
            return False
        reply = self._reply
        if reply.state is EMPTY:
            if not self._expects_stream():
                return False
            reply.open_stream()
        elif not self._is_between_events():
            return False
        reply.write_comment(self._wait_status)
        return True

    def _is_between_events(self) -> bool:
        """Whether the client has received whole events only, or none yet."""
        reply, attempt = self._reply, self._attempt
        if reply.state is not OPEN or not reply.is_stream:
            return False
        if attempt is None or reply.is_filtered():
            return True
        return attempt.is_between_events(is_framed=reply.is_framed())

    def tick(self, now: float) -> float:
        """Its deadline has passed: write a comment if nothing else was written for a while, or give up.
        Return when to call again."""
        if self.state is DONE or self._route is None:
            return inf
        attempt = self._attempt
        if self.state is WAITING or attempt is None:
            return self._comment_when_due(now, self._waits_since)
        attempt.measure_forwarded()
        key, limit_s = self._silence_limit(attempt)
        give_up_at = attempt.last + limit_s
        if now >= give_up_at:
            self._time_out(attempt, key, limit_s)
            return inf
        if self.state in (TUNNELING, DRAINING):
            return give_up_at
        self._wait_status = WaitStatus(f"{self.model} is processing the request")
        return min(self._comment_when_due(now, attempt.last), give_up_at)

    def _comment_when_due(self, now: float, since: float) -> float:
        limits = self._client.limits
        is_empty = self._reply.state is EMPTY
        holds = self.state is WAITING and is_empty
        due = max(since, self._commented) + (limits.hold_after_s if holds else limits.comment_every_s)
        if now < due:
            return due
        if not self.write_comment() and is_empty:
            return inf  # it does not stream, and just waits
        self._commented = now
        return now + limits.comment_every_s

    def _silence_limit(self, attempt: Attempt) -> tuple[str, float]:
        """The key of the limit in the service file, and its value."""
        timeouts = attempt.endpoint.timeouts
        if attempt.first_s is not None:
            if self.state is TUNNELING and self._client.is_draining():
                return "gap", min(DRAIN_IDLE_S, timeouts.gap_s)
            return "gap", timeouts.gap_s
        if attempt.is_stream or self._expects_stream() or self._head.websocket_key:
            return "first_byte", timeouts.first_byte_s
        return "answer", timeouts.answer_s

    def _time_out(self, attempt: Attempt, key: str, limit_s: float) -> None:
        if self.state is TUNNELING:
            self._close_tunnel(
                attempt, "broke", "nothing passed for a while; `timeouts: {gap: ...}` sets how long"
            )
            return
        why = (
            f"`{self.model}` sent nothing for {show_seconds(limit_s)}. If it may take longer, set"
            f" `timeouts: {{{key}: {round(limit_s * 2)}s}}` for `{self.model}` in the service file."
        )
        if self.state is DRAINING:
            attempt.drop()
            self._finish("left", why)
        else:
            self._answer(Rejection(504, "engine_timeout", why, src=f"engine:{self.model}"), "broke")

    def _expects_stream(self) -> bool:
        """Whether the client understands an event stream as the response."""
        return self._head.is_11 and self._body.wants_stream()

    # -- a try at an endpoint --

    def _try(self, endpoint: Endpoint, recorder: LatencyRecorder | None) -> None:
        pool = self._client.pool
        if pool.shapes or endpoint.moves_system:
            shape = pool.shapes.get((endpoint.address, self.model))
            if shape is not None or self._body.needs_shape(endpoint):
                self._body.reshape(shape or "first")
        if (pool.normalizers.on or self._head.asks_normalized) and self._route is not None:
            apply, head, kind = pool.normalizers.apply, self._head, self._route.kind
            self._body.normalize = lambda body: apply(head, kind, endpoint, body)
        body = self._body.for_endpoint(endpoint, self.model, asks_counts=endpoint.address not in pool.unasked)
        if not isinstance(body, EndpointBody):
            self._waited_s = monotonic() - self._began
            self._answer(body, "refused" if isinstance(body, Rejection) else "whole")
            return
        self._attempt = attempt = self._new_attempt(endpoint, recorder, body)
        self._waited_s = attempt.last - self._began
        upstream = pool.take(endpoint)
        if upstream is None:
            self._connect(attempt)
        else:
            self._send(attempt, upstream)

    def _connect(self, attempt: Attempt) -> None:
        self.state = CONNECTING
        attempt.connecting = self._client.pool.connect(attempt.endpoint, self.connected, self.unreachable)

    def _send(self, attempt: Attempt, upstream: Upstream) -> None:
        self.state = SENT
        head, endpoint, content, body = self._head, attempt.endpoint, self._body.content, attempt.body
        if body.translation is not None:
            parts = body.translation.request_parts(head, endpoint)
        elif content and not body.edits and not self._extra_headers and self._reply.state is not OPEN:
            parts = repeat_request(head, endpoint, content)
        else:
            lines = without_encoding(head.lines) if self._reply.state is OPEN else head.lines
            parts = request_parts(head, endpoint, content, lines, self._extra_headers, body.edits)
        on_drained = self._client.resume if head.websocket_key else None
        attempt.upstream = upstream
        upstream.send(self, parts, is_head_only=head.method == b"HEAD", on_drained=on_drained)
        if content and self._route is not None and self._route.kind in _GENERATES:
            self._client.dispatcher.sent(self, self._body.prompt(body))

    # -- events of the pool --

    def connected(self, upstream: Upstream) -> None:
        attempt = self._attempt
        if self.state is CONNECTING and attempt is not None:
            attempt.connecting = None
            self._send(attempt, upstream)
        else:
            upstream.drop()

    def unreachable(self, why: str) -> None:
        attempt = self._attempt
        if self.state is CONNECTING and attempt is not None:
            attempt.connecting = None
            self._fail("engine_unreachable", f"cannot be reached: {why}", was_sent=attempt.has_reconnected)

    # -- events of the upstream --

    def response_started(self, head: ResponseHead) -> ChunkBoundaries:
        attempt = self._attempt
        assert attempt is not None
        attempt.is_stream = head.is_stream
        if self.state is DRAINING:
            self._reply.status = self._reply.status or head.status
            return ChunkBoundaries.AS_THEY_COME
        if self._client.is_write_paused:
            attempt.pause()
        if head.status == 200:
            if attempt.was_changed:
                self._remember_changes(attempt)
        elif head.status == 101:
            return self._open_tunnel(attempt, head)
        elif head.status >= 400 and (boundaries := self._take_error(attempt, head)) is not None:
            return boundaries
        reply, body = self._reply, attempt.body
        stream_head = head if body.translation is None else body.translation.stream_head(head)
        if stream_head is None or (reply.state is OPEN and (head.status != 200 or not head.is_stream)):
            return self._collect(attempt, head, COLLECTING)
        self.state = ANSWERING
        return reply.begin(stream_head, attempt.new_filter() if head.is_stream else None)

    def _remember_changes(self, attempt: Attempt) -> None:
        """Other requests to this server are sent at once as this one was accepted."""
        pool, address = self._client.pool, attempt.endpoint.address
        if attempt.without_counts:
            pool.unasked.add(address)
        if attempt.shape is not None:
            pool.shapes[address, self.model] = attempt.shape

    def _take_error(self, attempt: Attempt, head: ResponseHead) -> ChunkBoundaries | None:
        """None: the client gets it."""
        if head.status in _NO_SUCH_PATH and self._route is not None and self._route.kind == "count":
            self._answer(estimated_count(self.path, self._body.content), "whole")
            return ChunkBoundaries.AS_THEY_COME
        judgement = judge(head.status, None, attempt, nothing_sent=self._nothing_sent(attempt))
        if judgement is Judgement.KEEP and self._route is not None and self._route.kind in _GENERATES:
            return self._collect(attempt, head, KEEPING)
        if judgement is Judgement.ASK_AGAIN and self._ask_without_counts(attempt):
            return ChunkBoundaries.AS_THEY_COME
        if isinstance(judgement, Retry) and self._client.dispatcher.retry(self, judgement.reason):
            self._await_grant()
            return ChunkBoundaries.AS_THEY_COME
        return None

    def _collect(self, attempt: Attempt, head: ResponseHead, state: RequestState) -> ChunkBoundaries:
        self.state = state
        attempt.collect(head)
        return ChunkBoundaries.WITHOUT_FRAMING

    def body_received(self, piece: bytes) -> None:
        attempt, state = self._attempt, self.state
        assert attempt is not None
        if state is TUNNELING:
            attempt.pass_through(piece)
            self._reply.forward(piece)
            return
        piece = attempt.take(piece)
        if attempt.first_s is None and state is not KEEPING:  # an answer has begun: nothing is sent again
            client, body = self._client, self._body
            body.content = bytes(body.content[:KEPT_BYTES]) if client.limits.keeps_bodies else b""
            if client.reserved_bytes and not attempt.is_sending():
                client.free_body()  # an engine may answer before it has read everything
            attempt.first_s = first_s = attempt.last - self._began
            if attempt.is_stream:
                attempt.begin_stream(first_s, self.path)
                if state is ANSWERING and self._reply.is_direct():
                    attempt.forward_to(client.transport.write)
        if state is ANSWERING:
            self._reply.forward(piece)
        elif state is not DRAINING:
            attempt.keep(piece)

    def flush(self) -> None:
        if self.state is ANSWERING:
            self._reply.flush()

    def response_ended(self) -> None:
        attempt = self._attempt
        assert attempt is not None
        attempt.upstream = None
        if self.state is ANSWERING:
            self._finish("whole")
            self._reply.end()
        elif self.state is KEEPING:
            self._end_kept(attempt)
        elif self.state is COLLECTING:
            self._answer(attempt.answer(self.model), "whole")
        elif self.state is TUNNELING:
            self._finish("whole")
            self._reply.close()
        elif self.state is DRAINING:
            self._finish("left")

    def response_failed(self, why: str, *, is_retryable: bool) -> None:
        attempt = self._attempt
        assert attempt is not None
        if self.state is DRAINING:
            self._finish("left", why)
        elif self.state is TUNNELING:
            self._finish("broke", why)
            self._reply.close()
        elif is_retryable and not attempt.has_reconnected:
            attempt.has_reconnected = True
            attempt.upstream = None
            self._connect(attempt)
        else:
            self._fail("engine_broke", f"closed the connection: {why}", was_sent=True)

    # -- another try --

    def _nothing_sent(self, attempt: Attempt) -> bool:
        """Whether no part of an answer has reached the client, so that it may get a different one."""
        return self._route is not None and attempt.first_s is None and self._reply.takes_another()

    def _ask_without_counts(self, attempt: Attempt) -> bool:
        body = self._body.for_endpoint(attempt.endpoint, self.model, asks_counts=False)
        if not isinstance(body, EndpointBody):
            return False
        attempt.drop()
        attempt.body, attempt.was_changed, attempt.without_counts = body, True, True
        self._connect(attempt)
        return True

    def _send_reshaped(self, attempt: Attempt, system: SystemRole) -> bool:
        """Another try at the same endpoint: its template refused the shape of the conversation."""
        if not self._body.reshape(system):
            return False
        body = self._body.for_endpoint(
            attempt.endpoint, self.model, asks_counts=attempt.body.usage is not None
        )
        if not isinstance(body, EndpointBody):
            return False
        self._attempt = again = self._new_attempt(attempt.endpoint, attempt.recorder, body)
        again.was_changed, again.shape, again.without_counts = True, system, attempt.without_counts
        self._connect(again)
        return True

    def _end_kept(self, attempt: Attempt) -> None:
        """A longer context or another shape may do; any other error is the client's."""
        head, body = attempt.collected()
        judgement = judge(head.status, body, attempt, nothing_sent=self._nothing_sent(attempt))
        if isinstance(judgement, Retry) and self._client.dispatcher.retry(self, judgement.reason):
            self._await_grant()
            return
        if isinstance(judgement, Reshape) and self._send_reshaped(attempt, judgement.system):
            return
        error = attempt.engine_error(self.model)
        if attempt.body.translation is not None and error.kind == "engine_error":
            self._answer(attempt.answer(self.model), "whole")
        elif self._reply.state is OPEN or error.kind != "engine_error":
            self._answer(error, "whole", error.why)
        else:
            self._answer(GatewayResponse(head.status, body, content_type(head)), "whole", error.why)

    def _fail(self, kind: str, why: str, *, was_sent: bool) -> None:
        attempt = self._attempt
        if (
            attempt is not None
            and self._nothing_sent(attempt)
            and self._client.dispatcher.hold(self, was_sent=was_sent)
        ):
            self._await_grant()
            return
        src = f"engine:{self.model}" if self._route is not None else "gateway"
        self._answer(Rejection(502, kind, f"the engine {why}", src=src), "broke")

    def _await_grant(self) -> None:
        if self._attempt is not None:
            self._attempt.drop()
        self._attempt = None
        self._reply.retract()
        self.state, self._waits_since = WAITING, monotonic()
        self._client.deadline = self._waits_since + self._client.limits.hold_after_s

    # -- a WebSocket --

    def _open_tunnel(self, attempt: Attempt, head: ResponseHead) -> ChunkBoundaries:
        if self._reply.state is OPEN:
            raise ProtocolError(502, "bad_answer", "101 cannot follow the head of a stream")
        answer = switching_head(head, self._head.websocket_key)
        self.state = TUNNELING
        attempt.last = monotonic()
        attempt.first_s = attempt.last - self._began
        self._reply.switch_protocols(answer)
        self._client.begin_tunnel(attempt.last + self._silence_limit(attempt)[1])
        return ChunkBoundaries.AS_THEY_COME

    def _close_tunnel(self, attempt: Attempt, how: OutcomeKind, why: str) -> None:
        attempt.drop()
        self._finish(how, why)
        self._reply.close(GOING_AWAY)

    # -- its end --

    def _abandon(self) -> None:
        self.state = DONE
        self._client.dispatcher.abandon(self, monotonic() - self._began)

    def _answer(self, answer: GatewayResponse | Rejection, how: OutcomeKind, why: str = "") -> None:
        """End it with a response of the gateway itself."""
        reply, attempt = self._reply, self._attempt
        follows_chunk = attempt is not None and attempt.is_between_chunks()
        if attempt is not None:
            attempt.drop()
        if reply.state is not OPEN:
            reply.status = answer.status
        self._finish(how, answer.why if isinstance(answer, Rejection) else why)
        reply.answer(answer, follows_chunk=follows_chunk)

    def _finish(self, how: OutcomeKind, why: str = "") -> None:
        """The end of every request that was granted or rejected."""
        client, attempt, reply = self._client, self._attempt, self._reply
        self.state, self._attempt = DONE, None
        if self.reserved_bytes:
            client.buffers.give(self.reserved_bytes)
        if self._route is None:
            return
        if attempt is None:
            usage, is_stream, bytes_out, first_s = None, reply.is_stream, 0, None
        else:
            usage = attempt.usage(is_whole=how == "whole")
            is_stream = reply.is_stream or attempt.is_stream
            bytes_out, first_s = attempt.bytes_out, attempt.first_s
        client.dispatcher.finish(self, RequestOutcome(
            how, reply.status, usage, is_stream, self._bytes_in, bytes_out,
            self._waited_s, first_s, monotonic() - self._began, why, normalized=self._body.normalized,
        ))  # fmt: skip
        if self._dialect.keep_alive_s is not None and how != "refused":
            client.dispatcher.keep_alive(self.model, self._dialect.keep_alive_s, self.caller)
