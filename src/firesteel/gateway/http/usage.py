"""How many tokens an answer took, as the engine counted them, from the last bytes of the answer.

Answers are passed on unread, so there is no document to look into, only its end. `"usage"` without a
backslash before it is a string of its own there too (see `body.py`), and what it holds closes before the
end. What the model says stands in strings, with its quotes escaped. The one place where it can put keys of
its own into an answer is the input of an Anthropic tool call, deeper down: so a `usage` counts only where
the brackets behind it say that it is near the top.

Who says what, and when (seen 2026-11-15):
- OpenAI's chat and completions: at the end; in a stream only if asked for (`stream_options`), in the last
  event.
- Responses: in `response.completed`, the last event, behind all of the output.
- Anthropic's: `message_delta` at the end has the output; the input is in `message_start`, and vLLM repeats
  it at the end.
- llama.cpp: embeddings and reranks have it before the data. Streams that were not asked for it have
  `timings`
  (https://github.com/ggml-org/llama.cpp/blob/b21e4de74567f5eef213765c9476a843c2e43f0d/tools/server/README.md,
  "timings": `prompt_n + cache_n + predicted_n` are all tokens).
So the first bytes help too, where somebody kept them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from firesteel.gateway.http.body import closes
from firesteel.gateway.interfaces import Usage

TAIL_BYTES = 4096
HEAD_BYTES = 2048

_VALUE = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*(?=\{)")
_FLAT = re.compile(
    rb""""usage":\s*{\s*"prompt_tokens":\s*([0-9]{1,15}),\s*(?:"total_tokens":\s*[0-9]{1,15},\s*)?"""
    rb""""completion_tokens":\s*([0-9]{1,15})"""
    rb"""(?:,\s*"(?:total_tokens|prompt_tokens_details)":\s*(?:[0-9]{1,15}|null))*\s*}"""
    rb"""(?:,\s*"[a-z_]+":\s*null)*\s*}\s*"""
)
"""As vLLM writes it, and OpenAI where nothing was cached: then not even this little is parsed."""
_DECODER = json.JSONDecoder()
_BACKSLASH = ord("\\")
_DEPTHS = {False: (1,), True: (1, 2)}
"""In a stream it may lie within the `response` or the `message` of an event."""


def find_usage(tail: bytes, is_stream: bool, head: bytes = b"") -> Usage | None:
    """What the last `TAIL_BYTES` of an answer say, and what only the first `HEAD_BYTES` do. None: nothing."""
    plain = _plain(tail, is_stream)
    if plain is not None:
        return plain
    counts: dict[str, int] = {}
    for found in _objects(tail, b'"usage"', is_stream):
        _add(counts, _from_usage(found))
    if not counts:
        for found in _objects(tail, b'"timings"', is_stream):
            _add(counts, _from_timings(found))
    if "prompt_tokens" not in counts:
        for found in _early_objects(head[:HEAD_BYTES], b'"usage"', is_stream):
            _add(counts, _from_usage(found))
    return Usage(**counts) if counts else None


def _plain(tail: bytes, is_stream: bool) -> Usage | None:
    """OpenAI's at the end, in a third of the time: what follows `"usage"` up to the end is, behind a `{`, a
    whole object only if the key lies at the top."""
    at = tail.rfind(b'"usage"')
    end = tail.find(b"\n", at) if is_stream else len(tail)
    if at < 1 or end < 0 or tail[at - 1] == _BACKSLASH:
        return None
    if flat := _FLAT.fullmatch(tail, at, end):
        return Usage(int(flat[1]), int(flat[2]))
    try:
        usage = _DECODER.decode("{" + tail[at:end].decode())["usage"]
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
    """What came later in the answer is here first, and stays."""
    for name, value in more.items():
        if value is not None:
            counts.setdefault(name, value)


def _objects(tail: bytes, key: bytes, is_stream: bool) -> Iterator[dict[str, object]]:
    """The objects of that name near the top, the last first."""
    for at, start in _members(tail, key):
        end = tail.find(b"\n", at) if is_stream else len(tail)
        if end > 0 and closes(tail[at:end]) in _DEPTHS[is_stream]:
            yield from _object(tail[start:end])


def _early_objects(head: bytes, key: bytes, is_stream: bool) -> Iterator[dict[str, object]]:
    for at, start in _members(head, key):
        begin = head.rfind(b"\n", 0, at) + 1 if is_stream else 0
        if -closes(head[begin:at]) in _DEPTHS[is_stream]:
            yield from _object(head[start:])


def _members(text: bytes, key: bytes) -> Iterator[tuple[int, int]]:
    """At the very first byte it might be the end of what was cut off: `\\"usage`."""
    stop = len(text)
    while (at := text.rfind(key, 1, stop)) >= 1:
        stop = at
        value = _VALUE.match(text, at + len(key))
        if value and text[at - 1] != _BACKSLASH:
            yield at, value.end()


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
        # Anthropic's `input_tokens` are those that no cache had.
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
