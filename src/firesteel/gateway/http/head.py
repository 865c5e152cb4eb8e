"""Strict parser for the heads of requests and responses: what two parsers could read differently is rejected.

Rejected, never guessed: lines that do not end in CRLF, continuation lines (obs-fold), space before the colon,
names that are not tokens, control characters, a length together with `Transfer-Encoding`, two lengths or one
that is not plain digits, a coding other than `chunked`, no `Host` or two, targets of another authority.

Lines repeat: a client sends the same ten with every request. So a line is parsed once and cached
(`_HeaderCache`), and a head that differs from the last one of its connection only in its length is not parsed
again (`CachedHead`). Strictness then costs less than a parser in C that calls back for every line. The tests
compare it with httptools: what is accepted here, httptools reads the same way. Secrets are not cached beyond
their connection.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

from firesteel.gateway.interfaces import BearerToken, Endpoint, Rejection

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
"""Headers for the next hop only."""
_ABOUT_CLIENT = frozenset(
    (b"cookie", b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip")
)
"""Who the client is, and its cookies of other programs on the same host: no concern of an engine."""
_SECRET = frozenset((b"authorization", b"x-api-key"))
_CORS = frozenset(
    b"access-control-" + name
    for name in (b"allow-origin", b"allow-credentials", b"allow-headers", b"allow-methods", b"expose-headers",
                 b"max-age")
)  # fmt: skip
"""Engines allow every page to read their responses; the gateway decides itself (`access.py`)."""
_WEBSOCKET = b"sec-websocket-"
"""Headers with values of one connection only."""
_WEBSOCKET_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_OWN_PREFIX = b"x-firesteel-"
"""Headers that tell the admin API who the caller is. Clients must not send them."""
_ONCE = frozenset((b"host", b"content-length", b"transfer-encoding", b"content-type", b"expect", *_SECRET))
_CACHE_LINES, _CACHE_LINE_BYTES = 2048, 256


class ProtocolError(Exception):
    """A message that is rejected."""

    def __init__(self, status: int, kind: str, why: str) -> None:
        super().__init__(why)
        self.rejection = Rejection(status, kind, why)


Field = tuple[bytes, bytes, bool]
"""Lower-case name, value, and whether the line is forwarded."""
_OPAQUE: Field = (b"", b"", True)
"""A line that is only forwarded."""


class _HeaderCache(dict[bytes, Field]):
    """Header lines, each parsed once."""

    def __init__(self, dropped: frozenset[bytes], read: frozenset[bytes]) -> None:
        self._dropped, self._read = dropped, read

    def __missing__(self, line: bytes) -> Field:
        if line[:16].lower() == b"content-length: " and line[16:].isdigit():
            return b"content-length", line[16:], False
        field = self._parse(line)
        is_own = field[0] in _SECRET or field[0] == b"content-length" or line[:14].lower() == _WEBSOCKET
        if len(line) <= _CACHE_LINE_BYTES and not is_own:
            if len(self) >= _CACHE_LINES:
                self.clear()
            self[line] = field
        return field

    def _parse(self, line: bytes) -> Field:
        match = FIELD.fullmatch(line)
        if match is None:
            raise ProtocolError(400, "bad_head", "a header line is not `name: value`")
        name = match[1].lower()
        if name in self._dropped or name.startswith(_OWN_PREFIX):
            return name, match[2].strip(b" \t"), False
        if name in self._read:
            return name, match[2].strip(b" \t"), True
        return _OPAQUE


_REQUEST_HEADERS = _HeaderCache(
    _HOP | _SECRET | _ABOUT_CLIENT | {b"host", b"content-length", b"expect"},
    frozenset(
        (b"content-type", b"content-encoding", b"accept-encoding", b"origin", b"sec-fetch-site",
         b"access-control-request-method", b"access-control-request-headers",
         b"access-control-request-private-network", b"sec-websocket-key", b"sec-websocket-version")
    ),
)  # fmt: skip
_RESPONSE_HEADERS = _HeaderCache(
    _HOP | {b"content-length", *_CORS}, frozenset((b"content-type", b"content-encoding"))
)


def _split_lines(lines: list[bytes], cache: _HeaderCache) -> tuple[list[bytes], list[Field]]:
    """The lines to forward, and the fields that we use. The first line of a head is skipped."""
    forwarded: list[bytes] = []
    fields: list[Field] = []
    for line in lines[1:]:
        field = cache[line]
        if field is _OPAQUE:
            forwarded.append(line)
        else:
            fields.append(field)
            if field[2]:
                forwarded.append(line)
    return forwarded, fields


def _by_name(fields: list[Field]) -> dict[bytes, bytes]:
    """Fields that may occur only once are rejected if they occur twice; others are joined."""
    headers = {name: value for name, value, _ in fields}
    if len(headers) == len(fields):
        return headers
    headers = {}
    for name, value, _ in fields:
        if name not in headers:
            headers[name] = value
        elif name in _ONCE:
            raise ProtocolError(400, "bad_head", f"`{name.decode()}` occurs twice")
        else:
            headers[name] += b"," + value
    return headers


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip(b" \t").lower() for token in value.split(b",")]


def _is_chunked(headers: dict[bytes, bytes], is_11: bool) -> bool:
    if headers[b"transfer-encoding"].lower() != b"chunked" or not is_11:
        raise ProtocolError(
            400, "bad_head", "the only supported `Transfer-Encoding` is `chunked`, in HTTP/1.1"
        )
    if b"content-length" in headers:
        raise ProtocolError(400, "bad_head", "`Content-Length` and `Transfer-Encoding` contradict each other")
    return True


class MessageHead:
    """The common part of a request and a response."""

    __slots__ = ("content_type", "is_11", "is_chunked", "keeps_alive", "length", "lines")

    def __init__(self, is_11: bool, forwarded: list[bytes], headers: dict[bytes, bytes]) -> None:
        self.is_11 = self.keeps_alive = is_11
        length = headers.get(b"content-length")
        if length is not None and not (length.isdigit() and len(length) <= 15):
            raise ProtocolError(400, "bad_head", "`Content-Length` is not a number")
        self.length = None if length is None else int(length)
        self.is_chunked = b"transfer-encoding" in headers and _is_chunked(headers, is_11)
        self.content_type = headers.get(b"content-type", b"")
        connection = headers.get(b"connection")
        if connection is not None:
            forwarded = self._take_connection(connection, forwarded)
        forwarded.append(b"")
        self.lines = b"\r\n".join(forwarded)
        """To forward unchanged, each with its CRLF."""

    def _take_connection(self, value: bytes, forwarded: list[bytes]) -> list[bytes]:
        tokens = _tokens(value)
        self.keeps_alive = b"close" not in tokens if self.is_11 else b"keep-alive" in tokens
        if len(tokens) > 1 or tokens[0] not in (b"close", b"keep-alive"):
            # The lines that it names are for this hop only.
            return [line for line in forwarded if line[: line.index(b":")].lower() not in tokens]
        return forwarded


class RequestHead(MessageHead):
    __slots__ = (
        "asks_headers", "asks_method", "asks_normalized", "asks_private_network", "expects_continue",
        "forward_cache", "host", "method", "origin", "path", "site", "target", "token", "websocket_key",
    )  # fmt: skip

    def __init__(
        self, line: tuple[bytes, bytes, bytes, bool], forwarded: list[bytes], headers: dict[bytes, bytes]
    ) -> None:
        self.method, self.target, self.path, is_11 = line
        super().__init__(is_11, forwarded, headers)
        self.forward_cache: tuple[Endpoint, bytes, bytes] | None = None
        """The forwarded head for that endpoint, before and after its length (`messages.py`)."""
        self.token = _token(headers)
        self.host = headers.get(b"host", b"")
        self.origin, self.site = headers.get(b"origin", b""), headers.get(b"sec-fetch-site", b"")
        """The origin of the web page that makes the request, and whether it is another site's."""
        self.asks_method = headers.get(b"access-control-request-method", b"")
        self.asks_headers = headers.get(b"access-control-request-headers", b"")
        self.asks_private_network = b"access-control-request-private-network" in headers
        """What a browser asks before the request itself (`access.py`)."""
        self.asks_normalized = headers.get(b"x-firesteel-normalize", b"").lower() == b"on"
        """For what `normalize.py` does. Engines do not get this header."""
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ProtocolError(415, "bad_body", "compressed request bodies are not supported")
        self.expects_continue = False
        if b"expect" in headers:
            if headers[b"expect"].lower() != b"100-continue":
                raise ProtocolError(417, "bad_head", "the only supported expectation is `100-continue`")
            self.expects_continue = is_11
        self.websocket_key = b""
        if b"upgrade" in headers:
            self._take_upgrade(headers)

    def _take_upgrade(self, headers: dict[bytes, bytes]) -> None:
        """`h2c` may be ignored (RFC 9110, 7.8); Java's client offers it with every first request."""
        protocol = headers[b"upgrade"].lower()
        if protocol == b"h2c":
            return
        if protocol != b"websocket":
            raise ProtocolError(501, "bad_head", "the only supported protocol upgrade is `websocket`")
        key, version = headers.get(b"sec-websocket-key", b""), headers.get(b"sec-websocket-version")
        if version != b"13":
            raise ProtocolError(400, "bad_head", "`Sec-WebSocket-Version` must be 13")
        is_asked = b"upgrade" in _tokens(headers.get(b"connection", b""))
        if self.method != b"GET" or not self.is_11 or not is_asked or self.length or self.is_chunked:
            raise ProtocolError(400, "bad_head", "a WebSocket begins with a GET in HTTP/1.1 without a body")
        if not _WEBSOCKET_KEY.fullmatch(key):
            raise ProtocolError(400, "bad_head", "`Sec-WebSocket-Key` is not 16 bytes in base64")
        self.websocket_key = key


