"""Requests that reach a model's server as they are: its own paths, and WebSockets.

    GET  /v1/realtime?model=voice    a WebSocket, where the engine has one
    POST /upstream/comfy/prompt      POST /prompt of the server of `comfy`, if the file says `upstream: true`
    GET  /upstream/comfy/ws          its WebSocket

The model is loaded, granted and logged as for any other request. Nothing is read in what passes, so tokens
are not counted; keys with a limit of tokens may not do this (`dispatcher.check_direct`).
"""

from __future__ import annotations

import copy
import re
from base64 import b64encode
from hashlib import sha1
from urllib.parse import unquote_to_bytes

from firesteel.gateway.http.access import model_in_query
from firesteel.gateway.http.head import ProtocolError, RequestHead, ResponseHead
from firesteel.gateway.http.routes import UPSTREAM_AT
from firesteel.gateway.interfaces import Rejection
from firesteel.values import Value


class DirectRequest(Value):
    model: str
    head: RequestHead
    """As the server gets it."""
    path: bytes
    """For the log and the metrics: without what follows the model."""


def direct_request(head: RequestHead) -> DirectRequest | Rejection:
    if not head.path.startswith(UPSTREAM_AT):
        field = model_in_query(head)
        return field if isinstance(field, Rejection) else DirectRequest(field.model, head, head.path)
    segment, slash, rest = head.target[len(UPSTREAM_AT) :].partition(b"/")
    try:
        model = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        model = ""
    if not model or not slash:
        return Rejection(404, "unknown_path", "write it like /upstream/MODEL/path")
    head = copy.copy(head)
    head.target, head.forward_cache = b"/" + rest, None
    head.path = head.target.partition(b"?")[0]
    return DirectRequest(model, head, UPSTREAM_AT)


# --- WebSockets: the handshake, and what is sent at the end of a session ---
#
# After the server has agreed (101, with the right answer to the client's key), bytes go both ways until one
# side closes, nothing passes for `timeouts: {gap: ...}`, or the gateway ends.

UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
GOING_AWAY = b"\x88\x02\x03\xe9"
"""A close frame with code 1001, for a client that has received nothing for a while, so whole frames only."""
DRAIN_IDLE_S = 1.0
"""When the gateway ends, a session that has been silent for this long is closed."""
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
