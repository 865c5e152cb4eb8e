"""The token counts of a response, as the engine reports them, from the last bytes of the response; and a
lower bound for a stream that ends without them.

Responses are forwarded unparsed, so there is no document to search, only its end. `"usage"` without a
backslash before it is a complete string there too (see `body.py`), and its object closes before the end. Text
from the model is inside strings, with its quotes escaped. Only in the input of an Anthropic tool call can it
add keys of its own, deeper in the response: so `usage` counts only if the brackets behind it show that it is
near the top.

What the APIs send, and where (seen 2026-11-15):
- OpenAI's chat and completions: at the end; in a stream only on request (`stream_options`), in the last
  event.
- Responses: in `response.completed`, the last event, after all output.
- Anthropic's: `message_delta` at the end has the output; the input is in `message_start`, and vLLM repeats it
  at the end.
- llama.cpp: embeddings and reranks have it before the data. Streams without `stream_options` have `timings`
  (https://github.com/ggml-org/llama.cpp/blob/b21e4de74567f5eef213765c9476a843c2e43f0d/tools/server/README.md,
  "timings": `prompt_n + cache_n + predicted_n` are all tokens).
So the first bytes of the response are used too, if available.

A stream that is cut, or whose engine never counts, has at least as many tokens as it has deltas with text: an
engine sends one or several tokens with each.
A `UsageFilter` takes counts out of a stream whose client did not ask for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from firesteel.gateway.http.body import net_closing_brackets
from firesteel.gateway.http.upstream import PIECES
from firesteel.gateway.interfaces import Counting, Usage
from firesteel.gateway.translate.values import dump

TAIL_BYTES = 4096
HEAD_BYTES = 2048

_VALUE = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*(?=\{)")
_VLLM_USAGE = re.compile(
    rb""""usage":\s*{\s*"prompt_tokens":\s*([0-9]{1,15}),\s*(?:"total_tokens":\s*[0-9]{1,15},\s*)?"""
    rb""""completion_tokens":\s*([0-9]{1,15})"""
    rb"""(?:,\s*"(?:total_tokens|prompt_tokens_details)":\s*(?:[0-9]{1,15}|null))*\s*}"""
    rb"""(?:,\s*"[a-z_]+":\s*null)*\s*}\s*"""
)
"""As vLLM writes it, and OpenAI if nothing was cached: this needs no JSON parser at all."""
_DELTA = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text|arguments|thinking|partial_json)":\s?"(?!")[^\n]*'
)
_RESPONSES_DELTA = re.compile(rb'"delta":\s?"(?!")[^\n]*')
"""At most once in each line, and so in each event. The last events of a `response` repeat its text."""
_DECODER = json.JSONDecoder()
_BACKSLASH = ord("\\")
_DEPTHS = {False: (1,), True: (1, 2)}
"""In a stream it may be inside the `response` or the `message` of an event."""


_LAST_EVENT = re.compile(
    rb"^(?:data: ?\[DONE\]|event: ?(?:response\.(?:completed|incomplete)|message_stop))", re.MULTILINE
)


class ResponseTail(list[bytes]):
    """The last pieces of a response body, and the number of deltas in those before them."""

    first = b""
    """The beginning of the first piece, if it is no longer in the list."""
    is_response = False
    """Of the route with that name."""
    _deltas = 0

    def trim(self) -> None:
        """Called when there are more than `PIECES`, so that a piece costs a part of one search."""
        self.first = self.first or self[0]
        self._deltas += self._count(self[: PIECES // 2])
        del self[: PIECES // 2]

    def end_of(self, piece: bytes) -> bytes:
        """The end of a piece that is longer than `TAIL_BYTES`."""
        if not self:
            self.first = piece[:HEAD_BYTES]
        self._deltas += self._count([piece[:-TAIL_BYTES]])
        return piece[-TAIL_BYTES:]

    def has_last_event(self) -> bool:
        """Whether the last event of a stream is in it: some clients leave without waiting for its end."""
        return _LAST_EVENT.search(b"".join(self)[-TAIL_BYTES:]) is not None

    def usage(self, is_stream: bool, is_whole: bool) -> Usage | None:
        """As the engine counted, if the response is complete; otherwise at least what arrived."""
        if not self:
            return None
        if len(self) == 1 and not is_stream:
            return find_usage(self[0], False, self.first or self[0])
        tail = b"".join(self)[-TAIL_BYTES:]
        usage = find_usage(tail, is_stream, self.first or self[0])
        if not is_stream or (is_whole and usage is not None and usage.completion_tokens is not None):
            return usage
        deltas = self._deltas + self._count(self)
        if usage is None:
            return Usage(None, deltas) if deltas else None
        usage.completion_tokens = max(usage.completion_tokens or 0, deltas)
        return usage

    def _count(self, pieces: list[bytes]) -> int:
        text = b"".join(pieces)
        if self.is_response:
            return len(_RESPONSES_DELTA.findall(text))
        if text.count(b'"content":"') == len(pieces) and b'"content":""' not in text:
            return len(pieces)  # one delta in each piece, as nearly always: a third of the time
        return len(_DELTA.findall(text))


_RUNNING = re.compile(
    rb'(?<!\\)"(prompt_tokens|input_tokens|prompt_n|cache_n|completion_tokens|output_tokens|predicted_n)"'
    rb":\s?([0-9]{1,15})"
)
_PROMPTS = (b"prompt_tokens", b"input_tokens")
_ANSWERS = (b"completion_tokens", b"output_tokens", b"predicted_n")
_MAX_LINE_BYTES = 64 * 1024


class RunningCount:
    """The tokens of a stream so far, prompt and answer, for a key whose limit may end it: what the engine
    says in its events, and no less than a token for each delta."""

    __slots__ = ("_before", "_counts", "_delta", "_deltas", "_partial", "_prompt")

    def __init__(self, prompt_tokens: int, *, is_response: bool) -> None:
        """The prompt as estimated, until the engine has counted it."""
        self._prompt, self._deltas, self._partial = prompt_tokens, 0, b""
        self._delta = _RESPONSES_DELTA if is_response else _DELTA
        self._counts: dict[bytes, int] = {}
        self._before = 0, b"", self._counts

    def take(self, piece: bytes) -> int:
        self._before = self._deltas, self._partial, {**self._counts}
        data = self._partial + piece
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) > _MAX_LINE_BYTES else 0)
        lines, self._partial = data[:end], data[end:]
        self._deltas += len(self._delta.findall(lines))
        counts = self._counts
        for name, value in _RUNNING.findall(lines):
            counts[name] = max(counts.get(name, 0), int(value))
        prompt = max(counts.get(b"prompt_n", 0) + counts.get(b"cache_n", 0), self._most(*_PROMPTS))
        return (prompt or self._prompt) + max(self._deltas, self._most(*_ANSWERS))

    def take_back(self, piece: bytes, limit: int) -> int:
        """How much of the last piece may be passed on with a limit of tokens: whole events. One that has
        begun before is one of them."""
        self._deltas, self._partial, self._counts = self._before
        position, has_begun = 0, bool(self._partial)
        while (end := piece.find(b"\n\n", position) + 2) >= 2:
            if self.take(piece[position:end]) > limit and not has_begun:
                break
            position, has_begun = end, False
        return position

    def _most(self, *names: bytes) -> int:
        return max(self._counts.get(name, 0) for name in names)


def find_usage(tail: bytes, is_stream: bool, head: bytes = b"") -> Usage | None:
    """From the last `TAIL_BYTES` of a response, and what is missing there from the first `HEAD_BYTES`."""
    usage = _find_common(tail, is_stream)
    if usage is not None:
        return usage
    counts: dict[str, int] = {}
    for value in _objects(tail, b'"usage"', is_stream):
        _add(counts, _from_usage(value))
    if not counts:
        for value in _objects(tail, b'"timings"', is_stream):
            _add(counts, _from_timings(value))
    if "prompt_tokens" not in counts:
        for value in _early_objects(head[:HEAD_BYTES], b'"usage"', is_stream):
            _add(counts, _from_usage(value))
    return Usage(**counts) if counts else None


def _find_common(tail: bytes, is_stream: bool) -> Usage | None:
    """The common case, OpenAI's at the end, in a third of the time: `{` plus everything from `"usage"` to the
    end is a complete object only if the key is at the top level."""
    position = tail.rfind(b'"usage"')
    end = tail.find(b"\n", position) if is_stream else len(tail)
    if position < 1 or end < 0 or tail[position - 1] == _BACKSLASH:
        return None
    if match := _VLLM_USAGE.fullmatch(tail, position, end):
        return Usage(int(match[1]), int(match[2]))
    try:
        usage = _DECODER.decode("{" + tail[position:end].decode())["usage"]
        prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if _count(prompt) is None or _count(completion) is None:
        return None
    details = usage.get("prompt_tokens_details")
    return Usage(
        prompt, completion, _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    )


def _add(counts: dict[str, int], more: dict[str, int | None]) -> None:
    """Later values of the response are added first, and are kept."""
    for name, value in more.items():
        if value is not None:
            counts.setdefault(name, value)


def _objects(tail: bytes, key: bytes, is_stream: bool) -> Iterator[dict[str, object]]:
    """Objects of that name near the top level, the last first."""
    for position, start in _members(tail, key):
        end = tail.find(b"\n", position) if is_stream else len(tail)
        if end > 0 and net_closing_brackets(tail[position:end]) in _DEPTHS[is_stream]:
            yield from _object(tail[start:end])


def _early_objects(head: bytes, key: bytes, is_stream: bool) -> Iterator[dict[str, object]]:
    for position, start in _members(head, key):
        begin = head.rfind(b"\n", 0, position) + 1 if is_stream else 0
        if -net_closing_brackets(head[begin:position]) in _DEPTHS[is_stream]:
            yield from _object(head[start:])


def _members(text: bytes, key: bytes) -> Iterator[tuple[int, int]]:
    """Not at the very first byte: its backslash may have been cut off (`\\"usage`)."""
    stop = len(text)
    while (position := text.rfind(key, 1, stop)) >= 1:
        stop = position
        value = _VALUE.match(text, position + len(key))
        if value and text[position - 1] != _BACKSLASH:
            yield position, value.end()


def _object(text: bytes) -> Iterator[dict[str, object]]:
    try:
        value, _ = _DECODER.raw_decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return
    yield value


def _from_usage(usage: dict[str, object]) -> dict[str, int | None]:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    read = _count(usage.get("cache_read_input_tokens"))
    if prompt is not None and read is not None:
        # Anthropic's `input_tokens` do not include cached ones.
        prompt += read + (_count(usage.get("cache_creation_input_tokens")) or 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": _first(usage, "completion_tokens", "output_tokens"),
        "cached_tokens": cached if cached is not None else read,
    }


def _from_timings(timings: dict[str, object]) -> dict[str, int | None]:
    new, cached = _count(timings.get("prompt_n")), _count(timings.get("cache_n"))
    return {
        "prompt_tokens": None if new is None else new + (cached or 0),
        "completion_tokens": _count(timings.get("predicted_n")),
        "cached_tokens": cached,
    }


def _first(usage: dict[str, object], *names: str) -> int | None:
    return next((count for name in names if (count := _count(usage.get(name))) is not None), None)


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


_MAX_PARTIAL_BYTES = 64 * 1024
_END = re.compile(rb"\r?\n\r?\n")
_COUNTS = re.compile(rb',\s?"(?:usage|timings)":\s?\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}(?=[,}])')
_NO_CHOICES = re.compile(rb'"choices":\s?\[\]')
_LAST_EVENT_FIELDS = ("timings", "system_fingerprint")


class UsageFilter:
    """Take token counts out of an event stream whose client did not ask for them (`body_edits.py`).

    Three things differ between a stream with counts and one without: an event at the end that has no choices
    but `usage`; with continuous counts a `usage` in every event (SGLang writes `null` there without them), or
    llama.cpp's `timings`, which only the last event has unasked; and fields of the last event, whichever
    it is (`timings`, and vLLM's `system_fingerprint`). So an event that ends a choice is held until the next
    one arrives, and gets these back.

    From the sources, seen 2026-11-15: vLLM `vllm/entrypoints/openai/chat_completion/serving.py`, llama.cpp
    `tools/server/server-task.cpp` (`to_json_oaicompat_chat_stream`), SGLang
    `entrypoints/openai/serving_chat.py`.

    `take` gets the content of the stream in pieces of any size, and returns whole events.
    """

    __slots__ = ("_has_timings", "_held", "_instead", "_key", "_partial", "_strips_event", "_strips_fields")

    def __init__(self, counting: Counting, *, strips_event: bool, strips_fields: bool) -> None:
        self._strips_event, self._strips_fields = strips_event, strips_fields
        self._has_timings = counting == "timings"
        self._key = b'"timings"' if self._has_timings else b'"usage"'
        self._instead = b',"usage":null' if counting == "continuous or null" else b""
        self._partial = self._held = b""

    def take(self, data: bytes) -> bytes:
        if not self._partial and data.find(b"\n\n") == len(data) - 2:  # one event, as nearly always
            return self._event(data)
        data = self._partial + data
        out, start = [], 0
        for end in _END.finditer(data):
            out.append(self._event(data[start : end.end()]))
            start = end.end()
        self._partial = data[start:]
        if len(self._partial) > _MAX_PARTIAL_BYTES:
            out.append(self.end())
        return b"".join(out)

    def end(self, *, is_broken: bool = False) -> bytes:
        """What is left when the stream ends; of a broken one whole events only."""
        rest = self._held if is_broken else self._held + self._partial
        self._held = self._partial = b""
        return rest

    def _event(self, event: bytes) -> bytes:
        position = event.rfind(self._key)
        held = self._held
        is_last = b'"finish_reason":"' in event or b'"finish_reason": "' in event
        if position > 0:
            has_no_choices = _NO_CHOICES.search(event) is not None
            if self._strips_event and has_no_choices and b'"usage":null' not in event:
                self._held = b""
                return _with_last_fields(held, event) if held else b""
            # The last event in llama.cpp's own format, or the one with `usage`.
            ends_stream = is_last or b'"stop":true' in event or has_no_choices
            is_wanted = (self._has_timings and ends_stream) or (not self._strips_event and has_no_choices)
            if self._strips_fields and not is_wanted:
                counts = _COUNTS.match(event, event.rfind(b",", 0, position))
                if counts is not None:
                    event = event[: counts.start()] + self._instead + event[counts.end() :]
        if is_last and self._strips_event:
            self._held = event
            return held
        if held:
            self._held = b""
            return held + event
        return event


def _with_last_fields(held: bytes, last: bytes) -> bytes:
    """The event before the removed one, which would have been the last."""
    try:
        fields = json.loads(last[last.index(b"{") :])
    except ValueError:
        return held
    moved = {name: fields[name] for name in _LAST_EVENT_FIELDS if fields.get(name) is not None}
    moved = {name: value for name, value in moved.items() if f'"{name}"'.encode() not in held}
    end = held.rfind(b"}")
    if not moved or end < 0:
        return held
    return held[:end] + b"," + dump(moved)[1:-1] + held[end:]
