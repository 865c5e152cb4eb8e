"""The formats that `quantize` writes: what a matrix becomes on disk, and the `quantization_config` for it.

Layouts as llm-compressor 0.14.0.1 with compressed-tensors 0.19 writes them, seen 2026-11-16 in its files
(`scripts/record-quantize-oracle`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Literal

from firesteel.facts.model.tensors import Role
from firesteel.values import Value

Scheme = Literal["fp8-rows", "fp8-block", "nvfp4", "nvfp4-w4a4", "mxfp4"]
"""How one matrix is stored."""
FP8_BLOCK, NVFP4_GROUP, MXFP4_GROUP = 128, 16, 32
PINNED_INPUT_SCALE = 1.0
"""W4A4 without data: activations up to 2688 are representable. ModelOpt 0.46's recipe
`nvfp4_experts_only_input_scale1`, seen 2026-11-15."""


class OutputTensor(Value):
    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class QuantizedFormat(Value):
    name: str
    about: str
    scheme: Scheme
    attention_scheme: Scheme | None = None
    """Where attention is stored differently."""

    def scheme_of(self, role: Role) -> Scheme:
        return self.attention_scheme if self.attention_scheme and role is Role.ATTENTION else self.scheme


FORMATS: Mapping[str, QuantizedFormat] = {
    format.name: format
    for format in (
        QuantizedFormat("fp8-dynamic", "8 bits, a scale a row; activations in 8 bits", "fp8-rows"),
        QuantizedFormat("fp8-block", "8 bits, a scale for 128 x 128; activations in 8 bits", "fp8-block"),
        QuantizedFormat("nvfp4", "4 bits, a scale for 16; activations in 16 bits", "nvfp4"),
        QuantizedFormat(
            "nvfp4-spark", "NVFP4 for MLP, experts and head, FP8 for attention", "nvfp4", "fp8-rows"
        ),
        QuantizedFormat(
            "nvfp4-w4a4", "NVFP4 with activations in 4 bits, their scale pinned, not measured", "nvfp4-w4a4"
        ),
        QuantizedFormat("mxfp4", "4 bits, a power of two for 32; activations in 16 bits", "mxfp4"),
    )
}


def why_not(scheme: Scheme, shape: tuple[int, int]) -> str | None:
    """Why a matrix cannot be stored so; None: it can."""
    group = {"nvfp4": NVFP4_GROUP, "nvfp4-w4a4": NVFP4_GROUP, "mxfp4": MXFP4_GROUP}.get(scheme, 1)
    if shape[1] % group:
        return f"its {shape[1]:,} columns are not a multiple of {group}"
    return None if all(shape) else "it is empty"


def is_nvfp4(scheme: Scheme) -> bool:
    return scheme in ("nvfp4", "nvfp4-w4a4")


def outputs(module: str, scheme: Scheme, shape: tuple[int, int], is_bf16: bool) -> tuple[OutputTensor, ...]:
    """The tensors of a quantized matrix: values, scales, and for NVFP4 the global scales."""
    rows, columns = shape
    scale_dtype = "BF16" if is_bf16 else "F32"
    if scheme == "fp8-rows":
        return (
            _tensor(f"{module}.weight", "F8_E4M3", shape),
            _tensor(f"{module}.weight_scale", scale_dtype, (rows, 1)),
        )
    if scheme == "fp8-block":
        blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        return (
            _tensor(f"{module}.weight", "F8_E4M3", shape),
            _tensor(f"{module}.weight_scale", scale_dtype, blocks),
        )
    packed = _tensor(f"{module}.weight_packed", "U8", (rows, columns // 2))
    if scheme == "mxfp4":
        return packed, _tensor(f"{module}.weight_scale", "U8", (rows, columns // MXFP4_GROUP))
    scale = _tensor(f"{module}.weight_scale", "F8_E4M3", (rows, columns // NVFP4_GROUP))
    tensors = (packed, scale, _tensor(f"{module}.weight_global_scale", "F32", (1,)))
    return tensors if scheme == "nvfp4" else (*tensors, _tensor(f"{module}.input_global_scale", "F32", (1,)))


_ITEM_BYTES = {"F8_E4M3": 1, "U8": 1, "BF16": 2, "F32": 4}


def _tensor(name: str, dtype: str, shape: tuple[int, ...]) -> OutputTensor:
    return OutputTensor(name, dtype, shape, prod(shape) * _ITEM_BYTES[dtype])


# --- quantization_config ---

_WEIGHTS: Mapping[Scheme, Mapping[str, Any]] = {
    "fp8-rows": {"num_bits": 8, "strategy": "channel"},
    "fp8-block": {"num_bits": 8, "strategy": "block", "block_structure": [FP8_BLOCK, FP8_BLOCK]},
    "nvfp4": {
        "num_bits": 4,
        "strategy": "tensor_group",
        "group_size": 16,
        "scale_dtype": "torch.float8_e4m3fn",
    },
    "mxfp4": {"num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
}
_INPUTS: Mapping[Scheme, Mapping[str, Any] | None] = {
    "fp8-rows": {"num_bits": 8, "strategy": "token", "dynamic": True},
    "fp8-block": {"num_bits": 8, "strategy": "group", "group_size": FP8_BLOCK, "dynamic": True},
    "nvfp4-w4a4": {**_WEIGHTS["nvfp4"], "dynamic": "local"},
}
_DEFAULTS: Mapping[str, Any] = {
    "actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "observer": None,
    "observer_kwargs": {}, "scale_dtype": None, "symmetric": True, "type": "float", "zp_dtype": None,
}  # fmt: skip
_COMPRESSION: Mapping[Scheme, str] = {
    "fp8-rows": "float-quantized",
    "fp8-block": "float-quantized",
    "nvfp4": "nvfp4-pack-quantized",
    "nvfp4-w4a4": "nvfp4-pack-quantized",
    "mxfp4": "mxfp4-pack-quantized",
}


def quantization_config(
    targets: Mapping[Scheme, Sequence[str]], ignore: Iterable[str], version: str
) -> dict[str, object]:
    """For config.json. `targets` are the modules of each scheme, as names, patterns or `Linear`."""
    compressions = {_COMPRESSION[scheme] for scheme in targets}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": compressions.pop() if len(compressions) == 1 else "mixed-precision",
        "config_groups": {
            f"group_{number}": _group(scheme, modules)
            for number, (scheme, modules) in enumerate(targets.items())
        },
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "version": version,
    }


def _group(scheme: Scheme, targets: Sequence[str]) -> dict[str, object]:
    inputs = _INPUTS.get(scheme)
    weights = _WEIGHTS["nvfp4" if is_nvfp4(scheme) else scheme]
    return {
        "targets": list(targets),
        "format": _COMPRESSION[scheme],
        "weights": dict(sorted({**_DEFAULTS, **weights}.items())),
        "input_activations": dict(sorted({**_DEFAULTS, **inputs}.items())) if inputs else None,
        "output_activations": None,
    }
