"""Heads as they go on: a request's to the engine, an answer's to the client.

Lines keep their order and their spelling.
"""

from __future__ import annotations

from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.interfaces import Endpoint, Identity

CLOSE = b"Connection: close\r\n"
KEEP_ALIVE = b"Connection: keep-alive\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_UNBUFFERED = b"X-Accel-Buffering: no\r\n"
"""Asks an nginx before us to pass on what it gets."""
_JOIN_BYTES = 64 * 1024
"""Up to here a body is copied behind its head, to be one write; a longer one is a write of its own."""
_WITHOUT_BODY = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))


def request_parts(
    head: RequestHead, seat: Endpoint, body: bytes, lines: bytes, extra: bytes
) -> tuple[bytes, ...]:
    """What is written to the engine. `lines`: of the client's, those to pass on; `extra`: of ours."""
    if body and lines is head.lines and not extra:
        return _again(head, seat, body)
    length = b"" if not body and head.method in _WITHOUT_BODY else b"Content-Length: %d\r\n" % len(body)
    first = b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%b%b%b%b\r\n" % (
        head.method, seat.path, head.target, seat.authority, lines, length, seat.headers, extra,
    )  # fmt: skip
    return (first + body,) if len(body) <= _JOIN_BYTES else (first, body)


def _again(head: RequestHead, seat: Endpoint, body: bytes) -> tuple[bytes, ...]:
    """The same for a head of which only the length changes: a connection repeats itself."""
    onward = head.onward
    if onward is None or onward[0] is not seat:
        start = b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: " % (
            head.method, seat.path, head.target, seat.authority, head.lines,
        )  # fmt: skip
        onward = head.onward = (seat, start, b"\r\n%b\r\n" % seat.headers)
    size = len(body)
    if size <= _JOIN_BYTES:
        return (b"%b%d%b%b" % (onward[1], size, onward[2], body),)
    return b"%b%d%b" % (onward[1], size, onward[2]), body


def without_encoding(lines: bytes) -> bytes:
    """For an answer that goes behind a head of ours, which said nothing of compression."""
    kept = (line for line in lines.splitlines(keepends=True) if line[:16].lower() != b"accept-encoding:")
    return b"".join(kept)


def response_head(head: ResponseHead, hop: bytes, *, is_chunked: bool, is_stream: bool) -> bytes:
    """What is written to the client before the body."""
    if is_chunked:
        framing = _CHUNKED
    else:
        framing = b"" if head.length is None else b"Content-Length: %d\r\n" % head.length
    if is_stream:
        framing += _UNBUFFERED
    return b"HTTP/1.1 %b\r\n%b%b%b\r\n" % (head.reason, head.lines, framing, hop)


def hop_header(*, is_11: bool, keeps: bool) -> bytes:
    """The line on the connection, where it is not what the version implies."""
    if is_11:
        return b"" if keeps else CLOSE
    return KEEP_ALIVE if keeps else b""


def identity_headers(who: Identity, host: bytes) -> bytes:
    """For what is behind the gateway: who asks, and of whom. The same names are taken out of what a client
    sends."""
    name = "".join(char if "!" <= char <= "~" else "_" for char in who.name).encode("ascii")
    lines = b"X-Firesteel-Who: %b\r\nX-Firesteel-Admin: %d\r\nX-Firesteel-Host: %b\r\n"
    return lines % (name, who.is_admin, host)
