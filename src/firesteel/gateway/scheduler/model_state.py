"""One model as the schedule knows it: what the file says of it, what runs, who is served and who waits.

The file may say something else than what runs (a changed identity, a name that is gone): then it is leaving.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import exp2

from firesteel.gateway.scheduler.events import ModelPhase, ModelStatus, ScheduledModel, SchedulerLimits

_FORGETS_S = 600.0
"""Recent use fades to half in ten minutes."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 5.0, 600.0
"""After a failed load, before the next try; it doubles."""
_STEADY_S = 300.0
"""Who has run for so long has not failed to come up: its crash is the first."""


@dataclass(slots=True)
class Waiter:
    came_s: float
    priority: int
    turn: int
    """Counts up: who came at the same time came one after the other all the same."""


@dataclass(slots=True, eq=False)
class ModelState:
    """Two places are the same only if they are one."""

    model: ScheduledModel
    """As the file has it now."""
    phase: ModelPhase = "off"
    since_s: float = 0.0
    is_outside: bool = False
    """What is here is not ours to start or stop. Follows the model as soon as nothing of ours runs."""
    identity: str = ""
    """Of what runs."""
    held_bytes: int = 0
    """By what runs."""
    load_s: float = 0.0
    busy: set[Hashable] = field(default_factory=set)
    waiting: dict[Hashable, Waiter] = field(default_factory=dict)
    """Oldest first."""
    wanted_s: float | None = None
    """Since when it is wanted without anybody waiting: by name, or pinned. May lie ahead, after a failure."""
    idle_s: float = 0.0
    fails: int = 0
    retry_s: float = 0.0
    why: str = ""
    is_open: bool = False
    """A request is granted at once: ready, and nothing speaks against it."""
    is_unwanted: bool = False
    is_unwelcome: bool = False
    """It runs beside one that it must not meet."""
    is_removed: bool = False
    is_returning: bool = False
    _measured: tuple[str, int] | None = None
    """Of which identity, and how much."""
    _use: float = 0.0
    _used_s: float = 0.0

    # -- what it is --

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def need_bytes(self) -> int:
        """For its next load."""
        if self._measured is not None and self._measured[0] == self.model.identity:
            return self._measured[1]
        return self.model.bytes

    @property
    def bytes(self) -> int:
        return self.need_bytes if self.phase == "off" or self.is_outside else self.held_bytes

    @property
    def holds(self) -> bool:
        """Whether its bytes count. What is outside may be back at any moment, so it always does."""
        return self.is_outside or self.phase != "off"

    @property
    def is_pinned(self) -> bool:
        return self.model.pinned and not self.is_outside and not self.is_removed

    @property
    def is_stale(self) -> bool:
        """What runs, or is coming up, is no longer what the file says."""
        runs = self.phase in ("loading", "ready") and not self.is_outside
        return runs and (self.model.is_outside or self.identity != self.model.identity)

    @property
    def is_leaving(self) -> bool:
        return self.is_removed or self.is_unwanted or self.is_unwelcome or self.is_stale

    @property
    def is_idle(self) -> bool:
        return self.phase == "ready" and not self.busy

    @property
    def waits_since_s(self) -> float | None:
        """Its first waiter."""
        first = next(iter(self.waiting.values()), None)
        return None if first is None else first.came_s

    @property
    def first_turn(self) -> int:
        """Of its first waiter; what is wanted by name goes before those who came at the same time."""
        first = next(iter(self.waiting.values()), None)
        return 0 if first is None else first.turn

    def first_s(self, now_s: float) -> float | None:
        """Since when it is asked for, be it by a request, by name, or as pinned."""
        wanted_s = self.wanted_s if self.wanted_s is not None and self.wanted_s <= now_s else None
        waits_s = self.waits_since_s
        if wanted_s is None or waits_s is None:
            return waits_s if wanted_s is None else wanted_s
        return min(waits_s, wanted_s)

    def dwells_until_s(self, limits: SchedulerLimits) -> float:
        """A dwell is for what is in use: nobody waits for one that nobody has asked for since."""
        return min(self.since_s + limits.min_dwell_s, self.idle_s + limits.lull_s)

    def expires_s(self) -> float | None:
        """When it will have been idle for too long."""
        if self.model.ttl_s is None or not self.is_idle or self.is_pinned or self.is_outside or self.waiting:
            return None
        return self.idle_s + self.model.ttl_s

    def is_stuck(self, limits: SchedulerLimits, now_s: float) -> bool:
        return self.phase == "unloading" and now_s >= self.since_s + limits.stop_s

    def value(self, now_s: float) -> float:
        """What keeping it is worth: seconds to load it again x how much it was used of late."""
        faded = self._use * exp2((self._used_s - now_s) / _FORGETS_S)
        return self.load_s * (faded + 0.01)

    def standing(self, now_s: float) -> ModelStatus:
        return ModelStatus(
            self.name, self.phase, len(self.busy), len(self.waiting), self.bytes, self.since_s, self.why,
            self.value(now_s), self.is_pinned, self.is_outside, self.phase == "ready" and not self.is_open,
        )  # fmt: skip

    # -- what happens to it --

    def use(self, now_s: float) -> None:
        self._use = 1.0 + self._use * exp2((self._used_s - now_s) / _FORGETS_S)
        self._used_s = now_s

    def enter(self, phase: ModelPhase, now_s: float) -> None:
        self.phase, self.since_s, self.idle_s, self.is_open = phase, now_s, now_s, False

    def start(self, now_s: float) -> None:
        """Our load of what the file says."""
        self.identity, self.held_bytes = self.model.identity, self.need_bytes
        self.is_returning = False
        self.enter("loading", now_s)

    def come_up(self, measured_bytes: int | None, now_s: float) -> None:
        if self.phase == "off":
            self.identity, self.held_bytes = self.model.identity, self.need_bytes
        if self.phase == "loading" and not self.is_returning:
            self.load_s = max(1.0, now_s - self.since_s)
        self.measure(measured_bytes)
        self.why, self.is_returning = "", False
        if not self.is_stale:
            self.wanted_s = None
        self.enter("ready", now_s)

    def measure(self, measured_bytes: int | None) -> None:
        if measured_bytes is not None:
            self.held_bytes = measured_bytes
            self._measured = (self.identity, measured_bytes)

    def go_off(self, now_s: float) -> None:
        """Nothing of it runs any more; what the file says holds from here on."""
        self.is_unwanted = self.is_unwelcome = self.is_returning = False
        self.enter("off", now_s)
        self.is_outside = self.model.is_outside
        if self.is_outside:
            self.identity = self.model.identity
            self.enter("ready", now_s)
        elif self.is_pinned:
            self.wanted_s = max(now_s, self.retry_s)

    def fail(self, why: str, now_s: float) -> None:
        """A load that did not come up: the next try waits, longer each time."""
        self.fails += 1
        self.why, self.wanted_s = why, None
        self.retry_s = now_s + _pause_s(self.fails)

    def crash(self, why: str, now_s: float) -> None:
        """The first is made good at once; who crashes again, soon after it came up, waits as if it failed."""
        if now_s >= self.since_s + _STEADY_S:
            self.fails = 0
        self.fails += 1
        self.why, self.retry_s = why, now_s + _pause_s(self.fails - 1)

    def forgive(self) -> None:
        self.fails, self.retry_s = 0, 0.0

    def follow(self, model: ScheduledModel, now_s: float) -> None:
        """The file says this of it now."""
        was, self.model = self.model, model
        self.is_removed = False
        if model.identity != was.identity:
            self.forgive()
            self.load_s = model.load_s
        if model.pinned:
            self.is_unwanted = False
        becomes_other = self.is_outside != model.is_outside or model.identity != was.identity
        if becomes_other and (self.is_outside or (self.phase == "off" and model.is_outside)):
            self.go_off(now_s)
        if was.pinned and not model.pinned:
            self.wanted_s = None
        if model.pinned and not was.pinned and self.phase == "off":
            self.wanted_s = max(now_s, self.retry_s)


def new_model_state(model: ScheduledModel, now_s: float) -> ModelState:
    place = ModelState(model, load_s=model.load_s, identity=model.identity)
    place.go_off(now_s)
    return place


def _pause_s(fails: int) -> float:
    return min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(fails - 1, 10)) if fails else 0.0
