"""HTTP messages as bytes: forwarded heads, our own responses, and errors in the format of the client's API.

A forwarded head keeps the order and the spelling of its lines. An error is put where the client's own service
puts it; within a stream, whose status 200 is sent, it is an event. While a model loads, a stream carries
comments.
"""

from __future__ import annotations

import json
import re
import time
from functools import lru_cache
from http import HTTPStatus
from math import ceil

from firesteel.errors import printable
from firesteel.gateway.http.body import Edit, edited
from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.http.routes import Route
from firesteel.gateway.interfaces import (
    ApiFamily,
    Caller,
    Endpoint,
    FallbackReason,
    GatewayResponse,
    Rejection,
    WaitStatus,
)

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


_CONTENT_TYPE = re.compile(rb"^content-type:[ \t]*([^\r\n]{1,200})", re.IGNORECASE | re.MULTILINE)


def content_type(head: ResponseHead) -> bytes:
    """Of a response that was read to its end and is passed on."""
    found = _CONTENT_TYPE.search(head.lines)
    return found[1] if found else b"application/json"


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


def fallback_header(model: str, fallback: str, reason: FallbackReason) -> bytes:
    """Names of models and aliases have no line break (`service_file` checks them)."""
    return f"X-Firesteel-Fallback: from={model}; to={fallback}; reason={reason}\r\n".encode(
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


# --- responses of the gateway itself ---

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


# --- errors and wait comments, in the format of the client's API ---
#
# Clients look for an error where their own service puts it: OpenAI's under `error`, Anthropic's under `error`
# with a `type` next to it, each with its own codes. Ours add `src`: whether the gateway rejected the request
# or an engine failed. Once a stream has begun, its status 200 is sent, and an error can only be sent within
# the stream; each API has its own event for that. While a model loads, a stream carries comments, which
# clients must ignore
# (https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream, seen 2026-11-15).
#
# Codes by status: https://docs.claude.com/en/api/errors, and for OpenAI what its own client checks:
# https://github.com/openai/openai-python/blob/main/src/openai/_streaming.py (both seen 2026-11-15). The tests
# pass all of it to the `openai` and `anthropic` packages.

MAX_COMMENT_CHARS = 300

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OPENAI_CODES = {"unknown_model": "model_not_found"}
"""OpenAI's codes that clients check; otherwise the code is our `kind`."""
_ABOUT_THE_MODEL = frozenset({"unknown_model", "missing_model"})


def prompt_too_long(
    prompt: int | None, limit: int | None, more: str, answer: int | None = None, src: str = "gateway"
) -> Rejection:
    """In Anthropic's words, by which Claude Code 2.1.197 compacts the conversation or asks for less, and with
    OpenAI's code, by which Codex 0.169 says that the context is full (`codex exec` then ends)."""
    why = "prompt is too long"
    if prompt is not None and limit is not None:
        if prompt <= limit and answer is not None:
            why = f"input length and `max_tokens` exceed context limit: {prompt} + {answer} > {limit}"
        else:
            why += f": {prompt} tokens > {limit} maximum"
    return Rejection(400, "context_length_exceeded", f"{why}. {more}", src=src)


def error_body(rejection: Rejection, family: ApiFamily) -> bytes:
    """The JSON body of an error response."""
    if family == "ollama":
        return _json({"error": rejection.why})
    return _json(_anthropic(rejection) if family == "anthropic" else _openai(rejection))


def error_event(rejection: Rejection, route: Route) -> bytes:
    """An error within a stream. It is the last event: no `[DONE]` or `message_stop` follows."""
    if route.family == "ollama":
        return _json({"error": rejection.why}) + b"\n"
    if route.family == "anthropic":
        return b"event: error\ndata: " + _json(_anthropic(rejection)) + b"\n\n"
    if route.kind == "response":
        return b"event: error\ndata: " + _json(_responses(rejection)) + b"\n\n"
    return b"data: " + _json(_openai(rejection)) + b"\n\n"


def wait_comment(wait_status: WaitStatus) -> bytes:
    """An SSE comment in one line: `: loading coder: weights 43 %, about 80 s left`."""
    text, eta_s = wait_status.text, wait_status.eta_s
    if eta_s is not None and not text.endswith(" left"):
        text += (
            f", about {max(1, round(eta_s))} s left"
            if eta_s < 180
            else f", about {round(eta_s / 60)} min left"
        )
    line = " ".join(printable(text, MAX_COMMENT_CHARS).split())
    return f": {line}\n\n".encode()


def keepalive_event(name: str) -> bytes:
    """An event of a type that the client does not know, and ignores."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json({"type": name}))


def _json(value: dict[str, object]) -> bytes:
    """In ASCII, so that every parser sees one line."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _openai(rejection: Rejection) -> dict[str, object]:
    return {
        "error": {
            "message": rejection.why,
            "type": _openai_type(rejection.status),
            "param": "model" if rejection.kind in _ABOUT_THE_MODEL else None,
            "code": _OPENAI_CODES.get(rejection.kind, rejection.kind),
            "src": rejection.src,
        }
    }


def _openai_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def _responses(rejection: Rejection) -> dict[str, object]:
    """The API's `error` event, with an `error` object, on which OpenAI's own client raises."""
    event = {
        "type": "error",
        "sequence_number": 0,
        "code": rejection.kind,
        "message": rejection.why,
        "param": None,
    }
    return event | _openai(rejection)


def _anthropic(rejection: Rejection) -> dict[str, object]:
    kind = _ANTHROPIC_TYPES.get(rejection.status)
    if kind is None:
        kind = "api_error" if rejection.status >= 500 else "invalid_request_error"
    return {"type": "error", "error": {"type": kind, "message": rejection.why}, "src": rejection.src}
