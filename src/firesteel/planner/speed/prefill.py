"""How fast a prompt is read, and how long until the first token.

Reading a prompt is arithmetic: two operations a weight and token, and for attention two a pair of tokens
and channel. What of the GPU's arithmetic an engine reaches differs fivefold by kernel, so there is one
figure for each engine, kind of model and width of weights, fitted to published first-token times by
`scripts/calibrate`. Kernels change with every release; the band is wide, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.facts import Architecture, FullAttention, Layer, Role
from firesteel.facts.model.architecture import LatentAttention
from firesteel.planner.speed.decode import WEIGHTS_PER_BYTE, WIDE, Stored, Terms, is_recurrent

_EIGHT_BITS = {"F8_E4M3", "F8_E5M2", "I8", "Q8_0", "FP8", "INT8", "8-BIT"}


def active_weights(shape: Architecture, weights: Stored) -> float | None:
    """Weights that each token of a prompt passes; None when a format does not tell how many there are.

    The head is left out: of a prompt, only the last token goes through it.
    """
    found = 0.0
    for (role, dtype), size in weights.items():
        if role in (Role.TOWER, Role.DRAFTER, Role.HEAD, Role.EMBEDDINGS, Role.NORMS):
            continue
        if dtype not in WEIGHTS_PER_BYTE:
            return None
        share = (
            shape.experts_per_token / shape.experts if role is Role.ROUTED_EXPERTS and shape.experts else 1
        )
        found += size * WEIGHTS_PER_BYTE[dtype] * share
    return found


def kernel_path(shape: Architecture, weights: Stored, kernels: str) -> str:
    """`moe_4bit_marlin`: the kind of model, the format of most of its blocks, and the kernels asked for."""
    sizes: dict[str, float] = {}
    for (role, dtype), size in weights.items():
        if role in (Role.ATTENTION, Role.DENSE_MLP, Role.ROUTED_EXPERTS, Role.SHARED_EXPERT):
            width = "wide" if dtype in WIDE else "8bit" if dtype in _EIGHT_BITS else "4bit"
            sizes[width] = sizes.get(width, 0.0) + size
    width = max(sizes, key=lambda each: sizes[each], default="wide")
    asked = f"_{kernels}" if kernels and width != "wide" else ""
    return f"{'moe' if shape.experts else 'dense'}_{width}{asked}"


def prefill_terms(shape: Architecture, path: str, active: float, prompt: int, depth: int = 0) -> Terms:
    """Tera-operations of matrices and attention, giga-channels through recurrent layers, and one start.

    `depth` tokens are there before the prompt.
    """
    seen = prompt * (depth + prompt / 2)
    heads = sum(_head_width(layer) for layer in shape.layers)
    recurrent = sum(1 for layer in shape.layers if is_recurrent(layer))
    return {
        path: 2 * active * prompt / 1e12,
        "attention": 4 * seen * heads * shape.hidden_size / 1e12,
        "recurrent": prompt * recurrent * shape.hidden_size / 1e9,
        "start": 1,
    }


def _head_width(layer: Layer) -> float:
    """How much wider than the hidden size the heads are taken to be: shapes tell only those of the cache."""
    if isinstance(layer, FullAttention):
        return max(1.0, layer.key_dim / 128)
    return 1.0 if isinstance(layer, LatentAttention) else 0.0


def ttft_ms(parts: Terms, costs: Mapping[str, float]) -> float | None:
    """None for a path that no run has shown. `costs` are milliseconds a tera-operation, and of a start."""
    if any(name not in costs for name in parts):
        return None
    return sum(size * costs[name] for name, size in parts.items())
