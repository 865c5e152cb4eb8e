"""The heads that are forwarded: a request's to the engine, a response's to the client.

Lines keep their order and their spelling.
"""

from __future__ import annotations

from firesteel.gateway.http.body import Edit, edited
from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.interfaces import Caller, Endpoint, FallbackReason

CLOSE = b"Connection: close\r\n"
KEEP_ALIVE = b"Connection: keep-alive\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_UNBUFFERED = b"X-Accel-Buffering: no\r\n"
"""Tells an nginx in front of the gateway not to buffer."""
_JOIN_BYTES = 64 * 1024
"""A body up to this size is copied behind its head and sent in one write; a longer one in a second write."""
_WITHOUT_BODY = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))


def request_parts(
    head: RequestHead, endpoint: Endpoint, body: bytes, lines: bytes, extra: bytes, edits: list[Edit]
) -> list[bytes | memoryview]:
    """What is written to the engine. `lines` are the client's headers to forward, `extra` are ours."""
    if not edits:
        return _parts(head, endpoint, body, lines, extra)
    pieces = edited(body, edits)
    if len(body) <= _JOIN_BYTES:
        return _parts(head, endpoint, b"".join(pieces), lines, extra)
    size = sum(map(len, pieces))
    first = b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n%b%b\r\n" % (
        head.method, endpoint.path, head.target, endpoint.authority, lines, size, endpoint.headers, extra,
    )  # fmt: skip
    return [first, *pieces]


def _parts(
    head: RequestHead, endpoint: Endpoint, body: bytes, lines: bytes, extra: bytes
) -> list[bytes | memoryview]:
    length = b"" if not body and head.method in _WITHOUT_BODY else b"Content-Length: %d\r\n" % len(body)
    first = b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%b%b%b%b\r\n" % (
        head.method, endpoint.path, head.target, endpoint.authority, lines, length, endpoint.headers, extra,
    )  # fmt: skip
    return [first + body] if len(body) <= _JOIN_BYTES else [first, body]


def repeat_request(head: RequestHead, endpoint: Endpoint, body: bytes) -> list[bytes | memoryview]:
    """The same with nothing to add or edit; between requests of a connection only the length changes."""
    cache = head.forward_cache
    if cache is None or cache[0] is not endpoint:
        start = b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: " % (
            head.method, endpoint.path, head.target, endpoint.authority, head.lines,
        )  # fmt: skip
        cache = head.forward_cache = (endpoint, start, b"\r\n%b\r\n" % endpoint.headers)
    size = len(body)
    if size <= _JOIN_BYTES:
        return [b"%b%d%b%b" % (cache[1], size, cache[2], body)]
    return [b"%b%d%b" % (cache[1], size, cache[2]), body]


def without_encoding(lines: bytes) -> bytes:
    """For a response that follows a head of ours, which announced no compression."""
    forwarded = (line for line in lines.splitlines(keepends=True) if line[:16].lower() != b"accept-encoding:")
    return b"".join(forwarded)


def response_head(head: ResponseHead, connection: bytes, *, is_chunked: bool, is_stream: bool) -> bytes:
    """What is written to the client before the body."""
    if is_chunked:
        framing = _CHUNKED
    else:
        framing = b"" if head.length is None else b"Content-Length: %d\r\n" % head.length
    if is_stream:
        framing += _UNBUFFERED
    return b"HTTP/1.1 %b\r\n%b%b%b\r\n" % (head.reason, head.lines, framing, connection)


def connection_header(*, is_11: bool, keeps: bool) -> bytes:
    """The `Connection` header, if it differs from the default of the HTTP version."""
    if is_11:
        return b"" if keeps else CLOSE
    return KEEP_ALIVE if keeps else b""


def fallback_header(model: str, stand_in: str, reason: FallbackReason) -> bytes:
    """Names of models and aliases have no line break (`service_file` checks them)."""
    return f"X-Firesteel-Fallback: from={model}; to={stand_in}; reason={reason}\r\n".encode(
        "ascii", "replace"
    )


def caller_headers(caller: Caller, host: bytes) -> bytes:
    """Headers for the admin API: the caller with its models, and the host that it used. Removed from client
    requests."""
    name = "".join(char if "!" <= char <= "~" else "_" for char in caller.name).encode("ascii")
    lines = b"X-Firesteel-Who: %b\r\nX-Firesteel-Admin: %d\r\nX-Firesteel-Host: %b\r\n"
    headers = lines % (name, caller.is_admin, host)
    if caller.is_for_metrics:
        headers += b"X-Firesteel-Metrics: 1\r\n"
    if caller.models is None:
        return headers
    # Names of models have no comma and no line break (`keys.py` checks them).
    return headers + b"X-Firesteel-Models: %b\r\n" % ",".join(sorted(caller.models)).encode("ascii")
