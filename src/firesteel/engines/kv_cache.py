"""How much memory each engine sets aside for the past: KV pages, KV cells, recurrent state.

Attention keeps a key and a value a token and KV head; a sliding window stops growing at its width;
linear attention keeps one state whatever the length. Engines round all three in their own way, and
the rounding is not small: vLLM pads attention pages to the size of a recurrent state. `vllm_kv`,
`llamacpp_kv` and `sglang_kv` follow them; this is the door.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import ceil

from firesteel.engines.kv_dtypes import text_flag
from firesteel.engines.llamacpp.kv_cache import compute_buffers, count_cells
from firesteel.engines.sglang.kv_cache import sglang_pool
from firesteel.engines.vllm.kv_cache import ReportedKv, VllmPool, vllm_pool, vllm_pools
from firesteel.engines.vllm.kv_settings import speculative_tokens
from firesteel.engines.vllm.kv_specs import drafter_layers, state_bytes, token_bytes
from firesteel.facts import Architecture
from firesteel.facts.model.architecture import LinearAttention, Mamba2
from firesteel.launch import Launch
from firesteel.units import MIB

__all__ = ["KvCache", "ReportedKv", "reported_kv", "size_kv_cache", "speculative_tokens"]

_VLLM_SLACK = 1.02

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
"""As vLLM reads sizes: small letters are decimal, capitals binary."""


@dataclass(frozen=True, slots=True)
class KvCache:
    """What `users` sequences of `context` tokens take."""

    bytes: int
    bytes_per_token: int
    """Growth a token and sequence, once sliding windows are full."""
    state_bytes: int
    """Of `bytes`, what does not grow with length."""
    context: int
    users: int
    dtype: str
    block_bytes: int = 0
    """One block of vLLM's pool, in all layers; 0 for engines without a pool."""
    checkpoint_bytes: int = 0
    """What llama.cpp copies to host memory to be able to go back: states and windows of one sequence."""
    compute_bytes: tuple[int, int, int] | None = None
    """llama.cpp's compute buffers: least, likely and most; None for other engines."""
    pool: VllmPool | None = field(default=None, repr=False, compare=False)
    """vLLM's pool, group by group; None for other engines."""

    @property
    def pool_bytes(self) -> int:
        """What the engine takes, and is told to take, for `bytes`.

        vLLM keeps one block empty, and an attention backend may ask for larger blocks than 16 tokens.
        """
        if not self.block_bytes:
            return self.bytes
        return ceil((self.bytes + self.block_bytes) * _VLLM_SLACK / MIB) * MIB


def size_kv_cache(launch: Launch, shape: Architecture, context: int, users: int) -> KvCache:
    if launch.engine == "llamacpp":
        return _llamacpp(launch, shape, context, users)
    if launch.engine == "vllm":
        return _vllm(launch, shape, context, users)
    return _sglang(launch, shape, context, users)


def requested_kv_cache_bytes(launch: Launch) -> int | None:
    """What `--kv-cache-memory-bytes` says; None when it is not given or cannot be read."""
    given = launch.flags.get("kv-cache-memory-bytes")
    found = _SIZE.fullmatch(given) if isinstance(given, str) else None
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def reported_kv(launch: Launch, shape: Architecture, context: int, pool_bytes: int) -> tuple[ReportedKv, ...]:
    """What vLLM will print about a pool of this size: one answer, or the fewest and the most tokens.

    Two answers where the release is not known; empty for engines that print no such thing.
    """
    if launch.engine != "vllm":
        return ()
    auto = launch.flags.get("max-model-len") in ("-1", "auto")
    said = [pool.reported(pool_bytes, auto=auto) for pool in vllm_pools(launch, shape, context)]
    few, many = (pick(said, key=lambda one: one.tokens) for pick in (min, max))
    return (few,) if few == many else (few, many)


def _vllm(launch: Launch, shape: Architecture, context: int, users: int) -> KvCache:
    pool = vllm_pool(launch, shape, context)
    settings = pool.settings
    growing = sum(token_bytes(settings, layer) for layer in (*shape.layers, *drafter_layers(settings, shape)))
    states = sum(
        state_bytes(settings, layer) for layer in shape.layers if isinstance(layer, LinearAttention | Mamba2)
    )
    return KvCache(
        pool.request_bytes * users,
        int(growing),
        states * users,
        context,
        users,
        text_flag(launch.flags, "kv-cache-dtype", "auto"),
        pool.block_bytes,
        pool=pool,
    )


def _llamacpp(launch: Launch, shape: Architecture, context: int, users: int) -> KvCache:
    held = count_cells(launch.flags, shape, context, users)
    return KvCache(
        held.total,
        int(held.growing),
        held.states * users,
        context,
        users,
        text_flag(launch.flags, "cache-type-k", "f16"),
        checkpoint_bytes=held.checkpoint,
        compute_bytes=compute_buffers(launch.flags, shape, context, users).band,
    )


def _sglang(launch: Launch, shape: Architecture, context: int, users: int) -> KvCache:
    pool = sglang_pool(launch.flags, shape, launch.version)
    states = pool.state_bytes_for(users)
    return KvCache(
        pool.bytes_for(context * users) + states,
        int(pool.cell_bytes),
        states,
        context,
        users,
        text_flag(launch.flags, "kv-cache-dtype", "auto"),
    )
