"""What the schedule is told, and what it says: values, and nothing that decides.

Whoever drives it owes it an end for everything that it says: a `Load` ends with one `Loaded` or `Failed`, an
`Unload` with one `Gone`, a `Grant` with one `Finished`. If it reads the memory, it does so just before `Gone`
and now and then while somebody waits. Seconds are of one clock that never goes back.

Words of which every request needs one are not frozen: that alone would take a third of its time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

ModelPhase = Literal["off", "loading", "ready", "unloading"]
RefusalKind = Literal["unknown", "full", "too large", "no room", "failed"]
"""too large: never, as the file is; no room: not now, others hold the memory; failed: it does not run."""


@dataclass(frozen=True, slots=True)
class ScheduledModel:
    """One model of the service file."""

    name: str
    bytes: int
    """As planned. What is measured when it runs takes its place, as long as the identity is the same."""
    load_s: float = 60.0
    pinned: bool = False
    ttl_s: float | None = None
    is_outside: bool = False
    """Runs already, at a URL: never ours to start or stop; its bytes count."""
    identity: str = ""
    """What makes it another thing to run. If it changes, what runs is stale; all else changes in place."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    ceiling_bytes: int
    never_together: tuple[frozenset[str], ...] = ()
    """No two of a group are loaded at once."""
    min_dwell_s: float = 60.0
    max_wait_s: float = 120.0
    queue: int = 256
    """Requests that may wait, of all models together."""
    stop_s: float = 300.0
    """An unload that takes longer is stuck: nobody is kept waiting for its memory."""
    lull_s: float = inf
    """Idle for so long, a model dwells no longer."""


@dataclass(slots=True)
class RequestArrived:
    request: Hashable
    """Whatever tells it from every other that waits or is served."""
    model: str
    priority: int = 0


@dataclass(slots=True)
class RequestAbandoned:
    """The client went while it waited. One that is served ends with `Finished`, when the engine is done."""

    request: Hashable


@dataclass(slots=True)
class RequestFinished:
    """A granted request is over; one that is not known any more is no matter."""

    request: Hashable


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """It answers. Out of `off`: it was found running. For a ready one: measured again."""

    model: str
    bytes: int | None = None
    """As measured; None: as planned."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A load that did not come up; nothing of it is left."""

    model: str
    why: str


@dataclass(frozen=True, slots=True)
class ModelUnloaded:
    """Unloaded: no process is left, and the memory is back."""

    model: str


@dataclass(frozen=True, slots=True)
class ModelCrashed:
    """It ran, and died. An outside one: it does not answer."""

    model: str
    why: str
    is_returning: bool = False
    """Its keeper starts it again: `Loaded` or `Failed` will follow."""


@dataclass(frozen=True, slots=True)
class LoadRequested:
    """Load it, or unload it, by name: somebody at the controls, or `preload`."""

    model: str
    is_loaded: bool


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """A new service file, all of it. What it does not touch goes on."""

    models: tuple[ScheduledModel, ...]
    limits: SchedulerLimits


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """A reading of the host. It can only take room away."""

    available_bytes: int
    keep_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time went by; `next_tick_s` says when it is needed."""


SchedulerEvent: TypeAlias = (
    RequestArrived
    | RequestAbandoned
    | RequestFinished
    | ModelLoaded
    | LoadFailed
    | ModelUnloaded
    | ModelCrashed
    | LoadRequested
    | ConfigChanged
    | MemoryReading
    | TimePassed
)


@dataclass(slots=True)
class GrantRequest:
    request: Hashable
    model: str


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    request: Hashable
    kind: RefusalKind
    why: str
    retry_after_s: float | None = None
    """None: asking again is of no use until the service file changes."""


@dataclass(frozen=True, slots=True)
class LoadModel:
    model: str


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Stop what runs, or clear up what a crash left; `Gone` when the memory is back."""

    model: str


Effect: TypeAlias = GrantRequest | RefuseRequest | LoadModel | UnloadModel


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """How one model stands, for those who show it."""

    name: str
    phase: ModelPhase
    busy: int
    waiting: int
    bytes: int
    """Held now, or needed for its next load."""
    since_s: float
    """When it came into this phase."""
    why: str
    """Of the last failure, until it is up again."""
    value: float
    """Seconds to load it x recent use: the least valuable goes first."""
    is_pinned: bool
    is_outside: bool
    is_leaving: bool
    """Gives no new grants: changed, removed, unloaded by name, or in the way of one whose turn it is."""
