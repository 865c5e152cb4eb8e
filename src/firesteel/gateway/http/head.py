"""Heads of requests and answers, read strictly: whatever two readers could read in two ways is refused.

Refused, and never guessed: lines that do not end in CRLF, lines that go on on the next (obs-fold), space
before the colon, names that are no tokens, control characters, a length beside `Transfer-Encoding`, two
lengths or one that is not plain digits, a coding other than `chunked`, no `Host` or two, targets of another
authority.

Lines repeat: a client says the same ten with every request. So a line is judged once and remembered
(`_Memo`), and a head that differs from the connection's last only in its length is not read again (`Repeat`):
strictness then costs less than a parser in C that calls back for every line. httptools is the second reader
in the tests: what is accepted here, it reads alike. Secrets are not remembered beyond their connection.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

from firesteel.gateway.interfaces import BearerToken, Endpoint, Refusal

END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE = rb"[\t\x20-\x7e\x80-\xff]*"
FIELD = re.compile(rb"(" + _TOKEN + rb"):(" + _VALUE + rb")")
_REQUEST = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e\x80-\xff]+) HTTP/([0-9])\.([0-9])")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])((?: " + _VALUE + rb")?)")
_AUTHORITY = re.compile(rb"[A-Za-z0-9\-._~%:\[\]]*")
_LENGTH_AT = re.compile(rb"\r\ncontent-length:[ \t]*", re.IGNORECASE)
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)(/.*)?", re.IGNORECASE)

_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
"""Lines for the next hop only."""
_SECRET = frozenset((b"authorization", b"x-api-key"))
_OWN = b"x-firesteel-"
"""Lines by which we tell the control side who asks. Nobody else may."""
_ONCE = frozenset((b"host", b"content-length", b"transfer-encoding", b"content-type", b"expect", *_SECRET))
_MEMO_LINES, _MEMO_BYTES = 2048, 256


class AmbiguousHead(Exception):
    """A message that is refused."""

    def __init__(self, status: int, kind: str, why: str) -> None:
        super().__init__(why)
        self.refusal = Refusal(status, kind, why)


Field = tuple[bytes, bytes, bool]
"""Lower-case name, value, and whether the line is passed on."""
_PLAIN: Field = (b"", b"", True)
"""A line that means nothing to us."""


class _Memo(dict[bytes, Field]):
    """What each line means, judged at its first sight."""

    def __init__(self, dropped: frozenset[bytes], read: frozenset[bytes]) -> None:
        self._dropped, self._read = dropped, read

    def __missing__(self, line: bytes) -> Field:
        if line[:16].lower() == b"content-length: " and line[16:].isdigit():
            return b"content-length", line[16:], False
        field = self._judge(line)
        if len(line) <= _MEMO_BYTES and field[0] not in _SECRET and field[0] != b"content-length":
            if len(self) >= _MEMO_LINES:
                self.clear()
            self[line] = field
        return field

    def _judge(self, line: bytes) -> Field:
        match = FIELD.fullmatch(line)
        if match is None:
            raise AmbiguousHead(400, "bad_head", "a head line is not `name: value`")
        name = match[1].lower()
        if name in self._dropped or name.startswith(_OWN):
            return name, match[2].strip(b" \t"), False
        if name in self._read:
            return name, match[2].strip(b" \t"), True
        return _PLAIN


_REQUEST_LINES = _Memo(
    _HOP | _SECRET | {b"host", b"content-length", b"expect"},
    frozenset((b"content-type", b"content-encoding", b"accept-encoding", b"origin", b"sec-fetch-site")),
)
_ANSWER_LINES = _Memo(_HOP | {b"content-length"}, frozenset((b"content-type", b"content-encoding")))


def _sort(lines: list[bytes], memo: _Memo) -> tuple[list[bytes], list[Field]]:
    """The lines to pass on, and the fields that we read. The first line is not one of them."""
    kept: list[bytes] = []
    known: list[Field] = []
    for line in lines[1:]:
        field = memo[line]
        if field is _PLAIN:
            kept.append(line)
        else:
            known.append(field)
            if field[2]:
                kept.append(line)
    return kept, known


def _gather(known: list[Field]) -> dict[bytes, bytes]:
    """By name. What may stand once only and stands twice is refused; other lists are joined."""
    found = {name: value for name, value, _ in known}
    if len(found) == len(known):
        return found
    found = {}
    for name, value, _ in known:
        if name not in found:
            found[name] = value
        elif name in _ONCE:
            raise AmbiguousHead(400, "bad_head", f"`{name.decode()}` is there twice")
        else:
            found[name] += b"," + value
    return found


def _tokens(value: bytes) -> list[bytes]:
    return [word.strip(b" \t").lower() for word in value.split(b",")]


def _unnamed(kept: list[bytes], tokens: list[bytes]) -> list[bytes]:
    """Without the lines that `Connection` names: they are for this hop."""
    return [line for line in kept if line[: line.index(b":")].lower() not in tokens]


def _length(value: bytes) -> int:
    if not (value.isdigit() and len(value) <= 15):
        raise AmbiguousHead(400, "bad_head", "`Content-Length` is not a number")
    return int(value)


def _is_chunked(found: dict[bytes, bytes], is_11: bool) -> bool:
    if found[b"transfer-encoding"].lower() != b"chunked" or not is_11:
        raise AmbiguousHead(400, "bad_head", "the only `Transfer-Encoding` is `chunked`, in HTTP/1.1")
    if b"content-length" in found:
        raise AmbiguousHead(400, "bad_head", "`Content-Length` and `Transfer-Encoding` contradict each other")
    return True


class MessageHead:
    """What a request and an answer have in common."""

    __slots__ = ("content_type", "is_11", "is_chunked", "keeps_alive", "length", "lines")

    def __init__(self, is_11: bool, kept: list[bytes], found: dict[bytes, bytes]) -> None:
        self.is_11 = self.keeps_alive = is_11
        length = found.get(b"content-length")
        self.length = None if length is None else _length(length)
        self.is_chunked = b"transfer-encoding" in found and _is_chunked(found, is_11)
        self.content_type = found.get(b"content-type", b"")
        connection = found.get(b"connection")
        if connection is not None:
            kept = self._take_connection(connection, kept)
        kept.append(b"")
        self.lines = b"\r\n".join(kept)
        """To pass on as they came, each with its CRLF."""

    def _take_connection(self, value: bytes, kept: list[bytes]) -> list[bytes]:
        tokens = _tokens(value)
        self.keeps_alive = b"close" not in tokens if self.is_11 else b"keep-alive" in tokens
        if len(tokens) > 1 or tokens[0] not in (b"close", b"keep-alive"):
            return _unnamed(kept, tokens)
        return kept


class RequestHead(MessageHead):
    """A request's head."""

    __slots__ = ("expects_continue", "host", "method", "onward", "origin", "path", "site", "target", "token")

    def __init__(
        self, line: tuple[bytes, bytes, bytes, bool], kept: list[bytes], found: dict[bytes, bytes]
    ) -> None:
        self.method, self.target, self.path, is_11 = line
        super().__init__(is_11, kept, found)
        self.onward: tuple[Endpoint, bytes, bytes] | None = None
        """What stands before the length and after it when it goes on to that seat: worked out once
        (`onward.py`)."""
        self.token = _token(found)
        self.host = found.get(b"host", b"")
        self.origin, self.site = found.get(b"origin", b""), found.get(b"sec-fetch-site", b"")
        """Which page a browser asks for, and whether that is another site's."""
        if found.get(b"content-encoding", b"identity").lower() != b"identity":
            raise AmbiguousHead(415, "bad_body", "a body is taken as it is, not compressed")
        self.expects_continue = False
        if b"expect" in found:
            self._take_expect(found[b"expect"])
        if b"upgrade" in found:
            _check_upgrade(found[b"upgrade"])

    def _take_expect(self, value: bytes) -> None:
        if value.lower() != b"100-continue":
            raise AmbiguousHead(417, "bad_head", "the only expectation is `100-continue`")
        self.expects_continue = self.is_11


