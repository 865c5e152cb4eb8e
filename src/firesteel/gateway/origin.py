"""Whether a browser is being used by somebody else's page. Pure.

A page from anywhere can make a visitor's browser ask things of `http://127.0.0.1:8080`. Two ways matter:

* It sends a POST across origins. The browser lets it go without asking us when it looks like a form, and only
  hides the answer; the model would be unloaded all the same. But it says whose page it was, in `Origin`.
* It gives its own name the address 127.0.0.1 once it is loaded (DNS rebinding). Then it is of our origin, as
  far as the browser knows, and reads answers too. But the browser still sends its name, in `Host`. Nobody can
  make an address or `localhost` lead elsewhere, so these are the names that we go by.

With keys neither matters for what needs one: no browser adds a key by itself, as it would a cookie. So the
second is asked only where there are no keys.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

from firesteel.gateway.interfaces import Refusal

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?", re.ASCII)
"""Not `urlsplit`: it reads `[::1].evil.example` as `::1`."""


def refuse_page(
    method: str, host: str, origin: str | None, site: str | None, *, has_keys: bool
) -> Refusal | None:
    """`host`, `origin` and `site` as the client sent them: `Host`, `Origin`, `Sec-Fetch-Site`."""
    if not has_keys and not is_plain_host(host):
        return Refusal(
            403,
            "host_not_allowed",
            f"without keys this gateway answers only to its address and `localhost`, not to `{host[:100]}`. "
            "Ask http://127.0.0.1, or make a key: firesteel key add NAME.",
        )
    if method not in _SAFE and (site == "cross-site" or not _is_ours(origin, host)):
        return Refusal(
            403,
            "origin_not_allowed",
            f"a page of `{(origin or 'another site')[:100]}` may not change anything here.",
        )
    return None


@lru_cache(256)
def is_plain_host(host: str) -> bool:
    """An address, or `localhost` and what is under it, which no name server is asked for."""
    found = _AUTHORITY.fullmatch(host.lower())
    if found is None:
        return False
    try:
        ip_address(_name(found))
    except ValueError:
        return _name(found) == "localhost" or _name(found).endswith(".localhost")
    return True


def _is_ours(origin: str | None, host: str) -> bool:
    """A program that is no browser sends none. `null` is a page that hides where it came from."""
    if origin is None:
        return True
    scheme, _, rest = origin.lower().partition("://")
    theirs, ours = _AUTHORITY.fullmatch(rest), _AUTHORITY.fullmatch(host.lower())
    if scheme not in _PORTS or theirs is None or ours is None:
        return False
    port = _PORTS[scheme]
    return _name(theirs) == _name(ours) and int(theirs[2] or port) == int(ours[2] or port)


def _name(found: re.Match[str]) -> str:
    return found[1].strip("[]").rstrip(".")
