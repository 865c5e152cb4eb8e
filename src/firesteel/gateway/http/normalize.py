"""Take out of a prompt what a known client writes anew each time, and the model does not need.

A normalizer is data (`normalizers` in `data/clients`): for one client and the versions that it was seen in,
what is found and what stands there afterwards. It is off unless the service file turns it on (`normalize`),
or the client's own request, by a header that `firesteel client NAME --stable-prompt` configures. A vendor's
own API gets what its client has sent. So does any server from a version that is not known; the request's row
says so.
"""

from __future__ import annotations

import re
from functools import lru_cache

from firesteel.gateway.http.body import Edit
from firesteel.gateway.http.head import RequestHead
from firesteel.gateway.interfaces import Endpoint
from firesteel.gateway.service_config import Normalizer
from firesteel.values import Value

_USER_AGENT = re.compile(rb"^user-agent:[ \t]*([!-~]{1,100})", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(r"[0-9]+")


def user_agent(head: RequestHead) -> str:
    """Its first word: `claude-cli/2.1.197`."""
    found = _USER_AGENT.search(head.lines)
    return found[1].decode("ascii", "replace") if found else ""


class Normalized(Value):
    edits: list[Edit] = []
    says: str = ""
    """For the request's row: what was taken out, or why nothing was."""


UNCHANGED = Normalized()


class Normalizers:
    """Those of the service file, and those that a request may ask for."""

    def __init__(self, known: tuple[Normalizer, ...] = (), on: tuple[str, ...] = ()) -> None:
        """`on`: names of clients that the service file turns on."""
        self._known = known
        self.on = frozenset(on)

    def apply(self, head: RequestHead, kind: str, endpoint: Endpoint, body: bytes) -> Normalized:
        name, _, version = user_agent(head).partition("/")
        own = [
            each
            for each in self._known
            if name in each.agents and each.kind == kind and (head.asks_normalized or each.client in self.on)
        ]
        if not own:
            return UNCHANGED
        if any(_is_vendor(endpoint, host) for each in own for host in each.never):
            return Normalized([], f"Not normalized: {endpoint.authority.decode()} is the vendor's own API")
        edits, done, unknown = [], [], False
        for each in own:
            if not _version(each.since) <= _version(version) <= _version(each.until):
                unknown = True
            elif found := _pattern(each.pattern).search(body):
                edits.append((found.start(), found.end(), found.expand(each.replacement.encode())))
                done.append(f"{each.client} {each.name}")
        if done:
            return Normalized(edits, f"Normalized: {', '.join(done)}")
        why = f"Not normalized: {name} {version[:20]} is not a known version"
        return Normalized([], why) if unknown else UNCHANGED


def _is_vendor(endpoint: Endpoint, host: str) -> bool:
    address = endpoint.address
    name = address if isinstance(address, str) else address[0]
    return name == host or name.endswith(f".{host}")


@lru_cache(64)
def _pattern(text: str) -> re.Pattern[bytes]:
    return re.compile(text.encode())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBER.findall(text)[:4])
