"""CORS: which web pages may use the models from a browser, and read the answers.

The browser asks first (a preflight, an OPTIONS request without any key), then sends the request with the
page's origin, and shows the answer to the page only if header lines allow it. Allowed are paths of inference;
never the admin API, whatever the origin. The key is required as always: a preflight gives nothing away.

What the lines mean: https://fetch.spec.whatwg.org/#http-cors-protocol (seen 2026-11-16).
"""

from __future__ import annotations

from firesteel.gateway.http.head import RequestHead
from firesteel.gateway.http.routes import is_inference
from firesteel.gateway.interfaces import GatewayResponse, Rejection
from firesteel.web_origin import is_allowed

_MAX_AGE_S = 600
"""A browser does not ask again for so long."""
_LINES = (
    b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: *\r\n"
    b"Cross-Origin-Resource-Policy: cross-origin\r\nVary: Origin\r\n"
)


def cors_lines(head: RequestHead, origins: tuple[str, ...]) -> bytes:
    """Header lines for every response to this request; empty: the page must not read it."""
    if not origins or not is_inference(head.path):
        return b""
    return _LINES % head.origin if is_allowed(head.origin.decode("ascii", "replace"), origins) else b""


def preflight_response(
    head: RequestHead, lines: bytes, origins: tuple[str, ...]
) -> GatewayResponse | Rejection | None:
    """None: this is no preflight, or CORS is off and the request is treated like any other."""
    if head.method != b"OPTIONS" or not head.asks_method or not origins:
        return None
    if not lines:
        origin = head.origin[:100].decode("ascii", "replace")
        why = f"a page from `{origin}` must not use {head.path[:100].decode('ascii', 'replace')}."
        if is_inference(head.path):
            why += f" Add it in the service file: `cors: [{origin}]`."
        return Rejection(403, "origin_not_allowed", why)
    headers = [
        (b"Access-Control-Allow-Methods", b"GET, POST, OPTIONS"),
        (b"Access-Control-Max-Age", b"%d" % _MAX_AGE_S),
    ]
    if head.asks_headers:
        headers.append((b"Access-Control-Allow-Headers", head.asks_headers))
    if head.asks_private_network:
        headers.append((b"Access-Control-Allow-Private-Network", b"true"))
    return GatewayResponse(200, b"", headers=tuple(headers))
