"""Which web pages may use a server from a browser: `off`, `loopback`, `any`, or a list of origins. Pure.

An origin is `scheme://host:port` of the page, as a browser sends it in `Origin`. `loopback` are pages that
this machine serves itself (http://localhost:3000), at any port.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

ANY, LOOPBACK = "any", "loopback"
MAX_ORIGINS = 100
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]{0,31})://(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?", re.ASCII
)
"""Also of desktop programs: `app://obsidian.md`, `tauri://localhost`."""
_SHAPE = 'write it like `loopback`, `any`, `off` or ["https://chat.example.org"]'


def parse_origins(value: object) -> tuple[str, ...]:
    """Of the service file's `cors`. Raises ValueError."""
    if value in (None, False, "off"):
        return ()
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or len(words) > MAX_ORIGINS:
        raise ValueError(f"is neither a word nor a list of at most {MAX_ORIGINS} origins; {_SHAPE}")
    return tuple(_parse_origin(word) for word in words)


def _parse_origin(word: object) -> str:
    text = word.lower().removesuffix("/") if isinstance(word, str) else ""
    if text in (ANY, "*"):
        return ANY
    if text != LOOPBACK and not _ORIGIN.fullmatch(text):
        shown = str(word)[:80]
        raise ValueError(f"has `{shown}`, which is no origin (scheme, host and port, no path); {_SHAPE}")
    return text


@lru_cache(256)
def is_allowed(origin: str, origins: tuple[str, ...]) -> bool:
    """`origin` as the browser sent it. `null`, a page that hides its origin, is never allowed."""
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return False
    if ANY in origins or origin in origins:
        return True
    return LOOPBACK in origins and match[1] in ("http", "https") and _is_loopback(match[2])


def _is_loopback(host: str) -> bool:
    """Never looked up in DNS, so nobody else can have such an origin."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
