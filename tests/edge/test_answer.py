"""Event streams: lines out of pieces, and data out of lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.edge.http import answer


@given(st.lists(st.binary()))
def test_lines_do_not_depend_on_the_pieces(pieces: list[bytes]) -> None:
    splitter = answer.LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    assert [*lines, splitter.rest()] == [line.strip() for line in b"".join(pieces).split(b"\n")]


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
