"""Chunked bodies, cut in two and three at every byte, and with httptools as a second reader."""

from __future__ import annotations

import re

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firesteel.gateway.http.chunks import ChunkParser, encode_chunk, is_whole_chunk
from firesteel.gateway.http.head import ProtocolError

BODY = b"5\r\nhello\r\nA;x=y\r\n0123456789\r\n00b ; q\r\nhello\r\nyou.\r\n0\r\nX-Sum: 1\r\n\r\n"
CARRIED = b"hello0123456789hello\r\nyou."


def follow(pieces: list[bytes]) -> tuple[bytes, ChunkParser, int]:
    """What they carry, and how far into them the body goes."""
    chunks, end = ChunkParser(), 0
    out: list[bytes] = []
    for piece in pieces:
        end += chunks.follow(piece, 0, out)
    return b"".join(out), chunks, end


@pytest.mark.parametrize("cut", range(len(BODY) + 1))
def test_cut_anywhere(cut: int) -> None:
    for second in range(cut, len(BODY) + 1, 7):
        carried, chunks, _ = follow([BODY[:cut], BODY[cut:second], BODY[second:]])
        assert carried == CARRIED
        assert chunks.is_over


def test_byte_by_byte() -> None:
    carried, chunks, _ = follow([BODY[n : n + 1] for n in range(len(BODY))])
    assert (carried, chunks.is_over) == (CARRIED, True)


def test_what_comes_after_the_end_is_not_looked_at() -> None:
    _, chunks, end = follow([BODY + b"HTTP/1.1 200 OK\r\n"])
    assert chunks.is_over
    assert end == len(BODY)


def test_where_whole_chunks_end() -> None:
    chunks = ChunkParser()
    assert chunks.follow(b"1\r\na\r\n2\r\nb") == 10
    assert chunks.whole == 6
    chunks.follow(b"c")
    assert chunks.whole == -1
    chunks.follow(b"\r\n3")
    assert chunks.whole == 2


ONE = {
    b"5\r\nhello\r\n": True,
    b"005\r\nhello\r\n": False,
    b"5;a=b\r\nhello\r\n": False,
    b"A\r\n0123456789\r\n": False,
    b"a\r\n0123456789\r\n": True,
    b"10\r\n0123456789abcdef\r\n": True,
    b"f\r\n0123456789abcdef\r\n": False,
    b"ffb\r\n" + b"x" * 0xFFB + b"\r\n": False,
    b"5;a=\x00\r\nhello\r\n": False,
    b"5\r\nhello\r\n1\r\na\r\n": False,
    b"5\r\nhello\r": False,
    b"5\r\nhello!!": False,
    b"5\r\nhell\r\n": False,
    b"+5\r\nhello\r\n": False,
    b"0\r\n\r\n": False,
    b"\r\n\r\n": False,
    b"5": False,
    b"": False,
}


@pytest.mark.parametrize("data, is_one", ONE.items())
def test_one_whole_chunk(data: bytes, is_one: bool) -> None:
    for _ in range(2):
        assert is_whole_chunk(data) is is_one


@pytest.mark.parametrize("data", ONE)
def test_one_whole_chunk_is_what_follow_finds(data: bytes) -> None:
    chunks = ChunkParser()
    assert chunks.is_between()
    try:
        is_one = chunks.follow(data) == len(data) > 0 and chunks.is_between() and data.count(b"\r\n") == 2
    except ProtocolError:
        is_one = False
    assert is_one or not is_whole_chunk(data), "what has another form than engines use is parsed"


@pytest.mark.parametrize("size", [1, 2, 9, 10, 15, 16, 17, 255, 256, 257, 4085, 4090, 4095, 4096, 5000])
def test_every_size_as_engines_write_it(size: int) -> None:
    data = encode_chunk(b"x" * size)
    assert is_whole_chunk(data) is (len(data) <= 4096)
    assert not is_whole_chunk(data[:-1]) and not is_whole_chunk(data + b"x")
    assert not is_whole_chunk(data[:-2] + b"\n\n")


def test_within_a_chunk_is_not_between_two() -> None:
    for begun in (b"9\r\n", b"9", b"1\r\na", b"1\r\na\r", b"0\r\n", b"0\r\n\r\n"):
        chunks = ChunkParser()
        chunks.follow(begun)
        assert not chunks.is_between()


BAD = {
    "no size": b"\r\n",
    "no digits": b"x\r\n",
    "a sign": b"+5\r\nhello\r\n",
    "a minus": b"-5\r\nhello\r\n",
    "0x": b"0x5\r\nhello\r\n",
    "an underscore": b"1_0\r\n",
    "space before": b" 5\r\nhello\r\n",
    "space after": b"5 \r\nhello\r\n",
    "a bare LF": b"5\nhello\r\n",
    "a bare CR": b"5\rhello\r\n",
    "too many digits": b"0000000000000005\r\nhello\r\n",
    "a size past any number": b"ffffffffffffffff\r\n",
    "longer than said": b"5\r\nhello!\r\n",
    "other bytes where a chunk should end": b"5\r\nhello!!0\r\n\r\n",
    "LF after the data": b"5\r\nhello\n0\r\n\r\n",
    "a control character in an extension": b"5;a=\x00\r\nhello\r\n",
    "a bare LF in an extension": b"5;a\n\r\nhello\r\n",
    "words behind an extension": b"0;x=y 0\r\n\r\n",
    "an extension without a name": b"5;\r\nhello\r\n",
    "an extension that is not closed": b'5;x="y\r\nhello\r\n',
    "extensions too long": b"5;" + b"a" * 600 + b"\r\nhello\r\n",
    "extensions that never end": b"5;" + b"a" * 600,
    "a trailer that is no line": b"0\r\nnonsense\r\n\r\n",
    "a folded trailer": b"0\r\nX: a\r\n b\r\n\r\n",
    "a trailer that ends in LF": b"0\r\nX: a\n\r\n",
    "LF at the end": b"0\r\n\n",
    "trailers too long": b"0\r\n" + b"X: %b\r\n" % (b"a" * 500) * 20 + b"\r\n",
    "a trailer that never ends": b"0\r\nX: " + b"a" * 9000,
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        follow([body])
    with pytest.raises(ProtocolError):
        follow([body[n : n + 1] for n in range(len(body))])


class Second:
    def __init__(self) -> None:
        self.body = b""
        self.is_over = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_over = True


_PARTS = st.sampled_from(
    [
        b"5",
        b"0",
        b"a",
        b"\r\n",
        b"\r",
        b"\n",
        b"hello",
        b";x=y",
        b" ",
        b"X: y",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"\x00",
    ]
)


@given(st.lists(_PARTS, max_size=12).map(b"".join), st.integers(0, 60))
@example(b"0;x=y 0\r\n\r\n", 0)
def test_what_we_read_httptools_reads_alike(body: bytes, cut: int) -> None:
    try:
        carried, chunks, end = follow([body[:cut], body[cut:]])
    except ProtocolError:
        return
    if not chunks.is_over or re.search(rb"[ \t];|;[ \t]", body[:end]):
        return  # RFC 9112 allows blanks around a semicolon; httptools refuses them
    second = Second()
    parser = httptools.HttpResponseParser(second)
    parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body[:end])
    assert (second.is_over, second.body) == (True, carried)


@given(st.lists(st.binary(min_size=1)))
def test_there_and_back(pieces: list[bytes]) -> None:
    carried, chunks, _ = follow([b"".join(encode_chunk(piece) for piece in pieces) + b"0\r\n\r\n"])
    assert (carried, chunks.is_over) == (b"".join(pieces), True)
