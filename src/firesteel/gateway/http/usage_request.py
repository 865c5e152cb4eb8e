"""Ask an engine for the token counts of a stream, where its client did not.

Engines count in a stream only on request: `stream_options.include_usage` brings the counts at the end, and
`continuous_usage_stats` (vLLM, SGLang) or `timings_per_token` (llama.cpp) with every event, so that a stream
that is cut has them too. The
request is edited by position: a body of megabytes is neither parsed nor copied. What the client did not ask
for is taken out of the response again (`usage_filter.py`).

Only options near either end of the body are seen, where all known clients write them. A stream that escapes
this is counted by its deltas (`usage.py`).
"""

from __future__ import annotations

import json

from firesteel.gateway.http.body import STREAM, STREAM_OPTIONS, Edit, find_near_ends
from firesteel.gateway.interfaces import Counting
from firesteel.values import Value

_MAX_OPTIONS_BYTES = 1024
_DECODER = json.JSONDecoder()


class UsageRequest(Value):
    edit: Edit
    strips_event: bool
    """The client did not ask for the event with the counts at the end."""
    strips_fields: bool
    """It did not ask for counts in every event."""


def request_usage(body: bytes, counting: Counting) -> UsageRequest | None:
    """None: the body asks for no stream, or for all the counts already."""
    if (value := find_near_ends(body, STREAM)) is None or not body.startswith(b"true", value):
        return None
    if counting == "timings":
        is_asked = b'"timings_per_token"' in body
        edit = (value + 4, value + 4, b',"timings_per_token":true')
        return None if is_asked else UsageRequest(edit, False, True)
    is_continuous = counting != "at the end"
    options = find_near_ends(body, STREAM_OPTIONS)
    if options is not None:
        return _extend(body, options, is_continuous)
    if b'"stream_options"' in body:  # somewhere in the middle, or in a prompt
        return None
    text = b',"stream_options":' + _dump(_wanted(is_continuous))
    return UsageRequest((value + 4, value + 4, text), True, is_continuous)


def _extend(body: bytes, start: int, is_continuous: bool) -> UsageRequest | None:
    text = body[start : start + _MAX_OPTIONS_BYTES].decode("latin-1")
    try:
        options, size = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if options is None:
        options = {}
    wanted = _wanted(is_continuous)
    if not isinstance(options, dict) or not text[:size].isascii() or options == options | wanted:
        return None
    edit = (start, start + size, _dump(options | wanted))
    strips_fields = is_continuous and options.get("continuous_usage_stats") is not True
    return UsageRequest(edit, options.get("include_usage") is not True, strips_fields)


def _wanted(is_continuous: bool) -> dict[str, bool]:
    wanted = {"include_usage": True}
    return wanted | {"continuous_usage_stats": True} if is_continuous else wanted


def _dump(options: dict[str, bool]) -> bytes:
    return json.dumps(options, separators=(",", ":")).encode()
