"""Events that the scheduler handles, and effects that it returns. Plain values.

The driver owes one result for every effect: `LoadModel` ends with one `ModelLoaded` or `LoadFailed`,
`UnloadModel` with one `ModelUnloaded`, `GrantRequest` with one `RequestFinished` or `RequestReturned`. If it
reads the memory, it does so just before `ModelUnloaded`, and now and then while requests wait. All times are
seconds of one monotonic clock.

Values that every request creates are not frozen: that alone would cost a third of its time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from firesteel.gateway.service_config import ModelConfig

ModelPhase = Literal["off", "loading", "ready", "unloading"]
RejectionKind = Literal["unknown", "full", "too large", "no memory", "failed"]
"""too large: impossible with this service file; no memory: not now, others hold it; failed: it does not
run."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    ceiling_bytes: int
    never_together: tuple[frozenset[str], ...] = ()
    """At most one model of each group is loaded at a time."""
    min_dwell_s: float = 60.0
    max_wait_s: float = 120.0
    queue: int = 256
    """Requests of all models that may wait."""
    stop_s: float = 300.0
    """An unload that takes longer is stuck: nobody waits for its memory."""
    idle_grace_s: float = inf
    """A model that has been idle for this long may be evicted before its `min_dwell_s` is over."""


@dataclass(slots=True)
class RequestArrived:
    request: Hashable
    """Any value that identifies it among active requests."""
    model: str
    priority: int = 0


@dataclass(slots=True)
class RequestAbandoned:
    """The client left while the request waited. A served request ends with `RequestFinished` instead."""

    request: Hashable


@dataclass(slots=True)
class RequestFinished:
    """A granted request has ended; unknown requests are ignored."""

    request: Hashable


@dataclass(slots=True)
class RequestReturned:
    """A granted request whose engine failed before anything of its answer was passed on. It waits again, for
    the engine to come back; it was admitted before, so it is not rejected for a full queue."""

    request: Hashable
    model: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """The model answers. From `off`: it was found running. From `ready`: it was measured again."""

    model: str
    bytes: int | None = None
    """Measured; None: use the planned size."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A load failed; nothing of it is left."""

    model: str
    why: str


@dataclass(frozen=True, slots=True)
class ModelUnloaded:
    """No process is left, and the memory is free."""

    model: str


@dataclass(frozen=True, slots=True)
class ModelCrashed:
    """A running model died, or an outside one stopped answering."""

    model: str
    why: str
    is_returning: bool = False
    """Its supervisor restarts it: `ModelLoaded` or `LoadFailed` will follow."""


@dataclass(frozen=True, slots=True)
class LoadRequested:
    """An operator, or `preload`, asks to load or unload a model by name."""

    model: str
    is_loaded: bool


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """A complete new service file. Models that did not change keep running."""

    models: tuple[ModelConfig, ...]
    limits: SchedulerLimits


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """A memory reading of the host. It can only lower the limit."""

    available_bytes: int
    keep_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`next_tick_s` says when the scheduler needs this event."""


SchedulerEvent: TypeAlias = (
    RequestArrived
    | RequestAbandoned
    | RequestFinished
    | RequestReturned
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
class RejectRequest:
    request: Hashable
    kind: RejectionKind
    why: str
    retry_after_s: float | None = None
    """None: a retry is useless until the service file changes."""


@dataclass(frozen=True, slots=True)
class LoadModel:
    model: str


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Stop what runs, or clean up after a crash; ends with `ModelUnloaded` once the memory is free."""

    model: str


Effect: TypeAlias = GrantRequest | RejectRequest | LoadModel | UnloadModel


@dataclass(frozen=True, slots=True)
class ScheduledModel:
    """One model as its scheduler sees it at one moment."""

    name: str
    phase: ModelPhase
    busy: int
    waiting: int
    bytes: int
    """Held now, or needed for the next load."""
    since_s: float
    """When it entered this phase."""
    why: str
    """The last failure, until it runs again."""
    value: float
    """Seconds to load it x recent use; the least valuable model is evicted first."""
    is_pinned: bool
    is_outside: bool
    is_leaving: bool
    """Gets no new requests: changed, removed, unloaded by name, or in the way of an overdue model."""
    is_needed: bool = False
    """A request waits for it, or it was asked for by name, or is pinned and not loaded."""
