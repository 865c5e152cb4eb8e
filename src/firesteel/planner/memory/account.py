"""The memory account: weights as loaded, KV cache, the engine's own overhead, and whether they fit.

Unified memory is one pool, and running out of it can hang the whole host. So the verdict looks at the high
end: a launch fits when even that stays within the memory that the host can give, with a little to spare. A
GPU with memory of its own has its own pool.
"""

from __future__ import annotations

import re
from math import sqrt
from typing import Literal

from firesteel.engines.engine import lora_slots
from firesteel.engines.kv_cache import KvCache, reported_kv, size_kv_cache
from firesteel.engines.vllm.kv_cache import ReportedKv
from firesteel.engines.vllm.kv_settings import parse_release, speculative_tokens
from firesteel.facts.host.gpus import discrete_gpu
from firesteel.facts.host.hardware import Host
from firesteel.facts.model.adapter import slot_bytes
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    LinearAttention,
    Mamba2,
    SlidingAttention,
    SparseAttention,
)
from firesteel.facts.model.tensors import Role, Weights
from firesteel.launch import Launch
from firesteel.units import GIB, MIB, Band
from firesteel.values import Value, replace

Verdict = Literal["fits", "tight", "does not fit"]
"""fits: even the high end leaves 2 % of the budget. tight: the expected need fits but the high end may not,
so the launch may be stopped when memory runs out. does not fit: the expected need is more than the budget."""
Basis = Literal["counted", "derived", "reported", "formula", "estimated", "measured"]
"""counted, derived, reported: as for weights. formula: computed as the engine itself does, rounding included.
estimated: observed on other hosts, with a band. measured: observed here, when the same launch ran."""
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
    # Tables by layer, which some models also have, are not part of a head.
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


# --- where it is ---


class MemoryPool(Value):
    """The memory that a launch uses: the host's, or that of a GPU with its own memory.

    On a GB10 and on a machine without a GPU there is one pool. On any other machine a container with a GPU
    loads its weights into the GPU's memory, and the host's memory says nothing about whether they fit.
    """

    total_bytes: int
    budget_bytes: int
    """What a launch may use."""
    bandwidth_bytes_per_s: float | None
    hardware: str | None
    """Name of the hardware file, for a launch that runs on its GPU."""
    has_gpu: bool
    is_host_memory: bool = True
    note: str | None = None


