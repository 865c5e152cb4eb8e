"""The time of one decode step, from the bytes that it reads and the costs of the engine.

Memory has a limited bandwidth, so a step takes at least `bytes / bandwidth`. Engines take longer, and a
handful of costs per engine say how much: the time for a byte of each kind of weight as a multiple of the
bandwidth's own time, and what a layer costs whatever its size. `scripts/calibrate` fits them to published
runs on a GB10; no cost is specific to one model. What they turned out to mean:

    wide      vLLM, BF16 matrices: cuBLAS reaches 88 % of the bandwidth
    narrow    added to that where rows are short (hidden size 3072 and less, gone at 5120)
    packed    vLLM, FP8 and FP4 through Marlin
    experts   vLLM, the routed experts, whatever their format
    head      the output matrix with sampling: about half the bandwidth
    kv        the KV cache: keys and values once, recurrent states read and written

llama.cpp has separate kernels for each quantization, so there the kinds are the quantizations.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.facts.model.architecture import (
    Architecture,
    CompressedAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba2,
    NoCache,
    SharedKv,
)
from firesteel.facts.model.tensors import Role, Weights
from firesteel.launch import EngineName
from firesteel.values import Value, replace

StoredBytes = Mapping[tuple[Role, str], float]
"""Bytes by role and format; the format is empty where only the sum is known."""
Terms = Mapping[str, float]
"""The parts of a step: milliseconds at full bandwidth by kind of byte, and counts of layers."""

UNQUANTIZED = {"BF16", "F16", "F32", "16-BIT", "32-BIT"}
"""Formats are the types of the tensors, or the names that a `quantization_config` gives them."""
WEIGHTS_PER_BYTE = {
    "BF16": 0.5, "F16": 0.5, "F32": 0.25, "F8_E4M3": 1.0, "F8_E5M2": 1.0, "I8": 1.0, "U8": 2.0,
    "16-BIT": 0.5, "32-BIT": 0.25, "8-BIT": 1.0, "4-BIT": 2.0, "FP8": 1.0, "INT8": 1.0, "INT4": 2.0,
    "NVFP4": 16 / 9, "MXFP4": 32 / 17, "Q8_0": 32 / 34, "Q6_K": 256 / 210, "Q5_K": 256 / 176,
    "Q4_K": 256 / 144, "Q3_K": 256 / 110, "Q2_K": 256 / 84, "Q5_1": 32 / 24, "Q5_0": 32 / 22,
    "Q4_1": 32 / 20, "Q4_0": 32 / 18, "IQ4_NL": 32 / 18, "IQ4_XS": 256 / 136,
}  # fmt: skip
_GGML = {"MXFP4": "mxfp4", "Q8_0": "q8_0", "F32": "q8_0", "F16": "q8_0", "BF16": "q8_0"}
_LEGACY = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"}
_KINDS = {"llamacpp": ("mxfp4", "q8_0", "legacy", "k_quant"), "vllm": ("wide", "packed")}
_UNSEEN = {"llamacpp": {"F16", "BF16"}}
"""Formats that hardly occur in the runs of the calibration: they get the costs of the nearest kind."""
_SHORT_ROW, _LONG_ROW = 3072, 5120
_KV_WIDTH = {"fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "q8_0": 34 / 32, "q5_1": 0.75, "q5_0": 22 / 32,
             "q4_1": 0.625, "q4_0": 18 / 32, "iq4_nl": 18 / 32, "f32": 4.0}  # fmt: skip
_STATE_WIDTH = 4


class StepReads(Value):
    """What a decode step reads."""

    weights: Mapping[str, float]
    """Bytes by kind, without routed experts; the kind is empty where the format is not known."""
    experts: Mapping[str, float]
    """Bytes of all routed experts by kind; a step reads only a share of them."""
    experts_count: int
    experts_per_token: int
    kv_bytes: float
    """KV cache and recurrent states of one sequence."""
    narrowness: float
    """1 where rows are short, 0 where they are long."""
    attention_layers: int
    recurrent_layers: int
    moe_layers: int
    unseen: frozenset[str] = frozenset()
    """Formats that no run of the calibration confirms."""

    def bytes(self, users: int = 1) -> float:
        """What `users` sequences read in one step, when their tokens choose experts independently."""
        share = coverage(self.experts_count, self.experts_per_token, users)
        return sum(self.weights.values()) + share * sum(self.experts.values()) + users * self.kv_bytes


def stored_bytes(weights: Weights) -> StoredBytes:
    """By role and format; the format is empty for a role whose formats the checkpoint does not give."""
    stored: dict[tuple[Role, str], float] = {}
    for role, size in weights.bytes_by_role.items():
        formats = {dtype: part for (owner, dtype), part in weights.bytes_by_format.items() if owner is role}
        known = sum(formats.values())
        if not known:
            stored[role, ""] = size
            continue
        for dtype, part in formats.items():
            stored[role, dtype.upper()] = size * part / known  # padding has the format of its role
    return stored


def step_reads(
    engine: str, shape: Architecture, stored: StoredBytes, tied_head: bool, depth: int, kv_dtype: str
) -> StepReads:
    """`depth` is the number of tokens already in the sequence."""
    weights: dict[str, float] = {}
    experts: dict[str, float] = {}
    for (role, dtype), size in stored.items():
        if role in (Role.TOWER, Role.DRAFTER) or (role is Role.EMBEDDINGS and not tied_head):
            continue
        if role is Role.EMBEDDINGS:  # the head is this table; per-layer tables beside it are not read
            head_size = shape.vocab_size * shape.hidden_size / WEIGHTS_PER_BYTE.get(dtype, 0.5)
            role, size = Role.HEAD, min(size, head_size)
        target = experts if role is Role.ROUTED_EXPERTS and shape.experts else weights
        kind = _kind(engine, role, dtype)
        target[kind] = target.get(kind, 0.0) + size
    unseen = {dtype for _, dtype in stored} & _UNSEEN.get(engine, set())
    return StepReads(
        weights,
        experts,
        shape.experts,
        shape.experts_per_token,
        kv_read_bytes(shape, depth, kv_dtype),
        min(1.0, max(0.0, (_LONG_ROW - shape.hidden_size) / (_LONG_ROW - _SHORT_ROW))),
        sum(count * _attention_blocks(layer) for layer, count in shape.layer_counts.items()),
        sum(count for layer, count in shape.layer_counts.items() if is_recurrent(layer)),
        _moe_layers(shape),
        frozenset(unseen),
    )


def at_depth(reads: StepReads, shape: Architecture, depth: int, kv_dtype: str) -> StepReads:
    """The same step after another number of tokens, or with another KV format."""
    return replace(reads, kv_bytes=kv_read_bytes(shape, depth, kv_dtype))


def _kind(engine: str, role: Role, dtype: str) -> str:
    if engine == "llamacpp":
        return _GGML.get(dtype) or ("legacy" if dtype in _LEGACY else "k_quant" if dtype else "")
    if role in (Role.HEAD, Role.ROUTED_EXPERTS):
        return "head" if role is Role.HEAD else "experts"
    return "" if not dtype else "wide" if dtype in UNQUANTIZED else "packed"


def is_recurrent(layer: Layer) -> bool:
    """A short convolution without a state costs no more than a small attention layer."""
    return isinstance(layer, LinearAttention | Mamba2) and layer.state_elements > 0


def _attention_blocks(layer: Layer) -> int:
    """MLA expands its latent vector before and after attention, which takes about as many kernels again."""
    if isinstance(layer, NoCache) or is_recurrent(layer):
        return 0
    return 2 if isinstance(layer, LatentAttention) else 1


def _moe_layers(shape: Architecture) -> int:
    """Some models list MLPs as separate layers; in all others every layer has one."""
    blocks = [layer.block for layer in shape.layers if isinstance(layer, NoCache)]
    return blocks.count("moe") if blocks else len(shape.layers) if shape.experts else 0


def all_reduces(shape: Architecture) -> int:
    """All-reduces per token: one per block. A layer has two blocks, unless blocks are listed as layers."""
    has_separate_blocks = any(isinstance(layer, NoCache) for layer in shape.layers)
    return len(shape.layers) * (1 if has_separate_blocks else 2)


def kv_read_bytes(shape: Architecture, depth: int, kv_dtype: str) -> float:
    """What one step reads of the KV cache of a sequence, and reads and writes of its recurrent states."""
    width = _KV_WIDTH.get(kv_dtype, 2.0)
    return sum(count * _layer_kv(shape, layer, depth, width) for layer, count in shape.layer_counts.items())


def _layer_kv(shape: Architecture, layer: Layer, depth: int, width: float) -> float:
    if isinstance(layer, NoCache):
        return 0
    if isinstance(layer, LinearAttention | Mamba2):
        conv = layer.conv_channels * (layer.conv_kernel - 1) * 2
        return 2 * (layer.state_elements * _STATE_WIDTH + conv)
    if isinstance(layer, SharedKv):
        return _layer_kv(shape, shape.layers[layer.of], depth, width)
    if isinstance(layer, CompressedAttention):
        older = max(0, depth - layer.window) // layer.ratio if layer.ratio else 0
        return layer.head_dim * width * (min(depth, layer.window) + min(older, layer.attends or older))
    limit: int = getattr(layer, "window", 0) or getattr(layer, "chunk", 0) or getattr(layer, "attends", 0)
    tokens = min(depth, limit) if limit else depth
    if isinstance(layer, LatentAttention):
        return layer.latent_dim * width * tokens
    return layer.kv_heads * (layer.key_dim + layer.value_dim) * width * tokens


def coverage(experts: int, experts_per_token: int, tokens: float) -> float:
    """Share of the experts that a step with that many independent tokens reads."""
    return 1 - (1 - experts_per_token / experts) ** tokens if experts else 0.0


def terms(
    reads: StepReads, bandwidth: float, users: int = 1, independence: float = 1.0, rows: int | None = None
) -> Terms:
    """`independence` 1: every sequence chooses its own experts; 0: all choose the same.

    `rows`: tokens of the step, where prompts are in it; otherwise one for each user.
    """
    rows = rows or users

    def ms(size: float) -> float:
        return 1000 * size / bandwidth

    share = coverage(reads.experts_count, reads.experts_per_token, rows**independence)
    parts: dict[str, float] = {kind: ms(size) for kind, size in reads.weights.items()}
    for kind, size in reads.experts.items():
        parts[kind] = parts.get(kind, 0.0) + ms(size) * share
    if rows == 1:  # with several rows cuBLAS takes another kernel, for which short rows are no problem
        parts["narrow"] = parts.get("wide", 0.0) * reads.narrowness
        parts["perhaps_narrow"] = parts.get("", 0.0) * reads.narrowness
    parts["kv"] = users * ms(reads.kv_bytes)
    parts["attention_layer"] = reads.attention_layers
    parts["recurrent_layer"] = reads.recurrent_layers
    parts["moe_layer"] = reads.moe_layers
    parts["step"] = 1
    parts["sequence_attention_layer"] = (users - 1) * reads.attention_layers
    parts["sequence_recurrent_layer"] = (users - 1) * reads.recurrent_layers
    return parts


def step_ms(engine: EngineName | str, parts: Terms, costs: Mapping[str, float]) -> tuple[float, float, float]:
    """Least, likely and most; they differ only where a format is not known."""
    known = sum(size * costs.get(name, 0.0) for name, size in parts.items() if name)
    unknown = parts.get("", 0.0)
    if not unknown:
        return known, known, known
    kinds = [kind for kind in _KINDS.get(engine, _KINDS["vllm"]) if kind in costs]
    narrow = parts.get("perhaps_narrow", 0.0) * costs.get("narrow", 0.0)
    # An unknown format is one of the engine's kinds, so its cost lies between theirs.
    candidates = [unknown * costs[kind] + (narrow if kind == "wide" else 0.0) for kind in kinds] or [unknown]
    return known + min(candidates), known + sum(candidates) / len(candidates), known + max(candidates)
