"""One completion of an engine with its timing (`Answer`), and how it is read: whole or as a stream of events.

Pure but for the clock: JSON that may hold anything and pieces of a body go in as they arrive, so a client
that waits for bytes and one that replays a recording read a stream the same way. A document that breaks the
protocol becomes a readable error; an error object becomes one with the server's own words, also where it came
under HTTP 200. Separate from `engine_client`, which loads aiohttp.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

from msgspec import Struct

from firesteel.errors import FiresteelError, printable
from firesteel.values import Value

STOP_REASONS = frozenset({"stop", "eos", "eos_token", "stop_sequence", "end_turn"})
LENGTH_REASONS = frozenset({"length", "max_tokens"})
"""As OpenAI, TGI (`eos_token`, `stop_sequence`) and Anthropic (`end_turn`, `max_tokens`) call them."""


class ToolCall(Value):
    name: str
    arguments: str
    """JSON as the engine sent it."""
    has_index: bool = True
    """False for a streamed call whose pieces do not say which call they belong to: clients need that."""
    id: str = ""
    """Which a client repeats with the tool's result."""


class TokenLogprob(Value):
    """One token of an answer, its log probability, and the highest one among the tokens in its place."""

    text: bytes
    logprob: float
    best_logprob: float | None
    top: tuple[tuple[bytes, float], ...] = ()
    """The likeliest tokens in its place with their log probabilities, as many as were asked for."""


class Answer(Value):
    """One completion. Token counts are the engine's own (`usage`), never a count of chunks."""

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    first_token_s: float
    """From sending the request to the first piece of text."""
    decode_s: float
    """From the first piece of text to the last."""
    reasoning: str = ""
    """The part that the engine's parser marked as reasoning."""
    tool_calls: tuple[ToolCall, ...] = ()
    is_whole: bool = True
    """False when the stream broke off before the engine ended it."""
    draft_tokens: int | None = None
    """llama.cpp's own count of drafted tokens; None where the engine does not send one."""
    accepted_tokens: int | None = None
    total_tokens: int | None = None
    """As `usage` has it, not the sum of the two counts."""
    reasoning_tokens: int | None = None
    """As `usage` has it: some servers leave them out of `completion_tokens`."""
    model: str | None = None
    role: str | None = None
    is_stream: bool = True
    has_done: bool = True
    """False for a stream without `[DONE]`, for which clients wait."""
    logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def was_cut(self) -> bool:
        """Whether `max_tokens` ended it."""
        return self.finish_reason in LENGTH_REASONS

    @property
    def has_stopped(self) -> bool:
        """Whether the model or a stop sequence ended it."""
        return self.finish_reason in STOP_REASONS

    @property
    def full_text(self) -> str:
        """Everything that the model wrote, in order: reasoning, then text."""
        return "\n".join(filter(None, (self.reasoning, self.text)))

    @property
    def decode_tokens_per_s(self) -> float | None:
        if not self.completion_tokens or self.completion_tokens < 2 or self.decode_s <= 0:
            return None
        return (self.completion_tokens - 1) / self.decode_s


MAX_TEXT_CHARS = 4 * 2**20
"""Of one answer; more than any model writes."""


def whole_answer(document: dict[str, Any], start: float) -> Answer:
    raise_error(document)
    choice, timings, usage = first_choice(document), document.get("timings"), document.get("usage")
    message = _map(choice.get("message"))
    return Answer(
        text_field(message, "content"), finish_reason(choice), *token_counts(usage),
        time.perf_counter() - start, 0.0,
        reasoning=_reasoning(message), tool_calls=_tool_calls(message),
        draft_tokens=count(timings, "draft_n"), accepted_tokens=count(timings, "draft_n_accepted"),
        total_tokens=count(usage, "total_tokens"), reasoning_tokens=_reasoning_tokens(usage),
        model=text_field(document, "model") or None, role=text_field(message, "role") or None,
        is_stream=False, logprobs=_logprobs(choice.get("logprobs")),
    )  # fmt: skip


