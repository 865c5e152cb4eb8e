"""Who may ask. Keys are in `FIRESTEEL_HOME/keys.json`, made and revoked by `firesteel key`.

    key, token = add_key(path, "laptop", models=("coder",))     the token is told once and kept nowhere
    ring = KeyRing.read(path)
    ring.who(b"fs-...") -> Who | Refusal

Where there are no keys, whoever reaches us on loopback may do what they like, as they may with `up` and
`down` on the same machine. Beyond loopback there is no service without keys (`insist_keys`), and a gateway
that has seen keys never opens again because the last of them was revoked, or because the file went.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, get_args

from firesteel.edge.files.home import Home, Locked, lock, write_text
from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.interfaces import BearerToken, Identity, Refusal
from firesteel.gateway.rate_limits import NO_LIMITS, KeyLimits, RateLimit, parse_rate_limit

Scope = Literal["inference", "admin"]
MAX_KEYS = 1000
MAX_PRIORITY = 100
_DOCUMENT = "firesteel.keys/1"
_MAX_FILE_BYTES = 2**20
_MAX_TOKEN_BYTES = 512
_LOCK_TRIES, _LOCK_PAUSE_S = 50, 0.1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""It stands in labels, logs and head lines: nothing in it may end one."""
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)

_ANYONE = Identity(is_admin=True)
_MISSING = Refusal(
    401,
    "invalid_api_key",
    "this gateway asks for a key. Send it as `Authorization: Bearer fs-...` or `x-api-key: fs-...`; "
    "`firesteel key add NAME` makes one.",
)
_WRONG = Refusal(
    401, "invalid_api_key", "this key is not known here, or was revoked. `firesteel key add NAME` makes one."
)
_NOT_ADMIN = Refusal(
    403,
    "permission_denied",
    "this needs an admin key; an inference key does not do. `firesteel key add NAME --admin` makes one.",
)


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    digest: str
    """sha256 of the token, in hex. A slow hash is for passwords, which people choose from a few; a random
    token of 256 bits is not guessed however fast a guess is, and every request has one to be hashed."""
    scope: Scope = "inference"
    models: tuple[str, ...] | None = None
    """Which it may ask for; None: all."""
    limits: KeyLimits = NO_LIMITS
    priority: int = 0
    created: str = ""

    @property
    def id(self) -> str:
        """What tells two keys apart without telling either: `printf %s TOKEN | sha256sum` begins with it."""
        return self.digest[:8]

    @property
    def who(self) -> Identity:
        models = None if self.models is None else frozenset(self.models)
        return Identity(self.name, self.scope == "admin", models, self.priority)


def keys_path(home: Home) -> Path:
    return home.root / "keys.json"


def digest_of(token: bytes) -> str:
    return sha256(token).hexdigest()


class KeyRing:
    """The keys as last read. `who` is called for every request; `refresh` beside them, by a clock."""

    def __init__(self, path: Path, keys: Mapping[str, Key], stamp: tuple[int, ...] | None) -> None:
        self.path = path
        self._stamp = stamp
        self._was_closed = False
        self._hold(keys)

    @classmethod
    def read(cls, path: Path) -> KeyRing:
        """A file that is no list of keys is an error: to take it for an empty one would open the door."""
        stamp = _stamp(path)
        return cls(path, read_keys(path), stamp)

    def _hold(self, keys: Mapping[str, Key]) -> None:
        self.keys = dict(keys)
        self._held = {(digest := bytes.fromhex(key.digest)): (digest, key.who) for key in keys.values()}
        self._was_closed = self._was_closed or bool(keys)

    @property
    def is_open(self) -> bool:
        return not self._was_closed

    def limits(self) -> dict[str, KeyLimits]:
        return {key.name: key.limits for key in self.keys.values()}

    def who(self, token: bytes | None) -> Identity | Refusal:
        """How long it takes tells nothing of the keys: what is looked up and compared are digests, and nobody
        can choose how the digest of a guess begins."""
        if not self._was_closed:
            return _ANYONE
        if not token:
            return _MISSING
        digest = token.digest if isinstance(token, BearerToken) else None
        if digest is None:
            digest = sha256(token[:_MAX_TOKEN_BYTES]).digest()
            if isinstance(token, BearerToken):
                token.digest = digest
        held = self._held.get(digest)
        if held is None or not compare_digest(digest, held[0]):
            return _WRONG
        return held[1]

    def refresh(self) -> str | None:
        """Reads the file again if it is another one. In words what came of it; None: nothing is new.

        A file that cannot be read leaves the keys as they were: a slip in an editor neither opens nor shuts.
        """
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            keys = read_keys(self.path)
        except FiresteelError as error:
            return f"{error.what}; the keys stay as they were"
        before = set(self.keys)
        self._hold(keys)
        added, gone = sorted(set(keys) - before), sorted(before - set(keys))
        said = [*(f"added {name}" for name in added), *(f"revoked {name}" for name in gone)]
        return f"keys: {', '.join(said) or 'read again'}"


def insist_keys(listen: str, ring: KeyRing) -> None:
    """`listen` is an address with its port, or the path of a socket."""
    if ring.is_open and not is_loopback(listen):
        raise FiresteelError(
            f"{listen} is open to other machines, and there are no keys: anyone could use and unload models",
            next="firesteel key add NAME",
        )


