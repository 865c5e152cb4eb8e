"""Which web pages may use the gateway, checked on a head before its request is dispatched.

Any web page can make a visitor's browser send requests to `http://127.0.0.1:8080`. Pages of foreign origins
are rejected, except those that the service file allows (CORS); these may use the models, and never the admin
API.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

from firesteel.gateway.http.body import ModelField
from firesteel.gateway.http.head import RequestHead
from firesteel.gateway.http.routes import DIRECT_ROUTES, UPSTREAM_AT, is_inference, query_model
from firesteel.gateway.interfaces import GatewayResponse, Rejection
from firesteel.service_settings import is_allowed


def reject_page(head: RequestHead, *, is_allowed: bool) -> Rejection | None:
    """Without keys, reject requests of foreign web pages, except those that `cors` allows. The
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


# --- foreign web pages ---
#
# Two attacks matter:
#
# * A POST across origins. The browser sends it without asking if it looks like a form, and only hides the
#   response; the model would be unloaded all the same. But it names the page's origin in `Origin`.
# * DNS rebinding: the page makes its own host name resolve to 127.0.0.1 after it is loaded. It then has our
#   origin, as far as the browser knows, and can read responses. But the browser still sends its host name in
#   `Host`. An IP address and `localhost` cannot be made to resolve to anything else, so only these are
#   accepted.
#
# With keys neither attack works: no browser adds a key by itself, as it does with a cookie. So `Host` is
# checked only where there are no keys.

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?", re.ASCII)
"""Not `urlsplit`: it parses `[::1].evil.example` as `::1`."""


def reject_foreign_page(
    method: str, host: str, origin: str | None, site: str | None, *, has_keys: bool
) -> Rejection | None:
    """`host`, `origin` and `site` as the client sent them: `Host`, `Origin`, `Sec-Fetch-Site`."""
    if not has_keys and not is_plain_host(host):
        return Rejection(
            403,
            "host_not_allowed",
            f"without keys this gateway answers only to an IP address and `localhost`, not `{host[:100]}`. "
            "Use http://127.0.0.1, or create a key: firesteel serve key add NAME.",
        )
    if method not in _SAFE and (site == "cross-site" or not _is_ours(origin, host)):
        return Rejection(
            403,
            "origin_not_allowed",
            f"a page from `{(origin or 'another site')[:100]}` must not change anything here.",
        )
    return None


@lru_cache(256)
def is_plain_host(host: str) -> bool:
    """An IP address, or `localhost` and its subdomains, which are never looked up in DNS."""
    match = _AUTHORITY.fullmatch(host.lower())
    if match is None:
        return False
    try:
        ip_address(_host_name(match))
    except ValueError:
        return _host_name(match) == "localhost" or _host_name(match).endswith(".localhost")
    return True


def _is_ours(origin: str | None, host: str) -> bool:
    """Programs other than browsers send no `Origin`. `null` is a page that hides its origin."""
    if origin is None:
        return True
    scheme, _, rest = origin.lower().partition("://")
    theirs, ours = _AUTHORITY.fullmatch(rest), _AUTHORITY.fullmatch(host.lower())
    if scheme not in _PORTS or theirs is None or ours is None:
        return False
    port = _PORTS[scheme]
    return _host_name(theirs) == _host_name(ours) and int(theirs[2] or port) == int(ours[2] or port)


def _host_name(match: re.Match[str]) -> str:
    return match[1].strip("[]").rstrip(".")


# --- CORS ---
#
# The browser asks first (a preflight, an OPTIONS request without any key), then sends the request with the
# page's origin, and shows the answer to the page only if header lines allow it. Allowed are paths of
# inference; never the admin API, whatever the origin. The key is required as always: a preflight gives
# nothing away. What the lines mean: https://fetch.spec.whatwg.org/#http-cors-protocol (seen 2026-11-16).

_MAX_AGE_S = 600
"""How long a browser does not ask again."""
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
    """None: this is not a preflight, or CORS is off and the request is treated like any other."""
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