class StreamedAnswer(Struct):
    """A streamed answer as it comes in."""

    start: float
    first: float = 0.0
    last: float = 0.0
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Any = None
    timings: dict[str, Any] = {}
    calls: dict[int, tuple[str, str, str]] = {}
    """By index: name, arguments and id so far."""
    pending: str = ""
    """The lines so far of an event that has several."""
    is_done: bool = False
    has_indices: bool = True
    model: str = ""
    role: str = ""

    def add_line(self, line: bytes) -> None:
        """A blank line ends an event. Servers leave it out, so one is over as soon as it is JSON."""
        data = event_data(line)
        if data == DONE:
            self.is_done = True
        elif data is not None:
            self.pending = f"{self.pending}\n{data}" if self.pending else data
            if data.endswith("}") and _is_json(self.pending):
                self._end_event()
        elif not line and self.pending:
            self._end_event()

    def _end_event(self) -> None:
        event, self.pending = self.pending, ""
        self._add_chunk(read_json(event))

    def _add_chunk(self, chunk: dict[str, Any]) -> None:
        raise_error(chunk)
        self.model = self.model or text_field(chunk, "model")
        self.usage = chunk.get("usage") or self.usage
        self.timings = _map(chunk.get("timings")) or self.timings
        for choice in chunk.get("choices") or ():
            self.finish_reason = finish_reason(choice) or self.finish_reason
            self._add_delta(_map(choice.get("delta")))

    def _add_delta(self, delta: dict[str, Any]) -> None:
        self.role = text_field(delta, "role") or self.role
        text, reasoning, calls = text_field(delta, "content"), _reasoning(delta), delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._add_call(_map(call))
        # The first chunk often has a role and no text: it is not the first token.
        if text or reasoning or calls:
            self.last = time.perf_counter()
            self.first = self.first or self.last
        self.text += text
        self.reasoning += reasoning
        if len(self.text) + len(self.reasoning) > MAX_TEXT_CHARS:
            raise FiresteelError(
                f"the engine's answer is longer than {MAX_TEXT_CHARS:,} characters", next="firesteel logs"
            )

    def _add_call(self, call: dict[str, Any]) -> None:
        """Name and arguments come in pieces; the index says to which call a piece belongs."""
        function, index = _map(call.get("function")), call.get("index")
        self.has_indices &= isinstance(index, int)
        number = index if isinstance(index, int) else 0
        name, arguments, known_id = self.calls.get(number, ("", "", ""))
        self.calls[number] = (
            name + text_field(function, "name"),
            arguments + text_field(function, "arguments"),
            known_id or text_field(call, "id"),
        )

    def finish(self) -> Answer:
        return Answer(
            self.text, self.finish_reason, *token_counts(self.usage),
            (self.first or time.perf_counter()) - self.start, self.last - self.first,
            reasoning=self.reasoning,
            tool_calls=tuple(
                ToolCall(name, arguments, self.has_indices, call_id)
                for _, (name, arguments, call_id) in sorted(self.calls.items())
            ),
            is_whole=self.is_done or self.finish_reason is not None,
            draft_tokens=count(self.timings, "draft_n"),
            accepted_tokens=count(self.timings, "draft_n_accepted"),
            total_tokens=count(self.usage, "total_tokens"), reasoning_tokens=_reasoning_tokens(self.usage),
            model=self.model or None, role=self.role or None, has_done=self.is_done,
        )  # fmt: skip


def raise_error(document: dict[str, Any]) -> None:
    """An error object that came under HTTP 200."""
    if error := document.get("error"):
        words = text_field(_map(error), "message") or str(error)
        raise FiresteelError(
            f"the engine answered with an error: {printable(words[:300])}", next="firesteel logs"
        )


