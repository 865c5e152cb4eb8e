"""A request whose client and server speak different APIs: what is sent instead, and what the client gets
(`gateway/translate`).

    Ollama's client:   translated to chat when the request arrives, so that a mistake costs no load
    any client:        translated to the API of the endpoint when the request is granted (`speaks`)

What else differs between the APIs of clients is in a `Dialect`.
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable
from uuid import uuid4

from firesteel.gateway.http.body import ModelField, edited, find_model, model_edit
from firesteel.gateway.http.body_edits import estimated_tokens, parameter_edits
from firesteel.gateway.http.head import RequestHead, ResponseHead
from firesteel.gateway.http.messages import EVENT_STREAM, error_event, wait_comment
from firesteel.gateway.http.routes import ROUTES, Route
from firesteel.gateway.interfaces import Endpoint, GatewayResponse, Rejection, ServerApiName, WaitStatus
from firesteel.gateway.translate.messages_client import MESSAGES_CLIENT
from firesteel.gateway.translate.messages_server import MESSAGES_SERVER
from firesteel.gateway.translate.ollama import OllamaRequest, loaded_response, translate_request, waiting_line
from firesteel.gateway.translate.responses_client import RESPONSES_CLIENT, namespaced_tools
from firesteel.gateway.translate.responses_server import RESPONSES_SERVER
from firesteel.gateway.translate.shape import shaped
from firesteel.gateway.translate.stream import CHAT_CLIENT, StreamTranslator, error_text, wants_usage
from firesteel.gateway.translate.values import (
    ClientApi,
    Json,
    ServerApi,
    TranslationContext,
    Untranslatable,
    dump,
    parse_object,
)
from firesteel.values import Value, replace

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Of an answer that is not streamed and must be parsed."""
NDJSON = b"application/x-ndjson"
_ANTHROPIC_VERSION = b"anthropic-version: 2023-06-01\r\n"
_NOT_FORWARDED = (b"accept-encoding:", b"content-type:", b"accept:", b"anthropic-", b"openai-")


class OllamaCall(Value):
    """A request of an Ollama client, as one of OpenAI's API."""

    path: bytes
    request: OllamaRequest
    context: TranslationContext
    body: bytes
    model_field: ModelField

    def waiting_line(self) -> bytes:
        return waiting_line(self.path, self.context)

    def is_unload(self) -> bool:
        """It only unloads the model, which must not be loaded for that."""
        return not self.request.path and self.request.keep_alive_s == 0

    def loaded(self) -> GatewayResponse:
        """For a request without a prompt, once its model is loaded."""
        return GatewayResponse(200, dump(loaded_response(self.path, self.request, self.context)))


def read_ollama(path: bytes, body: bytes) -> OllamaCall | Rejection:
    try:
        request = translate_request(path, parse_object(body))
        chat_body = dump(request.body)  # begins with `model`
    except Untranslatable as error:
        return _rejection(error)
    context = TranslationContext(request.body["model"], time.time, time.time())
    model_field = find_model(chat_body, b"application/json")
    if isinstance(model_field, Rejection):
        return model_field
    # Parsed, a body takes many times its size, and it may wait for minutes.
    return OllamaCall(path, replace(request, body={}), context, chat_body, model_field)


def with_parameters(body: bytes, target: bytes, endpoint: Endpoint) -> bytes:
    route = ROUTES.get(target)
    rules = endpoint.parameters.of(route.kind) if endpoint.parameters is not None and route else None
    if rules is None:
        return body
    edits = parameter_edits(body, rules)
    # Too deep to be walked: no limit would hold. The server says what it misses.
    return b"{}" if isinstance(edits, Rejection) else b"".join(edited(body, edits))


class Translation(Value):
    """Of one request, to one endpoint."""

    target: bytes
    _body: bytes
    _route: Route
    is_stream: bool
    _context: TranslationContext
    _client: ClientApi | OllamaRequest
    _server: ServerApi | None = None
    """None: it speaks chat, which every client is translated from and to."""

    def request_parts(self, head: RequestHead, endpoint: Endpoint) -> list[bytes | memoryview]:
        """What is written to the server, with the parameters of the model."""
        body = with_parameters(self._body, self.target, endpoint)
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
            endpoint.path, self.target, endpoint.authority, lines, accept, len(body), endpoint.headers,
        )  # fmt: skip
        return [first, body]

    def stream(self) -> StreamTranslator:
        """For the content of an answer that is streamed."""
        return StreamTranslator(
            self._server.reader() if self._server else None,
            self._client.writer(self._context),
            lambda why: error_event(Rejection(502, "engine_error", why), self._route),
        )

    def stream_head(self, head: ResponseHead) -> ResponseHead | None:
        """The head for the client; None: the answer is not a stream and must be collected."""
        if not self.is_stream or head.status != 200 or not head.is_stream:
            return None
        head = copy.copy(head)  # the connection keeps the original
        head.length, head.is_chunked = None, False
        if self._route.family == "ollama":
            lines = head.lines.splitlines(keepends=True)
            others = b"".join(line for line in lines if not line.lower().startswith(b"content-type:"))
            head.lines = others + b"Content-Type: %b\r\n" % NDJSON
        return head

    def answer(self, head: ResponseHead, body: bytes, model: str) -> GatewayResponse | Rejection:
        """Of a response that is not a stream, or cannot be translated as it arrives."""
        src = f"engine:{model}"
        if head.status != 200:
            status = head.status if head.status >= 400 else 502
            return Rejection(status, "engine_error", _engine_text(head.status, body), src=src)
        if len(body) > MAX_ANSWER_BYTES or head.is_encoded:
            why = "compressed" if head.is_encoded else f"longer than {MAX_ANSWER_BYTES} bytes"
            return Rejection(
                502, "engine_error", f"the engine's answer is {why}, and not translated", src=src
            )
        try:
            answer = parse_object(body)
            if why := error_text(answer):
                return Rejection(502, "engine_error", why, src=src)
            chat = self._server.response(answer) if self._server else answer
            return GatewayResponse(200, dump(self._client.response(chat, self._context)))
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
) -> Translation | GatewayResponse | Rejection | None:
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
            if route.kind == "count":
                return estimated_count(path, body)
            why = f"{path.decode('ascii', 'replace')} is not available: the server of `{model}` speaks only"
            return Rejection(501, "cannot_be_translated", f"{why} {' and '.join(endpoint.speaks)}.")
    return None


