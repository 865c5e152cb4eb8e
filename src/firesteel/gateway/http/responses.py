"""Answers that the gateway gives itself, as bytes."""

from __future__ import annotations

import time
from functools import lru_cache
from http import HTTPStatus
from math import ceil

from firesteel.gateway.http.error_format import error_body
from firesteel.gateway.interfaces import ApiFamily, GatewayResponse, Refusal

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n%b\r\n"
)
"""For a client that waits: the rest of what it needs to know comes as comments."""


def reply_bytes(reply: GatewayResponse, hop: bytes, *, is_head: bool = False) -> bytes:
    """`hop`: the lines on the connection. `is_head`: asked with HEAD, answered without the body."""
    lines = b"".join(b"%b: %b\r\n" % pair for pair in reply.headers)
    head = b"%b%bDate: %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n" % (
        _status_line(reply.status), lines, _date(int(time.time())), reply.content_type, len(reply.body), hop,
    )  # fmt: skip
    return head if is_head else head + reply.body


def refusal_reply(refusal: Refusal, family: ApiFamily) -> GatewayResponse:
    """In the envelope of whoever asked."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if refusal.retry_after_s is not None:
        headers += ((b"Retry-After", b"%d" % max(1, ceil(refusal.retry_after_s))),)
    if refusal.status == 401:
        headers += ((b"WWW-Authenticate", b"Bearer"),)
    if refusal.allow:
        headers += ((b"Allow", refusal.allow),)
    return GatewayResponse(refusal.status, error_body(refusal, family), headers=headers)


@lru_cache(64)
def _status_line(status: int) -> bytes:
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = ""
    return f"HTTP/1.1 {status} {reason}\r\n".encode()


@lru_cache(1)
def _date(second: int) -> bytes:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second)).encode()
