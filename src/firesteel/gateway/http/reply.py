"""What a client receives for its request: the head, the body in pieces, comments, and errors.

If a response breaks after it has begun: an event stream gets an error event and a proper end, never a
`[DONE]`. Any other body is cut off by closing the connection, so that no client takes it for complete.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Protocol

from firesteel.gateway.http.chunks import LAST_CHUNK, encode_chunk
from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.http.messages import (
    STREAM_HEAD,
    connection_header,
    error_event,
    rejection_response,
    response_head,
)
from firesteel.gateway.http.request_body import ContentFilter
from firesteel.gateway.http.routes import Route
from firesteel.gateway.http.translation import Dialect
from firesteel.gateway.http.upstream import ChunkBoundaries
from firesteel.gateway.interfaces import GatewayResponse, Rejection, WaitStatus


class ReplyClient(Protocol):
    """The connection that a reply is written to."""

    transport: asyncio.Transport
    cors: bytes

    def keeps_alive(self) -> bool: ...

    def keepalive(self) -> bytes:
        """What this client needs besides comments."""

    def respond(self, response: GatewayResponse) -> None:
        """Write a whole response of the gateway's own."""

    def done(self, *, keep: bool) -> None:
        """The response is complete; `keep`: the connection may be used again."""

    def abort(self) -> None:
        """Close at once, so that an incomplete response cannot be taken for complete."""


class ReplyState(Enum):
    EMPTY = "empty"
    PENDING = "pending"
    """The head is written together with the first piece, or when no more data is available."""
    OPEN = "open"
    ENDED = "ended"


EMPTY, PENDING, OPEN, ENDED = ReplyState


