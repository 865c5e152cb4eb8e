"""Keys as values, and the file that has them: `FIRESTEEL_HOME/keys.json`.

Its owner alone can read it, and it has no token: only hashes. Two commands that change it take turns.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Literal

from firesteel.edge.home import Home, exclusive, write_text
from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.budgets import parse_budget
from firesteel.gateway.interfaces import Caller
from firesteel.gateway.rate_limits import NO_LIMITS, KeyLimits, RateLimit, parse_rate_limit
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
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
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
        has_budget = self.limits.budget is not None
        return Caller(self.name, self.scope == "admin", models, self.priority, has_budget=has_budget)


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
        raise UsageError(what, next=f"firesteel key add {name} --metrics")
    token = f"fs-{secrets.token_urlsafe(32)}"
    created = datetime.now(UTC).isoformat(timespec="seconds")
    until = expires.astimezone(UTC).isoformat(timespec="seconds") if expires else ""
    key = Key(name, sha256(token.encode()).hexdigest(), scope, models, limits, priority, created, until)
    with exclusive(path):
        keys = read_keys(path)
        if name in keys:
            raise UsageError(f"a key called `{name}` already exists", next=f"firesteel key revoke {name}")
        if len(keys) >= MAX_KEYS:
            raise UsageError(f"there are already {MAX_KEYS} keys", next="firesteel key list")
        _write_keys(path, {**keys, name: key})
    return key, token


def parse_expiry(text: str, now: float) -> datetime:
    """`30d` or `12h` from now, or a day: until its end, in the host's time zone."""
    try:
        if match := _DURATION.fullmatch(text):
            return datetime.fromtimestamp(now, UTC) + timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
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
            raise UsageError(f"there is no key called `{name[:63]}`{known:.1000}", next="firesteel key list")
        _write_keys(path, {other: key for other, key in keys.items() if other != name})
    return keys[name]


def _check_values(name: str, models: tuple[str, ...] | None, priority: int) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{name[:63]}` is not a valid name: letters, digits, dots, dashes, 63 at most",
            next="firesteel key add laptop",
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
            next=f"mv {path} {path}.damaged, then firesteel key add NAME",
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
    if not _DIGEST.fullmatch(row.sha256):
        raise ValueError(f"`sha256` of key `{row.name}` is not a digest")
    budget = parse_budget(row.budget) if row.budget is not None else None
    limits = KeyLimits(_rate(row.requests), _rate(row.tokens), budget)
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
        )
        for key in keys.values()
    )
    write_text(path, json.dumps(plain(_KeysDocument(_DOCUMENT, rows)), indent=1) + "\n")
