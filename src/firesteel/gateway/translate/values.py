"""JSON values of requests and responses: bounded parsing, checked fields, refusals by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from firesteel.values import Value

Json = dict[str, Any]
MAX_PARSED_BYTES = 64 * 1024 * 1024
_COSTS = ((b"{", 240), (b"[", 88), (b",", 72))
"""What an object, a list and a member take in CPython 3.12, measured with `tracemalloc`."""


class Untranslatable(Exception):
    """A request that the other API cannot express, or that is no request at all. The text names the field and
    says what to do."""

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
    """A member of that type; missing or null is `default`. `float` takes integers too."""
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
    """The arguments of a tool call. What a model wrote may be no JSON."""
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
