"""Formats of quantized tensors, written a second time and as plainly as possible: an oracle for tests.

E4M3 and E2M1 by search over all codes, half to even. Slow, and obviously right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "F64": 8, "I32": 4}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _e4m3_values() -> Floats:
    values = []
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        values.append(mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.array(values, np.float32)


_E4M3 = _e4m3_values()


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def item_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype]

    @classmethod
    def bf16(cls, values: Any) -> Stored:
        array = np.ascontiguousarray(values, np.float32)
        bits = array.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return cls("BF16", array.shape, rounded.astype("<u2").tobytes())

    @classmethod
    def f32(cls, values: Any) -> Stored:
        array = np.asarray(values, "<f4")
        return cls("F32", array.shape, array.tobytes())

    @classmethod
    def u8(cls, values: Any, dtype: str = "U8") -> Stored:
        array = np.asarray(values, np.uint8)
        return cls(dtype, array.shape, array.tobytes())

    def floats(self) -> Floats:
        match self.dtype:
            case "F32":
                return np.frombuffer(self.data, "<f4").reshape(self.shape)
            case "BF16":
                bits = np.frombuffer(self.data, "<u2").astype(np.uint32) << 16
                return np.asarray(bits.view(np.float32).reshape(self.shape), np.float32)
            case "F8_E4M3":
                codes = np.frombuffer(self.data, np.uint8)
                signs = np.where(codes & 0x80, -1, 1).astype(np.float32)
                values = np.append(_E4M3, np.float32("nan"))[codes & 0x7F]
                return np.asarray((signs * values).reshape(self.shape), np.float32)
        raise ValueError(self.dtype)


def nearest(values: Floats, grid: Floats) -> NDArray[np.uint8]:
    """The code of the nearest value of a grid, half to even."""
    upper = np.clip(np.searchsorted(grid, values), 1, len(grid) - 1)
    low, high = grid[upper - 1], grid[upper]
    middle = (low.astype(np.float64) + high) / 2
    up = (values > middle) | ((values == middle) & (upper % 2 == 0))
    return np.where(values >= grid[-1], len(grid) - 1, np.where(up, upper, upper - 1)).astype(np.uint8)


def e4m3(values: Floats) -> NDArray[np.uint8]:
    sign = (np.signbit(values).astype(np.uint8)) << 7
    return np.asarray(nearest(np.abs(values).astype(np.float32), _E4M3) | sign, np.uint8)


def fp8_rows(module: str, values: Floats, block: int | None = None) -> dict[str, Stored]:
    """One scale for each row, or for each block of rows and columns."""
    if block:
        rows, columns = (-(-size // block) for size in values.shape)
        scale = np.zeros((rows, columns), np.float32)
        for row in range(rows):
            for column in range(columns):
                part = values[row * block : (row + 1) * block, column * block : (column + 1) * block]
                scale[row, column] = np.abs(part).max() / 448
        wide = np.repeat(np.repeat(scale, block, 0), block, 1)[: values.shape[0], : values.shape[1]]
        codes = Stored.u8(e4m3(values / wide), "F8_E4M3")
        return {f"{module}.weight": codes, f"{module}.weight_scale_inv": Stored.f32(scale)}
    scale = Stored.bf16(np.abs(values).max(1, keepdims=True) / 448).floats()
    codes = Stored.u8(e4m3(values / scale), "F8_E4M3")
    return {f"{module}.weight": codes, f"{module}.weight_scale": Stored.bf16(scale)}


def nvfp4(
    module: str, values: Floats, amax: float, layout: str = "compressed-tensors", has_inputs: bool = False
) -> dict[str, Stored]:
    divisor = np.float32(2688.0 / amax)
    blocks = values.reshape(values.shape[0], -1, 16)
    scale = e4m3((np.abs(blocks).max(2) / 6 * divisor).astype(np.float32))
    real = Stored.u8(scale, "F8_E4M3").floats()[:, :, None] / divisor
    scaled = np.divide(blocks, real, out=np.zeros_like(blocks), where=real != 0)
    codes = nearest(np.abs(scaled), _E2M1) | (np.signbit(scaled).astype(np.uint8) << 3)
    codes = codes.reshape(values.shape)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    if layout == "modelopt":
        made = {
            f"{module}.weight": Stored.u8(packed),
            f"{module}.weight_scale_2": Stored.f32(np.float32(1) / divisor),
        }
        inputs = {f"{module}.input_scale": Stored.f32(np.float32(0.01))}
    else:
        made = {
            f"{module}.weight_packed": Stored.u8(packed),
            f"{module}.weight_global_scale": Stored.f32([divisor]),
        }
        inputs = {f"{module}.input_global_scale": Stored.f32([100.0])}
    made[f"{module}.weight_scale"] = Stored.u8(scale, "F8_E4M3")
    return made | (inputs if has_inputs else {})


def dequantize_nvfp4(tensors: dict[str, Stored], module: str, global_scale: float | None = None) -> Floats:
    """With its own global scale, or with that of another module, as engines do that share one.

    `global_scale` is a factor, whatever the layout.
    """
    packed = tensors.get(f"{module}.weight_packed") or tensors[f"{module}.weight"]
    bytes_ = np.frombuffer(packed.data, np.uint8).reshape(packed.shape)
    codes = np.empty((packed.shape[0], packed.shape[1] * 2), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = bytes_ & 15, bytes_ >> 4
    values = _E2M1[codes & 7] * np.where(codes & 8, -1, 1).astype(np.float32)
    scale = np.repeat(tensors[f"{module}.weight_scale"].floats(), 16, 1)
    factor = factor_of(tensors, module) if global_scale is None else global_scale
    result: Floats = values * scale * np.float32(factor)
    return result


def factor_of(tensors: dict[str, Stored], module: str) -> float:
    if f"{module}.weight_scale_2" in tensors:
        return float(tensors[f"{module}.weight_scale_2"].floats().ravel()[0])
    return 1 / float(tensors[f"{module}.weight_global_scale"].floats().ravel()[0])