def _token(headers: dict[bytes, bytes]) -> BearerToken | None:
    value = headers.get(b"authorization")
    if value is not None and value[:7].lower() == b"bearer ":
        return BearerToken(value[7:].strip(b" "))
    value = headers.get(b"x-api-key")
    return None if value is None else BearerToken(value)


class _RequestLineCache(dict[bytes, tuple[bytes, bytes, bytes, bool]]):
    """Request lines, each parsed once: method, target, path, and whether it is HTTP/1.1."""

    def __missing__(self, line: bytes) -> tuple[bytes, bytes, bytes, bool]:
        start = _read_start(line)
        if len(line) <= _CACHE_LINE_BYTES:
            if len(self) >= _CACHE_LINES:
                self.clear()
            self[line] = start
        return start


def _read_start(line: bytes) -> tuple[bytes, bytes, bytes, bool]:
    match = _REQUEST.fullmatch(line)
    if match is None:
        raise ProtocolError(400, "bad_head", "the first line is not `METHOD /path HTTP/1.1`")
    method, target, major, minor = match.groups()
    if major != b"1" or minor not in b"01":
        raise ProtocolError(505, "bad_head", "this server speaks HTTP/1.1")
    if method == b"CONNECT":
        raise ProtocolError(405, "bad_head", "this server does not support CONNECT")
    if b"#" in target:
        raise ProtocolError(400, "bad_head", "the target must not have a fragment")
    return method, target, target.partition(b"?")[0], minor == b"1"


