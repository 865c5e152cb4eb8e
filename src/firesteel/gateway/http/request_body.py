"""The body of a request: its bytes as the client sent them, and what an endpoint gets instead.

A body is never parsed or copied for an endpoint that speaks the client's API: the engine's name of the model,
the parameters of the model and the question for token counts are edits by position.
"""

from __future__ import annotations

from collections.abc import Callable

from firesteel.gateway.http.body import (
    SEARCH_BYTES,
    Edit,
    ModelField,
    edited,
    find_model,
    model_edit,
    prompt_prefix,
    wants_stream,
)
from firesteel.gateway.http.body_edits import UsageRequest, parameter_edits, request_usage
from firesteel.gateway.http.normalize import Normalized
from firesteel.gateway.http.routes import Route
from firesteel.gateway.http.translation import OllamaCall, Translation, translate
from firesteel.gateway.http.usage import UsageFilter
from firesteel.gateway.interfaces import Endpoint, GatewayResponse, Rejection
from firesteel.gateway.translate.shape import SystemRole, has_inner_system, shaped
from firesteel.gateway.translate.stream import StreamTranslator
from firesteel.gateway.translate.values import Untranslatable, dump, parse_object
from firesteel.values import Value, replace

ContentFilter = UsageFilter | StreamTranslator
"""Changes the content of a stream on its way to the client."""
KEPT_BYTES = 64 * 1024
"""Of a body, for a log that keeps prompts; it stores no more."""


class EndpointBody(Value):
    """What one endpoint gets of a body, and what that asks of its response."""

    edits: list[Edit] = []
    usage: UsageRequest | None = None
    """Token counts that the client did not ask for."""
    normal: list[Edit] = []
    """Those of the edits that take something out of the prompt."""
    translation: Translation | None = None
    """The endpoint does not speak the client's API, and gets this instead of the edited body."""

    def new_filter(self, endpoint: Endpoint, *, is_metered: bool) -> ContentFilter | None:
        """For a response that is a stream; each sending needs its own. One that is metered comes without the
        framing of its server, so that it can end after any event."""
        if self.translation is not None:
            return self.translation.stream()
        usage = self.usage
        if usage is None or not (usage.strips_event or usage.strips_fields):
            if is_metered:
                return UsageFilter(endpoint.counting, strips_event=False, strips_fields=False)
            return None
        return UsageFilter(
            endpoint.counting, strips_event=usage.strips_event, strips_fields=usage.strips_fields
        )


_UNCHANGED = EndpointBody()


class RequestBody:
    """Knows nothing of the client but what it sent."""

    _prefix: int | None = None
    _wants_stream: bool | None = None
    normalize: Callable[[bytes], Normalized] | None = None
    """For the endpoint that is tried."""

    def __init__(
        self,
        content: bytes,
        path: bytes = b"",
        route: Route | None = None,
        model_field: ModelField | None = None,
        call: OllamaCall | None = None,
    ) -> None:
        """`route`: None for the gateway's own paths. `call`: of a client that speaks Ollama's API."""
        self.content = content
        """Unchanged, until an answer has begun: then only what a log stores is kept."""
        self._path, self._route, self._field, self._call = path, route, model_field, call
        self.normalized = ""
        """For the request's row."""

    @property
    def prefix(self) -> int:
        """Computed only on demand: a model with one replica does not need it."""
        if self._prefix is None:
            self._prefix = prompt_prefix(self.content)
        return self._prefix

    def wants_stream(self) -> bool:
        """Whether the client asks for a stream on a path that has one."""
        if self._wants_stream is None:
            if self._call is not None:
                self._wants_stream = self._call.request.is_stream
            else:
                is_streamable = self._route is not None and self._route.is_streamable
                self._wants_stream = is_streamable and wants_stream(self.content)
        return self._wants_stream

    def for_endpoint(
        self, endpoint: Endpoint, model: str, *, asks_counts: bool
    ) -> EndpointBody | GatewayResponse | Rejection:
        """A response: the request is complete without the endpoint, as one of Ollama's without a prompt is
        once its model is loaded."""
        route, content = self._route, self.content
        if route is None:
            return _UNCHANGED
        normal: list[Edit] = []
        if self.normalize is not None and self._call is None:
            found = self.normalize(content)
            normal, self.normalized = found.edits, found.says
        if endpoint.speaks:
            if self._call is not None and not self._call.request.path:
                return self._call.loaded()
            content = b"".join(edited(content, normal)) if normal else content
            translation = translate(self._call, route, self._path, content, endpoint, model)
            if isinstance(translation, Translation):
                return EndpointBody(normal=normal, translation=translation)
            if translation is not None:
                return translation
            content = self.content
        has_usage = route.has_usage and (len(content) > SEARCH_BYTES or b'"stream"' in content)
        if endpoint.served_name is None and endpoint.parameters is None and not has_usage and not normal:
            return _UNCHANGED
        usage = request_usage(content, endpoint.counting) if has_usage and asks_counts else None
        edits = self._edits(endpoint, route)
        if isinstance(edits, Rejection):
            return edits
        return EndpointBody([*edits, *normal, *([usage.edit] if usage is not None else [])], usage, normal)

    def prompt(self, sent: EndpointBody) -> bytes:
        """What its engine has read of it, as far as the prompt goes."""
        if self._call is not None:
            return self._call.body
        return b"".join(edited(self.content, sent.normal)) if sent.normal else self.content

    def needs_shape(self, endpoint: Endpoint) -> bool:
        """Whether the server would move a system message from the middle to the head, and so read the whole
        conversation again."""
        route = self._route
        return (
            endpoint.moves_system
            and route is not None
            and route.kind == "message"
            and has_inner_system(self.content)
        )

    def reshape(self, system: SystemRole) -> bool:
        """Give the conversation the shape that every template takes. Return whether that changed anything."""
        route, call = self._route, self._call
        if route is None:
            return False
        try:
            request = parse_object(call.body if call is not None else self.content)
            after = shaped("chat" if call is not None else route.kind, request, system)
            content = dump(after)
        except Untranslatable:
            return False  # too large, or no JSON: its server says so
        field = find_model(content, b"application/json")
        if after is request or isinstance(field, Rejection):
            return False
        if call is not None:
            self._call = replace(call, body=content, model_field=field)
        else:
            self.content, self._field = content, field
        return True

    def _edits(self, endpoint: Endpoint, route: Route) -> list[Edit] | Rejection:
        """The engine's name for the model, and the parameters of the model."""
        field = self._field
        if field is None or not self.content:
            return []
        edits: list[Edit] = []
        if endpoint.served_name is not None and (edit := model_edit(field, endpoint.served_name)):
            edits.append(edit)
        rules = None
        if endpoint.parameters is not None and field.is_json:
            rules = endpoint.parameters.of(route.kind)
        if rules is not None:
            changes = parameter_edits(self.content, rules)
            if isinstance(changes, Rejection):
                return changes
            edits += changes
        return edits
