"""What a frame of `top` shows: the state of the gateway, its curves, its log of requests."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from firesteel.gateway.state import GatewayState
from firesteel.values import Value

CurveRangeName = Literal["15m", "24h", "30d"]


class Curve(Value):
    name: str
    model: str | None
    values: tuple[float | None, ...]


class Curves(Value):
    """`/api/curves`."""

    step_s: int = 5
    start: int = 0
    series: tuple[Curve, ...] = ()

    def values(self, name: str, model: str | None) -> tuple[float | None, ...]:
        found = (curve.values for curve in self.series if (curve.name, curve.model) == (name, model))
        return next(found, ())


class LoggedRequest(Value):
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


class Snapshot(Value):
    """Everything that a frame shows, as of one moment."""

    url: str
    at: float
    """Seconds since 1970."""
    state: GatewayState = field(default_factory=GatewayState)
    curves: Curves = field(default_factory=Curves)
    requests: tuple[LoggedRequest, ...] = ()
    log: tuple[str, ...] = ()
    log_of: str = ""
    problem: str = ""
    """Why it is not current."""
