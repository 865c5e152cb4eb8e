"""One modification of an honest server, as a value: what it does to requests, answers and bytes.

A `Change` works on requests (`ask`), plain answers (`plain`), streams (`chunks`), the status, and the bytes
(`wire`). The functions below make one from something smaller, such as a function over the answer's text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A completion request, and how many this server had before it, itself included."""

    request: Json
    number: int
    before: int = 0
    """How many of those before it had the same messages."""
    others: tuple[str, ...] = ()
    """What requests that run at the same time are answered; known to a change that `gathers`."""


@dataclass(frozen=True, slots=True)
class Wire:
    """How an answer becomes bytes. The defaults are those of vLLM."""

    newline: str = "\n"
    prefix: str = "data: "
    done: str | None = "[DONE]"
    before: str = ""  # before each event
    framing: Literal["chunked", "length", "close"] = "chunked"
    version: str = "HTTP/1.1"
    header: Callable[[str], str] = str
    slice_bytes: int | None = None  # None: one event a write; 0: all in one
    first_pause_s: float = 0.0
    pause_s: float = 0.0
    stall_at: float | None = None  # the share of a stream after which nothing more comes
    cut_at: float | None = None  # the share of a body after which the connection is closed
    length_error: int = 0  # added to Content-Length of plain answers
    encode: Callable[[str], bytes] = str.encode
    first: str = ""  # before everything
    gzip: bool = False
    is_ascii: bool = False  # other characters are escaped
    is_split: bool = False  # each event has several `data:` lines


Ask = Callable[[Json, Call], Json]
Plain = Callable[[Json, Call], Json]
Chunks = Callable[[list[Json], Call], list[Json]]
Text = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Change:
    ask: Ask = lambda request, _: request
    plain: Plain = lambda body, _: body
    chunks: Chunks = lambda chunks, _: chunks
    status: Callable[[Call], int] = lambda _: 200
    swap: bool = False  # answers of two requests that are in flight together are exchanged
    gathers: bool = False  # waits a moment for requests that run at the same time
    vectors: Callable[[list[list[float]], list[str]], list[list[float]]] = lambda found, _: found
    """What embeddings become, with their texts."""
    wire: Wire = field(default_factory=Wire)
    wire_of: Callable[[Call], Wire] | None = None


@dataclass(frozen=True, slots=True)
class Modification:
    name: str
    what: str  # what a user suffers by a fault; who does so, of an oddity
    gate: str  # what kind of check should name the fault; empty for an oddity
    change: Change
    needs: frozenset[str] = frozenset()
    """Of stream, tools, json, logprobs, reasoning: what must be asked for before it shows."""


def parts(answer: Json) -> Iterator[Json]:
    """The messages of a plain answer, the deltas of a chunk."""
    for choice in answer.get("choices", ()):
        yield choice.get("message") or choice.get("delta") or {}


def content(chunks: list[Json]) -> list[Json]:
    """The deltas that carry text."""
    return [delta for chunk in chunks for delta in parts(chunk) if delta.get("content")]


def each(
    edit: Callable[[Json], None],
    plain: bool = True,
    stream: bool = True,
    when: Callable[[Call], bool] | None = None,
) -> Change:
    """Edits every plain answer and every chunk in place."""

    def on_plain(body: Json, call: Call) -> Json:
        if plain and (not when or when(call)):
            edit(body)
        return body

    def on_chunks(chunks: list[Json], call: Call) -> list[Json]:
        if stream and (not when or when(call)):
            for chunk in chunks:
                edit(chunk)
        return chunks

    return Change(plain=on_plain, chunks=on_chunks)


def text(
    rewrite: Text, plain: bool = True, stream: bool = True, when: Callable[[Call], bool] | None = None
) -> Change:
    """Rewrites the answer's text; a stream has the new text in as many chunks as it had."""

    def on_plain(body: Json, call: Call) -> Json:
        if plain and (not when or when(call)):
            for message in parts(body):
                if message.get("content"):
                    message["content"] = rewrite(message["content"])
        return body

    def on_chunks(chunks: list[Json], call: Call) -> list[Json]:
        deltas = content(chunks)
        if stream and deltas and (not when or when(call)):
            new = rewrite("".join(delta["content"] for delta in deltas))
            cuts = [len(new) * i // len(deltas) for i in range(len(deltas) + 1)]
            for delta, start, end in zip(deltas, cuts, cuts[1:], strict=False):
                delta["content"] = new[start:end]
        return chunks

    return Change(plain=on_plain, chunks=on_chunks)


def field_of(name: str, edit: Callable[[Any], Any]) -> Change:
    """Rewrites one top-level field where it is present and not null."""

    def apply(answer: Json) -> None:
        if answer.get(name) is not None:
            answer[name] = edit(answer[name])

    return each(apply)


def choices(edit: Callable[[Json], None], **where: Any) -> Change:
    def apply(answer: Json) -> None:
        for choice in answer.get("choices", ()):
            edit(choice)

    return each(apply, **where)


def finish(rename: Callable[[str], str | None]) -> Change:
    def apply(choice: Json) -> None:
        if choice.get("finish_reason"):
            choice["finish_reason"] = rename(choice["finish_reason"])

    return choices(apply)


def tool_calls(edit: Callable[[Json], None]) -> Change:
    """Edits every tool call of plain answers, and every piece of one in streams."""

    def apply(answer: Json) -> None:
        for part in parts(answer):
            for call in part.get("tool_calls") or ():
                edit(call)

    return each(apply)


def stream(edit: Callable[[list[Json]], list[Json]]) -> Change:
    return Change(chunks=lambda chunks, _: edit(chunks))


def on_content(edit: Callable[[list[Json]], list[Json]]) -> Change:
    """Edits the list of those chunks that carry text; the others stay where they are."""

    def apply(chunks: list[Json]) -> list[Json]:
        speaking = [chunk for chunk in chunks if content([chunk])]
        if len(speaking) < 3:
            return chunks
        start = chunks.index(speaking[0])
        rest = [chunk for chunk in chunks if not content([chunk])]
        return rest[:start] + edit(speaking) + rest[start:]

    return stream(apply)


def ask(edit: Callable[[Json], Any], when: Callable[[Call], bool] | None = None) -> Change:
    """Edits the request before the honest server sees it."""

    def apply(request: Json, call: Call) -> Json:
        if when and not when(call):
            return request
        request = copy.deepcopy(request)
        edit(request)
        return request

    return Change(ask=apply)
