"""The values of a service file that are written as text: times, sizes, addresses."""

from __future__ import annotations

import re
import shlex
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from firesteel.units import parse_size
from firesteel.values import Expand, PositiveInt

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}\Z")
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: object) -> object:
    """`90s`, `10m`, `2h`."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text) if isinstance(text, str) else None
    if not match:
        raise ValueError("is not a time; write it like 90s, 10m or 2h")
    return int(match[1]) * _TIMES[match[2]]


def size(text: object) -> object:
    return parse_size(text) if isinstance(text, str) else text


def address(text: object) -> object:
    """`127.0.0.1:8080`, `[::1]:8080`: an address and a port, no name that somebody else resolves."""
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
        good = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    except ValueError:
        good = False
    if not good:
        raise ValueError("is not an address and a port; write it like 127.0.0.1:8080")
    return text


def shaped(kind: type, what: str, example: str) -> Expand:
    """A map, list or word where another of these belongs: what to write, in place of the schema's types."""

    def check(value: object) -> object:
        if isinstance(value, (str, list, dict, type(None))) and not isinstance(value, kind):
            raise ValueError(f"{what}; write it like `{example}`")
        return value

    return Expand(check)


def _words(value: object) -> object:
    """`notify --now` is short for `[notify, --now]`."""
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError:
        raise ValueError("has a quote without its pair; write it like [notify, --now]") from None


def wrong_url(url: str) -> str | None:
    """A sentence's end, that does not repeat the address: somebody may have put a password into it."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port past 65535, half an IPv6 address
        good = False
    if not good or re.search(r"[\x00-\x20\x7f]", url):
        return "is not an http address"
    if parts.username is not None or parts.password is not None:
        return "has a name or a password in it; `key` says where an API key is"
    if parts.query or parts.fragment:
        return "ends with a query; write the address only"
    return None


Words = Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=256), Expand(_words)]
"""A command without a shell."""
Seconds = Annotated[int, Expand(seconds)]
Bytes = Annotated[PositiveInt, Expand(size)]
Address = Annotated[str, Expand(address)]
