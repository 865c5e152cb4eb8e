"""API keys, stored in `FIRESTEEL_HOME/keys.json`; `firesteel key` adds and revokes them.

    key, token = add_key(path, "laptop", models=("coder",))     the token is shown once and stored nowhere
    ring = KeyRing.read(path)
    ring.authenticate(b"fs-...") -> Caller | Rejection

Without keys, anyone who connects over loopback may do everything, as with `up` and `down` on the same
machine. Beyond loopback nothing is served without keys (`require_keys`). A gateway that has had keys never
becomes open because the last one was revoked or the file is missing.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from firesteel.edge.files.home import Home, Locked, lock, write_text
from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.interfaces import BearerToken, Caller, Rejection
from firesteel.gateway.rate_limits import NO_LIMITS, KeyLimits, RateLimit, parse_rate_limit
from firesteel.typed_json import from_json

Scope = Literal["inference", "admin"]
MAX_KEYS = 1000
MAX_PRIORITY = 100
_DOCUMENT = "firesteel.keys/1"
_MAX_FILE_BYTES = 2**20
_MAX_TOKEN_BYTES = 512
_LOCK_TRIES, _LOCK_PAUSE_S = 50, 0.1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""Used in labels, logs and header lines, so it must not contain anything that ends one."""
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)

_ANYONE = Caller(is_admin=True)
_MISSING = Rejection(
    401,
    "invalid_api_key",
    "this gateway requires a key. Send it as `Authorization: Bearer fs-...` or `x-api-key: fs-...`; "
    "`firesteel key add NAME` creates one.",
)
_WRONG = Rejection(
    401, "invalid_api_key", "this key is unknown or was revoked. `firesteel key add NAME` creates one."
)
_NOT_ADMIN = Rejection(
    403,
    "permission_denied",
    "this needs an admin key, not an inference key. `firesteel key add NAME --admin` creates one.",
)


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    digest: str
    """SHA-256 of the token, in hex. Slow hashes protect passwords, which can be guessed. A random token of
    256 bits cannot, and it is hashed for every request."""
    scope: Scope = "inference"
    models: tuple[str, ...] | None = None
    """The models it may use; None: all."""
    limits: KeyLimits = NO_LIMITS
    priority: int = 0
    created: str = ""

    @property
    def id(self) -> str:
        """Identifies a key without revealing it: `printf %s TOKEN | sha256sum` begins with it."""
        return self.digest[:8]

    @property
    def caller(self) -> Caller:
        models = None if self.models is None else frozenset(self.models)
        return Caller(self.name, self.scope == "admin", models, self.priority)


def keys_path(home: Home) -> Path:
    return home.root / "keys.json"


def digest_of(token: bytes) -> str:
    return sha256(token).hexdigest()


class KeyRing:
    """The keys as last read. `authenticate` is called for every request, `refresh` once a second."""

    def __init__(self, path: Path, keys: Mapping[str, Key], stamp: tuple[int, ...] | None) -> None:
        self.path = path
        self._stamp = stamp
        self._has_had_keys = False
        self._set_keys(keys)

    @classmethod
    def read(cls, path: Path) -> KeyRing:
        """An invalid file is an error: treating it as empty would let everybody in."""
        stamp = _stamp(path)
        return cls(path, read_keys(path), stamp)

    def _set_keys(self, keys: Mapping[str, Key]) -> None:
        self.keys = dict(keys)
        self._callers = {(digest := bytes.fromhex(key.digest)): (digest, key.caller) for key in keys.values()}
        self._has_had_keys = self._has_had_keys or bool(keys)

    @property
    def is_open(self) -> bool:
        return not self._has_had_keys

    def limits(self) -> dict[str, KeyLimits]:
        return {key.name: key.limits for key in self.keys.values()}

    def authenticate(self, token: bytes | None) -> Caller | Rejection:
        """Timing reveals nothing about the keys: only digests are looked up and compared, and nobody can
        choose how the digest of a guess begins."""
        if not self._has_had_keys:
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
            return _WRONG
        return entry[1]

    def refresh(self) -> str | None:
        """Read the file again if it has changed. Return a message about the change, or None.

        An invalid file leaves the keys unchanged: a typing error must neither admit nor lock out anybody.
        """
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
        return f"keys: {', '.join(changes) or 'read again'}"


def require_keys(listen: str, ring: KeyRing) -> None:
    """`listen` is an address with a port, or the path of a socket."""
    if ring.is_open and not is_loopback(listen):
        raise FiresteelError(
            f"{listen} is open to other machines, and there are no keys: anyone could use and unload models",
            next="firesteel key add NAME",
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


def check_model_access(who: Caller, model: str) -> Rejection | None:
    return None if who.models is None or model in who.models else unknown_model(model)


def check_admin(who: Caller) -> Rejection | None:
    return None if who.is_admin else _NOT_ADMIN


def add_key(
    path: Path,
    name: str,
    *,
    scope: Scope = "inference",
    models: tuple[str, ...] | None = None,
    limits: KeyLimits = NO_LIMITS,
    priority: int = 0,
) -> tuple[Key, str]:
    """Return the key and its token, which is stored nowhere."""
    _check_values(name, models, priority)
    token = f"fs-{secrets.token_urlsafe(32)}"
    created = datetime.now(UTC).isoformat(timespec="seconds")
    key = Key(name, digest_of(token.encode()), scope, models, limits, priority, created)
    with _locked(path):
        keys = read_keys(path)
        if name in keys:
            raise UsageError(f"a key called `{name}` already exists", next=f"firesteel key revoke {name}")
        if len(keys) >= MAX_KEYS:
            raise UsageError(f"there are already {MAX_KEYS} keys", next="firesteel key list")
        _write_keys(path, {**keys, name: key})
    return key, token


def revoke_key(path: Path, name: str) -> Key:
    with _locked(path):
        keys = read_keys(path)
        if name not in keys:
            known = f"; known keys: {', '.join(sorted(keys))}" if keys else ""
            raise UsageError(f"there is no key called `{name[:63]}`{known:.1000}", next="firesteel key list")
        _write_keys(path, {other: key for other, key in keys.items() if other != name})
    return keys[name]


def _check_values(name: str, models: tuple[str, ...] | None, priority: int) -> None:
    for checked in (name, *(models or ())):
        if not _NAME.fullmatch(checked):
            raise UsageError(
                f"`{checked[:63]}` is not a valid name: letters, digits, dots, dashes, 63 at most",
                next="firesteel key add laptop",
            )
    if abs(priority) > MAX_PRIORITY:
        raise UsageError(
            f"a priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}", next="--priority 10"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two commands that change the keys at once take turns."""
    lock_file = path.with_name(f".{path.name}.lock")
    for _ in range(_LOCK_TRIES):
        try:
            with lock(lock_file):
                yield
                return
        except Locked:
            time.sleep(_LOCK_PAUSE_S)
    raise FiresteelError(f"another firesteel has locked {lock_file} for too long", next="firesteel key list")


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


@dataclass(frozen=True, slots=True)
class _KeyJson:
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


@dataclass(frozen=True, slots=True)
class _KeysDocument:
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
    limits = KeyLimits(_rate(row.requests), _rate(row.tokens))
    return Key(row.name, row.sha256, row.scope, row.models, limits, row.priority, row.created)


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
        )
        for key in keys.values()
    )
    write_text(path, json.dumps(asdict(_KeysDocument(_DOCUMENT, rows)), indent=1) + "\n")


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        stat_result = path.stat()
    except OSError:
        return None
    return stat_result.st_mtime_ns, stat_result.st_size, stat_result.st_ino, stat_result.st_mode
