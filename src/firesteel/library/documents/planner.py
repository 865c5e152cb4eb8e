"""A plan's memory, cache, speed and launch, as `--json` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from msgspec import field

from firesteel.engines.engine import argv as engine_argv
from firesteel.engines.engine import program
from firesteel.engines.kv_cache import requested_kv_cache_bytes
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.library.documents.document import Document
from firesteel.planner.memory.account import MemoryPart, Verdict
from firesteel.planner.plan import Plan
from firesteel.planner.speed.speculation import DraftedSpeed
from firesteel.planner.speed.speed import BatchSpeed, PrefillSpeed, ServedSpeed, Speed, SpeedBasis
from firesteel.planner.speed.startup import StartPhase
from firesteel.render import docker
from firesteel.units import Band


class MemoryJson(Document, kw_only=True):
    verdict: Verdict
    needed: Band = field(name="needed_bytes")
    budget_bytes: int
    parts: tuple[MemoryPart, ...]


class CacheGroupJson(Document, kw_only=True):
    kind: str
    layers: int
    block_size: int = field(name="block_tokens")
    page_bytes: int


class ReportedKvJson(Document, kw_only=True):
    """What vLLM prints at start: `GPU KV cache size` and `Maximum concurrency`."""

    tokens: int
    concurrency: str
    context: int
    num_blocks: int
    refused: bool
    largest_context: int | None
    """If vLLM refuses to start: the longest request that would fit."""


class CacheJson(Document, kw_only=True):
    bytes: int
    bytes_per_token: int
    state_bytes: int
    context: int
    users: int
    dtype: str
    pool_bytes: int
    """What the engine gets for its cache."""
    block_bytes: int | None
    groups: tuple[CacheGroupJson, ...]
    request_bytes: int | None
    """One request that uses the whole context."""
    least_bytes: int | None
    """The smallest cache that the engine starts with."""
    printed: tuple[ReportedKvJson, ...]
    """One entry; two (fewest and most tokens) if the release is not known; none for other engines."""
    unsure: str | None
    """Why the engine may print other figures; null: it will print these."""


class DepthJson(Document, kw_only=True):
    depth: int
    decode_tokens_per_s: Band


class SpeedJson(Document, kw_only=True):
    decode_tokens_per_s: Band
    bound_tokens_per_s: float
    bytes_per_token: int
    bandwidth_bytes_per_s: float
    basis: SpeedBasis
    explanation: str
    sources: tuple[str, ...]
    parts_ms: Mapping[str, float]
    """Where the time of one decode step goes."""
    at_depth: tuple[DepthJson, ...]
    batch: BatchSpeed | None
    """Several users who decode at once, with no prompts arriving."""
    drafted: tuple[DraftedSpeed, ...]
    """With the launch's own drafter, by kind of text."""
    drafted_tokens_per_s: Band | None
    """The same over all kinds of text; `decode_tokens_per_s` is without drafting."""
    loses_on: tuple[str, ...]
    """Kinds of text on which drafting may be slower than decoding without it."""
    served: ServedSpeed | None
    """Several users, with prompts of the length that was asked for arriving all the time."""
    prefill: PrefillSpeed | None
    requests_per_s: Band | None
    """Of a model that embeds, scores or classifies texts, or writes down sound; the figures about decoding do
    not apply then."""
    sound_s: int | None
    """Seconds of sound in each of these requests; null: it is not made for sound."""
    start_up: tuple[StartPhase, ...]
    """The first start, phase by phase; empty: not known."""

    @classmethod
    def of(cls, *values: object, **others: object) -> Self:
        (speed,) = values
        assert isinstance(speed, Speed)
        depths = tuple(DepthJson.of(depth=depth, decode_tokens_per_s=rate) for depth, rate in speed.at_depth)
        phases = speed.start_up.phases if speed.start_up else ()
        return super().of(speed, **{"at_depth": depths, "start_up": phases, **others})


class LaunchJson(Document, kw_only=True):
    name: str
    model: str
    engine: EngineName
    version: str | None
    image: str | None
    port: int
    sparks: int
    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    argv: tuple[str, ...]
    docker: str


def cache_json(plan: Plan) -> CacheJson:
    cache, pool = plan.cache, plan.cache.pool
    told = requested_kv_cache_bytes(plan.launch)
    return CacheJson.of(
        cache,
        pool_bytes=cache.pool_bytes if told is None else told,
        block_bytes=pool.block_bytes if pool else None,
        groups=pool.groups if pool else (),
        request_bytes=pool.request_bytes if pool else None,
        least_bytes=pool.least_bytes if pool else None,
        printed=tuple(
            ReportedKvJson.of(
                reported,
                concurrency=reported.concurrency_text,
                refused=reported.refused is not None,
                largest_context=reported.refused.largest_context if reported.refused else None,
            )
            for reported in plan.printed
        ),
        unsure=(pool.unsure or None) if pool else None,
    )


def launch_json(launch: Launch) -> LaunchJson:
    return LaunchJson.of(
        launch,
        image=launch.container.image if launch.container else None,
        argv=(*program(launch.engine), *engine_argv(launch)),
        docker=docker(launch),
    )
