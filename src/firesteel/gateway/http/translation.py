"""A request whose client and server speak different APIs: what is sent instead, and what the client gets
(`gateway/translate`).

    Ollama's client:   translated to chat when the request arrives, so that a mistake costs no load
    any client:        translated to the API of the endpoint when the request is granted (`speaks`)
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import uuid4

from firesteel.gateway.http.body import ModelField, edited, find_model, model_edit
from firesteel.gateway.http.error_format import error_event
from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.http.routes import Route
from firesteel.gateway.interfaces import (
    Caller,
    Dispatcher,
    Endpoint,
    GatewayResponse,
    Rejection,
    ServerApiName,
)
from firesteel.gateway.translate.chat_client import CHAT_CLIENT, wants_usage
from firesteel.gateway.translate.messages_client import MESSAGES_CLIENT
from firesteel.gateway.translate.messages_server import MESSAGES_SERVER
from firesteel.gateway.translate.ollama import OllamaRequest, loaded_response, translate_request
from firesteel.gateway.translate.ollama_response import waiting_line
from firesteel.gateway.translate.responses_client import RESPONSES_CLIENT
from firesteel.gateway.translate.responses_server import RESPONSES_SERVER
from firesteel.gateway.translate.stream import StreamTranslator, error_text
from firesteel.gateway.translate.values import (
    ChunkReader,
    ChunkWriter,
    ClientApi,
    Json,
    ServerApi,
    TranslationContext,
    Untranslatable,
    dump,
    parse_object,
)

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Of an answer that is not streamed and must be parsed."""
NDJSON = b"application/x-ndjson"
_ANTHROPIC_VERSION = b"anthropic-version: 2023-06-01\r\n"
_NOT_FORWARDED = (b"accept-encoding:", b"content-type:", b"accept:", b"anthropic-", b"openai-")


@dataclass(frozen=True, slots=True)
class OllamaCall:
    """A request of an Ollama client, as one of OpenAI's API."""

    path: bytes
    request: OllamaRequest
    context: TranslationContext
    body: bytes
    model_field: ModelField

    def waiting_line(self) -> bytes:
        return waiting_line(self.path, self.context)

    def keep_alive(self, dispatcher: Dispatcher, model: str, caller: Caller) -> None:
        """After its answer."""
        if self.request.keep_alive_s is not None:
            dispatcher.keep_alive(model, self.request.keep_alive_s, caller)

    def is_unload(self) -> bool:
        """It only unloads the model, which must not be loaded for that."""
        return not self.request.path and self.request.keep_alive_s == 0

    def loaded(self) -> GatewayResponse:
        """For a request without a prompt, once its model is loaded."""
        return GatewayResponse(200, dump(loaded_response(self.path, self.request, self.context)))


def read_ollama(path: bytes, body: bytes) -> OllamaCall | Rejection:
    try:
        request = translate_request(path, parse_object(body))
    except Untranslatable as error:
        return _rejection(error)
    context = TranslationContext(request.body["model"], time.time, time.time())
    chat_body = dump(request.body)  # begins with `model`
    field = find_model(chat_body, b"application/json")
    if isinstance(field, Rejection):
        return field
    # Parsed, a body takes many times its size, and it may wait for minutes.
    return OllamaCall(path, replace(request, body={}), context, chat_body, field)


