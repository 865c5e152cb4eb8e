"""Responses of the gateway itself, as bytes."""

from __future__ import annotations

import time
from functools import lru_cache
from http import HTTPStatus
from math import ceil

from firesteel.gateway.http.error_format import error_body
from firesteel.gateway.interfaces import ApiFamily, GatewayResponse, Rejection

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nCache-Control: no-cache\r\n"
    b"X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n%b\r\n"
)
"""For a client that waits for a model; comments follow."""
EVENT_STREAM = b"text/event-stream; charset=utf-8"


def response_bytes(response: GatewayResponse, connection: bytes, *, is_head: bool = False) -> bytes:
    """`connection` is the `Connection` header. `is_head`: the response to HEAD has no body."""
    lines = b"".join(b"%b: %b\r\n" % pair for pair in response.headers)
    status_line, date = _status_line(response.status), _date(int(time.time()))
    head = b"%b%bDate: %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n" % (
        status_line, lines, date, response.content_type, len(response.body), connection,
    )  # fmt: skip
    return head if is_head else head + response.body


def rejection_response(rejection: Rejection, family: ApiFamily) -> GatewayResponse:
    """In the error format of the client's API."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if rejection.retry_after_s is not None:
        headers += ((b"Retry-After", b"%d" % max(1, ceil(rejection.retry_after_s))),)
    if rejection.status == 401:
        headers += ((b"WWW-Authenticate", b"Bearer"),)
    if rejection.allow:
        headers += ((b"Allow", rejection.allow),)
    return GatewayResponse(rejection.status, error_body(rejection, family), headers=headers)


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
