from __future__ import annotations

import struct

import pytest

from firesteel.facts import BadHeader, MemorySource
from firesteel.facts.formats.byte_cursor import ByteCursor

from .header_bytes import BigSource, text


def cursor(data: bytes, max_bytes: int = 2**20) -> ByteCursor:
    return ByteCursor(MemorySource("x", data), max_bytes)


def test_fields_follow_each_other() -> None:
    here = cursor(b"\x01" + struct.pack("<Hf", 2, 1.5) + text("h\u00e9") + b"\0" * 4 + b"end")
    assert (here.number("B"), here.number("H"), here.number("f"), here.string("name", 9)) == (
        1,
        2,
        1.5,
        "h\u00e9",
    )
    here.skip(4)
    assert (here.take(3), here.position) == (b"end", 7 + 11 + 4 + 3)


def test_strings_are_skipped() -> None:
    here = cursor(text("a" * 1000) * 700 + b"end")
    here.skip_strings(700)
    assert here.take(3) == b"end"


@pytest.mark.parametrize(
    "read",
    [
        lambda here: here.take(9),
        lambda here: here.skip(9),
        lambda here: here.skip(2**70),
        lambda here: (here.number("Q"), here.number("B")),
        lambda here: here.skip_strings(1),
        lambda here: here.skip_strings(2**60),
    ],
)
def test_the_end_is_the_end(read: object) -> None:
    assert callable(read)
    with pytest.raises(BadHeader, match="x is truncated"):
        read(cursor(struct.pack("<Q", 1)))


def test_what_is_read_is_limited() -> None:
    here = cursor(bytes(100), max_bytes=50)
    here.skip(50)
    with pytest.raises(BadHeader, match="header of over 50 bytes"):
        here.take(1)


def test_many_small_reads_are_few_requests() -> None:
    source = BigSource("x", b"", 2**40)
    here = ByteCursor(source, 2**30)
    for _ in range(2**18):
        here.take(32)
    here.skip(2**29)
    here.take(1)
    assert [length // 1024 for _, length in source.reads] == [256, 512, 1024, 2048, 4096, 4096, 4096]
