"""Errors and wait comments of the gateway, in the format of the client's API.

Clients look for an error where their own service puts it: OpenAI's under `error`, Anthropic's under `error`
with a `type` beside it, each with its own codes. Ours add `src`: whether the gateway rejected the request or
an engine failed. Once a stream has begun, its status 200 is sent, and an error can only be sent within the
stream; each API has its own event for that. While a model loads, a stream carries comments, which clients
must ignore
(https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream, seen 2026-11-15).

Codes by status: https://docs.claude.com/en/api/errors, and for OpenAI what its own client checks:
https://github.com/openai/openai-python/blob/main/src/openai/_streaming.py (both seen 2026-11-15). The tests
pass all of it to the `openai` and `anthropic` packages.
"""

from __future__ import annotations

import json

from firesteel.errors import printable
from firesteel.gateway.http.routes import Route
from firesteel.gateway.interfaces import ApiFamily, Rejection, WaitStatus

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
