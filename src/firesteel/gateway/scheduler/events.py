"""Events that the scheduler handles, and effects that it returns. Plain values.

The driver owes one result for every effect: `LoadModel` ends with one `ModelLoaded` or `LoadFailed`,
`UnloadModel` with one `ModelUnloaded`, `GrantRequest` with one `RequestFinished` or `RequestReturned`. If it
reads the memory, it does so just before `ModelUnloaded`, and now and then while requests wait. All times are
seconds of one monotonic clock.

Values that every request creates are not frozen: that alone would cost a third of its time.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Literal, TypeAlias

from msgspec import Struct

from firesteel.gateway.service_config import ModelConfig
from firesteel.values import Value

ModelPhase = Literal["off", "loading", "ready", "unloading"]
RejectionKind = Literal["unknown", "full", "too large", "no memory", "failed", "cancelled"]
"""too large: impossible with this service file; no memory: not now, others hold it; failed: it does not
run."""


class SchedulerLimits(Value):
    ceiling_bytes: int
    never_together: tuple[frozenset[str], ...] = ()
    """At most one model of each group is loaded at a time."""
    min_dwell_s: float = 60.0
    max_wait_s: float = 120.0
    queue: int = 256
    """Requests of all models that may wait."""
    stop_s: float = 300.0
    """An unload that takes longer is stuck, and its memory is not waited for."""
    idle_grace_s: float = inf
    """A model that has been idle for this long may be evicted before its `min_dwell_s` is over."""


class RequestArrived(Struct):
    request: Hashable
    """Any value that identifies it among active requests."""
    model: str
    priority: int = 0
    key: str = ""
    """Whose request it is: keys share the queue."""


class RequestAbandoned(Struct):
    """The client left while the request waited. A served request ends with `RequestFinished` instead."""

    request: Hashable


class RequestFinished(Struct):
    """A granted request has ended; unknown requests are ignored."""

    request: Hashable


class RequestReturned(Struct):
    """A granted request whose engine failed before anything of its answer was passed on. It waits again, for
    the engine to come back; it was admitted before, so it is not rejected for a full queue."""

    request: Hashable
    model: str
    priority: int = 0
    key: str = ""


class ModelLoaded(Value):
    """The model answers. From `off`: it was found running. From `ready`: it was measured again."""

    model: str
    bytes: int | None = None
    """Measured; None: use the planned size."""


class LoadFailed(Value):
    """A load failed; nothing of it is left."""

    model: str
    why: str


class ModelUnloaded(Value):
    """No process is left, and the memory is free."""

    model: str


class ModelCrashed(Value):
    """A running model died, or an outside one stopped answering."""

    model: str
    why: str
    is_returning: bool = False
    """Its supervisor restarts it: `ModelLoaded` or `LoadFailed` will follow."""


class LoadRequested(Value):
    """An operator, or `preload`, asks to load or unload a model by name."""

    model: str
    is_loaded: bool
    cancels: bool = False
    """Of an unload: end a load under way, and do not wait for it."""


class ConfigChanged(Value):
    """A complete new service file. Models that did not change keep running."""

    models: tuple[ModelConfig, ...]
    limits: SchedulerLimits


class MemoryReading(Value):
    """A memory reading of the host. It can only lower the limit."""

    available_bytes: int
    keep_free_bytes: int = 0


class TimePassed(Value):
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


class GrantRequest(Struct):
    request: Hashable
    model: str


class RejectRequest(Value):
    request: Hashable
    kind: RejectionKind
    why: str
    retry_after_s: float | None = None
    """None: a retry is useless until the service file changes."""


class LoadModel(Value):
    model: str


class UnloadModel(Value):
    """Stop what runs or loads, or clean up after a crash; ends with `ModelUnloaded` once its memory is
    free."""

    model: str


Effect: TypeAlias = GrantRequest | RejectRequest | LoadModel | UnloadModel


class ScheduledModel(Value):
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
