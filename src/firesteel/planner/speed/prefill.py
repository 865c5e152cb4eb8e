"""How fast a prompt is processed, how long until the first token, and how much sound is written down.

Prompt processing is arithmetic: two operations per weight and token, and for attention two per pair of tokens
and channel. The share of the GPU's arithmetic that an engine reaches differs fivefold by kernel, so there is
one cost for each engine, kind of model and width of weights, fitted to published first-token times by
`scripts/calibrate`. A step also reads the weights, which is most of the time of a short prompt: a few hundred
tokens reach every expert. Kernels change with every release, so the band is wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from firesteel.facts.model.architecture import Architecture, FullAttention, LatentAttention, Layer, Speech
from firesteel.facts.model.tensors import Role
from firesteel.launch import Launch
from firesteel.planner.speed.decode import (
    UNQUANTIZED,
    WEIGHTS_PER_BYTE,
    StepModel,
    StepReads,
    StoredBytes,
    Terms,
    constants,
    fitted_costs,
    is_recurrent,
    step_ms,
    terms,
)
from firesteel.planner.speed.speed import PrefillSpeed, Speed
from firesteel.units import Band
from firesteel.values import Value, replace

_EIGHT_BITS = {"F8_E4M3", "F8_E5M2", "I8", "Q8_0", "FP8", "INT8", "8-BIT"}
_WIDE_HEAD = 256
"""FlashAttention has no kernel for wider heads; what engines use instead is several times slower."""
_STEP_FLAGS = {
    "vllm": (("max-num-batched-tokens", 8192), ("max-num-batched-tokens", 8192)),
    "llamacpp": (("batch-size", 2048), ("ubatch-size", 512)),
    "sglang": (("chunked-prefill-size", 8192), ("chunked-prefill-size", 8192)),
}
"""Tokens a step, and tokens for which the weights are read once: flags and defaults (for 70 GiB and more)."""


class PromptModel(Value, dict=True):
    """What the prompts of a launch consist of, step by step."""

    shape: Architecture
    engine: str
    path: str
    active: float
    """Weights that each token passes."""
    reads: StepReads
    """Of a decode step at the start of a conversation."""
    decode_costs: Mapping[str, float]
    independence: float
    bandwidth: float
    tokens_per_step: int
    tokens_per_read: int
    """llama.cpp reads the weights again for every micro-batch."""

    def step_terms(self, pieces: Sequence[tuple[int, int]], decoding: int = 0) -> Terms:
        """Of a step with pieces of prompts, each (tokens, earlier tokens), with `decoding` users."""
        tokens = sum(size for size, _ in pieces)
        token_pairs = sum(size * (depth + size / 2) for size, depth in pieces)
        heads, recurrent, attention = self._layers
        whole_reads, rest = divmod(tokens + decoding, self.tokens_per_read)
        read_ms = whole_reads * self._read_ms(self.tokens_per_read) + (self._read_ms(rest) if rest else 0.0)
        return {
            self.path: 2 * self.active * tokens / 1e12,
            attention: 4 * token_pairs * heads * self.shape.hidden_size / 1e12,
            "recurrent": tokens * recurrent * self.shape.hidden_size / 1e9,
            "read": read_ms,
        }

    @cached_property
    def _layers(self) -> tuple[float, int, str]:
        """Widths of all heads over the hidden size, recurrent layers, and the cost that attention has."""
        layers = self.shape.layers
        heads = sum(_relative_head_width(layer) for layer in layers)
        wide = any(isinstance(layer, FullAttention) and layer.key_dim > _WIDE_HEAD for layer in layers)
        return heads, sum(map(is_recurrent, layers)), "attention_wide" if wide else "attention"

    def prompt_terms(self, tokens: int, depth: int = 0) -> Terms:
        """Of a whole prompt, on an idle server."""
        parts: dict[str, float] = {"start": 1}
        for first in range(0, tokens, self.tokens_per_step):
            size = min(self.tokens_per_step, tokens - first)
            for name, value in self.step_terms([(size, depth + first)]).items():
                parts[name] = parts.get(name, 0.0) + value
        return parts

    def _read_ms(self, tokens: int) -> float:
        """What it takes to read the weights that this many tokens need, as a decode step reads them."""
        if tokens not in self._known_reads_ms:
            parts = terms(replace(self.reads, kv_bytes=0.0), self.bandwidth, 1, self.independence, tokens)
            self._known_reads_ms[tokens] = step_ms(self.engine, parts, self.decode_costs)[1]
        return self._known_reads_ms[tokens]

    @cached_property
    def _known_reads_ms(self) -> dict[int, float]:
        return {}


def prompt_model(model: StepModel, stored: StoredBytes) -> PromptModel | None:
    """None where formats are not known or no run used the path: a guess would be off by a factor."""
    launch, shape = model.launch, model.shape
    active = active_weights(shape, stored)
    if active is None or launch.engine not in constants().engines or launch.sparks > 1:
        return None
    fitted = fitted_costs(launch)
    path = kernel_path(shape, stored, "marlin" if launch.flags.get("linear-backend") == "marlin" else "")
    if path not in fitted.prefill.costs:
        path = path.removesuffix("_marlin")
    if path not in fitted.prefill.costs:
        return None
    independence = fitted.crowd.costs["independence"]
    return PromptModel(
        shape, model.engine, path, active, model.reads(0), model.costs, independence, model.bandwidth,
        *(_size(launch, flag, default) for flag, default in _STEP_FLAGS[launch.engine]),
    )  # fmt: skip


def _size(launch: Launch, flag: str, default: int) -> int:
    value = launch.flags.get(flag)
    return int(value) if isinstance(value, str) and value.isdigit() and int(value) else default


def prefill_speed(model: PromptModel, launch: Launch, prompt: int, cached: int = 0) -> PrefillSpeed:
    """One prompt of which the first `cached` tokens are known, on an idle server."""
    fit = fitted_costs(launch).prefill
    expected_ms = prompt_ms(model.prompt_terms(prompt - cached, cached), fit.costs)
    ttft = Band(expected_ms / fit.left_out.high, expected_ms, expected_ms / fit.left_out.low)
    rate = Band(*(1000 * (prompt - cached) / ms for ms in (ttft.high, ttft.expected, ttft.low)))
    explanation = (
        f"{fit.costs[model.path]:.0f} ms per tera-operation on the path {model.path}, fitted to "
        f"{fit.fitted.runs} runs; models left out were off by {fit.left_out.mean:.0%} on average"
    )
    first = fitted_costs(launch).first_prompts_ms
    extra = Band(max(0.0, first.low), first.expected, first.high) if first else None
    return PrefillSpeed(prompt, rate, ttft, explanation, cached, extra)


def active_weights(shape: Architecture, stored: StoredBytes) -> float | None:
    """How many weights each token of a prompt passes; None when a format is not known.

    The head does not count: only the last token of a prompt goes through it.
    """
    active = 0.0
    for (role, dtype), size in stored.items():
        if role in (Role.TOWER, Role.DRAFTER, Role.HEAD, Role.EMBEDDINGS, Role.NORMS):
            continue
        if dtype not in WEIGHTS_PER_BYTE:
            return None
        is_routed = role is Role.ROUTED_EXPERTS and shape.experts
        share = shape.experts_per_token / shape.experts if is_routed else 1
        active += size * WEIGHTS_PER_BYTE[dtype] * share
    return active


def kernel_path(shape: Architecture, stored: StoredBytes, kernels: str) -> str:
    """As `moe_4bit_marlin`: kind of model, format of most of its blocks, kernels that the launch asks for."""
    sizes: dict[str, float] = {}
    for (role, dtype), size in stored.items():
        if role in (Role.ATTENTION, Role.DENSE_MLP, Role.ROUTED_EXPERTS, Role.SHARED_EXPERT):
            width = "wide" if dtype in UNQUANTIZED else "8bit" if dtype in _EIGHT_BITS else "4bit"
            sizes[width] = sizes.get(width, 0.0) + size
    width = max(sizes, key=lambda name: sizes[name], default="wide")
    suffix = f"_{kernels}" if kernels and width != "wide" else ""
    return f"{'moe' if shape.experts else 'dense'}_{width}{suffix}"


def _relative_head_width(layer: Layer) -> float:
    """Assumed width of all heads over the hidden size: shapes only tell the heads of the KV cache."""
    if isinstance(layer, FullAttention):
        return max(1.0, layer.key_dim / 128)
    return 1.0 if isinstance(layer, LatentAttention) else 0.0


def prompt_ms(parts: Terms, costs: Mapping[str, float]) -> float:
    """`costs` are milliseconds per tera-operation, per start, and for a millisecond of reading."""
    return sum(size * costs[name] for name, size in parts.items())


# --- sound ---
#
# Requests of 30 seconds, one after another: a pass of the encoder, a short prompt where a language model
# follows it, and a decode step for each token of the text. No run of such a model on a GB10 is published,
# so the costs are those of language models: the encoder computes as a dense prompt does, and the text is
# decoded at the predicted rate.

SOUND_S = 30
_TEXT_TOKENS = (50, 100, 150)
"""In half a minute of speech: 60, 75 and 110 words at one and a third to one and a half tokens a word."""
_SLOWER = 2.0
"""Encoders run without CUDA graphs, while the CPU decodes sound; what that costs has
not been measured."""


def with_speech(speed: Speed, speech: Speech, stored: StoredBytes) -> Speed:
    """Requests a second instead of everything that is said of decoding."""
    towers = {dtype: size for (role, dtype), size in stored.items() if role is Role.TOWER}
    encoder = sum(size * WEIGHTS_PER_BYTE.get(dtype, 0.5) for dtype, size in towers.items())
    costs = constants().engines["vllm"].prefill.costs
    before_ms = costs["start"] + 2 * encoder * speech.encoder_positions / 1e12 * costs["dense_wide"]
    if speed.prefill:
        before_ms += speed.prefill.ttft_ms.expected * speech.prompt_tokens / speed.prefill.prompt_tokens
    least, usual, most = (before_ms + 1000 * n / speed.decode_tokens_per_s.expected for n in _TEXT_TOKENS)
    return replace(
        speed,
        requests_per_s=Band(1000 / (_SLOWER * most), 1000 / usual, 1000 / least),
        sound_s=SOUND_S,
        basis="fitted",
        explanation=(
            f"no run of a speech model on a GB10 is published: its encoder as a dense prompt, and "
            f"{_TEXT_TOKENS[1]} tokens of text ({_TEXT_TOKENS[0]} to {_TEXT_TOKENS[2]}) at the rate of a "
            f"language model that reads as much; the low end takes twice as long"
        ),
        at_depth=(), batch=None, drafted=(), served=None, prefill=None,
    )  # fmt: skip
