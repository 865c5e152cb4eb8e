"""One model as the scheduler sees it: its configuration, what runs, and the requests it serves or queues.

What runs may differ from the service file (another identity, a removed model). It is then leaving: it gets no
new requests, and is unloaded once idle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from math import exp2

from msgspec import Struct, field

from firesteel.gateway.scheduler.events import ModelPhase, ScheduledModel, SchedulerLimits
from firesteel.gateway.service_config import ModelConfig

_USE_HALF_LIFE_S = 600.0
"""Recent use halves every ten minutes."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 5.0, 600.0
"""Pause after a failed load, before the next attempt; it doubles each time."""
_LAST_CRASH_PAUSE_S = 60.0
"""After the first crash it is loaded again at once, after the second in a second, then 2, 4, 8 s."""
_STABLE_S = 300.0
"""A crash after this long counts as the first: the load itself was fine."""


class Waiter(Struct):
    arrived_s: float
    priority: int
    sequence: int
    """Arrival order, for requests with the same timestamp."""
    key: str = ""


class ModelState(Struct, eq=False):
    """Compared by object identity."""

    config: ModelConfig
    """From the current service file."""
    phase: ModelPhase = "off"
    since_s: float = 0.0
    is_outside: bool = False
    """Not ours to start or stop. Follows the configuration as soon as nothing of ours runs."""
    identity: str = ""
    """Of what runs now; the configuration may already name another."""
    need_bytes: int = 0
    """Memory needed for the next load."""
    held_bytes: int = 0
    """Memory held by what runs."""
    load_s: float = 0.0
    busy: set[Hashable] = set()
    waiting: OrderedDict[Hashable, Waiter] = field(default_factory=OrderedDict)
    """In order of arrival. Changed only by `Requests`, with the next three. Not a plain `dict`: finding its
    first key is slow once many before it were deleted."""
    oldest: Waiter | None = None
    priorities: dict[int, int] = {}
    """How many of the waiting requests have each priority..."""
    keys: dict[str, int] = {}
    """... and are of each key."""
    requested_s: float | None = None
    """When it was requested by name or because it is pinned. In the future after a failed load."""
    idle_s: float = 0.0
    fails: int = 0
    retry_s: float = 0.0
    why: str = ""
    is_open: bool = False
    """Requests are granted at once: it is ready, and nothing blocks it."""
    is_unload_requested: bool = False
    is_conflicting: bool = False
    """It runs together with a model from the same `never_together` group."""
    is_removed: bool = False
    is_cancelled: bool = False
    """Its load: it stays off until somebody asks for it again, also if it is pinned."""
    is_returning: bool = False
    _measured: tuple[str, int] | None = None
    """The identity that was measured, and its bytes."""
    _use: float = 0.0
    _used_s: float = 0.0

    # -- queries --

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def bytes(self) -> int:
        return self.need_bytes if self.phase == "off" or self.is_outside else self.held_bytes

    @property
    def holds_memory(self) -> bool:
        """Whether its bytes count. An outside model may come back at any moment, so it always counts."""
        return self.is_outside or self.phase != "off"

    @property
    def is_pinned(self) -> bool:
        return self.config.pinned and not self.is_outside and not self.is_removed

    @property
    def is_stale(self) -> bool:
        """Whether what runs, or loads, differs from the service file."""
        config = self.config
        if self.identity == config.identity and not config.is_outside:
            return False
        return self.phase in ("loading", "ready") and not self.is_outside

    @property
    def is_leaving(self) -> bool:
        return self.is_removed or self.is_unload_requested or self.is_conflicting or self.is_stale

    @property
    def is_idle(self) -> bool:
        return self.phase == "ready" and not self.busy

    @property
    def first_sequence(self) -> int:
        """Of the oldest waiting request. 0, which goes first, for a model requested by name."""
        return 0 if self.oldest is None else self.oldest.sequence

    def requested_since_s(self, now_s: float) -> float | None:
        """Since when it has been needed: by a request, by name, or because it is pinned."""
        requested_s = self.requested_s if self.requested_s is not None and self.requested_s <= now_s else None
        waits_s = None if self.oldest is None else self.oldest.arrived_s
        if requested_s is None or waits_s is None:
            return waits_s if requested_s is None else requested_s
        return min(waits_s, requested_s)

    def dwell_ends_s(self, limits: SchedulerLimits) -> float:
        """End of the protection against eviction. Only a model in use is protected."""
        return min(self.since_s + limits.min_dwell_s, self.idle_s + limits.idle_grace_s)

    def expires_s(self) -> float | None:
        """When its idle time reaches `ttl`."""
        if self.config.ttl_s is None or not self.is_idle or self.is_pinned or self.is_outside or self.waiting:
            return None
        return self.idle_s + self.config.ttl_s

    def is_stuck(self, limits: SchedulerLimits, now_s: float) -> bool:
        return self.phase == "unloading" and now_s >= self.since_s + limits.stop_s

    def value(self, now_s: float) -> float:
        """What keeping it is worth: seconds to load it again x recent use."""
        faded = self._use * exp2((self._used_s - now_s) / _USE_HALF_LIFE_S)
        return self.load_s * (faded + 0.01)

    def status(self, now_s: float) -> ScheduledModel:
        return ScheduledModel(
            self.name, self.phase, len(self.busy), len(self.waiting), self.bytes, self.since_s, self.why,
            self.value(now_s), self.is_pinned, self.is_outside, self.phase == "ready" and not self.is_open,
            self.requested_since_s(now_s) is not None,
        )  # fmt: skip

    # -- transitions --

    def use(self, now_s: float) -> None:
        self._use = 1.0 + self._use * exp2((self._used_s - now_s) / _USE_HALF_LIFE_S)
        self._used_s = now_s

    def enter(self, phase: ModelPhase, now_s: float) -> None:
        self.phase, self.since_s, self.idle_s, self.is_open = phase, now_s, now_s, False

    def start(self, now_s: float) -> None:
        """Begin to load what the service file says."""
        self.identity, self.held_bytes = self.config.identity, self.need_bytes
        self.is_returning = False
        self.enter("loading", now_s)

    def set_ready(self, measured_bytes: int | None, now_s: float) -> None:
        if self.phase == "off":
            self.identity, self.held_bytes = self.config.identity, self.need_bytes
        if self.phase == "loading" and not self.is_returning:
            self.load_s = max(1.0, now_s - self.since_s)
        self.measure(measured_bytes)
        self.why, self.is_returning = "", False
        if not self.is_stale:
            self.requested_s = None
        self.enter("ready", now_s)

    def measure(self, measured_bytes: int | None) -> None:
        if measured_bytes is not None:
            self.held_bytes = measured_bytes
            self._measured = (self.identity, measured_bytes)
            self._set_need_bytes()

    def set_off(self, now_s: float) -> None:
        """Nothing of it runs any more; the service file applies from here on."""
        self.is_unload_requested = self.is_conflicting = self.is_returning = False
        was_cancelled, self.is_cancelled = self.is_cancelled, False
        self.enter("off", now_s)
        self.is_outside = self.config.is_outside
        if self.is_outside:
            self.identity = self.config.identity
            self.enter("ready", now_s)
        elif self.is_pinned and not was_cancelled:
            self.requested_s = max(now_s, self.retry_s)

    def fail(self, why: str, now_s: float) -> None:
        """A load failed: the next attempt waits, longer each time."""
        self.fails += 1
        self.why, self.requested_s = why, None
        self.retry_s = now_s + min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self.fails - 1, 10))

    def crash(self, why: str, now_s: float) -> None:
        """The first crash is repaired at once, the next ones after a pause that doubles."""
        if now_s >= self.since_s + _STABLE_S:
            self.fails = 0
        self.fails += 1
        pause_s = min(_LAST_CRASH_PAUSE_S, 2.0 ** min(self.fails - 2, 10)) if self.fails > 1 else 0.0
        self.why, self.retry_s = why, now_s + pause_s

    def reset_failures(self) -> None:
        self.fails, self.retry_s = 0, 0.0

    def update_config(self, model: ModelConfig, now_s: float) -> None:
        """Apply a changed service file."""
        was, self.config = self.config, model
        self.is_removed = False
        self._set_need_bytes()
        if model.identity != was.identity:
            self.reset_failures()
            self.load_s = model.load_s
        if model.pinned:
            self.is_unload_requested = False
        becomes_other = self.is_outside != model.is_outside or model.identity != was.identity
        if becomes_other and (self.is_outside or (self.phase == "off" and model.is_outside)):
            self.set_off(now_s)
        if was.pinned and not model.pinned:
            self.requested_s = None
        if model.pinned and not was.pinned and self.phase == "off":
            self.requested_s = max(now_s, self.retry_s)

    def _set_need_bytes(self) -> None:
        is_measured = self._measured is not None and self._measured[0] == self.config.identity
        self.need_bytes = self._measured[1] if self._measured and is_measured else self.config.bytes


def new_model_state(model: ModelConfig, now_s: float) -> ModelState:
    state = ModelState(model, load_s=model.load_s, identity=model.identity, need_bytes=model.bytes)
    state.set_off(now_s)
    return state
