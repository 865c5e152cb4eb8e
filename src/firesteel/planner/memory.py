"""The memory account: weights, KV cache, what the engine takes for itself, and does it fit.

On unified memory there is one pool and no polite failure, so the verdict looks at the high end:
a launch fits when even that stays in the room that the host has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firesteel.engines import Cache
from firesteel.facts import Architecture, Host, Weights
from firesteel.launch import Launch
from firesteel.planner.band import Band
from firesteel.units import GIB, MIB

Verdict = Literal["fits", "tight", "does not fit"]
Basis = Literal["counted", "derived", "reported", "formula", "estimated"]
"""counted, derived, reported: as for weights. formula: the engine's own rounding, applied.
estimated: seen elsewhere, with a band."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    bytes: Band
    basis: Basis
    why: str


@dataclass(frozen=True, slots=True)
class Memory:
    parts: tuple[Part, ...]
    room_bytes: int
    """What the host can give: available now, less what must stay free."""
    host_total_bytes: int
    host_keep_free_bytes: int

    @property
    def needed(self) -> Band:
        return sum((part.bytes for part in self.parts), Band.exactly(0))

    @property
    def verdict(self) -> Verdict:
        if self.needed.high <= self.room_bytes:
            return "fits"
        return "tight" if self.needed.expected <= self.room_bytes else "does not fit"

    @property
    def short_bytes(self) -> int:
        """How much is missing for the expected need; 0 when it fits."""
        return max(0, round(self.needed.expected) - self.room_bytes)


def account(launch: Launch, shape: Architecture, weights: Weights, cache: Cache, host: Host) -> Memory:
    parts = (
        Part("weights", Band.exactly(weights.total_bytes), weights.provenance, weights.source),
        Part("KV cache", Band.exactly(cache.bytes), "formula", _cache_words(cache)),
        *_engine_parts(launch, shape, host),
    )
    return Memory(parts, host.room_bytes, host.memory_total_bytes, host.keep_free_bytes)


def _cache_words(cache: Cache) -> str:
    state = " and recurrent state" if cache.state_bytes else ""
    return f"{cache.users} x {cache.context:,} tokens{state}, {cache.dtype}"


def _engine_parts(launch: Launch, shape: Architecture, host: Host) -> tuple[Part, ...]:
    if launch.engine == "llamacpp":
        return (*_llamacpp_parts(launch, shape), _process_part(host))
    what = "CUDA context, graphs and activations of three vLLM boots on a GB10: 3.4, 4.3 and 4.8 GiB"
    return (Part("engine", Band(3.4 * GIB, 4.2 * GIB, 4.8 * GIB), "estimated", what),)


def _llamacpp_parts(launch: Launch, shape: Architecture) -> tuple[Part, ...]:
    """Compute buffers hold a micro-batch of activations, and the logits of the tokens that are asked for."""
    ubatch = _number(launch, "ubatch-size", 512)
    users = _number(launch, "parallel", 1)
    activations = ubatch * shape.hidden_size * 4 * 12
    logits = shape.vocab_size * 4
    buffers = Band(activations / 2, activations + users * logits, 3 * activations + ubatch * logits)
    parts = [Part("compute buffers", buffers, "estimated", f"micro-batch of {ubatch}")]
    prompt_cache = _number(launch, "cache-ram", 8192) * MIB
    if prompt_cache:
        words = "host copies of idle prompts; grows up to --cache-ram"
        parts.append(Part("prompt cache", Band(0, 0, prompt_cache), "formula", words))
    return tuple(parts)


def _process_part(host: Host) -> Part:
    if host.gpus or host.hardware:
        words = "CUDA context, libraries and HTTP threads"
        return Part("engine", Band(0.3 * GIB, 0.6 * GIB, 1.2 * GIB), "estimated", words)
    return Part(
        "engine", Band(30 * MIB, 50 * MIB, 120 * MIB), "estimated", "the process itself: code, heap, threads"
    )


def _number(launch: Launch, flag: str, default: int) -> int:
    value = launch.flags.get(flag)
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else default