class Reply:
    """Writes; the request decides what."""

    # Defaults that most replies never change are class attributes: creating one sets fewer fields.
    state = EMPTY
    status = 0
    is_stream = False
    extra_headers = b""
    """Ours, such as which model answers."""
    _pending_head = b""
    _filter: ContentFilter | None = None
    _has_body = _adds_framing = False
    _may_grow = False
    """The head allows for more than the engine sends: chunks, or bytes until the connection is closed."""
    _keeps_alive = True

    def __init__(self, client: ReplyClient, head: RequestHead, route: Route | None, dialect: Dialect) -> None:
        self._client = client
        self._head = head
        self._route = route
        self._dialect = dialect

    # -- the head --

    def begin(self, head: ResponseHead, content_filter: ContentFilter | None) -> ChunkBoundaries:
        """`head`: of a stream, if the reply is open."""
        if self.state is OPEN:
            self._filter = content_filter
            self._adds_framing = not head.is_chunked or content_filter is not None
            is_unframed = content_filter is not None
            return ChunkBoundaries.WITHOUT_FRAMING if is_unframed else ChunkBoundaries.WHOLE_CHUNKS
        is_11, client = self._head.is_11, self._client
        self.status, self.is_stream = head.status, head.is_stream
        if head.length is not None:
            content_filter, has_end, is_chunked = None, True, False
            self._adds_framing = self._may_grow = False
        else:
            has_end = head.is_chunked or head.status in (204, 304) or self._head.method == b"HEAD"
            self._adds_framing = is_11 and (not has_end or content_filter is not None)
            is_chunked = is_11 and (head.is_chunked or self._adds_framing)
            self._may_grow = is_chunked or not is_11
        self._filter = content_filter
        keeps = self._keeps_alive = client.keeps_alive() and (is_11 or (has_end and not head.is_chunked))
        extra = client.cors + self.extra_headers
        if not (is_11 and keeps):
            extra += connection_header(is_11=is_11, keeps=keeps)
        self._pending_head = response_head(head, extra, is_chunked=is_chunked, is_stream=head.is_stream)
        self.state = PENDING
        if not is_11 or content_filter is not None:
            return ChunkBoundaries.WITHOUT_FRAMING
        return ChunkBoundaries.WHOLE_CHUNKS if self.is_stream else ChunkBoundaries.AS_THEY_COME

    def open_stream(self) -> None:
        """Write the head of a stream before an answer has begun."""
        self.state, self.status, self.is_stream, self._may_grow = OPEN, 200, True, True
        self._keeps_alive = self._client.keeps_alive()
        extra = self._client.cors + self.extra_headers
        extra += connection_header(is_11=True, keeps=self._keeps_alive)
        self._client.transport.write(STREAM_HEAD % (self._dialect.stream_type, extra))

    def switch_protocols(self, head: bytes) -> None:
        """From here on every piece is passed on as it is."""
        self.state, self.status = OPEN, 101
        self._client.transport.write(head)

    def takes_another(self) -> bool:
        """Whether nothing of an answer has reached the client, so that it can get a different one."""
        return self.state is not OPEN or (
            self.is_stream and self._may_grow and self._head.is_11 and not self._has_body
        )

    def retract(self) -> None:
        """The answer will not come: forget what was to be written of it."""
        self._filter, self._adds_framing = None, False
        if self.state is PENDING:
            self.state, self.status, self._pending_head = EMPTY, 0, b""

    # -- the body --

    def is_direct(self) -> bool:
        """Whether pieces are passed on as they come."""
        return self._filter is None and not self._adds_framing

    def is_filtered(self) -> bool:
        return self._filter is not None

    def is_framed(self) -> bool:
        """Whether the client receives the engine's own chunks."""
        return self._head.is_11 and not self._adds_framing

    def forward(self, piece: bytes) -> None:
        if self._filter is not None and not (piece := self._filter.take(piece)):
            return
        if self._adds_framing:
            piece = encode_chunk(piece)
        if self._pending_head:
            piece, self._pending_head = self._pending_head + piece, b""
            self.state = OPEN
        self._has_body = True
        self._client.transport.write(piece)

    def flush(self) -> None:
        if self.state is PENDING:
            self.state = OPEN
            pending, self._pending_head = self._pending_head, b""
            self._client.transport.write(pending)

    def end(self) -> None:
        """The answer is complete."""
        if self.state is PENDING:
            self.flush()
        self.state = ENDED
        client = self._client
        if self._filter is not None or self._adds_framing:
            rest = self._filter.end() if self._filter is not None else b""
            if rest and self._adds_framing:
                rest = encode_chunk(rest)
            if self._adds_framing:
                rest += LAST_CHUNK
            if rest:
                client.transport.write(rest)
        client.done(keep=self._keeps_alive)

    # -- comments --

    def write_comment(self, wait_status: WaitStatus) -> None:
        """Between two events of an open stream: show the client that its request is alive."""
        comment = self._dialect.comment(wait_status)
        if self._route is not None and self._route.kind == "response":
            comment += self._client.keepalive()
        self._client.transport.write(encode_chunk(comment) if self._head.is_11 else comment)

    # -- responses of the gateway itself --

    def answer(self, answer: GatewayResponse | Rejection, *, follows_chunk: bool = False) -> None:
        """In place of the engine's; a stream that is open gets an error. `follows_chunk`: what the engine
        sent of it ended with a whole chunk."""
        if self.state is OPEN:
            if not isinstance(answer, Rejection):
                answer = Rejection(502, "engine_error", "the engine sent no stream")
            self._end_stream(answer, follows_chunk=follows_chunk)
            return
        self.state = ENDED
        if isinstance(answer, Rejection):
            answer = rejection_response(answer, self._route.family if self._route is not None else "openai")
        self._client.respond(answer)

    def close(self, last: bytes = b"") -> None:
        """End a response without an end marker by closing the connection."""
        self.state = ENDED
        if last:
            self._client.transport.write(last)
        self._client.done(keep=False)

    def _end_stream(self, rejection: Rejection, *, follows_chunk: bool) -> None:
        """An event with the error, unless the client has received a part of a chunk."""
        self.state = ENDED
        is_11 = self._head.is_11
        is_whole = self._adds_framing or follows_chunk or not self._has_body or not is_11
        if not (self.is_stream and self._route is not None and self._may_grow and is_whole):
            self._client.abort()
            return
        held = self._filter.end(is_broken=True) if self._filter is not None else b""
        event = held + self._dialect.gap + error_event(rejection, self._route)
        self._client.transport.write(encode_chunk(event) + LAST_CHUNK if is_11 else event)
        self._client.done(keep=self._keeps_alive and is_11)
