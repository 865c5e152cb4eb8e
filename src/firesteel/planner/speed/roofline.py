"""The weakest evidence: the bandwidth bound, and the share of it that was seen on such a machine."""

from __future__ import annotations

from functools import cache

from firesteel import yaml_schema
from firesteel.engines import KvCache
from firesteel.facts import Architecture
from firesteel.facts.evidence import Sources
from firesteel.file_schema import file_schema
from firesteel.launch import EngineName, Launch
from firesteel.planner.band import Band, BandSchema
from firesteel.planner.speed.decode import StoredBytes, step_reads
from firesteel.planner.speed.speed import DEPTH, Speed
from firesteel.planner.speed.step_model import costs_engine


@file_schema
class ShareSchema(BandSchema):
    engine: EngineName
    why: str
    sources: Sources


@file_schema
class SharesSchema:
    shares: tuple[ShareSchema, ...]


@cache
def _shares() -> tuple[ShareSchema, ...]:
    return yaml_schema.load_data("speed/shares.yaml", SharesSchema).shares


def roofline_speed(
    launch: Launch, shape: Architecture, stored: StoredBytes, tied_head: bool, kv: KvCache, bandwidth: float
) -> Speed:
    depth = min(DEPTH, kv.context)
    step_bytes = step_reads(costs_engine(launch), shape, stored, tied_head, depth, kv.dtype).bytes()
    bound = bandwidth / step_bytes
    share = next(row for row in _shares() if row.engine == launch.engine)
    return Speed(
        Band(bound * share.low, bound * share.expected, bound * share.high),
        bound,
        round(step_bytes),
        bandwidth,
        "roofline",
        f"{share.expected:.0%} of the bandwidth bound: {share.why}",
        tuple(source.url for source in share.sources),
    )
