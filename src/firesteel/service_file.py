"""The service file: which models one endpoint has, in the user's own names.

    listen: 127.0.0.1:8080
    memory: {ceiling: 110GiB}
    models:
      coder: {recipe: qwen3.6-35b-a3b-nvfp4, context: 131072, pinned: true}
      small: {recipe: gpt-oss-20b, ttl: 10m}
      other: {url: "http://127.0.0.1:9000", memory: 20GiB}
    never_together: [[small, other]]

`up -f`, `ps -f`, `render -f` and `down -f` read it, and the gateway will. Pure: text in, values out; whether
a recipe exists and fits is the catalog's and the planner's answer. Keys are held against one another after
the schema has taken the file (`_faults`), so that each mistake has the line where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PositiveInt

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
    """One model: started by us from a `recipe`, or running already at a `url`; one of them."""

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


class ServiceFile(sheets.Sheet):
    listen: Address = "127.0.0.1:8080"
    memory: Memory = Memory()
    models: Annotated[dict[str, Entry], Field(min_length=1, max_length=100)]
    never_together: tuple[tuple[str, ...], ...] = ()


Fault = tuple[sheets.Path, str]
"""Where in the file, and what is wrong there."""


def read_service_file(name: str, text: str) -> ServiceFile:
    file = sheets.load(name, text, ServiceFile)
    if faults := list(_faults(file)):
        _, lines = sheets.read(name, text)
        said = "\n".join(f"{name}:{lines[path]}: {what}" for path, what in faults)
        raise sheets.BadSheet(said, next=f"correct {name}")
    return file


def _faults(file: ServiceFile) -> Iterator[Fault]:
    for name, entry in file.models.items():
        if not _NAME.match(name):
            yield ("models", name), f"`{name}` is no name: letters, digits, dots, dashes, 63 at most"
        yield from _kind_faults(name, entry)
    yield from _port_faults(file)
    for at, group in enumerate(file.never_together):
        for place, name in enumerate(group):
            if name not in file.models:
                yield ("never_together", at, place), f"`never_together`: `{name}` is not in `models`"


def _kind_faults(name: str, entry: Entry) -> Iterator[Fault]:
    here = ("models", name)
    if (entry.recipe is None) == (entry.url is None):
        yield here, f"`{name}` needs `recipe` or `url`, one of them"
    elif entry.url is not None:
        if not _is_http(entry.url):
            yield (*here, "url"), f"`{name}`: `url` is not an http address"
        for key in ("context", "users", "port"):
            if getattr(entry, key) is not None:
                yield (*here, key), f"`{name}`: a model at a `url` has no `{key}` of ours"


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port past 65535, half an IPv6 address
        return False


def _port_faults(file: ServiceFile) -> Iterator[Fault]:
    first: dict[int, str] = {}
    for name, entry in file.models.items():
        if entry.port and first.setdefault(entry.port, name) != name:
            yield ("models", name, "port"), f"`{name}` has the same port as `{first[entry.port]}`"


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
