"""The plan: a launch with its memory account, its predicted speed, and the sizes that follow from both.

A plan depends on the host and the catalog of its moment; a `PlanSummary` is kept with the service that it
started and with benchmark runs, and compared with measurements weeks later. Where a quantization label has
checkpoints in a light and a heavy layout, `between` makes one plan of both: bytes and times are averaged, a
rate is the inverse of a time, so its mean is the harmonic one, and every band covers both.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from typing import TypeVar

from firesteel.catalog.launches import with_memory_flags
from firesteel.engines.engine import served_capacity
from firesteel.engines.kv_cache import KvCache, reported_kv, requested_kv_cache_bytes, size_kv_cache
from firesteel.engines.vllm.kv_cache import ReportedKv
from firesteel.facts.host.hardware import Host
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.tensors import Weights
from firesteel.launch import Launch
from firesteel.planner.memory.account import (
    MemoryAccount,
    MemoryPart,
    account,
    loaded_weights,
    pool,
    printed_sound_cache,
    size_sound_cache,
)
from firesteel.planner.memory.measured import apply_measured
from firesteel.planner.memory.split import check_even_split, split_layers, split_shape, split_weights
from firesteel.planner.speed.decode import stored_bytes
from firesteel.planner.speed.own_runs import OwnRun, with_own_runs
from firesteel.planner.speed.predict import predict_speed
from firesteel.planner.speed.prefill import with_speech
from firesteel.planner.speed.serving import RequestShape
from firesteel.planner.speed.speed import BatchSpeed, PrefillSpeed, ServedSpeed, Speed, SpeedBasis
from firesteel.planner.speed.startup import StartUp, bounded_by_disk
from firesteel.units import Band
from firesteel.values import Value, replace


class Plan(Value):
    launch: Launch
    host: Host
    shape: Architecture
    weights: Weights
    memory: MemoryAccount
    cache: KvCache
    speed: Speed | None
    notes: tuple[str, ...] = ()
    """What the figures leave out."""
    printed: tuple[ReportedKv, ...] = ()
    """What the engine itself will print of its cache: one answer, or the least and the most."""

    @property
    def fits(self) -> bool:
        return self.memory.verdict != "does not fit" and not self.is_refused

    @property
    def machine(self) -> str:
        """What the launch computes on, by name: a GPU with memory of its own, or the host."""
        gpus = () if self.host.hardware or not self.launch.uses_gpu else self.host.gpus
        return gpus[0].name if gpus else self.host.title

    @property
    def kv_bytes(self) -> int:
        """What the cache gets: as the launch says, or as its requests need."""
        return round(sum(part.bytes.expected for part in self.memory.parts if part.name == "KV cache"))

    @property
    def longest_prefill_s(self) -> float | None:
        """How long a prompt that fills the context takes at the slowest; None: the speed is unknown."""
        rate = self.speed.prefill.tokens_per_s.low if self.speed and self.speed.prefill else 0
        return self.cache.context / rate if rate else None

    @property
    def is_in_host_memory(self) -> bool:
        """False if it runs on a GPU with its own memory."""
        return pool(self.launch, self.host).is_host_memory

    @property
    def is_refused(self) -> bool:
        """The engine itself will say that its cache does not hold one request."""
        return bool(self.printed) and all(answer.refused for answer in self.printed)


_MOST_USERS = 256
"""llama.cpp takes no more."""
_POOLING_TASKS = ("embed", "embedding", "score", "classify", "reward", "rerank")
_POOLING_FLAGS = ("embedding", "embeddings", "is-embedding", "reranking", "rerank")
_POOLING_NAME = re.compile(r"(?<![a-z])(?:embed(?:ding)?|rerank(?:er)?)(?![a-z])", re.IGNORECASE)
"""Qwen3-Embedding's config names the class of the model that generates."""


def plan(
    launch: Launch,
    shape: Architecture,
    weights: Weights,
    host: Host,
    realised: MeasuredMemory | None = None,
    heavier: Weights | None = None,
    own: Sequence[OwnRun] = (),
    requests: RequestShape | None = None,
) -> Plan:
    """`realised`: what an earlier start of this launch took on this host, instead of what is estimated.

    `heavier`: the most that the weights may be, where only a label is known of them. `own`: what the user's
    benches of this launch on this host came to. `requests`: what users send; None: the usual.
    """
    found = _plan(launch, shape, weights, host, requests)
    if heavier:
        found = between(found, _plan(launch, shape, heavier, host, requests))
    if realised:
        tokens = found.printed[0].tokens if found.printed else None
        memory, notes = apply_measured(found.memory, launch, realised, found.weights.total_bytes, tokens)
        found = replace(found, memory=memory, notes=found.notes + notes)
    if own and found.speed:
        found = replace(found, speed=with_own_runs(found.speed, launch, shape, found.cache, own))
    memory = found.memory
    flagged = with_memory_flags(
        launch, found.cache, memory.needed.high, memory.host_total_bytes, memory.budget_bytes
    )
    return replace(found, launch=flagged)


