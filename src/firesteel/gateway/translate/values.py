"""JSON values of requests and responses: bounded parsing, checked fields, refusals by name; tool calls,
identified where an API has no ids, and put together from the pieces of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from firesteel.values import Value

Json = dict[str, Any]
MAX_PARSED_BYTES = 64 * 1024 * 1024
_COSTS = ((b"{", 240), (b"[", 88), (b",", 72))
"""What an object, a list and a member take in CPython 3.12, measured with `tracemalloc`."""


CHAT_API = "OpenAI's chat API, the only one that this model's server speaks"
"""What a client's request is translated to, for its errors."""
_CHAT_DEFAULTS = {
    "n": 1, "presence_penalty": 0, "frequency_penalty": 0, "logprobs": False, "modalities": ["text"],
}  # fmt: skip


class Untranslatable(Exception):
    """A request that the other API cannot express, or that is not a request at all. The text names the field
    and says what to do."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


class TranslationContext(Value):
    """What is known about a request besides its body."""

    model: str
    """As the client spelled it."""
    now: Callable[[], float]
    """Seconds since 1970."""
    began: float
    """By the same clock."""
    id: str = "0"
    """For identifiers of responses; letters and digits."""
    wants_usage: bool = False
    """Of a chat stream: the client asked for the counts at its end."""
    tools: Mapping[str, tuple[str, str]] = {}
    """Namespace and name of tools that chat knows by one name (`responses_client.namespaced_tools`)."""


class ChunkWriter(Protocol):
    """Makes a client's events of the chunks of a chat stream."""

    def take(self, chunk: Json) -> bytes: ...

    def end(self) -> bytes:
        """The last events, when the stream is complete."""


class ChunkReader(Protocol):
    """Makes chunks of a chat stream of a server's events."""

    def take(self, event: Json) -> Iterable[Json]: ...


class ClientApi(Value):
    """What a client speaks, translated to and from chat."""

    request: Callable[[Json], Json]
    response: Callable[[Json, TranslationContext], Json]
    writer: Callable[[TranslationContext], ChunkWriter]


class ServerApi(Value):
    """What a server speaks, translated from and to chat."""

    path: bytes
    request: Callable[[Json], Json]
    response: Callable[[Json], Json]
    reader: Callable[[], ChunkReader]


