"""API keys, stored in `FIRESTEEL_HOME/keys.json`; `firesteel key` adds and revokes them.

    key, token = add_key(path, "laptop", models=("coder",))     the token is shown once and stored nowhere
    ring = KeyRing.read(path)
    ring.authenticate(b"fs-...") -> Caller | Rejection

Without keys, anyone who connects over loopback may do everything, as with `up` and `down` on the same
machine. Beyond loopback nothing is served without keys (`require_keys`). A gateway that has had keys never
becomes open because the last one was revoked or the file is missing.

A key may be for some models only, named or by pattern (`qwen*`). A model's name covers its aliases; an alias
covers only itself. A key that has expired stays in the file, and is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from math import inf
from pathlib import Path

from firesteel.errors import FiresteelError
from firesteel.gateway.interfaces import BearerToken, Caller, Rejection
from firesteel.gateway.key_file import Key, read_keys
from firesteel.gateway.rate_limits import NO_LIMITS, KeyLimits

_MAX_TOKEN_BYTES = 512
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
_EXPIRED = "key `{}` has expired, at {}. `firesteel key add NAME` creates another one."
_ONLY_METRICS = Rejection(
    403,
    "permission_denied",
    "this key is for /metrics only. `firesteel key add NAME` creates one for requests.",
)
_UNCOUNTED = Rejection(
    403,
    "permission_denied",
    "tokens are not counted on this path, and this key has a limit of tokens. Use a key without one.",
)
_NOT_ADMIN = Rejection(
    403,
    "permission_denied",
    "this needs an admin key, not an inference key. `firesteel key add NAME --admin` creates one.",
)
_NOT_METRICS = Rejection(
    403,
    "permission_denied",
    "an inference key does not open /metrics. `firesteel key add NAME --metrics` creates one that does.",
)


_LOOK_S = 0.01
"""Between two looks at the file: a flood of wrong keys costs 100 of them a second."""


class KeyRing:
    """The keys as last read. `authenticate` is called for every request, `refresh` once a second. An unknown
    key, and any request while there are no keys, make it look at the file too: a new key works at once."""

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
        self._set_keys(keys)

    @classmethod
    def read(cls, path: Path) -> KeyRing:
        """An invalid file is an error: treating it as empty would let everybody in."""
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
        """For requests whose tokens nobody counts."""
        if who.is_for_metrics:
            return _ONLY_METRICS
        limits = self.keys[who.name].limits if who.name in self.keys else NO_LIMITS
        return _UNCOUNTED if limits.tokens or limits.budget else None

    def authenticate(self, token: bytes | None) -> Caller | Rejection:
        """Timing reveals nothing about the keys: only digests are looked up and compared, and nobody can
        choose how the digest of a guess begins."""
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

        An invalid file leaves the keys unchanged: a typing error must neither admit nor lock out anybody.
        """
        if self._clock() >= self._next_expiry:
            self._forget_callers()
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
