"""API keys, stored in `FIRESTEEL_HOME/keys.json`; `firesteel serve key` adds and revokes them.

    key, token = add_key(path, "laptop", models=("coder",))     the token is shown once and stored nowhere
    ring = KeyRing.read(path)
    ring.authenticate(b"fs-...") -> Caller | Rejection

Only the file's owner can read it, and it has no token: only hashes. Two commands that change it take turns. A
key may be for some models only, named or by pattern (`qwen*`). A model's name covers its aliases; an alias
covers only itself. A key that has expired stays in the file, and is refused.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Literal

from firesteel.edge.home import Home, exclusive, write_text
from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.interfaces import BearerToken, Caller, Rejection
from firesteel.gateway.key_limits import (
    NO_LIMITS,
    UNIT_SECONDS,
    KeyLimits,
    RateLimit,
    parse_budget,
    parse_rate_limit,
)
from firesteel.values import Value, from_json, plain

Scope = Literal["inference", "admin", "metrics"]
MAX_KEYS = 1000
MAX_PRIORITY = 100
_DOCUMENT = "firesteel.keys/1"
_MAX_FILE_BYTES = 2**20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""Used in labels, logs and header lines, so it must not contain anything that ends one."""
_MODEL = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9._:/@+*?-]{0,199}", re.ASCII)
"""A model, an alias, or a pattern with `*` and `?`."""
_MAX_MODELS = 100
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Key(Value):
    name: str
    digest: str
    """SHA-256 of the token, in hex. Slow hashes protect passwords, which can be guessed. A random token of
    256 bits cannot, and it is hashed for every request."""
    scope: Scope = "inference"
    models: tuple[str, ...] | None = None
    """The models, aliases and patterns that it may use; None: all."""
    limits: KeyLimits = NO_LIMITS
    priority: int = 0
    created: str = ""
    expires: str = ""
    """An ISO time with its zone; empty: never."""

    @property
    def id(self) -> str:
        """Identifies a key without revealing it: `printf %s TOKEN | sha256sum` begins with it."""
        return self.digest[:8]

    @property
    def expires_s(self) -> float:
        """Seconds since 1970."""
        return datetime.fromisoformat(self.expires).timestamp() if self.expires else inf

    def caller(self, names: Iterable[str]) -> Caller:
        """`names`: the models and aliases of the service file, for patterns."""
        if self.scope == "metrics":
            return Caller(self.name, models=frozenset(), is_for_metrics=True)
        models = None if self.models is None else frozenset(_allowed(self.models, names))
        limits = self.limits
        return Caller(
            self.name,
            self.scope == "admin",
            models,
            self.priority,
            has_budget=limits.budget is not None,
            has_reservation=limits.is_reserved,
        )


