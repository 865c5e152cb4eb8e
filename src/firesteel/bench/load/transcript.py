"""What a stream said, and whether it can be believed: bytes with times -> `Sample`. Pure.

A sample that went wrong has a kind and a sentence, and no figure is made of it. What can be seen to be a
lie: more tokens than were allowed, fewer than there were chunks with words (a chunk holds one token or
several, never less), another prompt than the tokenizer made, more from the cache than there was. What a lie
it may be when the words themselves are counted, `count_is_off` says; for that the answer must be tokenized
again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from statistics import median
from typing import Any

from firesteel.bench.load.client import RawResponse
from firesteel.bench.values import RequestSample, Wrong

_MAX_SAID = 300
_SPLIT = 2
"""Chunks that may hold half a token: where thought ends and the answer begins."""
_STALL_S, _STALL_TIMES = 1.0, 25.0
_LAG_S = 0.05
_MISSING, _MISSING_ABOUT = 0.2, 0.4
"""Of an answer's tokens: the share that is not accounted for by its words, counted or estimated."""
_ONE_EACH = 1.3
_FIELDS = (b"event:", b"id:", b"retry:", b":")


@dataclass(frozen=True, slots=True)
class ExpectedSample:
    """What a sample is held against."""

    point: int
    repetition: int
    started_s: float
    max_tokens: int
    prompt_tokens: int | None = None
    """As it should be counted; None: not known beforehand."""
    slack: int = 0
    """How far off that may be."""
    goes_on: bool = True
    """It was told not to end before `max_tokens`, and is known to obey."""
    late_s: float = 0.0
    queued_s: float = 0.0
    """Of that, for want of room, which is no fault of the client's."""
    stream: int | None = None
    is_cold: bool = False
    longest_wait_s: float = 0.0
    """The longest that anybody waited for a first word here: other prompts may hold up a stream so long."""


@dataclass(slots=True)
class Transcript:
    """A stream, read."""

    times: list[float] = field(default_factory=list)
    """Of every chunk with words, in seconds from when the request was sent."""
    text: str = ""
    first_words: str = ""
    """Those of the first such chunk."""
    has_thought: bool = False
    """Thought came as words of its own."""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    is_done: bool = False
    error: str = ""
    garbage: str = ""


def read_stream(raw: RawResponse) -> Transcript:
    heard = Transcript()
    said: list[str] = []
    for at, line in _lines(raw):
        if not line.startswith(b"data:"):
            if line and not line.startswith(_FIELDS):
                heard.garbage = f"not an event stream: {_quoted(line)}"
                break
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            heard.is_done = True
            break
        if not _take(heard, data, at - raw.sent, said):
            break
    heard.text = "".join(said)
    heard.first_words = said[0] if said else ""
    return heard


def _lines(raw: RawResponse) -> Iterator[tuple[float, bytes]]:
    """Each with the time at which its end came."""
    begun: list[bytes] = []
    at = raw.ended
    for at, piece in raw.pieces:
        first, *more = piece.split(b"\n")
        begun.append(first)
        for line in more:
            yield at, b"".join(begun).strip()
            begun = [line]
    if rest := b"".join(begun).strip():
        yield at, rest


def _take(heard: Transcript, data: bytes, at: float, said: list[str]) -> bool:
    """False: nothing after this can be read."""
    try:
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError):
        heard.garbage = f"not JSON: {_quoted(data)}"
        return False
    if chunk.get("error"):
        heard.error = _quoted(json.dumps(chunk["error"]).encode())
        return False
    heard.usage = _map(chunk.get("usage")) or heard.usage
    heard.timings = _map(chunk.get("timings")) or heard.timings
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = _map(_map(choice).get("delta"))
        heard.has_thought = heard.has_thought or bool(_thought(delta))
        if words := _words(delta):
            heard.times.append(at)
            said.append(words)
        finish = _map(choice).get("finish_reason")
        heard.finish = finish if isinstance(finish, str) else heard.finish
    return True


def _words(delta: dict[str, Any]) -> str:
    """Thought and answer; vLLM calls thought `reasoning`, before that `reasoning_content`, or sends both."""
    parts = (_thought(delta), delta.get("content"))
    return "".join(part for part in parts if isinstance(part, str))


def _thought(delta: dict[str, Any]) -> Any:
    return delta.get("reasoning") or delta.get("reasoning_content")