def estimated_count(path: bytes, body: bytes) -> GatewayResponse:
    """In place of a count that the server does not offer; the header and the field say so."""
    count: Json = {"input_tokens": max(1, estimated_tokens(body)), "is_estimate": True}
    if path.startswith(b"/v1/responses/"):
        count["object"] = "response.input_tokens"
    return GatewayResponse(200, dump(count), headers=((b"X-Firesteel-Estimate", b"input_tokens"),))


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
    if api == "responses" and (tools := namespaced_tools(request)):
        context = replace(context, tools=tools)
    chat["model"] = _served_name(endpoint, model)
    if "chat" in endpoint.speaks and route.kind != "chat":
        chat = shaped("chat", chat)
    return _to_server(chat, route, endpoint, context, client)


def _translate_ollama(call: OllamaCall, route: Route, endpoint: Endpoint, model: str) -> Translation:
    request, name = call.request, _served_name(endpoint, model)
    if request.path == _CHAT_PATH and "chat" not in endpoint.speaks:
        chat = parse_object(call.body) | {"model": name}
        return _to_server(chat, route, endpoint, call.context, request)
    edit = model_edit(call.model_field, name.encode())
    body = b"".join(edited(call.body, [edit] if edit else []))
    return Translation(request.path, body, route, request.is_stream, call.context, request)


def _to_server(
    chat: Json,
    route: Route,
    endpoint: Endpoint,
    context: TranslationContext,
    client: ClientApi | OllamaRequest,
) -> Translation:
    """`chat` in the API of the endpoint; answers come back through chat."""
    speaks = endpoint.speaks or ("chat",)
    server, is_stream = _SERVERS["chat" if "chat" in speaks else speaks[0]], chat.get("stream") is True
    path, body = (server.path, server.request(chat)) if server else (_CHAT_PATH, chat)
    return Translation(path, dump(body), route, is_stream, context, client, server)


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


class Dialect(Value):
    """What differs between the APIs of clients, except for the requests and answers themselves.

    How a client that waits for a stream is shown that its request is alive, how an error follows what it has
    received, and what its requests need of an endpoint.
    """

    stream_type: bytes = EVENT_STREAM
    comment: Callable[[WaitStatus], bytes] = wait_comment
    """For a client that waits for the next event of a stream."""
    gap: bytes = b"\n\n"
    """Ends an event that may be incomplete, so that an error can follow."""
    adapt: Callable[[Endpoint], Endpoint] | None = None
    """The endpoint as a request of this API needs it; None: as it is."""
    keep_alive_s: float | None = None
    """How long the client wants its model to stay loaded after the request."""


EVENTS = Dialect()
"""OpenAI's and Anthropic's: events and comments as in the HTML standard."""


DIRECT = Dialect(adapt=lambda endpoint: replace(endpoint, served_name=None, parameters=None, speaks=()))
"""Of a path that only the server knows: nothing is edited or translated."""


_SCHEMA = re.compile(rb'"type"[ \t\r\n]*:[ \t\r\n]*"json_(?:schema|object)"')
_IN_CHAT = Dialect(
    adapt=lambda endpoint: (
        replace(endpoint, speaks=("chat",))
        if endpoint.counting == "timings" and not endpoint.speaks
        else endpoint
    )
)


def responses_dialect(body: bytes) -> Dialect:
    """llama.cpp reads no `text.format` of a request for Responses, so that a schema has no effect; its chat
    completions have one."""
    return _IN_CHAT if _SCHEMA.search(body) else EVENTS


def ollama_dialect(call: OllamaCall) -> Dialect:
    """Lines of JSON. A server that speaks everything is sent chat."""
    return Dialect(
        NDJSON,
        lambda status: call.waiting_line(),
        gap=b"",
        adapt=lambda endpoint: endpoint if endpoint.speaks else replace(endpoint, speaks=("chat",)),
        keep_alive_s=call.request.keep_alive_s,
    )
