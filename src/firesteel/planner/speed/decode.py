"""The time of one decode step, from what it reads and what each engine makes of that.

Memory hands bytes over only so fast, so a step takes at least `bytes / bandwidth`. Engines take longer,
each in its own way, and a handful of figures an engine say how much: how many times the bandwidth's own
time a byte of some kind of weight takes, and what a layer costs whatever its size. `scripts/calibrate`
fits them to published runs on a GB10; there is none for a single model. What they turned out to mean:

    wide      vLLM, BF16 matrices: cuBLAS reaches 88 % of the bandwidth
    narrow    what comes on top of that where rows are short (hidden size 3072 and less, gone at 5120)
    packed    vLLM, FP8 and FP4 through Marlin
    experts   vLLM, the routed experts, whatever their format
    head      the output matrix with sampling: about half the bandwidth
    kv        the past: keys and values once, recurrent states read and written

llama.cpp has kernels of its own for each quantization, so there the kinds are those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from firesteel.facts import Architecture, Layer, Role, Weights
from firesteel.facts.model.architecture import (
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mamba2,
    NoCache,
    SharedKv,
)
from firesteel.launch import EngineName

Stored = Mapping[tuple[Role, str], float]
"""Bytes by role and format; the format is empty where only the sum is known."""
Terms = Mapping[str, float]
"""What a step consists of: milliseconds at full bandwidth by kind of byte, and counts of layers."""

WIDE = {"BF16", "F16", "F32", "16-BIT", "32-BIT"}
"""Not quantized. Formats are tensors' own types, or the names that a `quantization_config` gives them."""
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
"""Formats that no run in the calibration reads much of: their kind is the nearest one."""
_SHORT_ROW, _LONG_ROW = 3072, 5120
_KV_WIDTH = {"fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "q8_0": 34 / 32, "q5_1": 0.75, "q5_0": 22 / 32,
             "q4_1": 0.625, "q4_0": 18 / 32, "iq4_nl": 18 / 32, "f32": 4.0}  # fmt: skip
_STATE_WIDTH = 4


@dataclass(frozen=True, slots=True)
class StepReads:
    """What a decode step touches."""

    weights: Mapping[str, float]
    """Bytes by kind, without routed experts; the kind is empty where the format is not known."""
    experts: Mapping[str, float]
    """Bytes of all routed experts by kind; a step reads a share of them."""
    experts_count: int
    experts_per_token: int
    past_bytes: float
    """Of one sequence."""
    narrowness: float
    """1 where rows are short, 0 where they are long."""
    attention_layers: int
    recurrent_layers: int
    moe_layers: int
    unseen: frozenset[str] = frozenset()
    """Formats whose kind stands for them without a run to show it."""

    def bytes(self, users: int = 1) -> float:
        """What `users` sequences read in one step, with experts picked at random."""
        share = coverage(self.experts_count, self.experts_per_token, users)
        return sum(self.weights.values()) + share * sum(self.experts.values()) + users * self.past_bytes


def stored(weights: Weights) -> Stored:
    """By role and format; formats that a checkpoint does not tell are one empty name."""
    told = weights.bytes_by_format
    found: dict[tuple[Role, str], float] = {}
    for role, size in weights.bytes_by_role.items():
        formats = {dtype: part for (owner, dtype), part in told.items() if owner is role}
        known = sum(formats.values())
        for dtype, part in formats.items() if known else ():
            found[role, dtype.upper()] = size * part / known  # padding is as the rest of its role
        if not known:
            found[role, ""] = size
    return found


def step_reads(
    engine: str, shape: Architecture, weights: Stored, tied_head: bool, depth: int, kv_dtype: str
) -> StepReads:
    """`depth` is how many tokens the sequence has already."""
    kinds: dict[str, float] = {}
    experts: dict[str, float] = {}
    for (role, dtype), size in weights.items():
        if role in (Role.TOWER, Role.DRAFTER) or (role is Role.EMBEDDINGS and not tied_head):
            continue
        if role is Role.EMBEDDINGS:  # the head is this table; tables for single layers beside it are not read
            role, size = Role.HEAD, min(size, shape.vocab_size * shape.hidden_size / _per_byte(dtype))
        into = experts if role is Role.ROUTED_EXPERTS and shape.experts else kinds
        kind = _kind(engine, role, dtype)
        into[kind] = into.get(kind, 0.0) + size
    unseen = {dtype for _, dtype in weights} & _UNSEEN.get(engine, set())
    return StepReads(
        kinds,
        experts,
        shape.experts,
        shape.experts_per_token,
        past_bytes(shape, depth, _KV_WIDTH.get(kv_dtype, 2.0)),
        min(1.0, max(0.0, (_LONG_ROW - shape.hidden_size) / (_LONG_ROW - _SHORT_ROW))),
        sum(_attention_blocks(layer) for layer in shape.layers),
        sum(1 for layer in shape.layers if is_recurrent(layer)),
        _moe_layers(shape),
        frozenset(unseen),
    )


def _per_byte(dtype: str) -> float:
    return WEIGHTS_PER_BYTE.get(dtype, 0.5)


