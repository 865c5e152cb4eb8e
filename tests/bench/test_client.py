"""The client, and what it makes of bytes: times as they came, words whole however they were cut, bounds."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.bench.load.client import RawResponse, RequestTimeouts, TargetServer, chat_body, stream_request
from firesteel.bench.load.transcript import ExpectedSample, read_stream, to_sample, usage_contradicts_text
from firesteel.edge.http import answer
from firesteel.errors import UsageError
from tests.bench.faulty_server import MODEL, FaultyServer, serving, speaking
from tests.simulated_time import SIMULATED_TIME

pytestmark = SIMULATED_TIME
ASKED = ExpectedSample(0, 0, 0.0, 4)
TIMEOUTS = RequestTimeouts(2, 2, 5)


def event(**said: Any) -> bytes:
    return b"data: " + json.dumps(said).encode() + b"\n\n"


def word(text: str, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, **more}])


WHOLE = (
    event(choices=[{"delta": {"role": "assistant", "content": None}}])
    + word("Grüße")
    + event(choices=[{"delta": {"reasoning": " so", "reasoning_content": " so"}}])
    + word(" du")
    + word(" 🙂")
    + event(choices=[{"delta": {}, "finish_reason": "length"}])
    + event(
        choices=[],
        usage={"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}},
        timings={"predicted_per_second": 51.5, "prompt_per_second": 700},
    )
    + b"data: [DONE]\n\n"
)


def raw(data: bytes, cuts: list[int] | None = None) -> RawResponse:
    """Cut at these places; each piece comes a second after the one before."""
    places = [0, *sorted(cuts or []), len(data)]
    pieces = [data[a:b] for a, b in pairwise(places)]
    timed = tuple((float(at), piece) for at, piece in enumerate(pieces, 1) if piece)
    return RawResponse(0.0, 99.0, "whole", 200, timed)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_text_is_complete_for_any_chunking(cuts: list[int]) -> None:
    transcript = read_stream(raw(WHOLE, cuts))
    assert transcript.text == "Grüße so du 🙂" and transcript.is_done and transcript.finish == "length"
    assert len(transcript.times) == 4 and transcript.times == sorted(transcript.times)
    found = to_sample(raw(WHOLE, cuts), transcript, ASKED)
    assert (found.wrong, found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (None, 9, 4, 2)
    assert (found.server_decode_tokens_per_s, found.server_prefill_tokens_per_s) == (51.5, 700.0)


def test_a_chunk_has_the_time_of_its_last_byte() -> None:
    first = WHOLE.index(b"so")  # in the middle of the second chunk with words
    transcript = read_stream(raw(WHOLE, [first]))
    assert transcript.times == [1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"data: [1, 2]\n\n", "not JSON"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "not JSON"),
        (b"data: {\n", "not JSON"),
        (b'data: {"id": "\xff"}\n', "not JSON"),
        (b"\xff\xfe\x00binary\n", "not an event stream"),
        (b"Internal Server Error\n", "not an event stream: Internal"),
    ],
)
def test_garbage_is_reported(data: bytes, says: str) -> None:
    found = to_sample(raw(data), read_stream(raw(data)), ASKED)
    assert found.wrong == "garbled" and says in found.why and len(found.why) < 400


def test_a_line_without_end_is_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MAX_LINE_BYTES", len(WHOLE))
    data = WHOLE[:-14] + b"x" * (len(WHOLE) + 1)
    found = to_sample(raw(data), read_stream(raw(data)), ASKED)
    assert found.wrong == "garbled" and "longer than" in found.why


@pytest.mark.parametrize(
    "piece",
    [
        event(choices=5), event(choices=[5]), event(choices=[{"delta": 5}]),
        event(choices=[{"delta": {"content": 7}}]),
        event(usage=[]), event(usage={"prompt_tokens": -4, "completion_tokens": True}), event(timings=3),
        b": keep-alive\n\n", b"event: ping\n", b"id: 7\nretry: 5\n\n",
    ],
)  # fmt: skip
def test_odd_but_harmless_lines_are_ignored(piece: bytes) -> None:
    found = to_sample(raw(piece + WHOLE), read_stream(raw(piece + WHOLE)), ASKED)
    assert found.wrong is None, found.why


def test_usage_is_checked_against_the_text() -> None:
    assert not usage_contradicts_text(128, 128, 128)
    assert not usage_contradicts_text(128, 118, 40), "a text made again may be some tokens shorter"
    assert not usage_contradicts_text(128, 20, 128), "a chunk for every token: some had no letters"
    assert usage_contradicts_text(128, 64, 64) and usage_contradicts_text(128, 64, 16)
    assert usage_contradicts_text(40, 128, 30)


async def ask(
    url: str, max_tokens: int = 8, timeouts: RequestTimeouts = TIMEOUTS, **more: Any
) -> RawResponse:
    body = chat_body(MODEL, [{"role": "user", "content": "go"}], max_tokens, {"ignore_eos": True})
    return await stream_request(TargetServer.at(url, **more), body, timeouts, max_tokens)


async def test_an_answer_has_times() -> None:
    async with serving(FaultyServer(token_s=0.02, first_s=0.05)) as url:
        found = await ask(url)
    transcript = read_stream(found)
    assert found.end == "whole" and found.status == 200 and len(transcript.times) == 8
    assert transcript.times == pytest.approx([0.05 + 0.02 * token for token in range(8)])


async def test_a_key_is_sent_and_never_shown() -> None:
    endpoint = TargetServer.at("http://[::1]:80/base", "secret-key")
    said = endpoint.request(b"{}")
    assert b"Authorization: Bearer secret-key\r\n" in said and b"Host: [::1]:80\r\n" in said
    assert said.startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\n")
    assert "secret-key" not in repr(endpoint)
    with pytest.raises(UsageError):
        TargetServer.at("nonsense")


async def test_memory_is_bounded_by_max_tokens() -> None:
    flood = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"data: {}\n\n" * 200_000
    async with speaking(flood) as url:
        found = await ask(url, max_tokens=1)
    assert found.end == "endless" and sum(len(piece) for _, piece in found.pieces) < 2**20


async def test_small_pieces_are_bounded_too() -> None:
    drops = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n:\r\n" * 50_000
    async with speaking(drops) as url:
        found = await ask(url, max_tokens=1)
    assert found.end == "endless" and len(found.pieces) < 10_000


async def test_silence_times_out() -> None:
    async with serving(FaultyServer("stalls")) as url:
        found = await ask(url, timeouts=RequestTimeouts(20, 0.2, 25))
    assert found.end == "stalled" and read_stream(found).times


async def test_an_endless_answer_times_out() -> None:
    """One that always says a little more, in time."""
    async with serving(FaultyServer(token_s=0.05)) as url:
        found = await ask(url, max_tokens=10_000, timeouts=RequestTimeouts(1, 1, 0.4))
    assert found.end == "stalled" and "not finished after" in found.why


async def test_a_connection_that_ends_its_answer_by_closing() -> None:
    async with speaking(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + WHOLE) as url:
        found = await ask(url)
    assert found.end == "closed"
    assert to_sample(found, read_stream(found), ASKED).wrong is None
