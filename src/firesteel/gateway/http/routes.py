"""The paths of engines, and what is known about each before the body is read.

Paths are compared as bytes, exactly: `/v1//messages`, `/v1/./messages` and `/v1/%6dessages` are not routes.
An engine might treat them as one, and then two programs would disagree about the request.

Checked 2026-11-15 against the engines' own tables: vLLM 0.32.0 (`vllm/entrypoints/**/api_router.py`),
llama.cpp
(https://github.com/ggml-org/llama.cpp/blob/b21e4de74567f5eef213765c9476a843c2e43f0d/tools/server/server.cpp),
SGLang
(https://github.com/sgl-project/sglang/blob/cce0a1244b5a3ee60411fb403f65f856a1d012f0/python/sglang/srt/entrypoints/http_server.py).
None of them has speech or images: those are OpenAI's paths, for outside servers. Administrative paths of the
engines (slots, sleep, weights, caches) are not forwarded.

A response that an engine stores has an id but no model: `/v1/responses/ID?model=NAME` names it. With several
replicas only one has it, and the gateway does not know which: this does not work with replicas.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import unquote_to_bytes

from firesteel.gateway.interfaces import ApiFamily, Rejection
from firesteel.values import Value

BodyKind = Literal["json", "multipart", "either", "none"]
"""none: the model is named only in the query."""


class Route(Value):
    """What a path is for."""

    family: ApiFamily
    body: BodyKind
    is_streamable: bool
    kind: str
    """A label for the metrics."""
    has_usage: bool = False
    """A stream has token counts on request (`stream_options`)."""


class TranslatedRoute(Route):
    """Of a client's API that no engine speaks."""


class DirectRoute(Route):
    """Of a server's own paths and WebSockets (`direct.py`)."""


class ResponsesRoute(Route):
    """OpenAI's Responses, which not every engine has as a whole (`translation.responses_dialect`)."""


def _openai(kind: str, body: BodyKind = "json", *, streams: bool = False) -> Route:
    return Route("openai", body, streams, kind, kind in ("chat", "completion"))


_CHAT = _openai("chat", streams=True)
_COMPLETION = _openai("completion", streams=True)
_RESPONSE = ResponsesRoute("openai", "json", True, "response")
_EMBEDDING = _openai("embedding")
_RERANK = _openai("rerank")
_SCORE = _openai("score")
_COUNT = _openai("count")
_CLASSIFY = _openai("classify")
_TOKENIZE = _openai("tokenize")
_DETOKENIZE = _openai("detokenize")
_STORED = _openai("stored", "none", streams=True)

ROUTES: dict[bytes, Route] = {
    b"/v1/chat/completions": _CHAT,
    b"/v1/completions": _COMPLETION,
    b"/v1/responses": _RESPONSE,
    b"/v1/messages": Route("anthropic", "json", True, "message"),
    b"/v1/messages/count_tokens": Route("anthropic", "json", False, "count"),
    b"/v1/chat/completions/input_tokens": _COUNT,
    b"/v1/responses/input_tokens": _COUNT,
    b"/v1/embeddings": _EMBEDDING,
    b"/v2/embed": _EMBEDDING,
    b"/rerank": _RERANK,
    b"/v1/rerank": _RERANK,
    b"/v2/rerank": _RERANK,
    b"/score": _SCORE,
    b"/v1/score": _SCORE,
    b"/pooling": _openai("pooling"),
    b"/classify": _CLASSIFY,
    b"/v1/classify": _CLASSIFY,
    b"/tokenize": _TOKENIZE,
    b"/v1/tokenize": _TOKENIZE,
    b"/detokenize": _DETOKENIZE,
    b"/v1/detokenize": _DETOKENIZE,
    b"/apply-template": _openai("template"),
    b"/completion": _COMPLETION,
    b"/infill": _openai("infill", streams=True),
    b"/v1/audio/transcriptions": _openai("transcription", "multipart", streams=True),
    b"/v1/audio/translations": _openai("translation", "multipart", streams=True),
    b"/v1/audio/speech": _openai("speech", streams=True),
    b"/v1/images/generations": _openai("image", streams=True),
    b"/v1/images/edits": _openai("image", "either", streams=True),
    b"/v1/images/variations": _openai("image", "multipart"),
}
"""All use POST."""