def is_loopback(listen: str) -> bool:
    """A name is not: who resolves it decides where it leads. `localhost` alone is known."""
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


def unknown_model(model: str) -> Refusal:
    """One answer for what is not there and for what is not for this key, who need not learn our names."""
    return Refusal(
        404, "unknown_model", f"there is no model `{model[:100]}` for this key. GET /v1/models lists what is."
    )


def may_ask(who: Identity, model: str) -> Refusal | None:
    return None if who.models is None or model in who.models else unknown_model(model)


def may_control(who: Identity) -> Refusal | None:
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
    """The key and its token, which is kept nowhere."""
    _insist_words(name, models, priority)
    token = f"fs-{secrets.token_urlsafe(32)}"
    created = datetime.now(UTC).isoformat(timespec="seconds")
    key = Key(name, digest_of(token.encode()), scope, models, limits, priority, created)
    with _alone(path):
        keys = read_keys(path)
        if name in keys:
            raise UsageError(f"there is a key called `{name}` already", next=f"firesteel key revoke {name}")
        if len(keys) >= MAX_KEYS:
            raise UsageError(f"there are {MAX_KEYS} keys already", next="firesteel key list")
        _write_keys(path, {**keys, name: key})
    return key, token


def revoke_key(path: Path, name: str) -> Key:
    with _alone(path):
        keys = read_keys(path)
        if name not in keys:
            known = f"; there is {', '.join(sorted(keys))}" if keys else ""
            raise UsageError(f"there is no key called `{name[:63]}`{known:.1000}", next="firesteel key list")
        _write_keys(path, {other: key for other, key in keys.items() if other != name})
    return keys[name]


def _insist_words(name: str, models: tuple[str, ...] | None, priority: int) -> None:
    for each in (name, *(models or ())):
        if not _NAME.fullmatch(each):
            raise UsageError(
                f"`{each[:63]}` is no name: letters, digits, dots, dashes, 63 at most",
                next="firesteel key add laptop",
            )
    if abs(priority) > MAX_PRIORITY:
        raise UsageError(f"a priority is between -{MAX_PRIORITY} and {MAX_PRIORITY}", next="--priority 10")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two that add a key at once both get theirs."""
    guard = path.with_name(f".{path.name}.lock")
    for _ in range(_LOCK_TRIES):
        try:
            with lock(guard):
                yield
                return
        except Locked:
            time.sleep(_LOCK_PAUSE_S)
    raise FiresteelError(f"another firesteel has held {guard} for too long", next="firesteel key list")


def read_keys(path: Path) -> dict[str, Key]:
    """By name. No file: no keys. A file that others may write is nobody's list of who may."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise FiresteelError(f"{path} cannot be read ({error.strerror})", next=f"ls -l {path}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise FiresteelError(f"others than you may write {path}", next=f"chmod 600 {path}")
    try:
        return _parsed(data)
    except (ValueError, TypeError, KeyError, RecursionError, UsageError) as error:
        raise FiresteelError(
            f"{path} is not a list of keys: {str(error)[:200] or type(error).__name__}",
            next=f"mv {path} {path}.damaged, then firesteel key add NAME",
        ) from error


def _parsed(data: bytes) -> dict[str, Key]:
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {_MAX_FILE_BYTES} bytes")
    found = json.loads(data)
    if not isinstance(found, dict) or found.get("document") != _DOCUMENT:
        raise ValueError(f"`document` is not {_DOCUMENT}")
    keys = [_key(each) for each in found["keys"][: MAX_KEYS + 1]]
    by_name = {key.name: key for key in keys}
    if len(by_name) != len(found["keys"]) or len({key.digest for key in keys}) != len(keys):
        raise ValueError("two keys have one name or one token")
    return by_name


def _key(found: Any) -> Key:
    if not isinstance(found, dict) or not isinstance(found.get("models"), list | None):
        raise ValueError("a key is not as firesteel writes it")
    models = found.get("models")
    key = Key(
        name=found["name"],
        digest=found["sha256"],
        scope=found["scope"],
        models=None if models is None else tuple(models),
        limits=KeyLimits(_rate(found.get("requests")), _rate(found.get("tokens"))),
        priority=found.get("priority", 0),
        created=str(found.get("created", "")),
    )
    if key.scope not in get_args(Scope) or not _DIGEST.fullmatch(key.digest) or type(key.priority) is not int:
        raise ValueError(f"key `{str(key.name)[:63]}` is not as firesteel writes it")
    _insist_words(key.name, key.models, key.priority)
    return key


def _rate(text: str | None) -> RateLimit | None:
    return None if text is None else parse_rate_limit(text)


def _write_keys(path: Path, keys: Mapping[str, Key]) -> None:
    """Whole or not at all, mode 0600."""
    rows = [
        {
            "name": key.name,
            "id": key.id,
            "sha256": key.digest,
            "scope": key.scope,
            "models": None if key.models is None else list(key.models),
            "requests": str(key.limits.requests) if key.limits.requests else None,
            "tokens": str(key.limits.tokens) if key.limits.tokens else None,
            "priority": key.priority,
            "created": key.created,
        }
        for key in keys.values()
    ]
    write_text(path, json.dumps({"document": _DOCUMENT, "keys": rows}, indent=1) + "\n")


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
