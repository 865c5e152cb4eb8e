"""The parts of a service file with detailed rules: scalars, parameters, fallbacks, alerts and origins.

    ttl: 10m                                                     Seconds: also 90s, 2h; Bytes: 20GiB
    parameters: {defaults: {temperature: 0.6}, strip: [user]}    changes requests; aliases may have them too
    fallback: {too_long: big}                                    the model that serves instead
    alerts: {webhook: ALERT_URL}                                 where to report problems, and how often
    cors: loopback                                               which web pages may use it from a browser

Each part is a type that the schema in `service_file.py` uses. The functions that end in `_faults` find the
mistakes that the type alone cannot show, each with its place in the file. An origin is `scheme://host:port`
of a page, as a browser sends it in `Origin`; `loopback` are pages that this machine serves itself, at any
port.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta

from firesteel.units import GIB, parse_count, parse_size
from firesteel.values import Expand, FileValue, PositiveInt, as_json

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
    """`127.0.0.1:8080`, `[::1]:8080`: an address and a port, not a name that DNS would resolve."""
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
    """The end of a sentence. It does not repeat the address, which may contain a password."""
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


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
_MAX_VALUE_BYTES = 4096
_MAX_NAMES = 64
MAX_ALIASES = 32
_OURS = frozenset(
    ("model", "messages", "prompt", "input", "stream", "stream_options", "timings_per_token", "tools")
)
"""What a request is about, and what the gateway itself reads and writes."""


def _count(value: object) -> object:
    """`16k`"""
    return parse_count(value) if isinstance(value, str) else value


Count = Annotated[int, Meta(gt=0, le=100_000_000), Expand(_count)]
Settings = Annotated[
    dict[str, Annotated[Any, Expand(as_json)]],
    Meta(max_length=_MAX_NAMES),
    shaped(dict, "is a map", "defaults: {temperature: 0.6}"),
]


class LimitEntry(FileValue, kw_only=True):
    max_tokens: Count | None = None
    """Of an answer. A request that asks for more, or does not say, gets this."""
    context: Count | None = None
    """Of a prompt, estimated from its length: 4 bytes are a token. A longer one is refused."""


class ParameterEntry(FileValue, kw_only=True):
    """What is added to requests, changed in them and taken out of them."""

    defaults: Settings = {}
    """Where the client gives none; `null` takes away a default of the recipe."""
    fixed: Settings = {}
    """Whatever the client gives."""
    strip: Annotated[
        tuple[str, ...], Meta(max_length=_MAX_NAMES), shaped(list, "is a list", "strip: [user, logit_bias]")
    ] = ()
    """Taken out: fields that an engine rejects, or that clients should not use."""
    limits: Annotated[LimitEntry, shaped(dict, "is a map of settings", "limits: {max_tokens: 4096}")] = (
        LimitEntry()
    )


def _aliases(value: object) -> object:
    """`[a, b]` is short for `{a: {}, b: {}}`."""
    if isinstance(value, list):
        if not all(isinstance(alias, str) for alias in value):
            raise ValueError('is a list of names; write it like `aliases: ["gpt-oss:20b"]`')
        if len(set(value)) < len(value):
            raise ValueError("has a name twice")
        return {alias: {} for alias in value}
    if isinstance(value, dict):
        return {alias: {} if each is None else each for alias, each in value.items()}
    raise ValueError('is a list; write it like `aliases: ["gpt-oss:20b"]`')


Aliases = Annotated[
    dict[str, Annotated[ParameterEntry, shaped(dict, "has parameters", "aliases: {fast: {defaults: {}}}")]],
    Meta(max_length=MAX_ALIASES),
    Expand(_aliases),
]

Place = tuple[str | int, ...]


def parameter_faults(where: Place, name: str, entry: ParameterEntry) -> Iterator[tuple[Place, str]]:
    for group, settings in (("defaults", entry.defaults), ("fixed", entry.fixed)):
        yield from _settings_faults((*where, group), f"`{name}`: `{group}`", settings)
    for at, field in enumerate(entry.strip):
        if wrong := _wrong_name(field):
            yield (*where, "strip", at), f"`{name}`: `strip`: {wrong}"
        elif field in entry.fixed or field in entry.defaults:
            yield (*where, "strip", at), f"`{name}`: `{field}` is stripped and set; `fixed` alone sets it"


def _settings_faults(where: Place, what: str, settings: Mapping[str, object]) -> Iterator[tuple[Place, str]]:
    for field, value in settings.items():
        if wrong := _wrong_name(field):
            yield (*where, field), f"{what}: {wrong}"
            continue
        text = _json(value)
        if text is None:
            yield (*where, field), f"{what}: the value of `{field}` cannot be written as JSON"
            continue
        if len(text) > _MAX_VALUE_BYTES:
            yield (*where, field), f"{what}: the value of `{field}` is longer than {_MAX_VALUE_BYTES} bytes"


def _json(value: object) -> str | None:
    """None: a date, NaN, or a map whose keys are not text."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
    return text if json.loads(text) == value else None


