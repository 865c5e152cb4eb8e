"""What `/api/state` returns, as values: the gateway makes them; page, alerts and `firesteel top` read them.

Whatever an older gateway does not send has a default.
"""

from __future__ import annotations

from firesteel.values import Value


class ModelHealth(Value):
    ok: bool
    text: str
    """One sentence."""


class ModelStatus(Value):
    """One model."""

    name: str
    phase: str
    busy: int = 0
    waiting: int = 0
    planned_bytes: int | None = None
    measured_bytes: int | None = None
    since: float | None = None
    """Seconds since 1970 when it entered this phase."""
    ttl_s: float | None = None
    pinned: bool = False
    why: str | None = None
    """Why its last load failed, or why it cannot be served."""
    url: str | None = None
    context: int | None = None
    engine: str | None = None
    doing: str | None = None
    """What its load or unload is doing."""
    eta_s: float | None = None
    note: str | None = None
    aliases: tuple[str, ...] = ()
    outside: bool = False
    """It runs at its own URL, and is not loaded or unloaded by the gateway."""
    needed_bytes: int | None = None
    """What the next load needs, or what it holds now."""
    load_s: float | None = None
    """How long a load is expected to take."""
    requested: bool = False
    """It was asked for by name, and waits for its turn to be loaded."""
    evicts: tuple[str, ...] | None = None
    """Models that a load would unload first; None: not known."""
    why_not: str | None = None
    """Why a load is impossible, even if all that may be unloaded is."""
    health: ModelHealth | None = None
    tokens_per_s: float | None = None
    """Of all its streams, in the last five seconds."""
    kv_used: float | None = None
    """Share of its KV cache, 0 to 1."""
    acceptance: float | None = None
    """Share of the drafted tokens that were right, 0 to 1, in the last minutes."""

    @property
    def bytes(self) -> int:
        return self.measured_bytes or self.needed_bytes or self.planned_bytes or 0

    @property
    def is_held(self) -> bool:
        return self.phase in ("loading", "ready", "unloading")


class MemoryStatus(Value):
    ceiling_bytes: int | None = None
    """All models together may hold this much."""
    loaded_bytes: int = 0
    available_bytes: int | None = None
    """On the host now."""
    total_bytes: int | None = None
    floor_bytes: int | None = None
    """The guard stops an engine when less is available."""


class GpuStatus(Value):
    temperature_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    throttle: str | None = None
    """Why its clock is lowered."""


class WaitingRequest(Value):
    model: str
    key: str = ""
    since: float = 0.0
    """Seconds since 1970."""
    doing: str = ""
    """What it waits for."""


class GatewayState(Value):
    version: str = ""
    """Of firesteel."""
    models: tuple[ModelStatus, ...] = ()
    memory: MemoryStatus = MemoryStatus()
    gpu: GpuStatus | None = None
    waiting: int = 0
    queue: tuple[WaitingRequest, ...] = ()
    """The requests that have waited longest."""
    problem: str = ""
    """What is wrong with the service file as it is now: its last good version stays in use."""
    requests: int = 0
    """Rows written to the request log since the gateway started; a change means that there are new ones."""
