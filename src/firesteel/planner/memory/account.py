"""The memory account: weights, KV cache, what the engine takes for itself, and does it fit.

On unified memory there is one pool and no polite failure, so the verdict looks at the high end:
a launch fits when even that stays in the room that the host has, with a little to spare.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from firesteel import engines
from firesteel.engines import KvCache
from firesteel.facts import Architecture, Role, Weights
from firesteel.launch import Launch
from firesteel.planner.band import Band
from firesteel.planner.memory.loaded import LoadedWeights
from firesteel.planner.memory.pool import MemoryPool
from firesteel.units import GIB, MIB

Verdict = Literal["fits", "tight", "does not fit"]
"""fits: even the most that it may need leaves 2 % of the room. tight: what is expected fits, the most may
not, so it may be stopped when memory runs out. does not fit: what is expected is more than the room."""
Basis = Literal["counted", "derived", "reported", "formula", "estimated", "measured"]
"""counted, derived, reported: as for weights. formula: the engine's own rounding, applied.
estimated: seen elsewhere, with a band. measured: seen here, when the same launch ran."""
_SPARE = 0.02
"""Of the room: less than that is not left by a figure, it is lost in its errors."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    name: str
    bytes: Band
    basis: Basis
    why: str


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    parts: tuple[MemoryPart, ...]
    room_bytes: int
    """What the pool can give: available now, less what must stay free."""
    host_total_bytes: int
    """The pool's: the memory of a GPU where that has its own."""
    host_keep_free_bytes: int

    @property
    def needed(self) -> Band:
        return sum((part.bytes for part in self.parts), Band.exactly(0))

    @property
    def verdict(self) -> Verdict:
        """`tight` when the expected need fits and the high end of its band, with 2 % to spare, does not."""
        if self.needed.high <= (1 - _SPARE) * self.room_bytes:
            return "fits"
        return "tight" if self.needed.expected <= self.room_bytes else "does not fit"

    @property
    def short_bytes(self) -> int:
        """How much is missing for the expected need; 0 when it fits."""
        return max(0, round(self.needed.expected) - self.room_bytes)


def account(
    launch: Launch,
    shape: Architecture,
    weights: LoadedWeights,
    cache: KvCache,
    pool: MemoryPool,
    told_bytes: int | None = None,
) -> MemoryAccount:
    """`told_bytes`: what the launch gives the cache, whatever its requests would need."""
    stored = weights.stored
    parts = [
        MemoryPart("weights", _weights_band(stored), stored.provenance, stored.source),
        MemoryPart("KV cache", Band.exactly(cache.pool_bytes), "formula", _cache_words(cache))
        if told_bytes is None
        else MemoryPart("KV cache", Band.exactly(told_bytes), "formula", "as --kv-cache-memory-bytes says"),
    ]
    if weights.padding_bytes:
        parts.append(
            MemoryPart("expert padding", Band.exactly(weights.padding_bytes), "formula", weights.padding_why)
        )
    if launch.engine == "llamacpp":
        parts += _llamacpp_parts(launch, shape, cache, pool)
    else:
        parts += _vllm_parts(launch, shape, stored, cache)
    return MemoryAccount(tuple(parts), pool.room_bytes, pool.total_bytes, pool.keep_free_bytes)


def _weights_band(weights: Weights) -> Band:
    """Exact but for a label's: that says how files are made, not how this one was."""
    least, most = weights.spread
    return Band(weights.total_bytes * least, weights.total_bytes, weights.total_bytes * most)


def _cache_words(cache: KvCache) -> str:
    state = " and recurrent state" if cache.state_bytes else ""
    spare = "; a spare block and 2 % on top" if cache.block_bytes else ""
    return f"{cache.users} x {cache.context:,} tokens{state}, {cache.dtype}{spare}"


