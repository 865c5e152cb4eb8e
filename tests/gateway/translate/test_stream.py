"""Event streams in pieces of any size, broken ones and endless ones."""

from __future__ import annotations

import json

import pytest

from firesteel.gateway.translate import stream
from firesteel.gateway.translate.ollama import ChatWriter
from firesteel.gateway.translate.stream import StreamTranslator
from firesteel.gateway.translate.values import TranslationContext

FIRST = b'data: {"choices":[{"delta":{"content":"a"}}]}'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}'
WHOLE = b": comment\n\n" + FIRST + b"\n\nevent: x\r\n" + FIRST + b"\r\n\r\n" + LAST + b"\n\ndata: [DONE]\n\n"


LONG_CALL = b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"%b"}}]}}]}' % (
    b"x" * 5_000_000
)


def translator() -> StreamTranslator:
    return StreamTranslator(
        None,
        ChatWriter(TranslationContext("m", lambda: 0.0, 0.0)),
        lambda why: json.dumps({"error": why}).encode() + b"\n",
    )


def texts(out: bytes) -> list[str]:
    lines = [json.loads(line) for line in out.splitlines()]
    return [line.get("error") or ("done" if line["done"] else line["message"]["content"]) for line in lines]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_pieces_of_any_size(size: int) -> None:
    stream = translator()
    out = b"".join(stream.take(WHOLE[at : at + size]) for at in range(0, len(WHOLE), size)) + stream.end()
    assert texts(out) == ["a", "a", "done"]


def test_the_end() -> None:
    stream = translator()
    assert texts(stream.take(FIRST + b"\n\n" + LAST) + stream.end()) == ["a", "done"]
    stream = translator()
    assert texts(stream.take(FIRST + b"\n\n") + stream.end()) == [
        "a", "the engine's stream ended before its answer was complete",
    ]  # fmt: skip
    stream = translator()
    assert texts(stream.take(FIRST + b"\n\n") + stream.end(is_broken=True)) == ["a"]


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (b"data: {", "not JSON"),
        (b"data: " + b"[" * 100_000, "not JSON"),
        (b'data: {"error":{"message":"out of memory"}}', "out of memory"),
        (b'data: {"error":"no"}', "no"),
        (b'data: {"type":"error","message":"gone"}', "gone"),
        (LONG_CALL, "too many arguments"),
    ],
)  # fmt: skip
def test_a_bad_event_ends_it_with_an_error(event: bytes, says: str) -> None:
    stream = translator()
    got = texts(stream.take(FIRST + b"\n\n" + event + b"\n\n" + FIRST + b"\n\n") + stream.end())
    assert got[0] == "a" and says in got[1] and len(got) == 2


def test_an_endless_event_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_EVENT_BYTES", 10_000)
    endless = translator()
    out = b"".join(endless.take(b"x" * 1000) for _ in range(20))
    assert len(texts(out)) == 1 and "10000 bytes" in texts(out)[0]
    assert len(endless._buffer) == 0


@pytest.mark.parametrize(
    "event", [b"data: 5", b"data: []", b"data:", b"nothing", b'data: {"choices":[5]}', b"data: null"]
)
def test_events_that_say_nothing(event: bytes) -> None:
    stream = translator()
    assert texts(stream.take(event + b"\n\n" + WHOLE)) == ["a", "a", "done"]
