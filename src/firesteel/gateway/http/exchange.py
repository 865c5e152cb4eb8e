"""One request and its answer: asks the desk, sends to the engine it was granted, passes the answer on.

It is the desk's `Caller` and the upstream's `Taker`. However it ends, `desk.finish` is called once for each
`desk.ask`, or `desk.leave` if the client went while it still waited.

What is said to a client whose answer has begun: an event stream that breaks gets an error event and a proper
end, never a `[DONE]`. Any other body is cut off with the connection, so that nobody takes it for whole.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

from firesteel.gateway.http.body import ModelField, prompt_prefix, splice, wants_stream
from firesteel.gateway.http.chunks import LAST, chunk
from firesteel.gateway.http.error_format import error_event, wait_comment
from firesteel.gateway.http.forward import (
    hop_header,
    identity_headers,
    request_parts,
    response_head,
    without_encoding,
)
from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.pool import Connecting, ConnectionPool
from firesteel.gateway.http.responses import STREAM_HEAD, refusal_reply
from firesteel.gateway.http.routes import Route
from firesteel.gateway.http.upstream import ChunkBoundaries, Upstream
from firesteel.gateway.http.usage import find_usage
from firesteel.gateway.interfaces import (
    Dispatcher,
    Endpoint,
    GatewayResponse,
    Identity,
    LatencyRecorder,
    OutcomeKind,
    Refusal,
    RequestOutcome,
    Usage,
    WaitStatus,
)

_TAIL_BYTES = 4096
_TAIL_PIECES = 32


STOPPING = Refusal(503, "stopping", "the gateway is stopping. Ask again in a moment.", 5.0)


class ResponseWriter(Protocol):
    """The client's connection, as an exchange sees it."""

    desk: Dispatcher
    pool: ConnectionPool
    limits: HttpLimits
    transport: asyncio.Transport

    def reply(self, reply: GatewayResponse) -> None: ...

    def is_stuck(self) -> bool:
        """Whether the client takes nothing at the moment."""

    def keeps_alive(self) -> bool:
        """Whether the connection may be used after this answer."""

    def done(self, *, keep: bool) -> None:
        """The answer is all written."""

    def cut(self) -> None:
        """Closes at once, so that what was written cannot be taken for whole."""


