"""The weakest evidence: the bandwidth bound, and the share of it that was seen on such a machine."""

from __future__ import annotations

from functools import cache
from typing import Literal

from firesteel import shipped_data
from firesteel.engines.kv_cache import KvCache
from firesteel.facts.evidence import Sources
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import EngineName, Launch
from firesteel.planner.speed.decode import StoredBytes, step_reads
from firesteel.planner.speed.speed import DEPTH, Speed
from firesteel.planner.speed.step_model import costs_engine
from firesteel.units import Band, BandSchema
from firesteel.values import FileValue


class ShareSchema(BandSchema, kw_only=True):
    engine: EngineName
    device: Literal["cpu", "gpu"]
    why: str
    sources: Sources
    layer_us: float = 0
    least_us: float = 0


class SharesSchema(FileValue, kw_only=True):
    shares: tuple[ShareSchema, ...]


@cache
def _shares() -> tuple[ShareSchema, ...]:
    return shipped_data.load("speed/shares.yaml", SharesSchema).shares


def roofline_speed(
    launch: Launch, shape: Architecture, stored: StoredBytes, tied_head: bool, kv: KvCache, bandwidth: float
) -> Speed:
    depth = min(DEPTH, kv.context)
    step_bytes = step_reads(costs_engine(launch), shape, stored, tied_head, depth, kv.dtype).bytes()
    bound = bandwidth / step_bytes
    device = "gpu" if launch.uses_gpu else "cpu"
    share = next(row for row in _shares() if (row.engine, row.device) == (launch.engine, device))
    layers_s = share.layer_us * len(shape.layers) / 1e6
    low, expected, high = (
        1 / max(1 / (bound * part) + layers_s * spread, share.least_us / 1e6 * spread)
        for part, spread in ((share.low, 1.5), (share.expected, 1), (share.high, 0.5))
    )
    return Speed(
        Band(low, expected, high),
        bound,
        round(step_bytes),
        bandwidth,
        "roofline",
        f"{share.expected:.0%} of the bandwidth bound: {share.why}",
        tuple(source.url for source in share.sources),
    )
