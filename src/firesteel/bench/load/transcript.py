"""Read a recorded stream and judge whether its numbers can be trusted: bytes with times -> `RequestSample`.
Pure.

A sample that went wrong has a kind and a reason, and never enters a figure. These claims of a server can be
disproved: more tokens than allowed, fewer tokens than chunks with text (a chunk holds one token or several),
another prompt length than its tokenizer counted, more cached tokens than the prompt has. Whether `usage`
contradicts the text itself is judged by `usage_contradicts_text`, for which the answer is tokenized again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from statistics import median
from typing import Any

from msgspec import Struct

from firesteel.bench.load.client import RawResponse
from firesteel.bench.measurements import RequestSample, Wrong
from firesteel.edge.http import answer
from firesteel.errors import printable
from firesteel.values import Value, replace

_MAX_QUOTE = 300
_MAX_SPLIT_CHUNKS = 2
"""Chunks that may hold half a token, where reasoning ends and the answer begins."""
_STALL_S, _STALL_FACTOR = 1.0, 25.0
_MAX_LAG_S = 0.05
_HIDDEN_SHARE, _HIDDEN_SHARE_ESTIMATED = 0.2, 0.4
"""Share of an answer's tokens that its text does not account for, from which on they count as hidden: if the
text was counted, and if it was estimated."""
_ONE_TOKEN_PER_CHUNK = 1.3
_DONE = answer.DONE.encode()
_SSE_FIELDS = (b"event:", b"id:", b"retry:", b":")


class ExpectedSample(Value):
    """What was asked of the server: the sample is checked against it."""

    point: int
    repetition: int
    started_s: float
    max_tokens: int
    prompt_tokens: int | None = None
    """The expected count; None: unknown beforehand."""
    slack: int = 0
    """How far the count may be off."""
    must_continue: bool = True
    """The request forbids an end before `max_tokens`, and the server is known to obey."""
    late_s: float = 0.0
    queued_s: float = 0.0
    """The part of `late_s` spent waiting for a free slot, which is not the client's fault."""
    stream: int | None = None
    is_cold: bool = False
    longest_ttft_s: float = 0.0
    """The longest wait for a first chunk in this repetition: other prompts may delay a stream this long."""


class Transcript(Struct):
    """A stream after parsing."""

    times: list[float] = []
    """When each chunk with text arrived, in seconds since the request was sent."""
    text: str = ""
    first_text: str = ""
    """The text of the first such chunk."""
    shows_reasoning: bool = False
    """Reasoning arrived as text."""
    finish: str | None = None
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    is_done: bool = False
    error: str = ""
    garbage: str = ""


def read_stream(raw: RawResponse) -> Transcript:
    transcript = Transcript()
    parts: list[str] = []
    try:
        for arrived, line in _timed_lines(raw):
            if line and not _read_line(transcript, line, arrived - raw.sent, parts):
                break
    except answer.LineTooLong as error:
        transcript.garbage = str(error)
    transcript.text = "".join(parts)
    transcript.first_text = parts[0] if parts else ""
    return transcript


def _timed_lines(raw: RawResponse) -> Iterator[tuple[float, bytes]]:
    """Each line with the time at which its end arrived."""
    splitter = answer.LineSplitter()
    arrived = raw.ended
    for arrived, piece in raw.pieces:
        for line in splitter.feed(piece):
            yield arrived, line
    if rest := splitter.rest():
        yield arrived, rest


def _read_line(transcript: Transcript, line: bytes, arrived_s: float, parts: list[str]) -> bool:
    """False: nothing after this line can be read, or nothing follows."""
    data = answer.event_bytes(line)
    if data is None:
        if line.startswith(_SSE_FIELDS):
            return True
        transcript.garbage = f"not an event stream: {_quote(line)}"
        return False
    if data == _DONE:
        transcript.is_done = True
        return False
    return _read_chunk(transcript, data, arrived_s, parts)