def _token(found: dict[bytes, bytes]) -> BearerToken | None:
    value = found.get(b"authorization")
    if value is not None and value[:7].lower() == b"bearer ":
        return BearerToken(value[7:].strip(b" "))
    value = found.get(b"x-api-key")
    return None if value is None else BearerToken(value)


def _check_upgrade(value: bytes) -> None:
    """`h2c` may be ignored (RFC 9110, 7.8), and Java's client offers it with every first request."""
    if value.lower() != b"h2c":
        raise AmbiguousHead(501, "bad_head", "this server does not change protocols")


class _Starts(dict[bytes, tuple[bytes, bytes, bytes, bool]]):
    """Request lines, each read once: method, target, path, and whether it is HTTP/1.1."""

    def __missing__(self, line: bytes) -> tuple[bytes, bytes, bytes, bool]:
        start = _read_start(line)
        if len(line) <= _MEMO_BYTES:
            if len(self) >= _MEMO_LINES:
                self.clear()
            self[line] = start
        return start


def _read_start(line: bytes) -> tuple[bytes, bytes, bytes, bool]:
    match = _REQUEST.fullmatch(line)
    if match is None:
        raise AmbiguousHead(400, "bad_head", "the first line is not `METHOD /path HTTP/1.1`")
    method, target, major, minor = match.groups()
    if major != b"1" or minor not in b"01":
        raise AmbiguousHead(505, "bad_head", "this server speaks HTTP/1.1")
    if method == b"CONNECT":
        raise AmbiguousHead(405, "bad_head", "this is no tunnel")
    if b"#" in target:
        raise AmbiguousHead(400, "bad_head", "a target has no fragment")
    return method, target, target.partition(b"?")[0], minor == b"1"


