"""Heads: what is refused, what is passed on, and httptools as a second reader."""

from __future__ import annotations

import re

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.gateway.http.head import END, CachedHead, ProtocolError, read_request, read_response

GOOD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n"

REFUSED = {
    "length and coding": (400, GOOD + b"Content-Length: 5\r\nTransfer-Encoding: chunked"),
    "coding and length": (400, GOOD + b"Transfer-Encoding: chunked\r\nContent-Length: 5"),
    "two lengths": (400, GOOD + b"Content-Length: 5\r\nContent-Length: 5"),
    "two lengths that differ": (400, GOOD + b"Content-Length: 5\r\ncontent-length: 6"),
    "a list of lengths": (400, GOOD + b"Content-Length: 5, 5"),
    "a signed length": (400, GOOD + b"Content-Length: +5"),
    "a negative length": (400, GOOD + b"Content-Length: -5"),
    "a length in hex": (400, GOOD + b"Content-Length: 0x5"),
    "a length with a gap": (400, GOOD + b"Content-Length: 1 2"),
    "a length with an underscore": (400, GOOD + b"Content-Length: 1_0"),
    "no length in the line": (400, GOOD + b"Content-Length:"),
    "a length past any number": (400, GOOD + b"Content-Length: 9999999999999999"),
    "a length in other digits": (400, GOOD + b"Content-Length: \xd9\xa5"),
    "another coding": (400, GOOD + b"Transfer-Encoding: gzip, chunked"),
    "identity": (400, GOOD + b"Transfer-Encoding: identity"),
    "chunked twice": (400, GOOD + b"Transfer-Encoding: chunked, chunked"),
    "two codings": (400, GOOD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
    "a coding with a tail": (400, GOOD + b"Transfer-Encoding: chunked;q=1"),
    "a coding behind a vertical tab": (400, GOOD + b"Transfer-Encoding: \x0bchunked"),
    "a coding in HTTP/1.0": (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked"),
    "a folded line": (400, GOOD + b"X: a\r\n b"),
    "a folded line with a tab": (400, GOOD + b"X: a\r\n\tb"),
    "a first line that is folded": (400, b"GET / HTTP/1.1\r\n Host: h"),
    "space before the colon": (400, GOOD + b"Content-Length : 5"),
    "tab before the colon": (400, GOOD + b"Content-Length\t: 5"),
    "no colon": (400, GOOD + b"nonsense"),
    "no name": (400, GOOD + b": value"),
    "a name that is no token": (400, GOOD + b"X(Y): 1"),
    "a name in other letters": (400, GOOD + "Ünder: 1".encode()),
    "NUL in a value": (400, GOOD + b"X: a\x00b"),
    "a control character in a value": (400, GOOD + b"X: a\x1fb"),
    "DEL in a value": (400, GOOD + b"X: a\x7fb"),
    "a bare LF in the lines": (400, GOOD + b"X: a\nY: b"),
    "a bare CR in the lines": (400, GOOD + b"X: a\rY: b"),
    "a bare LF after the first line": (400, b"GET / HTTP/1.1\nHost: h"),
    "an empty line of LF": (400, GOOD + b"X: a\n"),
    "no host": (400, b"GET / HTTP/1.1\r\nX: 1"),
    "two hosts": (400, GOOD + b"Host: h"),
    "a host with a path": (400, b"GET / HTTP/1.1\r\nHost: h/x"),
    "a host with a user": (400, b"GET / HTTP/1.1\r\nHost: u@h"),
    "another authority": (400, b"GET http://other/ HTTP/1.1\r\nHost: h"),
    "a target that is no path": (400, b"GET v1/models HTTP/1.1\r\nHost: h"),
    "a star": (400, b"GET * HTTP/1.1\r\nHost: h"),
    "a fragment": (400, b"GET /a#b HTTP/1.1\r\nHost: h"),
    "two spaces": (400, b"GET  / HTTP/1.1\r\nHost: h"),
    "a tab between": (400, b"GET\t/ HTTP/1.1\r\nHost: h"),
    "a space at the end": (400, b"GET / HTTP/1.1 \r\nHost: h"),
    "a space before the method": (400, b" GET / HTTP/1.1\r\nHost: h"),
    "no version": (400, b"GET /\r\nHost: h"),
    "HTTP/2": (505, b"PRI * HTTP/2.0"),
    "HTTP/1.2": (505, b"GET / HTTP/1.2\r\nHost: h"),
    "lower case": (400, b"GET / http/1.1\r\nHost: h"),
    "a method that is no token": (400, b"GE(T / HTTP/1.1\r\nHost: h"),
    "CONNECT": (405, b"CONNECT h:80 HTTP/1.1\r\nHost: h:80"),
    "a websocket without a version": (400, GOOD + b"Connection: upgrade\r\nUpgrade: websocket"),
    "another protocol": (501, GOOD + b"Connection: upgrade\r\nUpgrade: tls/1.2"),
    "another expectation": (417, GOOD + b"Expect: the-worst"),
    "two keys": (400, GOOD + b"Authorization: Bearer a\r\nAuthorization: Bearer b"),
    "too many lines": (431, GOOD + b"\r\n".join(b"X: %d" % n for n in range(101))),
}


@pytest.mark.parametrize("status, head", REFUSED.values(), ids=REFUSED.keys())
def test_refused(status: int, head: bytes) -> None:
    for _ in range(2):  # a line that was judged once must not pass the second time
        with pytest.raises(ProtocolError) as unclear:
            read_request(head)
        assert unclear.value.rejection.status == status


ACCEPTED = {
    "plain": GOOD + b"Content-Length: 5",
    "no space after the colon": GOOD + b"Content-Length:5",
    "space around a value": GOOD + b"Content-Length: \t 5 \t",
    "zeros": GOOD + b"Content-Length: 005",
    "an empty value": GOOD + b"X:",
    "latin-1": GOOD + b"X: caf\xe9",
    "any case": GOOD + b"TRANSFER-ENCODING: Chunked",
    "HTTP/1.0 with no host": b"GET / HTTP/1.0",
    "absolute": b"GET http://h/v1/models?x=1 HTTP/1.1\r\nHost: H",
    "h2c, which Java offers": GOOD
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A",
}


@pytest.mark.parametrize("head", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(head: bytes) -> None:
    read_request(head)


def test_what_is_read() -> None:
    head = read_request(
        GOOD.replace(b"completions", b"completions?a=b") + b"Content-Length: 5\r\nX-Api-Key: k"
    )
    assert (head.method, head.path, head.target) == (
        b"POST", b"/v1/chat/completions", b"/v1/chat/completions?a=b",
    )  # fmt: skip
    assert (head.length, head.is_chunked, head.keeps_alive, head.token) == (5, False, True, b"k")


def test_absolute_target_is_its_path() -> None:
    head = read_request(ACCEPTED["absolute"])
    assert (head.target, head.path) == (b"/v1/models?x=1", b"/v1/models")


def test_what_is_for_us_alone_is_not_passed_on() -> None:
    head = read_request(
        GOOD + b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nkeep-alive: timeout=5\r\nTE: trailers\r\n"
        b"Proxy-Authorization: x\r\nAuthorization: Bearer secret\r\nX-API-Key: secret\r\n"
        b"Expect: 100-continue\r\nX-Firesteel-Who: root\r\nx-firesteel-admin: 1\r\n"
        b"X-FIRESTEEL-Else: 1\r\nContent-Length: 1\r\n"
        b"Accept: a\r\nX-twice: 1\r\nx-Twice: 2\r\nContent-Type: t"
    )
    assert head.lines == b"Accept: a\r\nX-twice: 1\r\nx-Twice: 2\r\nContent-Type: t\r\n"
    assert head.expects_continue
    assert head.token == b"secret"


@pytest.mark.parametrize(
    "line, keeps",
    [(b"HTTP/1.1", True), (b"HTTP/1.0", False)],
)
def test_keep_alive_by_version(line: bytes, keeps: bool) -> None:
    start = b"GET / " + line + b"\r\nHost: h"
    assert read_request(start).keeps_alive is keeps
    assert read_request(start + b"\r\nConnection: Close").keeps_alive is False
    assert read_request(start + b"\r\nConnection: Keep-Alive").keeps_alive is True
    assert read_request(start + b"\r\nConnection: x\r\nConnection: close").keeps_alive is False


@pytest.mark.parametrize(
    "lines, token",
    [
        (b"Authorization: Bearer abc", b"abc"),
        (b"authorization: bearer  abc ", b"abc"),
        (b"Authorization: Basic abc", None),
        (b"x-api-key: k", b"k"),
        (b"x-api-key: k\r\nAuthorization: Bearer abc", b"abc"),
        (b"x-api-key: k\r\nAuthorization: Basic abc", b"k"),
    ],
)
def test_token(lines: bytes, token: bytes | None) -> None:
    assert read_request(GOOD + lines).token == token


def test_repeat_knows_a_head_with_another_length() -> None:
    raw = GOOD + b"content-length:  5\r\nX: 1" + END
    repeat = CachedHead(raw, read_request(raw[:-4]))
    again = raw.replace(b"  5", b"  123") + b"body"
    assert repeat.match(again) == len(again) - 4
    assert repeat.head.length == 123


@pytest.mark.parametrize(
    "again",
    [
        GOOD + b"content-length: 5, 5\r\nX: 1" + END,
        GOOD + b"content-length: +5\r\nX: 1" + END,
        GOOD + b"content-length: \r\nX: 1" + END,
        GOOD + b"content-length: 5\nX: 1" + END,
        GOOD + b"content-length: 5\r\r\nX: 1" + END,
        GOOD + b"content-length: 5\r\nX: 2" + END,
        GOOD + b"content-length: 5\r\nX: 1\r\nTransfer-Encoding: chunked" + END,
        GOOD + b"content-length: 99999999999999999999\r\nX: 1" + END,
        GOOD + b"content-length: 5\r\nX: 1\r\n",
    ],
)
def test_repeat_knows_nothing_else(again: bytes) -> None:
    raw = GOOD + b"content-length: 5\r\nX: 1" + END
    assert CachedHead(raw, read_request(raw[:-4])).match(again) == 0


def test_repeat_of_a_head_without_a_length_is_the_same_to_its_end() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: h" + END
    repeat = CachedHead(raw, read_request(raw[:-4]))
    assert repeat.match(raw + b"more") == len(raw)
    assert repeat.match(raw[:-2] + b"Content-Length: 5" + END) == 0
    assert repeat.match(raw[:-1]) == 0


def test_repeat_of_an_answer() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: 1" + END
    repeat = CachedHead(raw, read_response(raw[:-4]))
    assert repeat.match(raw.replace(b"5", b"77")) == len(raw) + 1
    assert repeat.head.length == 77
    assert repeat.head.lines == b"X: 1\r\n"


class Second:
    """httptools' reading of the same bytes."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.url = b""
        self.is_read = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.is_read = True


_PARTS = st.sampled_from(
    [b"GET", b"POST", b" ", b"/", b"/a?b", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\r", b"\n", b"\t", b":",
     b"Host: h", b"Host", b"Content-Length: 5", b"Content-Length", b"Transfer-Encoding: chunked", b"X: y",
     b"X:y", b"\x00", b"\x0b", b"chunked", b"5", b",", b"+", b"*", b"http://h/", b"Connection: close",
     b"\xff", b";"]
)  # fmt: skip
_HEADS = st.one_of(
    st.lists(_PARTS, max_size=14).map(b"".join),
    st.lists(_PARTS, max_size=8).map(lambda parts: GOOD + b"".join(parts)),
)


_TAB_AFTER_CODING = re.compile(rb"(?i)transfer-encoding:[ \t]*chunked[ \t]*\t[ \t]*(\r\n|$)")
"""llhttp refuses it, RFC 9112 allows it; what we send to engines has a line of our own."""


@given(_HEADS)
def test_what_we_read_httptools_reads_alike(head: bytes) -> None:
    if END in head or _TAB_AFTER_CODING.search(head):
        return
    try:
        ours = read_request(head)
    except ProtocolError:
        return
    second = Second()
    parser = httptools.HttpRequestParser(second)
    parser.feed_data(head + END)
    assert second.is_read
    assert parser.get_method() == ours.method
    theirs = {name.lower(): value for name, value in second.fields}
    assert (b"content-length" in theirs) == (ours.length is not None)
    assert ours.length is None or int(theirs[b"content-length"]) == ours.length
    assert (theirs.get(b"transfer-encoding", b"").lower() == b"chunked") == ours.is_chunked
    dropped = (b"host", b"content-length", b"transfer-encoding", b"connection")
    passed = [line.split(b":", 1) for line in ours.lines.split(b"\r\n")[:-1]]
    assert [[name, value.strip()] for name, value in second.fields if name.lower() not in dropped] == [
        [name, value.strip()] for name, value in passed
    ]


ANSWERS_REFUSED = {
    "another protocol": b"ICY 200 OK",
    "a status of two digits": b"HTTP/1.1 20 OK",
    "a status of four digits": b"HTTP/1.1 2000 OK",
    "HTTP/2": b"HTTP/2.0 200 OK",
    "length and coding": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1",
    "a strange length": b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1",
    "a strange coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
    "a folded line": b"HTTP/1.1 200 OK\r\nX: a\r\n b",
    "a bare LF": b"HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: b",
    "NUL": b"HTTP/1.1 200 O\x00K",
}


@pytest.mark.parametrize("head", ANSWERS_REFUSED.values(), ids=ANSWERS_REFUSED.keys())
def test_answers_refused(head: bytes) -> None:
    for _ in range(2):
        with pytest.raises(ProtocolError):
            read_response(head)


def test_answer() -> None:
    head = read_response(
        b"HTTP/1.1 200 Fine\r\nDate: d\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\n"
        b"Content-Type: Text/Event-Stream;x=y\r\nTransfer-Encoding: chunked\r\nSet-Cookie: a\r\nset-cookie: b"
    )
    assert (head.status, head.reason, head.is_stream) == (200, b"200 Fine", True)
    assert (head.is_chunked, head.length, head.keeps_alive, head.is_encoded) == (True, None, False, False)
    assert (
        head.lines == b"Date: d\r\nContent-Type: Text/Event-Stream;x=y\r\nSet-Cookie: a\r\nset-cookie: b\r\n"
    )


def test_answer_without_a_reason() -> None:
    assert read_response(b"HTTP/1.1 200").reason == b"200 "
    assert read_response(b"HTTP/1.0 404 ").reason == b"404 "