def _logprobs(value: Any) -> tuple[TokenLogprob, ...] | None:
    rows = _map(value).get("content")
    if not isinstance(rows, list):
        return None
    found = []
    for row in map(_map, rows):
        others = row.get("top_logprobs")
        top = [_token_logprob(_map(other)) for other in (others if isinstance(others, list) else ())]
        best = max((logprob for _, logprob in top), default=None)
        found.append(TokenLogprob(*_token_logprob(row), best, tuple(top)))
    return tuple(found)


def _token_logprob(row: dict[str, Any]) -> tuple[bytes, float]:
    data = row.get("bytes")  # a token may be a part of a character, which is not text
    token = bytes(data) if isinstance(data, list) else text_field(row, "token").encode()
    logprob = row.get("logprob")
    return token, float(logprob) if isinstance(logprob, int | float) else math.nan


def _tool_calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    found = []
    for call in map(_map, calls if isinstance(calls, list) else ()):
        function = _map(call.get("function"))
        texts = text_field(function, "name"), text_field(function, "arguments")
        found.append(ToolCall(*texts, id=text_field(call, "id")))
    return tuple(found)


def _reasoning(message: dict[str, Any]) -> str:
    """vLLM renamed `reasoning_content` to `reasoning`; some releases send both, with the same text."""
    return text_field(message, "reasoning") or text_field(message, "reasoning_content")


def first_choice(document: dict[str, Any]) -> dict[str, Any]:
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices:
        raise not_openai("no `choices`")
    return _map(choices[0])


def finish_reason(choice: Any) -> str | None:
    return text_field(_map(choice), "finish_reason") or None


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text_field(document: dict[str, Any], name: str) -> str:
    text = document.get(name)
    return text if isinstance(text, str) else ""


def token_counts(usage: Any) -> tuple[int | None, int | None]:
    return count(usage, "prompt_tokens"), count(usage, "completion_tokens")


def _reasoning_tokens(usage: Any) -> int | None:
    return count(_map(usage).get("completion_tokens_details"), "reasoning_tokens")


def count(document: Any, name: str) -> int | None:
    """The engine's own count; None when the value is not a count."""
    count = _map(document).get(name)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise not_openai(str(error)) from error
    if not isinstance(document, dict):
        raise not_openai("not an object")
    return document


def not_openai(reason: str) -> FiresteelError:
    return FiresteelError(
        f"the engine's answer does not follow the OpenAI API: {reason}", next="firesteel logs"
    )


DONE = "[DONE]"
"""The data of the last event."""
MAX_LINE_BYTES = 16 * 2**20


class LineTooLong(ValueError):
    """A line of the stream has no end within `MAX_LINE_BYTES`."""


class LineSplitter:
    """Cuts the pieces of a body into lines. They end with LF, CR or both, and may come in several pieces."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._ended_with_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes, without white space at either end."""
        if not piece:
            return []
        if self._ended_with_cr:
            piece = piece.removeprefix(b"\n")
        self._ended_with_cr = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, last = piece.split(b"\n")
        if lines and self._pending:
            self._keep(lines[0])
            lines[0] = self.rest()
            self._pending, self._pending_bytes = [], 0
        if last:
            self._keep(last)
        return [line.strip() for line in lines]

    def rest(self) -> bytes:
        """What came after the last newline."""
        return b"".join(self._pending).strip()

    def _keep(self, part: bytes) -> None:
        self._pending.append(part)
        self._pending_bytes += len(part)
        if self._pending_bytes > MAX_LINE_BYTES:
            raise LineTooLong(f"a line of the stream is longer than {MAX_LINE_BYTES:,} bytes")


def event_bytes(line: bytes) -> bytes | None:
    """The data of an event; None for a blank line, a comment, and fields other than `data`."""
    line = line.removeprefix(b"\xef\xbb\xbf")  # a byte-order mark before the first event
    return line[5:].strip() if line.startswith(b"data:") else None


def event_data(line: bytes) -> str | None:
    """The same as text: bytes that are not UTF-8 become U+FFFD, so that checks of the text see them."""
    data = event_bytes(line)
    return None if data is None else data.decode("utf-8", "replace")
