"""Reject requests that a foreign web page makes through a user's browser. Pure.

Any web page can make a visitor's browser send requests to `http://127.0.0.1:8080`. Two attacks matter:

* A POST across origins. The browser sends it without asking if it looks like a form, and only hides the
  response; the model would be unloaded all the same. But it names the page's origin in `Origin`.
* DNS rebinding: the page makes its own host name resolve to 127.0.0.1 after it is loaded. It then has our
  origin, as far as the browser knows, and can read responses. But the browser still sends its host name in
  `Host`. Nobody can make an IP address or `localhost` resolve elsewhere, so only these are accepted.

With keys neither attack works: no browser adds a key by itself, as it does with a cookie. So `Host` is
checked only where there are no keys.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

from firesteel.gateway.interfaces import Rejection

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
            "Use http://127.0.0.1, or create a key: firesteel key add NAME.",
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