def _plan(
    launch: Launch, shape: Architecture, weights: Weights, host: Host, requests: RequestShape | None
) -> Plan:
    """Before anything is said of flags: those cover what the whole plan needs."""
    offered = served_capacity(launch)
    context, users = offered.context or shape.max_context, offered.users or 1
    has_whole_experts = launch.flags.get("enable-expert-parallel") is True
    if not _is_by_layers(launch):
        check_even_split(shape, launch.sparks, weights, has_whole_experts)
    part = _part(launch, shape)
    sound = shape.speech.cached_tokens if shape.speech else 0
    if sound:
        kv = size_sound_cache(launch, part, sound, context, users)
    else:
        kv = size_kv_cache(launch, part, context, users)
    memory_pool, loaded = pool(launch, host), loaded_weights(launch, shape, weights)
    requested_kv_bytes = requested_kv_cache_bytes(launch)
    split = split_layers if _is_by_layers(launch) else split_weights
    stored, padding_bytes = split(loaded.stored, launch.sparks), loaded.padding_bytes // launch.sparks
    own = replace(loaded, stored=stored, padding_bytes=padding_bytes)
    memory = account(launch, part, own, kv, memory_pool, requested_kv_bytes)
    printed_kv = printed_sound_cache if sound else reported_kv
    printed = printed_kv(
        launch, part, context, kv.pool_bytes if requested_kv_bytes is None else requested_kv_bytes
    )
    speed = predict_speed(launch, shape, loaded.weights, kv, memory_pool, requests)
    if speed and shape.speech:  # on another machine than a GB10 nothing is known of encoders
        is_known = speed.basis != "roofline"
        speed = with_speech(speed, shape.speech, stored_bytes(loaded.weights)) if is_known else None
    elif speed and speed.prefill and pools(launch, shape):
        per_s = speed.prefill.tokens_per_s.scaled(1 / speed.prefill.prompt_tokens)
        speed = replace(speed, requests_per_s=per_s, at_depth=(), batch=None, drafted=(), served=None)
    if speed and speed.start_up:
        start_up = bounded_by_disk(speed.start_up, launch, loaded.weights.total_bytes, host)
        speed = replace(speed, start_up=start_up)
    notes = [memory_pool.note] if memory_pool.note else []
    if sound:
        least = "; vLLM starts with room for a whole step of them" if launch.engine == "vllm" else ""
        notes.append(f"{sound:,} tokens of each request's cache are for 30 s of sound{least}")
    if weights.provenance != "counted":
        notes.append(f"weights are {weights.provenance}; the checkpoint's own header would count them")
    return Plan(launch, host, shape, weights, memory, kv, speed, tuple(notes), printed)


def pools(launch: Launch, shape: Architecture) -> bool:
    """Whether the launch embeds, scores or classifies texts and generates none."""
    flags = launch.flags
    is_asked = flags.get("runner") == "pooling" or flags.get("task") in _POOLING_TASKS
    is_asked |= not flags.keys().isdisjoint(_POOLING_FLAGS)
    return is_asked or not shape.generates or _POOLING_NAME.search(launch.model) is not None


def _is_by_layers(launch: Launch) -> bool:
    """llama.cpp splits whole layers over hosts: https://github.com/ggml-org/llama.cpp/tree/master/tools/rpc,
    seen 2026-11-15."""
    return launch.engine == "llamacpp" and launch.sparks > 1


def _part(launch: Launch, shape: Architecture) -> Architecture:
    """What one host holds of it."""
    return split_shape(shape, launch.sparks, _is_by_layers(launch))


def between(light: Plan, heavy: Plan) -> Plan:
    """One plan for weights that may be either: figures in the middle, bands over both."""
    return replace(
        light,
        memory=memory_between(light.memory, heavy.memory),
        speed=speed_between(light.speed, heavy.speed),
    )