ROUTES |= {
    b"/api/chat": TranslatedRoute("ollama", "json", True, "chat"),
    b"/api/generate": TranslatedRoute("ollama", "json", True, "completion"),
    b"/api/embed": TranslatedRoute("ollama", "json", False, "embedding"),
    b"/api/embeddings": TranslatedRoute("ollama", "json", False, "embedding"),
}
OLLAMA_PATHS = frozenset(
    b"/api/" + name
    for name in (b"tags", b"ps", b"version", b"show", b"pull", b"push", b"create", b"copy", b"delete")
)
"""What Ollama's clients ask about models (`admin/ollama.py`); an inference key is enough."""

_STORED_AT = b"/v1/responses/"
UPSTREAM_AT = b"/upstream/"
DIRECT_ROUTES = {
    b"/v1/realtime": DirectRoute("openai", "none", False, "realtime"),
    UPSTREAM_AT: DirectRoute("openai", "none", False, "upstream"),
}
_NOT_WEBSOCKET = Rejection(
    426, "upgrade_required", "/v1/realtime is for WebSockets. Open it with a WebSocket client."
)
_ONLY_WEBSOCKETS = Rejection(
    501, "not_supported", "WebSockets are for /v1/realtime?model=NAME and /upstream/NAME/ only."
)


def find_route(method: bytes, path: bytes) -> Route | Rejection | None:
    """The route of a path without its query; a `Rejection` (405) for a known path with another method."""
    route = ROUTES.get(path)
    if route is None:
        if path.startswith(UPSTREAM_AT):
            return DIRECT_ROUTES[UPSTREAM_AT]
        return _stored(method, path) if path.startswith(_STORED_AT) else DIRECT_ROUTES.get(path)
    return route if method == b"POST" else _wrong_method(method, path, "POST")


def check_upgrade(route: Route | Rejection | None, *, is_websocket: bool) -> Route | Rejection | None:
    """The same route, unless it is for WebSockets only and the request is not for one, or the reverse."""
    if isinstance(route, DirectRoute):
        return route if is_websocket or route.kind != "realtime" else _NOT_WEBSOCKET
    return _ONLY_WEBSOCKETS if is_websocket else route


def is_inference(path: bytes) -> bool:
    """Whether a path is for clients of models, and not for administrators."""
    return (
        path in ROUTES
        or path in OLLAMA_PATHS
        or path in (b"/v1/models", b"/health", b"/v1/realtime")
        or path.startswith((_STORED_AT, b"/v1/models/", b"/health/"))
    )


def family_of(path: bytes) -> ApiFamily:
    """The error format for a path, whatever the method."""
    if path in OLLAMA_PATHS:
        return "ollama"
    route = ROUTES.get(path)
    return route.family if route is not None else "openai"


def query_model(query: bytes) -> str | None:
    """The `model` of a query; None if it has none, several, or invalid UTF-8."""
    if b"model=" not in query:
        return None
    values = [pair[6:] for pair in query.split(b"&", 64) if pair.startswith(b"model=")]
    if len(values) != 1:
        return None
    try:
        return unquote_to_bytes(values[0].replace(b"+", b" ")).decode() or None
    except UnicodeDecodeError:
        return None


def _stored(method: bytes, path: bytes) -> Route | Rejection | None:
    """A response that an engine stores: `/v1/responses/ID`, or `/v1/responses/ID/cancel`."""
    response_id, slash, action = path[len(_STORED_AT) :].partition(b"/")
    is_plain = response_id.replace(b"_", b"").replace(b"-", b"").isalnum()
    if not is_plain or action not in (b"", b"cancel") or (slash and not action):
        return None
    allowed = b"POST" if action else b"GET"
    return _STORED if method == allowed else _wrong_method(method, path, allowed.decode())


def _wrong_method(method: bytes, path: bytes, allowed: str) -> Rejection:
    name, used = path.decode("ascii", "replace"), method.decode("ascii", "replace")
    why = f"{name} does not support {used}. Use {allowed}."
    return Rejection(405, "method_not_allowed", why, allow=allowed.encode())
