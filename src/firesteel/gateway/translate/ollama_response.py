"""Answers of OpenAI's API as Ollama's: a document, or lines of JSON.

Tool calls are sent whole, in a line of their own before the last. The last line has the counts and durations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any

from firesteel.gateway.translate.tool_calls import ToolCallDeltas
from firesteel.gateway.translate.values import (
    Json,
    TranslationContext,
    count,
    dump,
    first_choice,
    member,
    parse_arguments,
    reasoning,
    text_of,
    tool_calls,
)


def chat_response(response: Json, context: TranslationContext) -> Json:
    choice = first_choice(response)
    return base(context) | {"message": _ollama_message(choice)} | _end(response, choice, context, None)


def generate_response(response: Json, context: TranslationContext) -> Json:
    choice = first_choice(response)
    message = member(choice, "message")
    answer = {"response": text_of(message, "content") or text_of(choice, "text")}
    if thinking := reasoning(message):
        answer["thinking"] = thinking
    return base(context) | answer | _end(response, choice, context, None)


def _ollama_message(choice: Json) -> Json:
    message = member(choice, "message")
    answer: Json = {"role": "assistant", "content": text_of(message, "content")}
    if thinking := reasoning(message):
        answer["thinking"] = thinking
    if calls := [_ollama_call(*call) for _, *call in tool_calls(message)]:
        answer["tool_calls"] = calls
    return answer


def _ollama_call(call_id: str, name: str, arguments: str) -> Json:
    call: Json = {"function": {"name": name, "arguments": parse_arguments(arguments)}}
    return {"id": call_id, **call} if call_id else call


def embed_response(response: Json, context: TranslationContext) -> Json:
    duration = _ns(context.now() - context.began)
    counts = {"total_duration": duration, "load_duration": 0}
    counts["prompt_eval_count"] = count(member(response, "usage"), "prompt_tokens")
    return {"model": context.model, "embeddings": _vectors(response)} | counts


def embeddings_response(response: Json, context: TranslationContext) -> Json:
    return {"embedding": next(iter(_vectors(response)), [])}


def _vectors(response: Json) -> list[Any]:
    data = response.get("data")
    rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    return [row.get("embedding", []) for row in sorted(rows, key=lambda row: count(row, "index"))]


def base(context: TranslationContext) -> Json:
    return {"model": context.model, "created_at": timestamp(context.now())}


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _end(response: Json, choice: Json, context: TranslationContext, first_at: float | None) -> Json:
    """`first_at`: when the first token arrived, if that is known."""
    usage, timings = member(response, "usage"), member(response, "timings")
    total_s = max(0.0, context.now() - context.began)
    prompt_s = max(0.0, first_at - context.began) if first_at is not None else 0.0
    answer_s = total_s - prompt_s
    if isinstance(timings.get("prompt_ms"), (int, float)) and isinstance(
        timings.get("predicted_ms"), (int, float)
    ):
        prompt_s, answer_s = timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000
    end: Json = {
        "done": True,
        "done_reason": "length" if choice.get("finish_reason") == "length" else "stop",
        "total_duration": _ns(total_s),
        "load_duration": 0,
        "prompt_eval_count": count(usage, "prompt_tokens"),
        "prompt_eval_duration": _ns(prompt_s),
        "eval_count": count(usage, "completion_tokens"),
        "eval_duration": _ns(answer_s),
    }
    if isinstance(content := member(choice, "logprobs").get("content"), list):
        end["logprobs"] = content
    return end


def _ns(seconds: float) -> int:
    return max(1, round(seconds * 1e9))


class _LineWriter(ABC):
    """A stream as lines; what a line carries is the API's."""

    def __init__(self, context: TranslationContext) -> None:
        self._context = context
        self._calls = ToolCallDeltas()
        self._end: Json = {}
        self._choice: Json = {}
        self._first_at: float | None = None

    def take(self, chunk: Json) -> bytes:
        self._end |= {name: chunk[name] for name in ("usage", "timings") if isinstance(chunk.get(name), dict)}
        choice = first_choice(chunk)
        delta = member(choice, "delta")
        self._calls.take(delta)
        if choice.get("finish_reason"):
            self._choice = {"finish_reason": choice["finish_reason"]}
        text, thinking = text_of(delta, "content") or text_of(choice, "text"), reasoning(delta)
        if not text and not thinking:
            return b""
        if self._first_at is None:
            self._first_at = self._context.now()
        line = self._line(text, thinking)
        if isinstance(content := member(choice, "logprobs").get("content"), list):
            line["logprobs"] = content
        return dump(line) + b"\n"

    def end(self) -> bytes:
        out, line = b"", self._line("", "")
        calls = [_ollama_call(*call) for call in self._calls.whole()]
        if calls and "message" in line:  # an answer of `generate` has no place for calls
            line["message"]["tool_calls"] = calls
            out = dump(line) + b"\n"
        last = self._line("", "") | _end(self._end, self._choice, self._context, self._first_at)
        return out + dump(last) + b"\n"

    @abstractmethod
    def _line(self, text: str, thinking: str) -> Json: ...


class ChatWriter(_LineWriter):
    def _line(self, text: str, thinking: str) -> Json:
        message = {"role": "assistant", "content": text} | ({"thinking": thinking} if thinking else {})
        return base(self._context) | {"message": message, "done": False}


class GenerateWriter(_LineWriter):
    def _line(self, text: str, thinking: str) -> Json:
        answer = {"response": text} | ({"thinking": thinking} if thinking else {})
        return base(self._context) | answer | {"done": False}


def waiting_line(path: bytes, context: TranslationContext) -> bytes:
    """A line without text, for a client that waits for its model: clients know nothing like a comment."""
    writer = ChatWriter(context) if path == b"/api/chat" else GenerateWriter(context)
    return dump(writer._line("", "")) + b"\n"
