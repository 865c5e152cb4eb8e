"""The modules of a checkpoint as they are stored: a weight with its scales, and the format that they make.

    model.layers.0.mlp.up_proj   weight_packed U8, weight_scale F8_E4M3, weight_global_scale F32   -> nvfp4

The format is read from the tensors alone, so that it can be compared with what the config claims. Suffixes as
compressed-tensors 0.17, ModelOpt 0.45, AutoGPTQ and AutoAWQ write them, seen 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from firesteel.facts.model.tensors import Role, Tensor
from firesteel.values import Value

WrittenAs = Literal["compressed-tensors", "modelopt", "block-fp8", "mxfp4-blocks", "gptq-awq", "fp8", "plain"]
StoredFormat = Literal["nvfp4", "mxfp4", "mxfp8", "fp8", "int", "plain", "other"]

SCALES = frozenset(
    {
        "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale", "input_scale",
        "input_global_scale", "k_scale", "v_scale", "q_scale", "scale", "scales",
    }
)  # fmt: skip
GLOBAL_SCALES = ("weight_global_scale", "weight_scale_2")
_PARTS = SCALES | {
    "weight", "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx", "bias", "qweight",
    "qzeros", "g_idx", "blocks", "pre_quant_scale", "output_scale", "prob_output_scale",
}  # fmt: skip
_FUSED_PARTS = re.compile(
    r"(.*\.(?:gate_up_proj|down_proj|up_proj|gate_proj))_(blocks|scales|bias|weight_scale_2|weight_scale_inv|"
    r"weight_scale|weight_global_scale|input_scale|input_global_scale|weight_packed)\Z"
)
"""Experts that are stored in one tensor have no `.weight`: `experts.gate_up_proj`, `..._blocks`."""
_EXPERT = re.compile(r"(\.experts\.)\d+(\.)")
PLAIN_TYPES = frozenset({"BF16", "F16", "F32", "F64"})


class StoredModule(Value):
    name: str
    role: Role
    parts: Mapping[str, Tensor]

    @property
    def weight(self) -> Tensor | None:
        for part in ("weight", "weight_packed", "qweight", "blocks"):
            if part in self.parts:
                return self.parts[part]
        return None

    @property
    def global_scale(self) -> Tensor | None:
        return next((self.parts[part] for part in GLOBAL_SCALES if part in self.parts), None)

    @property
    def is_quantized(self) -> bool:
        return self.format != "plain"

    @property
    def is_matrix(self) -> bool:
        """Something that a quantizer could have converted; norms, biases and convolutions are not."""
        weight = self.weight
        if weight is None or len(weight.shape) < 2 or self.role is Role.NORMS:
            return False
        return min(weight.shape[-2:]) > 16 and "conv1d" not in self.name

    @property
    def format(self) -> StoredFormat:
        weight = self.weight
        if weight is None:
            return "other" if SCALES & self.parts.keys() else "plain"
        scale = self.parts.get("weight_scale") or self.parts.get("scales")
        is_exponents = scale is not None and scale.dtype in ("U8", "F8_E8M0")
        if "blocks" in self.parts:
            return "mxfp4"
        if "qweight" in self.parts or weight.dtype in ("I8", "I32", "U32"):
            return "int"
        if weight.dtype in ("U8", "F4"):
            return "mxfp4" if is_exponents and self.global_scale is None else "nvfp4"
        if weight.dtype == "F8_E4M3":
            return "mxfp8" if is_exponents else "fp8"
        return "plain" if weight.dtype in PLAIN_TYPES else "other"

    @property
    def layout(self) -> WrittenAs:
        """Who wrote it."""
        if "blocks" in self.parts:
            return "mxfp4-blocks"
        if "weight_packed" in self.parts or "weight_global_scale" in self.parts:
            return "compressed-tensors"
        if "qweight" in self.parts:
            return "gptq-awq"
        if "weight_scale_2" in self.parts or self.format == "nvfp4":
            return "modelopt"
        if "weight_scale_inv" in self.parts:
            return "block-fp8"
        return "fp8" if self.is_quantized else "plain"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of the weight before packing; None where the stored shape does not show it."""
        weight = self.weight
        if weight is None or self.format in ("int", "other") or "blocks" in self.parts:
            return None
        if weight.dtype == "U8":
            return (*weight.shape[:-1], weight.shape[-1] * 2) if weight.shape else None
        return weight.shape


def split_name(name: str) -> tuple[str, str]:
    """The module, and the part of it that a tensor is."""
    module, _, part = name.rpartition(".")
    if part in _PARTS and module:
        return module, part
    if fused := _FUSED_PARTS.match(name):
        return fused[1], fused[2]
    return name, "weight"


def stored_modules(tensors: Iterable[Tensor]) -> dict[str, StoredModule]:
    """By name, in the order of the files."""
    parts: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        module, part = split_name(tensor.name)
        parts.setdefault(module, {})[part] = tensor
    return {name: StoredModule(name, next(iter(own.values())).role, own) for name, own in parts.items()}


def same_in_every_expert(name: str) -> str:
    """The name with expert 0 in the place of any: a layer's experts are stored alike."""
    return _EXPERT.sub(r"\g<1>0\2", name)
