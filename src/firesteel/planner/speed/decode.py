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

llama.cpp has separate kernels for each quantization, so there the kinds are the quantizations. A `StepModel`
says what the step of one launch reads and costs, over several Sparks, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import hypot, log2

from firesteel import shipped_data
from firesteel.engines.kv_cache import KvCache
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
from firesteel.launch import EngineName, Launch
from firesteel.units import Band
from firesteel.values import FileValue, Value, replace

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
        if role is Role.EMBEDDINGS:  # the head is this table; other tables, by layer, are not read
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


# --- fitted costs ---
#
# `data/speed/fitted.yaml`, which `scripts/calibrate` writes. Costs and their errors are stored together,
# so that no plan can show one without the other.


class ErrorsSchema(FileValue, kw_only=True):
    """Of predicted over measured; 19 in 20 of measured over predicted lie between `low` and `high`."""

    runs: int
    models: int
    mean: float
    worst: float
    low: float
    high: float


class FittedSchema(FileValue, kw_only=True):
    costs: dict[str, float]
    fitted: ErrorsSchema
    left_out: ErrorsSchema


class ServedErrorsSchema(FileValue, kw_only=True):
    """Of several users whose prompts arrive while others decode, for models left out of all three fits."""

    each: ErrorsSchema
    total: ErrorsSchema
    first_token: ErrorsSchema


class FittedEngineSchema(FileValue, kw_only=True):
    decode: FittedSchema
    crowd: FittedSchema
    """Of several users who decode at once."""
    prefill: FittedSchema
    served: ServedErrorsSchema | None = None
    """None where no run shows it."""
    first_prompts_ms: SpreadSchema | None = None
    """How much longer the first prompts after a start took; None where no run shows it."""


class SpreadSchema(FileValue, kw_only=True):
    """The median of some ratios or times, and the range that holds 19 in 20 of them."""

    runs: int
    low: float
    expected: float
    high: float


class ConstantsSchema(FileValue, kw_only=True):
    hardware: str
    engines: dict[str, FittedEngineSchema]
    repeated: SpreadSchema
    """A run over what other runs of the same checkpoint, engine and version predict."""
    carried: SpreadSchema
    """A run over what runs of the same weights in another version, or by other people, predict."""
    all_reduce_ms: SpreadSchema
    two_sparks: ErrorsSchema
    """Of runs on two Sparks, from runs of the same people on one."""
    planned_two_sparks: ErrorsSchema
    """Of runs of one user on two Sparks, from the costs of one; `low` and `high` are the least and the most
    of these and of `two_sparks`."""
    elsewhere: dict[str, ErrorsSchema]
    """Runs by other hands, which nothing was fitted to, by engine; engines without costs of their own use
    those of vLLM. `low` and `high`: the range of these runs, and at least 8 in 10 of all with the same
    costs."""


@cache
def constants() -> ConstantsSchema:
    return shipped_data.load("speed/fitted.yaml", ConstantsSchema)


# --- the step of one launch ---

_FITTED_RELEASES = {"vllm": "0.26", "llamacpp": ""}
"""llama.cpp: builds of two people that differ by 2,400 numbers are off by no more than runs of one."""


class StepModel(Value):
    launch: Launch
    shape: Architecture
    reads_at_start: StepReads
    """At the start of a conversation."""
    kv_dtype: str
    bandwidth: float
    """Of one machine."""
    costs: Mapping[str, float]
    low: float
    high: float
    """Measured over predicted, for models that the costs were not fitted to."""

    @property
    def engine(self) -> str:
        return costs_engine(self.launch)

    def reads(self, depth: int, kv_dtype: str | None = None) -> StepReads:
        return at_depth(
            self.reads_at_start, self.shape, depth, self.kv_dtype if kv_dtype is None else kv_dtype
        )

    def terms(self, depth: int, users: int = 1, independence: float = 1.0) -> Terms:
        return terms(self.reads(depth), self.bandwidth, users, independence)

    def tokens_per_s(self, parts: Terms) -> Band:
        """Of one user; the band covers the possible formats where the format is not known."""
        least, likely, most = step_ms(self.engine, parts, self.costs)
        return Band(*(1000 / self._over_sparks(ms) for ms in (most, likely, least)))

    def _over_sparks(self, step_ms: float) -> float:
        sparks = self.launch.sparks
        if self.launch.engine == "llamacpp":  # hosts take turns: each has some of the layers
            return step_ms
        return step_ms if sparks < 2 else self._with_all_reduces(step_ms, sparks - 1)

    def _with_all_reduces(self, step_ms: float, hops: float) -> float:
        """An all-reduce takes as many hops from Spark to Spark, where two Sparks need one."""
        all_reduce_ms = all_reduces(self.shape) * constants().all_reduce_ms.expected
        return step_ms / self.launch.sparks + hops * all_reduce_ms

    def tree_speedup(self) -> float:
        """How much faster it would be if all-reduces went by pairs of pairs, not around a ring."""
        likely = step_ms(self.engine, self.terms(0), self.costs)[1]
        return self._over_sparks(likely) / self._with_all_reduces(likely, log2(self.launch.sparks))


def costs_engine(launch: Launch) -> str:
    """SGLang runs much the same kernels as vLLM and has too few public runs, so it uses vLLM's costs."""
    return "llamacpp" if launch.engine == "llamacpp" else "vllm"


def fitted_costs(launch: Launch) -> FittedEngineSchema:
    return constants().engines[costs_engine(launch)]


def is_of_the_fit(launch: Launch) -> bool:
    """Whether the fit has runs of this engine and release; runs of others were off by more."""
    releases = _FITTED_RELEASES.get(launch.engine)
    return releases == "" or bool(releases and launch.version and launch.version.startswith(releases))


def step_model(
    launch: Launch,
    shape: Architecture,
    stored: StoredBytes,
    tied_head: bool,
    kv: KvCache,
    bandwidth: float,
) -> StepModel:
    fitted, known = fitted_costs(launch).decode, constants()
    errors = fitted.left_out
    # The runs of the fit have one author; other machines differ as much as authors did.
    low = 1 - hypot(1 - errors.low, 1 - known.carried.low)
    high = 1 + hypot(errors.high - 1, known.carried.high - 1)
    if not is_of_the_fit(launch):
        other = known.elsewhere[launch.engine]
        low, high = min(low, other.low), max(high, other.high)
    reads = step_reads(costs_engine(launch), shape, stored, tied_head, 0, kv.dtype)
    return StepModel(launch, shape, reads, kv.dtype, bandwidth, fitted.costs, low, high)