def largest_context(plan: Plan) -> int | None:
    """The most tokens, in steps of 1024, at which the same launch would fit; None when none would."""
    spare = _grows(plan.cache) - plan.memory.short_bytes
    part = _part(plan.launch, plan.shape)

    def fits(thousands: int) -> bool:
        return _grows(size_kv_cache(plan.launch, part, thousands * 1024, plan.cache.users)) <= spare

    # The cache never shrinks as the context grows, so the last that fits can be found by halves.
    return 1024 * bisect(range(1, plan.cache.context // 1024 + 1), False, key=lambda n: not fits(n)) or None


def _grows(cache: KvCache) -> int:
    """What a longer context makes larger: the cache, and the masks over it."""
    return cache.pool_bytes + (cache.compute_bytes[1] if cache.compute_bytes else 0)


def longest_context(plan: Plan) -> int:
    """The most tokens that one request could use in the room there is, in steps of 1024; 0: none."""
    spare = _grows(plan.cache) + plan.memory.budget_bytes - round(plan.memory.needed.expected)
    part = _part(plan.launch, plan.shape)

    def fits(thousands: int) -> bool:
        return _grows(size_kv_cache(plan.launch, part, thousands * 1024, 1)) <= spare

    return 1024 * bisect(range(1, plan.shape.max_context // 1024 + 1), False, key=lambda n: not fits(n))


class MoreUsers(Value):
    """What it takes to serve more than the plan does."""

    each_bytes: int
    most: int
    """So many fit in all."""


def more_users(plan: Plan) -> MoreUsers | None:
    """None where the number of users is not a matter of memory."""
    spare = plan.memory.budget_bytes - round(plan.memory.needed.expected)
    part, users = _part(plan.launch, plan.shape), plan.cache.users
    if plan.shape.speech or pools(plan.launch, plan.shape) or users >= _MOST_USERS:
        return None

    def grows(count: int) -> int:
        cache = size_kv_cache(plan.launch, part, plan.cache.context, users + count)
        return _grows(cache) - _grows(plan.cache)

    each_bytes = grows(1)
    if each_bytes <= 0:
        return None
    more = bisect(range(1, _MOST_USERS - users + 1), False, key=lambda count: grows(count) > spare)
    return MoreUsers(each_bytes, users + more)


# --- what is kept of a plan ---


class PlanSummary(Value):
    """None or empty: not predicted."""

    needed_bytes: Band | None = None
    """All memory."""
    decode_tokens_per_s: Band | None = None
    """One user, without speculation."""
    at_depth: tuple[tuple[int, Band], ...] = ()
    """The same, deeper into a conversation."""
    batch_users: int | None = None
    batch_tokens_per_s: Band | None = None
    """Of each of these users, all decoding at once."""
    drafted: Mapping[str, Band] = {}
    """One user with the launch's drafter, by kind of text."""
    prefill_tokens_per_s: Band | None = None
    ttft_ms: Band | None = None
    prompt_tokens: int | None = None
    """Of the prompt that `ttft_ms` is for."""
    bytes_per_token: int | None = None
    bandwidth_bytes_per_s: float | None = None
    bound_tokens_per_s: float | None = None
    basis: SpeedBasis | None = None
    explanation: str = ""


def summarize(plan: Plan) -> PlanSummary:
    speed, needed = plan.speed, plan.memory.needed
    if speed is None:
        return PlanSummary(needed)
    batch, prefill = speed.batch, speed.prefill
    return PlanSummary(
        needed_bytes=needed,
        decode_tokens_per_s=speed.decode_tokens_per_s,
        at_depth=speed.at_depth,
        batch_users=batch.users if batch else None,
        batch_tokens_per_s=batch.per_user_tokens_per_s if batch else None,
        drafted={row.text: row.decode_tokens_per_s for row in speed.drafted},
        prefill_tokens_per_s=prefill.tokens_per_s if prefill else None,
        ttft_ms=prefill.ttft_ms if prefill else None,
        prompt_tokens=prefill.prompt_tokens if prefill else None,
        bytes_per_token=speed.bytes_per_token,
        bandwidth_bytes_per_s=speed.bandwidth_bytes_per_s,
        bound_tokens_per_s=speed.bound_tokens_per_s,
        basis=speed.basis,
        explanation=speed.explanation,
    )


# --- one plan for two layouts ---
#
# With the harmonic mean of rates the bytes of a step, its bound, its parts and its rate still agree, and
# what is slower in both layouts (deeper, in a batch) is slower in between.

_EXPLANATION = "the label does not say which layers stay in 16 bits, so the band covers both usual layouts"


def memory_between(light: MemoryAccount, heavy: MemoryAccount) -> MemoryAccount:
    ours, theirs = ({part.name: part for part in memory.parts} for memory in (light, heavy))
    names = dict.fromkeys((*ours, *theirs))
    return replace(light, parts=tuple(_part_between(ours.get(name), theirs.get(name)) for name in names))


def _part_between(ours: MemoryPart | None, theirs: MemoryPart | None) -> MemoryPart:
    if ours is None or theirs is None:  # one layout may not need this part
        only = ours or theirs
        assert only is not None
        return replace(only, bytes=_sizes(Band.exactly(0), only.bytes))
    if ours.bytes == theirs.bytes:
        return ours
    return replace(
        ours, bytes=_sizes(ours.bytes, theirs.bytes), explanation=_both(ours.explanation, theirs.explanation)
    )


def _sizes(one: Band, other: Band) -> Band:
    """Of bytes or seconds."""
    return Band(min(one.low, other.low), (one.expected + other.expected) / 2, max(one.high, other.high))


def _rates(one: Band, other: Band) -> Band:
    return Band(min(one.low, other.low), _rate(one.expected, other.expected), max(one.high, other.high))


def _rate(one: float, other: float) -> float:
    return 2 / (1 / one + 1 / other) if one and other else 0.0


def _both(one: str, other: str) -> str:
    return one if one == other else f"{one}; {other}"


_Several = TypeVar("_Several", BatchSpeed, ServedSpeed)


def speed_between(light: Speed | None, heavy: Speed | None) -> Speed | None:
    """None where one of them has none: the other alone would look too certain."""
    if light is None or heavy is None:
        return None
    return replace(
        light,
        decode_tokens_per_s=_rates(light.decode_tokens_per_s, heavy.decode_tokens_per_s),
        bound_tokens_per_s=_rate(light.bound_tokens_per_s, heavy.bound_tokens_per_s),
        bytes_per_token=round((light.bytes_per_token + heavy.bytes_per_token) / 2),
        explanation=f"{_EXPLANATION}; {light.explanation}",
        parts_ms={
            name: (light.parts_ms.get(name, 0.0) + heavy.parts_ms.get(name, 0.0)) / 2
            for name in (*light.parts_ms, *heavy.parts_ms)
        },
        at_depth=tuple(
            (depth, _rates(band, other))
            for (depth, band), (_, other) in zip(light.at_depth, heavy.at_depth, strict=True)
        ),
        batch=_several(light.batch, heavy.batch),
        drafted=tuple(
            replace(ours, decode_tokens_per_s=_rates(ours.decode_tokens_per_s, theirs.decode_tokens_per_s))
            for ours, theirs in zip(light.drafted, heavy.drafted, strict=True)
        ),
        served=_served(light.served, heavy.served),
        prefill=_prefill(light.prefill, heavy.prefill),
        start_up=_start_up(light.start_up, heavy.start_up),
    )


def _several(ours: _Several | None, theirs: _Several | None) -> _Several | None:
    if ours is None or theirs is None:
        return None
    return replace(
        ours,
        per_user_tokens_per_s=_rates(ours.per_user_tokens_per_s, theirs.per_user_tokens_per_s),
        total_tokens_per_s=_rates(ours.total_tokens_per_s, theirs.total_tokens_per_s),
    )


def _served(ours: ServedSpeed | None, theirs: ServedSpeed | None) -> ServedSpeed | None:
    both = _several(ours, theirs)
    return replace(both, ttft_ms=_sizes(both.ttft_ms, theirs.ttft_ms)) if both and theirs else None


def _prefill(ours: PrefillSpeed | None, theirs: PrefillSpeed | None) -> PrefillSpeed | None:
    if ours is None or theirs is None:
        return None
    return replace(
        ours,
        tokens_per_s=_rates(ours.tokens_per_s, theirs.tokens_per_s),
        ttft_ms=_sizes(ours.ttft_ms, theirs.ttft_ms),
        explanation=_both(ours.explanation, theirs.explanation),
    )


def _start_up(ours: StartUp | None, theirs: StartUp | None) -> StartUp | None:
    if ours is None or theirs is None:
        return None
    return StartUp(
        tuple(
            replace(
                phase,
                seconds=_sizes(phase.seconds, other.seconds),
                explanation=_both(phase.explanation, other.explanation),
            )
            for phase, other in zip(ours.phases, theirs.phases, strict=True)
        )
    )
