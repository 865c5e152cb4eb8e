"""Take token counts out of an event stream whose client did not ask for them (`usage_request.py`).

Three things differ between a stream with counts and one without: an event at the end that has no choices but
`usage`; with continuous counts a `usage` in every event (SGLang writes `null` there without them), or
llama.cpp's `timings`, which only the last event has unasked; and fields of the last event, whichever
it is (`timings`, and vLLM's `system_fingerprint`). So an event that ends a choice is held until the next one
arrives, and gets these back.

From the sources, seen 2026-11-15: vLLM `vllm/entrypoints/openai/chat_completion/serving.py`, llama.cpp
`tools/server/server-task.cpp` (`to_json_oaicompat_chat_stream`), SGLang `entrypoints/openai/serving_chat.py`.
"""

from __future__ import annotations

import json
import re

from firesteel.gateway.interfaces import Counting

_MAX_PARTIAL_BYTES = 64 * 1024
_END = re.compile(rb"\r?\n\r?\n")
_COUNTS = re.compile(rb',\s?"(?:usage|timings)":\s?\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}(?=[,}])')
_NO_CHOICES = re.compile(rb'"choices":\s?\[\]')
_LAST_EVENT_FIELDS = ("timings", "system_fingerprint")


class UsageFilter:
    """`take` gets the content of the stream in pieces of any size, and returns whole events."""

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
            if self._strips_event and _NO_CHOICES.search(event) and b'"usage":null' not in event:
                self._held = b""
                return _with_last_fields(held, event) if held else b""
            is_wanted = self._has_timings and (is_last or _ends_stream(event))
            is_wanted = is_wanted or (not self._strips_event and _NO_CHOICES.search(event) is not None)
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


def _ends_stream(event: bytes) -> bool:
    """The last event in llama.cpp's own format, or the one with `usage`."""
    return b'"stop":true' in event or _NO_CHOICES.search(event) is not None


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
    text = json.dumps(moved, separators=(",", ":"), ensure_ascii=False).encode()[1:-1]
    return held[:end] + b"," + text + held[end:]
