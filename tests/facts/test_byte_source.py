from __future__ import annotations

import pytest

from firesteel.facts.formats.byte_source import BadHeader, MemorySource, bad_header


def test_memory_source_reads_exactly_what_is_asked_for() -> None:
    source = MemorySource("x", b"abcdef")
    assert (source.size, source.read(2, 3), source.read(6, 0)) == (6, b"cde", b"")


@pytest.mark.parametrize(("start", "length"), [(0, 7), (6, 1), (-1, 2), (0, -1), (2**63, 1)])
def test_memory_source_refuses_what_is_not_there(start: int, length: int) -> None:
    with pytest.raises(BadHeader, match="x is truncated") as caught:
        MemorySource("x", b"abcdef").read(start, length)
    assert caught.value.next == "download it again"


def test_an_error_is_one_short_line_whatever_the_file_says() -> None:
    line = str(bad_header("x", "has `\n\x1b[31m\u202e" + "y" * 1000))
    assert line.isprintable() and len(line) == 300