def _map(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _quoted(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text[:_MAX_SAID])
    return shown + ("…" if len(text) > _MAX_SAID else "")


def count(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def sample(raw: RawResponse, heard: Transcript, asked: ExpectedSample) -> RequestSample:
    """The request as a value: right, or wrong with its kind and why."""
    kind, why = _wrong(raw, heard, asked) or (None, "")
    times = heard.times
    return RequestSample(
        point=asked.point,
        repetition=asked.repetition,
        started_s=asked.started_s,
        first_s=times[0] if times else None,
        last_s=times[-1] if times else None,
        total_s=raw.ended - raw.sent,
        gaps_s=tuple(b - a for a, b in pairwise(times)),
        prompt_tokens=count(heard.usage, "prompt_tokens"),
        completion_tokens=count(heard.usage, "completion_tokens"),
        cached_tokens=_cached(heard),
        is_cold=asked.is_cold,
        wrong=kind,
        why=why,
        finish=heard.finish,
        text_hash=sha256(heard.text.encode("utf-8", "replace")).hexdigest()[:16] if heard.text else "",
        server_decode_tokens_per_s=_rate(heard, "predicted_per_second"),
        server_prefill_tokens_per_s=_rate(heard, "prompt_per_second"),
        late_s=asked.late_s,
        queued_s=asked.queued_s,
        stream=asked.stream,
        first_tokens=first_tokens(heard),
        hidden_tokens=_hidden(heard),
    )


def first_tokens(heard: Transcript, counted: int | None = None) -> int:
    """By its share of the characters, or as a tokenizer counted them; every later chunk held one at least."""
    made = (count(heard.usage, "completion_tokens") or 0) - _hidden(heard)
    share = len(heard.first_words) / len(heard.text) if heard.text else 0.0
    most = 1 + made - len(heard.times)
    return max(1, min(most, round(share * made) if counted is None else counted))


def _hidden(heard: Transcript) -> int:
    """Thoughts that `usage` counts and nobody was shown."""
    thought = count(_map(heard.usage.get("completion_tokens_details")), "reasoning_tokens") or 0
    unseen = (count(heard.usage, "completion_tokens") or 0) - len(heard.times)
    return 0 if heard.has_thought else max(0, min(thought, unseen))


def unseen(sample: RequestSample, heard: Transcript, counted: int, *, is_exact: bool = True) -> RequestSample:
    """With what `usage` counts beyond the words that came, where that is too much for chance: a text made
    again is a little shorter, and one that is only estimated may be much. Where the estimate is about one
    token for each chunk, chunks are tokens, and both say the same."""
    made, chunks = sample.completion_tokens or 0, len(heard.times)
    missing = made - sample.hidden_tokens - max(counted, chunks)
    is_sure = is_exact or counted <= _ONE_EACH * chunks
    if sample.wrong or missing <= (_MISSING if is_sure else _MISSING_ABOUT) * made:
        return sample
    return replace(sample, hidden_tokens=sample.hidden_tokens + missing)


def _cached(heard: Transcript) -> int | None:
    told = count(_map(heard.usage.get("prompt_tokens_details")), "cached_tokens")
    return told if told is not None else count(heard.timings, "cache_n")


def _rate(heard: Transcript, name: str) -> float | None:
    value = heard.timings.get(name)
    return float(value) if isinstance(value, int | float) and 0 < value < 1e9 else None


Verdict = tuple[Wrong, str] | None


def _wrong(raw: RawResponse, heard: Transcript, asked: ExpectedSample) -> Verdict:
    return (
        _of_connection(raw)
        or _of_stream(raw, heard)
        or _of_usage(heard, asked)
        or _of_time(heard, asked)
        or _of_client(asked)
    )


def _of_client(asked: ExpectedSample) -> Verdict:
    lag = asked.late_s - asked.queued_s
    return ("late", f"sent {lag:.3f} s after its time, though there was room") if lag > _LAG_S else None


def _of_connection(raw: RawResponse) -> Verdict:
    if raw.end == "refused":
        return "refused", raw.why
    if raw.end in ("not HTTP", "endless"):
        return "garbled", raw.why
    if raw.status is not None and raw.status != 200:
        return "http", f"HTTP {raw.status}: {_quoted(b''.join(piece for _, piece in raw.pieces))}"
    return None


def _of_stream(raw: RawResponse, heard: Transcript) -> Verdict:
    if heard.error:
        return "dropped", f"an error came in the stream: {heard.error}"
    if heard.garbage and raw.end != "closed":
        return "garbled", heard.garbage
    if heard.is_done:
        return None
    if raw.end == "stalled":
        return "stalled", raw.why
    if heard.garbage or raw.end == "closed" or heard.finish is None:
        return "dropped", raw.why or "it ended without `finish_reason` and `[DONE]`"
    return None


def _of_usage(heard: Transcript, asked: ExpectedSample) -> Verdict:
    prompt, made = count(heard.usage, "prompt_tokens"), count(heard.usage, "completion_tokens")
    if prompt is None or made is None:
        return "no usage", "it tells no count of tokens, and chunks are no tokens"
    chunks, cached = len(heard.times), _cached(heard)
    if made > asked.max_tokens:
        return "wrong usage", f"says {made} tokens where {asked.max_tokens} were allowed"
    if chunks > made + _SPLIT:
        return "wrong usage", f"says {made} tokens, and {chunks} chunks had words in them"
    if asked.prompt_tokens is not None and abs(prompt - asked.prompt_tokens) > asked.slack:
        return "wrong usage", f"says a prompt of {prompt} tokens; its tokenizer makes {asked.prompt_tokens}"
    if cached is not None and cached > prompt:
        return "wrong usage", f"says {cached} of {prompt} prompt tokens came from its cache"
    if made and not chunks:
        return "garbled", f"says {made} tokens, and no word came"
    if not made or (asked.goes_on and made < asked.max_tokens):
        return "short", f"{made} of {asked.max_tokens} tokens, finish_reason {heard.finish}"
    return None


def _of_time(heard: Transcript, asked: ExpectedSample) -> Verdict:
    """A pause that no other request's prompt explains."""
    gaps = [b - a for a, b in pairwise(heard.times)]
    if len(gaps) < 4:
        return None
    usual, longest = median(gaps), max(gaps)
    if longest > max(_STALL_S, _STALL_TIMES * usual, 1.5 * max(asked.longest_wait_s, heard.times[0])):
        return "stalled", f"nothing came for {longest:.1f} s in the middle; {1000 * usual:.0f} ms is usual"
    return None


def count_is_off(told: int, recounted: int, chunks: int) -> bool:
    """Do the words themselves say otherwise than `usage`? Made again, a text may be some tokens shorter, and
    special tokens show no words; a chunk for every token speaks for `usage`."""
    slack = 8 + 0.15 * told
    return recounted - told > slack or (told - recounted > slack and told - chunks > slack)
