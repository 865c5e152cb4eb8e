"""What an engine sends -> an `Answer`: JSON that may hold anything, whole or in chunks.

Pure but for the clock. A document that breaks the protocol becomes a readable error; an error object becomes
one with the server's own words, also where it came under HTTP 200.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

from msgspec import Struct

from firesteel.edge.http.answer import Answer, TokenLogprob, ToolCall
from firesteel.edge.http.sse import DONE, event_data
from firesteel.errors import FiresteelError, printable

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
    calls: dict[int, tuple[str, str]] = {}
    """By index: name and arguments so far."""
    is_done: bool = False
    has_indices: bool = True
    model: str = ""
    role: str = ""

    def add_line(self, line: bytes) -> None:
        data = event_data(line)
        if data == DONE:
            self.is_done = True
        elif data is not None:
            self._add_chunk(read_json(data))

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
                f"the engine's answer passed {MAX_TEXT_CHARS:,} characters and went on", next="firesteel logs"
            )

    def _add_call(self, call: dict[str, Any]) -> None:
        """Name and arguments come in pieces; the index says to which call a piece belongs."""
        function, index = _map(call.get("function")), call.get("index")
        self.has_indices &= isinstance(index, int)
        number = index if isinstance(index, int) else 0
        name, arguments = self.calls.get(number, ("", ""))
        self.calls[number] = (
            name + text_field(function, "name"),
            arguments + text_field(function, "arguments"),
        )

    def finish(self) -> Answer:
        return Answer(
            self.text, self.finish_reason, *token_counts(self.usage),
            (self.first or time.perf_counter()) - self.start, self.last - self.first,
            reasoning=self.reasoning,
            tool_calls=tuple(ToolCall(*call, self.has_indices) for _, call in sorted(self.calls.items())),
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
    data = row.get("bytes")  # a token may be a part of a character, which is no text
    token = bytes(data) if isinstance(data, list) else text_field(row, "token").encode()
    return token, _number(row, "logprob")


def _tool_calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    functions = [_map(_map(call).get("function")) for call in (calls if isinstance(calls, list) else ())]
    return tuple(
        ToolCall(text_field(function, "name"), text_field(function, "arguments")) for function in functions
    )


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


def _number(document: dict[str, Any], name: str) -> float:
    value = document.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def count(document: Any, name: str) -> int | None:
    """The engine's own count; None when the value is not a count."""
    count = _map(document).get(name)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def read_json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise not_openai(str(error)) from error
    if not isinstance(document, dict):
        raise not_openai("not an object")
    return document


def not_openai(reason: str) -> FiresteelError:
    return FiresteelError(
        f"the engine's answer does not follow the OpenAI API: {reason}", next="firesteel logs"
    )
