"""Stored tensors -> FP32, by format. Arrays hold the bits as they are on disk.

    dtype on disk   BF16    F16       F32       F8_E4M3   U8
    array of        uint16  float16   float32   uint8     uint8

`as_array` makes them from bytes. A block of rows may be given in place of a matrix, with the scales of the
same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firesteel.workshop.kernels.reference import (
    F32,
    U8,
    bf16_to_f32,
    e2m1_to_f32,
    e4m3_to_f32,
    e8m0_to_f32,
    unpack_nibbles,
)

ARRAY_TYPES: Mapping[str, type[Any]] = {
    "BF16": np.uint16, "F16": np.float16, "F32": np.float32, "F64": np.float64, "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8, "U8": np.uint8, "I8": np.int8, "BOOL": np.uint8, "I32": np.int32, "I64": np.int64,
}  # fmt: skip


def as_array(data: Any, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The bytes of a tensor as an array, without a copy."""
    return np.frombuffer(data, ARRAY_TYPES[dtype]).reshape(shape)


def to_f32(array: NDArray[Any], dtype: str) -> F32:
    """A plain tensor, or the scales of another."""
    if dtype == "BF16":
        return bf16_to_f32(array)
    if dtype == "F8_E4M3":
        return e4m3_to_f32(array)
    if dtype == "F8_E8M0":
        return e8m0_to_f32(array)
    return array.astype(np.float32)


def fp8(weight: U8, scale: F32) -> F32:
    """One scale for the tensor ([1] or scalar) or for each row ([rows, 1])."""
    return e4m3_to_f32(weight) * scale.reshape(-1, 1)


def fp8_block(weight: U8, scale: F32, block: tuple[int, int] = (128, 128), first: int = 0) -> F32:
    """compressed-tensors' `weight_scale`, or the `weight_scale_inv` of DeepSeek's and Qwen's FP8.

    `first`: which row of its block the first row is."""
    rows, columns = weight.shape
    by_row = np.repeat(scale, block[0], axis=0)[first : first + rows]
    return e4m3_to_f32(weight) * np.repeat(by_row, block[1], axis=1)[:, :columns]


def nvfp4(packed: U8, scale: U8, multiplier: float, group_size: int = 16) -> F32:
    """`multiplier`: ModelOpt's `weight_scale_2`, or 1 / compressed-tensors' `weight_global_scale`."""
    values = e2m1_to_f32(unpack_nibbles(packed))
    scales = e4m3_to_f32(scale) * np.float32(multiplier)
    return values * np.repeat(scales, group_size, axis=-1)


def mxfp4(packed: U8, scale: U8, group_size: int = 32) -> F32:
    return e2m1_to_f32(unpack_nibbles(packed)) * np.repeat(e8m0_to_f32(scale), group_size, axis=-1)