def at_depth(read: StepReads, shape: Architecture, depth: int, kv_dtype: str) -> StepReads:
    """The same step after another number of tokens, or with another cache."""
    return replace(read, past_bytes=past_bytes(shape, depth, _KV_WIDTH.get(kv_dtype, 2.0)))


def _kind(engine: str, role: Role, dtype: str) -> str:
    if engine == "llamacpp":
        return _GGML.get(dtype) or ("legacy" if dtype in _LEGACY else "k_quant" if dtype else "")
    if role in (Role.HEAD, Role.ROUTED_EXPERTS):
        return "head" if role is Role.HEAD else "experts"
    return "" if not dtype else "wide" if dtype in WIDE else "packed"


def is_recurrent(layer: Layer) -> bool:
    """A short convolution alone, without a state, is no more than a small attention layer."""
    return isinstance(layer, LinearAttention | Mamba2) and layer.state_elements > 0


def _attention_blocks(layer: Layer) -> int:
    """MLA unfolds its vector on the way in and on the way out, which is about as many kernels again."""
    if isinstance(layer, NoCache) or is_recurrent(layer):
        return 0
    return 2 if isinstance(layer, LatentAttention) else 1


def _moe_layers(shape: Architecture) -> int:
    """Where MLPs are layers of their own they say so; elsewhere every layer has one."""
    apart = [layer.block for layer in shape.layers if isinstance(layer, NoCache)]
    return apart.count("moe") if apart else len(shape.layers) if shape.experts else 0


def all_reduces(shape: Architecture) -> int:
    """Sums over the Sparks a token: one a block. A layer has two, unless blocks are layers themselves."""
    apart = any(isinstance(layer, NoCache) for layer in shape.layers)
    return len(shape.layers) * (1 if apart else 2)


def past_bytes(shape: Architecture, depth: int, width: float) -> float:
    """What one step reads of a sequence's past, and writes of its states."""
    alike = Counter(shape.layers)
    return sum(many * _layer_past(shape, layer, depth, width) for layer, many in alike.items())


def past_at(shape: Architecture, depth: int, kv_dtype: str) -> float:
    return past_bytes(shape, depth, _KV_WIDTH.get(kv_dtype, 2.0))


def _layer_past(shape: Architecture, layer: Layer, depth: int, width: float) -> float:
    if isinstance(layer, NoCache):
        return 0
    if isinstance(layer, LinearAttention | Mamba2):
        conv = layer.conv_channels * (layer.conv_kernel - 1) * 2
        return 2 * (layer.state_elements * _STATE_WIDTH + conv)
    if isinstance(layer, SharedKv):
        return _layer_past(shape, shape.layers[layer.of], depth, width)
    if isinstance(layer, CompressedAttention):
        older = max(0, depth - layer.window) // layer.ratio if layer.ratio else 0
        return layer.head_dim * width * (min(depth, layer.window) + min(older, layer.attends or older))
    limit: int = getattr(layer, "window", 0) or getattr(layer, "chunk", 0) or getattr(layer, "attends", 0)
    tokens = min(depth, limit) if limit else depth
    if isinstance(layer, LatentAttention):
        return layer.latent_dim * width * tokens
    return layer.kv_heads * (layer.key_dim + layer.value_dim) * width * tokens


def coverage(experts: int, experts_per_token: int, users: float) -> float:
    """Share of the experts that a step of so many independent tokens touches."""
    return 1 - (1 - experts_per_token / experts) ** users if experts else 0.0


def terms(read: StepReads, bandwidth: float, users: int = 1, independence: float = 1.0) -> Terms:
    """`independence` 1: every sequence picks its experts for itself; 0: all pick the same."""

    def ms(size: float) -> float:
        return 1000 * size / bandwidth

    share = coverage(read.experts_count, read.experts_per_token, users**independence)
    found: dict[str, float] = {kind: ms(size) for kind, size in read.weights.items()}
    for kind, size in read.experts.items():
        found[kind] = found.get(kind, 0.0) + ms(size) * share
    if users == 1:  # with several rows cuBLAS takes another kernel, and short rows are no trouble
        found["narrow"] = found.get("wide", 0.0) * read.narrowness
        found["perhaps_narrow"] = found.get("", 0.0) * read.narrowness
    found["kv"] = users * ms(read.past_bytes)
    found["attention_layer"] = read.attention_layers
    found["recurrent_layer"] = read.recurrent_layers
    found["moe_layer"] = read.moe_layers
    found["step"] = 1
    found["sequence_attention_layer"] = (users - 1) * read.attention_layers
    found["sequence_recurrent_layer"] = (users - 1) * read.recurrent_layers
    return found


def step_ms(engine: EngineName | str, parts: Terms, costs: Mapping[str, float]) -> tuple[float, float, float]:
    """Least, likely and most: they differ only where a format is not known."""
    known = sum(size * costs.get(name, 0.0) for name, size in parts.items() if name)
    unknown = parts.get("", 0.0)
    if not unknown:
        return known, known, known
    kinds = [kind for kind in _KINDS.get(engine, _KINDS["vllm"]) if kind in costs]
    short = parts.get("perhaps_narrow", 0.0) * costs.get("narrow", 0.0)
    each = [unknown * costs[kind] + (short if kind == "wide" else 0.0) for kind in kinds] or [unknown]
    return known + min(each), known + sum(each) / len(each), known + max(each)
