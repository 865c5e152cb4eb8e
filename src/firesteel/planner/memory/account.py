"""The memory account: weights, KV cache, the engine's own overhead, and whether they fit.

Unified memory is one pool, and running out of it can hang the whole host. So the verdict looks at the high
end: a launch fits when even that stays within the memory that the host can give, with a little to spare.
"""

from __future__ import annotations

import re
from typing import Literal

from firesteel.engines.engine import lora_slots
from firesteel.engines.kv_cache import KvCache
from firesteel.engines.vllm.kv_settings import speculative_tokens
from firesteel.facts.model.adapter import slot_bytes
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.tensors import Role, Weights
from firesteel.launch import Launch
from firesteel.planner.memory.loaded import LoadedWeights
from firesteel.planner.memory.pool import MemoryPool
from firesteel.planner.memory.step_memory import StepLoad, activations, graphs, rotary_tables
from firesteel.units import GIB, MIB, Band
from firesteel.values import Value

Verdict = Literal["fits", "tight", "does not fit"]
"""fits: even the high end leaves 2 % of the budget. tight: the expected need fits but the high end may not,
so the launch may be stopped when memory runs out. does not fit: the expected need is more than the budget."""
Basis = Literal["counted", "derived", "reported", "formula", "estimated", "measured"]
"""counted, derived, reported: as for weights. formula: computed as the engine itself does, rounding included.
estimated: observed elsewhere, with a band. measured: observed here, when the same launch ran."""
_SPARE_SHARE = 0.02
"""Of the budget: a smaller remainder is within the error of the figures."""


class MemoryPart(Value):
    name: str
    bytes: Band
    basis: Basis
    explanation: str


class MemoryAccount(Value):
    parts: tuple[MemoryPart, ...]
    budget_bytes: int
    """What the launch may use: the memory available now, less what must stay free."""
    host_total_bytes: int
    """Of the pool: the memory of the GPU where that has its own."""

    @property
    def needed(self) -> Band:
        return sum((part.bytes for part in self.parts), Band.exactly(0))

    @property
    def verdict(self) -> Verdict:
        """`tight` when the expected need fits and the high end of its band, with 2 % to spare, does not."""
        if self.needed.high <= (1 - _SPARE_SHARE) * self.budget_bytes:
            return "fits"
        return "tight" if self.needed.expected <= self.budget_bytes else "does not fit"

    @property
    def short_bytes(self) -> int:
        """How much is missing for the expected need; 0 when it fits."""
        return max(0, round(self.needed.expected) - self.budget_bytes)


def account(
    launch: Launch,
    shape: Architecture,
    weights: LoadedWeights,
    cache: KvCache,
    pool: MemoryPool,
    cache_bytes: int | None = None,
) -> MemoryAccount:
    """`cache_bytes`: what the launch's flags give the KV cache, whatever its requests would need."""
    stored = weights.stored
    least, most = stored.spread  # both 1 unless only a label of the weights is known
    total, source = stored.total_bytes, stored.source
    if launch.engine == "llamacpp":
        total, source = _llamacpp_weights(launch, shape, stored, pool)
    parts = [
        MemoryPart("weights", Band(total * least, total, total * most), stored.provenance, source),
        MemoryPart("KV cache", Band.exactly(cache.pool_bytes), "formula", _explain_cache(cache))
        if cache_bytes is None
        else MemoryPart("KV cache", Band.exactly(cache_bytes), "formula", "set by --kv-cache-memory-bytes"),
    ]
    parts += _adapter_parts(launch, shape)
    if weights.padding_bytes:
        padding = Band.exactly(weights.padding_bytes)
        parts.append(MemoryPart("expert padding", padding, "formula", weights.padding_reason))
    if launch.engine == "llamacpp":
        parts += _llamacpp_parts(launch, shape, cache, pool)
    else:
        parts += _vllm_parts(launch, shape, stored, cache)
    return MemoryAccount(tuple(parts), pool.budget_bytes, pool.total_bytes)


def _explain_cache(cache: KvCache) -> str:
    state = " and recurrent state" if cache.state_bytes else ""
    spare = "; a spare block and 2 % on top" if cache.block_bytes else ""
    return f"{cache.users} x {cache.context:,} tokens{state}, {cache.dtype}{spare}"


def _adapter_parts(launch: Launch, shape: Architecture) -> list[MemoryPart]:
    """vLLM and SGLang allocate slots of the highest rank for every module; llama.cpp loads the files."""
    if slots := lora_slots(launch.engine, launch.flags):
        count, rank = slots
        total = count * slot_bytes(shape, rank)
        text = f"{count} slot{'s' if count != 1 else ''} of rank {rank} for every module"
        return [MemoryPart("adapters", Band(0.8 * total, total, 1.2 * total), "estimated", text)]
    if launch.adapter_bytes and launch.engine == "llamacpp":
        return [MemoryPart("adapters", Band.exactly(launch.adapter_bytes), "counted", "their files")]
    return []