def _vllm_parts(launch: Launch, shape: Architecture, weights: Weights, cache: KvCache) -> list[MemoryPart]:
    """What vLLM and SGLang take beside weights and pool.

    Three boots on a GB10 took 3.4, 4.3 and 4.8 GiB in all with about 8192 tokens a step. What grows with
    the step, the users and the vocabulary is reckoned apart, and what a tower needs for its largest image.
    """
    tokens = _number(launch, "max-num-batched-tokens", 8192)
    rows = cache.users * (1 + engines.speculative_tokens(launch.flags))
    layer, logits = tokens * shape.hidden_size * 2, rows * shape.vocab_size * 4
    steps = Band(8 * layer + logits, 16 * layer + 2 * logits, 32 * layer + 4 * logits)
    parts = [
        MemoryPart(
            "engine",
            Band(2.6 * GIB, 3.2 * GIB, 3.8 * GIB),
            "estimated",
            "CUDA context, libraries and graphs, from three vLLM boots on a GB10",
        ),
        MemoryPart("activations", steps, "estimated", f"{tokens:,} tokens a step, logits of {rows} rows"),
    ]
    if weights.bytes_by_role.get(Role.TOWER):
        words = "its largest image, profiled at start, and the encoder cache"
        parts.append(MemoryPart("vision", Band(0.2 * GIB, 0.5 * GIB, 1.5 * GIB), "estimated", words))
    return parts


def _llamacpp_parts(
    launch: Launch, shape: Architecture, cache: KvCache, pool: MemoryPool
) -> list[MemoryPart]:
    """Compute buffers hold a micro-batch of activations, and the logits of the tokens that are asked for.

    A server of today asks for one row a user; older builds made room for a row a token.
    """
    ubatch = _number(launch, "ubatch-size", 512)
    row = shape.vocab_size * 4
    least, likely, most = cache.compute_bytes or (0, 0, 0)
    buffers = Band(least, likely + 2 * cache.users * row, most + ubatch * row)
    words = f"micro-batch of {ubatch}; masks are counted, activations an estimate"
    parts = [MemoryPart("compute buffers", buffers, "estimated", words)]
    if pool.is_host_memory:
        parts += _llamacpp_copies(launch, cache, pool)
    return [*parts, _process_part(pool)]


def _llamacpp_copies(launch: Launch, cache: KvCache, pool: MemoryPool) -> list[MemoryPart]:
    """What llama.cpp copies to host memory as conversations go on; nothing of it at the start."""
    parts = []
    limit = _number(launch, "cache-ram", 8192)
    prompt_cache = pool.room_bytes if limit < 0 else limit * MIB  # -1: no limit
    if prompt_cache:
        words = "host copies of idle prompts; grows up to --cache-ram"
        parts.append(MemoryPart("prompt cache", Band(0, 0, prompt_cache), "formula", words))
    checkpoints = cache.users * _checkpoints(launch, cache.context)
    if checkpoints and cache.checkpoint_bytes:
        most = checkpoints * cache.checkpoint_bytes
        words = f"copies of state and windows to go back to; up to {checkpoints} by --ctx-checkpoints"
        parts.append(MemoryPart("checkpoints", Band(0, 0, most), "formula", words))
    return parts


def _checkpoints(launch: Launch, context: int) -> int:
    """Checkpoints a slot: one a step of the context, and three near the end of the last prompt."""
    most = _number(launch, "ctx-checkpoints", 32)
    step = _number(launch, "checkpoint-min-step", 8192)
    return max(0, min(most, context // step + 3) if step > 0 else most)


def _process_part(pool: MemoryPool) -> MemoryPart:
    if pool.has_gpu:
        words = "CUDA context, libraries and HTTP threads"
        return MemoryPart("engine", Band(0.3 * GIB, 0.6 * GIB, 1.2 * GIB), "estimated", words)
    return MemoryPart(
        "engine", Band(30 * MIB, 50 * MIB, 120 * MIB), "estimated", "the process itself: code, heap, threads"
    )


def _number(launch: Launch, flag: str, default: int) -> int:
    value = launch.flags.get(flag)
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,15}", value) else default
