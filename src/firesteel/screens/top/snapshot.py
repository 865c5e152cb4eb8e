"""What the gateway said, as values. Fields that an older gateway does not send have a default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

CurveRangeName = Literal["15m", "24h", "30d"]


@dataclass(frozen=True, slots=True)
class HealthText:
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class TopModel:
    """One model of `/api/state`."""

    name: str
    phase: str
    busy: int = 0
    waiting: int = 0
    planned_bytes: int | None = None
    measured_bytes: int | None = None
    needed_bytes: int | None = None
    pinned: bool = False
    why: str | None = None
    doing: str | None = None
    eta_s: float | None = None
    note: str | None = None
    health: HealthText | None = None
    tokens_per_s: float | None = None
    kv_used: float | None = None
    acceptance: float | None = None
    evicts: tuple[str, ...] | None = None
    """What a load would unload first; None: the gateway does not say."""
    why_not: str | None = None
    """Why a load is impossible."""

    @property
    def bytes(self) -> int:
        return self.measured_bytes or self.needed_bytes or self.planned_bytes or 0

    @property
    def is_held(self) -> bool:
        return self.phase in ("loading", "ready", "unloading")


@dataclass(frozen=True, slots=True)
class TopMemory:
    ceiling_bytes: int | None = None
    loaded_bytes: int = 0
    available_bytes: int | None = None
    total_bytes: int | None = None
    floor_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TopGpu:
    temperature_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    throttle: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    model: str
    key: str = ""
    since: float = 0.0
    doing: str = ""


@dataclass(frozen=True, slots=True)
class TopState:
    """`/api/state`."""

    models: tuple[TopModel, ...] = ()
    memory: TopMemory = TopMemory()
    gpu: TopGpu | None = None
    waiting: int = 0
    queue: tuple[WaitingRequest, ...] = ()
    version: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    model: str | None
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """`/api/curves`."""

    step_s: int = 5
    start: int = 0
    series: tuple[Curve, ...] = ()

    def values(self, name: str, model: str | None) -> tuple[float | None, ...]:
        found = (curve.values for curve in self.series if (curve.name, curve.model) == (name, model))
        return next(found, ())


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A row of `/api/requests`."""

    id: int
    at: float
    model: str
    status: int
    how: str
    total_s: float
    key: str = ""
    why: str = ""
    waited_s: float = 0.0
    first_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a frame shows, as of one moment."""

    url: str
    at: float
    """Seconds since 1970."""
    state: TopState = field(default_factory=TopState)
    curves: Curves = field(default_factory=Curves)
    requests: tuple[LoggedRequest, ...] = ()
    log: tuple[str, ...] = ()
    log_of: str = ""
    problem: str = ""
    """Why it is not current."""