def _read_chunk(transcript: Transcript, data: bytes, arrived_s: float, parts: list[str]) -> bool:
    """False: nothing after this chunk can be read."""
    try:
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError):
        transcript.garbage = f"not JSON: {_quote(data)}"
        return False
    if chunk.get("error"):
        transcript.error = _quote(json.dumps(chunk["error"]).encode())
        return False
    transcript.usage = _as_dict(chunk.get("usage")) or transcript.usage
    transcript.timings = _as_dict(chunk.get("timings")) or transcript.timings
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = _as_dict(_as_dict(choice).get("delta"))
        # vLLM calls reasoning `reasoning`, older versions `reasoning_content`, and some send both.
        reasoning = delta.get("reasoning") or delta.get("reasoning_content")
        transcript.shows_reasoning = transcript.shows_reasoning or bool(reasoning)
        if text := "".join(part for part in (reasoning, delta.get("content")) if isinstance(part, str)):
            transcript.times.append(arrived_s)
            parts.append(text)
        finish = _as_dict(choice).get("finish_reason")
        transcript.finish = finish if isinstance(finish, str) else transcript.finish
    return True


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _quote(data: bytes) -> str:
    return printable(data.decode("utf-8", "replace"), _MAX_QUOTE)


def _count(counts: dict[str, Any], name: str) -> int | None:
    value = counts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def to_sample(raw: RawResponse, transcript: Transcript, expected: ExpectedSample) -> RequestSample:
    """The request as a value: right, or wrong with its kind and the reason."""
    kind, why = (
        _connection_problem(raw)
        or _stream_problem(raw, transcript)
        or _usage_problem(transcript, expected)
        or _pause_problem(transcript, expected)
        or _client_problem(expected)
        or (None, "")
    )
    times, text = transcript.times, transcript.text
    return RequestSample(
        point=expected.point,
        repetition=expected.repetition,
        started_s=expected.started_s,
        first_s=times[0] if times else None,
        last_s=times[-1] if times else None,
        total_s=raw.ended - raw.sent,
        gaps_s=tuple(b - a for a, b in pairwise(times)),
        prompt_tokens=_count(transcript.usage, "prompt_tokens"),
        completion_tokens=_count(transcript.usage, "completion_tokens"),
        cached_tokens=_cached(transcript),
        is_cold=expected.is_cold,
        wrong=kind,
        why=why,
        finish=transcript.finish,
        text_hash=sha256(text.encode("utf-8", "replace")).hexdigest()[:16] if text else "",
        server_decode_tokens_per_s=_rate(transcript, "predicted_per_second"),
        server_prefill_tokens_per_s=_rate(transcript, "prompt_per_second"),
        late_s=expected.late_s,
        queued_s=expected.queued_s,
        stream=expected.stream,
        first_tokens=first_chunk_tokens(transcript),
        hidden_tokens=_hidden(transcript),
    )


def first_chunk_tokens(transcript: Transcript, counted: int | None = None) -> int:
    """By its share of the characters, or as a tokenizer counted them; every later chunk holds at least
    one."""
    shown = (_count(transcript.usage, "completion_tokens") or 0) - _hidden(transcript)
    share = len(transcript.first_text) / len(transcript.text) if transcript.text else 0.0
    most = 1 + shown - len(transcript.times)
    return max(1, min(most, round(share * shown) if counted is None else counted))


def _hidden(transcript: Transcript) -> int:
    """Reasoning tokens that `usage` counts and no chunk showed."""
    details = _as_dict(transcript.usage.get("completion_tokens_details"))
    reasoning = _count(details, "reasoning_tokens") or 0
    unseen = (_count(transcript.usage, "completion_tokens") or 0) - len(transcript.times)
    return 0 if transcript.shows_reasoning else max(0, min(reasoning, unseen))


def with_hidden_tokens(
    sample: RequestSample, transcript: Transcript, counted: int, *, is_exact: bool = True
) -> RequestSample:
    """Add the tokens that `usage` counts beyond the text, if they are too many for chance.

    A text that is tokenized again is a little shorter, and an estimate may be far off. If the estimate is
    about one token per chunk, chunks are tokens, and both agree.
    """
    completion, chunks = sample.completion_tokens or 0, len(transcript.times)
    missing = completion - sample.hidden_tokens - max(counted, chunks)
    is_sure = is_exact or counted <= _ONE_TOKEN_PER_CHUNK * chunks
    if sample.wrong or missing <= (_HIDDEN_SHARE if is_sure else _HIDDEN_SHARE_ESTIMATED) * completion:
        return sample
    return replace(sample, hidden_tokens=sample.hidden_tokens + missing)