_STARTS = _Starts()


def read_request(head: bytes, max_lines: int = 100) -> RequestHead:
    """From the bytes before the empty line. Raises `Unclear`."""
    lines = head.split(b"\r\n")
    start = _STARTS[lines[0]]
    if len(lines) > max_lines + 1:
        raise AmbiguousHead(431, "bad_head", f"more than {max_lines} head lines")
    kept, known = _sort(lines, _REQUEST_LINES)
    found = _gather(known)
    host = found.get(b"host")
    if host is None:
        if start[3]:
            raise AmbiguousHead(400, "bad_head", "`Host` is missing")
    elif not _AUTHORITY.fullmatch(host):
        raise AmbiguousHead(400, "bad_head", "`Host` is not a host")
    if not start[1].startswith(b"/"):
        start = _relative(start, host)
    return RequestHead(start, kept, found)


H = TypeVar("H", bound=MessageHead)


class RepeatedHead(Generic[H]):
    """A head that was read, to know it again when all that differs is its length."""

    __slots__ = ("_after", "_before", "_raw", "head")

    def __init__(self, raw: bytes, head: H) -> None:
        self.head = head
        self._raw = raw
        """With the empty line at its end."""
        self._before: bytes | None = None
        self._after = b""

    def match(self, data: bytes) -> int:
        """How long the head at the beginning of `data` is, if it is this one; then `head` has its length."""
        before = self._before or self._split()
        if not data.startswith(before):
            return 0
        at = len(before)
        if not self._after:
            return at
        end = data.find(b"\r", at, at + 16)
        digits = data[at:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return 0
        self.head.length = int(digits)
        return end + len(self._after)

    def _split(self) -> bytes:
        """What stands before the length and after it; a head without one must be the same to its end."""
        raw = self._raw
        match = _LENGTH_AT.search(raw)
        self._before = raw[: match.end()] if match else raw
        self._after = raw[raw.find(b"\r", match.end()) :] if match else b""
        return self._before


def _relative(
    start: tuple[bytes, bytes, bytes, bool], host: bytes | None
) -> tuple[bytes, bytes, bytes, bool]:
    """`http://host/path` is `/path`, if it is the same host; `*` stands for itself."""
    method, target, _, is_11 = start
    if target == b"*" and method == b"OPTIONS":
        return start
    match = _ABSOLUTE.fullmatch(target)
    if match is None or host is None or match[1].lower() != host.lower():
        raise AmbiguousHead(400, "bad_head", "the target is not a path of this host")
    target = match[2] or b"/"
    return method, target, target.partition(b"?")[0], is_11


class ResponseHead(MessageHead):
    """An answer's head."""

    __slots__ = ("is_encoded", "is_event_stream", "reason", "status")

    def __init__(self, start: tuple[bool, int, bytes], kept: list[bytes], found: dict[bytes, bytes]) -> None:
        is_11, self.status, self.reason = start
        super().__init__(is_11, kept, found)
        self.is_event_stream = self.content_type[:17].lower() == b"text/event-stream"
        self.is_encoded = b"content-encoding" in found and found[b"content-encoding"].lower() != b"identity"


class _Statuses(dict[bytes, tuple[bool, int, bytes]]):
    """Status lines, each read once: whether it is HTTP/1.1, the status, and what is said to the client."""

    def __missing__(self, line: bytes) -> tuple[bool, int, bytes]:
        match = _STATUS.fullmatch(line)
        if match is None:
            raise AmbiguousHead(502, "bad_answer", "the first line is not `HTTP/1.1 STATUS`")
        start = (match[1] == b"1", int(match[2]), match[2] + (match[3] or b" "))
        if len(self) < _MEMO_LINES and len(line) <= _MEMO_BYTES:
            self[line] = start
        return start


_STATUSES = _Statuses()


def read_response(head: bytes) -> ResponseHead:
    """From the bytes before the empty line. Raises `Unclear`: it is not HTTP/1.1."""
    lines = head.split(b"\r\n")
    start = _STATUSES[lines[0]]
    kept, known = _sort(lines, _ANSWER_LINES)
    return ResponseHead(start, kept, _gather(known))
