"""What the gateway says itself, in the words of whoever asked.

Clients look for an error in the place where their own service puts it: OpenAI's under `error`, Anthropic's
under `error` with a `type` beside it, each with words of its own. Ours add `src`: whether the gateway
refused, or an engine failed. Once a stream has begun, its 200 is sent, and an error can only be said within
it; every API has its own way for that. While a model loads, a stream carries comments, which clients must
skip (https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream, seen
2026-11-15).

The words by status: https://docs.claude.com/en/api/errors, and for OpenAI what its own client looks at:
https://github.com/openai/openai-python/blob/main/src/openai/_streaming.py (both seen 2026-11-15). The tests
feed all of it to the `openai` and `anthropic` packages.
"""

from __future__ import annotations

import json

from firesteel.gateway.http.routes import Route
from firesteel.gateway.interfaces import ApiFamily, Refusal, WaitStatus

MAX_NEWS_CHARS = 300

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
"""Where clients look for a code of OpenAI's; else it is our `kind`."""
_ABOUT_THE_MODEL = frozenset({"unknown_model", "missing_model"})


def error_body(refusal: Refusal, family: ApiFamily) -> bytes:
    """A refusal's JSON body, for an answer that has not begun."""
    return _json(_anthropic(refusal) if family == "anthropic" else _openai(refusal))


def error_event(refusal: Refusal, route: Route) -> bytes:
    """An error within a stream that has begun. It is the last: no `[DONE]`, no `message_stop` follows."""
    if route.family == "anthropic":
        return b"event: error\ndata: " + _json(_anthropic(refusal)) + b"\n\n"
    if route.kind == "response":
        return b"event: error\ndata: " + _json(_responses(refusal)) + b"\n\n"
    return b"data: " + _json(_openai(refusal)) + b"\n\n"


def wait_comment(news: WaitStatus) -> bytes:
    """An SSE comment: `: loading coder: weights 43 %, about 80 s left`. One line, whatever the words hold."""
    is_said = news.eta_s is None or news.words.endswith(" left")
    words = news.words if is_said else f"{news.words}, {_left(news.eta_s or 0)}"
    line = " ".join("".join(char if char.isprintable() else " " for char in words).split())
    return b": " + line[:MAX_NEWS_CHARS].encode("utf-8", "replace") + b"\n\n"


def _left(eta_s: float) -> str:
    return f"about {max(1, round(eta_s))} s left" if eta_s < 180 else f"about {round(eta_s / 60)} min left"


def _json(value: dict[str, object]) -> bytes:
    """In ASCII, and therefore in one line for everybody's idea of a line."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _openai(refusal: Refusal) -> dict[str, object]:
    return {
        "error": {
            "message": refusal.why,
            "type": _openai_type(refusal.status),
            "param": "model" if refusal.kind in _ABOUT_THE_MODEL else None,
            "code": _OPENAI_CODES.get(refusal.kind, refusal.kind),
            "src": refusal.src,
        }
    }


def _openai_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def _responses(refusal: Refusal) -> dict[str, object]:
    """The API's `error` event, and `error` in it, for which OpenAI's own client raises."""
    said = {
        "type": "error",
        "sequence_number": 0,
        "code": refusal.kind,
        "message": refusal.why,
        "param": None,
    }
    return said | _openai(refusal)


def _anthropic(refusal: Refusal) -> dict[str, object]:
    kind = _ANTHROPIC_TYPES.get(refusal.status)
    if kind is None:
        kind = "api_error" if refusal.status >= 500 else "invalid_request_error"
    return {"type": "error", "error": {"type": kind, "message": refusal.why}, "src": refusal.src}
