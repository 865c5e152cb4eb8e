"""The service file: which models one endpoint has, in the user's own names.

    listen: 127.0.0.1:8080
    memory: {ceiling: 110GiB}
    models:
      coder: {recipe: qwen3-coder-next-fp8, context: 131072, pinned: true}
      small: {recipe: smollm2, ttl: 10m}
      other: {url: http://127.0.0.1:9000, memory: 20GiB}
    never_together: [[coder, big]]

`up -f`, `ps -f` and `render -f` read it, and the gateway will. Pure: text in, values out; whether a recipe
exists and fits is the catalog's and the planner's answer.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from firesteel import sheets
from firesteel.errors import UsageError
from firesteel.launch import Ask
from firesteel.units import parse_size

FIRST_PORT = 8000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(text: object) -> object:
    """`90s`, `10m`, `2h`."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text) if isinstance(text, str) else None
    if not match:
        raise ValueError("is not a time; write it like 90s, 10m or 2h")
    return int(match[1]) * _TIMES[match[2]]


def _size(text: object) -> object:
    return parse_size(text) if isinstance(text, str) else text


def _address(text: object) -> object:
    """`127.0.0.1:8080`, `[::1]:8080`: an address and a port, no name that somebody else resolves."""
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
        good = bool(colon) and 0 < int(port) < 65536
    except ValueError:
        good = False
    if not good:
        raise ValueError("is not an address and a port; write it like 127.0.0.1:8080")
    return text


Seconds = Annotated[int, BeforeValidator(_seconds)]
Bytes = Annotated[PositiveInt, BeforeValidator(_size)]
Address = Annotated[str, BeforeValidator(_address)]


class Memory(sheets.Sheet):
    ceiling: Bytes | None = None
    """All models together; without it, what the host can give."""


class Entry(sheets.Sheet):
    """One model: started by us from a recipe, or running already at a URL."""

    recipe: str | None = None
    url: str | None = None
    context: PositiveInt | None = None
    users: PositiveInt | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    memory: Bytes | None = None
    """What a model at a URL takes; ours are planned."""
    pinned: bool = False
    """Never evicted."""
    ttl: Seconds | None = None
    """Unused for this long, it is stopped."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.recipe is None) == (self.url is None):
            raise ValueError("needs `recipe` or `url`, one of them")
        if self.url is not None:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("`url` is not an http address")
            if self.context or self.users or self.port:
                raise ValueError("a model at a `url` has no `context`, `users` or `port` of ours")
        return self


class ServiceFile(sheets.Sheet):
    listen: Address = "127.0.0.1:8080"
    memory: Memory = Memory()
    models: Annotated[dict[str, Entry], Field(min_length=1, max_length=100)]
    never_together: tuple[tuple[str, ...], ...] = ()

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in self.models:
            if not _NAME.match(name):
                raise ValueError(f"`{name}` is no name: letters, digits, dots, dashes, 63 at most")
        unknown = sorted({name for group in self.never_together for name in group} - self.models.keys())
        if unknown:
            raise ValueError(f"`never_together` names {', '.join(unknown)}, which is not in `models`")
        ports = [entry.port for entry in self.models.values() if entry.port]
        if len(set(ports)) < len(ports):
            raise ValueError("two models have the same `port`")
        return self


def read_service_file(name: str, text: str) -> ServiceFile:
    return sheets.load(name, text, ServiceFile)


def asks(file: ServiceFile) -> dict[str, Ask]:
    """What to start, by name, each on a port that it has every time."""
    taken = {entry.port for entry in file.models.values()}
    free = (port for port in range(FIRST_PORT, FIRST_PORT + 1000) if port not in taken)
    return {
        name: Ask(entry.recipe, entry.context, entry.users, entry.port or next(free), name=name)
        for name, entry in file.models.items()
        if entry.recipe
    }


def chosen(file: ServiceFile, names: tuple[str, ...]) -> dict[str, Ask]:
    """Those that were named, or all; none that may not meet."""
    known = asks(file)
    for name in names:
        if name not in known:
            raise UsageError(
                f"the service file starts no `{name}`; it has {', '.join(known)}",
                next=f"name {next(iter(known), 'one')}",
            )
    wanted = {name: ask for name, ask in known.items() if not names or name in names}
    for group in file.never_together:
        meet = [name for name in group if name in wanted]
        if len(meet) > 1:
            raise UsageError(
                f"{' and '.join(meet)} must not run together, says `never_together`",
                next=f"name the ones to start, without {' or without '.join(meet)}",
            )
    return wanted
