"""How fast a prompt is processed, and how long until the first token.

Prompt processing is arithmetic: two operations per weight and token, and for attention two per pair of
tokens and channel. The share of the GPU's arithmetic that an engine reaches differs fivefold by kernel, so
there is one cost for each engine, kind of model and width of weights, fitted to published first-token times
by `scripts/calibrate`. Kernels change with every release, so the band is wide.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.facts import Architecture, FullAttention, Layer, Role
from firesteel.facts.model.architecture import LatentAttention
from firesteel.launch import Launch
from firesteel.planner.band import Band
from firesteel.planner.speed.constants import constants
from firesteel.planner.speed.decode import UNQUANTIZED, WEIGHTS_PER_BYTE, StoredBytes, Terms, is_recurrent
from firesteel.planner.speed.speed import PrefillSpeed

_EIGHT_BITS = {"F8_E4M3", "F8_E5M2", "I8", "Q8_0", "FP8", "INT8", "8-BIT"}
_PROMPT_TOKENS = 8192


def prefill_speed(
    launch: Launch, shape: Architecture, stored: StoredBytes, context: int
) -> PrefillSpeed | None:
    """None where formats are not known or no run used the path: a guess would be off by a factor."""
    active = active_weights(shape, stored)
    if active is None or launch.engine not in constants().engines or launch.sparks > 1:
        return None
    fit = constants().engines[launch.engine].prefill
    prompt = min(_PROMPT_TOKENS, context)
    path = kernel_path(shape, stored, "marlin" if launch.flags.get("linear-backend") == "marlin" else "")
    if path not in fit.costs:
        path = path.removesuffix("_marlin")
    expected_ms = ttft_ms(prefill_terms(shape, path, active, prompt), fit.costs)
    if expected_ms is None:
        return None
    ttft = Band(expected_ms / fit.left_out.high, expected_ms, expected_ms / fit.left_out.low)
    rate = Band(*(1000 * prompt / ms for ms in (ttft.high, ttft.expected, ttft.low)))
    explanation = (
        f"{fit.costs[path]:.0f} ms per tera-operation on the path {path}, fitted to {fit.fitted.runs} runs; "
        f"models left out were off by {fit.left_out.mean:.0%} on average"
    )
    return PrefillSpeed(prompt, rate, ttft, explanation)


def active_weights(shape: Architecture, stored: StoredBytes) -> float | None:
    """How many weights each token of a prompt passes; None when a format does not tell.

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


def prefill_terms(shape: Architecture, path: str, active: float, prompt: int, depth: int = 0) -> Terms:
    """Tera-operations of matrices and attention, giga-channels through recurrent layers, and one start.

    `depth` tokens precede the prompt.
    """
    token_pairs = prompt * (depth + prompt / 2)
    heads = sum(_relative_head_width(layer) for layer in shape.layers)
    recurrent = sum(1 for layer in shape.layers if is_recurrent(layer))
    return {
        path: 2 * active * prompt / 1e12,
        "attention": 4 * token_pairs * heads * shape.hidden_size / 1e12,
        "recurrent": prompt * recurrent * shape.hidden_size / 1e9,
        "start": 1,
    }


def _relative_head_width(layer: Layer) -> float:
    """Assumed width of all heads over the hidden size: shapes only tell the heads of the KV cache."""
    if isinstance(layer, FullAttention):
        return max(1.0, layer.key_dim / 128)
    return 1.0 if isinstance(layer, LatentAttention) else 0.0


def ttft_ms(parts: Terms, costs: Mapping[str, float]) -> float | None:
    """None for a path without runs. `costs` are milliseconds per tera-operation, and per start."""
    if any(name not in costs for name in parts):
        return None
    return sum(size * costs[name] for name, size in parts.items())
