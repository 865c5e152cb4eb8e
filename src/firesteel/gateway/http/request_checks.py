"""Checks of a head before its request is dispatched: the page that sends it, the model in its query."""

from __future__ import annotations

from firesteel.gateway.http.body import ModelField
from firesteel.gateway.http.head import RequestHead
from firesteel.gateway.http.routes import DIRECT_ROUTES, UPSTREAM_AT, query_model
from firesteel.gateway.interfaces import Rejection
from firesteel.gateway.origin import is_plain_host, reject_foreign_page


def reject_page(head: RequestHead, *, is_allowed: bool) -> Rejection | None:
    """Without keys, reject requests of foreign web pages (`origin.py`), except those that `cors` allows. The
    `Host` of these is checked all the same."""
    host = head.host.decode("ascii", "replace")
    if not head.origin and not head.site and (not host or is_plain_host(host)):
        # No host at all: a program that speaks HTTP/1.0, never a browser.
        return None
    origin = None if is_allowed else head.origin.decode("ascii", "replace") or None
    site = None if is_allowed else head.site.decode("ascii", "replace") or None
    # A page may open a WebSocket anywhere and read it, and what a GET does on a server's own path is unknown.
    is_direct = head.path in DIRECT_ROUTES or head.path.startswith(UPSTREAM_AT)
    method = "POST" if is_direct else head.method.decode("ascii")
    return reject_foreign_page(method, host, origin, site, has_keys=False)


def model_in_query(head: RequestHead) -> ModelField | Rejection:
    """The model of a request without a body."""
    model = query_model(head.target.partition(b"?")[2])
    if model is None:
        return Rejection(400, "missing_model", "name the model in the query: `?model=NAME`")
    return ModelField(model, 0, 0)
