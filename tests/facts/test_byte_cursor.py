from __future__ import annotations

import struct

import pytest

from firesteel.facts.formats.byte_cursor import ByteCursor
from firesteel.facts.formats.byte_source import BadHeader, MemorySource

from .header_bytes import BigSource, text


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