def pool(launch: Launch, host: Host) -> MemoryPool:
    """With several GPUs, that of the smallest: then the launch fits whichever GPU the engine takes."""
    shared = MemoryPool(
        host.memory_total_bytes,
        host.room_bytes,
        host.bandwidth_bytes_per_s,
        # The hardware's figures are those of its GPU; a container without one was always planned by them.
        host.hardware if launch.container or launch.uses_gpu else None,
        bool(host.gpus or host.hardware),
    )
    discrete = () if host.hardware else host.gpus
    if not discrete or not launch.uses_gpu:
        return shared
    sizes = [gpu.memory_bytes for gpu in discrete if gpu.memory_bytes]
    if not sizes:
        note = (
            f"the memory of {discrete[0].name} is not known, so this plan uses the host's; "
            "`nvidia-smi --query-gpu=memory.total --format=csv` shows it"
        )
        return replace(shared, bandwidth_bytes_per_s=None, note=note)
    total = min(sizes)
    known = discrete_gpu(discrete[0].name)
    rate = f"{known.bandwidth / 1e9:,.0f} GB/s by its data sheet" if known else "bandwidth not known"
    return replace(
        shared,
        total_bytes=total,
        budget_bytes=max(0, total - max(GIB, total // 20)),
        bandwidth_bytes_per_s=float(known.bandwidth) if known else None,
        is_host_memory=False,
        note=f"planned for the whole memory of one {discrete[0].name}, {rate}; the speed model is not "
        "calibrated for it: `firesteel bench` measures it",
    )


# --- weights as they are loaded ---

_TILES = {
    **dict.fromkeys(("marlin", "flashinfer_trtllm", "flashinfer_trtllm_afp8"), (256, 128)),
    **dict.fromkeys(("flashinfer_cutlass", "flashinfer_cutlass_afp8", "deep_gemm"), (128, 128)),
    **dict.fromkeys(("triton", "triton_unfused"), (1, 64)),
}
"""By `--moe-backend`: what hidden and intermediate size are rounded up to, as in vLLM 0.28's
`model_executor/layers/fused_moe/oracle/mxfp4.py`."""
_DEFAULT = "marlin"
"""The only backend that accepts a GB10; on other GPUs it is the one that pads most."""


class LoadedWeights(Value):
    """Weights as the engine holds them in memory, which is not always how the checkpoint stores them.

    A kernel takes matrices whose sides are multiples of its tile. vLLM pads the MXFP4 experts of gpt-oss when
    it allocates them, so the padding takes memory and is read with every token: Marlin turns 2880 x 2880 into
    2944 x 3072, which is 9 % more.
    """

    stored: Weights
    padding_bytes: int = 0
    padding_reason: str = ""

    @property
    def weights(self) -> Weights:
        """Bytes by role with the padding in them."""
        by_role = dict(self.stored.bytes_by_role)
        if self.padding_bytes:
            by_role[Role.ROUTED_EXPERTS] += self.padding_bytes
        return replace(self.stored, bytes_by_role=by_role)


def loaded_weights(launch: Launch, shape: Architecture, weights: Weights) -> LoadedWeights:
    weights = _without_idle_parts(launch, weights)
    flag = launch.flags.get("moe-backend")
    backend = flag.replace("-", "_") if isinstance(flag, str) and flag != "auto" else _DEFAULT
    experts = shape.experts * len(shape.layers)
    if launch.engine != "vllm" or shape.model_type != "gpt_oss" or backend not in _TILES or not experts:
        return LoadedWeights(weights)
    stored = weights.bytes_by_role.get(Role.ROUTED_EXPERTS, 0)
    width = _intermediate_size(stored, experts, shape.hidden_size)
    if width is None:
        return LoadedWeights(weights)
    hidden_tile, width_tile = _TILES[backend]
    padded_hidden, padded_width = _round_up(shape.hidden_size, hidden_tile), _round_up(width, width_tile)
    expert_padding = _expert_bytes(padded_hidden, padded_width) - _expert_bytes(shape.hidden_size, width)
    size, padded = f"{width} x {shape.hidden_size}", f"{padded_width} x {padded_hidden}"
    reason = f"{backend} pads MXFP4 experts of {size} to {padded}"
    return LoadedWeights(weights, experts * expert_padding, reason)


def _without_idle_parts(launch: Launch, weights: Weights) -> Weights:
    """vLLM and SGLang load the draft layers of a checkpoint only when speculation is on, and vLLM its towers
    only when the launch takes pictures or sound (seen with 0.26)."""
    drafts = speculative_tokens(launch.flags)
    idle = {
        Role.DRAFTER: "drafter" if launch.engine != "llamacpp" and not drafts else None,
        Role.TOWER: "vision tower" if launch.engine == "vllm" and _takes_text_alone(launch) else None,
    }
    left_out = {role: name for role, name in idle.items() if name and role in weights.bytes_by_role}
    if not left_out:
        return weights
    by_role, by_format = weights.bytes_by_role.items(), weights.bytes_by_format.items()
    return replace(
        weights,
        bytes_by_role={role: size for role, size in by_role if role not in left_out},
        bytes_by_format={key: size for key, size in by_format if key[0] not in left_out},
        source=f"{weights.source}; without the {' and the '.join(left_out.values())}, which is not loaded",
    )


def _takes_text_alone(launch: Launch) -> bool:
    """By `--language-model-only`, or by limits of 0 for each kind of input: `{"image": 0, "video": 0}`."""
    limits = launch.flags.get("limit-mm-per-prompt")
    is_limited = isinstance(limits, dict) and bool(limits) and not any(limits.values())
    return is_limited or launch.flags.get("language-model-only") is True


def _expert_bytes(hidden: int, width: int) -> int:
    """Gate, up and down in MXFP4 (17 bytes for 32 values), and their biases in BF16."""
    return 3 * hidden * width * 17 // 32 + 2 * (2 * width + hidden)


def _intermediate_size(stored: int, experts: int, hidden: int) -> int | None:
    """The size at which that many bytes are MXFP4 experts; None when they have another format, as BF16."""
    width = round((stored / experts - 2 * hidden) / (3 * hidden * 17 / 32 + 4))
    return width if width <= 4 * hidden and experts * _expert_bytes(hidden, width) == stored else None


def _round_up(size: int, tile: int) -> int:
    return -(-size // tile) * tile


# --- the largest step of vLLM ---
#
# Before vLLM sizes its KV cache it runs one step of `--max-num-batched-tokens` tokens, then samples for
# `--max-num-seqs` requests, and keeps the higher peak free. The terms are those of its own code: a
# layer's widest tensors that live at once, the workspaces of experts (which stay), the sampler's copies
# of the logits. Their factors were fitted on ten models on an H200 with vLLM 0.26
# (`benchmarks/gpu/record_vllm_peaks.py`) and 15 others stay inside the band
# (`tests/planner/test_gpu_peaks.py`).

_BF16 = 2
_BAND = sqrt(2)
"""A factor either way: the band is a factor of 2 wide."""
_LIBRARIES = 32 * MIB
"""cuBLAS keeps this from its first call on."""
_LATENT_TOKENS = 65536
"""MLA recomputes keys and values of at most this many cached tokens at once."""
_LATENT_HEAD = 256
"""Key and value of a head without its rotary part, as in DeepSeek and Kimi."""
_GRAPH_BYTES = Band(0.26 * MIB, 0.37 * MIB, 0.52 * MIB)
"""By layer and captured batch size: 0.23 to 0.56 MiB in nine boots on an H200."""


class StepLoad(Value):
    tokens: int
    sequences: int
    rows: int
    """Rows of logits: drafted tokens have their own."""
    context: int


def activations(launch: Launch, shape: Architecture, load: StepLoad) -> Band:
    workspace = _expert_workspace(shape, load.tokens)
    step = workspace + _latent_workspace(shape, load) + load.tokens * _widest_layer(shape) * _BF16
    logits = load.rows * shape.vocab_size
    hidden = load.tokens * shape.hidden_size * _BF16
    # The first model runner keeps the logits in BF16 and three copies in FP32; the second does not.
    sampler = 2 * logits + hidden if _has_second_runner(launch, shape) else workspace + 14 * logits
    # torch.compile takes the embedding table a second time while it compiles the first layers.
    compiled = shape.vocab_size * shape.hidden_size * _BF16 + 1.5 * hidden if not _is_eager(launch) else 0
    peak = _LIBRARIES + max(step, sampler, compiled)
    return Band(peak / _BAND, peak, peak * _BAND)


def graphs(launch: Launch, shape: Architecture, load: StepLoad) -> Band:
    """CUDA graphs: one for each batch size of vLLM's list, up to twice the sequences and at most 512."""
    if _is_eager(launch):
        return Band.exactly(0)
    largest = min(2 * load.sequences, 512)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    count = sum(size <= largest for size in sizes) * len(shape.layers)
    return Band(_GRAPH_BYTES.low * count, _GRAPH_BYTES.expected * count, _GRAPH_BYTES.high * count)


def rotary_tables(shape: Architecture) -> int:
    """A cosine and a sine for each position that the model was trained for, whatever `--max-model-len` is:
    2.5 GiB for the 10 million of Llama 4 Scout. Hybrids rotate a quarter of each head."""
    widths = [
        layer.key_dim for layer in shape.layer_counts if isinstance(layer, FullAttention | ChunkedAttention)
    ]
    part = 4 if any(isinstance(layer, LinearAttention) for layer in shape.layer_counts) else 1
    return shape.max_context * max(widths, default=0) * _BF16 // part


def _widest_layer(shape: Architecture) -> float:
    """Elements for each token that are there at once, in the layer that needs most."""
    hidden = shape.hidden_size
    widths = [0.0] if shape.is_moe else [3.0 * shape.feed_forward_size + 4 * hidden]
    for layer in shape.layer_counts:
        match layer:
            case FullAttention() | SlidingAttention() | ChunkedAttention() | SparseAttention():
                heads = shape.attention_heads or layer.kv_heads
                queries_keys_values = heads * layer.key_dim + layer.kv_heads * (
                    layer.key_dim + layer.value_dim
                )
                widths.append(5 * hidden + 1.2 * queries_keys_values)
            case LinearAttention():
                widths.append(7 * hidden + 4.5 * layer.conv_channels)
            case Mamba2():
                widths.append(7 * hidden + 2 * (layer.conv_channels + layer.inner_size))
            case _:
                widths.append(8 * hidden)
    return max(widths)


def _expert_workspace(shape: Architecture, tokens: int) -> int:
    """Two tensors with a row for each token and chosen expert, which vLLM keeps for all layers."""
    width, hidden = shape.feed_forward_size, shape.expert_input_size or shape.hidden_size
    rows = tokens * shape.experts_per_token
    return rows * (max(width, hidden) + max(2 * width, hidden)) * _BF16 if shape.is_moe else 0


def _latent_workspace(shape: Architecture, load: StepLoad) -> int:
    if not any(isinstance(layer, LatentAttention) for layer in shape.layer_counts):
        return 0
    tokens = min(max(8 * load.context, 64 * load.sequences), _LATENT_TOKENS)
    return tokens * shape.attention_heads * _LATENT_HEAD * _BF16


def _has_second_runner(launch: Launch, shape: Architecture) -> bool:
    """From 0.26 on for models without experts and states, from 0.30 on for all."""
    release = parse_release(launch.version) or (0, 0)
    is_hybrid = any(isinstance(layer, LinearAttention | Mamba2) for layer in shape.layer_counts)
    return release >= (0, 30) or (release >= (0, 26) and not shape.is_moe and not is_hybrid)


def _is_eager(launch: Launch) -> bool:
    return launch.flags.get("enforce-eager") is True or launch.flags.get("disable-cuda-graph") is True


# --- the cache of a model with cross-attention ---
#
# It holds for each request its text, and the vectors of its sound: 1,500 for 30 seconds in Whisper. vLLM
# admits a request as if its sound took all tokens of a step, and refuses to start with room for less than
# one such request: `CrossAttentionSpec` in `v1/kv_cache_interface.py` of vLLM 0.32, seen 2026-11-16.

_STEP_TOKENS = 8192


def size_sound_cache(launch: Launch, shape: Architecture, sound: int, context: int, users: int) -> KvCache:
    """`sound`: the vectors of a request."""
    cache = replace(size_kv_cache(launch, shape, context + sound, users), pool=None)
    if launch.engine != "vllm":
        return cache
    admitted = size_kv_cache(launch, shape, context + _admitted(launch), 1)
    return replace(cache, bytes=max(cache.bytes, admitted.bytes))


def printed_sound_cache(
    launch: Launch, shape: Architecture, context: int, pool_bytes: int
) -> tuple[ReportedKv, ...]:
    """vLLM counts how many requests it would admit, and calls each as long as its text."""
    answers = reported_kv(launch, shape, context + _admitted(launch), pool_bytes)
    return tuple(
        replace(answer, tokens=int(answer.concurrency * context), context=context) for answer in answers
    )


def _admitted(launch: Launch) -> int:
    step = launch.flags.get("max-num-batched-tokens")
    return int(step) if isinstance(step, str) and step.isdigit() else _STEP_TOKENS