def _wrong_name(field: object) -> str | None:
    if not isinstance(field, str) or not _NAME.match(field):
        return f"`{str(field)[:60]}` is not a field of a request; write it like `temperature`"
    return f"`{field}` is the client's and the gateway's own" if field in _OURS else None


class FallbackEntry(FileValue, kw_only=True):
    """Models or aliases, by reason."""

    down: str | None = None
    """It does not answer, or cannot be loaded."""
    full: str | None = None
    """Too many requests wait, or there is no memory for it now."""
    too_long: str | None = None
    """The prompt is longer than its context."""

    def by_reason(self) -> dict[str, str]:
        """Only the reasons that have one."""
        others = ((reason, getattr(self, reason)) for reason in self.__struct_fields__)
        return {reason: other for reason, other in others if other is not None}


def _fallback(value: object) -> object:
    """`small` is short for `{down: small, full: small, too_long: small}`."""
    if isinstance(value, str):
        return dict.fromkeys(FallbackEntry.__struct_fields__, value)
    if isinstance(value, dict) and value:
        return value
    raise ValueError("names a model; write it like `fallback: small` or `fallback: {too_long: big}`")


Fallback = Annotated[FallbackEntry, Expand(_fallback)]


def fallback_faults(
    name: str, entry: FallbackEntry | None, models: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """`models`: by name and alias."""
    for reason, other in entry.by_reason().items() if entry else ():
        here = ("models", name, "fallback", reason)
        if other not in models:
            yield here, f"`{name}`: `fallback`: `{other[:80]}` is not in `models`"
        elif models[other] == name:
            yield here, f"`{name}`: `fallback`: `{other}` is this model itself"


class AlertEntry(FileValue, kw_only=True):
    """Where to send an alert when a model turns unhealthy, a load fails, the guard acts or a disk fills."""

    webhook: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    """Gets JSON by POST: an http address or, since that is a secret at most services, a variable with it."""
    command: Words = ()
    """Gets the same JSON on its standard input; started without a shell."""
    repeat: Annotated[int, Meta(ge=60), Expand(seconds)] = 6 * 3600
    """A lasting problem is reported again after this many seconds."""
    disk: Bytes = 20 * GIB
    """A disk with less space is an alert."""

    @property
    def is_used(self) -> bool:
        return self.webhook is not None or bool(self.command)


def alert_faults(alerts: AlertEntry) -> Iterator[tuple[tuple[str, ...], str]]:
    webhook = alerts.webhook
    if webhook is not None and not VARIABLE.match(webhook):
        parts = urlsplit(webhook) if not re.search(r"[\x00-\x20\x7f]", webhook) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            # Not repeated: what stands there may be a secret.
            what = "`webhook` is neither an http address nor the name of a variable, like ALERT_URL"
            yield ("alerts", "webhook"), what
    if alerts.command and not alerts.command[0]:
        yield ("alerts", "command"), "`command` begins with no program"


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
        raise ValueError(f"has `{shown}`, which is not an origin (scheme, host and port, no path); {_SHAPE}")
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
    """Never looked up in DNS, so no other machine can have such an origin."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
