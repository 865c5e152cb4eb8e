"""The usual layouts: what a checkpoint looks like when only its label is known.

`nvfp4` on a label says nothing of the head, the router or the embedding, which quantizers leave alone. These
are the layouts that the tools write unless told otherwise; a real checkpoint may keep more in high precision,
so bytes by these are assumed, and say so. GGUF labels follow llama.cpp's own rules (`src/llama-quant.cpp`): a
better type for the head, and for half of the value and down projections.
"""

from __future__ import annotations

import re
from math import prod

from firesteel.errors import UsageError
from firesteel.facts.ggml_types import GGML_TYPES
from firesteel.facts.groups import Group
from firesteel.facts.parameters import Parameters
from firesteel.facts.quantization import (
    FP8,
    FP8_ROWS,
    INT8_ROWS,
    MXFP4,
    NF4,
    NVFP4,
    Modules,
    Quantization,
    WeightFormat,
    assumed_weights,
    fp8_block,
)
from firesteel.facts.tensors import Role, Weights

_INT4 = WeightFormat("int4", 4, 128, 20)
"""A 16-bit scale and a 4-bit zero point for 128 values, as AutoAWQ and AutoGPTQ write them."""
_HEAD = Modules(frozenset({"lm_head"}))
_EXPERTS = Modules(frozenset({"experts"}))

_PLAIN = ("bf16", "fp16", "none")
_ALIASES = {"f16": "fp16", "float16": "fp16", "bfloat16": "bf16", "w4a16": "int4", "w8a8": "int8"}
_LAYOUTS: dict[str, Quantization] = {
    "fp8": Quantization("fp8", FP8, ignored=_HEAD, converts_head=False),
    "fp8-block": Quantization("fp8", fp8_block(128, 128), ignored=_HEAD, converts_head=False),
    "fp8-dynamic": Quantization("compressed-tensors", FP8_ROWS, ignored=_HEAD, converts_head=False),
    "nvfp4": Quantization("modelopt", NVFP4, ignored=_HEAD, converts_head=False),
    "mxfp4": Quantization("mxfp4", None, others=((_EXPERTS, MXFP4),), converts_head=False),
    "int8": Quantization("compressed-tensors", INT8_ROWS, ignored=_HEAD, converts_head=False),
    "int4": Quantization("compressed-tensors", _INT4, ignored=_HEAD, converts_head=False),
    "awq": Quantization("awq", _INT4, ignored=_HEAD, converts_head=False),
    "gptq": Quantization("gptq", _INT4, ignored=_HEAD, converts_head=False),
    "nf4": Quantization("bitsandbytes", NF4, ignored=_HEAD, converts_head=False),
}
_GGUF = {
    "q8_0": ("Q8_0", "Q8_0", "Q8_0"),
    "q6_k": ("Q6_K", "Q6_K", "Q6_K"),
    "q5_k_m": ("Q5_K", "Q6_K", "Q6_K"),
    "q4_k_m": ("Q4_K", "Q6_K", "Q6_K"),
    "q4_0": ("Q4_0", "Q4_0", "Q6_K"),
}
"""Most tensors, the better half of `attn_v` and `ffn_down`, and the head."""
_BLOCKS = {name: (elements, size) for name, elements, size in GGML_TYPES.values()}
LABELS = (*_PLAIN[:2], *_LAYOUTS, *_GGUF)


def is_gguf(label: str) -> bool:
    return label.lower() in _GGUF


def usual_weights(parameters: Parameters, label: str, source: str) -> Weights:
    """Bytes by role for a label; UsageError for one that is not known."""
    name = _ALIASES.get(label.lower(), label.lower())
    if name in _PLAIN:
        return assumed_weights(parameters, None, f"{source}, as BF16")
    if name == "mxfp4" and not parameters.experts:
        all_linear = Quantization("mxfp4", MXFP4, ignored=_HEAD, converts_head=False)
        return assumed_weights(parameters, all_linear, f"{source} and MXFP4 in every linear layer")
    if name in _LAYOUTS:
        return assumed_weights(parameters, _LAYOUTS[name], f"{source} and the usual layout of {name}")
    if name in _GGUF:
        return _gguf_weights(parameters, *_GGUF[name], f"{source} and llama.cpp's rules for {name.upper()}")
    raise UsageError(f"`{label:.40}` is no quantization that is known", next=f"--quant {', '.join(LABELS)}")


def heavier_weights(parameters: Parameters, label: str, source: str) -> Weights | None:
    """NVFP4 checkpoints in circulation keep their attention in 16 bits as often as not."""
    if label.lower() != "nvfp4":
        return None
    kept = Modules(frozenset({"lm_head", "self_attn", "linear_attn", "attention", "mixer", "shared_expert"}))
    layout = Quantization("modelopt", NVFP4, ignored=kept, converts_head=False)
    return assumed_weights(parameters, layout, f"{source}, NVFP4 with attention in BF16")


def _gguf_weights(parameters: Parameters, most: str, better: str, head: str, source: str) -> Weights:
    by_role: dict[Role, int] = {}
    by_format: dict[tuple[Role, str], int] = {}
    layers = 1 + max((_layer(group) for group in parameters.groups), default=0)
    for group in parameters.groups:
        kind = _gguf_type(group, layers, most, better, head)
        elements, size = _BLOCKS[kind]
        took = group.count * prod(group.shape) * size // elements
        by_role[group.role] = by_role.get(group.role, 0) + took
        by_format[group.role, kind] = by_format.get((group.role, kind), 0) + took
    return Weights(by_role, "derived", source, parameters.tied_head, by_format)


def _gguf_type(group: Group, layers: int, most: str, better: str, head: str) -> str:
    if len(group.shape) < 2 or group.part in ("norm", "router"):
        return "F32"
    if group.part == "head" or (group.part == "embedding" and group.role is Role.HEAD):
        return head
    if group.name.endswith(("v_proj", "down_proj", ".w2")) and _gets_more(_layer(group), layers):
        return better
    return most


def _gets_more(layer: int, layers: int) -> bool:
    """The first eighth, the last, and every third in between."""
    edge = layers // 8
    return layer < edge or layer >= 7 * layers // 8 or (layer - edge) % 3 == 2


def _layer(group: Group) -> int:
    found = re.search(r"layers\.(\d+)\.", group.name)
    return int(found[1]) if found else 0