class Exchange:
    """One request."""

    # What most requests never change stands here once, and not in each of them.
    model = ""
    is_leaving = False
    body: bytes = b""
    """As it was sent."""
    _found: ModelField | None = None
    _route: Route | None = None
    _seat: Endpoint | None = None
    _tally: LatencyRecorder | None = None
    _upstream: Upstream | None = None
    _connecting: Connecting | None = None
    _timer: asyncio.TimerHandle | None = None
    _trouble: ResponseHead | None = None
    _news = WaitStatus("waiting")
    _prefix: int | None = None
    _first_s: float | None = None
    _waited_s = 0.0
    _extra = b""
    _beginning = b""
    _pending = b""
    _bytes_in = _bytes_out = 0
    _status = 0
    _keeps = True
    _asked = _has_head = _encodes = _is_direct = _is_stream = _is_over = _retried = False

    def __init__(self, client: ResponseWriter, head: RequestHead, who: Identity, began: float) -> None:
        self.path = head.path
        self.who = who
        self._client = client
        self._head = head
        self._began = self._last = began
        self._tail: list[bytes] = []

    # -- asking --

    def ask(self, route: Route, found: ModelField, body: bytes) -> None:
        """Asks the desk for a place for it."""
        self.model = found.model
        self._route, self._found, self.body = route, found, body
        self._bytes_in = len(body)
        self._asked = True
        self._client.desk.ask(self)
        if (
            self._seat is None
            and not self._is_over
            and route.is_streamable
            and self._head.is_11
            and wants_stream(body)
        ):
            self._later(self._client.limits.hold_after_s)

    def pass_to(self, seat: Endpoint, body: bytes) -> None:
        """Sends it to a place of our own, with who asks."""
        self.body = body
        self._extra = identity_headers(self.who, self._head.host)
        self.granted(seat, None)

    @property
    def prefix(self) -> int:
        """Looked for only when somebody wants to know: one replica needs none."""
        if self._prefix is None:
            self._prefix = prompt_prefix(self.body)
        return self._prefix

    @prefix.setter
    def prefix(self, value: int) -> None:
        self._prefix = value

    # -- what the desk says --

    def granted(self, seat: Endpoint, tally: LatencyRecorder | None) -> None:
        if self._is_over:
            return
        if self._timer is not None and not self._has_head:
            self._stop_timer()  # from here on the engine's own status is worth waiting for
        self._waited_s = monotonic() - self._began
        self._seat, self._tally = seat, tally
        upstream = self._client.pool.take(seat)
        if upstream is None:
            self._connect()
        else:
            self._send(upstream)

    def refused(self, refusal: Refusal) -> None:
        if self._is_over:
            return
        self._waited_s = monotonic() - self._began
        self._refuse(refusal, "refused")

    def told(self, news: WaitStatus) -> None:
        self._news = news
        if self._has_head and not self._is_over:
            self._client.transport.write(chunk(wait_comment(news)))

    # -- while it waits --

    def _later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._comment)

    def _comment(self) -> None:
        """The head of a stream that has waited long enough, and a sign of life."""
        comment = chunk(wait_comment(self._news))
        if not self._has_head:
            self._has_head = self._is_stream = True
            self._status = 200
            self._keeps = self._client.keeps_alive()
            comment = STREAM_HEAD % hop_header(is_11=True, keeps=self._keeps) + comment
        self._client.transport.write(comment)
        self._later(self._client.limits.comment_every_s)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- to the engine --

    def _connect(self) -> None:
        assert self._seat is not None
        self._connecting = self._client.pool.connect(self._seat, self._connected, self._unreachable)

    def _connected(self, upstream: Upstream) -> None:
        self._connecting = None
        if self._is_over:
            upstream.drop()
        else:
            self._send(upstream)

    def _unreachable(self, why: str) -> None:
        self._connecting = None
        if not self._is_over:
            self._blame("engine_unreachable", f"the engine cannot be reached: {why}")

    def _send(self, upstream: Upstream) -> None:
        assert self._seat is not None
        self._upstream = upstream
        upstream.send(self, self._request(self._seat), is_head_only=self._head.method == b"HEAD")

    def _request(self, seat: Endpoint) -> tuple[bytes, ...]:
        head, body = self._head, self.body
        if seat.served_name is not None and self._found is not None and body:
            body = splice(body, self._found, seat.served_name)
        lines = without_encoding(head.lines) if self._has_head else head.lines
        return request_parts(head, seat, body, lines, self._extra)

    # -- from the engine --

    def answered(self, head: ResponseHead) -> ChunkBoundaries:
        if self._upstream is not None and self._client.is_stuck() and not self.is_leaving:
            self._upstream.pause()
        if not self._client.limits.keeps_bodies:
            self.body = b""  # it will not be sent again
        if self._has_head:
            return self._join_stream(head)
        asked = self._head
        self._status = head.status
        self._is_stream = head.is_event_stream and not head.is_encoded
        has_end = head.is_chunked or head.length is not None or head.status in (204, 304)
        has_end = has_end or asked.method == b"HEAD"
        self._encodes = asked.is_11 and not has_end
        self._keeps = self._client.keeps_alive() and (asked.is_11 or (has_end and not head.is_chunked))
        if self.is_leaving:
            return ChunkBoundaries.AS_THEY_COME
        self._has_head = True
        self._pending = response_head(
            head,
            hop_header(is_11=asked.is_11, keeps=self._keeps),
            is_chunked=asked.is_11 and (head.is_chunked or self._encodes),
            is_stream=self._is_stream,
        )
        if not asked.is_11:
            return ChunkBoundaries.WITHOUT_FRAMING
        return ChunkBoundaries.WHOLE_CHUNKS if self._is_stream else ChunkBoundaries.AS_THEY_COME

    def _join_stream(self, head: ResponseHead) -> ChunkBoundaries:
        """The client has its head already; this answer must be what that head promised."""
        if head.status != 200 or not head.is_event_stream or head.is_encoded:
            self._trouble = head
            return ChunkBoundaries.WITHOUT_FRAMING
        self._encodes = not head.is_chunked
        return ChunkBoundaries.WHOLE_CHUNKS

    def flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, b""
            self._client.transport.write(pending)

    def take(self, piece: bytes) -> None:
        now = monotonic()
        if self._first_s is None:
            self._first(piece, now)
        elif self._tally is not None and self._is_stream:
            self._tally.gap(now - self._last)
        self._last = now
        self._bytes_out += len(piece)
        tail = self._tail
        tail.append(piece if len(piece) <= _TAIL_BYTES else piece[-_TAIL_BYTES:])
        if len(tail) > _TAIL_PIECES:
            del tail[: _TAIL_PIECES // 2]
        if self._is_direct:
            self._client.transport.write(piece)
        else:
            self._pass_on(piece)

    def _pass_on(self, piece: bytes) -> None:
        """The first piece goes out with its head; the others go by themselves if they go as they are."""
        if self.is_leaving or self._trouble is not None:
            return
        if self._encodes:
            piece = chunk(piece)
        else:
            self._is_direct = True
        if self._pending:
            piece, self._pending = self._pending + piece, b""
        self._client.transport.write(piece)

    def _first(self, piece: bytes, now: float) -> None:
        self._first_s = now - self._began
        self._beginning = piece
        self._stop_timer()
        if self._tally is not None and self._is_stream:
            self._tally.first(self._first_s)

    def over(self) -> None:
        self._upstream = None
        if self.is_leaving:
            self._finish("left")
        elif self._trouble is not None:
            self._end_stream(self._told_by_engine(self._trouble), "whole")
        else:
            if self._pending:
                self.flush()
            if self._encodes:
                self._client.transport.write(LAST)
            self._finish("whole")
            self._client.done(keep=self._keeps)

    def broke(self, why: str, *, is_unheard: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if self.is_leaving:
            self._finish("left", why)
        elif is_unheard and not self._retried:
            self._retried = True
            self._connect()
        else:
            self._encodes = self._encodes or (upstream is not None and upstream.is_between_chunks())
            self._blame("engine_broke", f"the engine went away: {why}")

    # -- the end --

    def gone(self) -> None:
        """The client went: so does its request, in the same turn of the loop, if the engine may notice."""
        if self._is_over or self.is_leaving:
            return
        self._stop_timer()
        if self._asked and self._seat is None:
            self._is_over = True
            self._client.desk.leave(self, monotonic() - self._began)
        elif self._upstream is not None and self._seat is not None and self._seat.policy == "drain":
            self.is_leaving = True
            self._is_direct = False
            self._upstream.resume()
        else:
            self._let_go()
            self._finish("left")

    def stop(self, refusal: Refusal = STOPPING) -> None:
        """It ends before its answer does: whoever can be told is."""
        if self._is_over or self.is_leaving:
            return
        self._stop_timer()
        upstream = self._upstream
        self._encodes = self._encodes or (upstream is not None and upstream.is_between_chunks())
        if self._asked and self._seat is None:
            self._is_over = True
            self._client.desk.leave(self, monotonic() - self._began)
        self._let_go()
        self._refuse(refusal, "refused")

    def pause(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def _let_go(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.drop()
        self._connecting = self._upstream = None

    def _blame(self, kind: str, why: str) -> None:
        src = f"engine:{self.model}" if self._route is not None else "gateway"
        self._refuse(Refusal(502, kind, why, src=src), "broke")

    def _told_by_engine(self, head: ResponseHead) -> Refusal:
        said = b"".join(self._tail)[:512].decode("utf-8", "replace").strip()
        why = f"the engine answered HTTP {head.status}: {said}"
        return Refusal(
            head.status if head.status >= 400 else 502, "engine_error", why, src=f"engine:{self.model}"
        )

    def _refuse(self, refusal: Refusal, how: OutcomeKind) -> None:
        if self._has_head and not self._pending:
            self._end_stream(refusal, how)
            return
        self._status = refusal.status
        self._finish(how, refusal.why)
        self._client.reply(refusal_reply(refusal, self._route.family if self._route else "openai"))

    def _end_stream(self, refusal: Refusal, how: OutcomeKind) -> None:
        """Says it within the answer, if that is an event stream of which the client has no half chunk."""
        is_open = self._encodes or self._has_own_head() or not self._head.is_11
        is_sayable = self._is_stream and self._route is not None and is_open
        self._finish(how, refusal.why)
        if not is_sayable or self._route is None:
            self._client.cut()
            return
        event = b"\n\n" + error_event(refusal, self._route)
        self._client.transport.write(chunk(event) + LAST if self._head.is_11 else event)
        self._client.done(keep=self._keeps and self._head.is_11)

    def _has_own_head(self) -> bool:
        """Whether nothing of the engine's has been passed on behind a head of ours."""
        return self._first_s is None or self._trouble is not None

    def _finish(self, how: OutcomeKind, why: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        self._stop_timer()
        if not self._asked:
            return
        self._client.desk.finish(self, RequestOutcome(
            how, self._status, self._usage(), self._is_stream, self._bytes_in, self._bytes_out,
            self._waited_s, self._first_s, monotonic() - self._began, why,
        ))  # fmt: skip

    def _usage(self) -> Usage | None:
        pieces = self._tail
        if not pieces:
            return None
        tail = pieces[0] if len(pieces) == 1 else b"".join(pieces)[-_TAIL_BYTES:]
        return find_usage(tail, self._is_stream, self._beginning)
