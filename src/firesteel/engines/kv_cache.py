"""How much memory each engine reserves for its KV cache, and what a data type of that cache means.

The bytes per value that a flag like `--kv-cache-dtype fp8` means, for each engine.

llama.cpp's types are blocks of 32 values with a scale, so theirs are fractions. A type that is not listed
here is refused by name: a guess would be off by a factor of two or more.

Attention keeps a key and a value per token and KV head; a sliding window stops growing at its width; linear
attention keeps one state whatever the length. Engines round all three in their own way, and the rounding is
not small: vLLM pads attention pages to the size of a recurrent state. The `kv_cache` module of each engine
repeats its arithmetic; this one offers the same interface for all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, TypeVar

from firesteel.engines.flags import parse_size
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import Architecture, LinearAttention, Mamba2
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.units import MIB
from firesteel.values import Value

if TYPE_CHECKING:
    from firesteel.engines.vllm.kv_cache import ReportedKv, VllmPool

_Bytes = TypeVar("_Bytes", int, Fraction)

VLLM_DTYPES: Mapping[str, int] = {
    "auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_ds_mla": 1,
}  # fmt: skip
STATE_DTYPES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
LLAMACPP_DTYPES: Mapping[str, Fraction] = {
    "f32": Fraction(4), "f16": Fraction(2), "bf16": Fraction(2), "q8_0": Fraction(34, 32),
    "q5_1": Fraction(24, 32), "q5_0": Fraction(22, 32), "q4_1": Fraction(20, 32), "q4_0": Fraction(18, 32),
    "iq4_nl": Fraction(18, 32),
}  # fmt: skip
SGLANG_DTYPES: Mapping[str, int] = {
    "auto": 2, "bf16": 2, "bfloat16": 2, "float16": 2, "float32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip


def text_flag(flags: Mapping[str, FlagValue], flag: str, default: str) -> str:
    """The value of a flag, or the default where it is missing or not text."""
    value = flags.get(flag, default)
    return value if isinstance(value, str) else default


def bytes_per_value(known: Mapping[str, _Bytes], dtype: str, flag: str) -> _Bytes:
    """`flag` is only for the error message."""
    if dtype not in known:
        raise UsageError(
            f"firesteel does not know how many bytes a value takes with `--{flag} {dtype}`",
            next=f"use one of {', '.join(known)}",
        )
    return known[dtype]


# The arithmetic of an engine is imported where it is used: a plan deals with one engine.

PLANNED_FLAGS = (
    "kv-cache-memory-bytes", "gpu-memory-utilization", "max-total-tokens", "max-mamba-cache-size",
    "mem-fraction-static",
)  # fmt: skip
"""What a plan adds to a launch from its own figures: another figure does not make another launch."""
MEMORY_FLAGS = frozenset(PLANNED_FLAGS) - {"max-mamba-cache-size"}
"""With one of these a launch says itself how much memory its engine reserves."""
_VLLM_SLACK = 1.02
_LARGEST_BLOCK = 128
"""vLLM keeps one block empty, and an attention backend may want blocks of more than 16 tokens: on a CPU they
have 128, of which a short context needs more than 2 %."""


class KvCache(Value):
    """The cache for `users` sequences of `context` tokens."""

    bytes: int
    bytes_per_token: int
    """Growth per token and sequence, once sliding windows are full."""
    state_bytes: int
    """The part of `bytes` that does not grow with length."""
    context: int
    users: int
    dtype: str
    block_bytes: int = 0
    """One block of vLLM's pool, in all layers; 0 for engines without a pool."""
    checkpoint_bytes: int = 0
    """A checkpoint of one sequence in host memory, with which llama.cpp can roll back: states and windows."""
    compute_bytes: tuple[int, int, int] | None = None
    """llama.cpp's compute buffers: least, likely and most; None for other engines."""
    state_slots: int = 0
    """SGLang's slots for recurrent states, several for each user; 0 for other engines and models."""
    pool: VllmPool | None = None
    """vLLM's pool, group by group; None for other engines."""

    @property
    def pool_bytes(self) -> int:
        """What the engine reserves for `bytes`; a launch of vLLM sets this as `--kv-cache-memory-bytes`."""
        if not self.block_bytes:
            return self.bytes
        spare_tokens = _LARGEST_BLOCK + self.users * (-self.context % _LARGEST_BLOCK)
        with_large_blocks = self.bytes + self.block_bytes + spare_tokens * self.bytes_per_token
        return ceil(max((self.bytes + self.block_bytes) * _VLLM_SLACK, with_large_blocks) / MIB) * MIB