_REQUEST_LINE_CACHE = _RequestLineCache()


def read_request(head: bytes, max_lines: int = 100) -> RequestHead:
    """Parse the bytes before the empty line. Raises `ProtocolError`."""
    lines = head.split(b"\r\n")
    start = _REQUEST_LINE_CACHE[lines[0]]
    if len(lines) > max_lines + 1:
        raise ProtocolError(431, "bad_head", f"more than {max_lines} header lines")
    forwarded, fields = _split_lines(lines, _REQUEST_HEADERS)
    headers = _by_name(fields)
    host = headers.get(b"host")
    if host is None:
        if start[3]:
            raise ProtocolError(400, "bad_head", "`Host` is missing")
    elif not _AUTHORITY.fullmatch(host):
        raise ProtocolError(400, "bad_head", "`Host` is not a valid host")
    if not start[1].startswith(b"/"):
        start = _relative(start, host)
    return RequestHead(start, forwarded, headers)


H = TypeVar("H", bound=MessageHead)


class CachedHead(Generic[H]):
    """A parsed head, to recognize the next one if only its length differs."""

    __slots__ = ("_after", "_before", "_raw", "head")

    def __init__(self, raw: bytes, head: H) -> None:
        self.head = head
        self._raw = raw
        """Including the empty line at its end."""
        self._before: bytes | None = None
        self._after = b""

    def match(self, data: bytes) -> int:
        """Return the size of the head at the beginning of `data`, or 0 if it is another one. Sets
        `head.length`."""
        before = self._before or self._split()
        if not data.startswith(before):
            return 0
        position = len(before)
        if not self._after:
            return position
        end = data.find(b"\r", position, position + 16)
        digits = data[position:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return 0
        self.head.length = int(digits)
        return end + len(self._after)

    def _split(self) -> bytes:
        """Split at the length; a head without one must match completely."""
        raw = self._raw
        match = _LENGTH_AT.search(raw)
        self._before = raw[: match.end()] if match else raw
        self._after = raw[raw.find(b"\r", match.end()) :] if match else b""
        return self._before


def _relative(
    start: tuple[bytes, bytes, bytes, bool], host: bytes | None
) -> tuple[bytes, bytes, bytes, bool]:
    """`http://host/path` becomes `/path` if the host matches; `*` is kept."""
    method, target, _, is_11 = start
    if target == b"*" and method == b"OPTIONS":
        return start
    match = _ABSOLUTE.fullmatch(target)
    if match is None or host is None or match[1].lower() != host.lower():
        raise ProtocolError(400, "bad_head", "the target is not a path of this host")
    target = match[2] or b"/"
    return method, target, target.partition(b"?")[0], is_11


class ResponseHead(MessageHead):
    __slots__ = ("is_encoded", "is_stream", "reason", "status")

    def __init__(
        self, start: tuple[bool, int, bytes], forwarded: list[bytes], headers: dict[bytes, bytes]
    ) -> None:
        is_11, self.status, self.reason = start
        super().__init__(is_11, forwarded, headers)
        self.is_encoded = (
            b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity"
        )
        is_event_stream = self.content_type[:17].lower() == b"text/event-stream"
        self.is_stream = is_event_stream and not self.is_encoded
        """Of events that can be read."""


class _StatusLineCache(dict[bytes, tuple[bool, int, bytes]]):
    """Status lines, each parsed once: whether it is HTTP/1.1, the status, and status and reason to
    forward."""

    def __missing__(self, line: bytes) -> tuple[bool, int, bytes]:
        match = _STATUS.fullmatch(line)
        if match is None:
            raise ProtocolError(502, "bad_answer", "the first line is not `HTTP/1.1 STATUS`")
        start = (match[1] == b"1", int(match[2]), match[2] + (match[3] or b" "))
        if len(self) < _CACHE_LINES and len(line) <= _CACHE_LINE_BYTES:
            self[line] = start
        return start


_STATUS_LINE_CACHE = _StatusLineCache()


def read_response(head: bytes) -> ResponseHead:
    """Parse the bytes before the empty line. Raises `ProtocolError`."""
    lines = head.split(b"\r\n")
    start = _STATUS_LINE_CACHE[lines[0]]
    forwarded, fields = _split_lines(lines, _RESPONSE_HEADERS)
    return ResponseHead(start, forwarded, _by_name(fields))
