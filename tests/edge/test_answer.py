"""Event streams: lines out of pieces, and data out of lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.edge.http import answer
from firesteel.errors import FiresteelError


@given(st.lists(st.one_of(st.binary(), st.sampled_from([b"\r", b"\n", b"", b"a"]))))
def test_lines_do_not_depend_on_the_pieces(pieces: list[bytes]) -> None:
    splitter = answer.LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    whole = b"".join(pieces).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert [*lines, splitter.rest()] == [line.strip() for line in whole.split(b"\n")]


@pytest.mark.parametrize(
    ("line", "data"),
    [
        (b'data: {"id": 1}', '{"id": 1}'),
        (b"data:[DONE]", answer.DONE),
        (b"data: \xff", "\ufffd"),
        (b"", None),
        (b": keep-alive", None),
        (b"event: message", None),
    ],
)
def test_event_data(line: bytes, data: str | None) -> None:
    assert answer.event_data(line) == data


def test_event_bytes_are_not_decoded() -> None:
    assert answer.event_bytes(b"data: \xff") == b"\xff" and answer.event_bytes(b": keep-alive") is None


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MAX_LINE_BYTES", 10)
    splitter = answer.LineSplitter()
    assert splitter.feed(b"123456\n12345") == [b"123456"]
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        splitter.feed(b"678901")


def _streamed(data: bytes, size: int) -> answer.Answer:
    lines, streamed = answer.LineSplitter(), answer.StreamedAnswer(0.0)
    for start in range(0, len(data), size):
        for line in lines.feed(data[start : start + size]):
            streamed.add_line(line)
    streamed.add_line(lines.rest())
    return streamed.finish()


CHUNK = '{"choices": [{"index": 0, "delta": {"content": "four"}, "finish_reason": "stop"}]}'


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("event", [CHUNK, CHUNK.replace(", ", ",\ndata: "), "\ufeff" + CHUNK])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_stream_is_read_however_its_lines_end(newline: str, event: str, size: int) -> None:
    """Also an event of several `data:` lines, and where a piece ends between CR and LF."""
    text = f"data: {event}\n\n: keep-alive\n\ndata: [DONE]\n\n".replace("\n", newline)
    found = _streamed(text.encode(), size)
    assert (found.text, found.finish_reason, found.has_done) == ("four", "stop", True)


def test_an_event_that_is_no_json_is_an_error() -> None:
    with pytest.raises(FiresteelError, match="does not follow the OpenAI API"):
        _streamed(b'data: {"choices": [nul]}\n\ndata: [DONE]\n\n', 1000)