def _vllm_parts(launch: Launch, shape: Architecture, weights: Weights, cache: KvCache) -> list[MemoryPart]:
    """What vLLM and SGLang take besides weights and KV cache.

    Three boots of vLLM on a GB10 took 3.4, 4.3 and 4.8 GiB in all. Less what the largest step takes by its
    own formulas, and less what was only set aside for graphs, 0.7 to 2.3 GiB are left. The server's and the
    engine's processes take host memory besides, which a GB10 shares: about 0.7 GiB, not measured there.
    """
    sequences = _number(launch, "max-num-seqs", cache.users)
    rows = sequences * (1 + speculative_tokens(launch.flags))
    step = "chunked-prefill-size" if launch.engine == "sglang" else "max-num-batched-tokens"
    tokens = max(_number(launch, step, 8192), 1)
    load = StepLoad(tokens, sequences, min(rows, tokens), cache.context)
    text = f"{tokens:,} tokens a step, logits of {load.rows} rows"
    parts = [
        MemoryPart(
            "engine",
            Band(1.2 * GIB, 2.0 * GIB, 3.0 * GIB),
            "estimated",
            "CUDA context, libraries and processes, from three vLLM boots on a GB10",
        ),
        MemoryPart("activations", activations(launch, shape, load), "estimated", text),
    ]
    captured = graphs(launch, shape, load)
    if captured.high:
        text = f"batches of up to {min(2 * sequences, 512)}"
        parts.append(MemoryPart("CUDA graphs", captured, "estimated", text))
    if tables := rotary_tables(shape):
        text = f"a sine and a cosine for each of {shape.max_context:,} positions"
        parts.append(MemoryPart("rotary tables", Band.exactly(tables), "formula", text))
    if weights.bytes_by_role.get(Role.TOWER):
        name, what = ("sound", "longest piece of sound") if shape.speech else ("vision", "largest image")
        text = f"the {what}, profiled at start, and the encoder cache"
        parts.append(MemoryPart(name, Band(0.2 * GIB, 0.5 * GIB, 1.5 * GIB), "estimated", text))
    return parts


def _llamacpp_weights(
    launch: Launch, shape: Architecture, weights: Weights, pool: MemoryPool
) -> tuple[int, str]:
    """With a GPU, llama.cpp keeps the embedding table in host memory. A model without a head of its own gets
    the table a second time, as head, on the GPU: in the pool of a GB10 are both. Seen on an H200 with build
    11434, to the MiB (`benchmarks/RESULTS.md`, 2026-11-16)."""
    total, source = weights.total_bytes, weights.source
    if not (pool.has_gpu and launch.uses_gpu) or _number(launch, "n-gpu-layers", -1) == 0:
        return total, source
    embeddings = weights.bytes_by_role.get(Role.EMBEDDINGS, 0)
    # Tables by layer, which some models have beside it, are not part of a head.
    head = min(embeddings, shape.vocab_size * shape.hidden_size * 2) if weights.tied_head else 0
    if pool.is_host_memory:
        note = "; the embedding table is also loaded as head" if head else ""
        return total + head, source + note
    return total - embeddings + head, f"{source}; the embedding table stays in host memory"


def _llamacpp_parts(
    launch: Launch, shape: Architecture, cache: KvCache, pool: MemoryPool
) -> list[MemoryPart]:
    """Compute buffers hold the activations of a micro-batch and the requested rows of logits.

    Current servers request one row per user; older builds reserved one per token.
    """
    ubatch = _number(launch, "ubatch-size", 512)
    row = shape.vocab_size * 4
    least, likely, most = cache.compute_bytes or (0, 0, 0)
    buffers = Band(least, likely + 2 * cache.users * row, most + ubatch * row)
    text = f"micro-batch of {ubatch}; masks are counted, activations estimated"
    parts = [MemoryPart("compute buffers", buffers, "estimated", text)]
    if pool.is_host_memory:
        parts += _llamacpp_copies(launch, cache, pool)
    if pool.has_gpu and (launch.uses_gpu or launch.container):
        overhead, text = Band(0.3 * GIB, 0.6 * GIB, 1.2 * GIB), "CUDA context, libraries and HTTP threads"
    else:
        overhead, text = Band(30 * MIB, 50 * MIB, 120 * MIB), "the process itself: code, heap, threads"
    return [*parts, MemoryPart("engine", overhead, "estimated", text)]


def _llamacpp_copies(launch: Launch, cache: KvCache, pool: MemoryPool) -> list[MemoryPart]:
    """What llama.cpp copies to host memory as conversations go on; nothing at the start."""
    parts = []
    limit = _number(launch, "cache-ram", 8192)
    prompt_cache = pool.budget_bytes if limit < 0 else limit * MIB  # -1: no limit
    if prompt_cache:
        text = "host copies of idle prompts; grows up to --cache-ram"
        parts.append(MemoryPart("prompt cache", Band(0, 0, prompt_cache), "formula", text))
    checkpoints = cache.users * _checkpoints(launch, cache.context)
    if checkpoints and cache.checkpoint_bytes:
        most = checkpoints * cache.checkpoint_bytes
        text = f"saved copies of state and windows; up to {checkpoints} by --ctx-checkpoints"
        parts.append(MemoryPart("checkpoints", Band(0, 0, most), "formula", text))
    return parts


def _checkpoints(launch: Launch, context: int) -> int:
    """Checkpoints per slot: one per step of the context, and three near the end of the last prompt."""
    most = _number(launch, "ctx-checkpoints", 32)
    step = _number(launch, "checkpoint-min-step", 8192)
    return max(0, min(most, context // step + 3) if step > 0 else most)


def _number(launch: Launch, flag: str, default: int) -> int:
    value = launch.flags.get(flag)
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,15}", value) else default
