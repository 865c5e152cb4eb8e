"""What a client receives for its request: the head, the body in pieces, comments, and errors.

If a response breaks after it has begun: an event stream gets an error event and a proper end, never a
`[DONE]`. Any other body is cut off by closing the connection, so that nobody takes it for complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from firesteel.gateway.http.body import wants_stream
from firesteel.gateway.http.chunks import LAST_CHUNK, encode_chunk
from firesteel.gateway.http.error_format import error_event, wait_comment
from firesteel.gateway.http.forward import connection_header, response_head
from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.http.responses import EVENT_STREAM, STREAM_HEAD, rejection_response
from firesteel.gateway.http.routes import Route
from firesteel.gateway.http.translation import NDJSON, OllamaCall, Translation, translate
from firesteel.gateway.http.upstream import ChunkBoundaries, Upstream
from firesteel.gateway.http.usage import ResponseTail
from firesteel.gateway.http.usage_filter import UsageFilter
from firesteel.gateway.interfaces import Endpoint, GatewayResponse, OutcomeKind, Rejection, WaitStatus
from firesteel.gateway.translate.stream import StreamTranslator

if TYPE_CHECKING:
    from firesteel.gateway.http.client_connection import ClientConnection


_MAX_ERROR_BYTES = 64 * 1024


class Reply(ABC):
    """The client's side of an exchange."""

    # Defaults that most requests never change are class attributes: creating an exchange sets fewer fields.
    # An object that sets more than 30 is a quarter slower in CPython 3.11.
    is_leaving = False
    body: bytes = b""
    """The request's, unchanged, as the client sent it."""
    _route: Route | None = None
    _upstream: Upstream | None = None
    _filter: UsageFilter | StreamTranslator | None = None
    ollama: OllamaCall | None = None
    """Of a client that speaks Ollama's API."""
    _translation: Translation | None = None
    _error_head: ResponseHead | None = None
    _error_body: bytes | None = None
    """Of an error that is kept until it is known whether another model serves the request."""
    _own_headers = b""
    """Ours, for the response."""
    _wait_status = WaitStatus("waiting")
    _first_s: float | None = None
    _arrivals: list[float] | None = None
    """Of pieces that the upstream has forwarded by itself, as `time.monotonic` has it."""
    _pending_head = b""
    _status = 0
    _keeps_alive = True
    _has_head = _adds_framing = _is_direct = _is_stream = False
    _wants_stream: bool | None = None

    def __init__(self, client: ClientConnection, head: RequestHead) -> None:
        self._client = client
        self._head = head
        self._tail: ResponseTail

    @abstractmethod
    def _finish(self, how: OutcomeKind, why: str = "") -> None:
        """It has ended; called once."""

    # -- the head --

    def _begin(self, head: ResponseHead) -> ChunkBoundaries:
        request = self._head
        self._status = head.status
        self._is_stream = head.is_event_stream and not head.is_encoded
        has_end = head.is_chunked or head.length is not None or head.status in (204, 304)
        has_end = has_end or request.method == b"HEAD"
        if self._filter is not None and (not self._is_stream or head.length is not None):
            self._filter = None
        self._adds_framing = request.is_11 and (not has_end or self._filter is not None)
        self._keeps_alive = self._client.keeps_alive() and (
            request.is_11 or (has_end and not head.is_chunked)
        )
        if self.is_leaving:
            return ChunkBoundaries.AS_THEY_COME
        self._has_head = True
        connection = self._client.cors
        if not (request.is_11 and self._keeps_alive):
            connection += connection_header(is_11=request.is_11, keeps=self._keeps_alive)
        self._pending_head = response_head(
            head,
            connection + self._own_headers,
            is_chunked=request.is_11 and (head.is_chunked or self._adds_framing),
            is_stream=self._is_stream,
        )
        if not request.is_11 or self._filter is not None:
            return ChunkBoundaries.WITHOUT_FRAMING
        return ChunkBoundaries.WHOLE_CHUNKS if self._is_stream else ChunkBoundaries.AS_THEY_COME

    def _join_stream(self, head: ResponseHead) -> ChunkBoundaries:
        """The client already has a head; the response must match it, or becomes an error event."""
        if head.status != 200 or not head.is_event_stream or head.is_encoded:
            self._error_head = head
            return ChunkBoundaries.WITHOUT_FRAMING
        self._adds_framing = not head.is_chunked or self._filter is not None
        return ChunkBoundaries.WITHOUT_FRAMING if self._filter is not None else ChunkBoundaries.WHOLE_CHUNKS

    # -- the body --

    def flush(self) -> None:
        if self._pending_head:
            pending, self._pending_head = self._pending_head, b""
            self._client.transport.write(pending)

    def _forward(self, piece: bytes) -> None:
        """The first piece is written together with the head; later ones are written directly if possible."""
        if self.is_leaving or self._error_head is not None:
            if self._translation is not None:
                self._translation.collect(piece)
            elif self._error_body is not None and len(self._error_body) < _MAX_ERROR_BYTES:
                self._error_body += piece
            return
        if self._filter is not None and not (piece := self._filter.take(piece)):
            return
        if self._adds_framing:
            piece = encode_chunk(piece)
        elif self._filter is None and not self._is_direct:
            self._is_direct = True
            if self._is_stream and self._upstream is not None:
                self._arrivals = []
                self._upstream.forward_to(self._client.transport.write, self._tail, self._arrivals)
        if self._pending_head:
            piece, self._pending_head = self._pending_head + piece, b""
        self._client.transport.write(piece)

    def _write_end(self) -> None:
        self.flush()
        if self._filter is not None and (rest := self._filter.end()):
            self._client.transport.write(encode_chunk(rest) if self._adds_framing else rest)
        if self._adds_framing:
            self._client.transport.write(LAST_CHUNK)

    # -- comments --

    def expects_stream(self) -> bool:
        """Whether the client understands an event stream as the response."""
        if self._wants_stream is None:
            is_streamable = self._route is not None and self._route.is_streamable and self._head.is_11
            self._wants_stream = is_streamable and wants_stream(self.body)
        return self._wants_stream

    def write_comment(self) -> bool:
        """Show the client that its request is alive, if a comment is possible now. The first one follows the
        head of the stream."""
        if self._has_head:
            if not self._is_between_events():
                return False
            comment = self._comment()
            is_framed = self._head.is_11
            self._client.transport.write(encode_chunk(comment) if is_framed else comment)
            return True
        if not self.expects_stream():
            return False
        self._has_head = self._is_stream = True
        self._status = 200
        self._keeps_alive = self._client.keeps_alive()
        own = self._client.cors + self._own_headers
        head = STREAM_HEAD % (
            EVENT_STREAM if self.ollama is None else NDJSON,
            own + connection_header(is_11=True, keeps=self._keeps_alive),
        )
        self._client.transport.write(head + encode_chunk(self._comment()))
        return True

    def _comment(self) -> bytes:
        return wait_comment(self._wait_status) if self.ollama is None else self.ollama.waiting_line()

    def _is_between_events(self) -> bool:
        """Whether the client has received whole events only, or none yet."""
        if not self._is_stream or self._pending_head or self._error_head is not None:
            return False
        if self._upstream is not None and self._upstream.has_length():
            return False
        if self._filter is not None or not self._tail:
            return True
        is_framed = self._head.is_11 and not self._adds_framing
        if is_framed and (self._upstream is None or not self._upstream.is_between_chunks()):
            return False
        last = self._tail[-1]
        last = last[:-2] if is_framed else last
        return last.endswith((b"\n\n", b"\n\r\n"))

    def _settle_framing(self, upstream: Upstream | None) -> None:
        """Whether a chunk of ours may follow what was forwarded."""
        self._adds_framing = self._adds_framing or (upstream is not None and upstream.is_between_chunks())

    # -- requests and answers in another API (`translation.py`) --

    def _translate(self, endpoint: Endpoint, model: str) -> bool:
        """Return whether it is answered: Ollama's requests without a prompt only load the model, and what
        cannot be translated is refused."""
        if self._route is None:
            return False
        if self.ollama is not None and not self.ollama.request.path:
            self._end_translated(self.ollama.loaded())
            return True
        translation = translate(self.ollama, self._route, self._head.path, self.body, endpoint, model)
        if isinstance(translation, Rejection):
            self._end_translated(translation, "refused")
            return True
        self._translation = translation
        return False

    def _translated_parts(self, translation: Translation, endpoint: Endpoint) -> list[bytes | memoryview]:
        self._filter = translation.stream()
        return translation.request_parts(self._head, endpoint)

    def _begin_translated(self, translation: Translation, head: ResponseHead) -> ChunkBoundaries:
        stream_head = translation.stream_head(head)
        if stream_head is None:
            self._error_head, self._filter = head, None
            return ChunkBoundaries.WITHOUT_FRAMING
        return self._join_stream(stream_head) if self._has_head else self._begin(stream_head)

    def _end_translated(self, answer: GatewayResponse | Rejection, how: OutcomeKind = "whole") -> None:
        assert self._route is not None
        self._status = answer.status
        self._finish(how, answer.why if isinstance(answer, Rejection) else "")
        if self._has_head:  # the client waits for a stream, and got something else
            why = "the engine sent no stream"
            rejection = answer if isinstance(answer, Rejection) else Rejection(502, "engine_error", why)
            self._end_stream_with_error(rejection)
        elif isinstance(answer, Rejection):
            self._client.respond(rejection_response(answer, self._route.family))
        else:
            self._client.respond(answer)

    # -- errors --

    def _engine_error(self, head: ResponseHead, model: str) -> Rejection:
        text = b"".join(self._tail)[:512].decode("utf-8", "replace").strip()
        status = head.status if head.status >= 400 else 502
        why = f"the engine answered HTTP {head.status}: {text}"
        return Rejection(status, "engine_error", why, src=f"engine:{model}")

    def _end_stream_with_error(self, rejection: Rejection) -> None:
        """Send the error in the stream, unless the client has received a part of a chunk."""
        is_open = self._adds_framing or self._has_own_head() or not self._head.is_11
        if not (self._is_stream and self._route is not None and is_open):
            self._client.abort()
            return
        held = self._filter.end(is_broken=True) if self._filter is not None else b""
        gap = b"\n\n" if self.ollama is None else b""
        event = held + gap + error_event(rejection, self._route)
        self._client.transport.write(encode_chunk(event) + LAST_CHUNK if self._head.is_11 else event)
        self._client.done(keep=self._keeps_alive and self._head.is_11)

    def _has_own_head(self) -> bool:
        """Whether the head is ours and nothing from the engine has followed it."""
        return self._first_s is None or self._error_head is not None
