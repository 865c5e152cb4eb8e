""""""

from __future__ import annotations

import struct

import pytest

from firesteel.facts.formats.byte_source import BadHeader, ByteCursor, MemorySource, bad_header

from .header_bytes import BigSource, text


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


def open_cursor(data: bytes, max_bytes: int = 2**20) -> ByteCursor:
    return ByteCursor(MemorySource("x", data), max_bytes)


def test_fields_follow_each_other() -> None:
    cursor = open_cursor(b"\x01" + struct.pack("<Hf", 2, 1.5) + text("h\u00e9") + b"\0" * 4 + b"end")
    assert (cursor.number("B"), cursor.number("H"), cursor.number("f"), cursor.string("name", 9)) == (
        1,
        2,
        1.5,
        "h\u00e9",
    )
    cursor.skip(4)
    assert (cursor.take(3), cursor.position) == (b"end", 7 + 11 + 4 + 3)


def test_strings_are_skipped() -> None:
    cursor = open_cursor(text("a" * 1000) * 700 + b"end")
    cursor.skip_strings(700)
    assert cursor.take(3) == b"end"


@pytest.mark.parametrize(
    "read",
    [
        lambda cursor: cursor.take(9),
        lambda cursor: cursor.skip(9),
        lambda cursor: cursor.skip(2**70),
        lambda cursor: (cursor.number("Q"), cursor.number("B")),
        lambda cursor: cursor.skip_strings(1),
        lambda cursor: cursor.skip_strings(2**60),
    ],
)
def test_the_end_is_the_end(read: object) -> None:
    assert callable(read)
    with pytest.raises(BadHeader, match="x is truncated"):
        read(open_cursor(struct.pack("<Q", 1)))


def test_what_is_read_is_limited() -> None:
    cursor = open_cursor(bytes(100), max_bytes=50)
    cursor.skip(50)
    with pytest.raises(BadHeader, match="header of over 50 bytes"):
        cursor.take(1)


def test_many_small_reads_are_few_requests() -> None:
    source = BigSource("x", b"", 2**40)
    cursor = ByteCursor(source, 2**30)
    for _ in range(2**18):
        cursor.take(32)
    cursor.skip(2**29)
    cursor.take(1)
    assert [length // 1024 for _, length in source.reads] == [256, 512, 1024, 2048, 4096, 4096, 4096]
