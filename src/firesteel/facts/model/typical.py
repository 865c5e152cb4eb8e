"""Typical layouts: the bytes of a checkpoint when only its quantization label is known.

The label `nvfp4` does not cover the head, the router or the embedding, which quantizers leave alone. These
are the layouts that the tools write by default; a real checkpoint may keep more in high precision, so these
bytes are an assumption, and their source says so. GGUF labels follow llama.cpp's own rules, in
`gguf_labels.py`.
"""

from __future__ import annotations

import re

from firesteel.errors import UsageError
from firesteel.facts.formats.gguf_labels import BASE_TYPES, NEEDS_IMATRIX, StoredType, stored_types
from firesteel.facts.model.parameters import ParameterGroups
from firesteel.facts.model.quantization import (
    FP8,
    FP8_ROWS,
    INT8_ROWS,
    MXFP4,
    NF4,
    NVFP4,
    ModulePatterns,
    Quantization,
    WeightFormat,
    fp8_block,
    weights_of_config,
)
from firesteel.facts.model.tensors import Tensor, Weights, sum_weights
from firesteel.values import replace

_INT4 = WeightFormat("int4", 4, 128, 20)
"""A 16-bit scale and a 4-bit zero point for 128 values, as AutoAWQ and AutoGPTQ write them."""
_HEAD = ModulePatterns(frozenset({"lm_head"}))
_EXPERTS = ModulePatterns(frozenset({"experts"}))

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
_GGUF_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "mxfp4-moe": "mxfp4_moe"}
"""As `llama-quantize` reads them."""
_DYNAMIC = re.compile(r"ud-(i?q[1-8])(_[a-z0-9]+)*")
_DYNAMIC_SPREAD = (0.85, 1.25)
"""Of what llama.cpp's own rules give for the label. Unsloth picks types tensor by tensor: files of
UD-Q4_K_XL are 0.91 to 1.07 of Q4_K_M for Qwen3.5 of 27 B to 397 B, by the sizes that
https://github.com/ggml-org/Llama-macOS/pull/63 lists, seen 2026-11-15."""
_DYNAMIC_BASES = {
    "q8": "q8_0", "q6": "q6_k", "q5": "q5_k_m", "q4": "q4_k_m", "q3": "q3_k_m", "q2": "q2_k", "iq4": "iq4_xs",
    "iq3": "iq3_s", "iq2": "iq2_m", "iq1": "iq1_m",
}  # fmt: skip
LABELS = (*_PLAIN[:2], *_LAYOUTS, *BASE_TYPES)
"""Also accepted: `ud-` before a GGUF label, Unsloth's dynamic types, with a wide band."""


def is_gguf(label: str) -> bool:
    return _gguf_label(label) is not None


def _gguf_label(label: str) -> str | None:
    """llama.cpp's own name for a label; for a dynamic one, the nearest label of llama.cpp."""
    name = label.lower()
    dynamic = _DYNAMIC.fullmatch(name)
    if dynamic:
        return name[3:] if name[3:] in BASE_TYPES else _DYNAMIC_BASES.get(dynamic[1])
    name = _GGUF_ALIASES.get(name, name)
    return name if name in BASE_TYPES else None


def typical_weights(parameters: ParameterGroups, label: str, source: str) -> Weights:
    """Bytes by role for a label; UsageError for one that is not known."""
    name = _ALIASES.get(label.lower(), label.lower())
    if name in _PLAIN:
        return weights_of_config(parameters, None, f"{source}, as BF16")
    if name == "mxfp4" and not parameters.experts:
        all_linear = Quantization("mxfp4", MXFP4, ignored=_HEAD, converts_head=False)
        return weights_of_config(parameters, all_linear, f"{source} and MXFP4 in every linear layer")
    if name in _LAYOUTS:
        return weights_of_config(parameters, _LAYOUTS[name], f"{source} and the usual layout of {name}")
    if base := _gguf_label(name):
        return _gguf_weights(parameters, base, name, source)
    raise UsageError(f"`{label:.40}` is not a known quantization", next=f"--quant {', '.join(LABELS)}")


def heavier_weights(parameters: ParameterGroups, label: str, source: str) -> Weights | None:
    """About half of the published NVFP4 checkpoints keep their attention in 16 bits."""
    if label.lower() != "nvfp4":
        return None
    kept = ModulePatterns(
        frozenset({"lm_head", "self_attn", "linear_attn", "attention", "mixer", "shared_expert"})
    )
    layout = Quantization("modelopt", NVFP4, ignored=kept, converts_head=False)
    return weights_of_config(parameters, layout, f"{source}, NVFP4 with attention in BF16")


def _gguf_weights(parameters: ParameterGroups, base: str, label: str, source: str) -> Weights:
    """As llama.cpp's quantizer would write it, and how much files with that label differ from it."""
    with_imatrix = base in NEEDS_IMATRIX
    tensors = list(stored_types(parameters, base, with_imatrix))
    description = f"{source} and llama.cpp's rules for {base.upper()}"
    if label.startswith("ud-"):
        low, high = _DYNAMIC_SPREAD
        description += f"; {label.upper()} picks types tensor by tensor: {low:.0%} to {high:.0%} of that"
        spread = low, high
    else:
        spread = _spread(parameters, base, tensors)
    rows = (Tensor(row.group.name, row.type, row.group.shape, row.bytes, row.group.role) for row in tensors)
    weights = sum_weights(rows, "derived", description)
    return replace(weights, tied_head=parameters.tied_head, spread=spread)


def _spread(parameters: ParameterGroups, base: str, tensors: list[StoredType]) -> tuple[float, float]:
    """Files are made with an importance matrix or without; some keep embeddings and head in Q8_0, some have a
    smaller type where rows do not fit a block: 65.1 GiB for Nemotron-3-Super, where the rules give 80."""
    total = sum(tensor.bytes for tensor in tensors)
    others = [
        sum(tensor.bytes for tensor in stored_types(parameters, base, imatrix)) for imatrix in (False, True)
    ]
    tables = [tensor for tensor in tensors if tensor.group.part in ("head", "embedding")]
    richer = sum(max(tensor.bytes, replace(tensor, type="Q8_0").bytes) - tensor.bytes for tensor in tables)
    metadata = 0.005 if total > 2e9 else 0.02  # the vocabulary and its merges are in the same file
    lean = sum(
        min(0, replace(tensor, type=BASE_TYPES[base]).bytes - tensor.bytes)
        for tensor in tensors
        if tensor.fell_back
    )
    return (min(others) + lean) / total, (max(*others, total) + richer) / total + metadata
