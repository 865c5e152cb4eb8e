"""A server's event stream as a client's, event by event.

The chunks of chat completions are in the middle; a client of that API gets them as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from firesteel.gateway.translate.values import (
    ChunkReader,
    ChunkWriter,
    ClientApi,
    Json,
    TranslationContext,
    Untranslatable,
    dump,
    first_choice,
    member,
)

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Of one event. A stream with a longer one ends with an error."""
_END = re.compile(rb"\r?\n\r?\n")


class StreamTranslator:
    """`take` gets the content of the stream in pieces of any size, and returns what the client gets.

    `fail` makes the client's error event of a text.
    """

    def __init__(self, reader: ChunkReader | None, writer: ChunkWriter, fail: Callable[[str], bytes]) -> None:
        self._reader, self._writer, self._fail = reader, writer, fail
        self._buffer = bytearray()
        self._searched = 0
        """Bytes of the buffer that have no end of an event."""
        self._is_complete = self._is_over = False

    def take(self, data: bytes) -> bytes:
        if self._is_over:
            return b""
        self._buffer += data
        out, start = [], 0
        for end in _END.finditer(self._buffer, max(0, self._searched - 3)):
            out.append(self._event(bytes(self._buffer[start : end.start()])))
            start = end.end()
        del self._buffer[:start]
        self._searched = len(self._buffer)
        if self._searched > MAX_EVENT_BYTES:
            out.append(self._stop(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes"))
        return b"".join(out)

    def end(self, *, is_broken: bool = False) -> bytes:
        """What is left when the stream ends. A broken one gets an error from the caller."""
        if self._is_over or is_broken:
            return b""
        out = self._event(bytes(self._buffer)) if self._buffer.strip() else b""
        if self._is_over:
            return out
        self._is_over = True
        if self._is_complete:
            return out + self._writer.end()
        return out + self._fail("the engine's stream ended before its answer was complete")

    def _stop(self, why: str) -> bytes:
        if self._is_over:
            return b""
        self._is_over = True
        self._buffer = bytearray()  # the old one may be searched at this moment
        return self._fail(why)

    def _event(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        data = b"\n".join(
            line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")
        )
        if not data:
            return b""  # a comment
        if data == b"[DONE]":
            self._is_complete = self._is_over = True
            return self._writer.end()
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return self._stop("the engine sent an event that is not JSON")
        if not isinstance(value, dict):
            return b""
        if why := error_text(value):
            return self._stop(why)
        try:
            return self._chunks(value)
        except Untranslatable as error:
            return self._stop(str(error))

    def _chunks(self, value: Json) -> bytes:
        out = []
        for chunk in self._reader.take(value) if self._reader is not None else (value,):
            out.append(self._writer.take(chunk))
            self._is_complete = self._is_complete or bool(first_choice(chunk).get("finish_reason"))
        return b"".join(out)


def error_text(value: Json) -> str:
    """The message of an error, in any API's format; empty: it is not an error."""
    error = value.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)[:2000]
    if isinstance(error, str) and error:
        return error[:2000]
    if value.get("type") == "error" or (value.get("object") == "error" and "message" in value):
        return str(value.get("message") or value)[:2000]
    return ""


class ChatChunkWriter:
    """Sends the counts at the end only if the client asked for them."""

    def __init__(self, context: TranslationContext) -> None:
        self._context = context

    def take(self, chunk: Json) -> bytes:
        if not chunk.get("choices") and not self._context.wants_usage:
            return b""
        return b"data: %b\n\n" % dump(chunk | {"model": self._context.model})

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"


def wants_usage(request: Json) -> bool:
    return member(request, "stream_options").get("include_usage") is True


CHAT_CLIENT = ClientApi(
    lambda request: request, lambda response, context: response | {"model": context.model}, ChatChunkWriter
)
