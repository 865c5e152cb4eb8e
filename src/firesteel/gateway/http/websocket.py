"""WebSockets: the handshake, and what is sent at the end of a session.

After the server has agreed (101, with the right answer to the client's key), bytes go both ways until one
side closes, nothing passes for `timeouts: {gap: ...}`, or the gateway ends. Nothing is read in what passes.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha1

from firesteel.gateway.http.head import ProtocolError, ResponseHead

UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
GOING_AWAY = b"\x88\x02\x03\xe9"
"""A close frame with code 1001, for a client that has received nothing for a while, so whole frames only."""
DRAIN_IDLE_S = 1.0
"""When the gateway ends, a session that is silent for so long is closed."""
_ACCEPTED = re.compile(rb"^sec-websocket-accept:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE | re.MULTILINE)
_WEBSOCKET_ID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, 1.3."""


def switching_head(head: ResponseHead, key: bytes) -> bytes:
    """The head that the client gets, if the server's fits the client's key. Raises `ProtocolError`."""
    accepted = _ACCEPTED.search(head.lines)
    digest = sha1(key + _WEBSOCKET_ID, usedforsecurity=False).digest()
    if accepted is None or accepted[1] != b64encode(digest):
        raise ProtocolError(502, "bad_answer", "`Sec-WebSocket-Accept` does not fit the client's key")
    return b"HTTP/1.1 101 Switching Protocols\r\n%b%b\r\n" % (head.lines, UPGRADE)