def _cached(transcript: Transcript) -> int | None:
    cached = _count(_as_dict(transcript.usage.get("prompt_tokens_details")), "cached_tokens")
    return cached if cached is not None else _count(transcript.timings, "cache_n")


def _rate(transcript: Transcript, name: str) -> float | None:
    value = transcript.timings.get(name)
    return float(value) if isinstance(value, int | float) and 0 < value < 1e9 else None


# --- what went wrong ---

Problem = tuple[Wrong, str] | None


def _client_problem(expected: ExpectedSample) -> Problem:
    lag = expected.late_s - expected.queued_s
    return ("late", f"sent {lag:.3f} s late, although a slot was free") if lag > _MAX_LAG_S else None


def _connection_problem(raw: RawResponse) -> Problem:
    if raw.end == "refused":
        return "refused", raw.why
    if raw.end in ("not HTTP", "endless"):
        return "garbled", raw.why
    if raw.status is not None and raw.status != 200:
        return "http", f"HTTP {raw.status}: {_quote(b''.join(piece for _, piece in raw.pieces))}"
    return None


def _stream_problem(raw: RawResponse, transcript: Transcript) -> Problem:
    if transcript.error:
        return "dropped", f"the stream contained an error: {transcript.error}"
    if transcript.garbage and raw.end != "closed":
        return "garbled", transcript.garbage
    if transcript.is_done:
        return None
    if raw.end == "stalled":
        return "stalled", raw.why
    if transcript.garbage or raw.end == "closed" or transcript.finish is None:
        return "dropped", raw.why or "the stream ended without `finish_reason` and `[DONE]`"
    return None


def _usage_problem(transcript: Transcript, expected: ExpectedSample) -> Problem:
    prompt = _count(transcript.usage, "prompt_tokens")
    completion = _count(transcript.usage, "completion_tokens")
    if prompt is None or completion is None:
        return "no usage", "the server reports no token counts, and chunks are not tokens"
    chunks, cached, allowed = len(transcript.times), _cached(transcript), expected.max_tokens
    if completion > allowed:
        return "wrong usage", f"reports {completion} tokens where {allowed} were allowed"
    if chunks > completion + _MAX_SPLIT_CHUNKS:
        return "wrong usage", f"reports {completion} tokens, but {chunks} chunks had text"
    if expected.prompt_tokens is not None and abs(prompt - expected.prompt_tokens) > expected.slack:
        counted = expected.prompt_tokens
        return "wrong usage", f"reports a prompt of {prompt} tokens; its tokenizer counts {counted}"
    if cached is not None and cached > prompt:
        return "wrong usage", f"reports {cached} cached tokens of a prompt of {prompt}"
    if completion and not chunks:
        return "garbled", f"reports {completion} tokens, but no text came"
    if not completion or (expected.must_continue and completion < allowed):
        return "short", f"{completion} of {allowed} tokens, finish_reason {transcript.finish}"
    return None


def _pause_problem(transcript: Transcript, expected: ExpectedSample) -> Problem:
    """A pause that the prompt of another request does not explain."""
    gaps = [b - a for a, b in pairwise(transcript.times)]
    if len(gaps) < 4:
        return None
    usual, longest = median(gaps), max(gaps)
    explained_s = 1.5 * max(expected.longest_ttft_s, transcript.times[0])
    if longest > max(_STALL_S, _STALL_FACTOR * usual, explained_s):
        return "stalled", f"no data for {longest:.1f} s in the middle; {1000 * usual:.0f} ms is usual"
    return None


def usage_contradicts_text(reported: int, recounted: int, chunks: int) -> bool:
    """Does the tokenizer's count of the text disprove `usage`?

    Tokenized again, a text may be some tokens shorter, and special tokens show no text. One chunk per token
    confirms `usage`.
    """
    slack = 8 + 0.15 * reported
    return recounted - reported > slack or (reported - recounted > slack and reported - chunks > slack)