def _allowed(patterns: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    for pattern in patterns:
        if "*" in pattern or "?" in pattern:
            yield from (name for name in names if fnmatchcase(name, pattern))
        else:
            yield pattern


def keys_path(home: Home) -> Path:
    return home.root / "keys.json"


def add_key(
    path: Path,
    name: str,
    *,
    scope: Scope = "inference",
    models: tuple[str, ...] | None = None,
    limits: KeyLimits = NO_LIMITS,
    priority: int = 0,
    expires: datetime | None = None,
) -> tuple[Key, str]:
    """Return the key and its token, which is stored nowhere."""
    _check_values(name, models, priority)
    if scope == "metrics" and (models or limits != NO_LIMITS):
        what = "a key for metrics sends no requests: it takes no models and no limits"
        raise UsageError(what, next=f"firesteel serve key add {name} --metrics")
    token = f"fs-{secrets.token_urlsafe(32)}"
    created = datetime.now(UTC).isoformat(timespec="seconds")
    until = expires.astimezone(UTC).isoformat(timespec="seconds") if expires else ""
    key = Key(name, sha256(token.encode()).hexdigest(), scope, models, limits, priority, created, until)
    with exclusive(path):
        keys = read_keys(path)
        if name in keys:
            raise UsageError(
                f"a key called `{name}` already exists", next=f"firesteel serve key revoke {name}"
            )
        if len(keys) >= MAX_KEYS:
            raise UsageError(f"there are already {MAX_KEYS} keys", next="firesteel serve key list")
        _write_keys(path, {**keys, name: key})
    return key, token


def parse_expiry(text: str, now: float) -> datetime:
    """`30d` or `12h` from now, or a day: until its end, in the host's time zone."""
    try:
        if match := _DURATION.fullmatch(text):
            return datetime.fromtimestamp(now, UTC) + timedelta(
                seconds=int(match[1]) * UNIT_SECONDS[match[2]]
            )
        until = datetime.combine(date.fromisoformat(text) + timedelta(days=1), datetime.min.time())
        expires = until.astimezone()
    except (ValueError, OverflowError):
        raise UsageError(
            f"`{text[:40]}` is neither a time nor a day", next="--expires 30d, or 2026-12-31"
        ) from None
    if expires.timestamp() <= now:
        raise UsageError(f"{text} has passed already", next="--expires 30d")
    return expires


def revoke_key(path: Path, name: str) -> Key:
    with exclusive(path):
        keys = read_keys(path)
        if name not in keys:
            known = f"; known keys: {', '.join(sorted(keys))}" if keys else ""
            raise UsageError(
                f"there is no key called `{name[:63]}`{known:.1000}", next="firesteel serve key list"
            )
        _write_keys(path, {other: key for other, key in keys.items() if other != name})
    return keys[name]


def _check_values(name: str, models: tuple[str, ...] | None, priority: int) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{name[:63]}` is not a valid name: letters, digits, dots, dashes, 63 at most",
            next="firesteel serve key add laptop",
        )
    for model in models or ():
        if not _MODEL.fullmatch(model):
            what = f"`{model[:63]}` is neither the name of a model nor a pattern"
            raise UsageError(what, next="--model coder, or --model 'qwen*'")
    if len(models or ()) > _MAX_MODELS:
        raise UsageError(f"a key has at most {_MAX_MODELS} models", next="--model 'qwen*' for many")
    if abs(priority) > MAX_PRIORITY:
        raise UsageError(
            f"a priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}", next="--priority 10"
        )


def read_keys(path: Path) -> dict[str, Key]:
    """By name. No file: no keys. A file that others can write is not trusted."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise FiresteelError(f"{path} cannot be read ({error.strerror})", next=f"ls -l {path}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise FiresteelError(f"other users can write {path}", next=f"chmod 600 {path}")
    try:
        return _parse(data)
    except (ValueError, TypeError, RecursionError, UsageError) as error:
        raise FiresteelError(
            f"{path} is not a valid list of keys: {str(error)[:200] or type(error).__name__}",
            next=f"mv {path} {path}.damaged, then firesteel serve key add NAME",
        ) from error


class _KeyJson(Value):
    """A key as the file has it."""

    name: str
    sha256: str
    scope: Scope
    id: str = ""
    models: tuple[str, ...] | None = None
    requests: str | None = None
    tokens: str | None = None
    priority: int = 0
    created: str = ""
    budget: str | None = None
    expires: str = ""
    at_once: int | None = None


class _KeysDocument(Value):
    document: str
    keys: tuple[_KeyJson, ...]


def _parse(data: bytes) -> dict[str, Key]:
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {_MAX_FILE_BYTES} bytes")
    file = from_json(_KeysDocument, json.loads(data))
    if file.document != _DOCUMENT or len(file.keys) > MAX_KEYS:
        raise ValueError(f"`document` is not {_DOCUMENT}, or it has more than {MAX_KEYS} keys")
    keys = {row.name: _key(row) for row in file.keys}
    if len(keys) != len(file.keys) or len({key.digest for key in keys.values()}) != len(keys):
        raise ValueError("two keys have the same name or the same token")
    return keys


def _key(row: _KeyJson) -> Key:
    _check_values(row.name, row.models, row.priority)
    if row.at_once is not None and row.at_once < 1:
        raise ValueError(f"`at_once` of key `{row.name}` is not a positive number")
    if not _DIGEST.fullmatch(row.sha256):
        raise ValueError(f"`sha256` of key `{row.name}` is not a digest")
    budget = parse_budget(row.budget) if row.budget is not None else None
    limits = KeyLimits(_rate(row.requests), _rate(row.tokens), budget, row.at_once)
    if row.expires and datetime.fromisoformat(row.expires).tzinfo is None:
        raise ValueError(f"`expires` of key `{row.name}` has no time zone")
    return Key(row.name, row.sha256, row.scope, row.models, limits, row.priority, row.created, row.expires)


def _rate(text: str | None) -> RateLimit | None:
    return None if text is None else parse_rate_limit(text)


def _write_keys(path: Path, keys: Mapping[str, Key]) -> None:
    """Atomically, mode 0600."""
    rows = tuple(
        _KeyJson(
            key.name,
            key.digest,
            key.scope,
            key.id,
            key.models,
            str(key.limits.requests) if key.limits.requests else None,
            str(key.limits.tokens) if key.limits.tokens else None,
            key.priority,
            key.created,
            str(key.limits.budget) if key.limits.budget else None,
            key.expires,
            key.limits.at_once,
        )
        for key in keys.values()
    )
    write_text(path, json.dumps(plain(_KeysDocument(_DOCUMENT, rows)), indent=1) + "\n")


_MAX_TOKEN_BYTES = 512
_ANYONE = Caller(is_admin=True)
_MISSING = Rejection(
    401,
    "invalid_api_key",
    "this gateway requires a key. Send it as `Authorization: Bearer fs-...` or `x-api-key: fs-...`; "
    "`firesteel serve key add NAME` creates one.",
)
_WRONG = Rejection(
    401, "invalid_api_key", "this key is unknown or was revoked. `firesteel serve key add NAME` creates one."
)
_EXPIRED = "key `{}` has expired, at {}. `firesteel serve key add NAME` creates another one."
_ONLY_METRICS = Rejection(
    403,
    "permission_denied",
    "this key is for /metrics only. `firesteel serve key add NAME` creates one for requests.",
)
_UNCOUNTED = Rejection(
    403,
    "permission_denied",
    "tokens are not counted on this path, and this key has a limit of tokens. Use a key without one.",
)
_NOT_ADMIN = Rejection(
    403,
    "permission_denied",
    "this needs an admin key, not an inference key. `firesteel serve key add NAME --admin` creates one.",
)
_NOT_METRICS = Rejection(
    403,
    "permission_denied",
    "an inference key does not open /metrics. `firesteel serve key add NAME --metrics` creates one for it.",
)


_LOOK_S = 0.01
"""Between two looks at the file: a flood of wrong keys costs 100 of them a second."""


class KeyRing:
    """The keys as last read. `authenticate` is called for every request, `refresh` once a second. An unknown
    key, and any request while there are no keys, make it look at the file too: a new key works at once.

    Without keys, anyone who connects over loopback may do everything, as with `up` and `down` on the same
    machine. Beyond loopback nothing is served without keys (`require_keys`). A gateway that has had keys
    never becomes open because the last one was revoked or the file is missing.
    """

    def __init__(
        self,
        path: Path,
        keys: Mapping[str, Key],
        stamp: tuple[int, ...] | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._stamp, self._clock = stamp, clock
        self._has_had_keys = False
        self._looked_s = -inf
        self.on_change: Callable[[str], None] = lambda text: None
        """Gets the message about a change that a request has made it see."""
        self._names: tuple[str, ...] = ()
        self._seen_s = -inf
        self._set_keys(keys)

    @classmethod
    def read(cls, path: Path) -> KeyRing:
        """An invalid file is an error: treating it as empty would admit every client."""
        stamp = _stamp(path)
        return cls(path, read_keys(path), stamp)

    def _set_keys(self, keys: Mapping[str, Key]) -> None:
        self.keys = dict(keys)
        self._by_digest = {bytes.fromhex(key.digest): key for key in keys.values()}
        self._forget_callers()
        self._has_had_keys = self._has_had_keys or bool(keys)

    def _forget_callers(self) -> None:
        """A caller is made with the first request of its key, and serves until something changes."""
        self._callers: dict[bytes, tuple[bytes, Caller]] = {}
        now = self._clock()
        expiries = (key.expires_s for key in self.keys.values())
        self._next_expiry = min((at for at in expiries if at > now), default=inf)

    def use_models(self, names: Iterable[str]) -> None:
        """The models and aliases of the service file, for keys with patterns."""
        self._names = tuple(names)
        self._forget_callers()

    @property
    def is_open(self) -> bool:
        return not self._has_had_keys

    def limits(self) -> dict[str, KeyLimits]:
        return {key.name: key.limits for key in self.keys.values()}

    def check_uncounted(self, who: Caller) -> Rejection | None:
        """For requests whose tokens are not counted."""
        if who.is_for_metrics:
            return _ONLY_METRICS
        limits = self.keys[who.name].limits if who.name in self.keys else NO_LIMITS
        return _UNCOUNTED if limits.tokens or limits.budget else None

    def authenticate(self, token: bytes | None) -> Caller | Rejection:
        """Timing reveals nothing about the keys: only digests are looked up and compared, and how the digest
        of a guess begins cannot be chosen."""
        if not self._has_had_keys and not (self._look() and self._has_had_keys):
            return _ANYONE
        if not token:
            return _MISSING
        digest = token.digest if isinstance(token, BearerToken) else None
        if digest is None:
            digest = sha256(token[:_MAX_TOKEN_BYTES]).digest()
            if isinstance(token, BearerToken):
                token.digest = digest
        entry = self._callers.get(digest)
        if entry is None or not compare_digest(digest, entry[0]):
            return self._find(digest)
        return entry[1]

    def _find(self, digest: bytes) -> Caller | Rejection:
        key = self._by_digest.get(digest)
        if key is None and self._look():
            key = self._by_digest.get(digest)
        if key is None or not compare_digest(digest, bytes.fromhex(key.digest)):
            return _WRONG
        if key.expires_s <= self._clock():
            return Rejection(401, "invalid_api_key", _EXPIRED.format(key.name, key.expires))
        caller = key.caller(self._names)
        self._callers[digest] = digest, caller
        return caller

    def _look(self) -> bool:
        """Whether the file has changed and was read again."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S:
            return False
        self._looked_s = now
        text = self.refresh()
        if text:
            self.on_change(text)
        return bool(text)

    def refresh(self) -> str | None:
        """Read the file again if it has changed. Return a message about the change, or None.

        An invalid file leaves the keys unchanged: a typing error must neither admit nor lock out a client.
        """
        now = self._clock()
        if now >= self._next_expiry or now < self._seen_s:  # or the clock was set back
            self._forget_callers()
        self._seen_s = now
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            keys = read_keys(self.path)
        except FiresteelError as error:
            return f"{error.what}; the keys are unchanged"
        before = set(self.keys)
        self._set_keys(keys)
        added, gone = sorted(set(keys) - before), sorted(before - set(keys))
        changes = [*(f"added {name}" for name in added), *(f"revoked {name}" for name in gone)]
        return ", ".join(changes) or "the file was read again"


def require_keys(listen: str, ring: KeyRing) -> None:
    """`listen` is an address with a port, or the path of a socket."""
    if ring.is_open and not is_loopback(listen):
        raise FiresteelError(
            f"{listen} is open to other machines, and there are no keys: anyone could use and unload models",
            next="firesteel serve key add NAME",
        )


def is_loopback(listen: str) -> bool:
    """A host name is not: it may resolve to anything. Only `localhost` is known."""
    if listen.startswith(("/", "unix:")):
        return True
    host = listen
    if listen.startswith("["):
        host = listen[1:].partition("]")[0]
    elif listen.count(":") == 1:
        host = listen.partition(":")[0]
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def unknown_model(model: str) -> Rejection:
    """The same response for a missing model and for one that this key may not use, to reveal no names."""
    return Rejection(
        404,
        "unknown_model",
        f"there is no model `{model[:100]}` for this key. GET /v1/models lists the models.",
    )


def check_model_access(who: Caller, asked: str, model: str | None = None) -> Rejection | None:
    """`model`: what `asked` is an alias of."""
    if who.is_for_metrics:
        return _ONLY_METRICS
    is_allowed = who.models is None or asked in who.models or model in who.models
    return None if is_allowed else unknown_model(asked)


def check_admin(who: Caller) -> Rejection | None:
    return None if who.is_admin else _NOT_ADMIN


def check_metrics(who: Caller) -> Rejection | None:
    return None if who.is_for_metrics or who.is_admin else _NOT_METRICS


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        stat_result = path.stat()
    except OSError:
        return None
    return stat_result.st_mtime_ns, stat_result.st_size, stat_result.st_ino, stat_result.st_mode
