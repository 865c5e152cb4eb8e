"""The kernels against llm-compressor: the same bits, except in experts in NVFP4.

`oracle.json` holds digests of its tensors, recorded by `scripts/record-quantize-oracle`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firesteel.facts.model.tensors import scale_groups
from firesteel.workshop.kernels import reference
from tests.workshop import made_checkpoints as made

ORACLE = json.loads(Path(__file__).with_name("oracle.json").read_text())
MODELS = {"llama": made.llama, "llama-f32": made.llama_f32, "qwen3_moe": made.qwen3_moe}
CASES = [case for case in ORACLE if " " in case]


def digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_as_llm_compressor(case: str) -> None:
    model, format = case.split()
    tensors, theirs = MODELS[model](), ORACLE[case]["tensors"]
    linear = [
        name.removesuffix(".weight")
        for name in tensors
        if f"{name}_scale" in theirs or f"{name}_packed" in theirs
    ]
    assert linear
    for group in scale_groups(linear):
        weights = {name: tensors[f"{name}.weight"] for name in group}
        largest = max(reference.amax(weight) for weight in weights.values())
        for name, weight in weights.items():
            for leaf, array in quantized(format, weight, largest).items():
                assert digest(array) == theirs[f"{name}.{leaf}"][2], f"{name}.{leaf}"


def quantized(format: str, weight: NDArray[Any], largest: float) -> dict[str, NDArray[Any]]:
    if format == "nvfp4":
        divisor = reference.global_scale(largest, weight.dtype == np.uint16)
        result = reference.nvfp4(weight, divisor)
        return {
            "weight_packed": result.values,
            "weight_scale": result.scales,
            "weight_global_scale": np.array([divisor], np.float32),
        }
    if format == "mxfp4":
        result = reference.mxfp4(weight)
        return {"weight_packed": result.values, "weight_scale": result.scales}
    result = reference.fp8_rows(weight) if format == "fp8-dynamic" else reference.fp8_block(weight)
    return {"weight": result.values, "weight_scale": result.scales}
