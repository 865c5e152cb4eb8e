"""Decode speed from bytes and bandwidth.

A decode step reads every weight it uses once, and the KV cache of its sequence. Memory can hand those
bytes over only so fast, so `bandwidth / bytes` bounds tokens a second, and engines reach a share of
that bound which depends on engine, kind of model and machine. The shares in `data/speed.yaml` were
seen in published runs; the bound itself is physics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from firesteel import sheets
from firesteel.engines import Cache
from firesteel.facts import Architecture, LinearAttention, Weights
from firesteel.facts.evidence import Sources
from firesteel.launch import EngineName, Launch
from firesteel.planner.band import Band
from firesteel.planner.pool import Pool

Rung = Literal["roofline"]
"""How a figure was come by. Measured and fitted rungs come before this one once there are any."""
_DEPTH = 1024
"""Tokens already in the sequence, for which the figure is given."""


@dataclass(frozen=True, slots=True)
class Speed:
    decode_tokens_per_s: Band
    """One user, no speculation, about a thousand tokens into the answer."""
    bound_tokens_per_s: float
    """What the bandwidth allows at most."""
    bytes_per_token: int
    bandwidth_bytes_per_s: float
    rung: Rung
    why: str


class ShareSheet(sheets.Sheet):
    """A row holds for every key that it does not name."""

    engine: EngineName
    hardware: str | None = None
    moe: bool | None = None
    hybrid: bool | None = None
    model_type: str | None = None
    low: float
    expected: float
    high: float
    why: str
    sources: Sources


class SharesSheet(sheets.Sheet):
    shares: tuple[ShareSheet, ...]


def decode_speed(
    launch: Launch, shape: Architecture, weights: Weights, kv: Cache, pool: Pool
) -> Speed | None:
    """None when the bandwidth of the memory is not known. `weights` are those that the engine holds."""
    if not pool.bandwidth_bytes_per_s:
        return None
    read = weights.bytes_read_per_token(shape.experts, shape.experts_per_token)
    read += kv.bytes_per_token * min(_DEPTH, kv.context) + kv.state_bytes // kv.users
    bound = pool.bandwidth_bytes_per_s / read
    share = _share(launch.engine, pool.hardware, shape)
    return Speed(
        Band(bound * share.low, bound * share.expected, bound * share.high),
        bound,
        read,
        pool.bandwidth_bytes_per_s,
        "roofline",
        f"{share.expected:.0%} of the bandwidth bound: {share.why}",
    )


def _share(engine: EngineName, hardware: str | None, shape: Architecture) -> ShareSheet:
    """The first row that fits; the file goes from special to general and ends with one for all."""
    hybrid = any(isinstance(layer, LinearAttention) for layer in shape.layers)
    told = {
        "hardware": hardware or "none",
        "moe": shape.is_moe,
        "hybrid": hybrid,
        "model_type": shape.model_type,
    }
    for row in _shares():
        if row.engine == engine and all(getattr(row, key) in (None, value) for key, value in told.items()):
            return row
    raise LookupError(f"data/speed.yaml has no row for {engine}")


@cache
def _shares() -> tuple[ShareSheet, ...]:
    name = "speed.yaml"
    return sheets.load(name, (files("firesteel") / "data" / name).read_text("utf-8"), SharesSheet).shares
