"""Requests that reach a model's server as they are: its own paths, and WebSockets.

    GET  /v1/realtime?model=voice    a WebSocket, where the engine has one
    POST /upstream/comfy/prompt      POST /prompt of the server of `comfy`, if the file says `upstream: true`
    GET  /upstream/comfy/ws          its WebSocket

The model is loaded, granted and logged as for any other request. Nothing is read in what passes, so tokens
are not counted; keys with a limit of tokens may not do this (`dispatcher.check_direct`).
"""

from __future__ import annotations

import copy
from urllib.parse import unquote_to_bytes

from firesteel.gateway.http.head import RequestHead
from firesteel.gateway.http.request_checks import model_in_query
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