def parse_object(body: bytes) -> Json:
    """The JSON object of a request. Raises `Untranslatable`."""
    expected_bytes = 2 * len(body) + sum(cost * body.count(byte) for byte, cost in _COSTS)
    if expected_bytes > MAX_PARSED_BYTES:
        raise Untranslatable(
            "the body is too large to be translated between two APIs (32 MiB of images, or a million values)."
            " Use the API that the server speaks itself.",
            413,
        )
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Untranslatable(f"the body is not valid JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise Untranslatable("the body is not a JSON object")
    return value


def dump(value: object) -> bytes:
    """Compact; a lone surrogate is written as an escape, as it came. Raises `Untranslatable`."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError:
        raise Untranslatable("the JSON is nested too deeply") from None


def dump_text(value: object) -> str:
    """For the arguments of a tool call, which are JSON inside a string."""
    return dump(value).decode()


def sse(event: Json) -> bytes:
    """An event with the name that it has inside."""
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), dump(event))


_NAMES: dict[type, str] = {str: "a string", bool: "true or false", int: "an integer", list: "a list"}
_NAMES |= {dict: "an object", float: "a number"}


def field(value: Json, name: str, kind: type, default: Any = None) -> Any:
    """A member of that type; missing or null is `default`. `float` also accepts integers."""
    found = value.get(name)
    if found is None:
        return default
    is_right = isinstance(found, kind) or (kind is float and isinstance(found, int))
    if not is_right or (isinstance(found, bool) and kind is not bool):
        raise Untranslatable(f"`{name}` must be {_NAMES[kind]}")
    return found


def required(value: Json, name: str, kind: type) -> Any:
    found = field(value, name, kind)
    if found is None:
        raise Untranslatable(f"`{name}` is missing: {_NAMES[kind]}")
    return found


def objects(values: list[Any], name: str) -> list[Json]:
    for value in values:
        if not isinstance(value, dict):
            raise Untranslatable(f"`{name}` must be a list of objects")
    return values


def refuse_others(value: Json, known: Collection[str], where: str) -> None:
    """Refuse a field that is set and not known, with its name."""
    for name, found in value.items():
        if name not in known and found not in (None, False, [], {}, ""):
            raise Untranslatable(f"`{name[:80]}` cannot be translated to {where}.")


def copied(value: Json, names: Iterable[str]) -> Json:
    """The members with these names that are set."""
    return {name: value[name] for name in names if value.get(name) is not None}


def without_defaults(chat: Json) -> Json:
    """A chat request without the members that only repeat a default of the API."""
    return {name: value for name, value in chat.items() if _CHAT_DEFAULTS.get(name, ...) != value}


def first_choice(response: Json) -> Json:
    """The first choice of a chat response or chunk; empty if there is none."""
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    return choice if isinstance(choice, dict) else {}


def member(value: Json, name: str) -> Json:
    """An object inside; empty if there is none. For answers of servers, which are not checked."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def text_of(value: Json, *names: str) -> str:
    """The first of these that is text."""
    return next((found for name in names if isinstance(found := value.get(name), str)), "")


def reasoning(delta: Json) -> str:
    """What a model thought: `reasoning_content` of llama.cpp and SGLang, `reasoning` of vLLM."""
    return text_of(delta, "reasoning_content") or text_of(delta, "reasoning")


def parse_arguments(text: str) -> Json:
    """The arguments of a tool call. What a model wrote may not be JSON."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def tool_calls(message: Json) -> Iterable[tuple[int, str, str, str]]:
    """Index, id, name and arguments of each call in a message, or what a chunk of a stream has of them."""
    calls = message.get("tool_calls")
    for at, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, dict):
            function, index = member(call, "function"), call.get("index")
            yield (
                index if type(index) is int else at,
                text_of(call, "id"),
                text_of(function, "name"),
                text_of(function, "arguments"),
            )


def count(value: Json, name: str) -> int:
    found = value.get(name)
    return found if type(found) is int else 0


MAX_ARGUMENT_BYTES = 4 * 1024 * 1024
"""Of all calls of an answer."""
MAX_CALLS = 1000


class ToolIds:
    """Each call gets a number; a result belongs to the first call without one, of its name if it has one."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        self._count = 0

    def call(self, name: str, given: object = None) -> str:
        self._count += 1
        call_id = given if isinstance(given, str) and given else f"call_{self._count}"
        self._open.append((call_id, name))
        return call_id

    def result(self, name: str, given: object = None) -> str:
        """litellm sends the id with the result and not with the call: then the order decides."""
        ids = [call_id for call_id, _ in self._open]
        if given in ids:
            at = ids.index(str(given))
        else:
            named = (at for at, (_, called) in enumerate(self._open) if called == name)
            at = next(named, 0)
        if not self._open:
            return given if isinstance(given, str) and given else f"call_{max(1, self._count)}"
        return self._open.pop(at)[0]


class ToolCallDeltas:
    """The calls of an answer, from the pieces of a chat stream."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, str, list[str]]] = {}
        self._bytes = 0

    def take(self, delta: Json) -> None:
        for index, new_id, new_name, piece in tool_calls(delta):
            name, call_id, arguments = self._calls.setdefault(index, ("", "", []))
            self._calls[index] = (name or new_name, call_id or new_id, arguments)
            arguments.append(piece)
            self._bytes += len(piece)
            if self._bytes > MAX_ARGUMENT_BYTES or len(self._calls) > MAX_CALLS:
                raise Untranslatable("the engine called tools with too many arguments")

    def whole(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each."""
        return [
            (call_id or f"call_{index}", name, "".join(arguments))
            for index, (name, call_id, arguments) in sorted(self._calls.items())
        ]