def size_kv_cache(launch: Launch, architecture: Architecture, context: int, users: int) -> KvCache:
    """The KV cache that the launch needs."""
    size = {"vllm": _size_vllm, "llamacpp": _size_llamacpp, "sglang": _size_sglang}[launch.engine]
    return size(launch, architecture, context, users)


def requested_kv_cache_bytes(launch: Launch) -> int | None:
    """The value of `--kv-cache-memory-bytes`; None when it is missing or not a size."""
    return parse_size(launch.flags.get("kv-cache-memory-bytes"))


def memory_flags(
    engine: EngineName, cache: KvCache, needed_bytes: float, total_bytes: int, budget_bytes: int
) -> dict[str, FlagValue]:
    """The flags with which the engine reserves this cache: a fraction of unified memory alone bounds nothing.

    vLLM gets bytes. It refuses to start when its fraction of the total is not free, even with bytes given,
    so the fraction is set to what the plan needs. SGLang gets tokens and slots for states. Its fraction is
    of the memory that is free before weights are loaded (on a GB10 what the kernel calls available), covers
    weights and pools, and only takes tokens away, never adds any: set for the least that may be free, the
    budget, it leaves the pool as planned. Read in 0.5.10 to 0.5.23, `_profile_available_bytes` and
    `_apply_token_constraints`.
    """
    if not cache.pool_bytes:
        return {}
    if engine == "vllm":
        share = _share(needed_bytes, total_bytes)
        return {"kv-cache-memory-bytes": str(cache.pool_bytes), "gpu-memory-utilization": share}
    if engine == "sglang":
        flags: dict[str, FlagValue] = {"max-total-tokens": str(cache.context * cache.users)}
        if cache.state_slots:
            flags["max-mamba-cache-size"] = str(cache.state_slots)
        return {**flags, "mem-fraction-static": _share(needed_bytes, budget_bytes)}
    return {}


def _share(part_bytes: float, of_bytes: int) -> str:
    return f"{min(1.0, ceil(100 * part_bytes / max(of_bytes, 1)) / 100):.2f}"


def reported_kv(
    launch: Launch, architecture: Architecture, context: int, pool_bytes: int
) -> tuple[ReportedKv, ...]:
    """What vLLM will print about a pool of this size; empty for engines that print nothing like it.

    Two reports, with the fewest and the most tokens, where the release is not known.
    """
    if launch.engine != "vllm":
        return ()
    from firesteel.engines.vllm.kv_cache import vllm_pools

    auto = launch.flags.get("max-model-len") in ("-1", "auto")
    reports = [pool.reported(pool_bytes, auto=auto) for pool in vllm_pools(launch, architecture, context)]
    fewest = min(reports, key=lambda report: report.tokens)
    most = max(reports, key=lambda report: report.tokens)
    return (fewest,) if fewest == most else (fewest, most)


def _size_vllm(launch: Launch, architecture: Architecture, context: int, users: int) -> KvCache:
    from firesteel.engines.vllm.kv_cache import vllm_pool
    from firesteel.engines.vllm.kv_specs import drafter_layers, state_bytes, token_bytes

    pool = vllm_pool(launch, architecture, context)
    settings = pool.settings
    layers = (*architecture.layers, *drafter_layers(settings, architecture))
    growth = sum(token_bytes(settings, layer) for layer in layers)
    recurrent = (layer for layer in architecture.layers if isinstance(layer, LinearAttention | Mamba2))
    states = sum(state_bytes(settings, layer) for layer in recurrent)
    return KvCache(
        pool.bytes_for(users),
        int(growth),
        states * users,
        context,
        users,
        text_flag(launch.flags, "kv-cache-dtype", "auto"),
        pool.block_bytes,
        pool=pool,
    )


def _size_llamacpp(launch: Launch, architecture: Architecture, context: int, users: int) -> KvCache:
    from firesteel.engines.llamacpp.kv_cache import compute_buffers, count_cells

    cells = count_cells(launch.flags, architecture, context, users)
    return KvCache(
        cells.total_bytes,
        int(cells.bytes_per_cell),
        cells.state_bytes * users,
        context,
        users,
        text_flag(launch.flags, "cache-type-k", "f16"),
        checkpoint_bytes=cells.checkpoint_bytes,
        compute_bytes=compute_buffers(launch.flags, architecture, context, users).band,
    )


def _size_sglang(launch: Launch, architecture: Architecture, context: int, users: int) -> KvCache:
    from firesteel.engines.sglang.kv_cache import sglang_pool

    pool = sglang_pool(launch.flags, architecture, launch.version)
    states = pool.state_bytes_for(users)
    return KvCache(
        pool.bytes_for(context * users) + states,
        int(pool.cell_bytes),
        states,
        context,
        users,
        text_flag(launch.flags, "kv-cache-dtype", "auto"),
        state_slots=pool.state_slots(users),
    )