class Translation:
    """Of one request, to one endpoint."""

    def __init__(
        self,
        target: bytes,
        body: bytes,
        route: Route,
        *,
        is_stream: bool,
        response: Callable[[Json], Json],
        reader: Callable[[], ChunkReader] | None,
        writer: Callable[[], ChunkWriter],
    ) -> None:
        self.target, self._body, self._route = target, body, route
        self.is_stream = is_stream
        self._response, self._reader, self._writer = response, reader, writer
        self._pieces: list[bytes] = []
        self._size = 0

    def request_parts(self, head: RequestHead, endpoint: Endpoint) -> list[bytes | memoryview]:
        """What is written to the server."""
        lines = b"".join(
            line
            for line in head.lines.splitlines(keepends=True)
            if not line.lower().startswith(_NOT_FORWARDED)
        )
        accept = b"text/event-stream" if self.is_stream else b"application/json"
        if self.target == MESSAGES_SERVER.path:
            lines += _ANTHROPIC_VERSION
        first = (
            b"POST %b%b HTTP/1.1\r\nHost: %b\r\n%bContent-Type: application/json\r\n"
            b"Accept: %b\r\nContent-Length: %d\r\n%b\r\n"
        ) % (
            endpoint.path, self.target, endpoint.authority, lines, accept, len(self._body), endpoint.headers,
        )  # fmt: skip
        return [first, self._body]

    def stream(self) -> StreamTranslator:
        """For the content of an answer that is streamed."""
        self._pieces, self._size = [], 0
        return StreamTranslator(self._reader() if self._reader else None, self._writer(), self._fail)

    def _fail(self, why: str) -> bytes:
        return error_event(Rejection(502, "engine_error", why), self._route)

    def stream_head(self, head: ResponseHead) -> ResponseHead | None:
        """The head for the client; None: the answer is no stream, and must be collected."""
        if not self.is_stream or head.status != 200 or not head.is_event_stream or head.is_encoded:
            return None
        head = copy.copy(head)  # the connection keeps the original
        head.length, head.is_chunked = None, False
        if self._route.family == "ollama":
            lines = head.lines.splitlines(keepends=True)
            others = b"".join(line for line in lines if not line.lower().startswith(b"content-type:"))
            head.lines = others + b"Content-Type: %b\r\n" % NDJSON
        return head

    def collect(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= MAX_ANSWER_BYTES:
            self._pieces.append(piece)

    def answer(self, head: ResponseHead, model: str) -> GatewayResponse | Rejection:
        """Of everything that was collected."""
        body, src = b"".join(self._pieces), f"engine:{model}"
        if head.status != 200:
            status = head.status if head.status >= 400 else 502
            return Rejection(status, "engine_error", _engine_text(head.status, body), src=src)
        if self._size > MAX_ANSWER_BYTES or head.is_encoded:
            why = "compressed" if head.is_encoded else f"longer than {MAX_ANSWER_BYTES} bytes"
            return Rejection(
                502, "engine_error", f"the engine's answer is {why}, and not translated", src=src
            )
        try:
            answer = parse_object(body)
            if why := error_text(answer):
                return Rejection(502, "engine_error", why, src=src)
            return GatewayResponse(200, dump(self._response(answer)))
        except Untranslatable as error:
            return Rejection(502, "engine_error", f"the engine's answer: {error}", src=src)


_CHAT_PATH = b"/v1/chat/completions"
_CLIENTS: dict[str, tuple[ServerApiName, ClientApi]] = {
    "chat": ("chat", CHAT_CLIENT),
    "message": ("messages", MESSAGES_CLIENT),
    "response": ("responses", RESPONSES_CLIENT),
}
"""By the kind of a route."""
_SERVERS: dict[ServerApiName, ServerApi | None] = {
    "chat": None,
    "messages": MESSAGES_SERVER,
    "responses": RESPONSES_SERVER,
}
_PREFIXES: dict[bytes, ServerApiName] = {b"/v1/messages/": "messages", b"/v1/responses/": "responses"}


def translate(
    call: OllamaCall | None, route: Route, path: bytes, body: bytes, endpoint: Endpoint, model: str
) -> Translation | Rejection | None:
    """For an endpoint that does not speak what the client does. None: it does; the request is forwarded."""
    try:
        if call is not None:
            return _translate_ollama(call, route, endpoint, model)
        if route.kind in _CLIENTS:
            return _translate(route, body, endpoint, model)
    except Untranslatable as error:
        return _rejection(error, "cannot_be_translated")
    for prefix, api in _PREFIXES.items():  # counts of tokens, stored responses
        if path.startswith(prefix) and api not in endpoint.speaks:
            why = f"{path.decode('ascii', 'replace')} is not available: the server of `{model}` speaks only"
            return Rejection(501, "cannot_be_translated", f"{why} {' and '.join(endpoint.speaks)}.")
    return None


def _translate(route: Route, body: bytes, endpoint: Endpoint, model: str) -> Translation | None:
    api, client = _CLIENTS[route.kind]
    if api in endpoint.speaks:
        return None
    request = parse_object(body)
    name = request.get("model")
    context = TranslationContext(
        name if isinstance(name, str) else model, time.time, time.time(), uuid4().hex, wants_usage(request)
    )
    chat = client.request(request)
    return _to_server(
        chat, route, endpoint, model, lambda answer: client.response(answer, context),
        lambda: client.writer(context),
    )  # fmt: skip


def _translate_ollama(call: OllamaCall, route: Route, endpoint: Endpoint, model: str) -> Translation:
    request, context = call.request, call.context

    def respond(answer: Json) -> Json:
        return request.response(answer, context)

    def writer() -> ChunkWriter:
        return request.writer(context)

    if request.path == _CHAT_PATH and "chat" not in endpoint.speaks:
        return _to_server(parse_object(call.body), route, endpoint, model, respond, writer)
    edit = model_edit(call.model_field, _served_name(endpoint, model).encode())
    return Translation(
        request.path,
        b"".join(edited(call.body, [edit] if edit else [])),
        route,
        is_stream=request.is_stream,
        response=respond,
        reader=None,
        writer=writer,
    )


def _to_server(
    chat: Json,
    route: Route,
    endpoint: Endpoint,
    model: str,
    respond: Callable[[Json], Json],
    writer: Callable[[], ChunkWriter],
) -> Translation:
    """`chat` in the API of the endpoint, with its name of the model; answers come back through chat."""
    chat["model"] = _served_name(endpoint, model)
    speaks = endpoint.speaks or ("chat",)
    server = _SERVERS["chat" if "chat" in speaks else speaks[0]]
    is_stream = chat.get("stream") is True
    if server is None:
        return Translation(
            _CHAT_PATH, dump(chat), route, is_stream=is_stream, response=respond, reader=None, writer=writer
        )
    return Translation(
        server.path,
        dump(server.request(chat)),
        route,
        is_stream=is_stream,
        response=lambda answer: respond(server.response(answer)),
        reader=server.reader,
        writer=writer,
    )


def _served_name(endpoint: Endpoint, model: str) -> str:
    return endpoint.served_name.decode() if endpoint.served_name else model


def _engine_text(status: int, body: bytes) -> str:
    """The message of an engine's error."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    text = error_text(value) if isinstance(value, dict) else ""
    return text or f"the engine answered HTTP {status}: {body[:512].decode('utf-8', 'replace').strip()}"


def _rejection(error: Untranslatable, kind: str = "bad_request") -> Rejection:
    kind = "too_large" if error.status == 413 else kind
    return Rejection(error.status, kind, str(error))
