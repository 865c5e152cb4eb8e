"""What is wrong now, by the gateway's state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from firesteel.gateway.state import GatewayState, ModelStatus
from firesteel.units import show_bytes

AlertKind = Literal["unhealthy", "load_failed", "guard", "disk"]
GUARD_TEXT = "the memory guard stopped it"
"""How the guard's reasons begin (`run.supervise.guard`)."""


class AlertKey(NamedTuple):
    kind: AlertKind
    subject: str
    """The model, or the folder."""


def conditions(
    state: GatewayState,
    failed_loads: Mapping[str, str],
    guarded: Mapping[str, str],
    disks: Mapping[str, int],
    disk_floor_bytes: int,
) -> dict[AlertKey, str]:
    """The text of each. A model has one at most, the one that says most: the guard, a load, its health.

    `failed_loads`: why the last load of a model failed. `guarded`: why the guard stopped an engine, until
    the model runs again. `disks`: free bytes by folder.
    """
    found = {}
    for model in state.models:
        name, health = model.name, model.health
        if name in guarded and model.phase != "ready":
            found[AlertKey("guard", name)] = f"{name}: {guarded[name]}"
        elif name in failed_loads and (why := _why_failed(model, failed_loads[name])):
            found[AlertKey("load_failed", name)] = f"{name} did not load: {why}"
        elif health and not health.ok and model.phase != "cannot":  # that was said when the file was read
            found[AlertKey("unhealthy", name)] = f"{name}: {health.text}"
    for folder, free in disks.items():
        if free < disk_floor_bytes:
            left = f"the disk under {folder} has {show_bytes(free)} left"
            found[AlertKey("disk", folder)] = f"{left}; `firesteel pull --prune` frees space"
    return found


def _why_failed(model: ModelStatus, last: str) -> str | None:
    """A load takes minutes, and whether it succeeds is known at its end: until then nothing is over."""
    return last if model.phase == "loading" else model.why if model.phase == "off" else None
