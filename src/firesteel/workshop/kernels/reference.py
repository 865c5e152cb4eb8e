"""Small floating-point formats as numpy arrays of their bits, and quantizing blocks of rows to them: the
oracle of the C kernel, and what runs where there is no compiler.

    E4M3   sign, 4 bits of exponent (bias 7), 3 of mantissa; largest 448, no infinities, NaN is 0x7F and 0xFF
    E2M1   sign, 2 bits of exponent, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6
    E8M0   a power of two, 2^(byte - 127)

All rounding is to the nearest, ties to even, as in PyTorch. BF16 weights get the arithmetic of
llm-compressor, which rounds every intermediate result to BF16, so that the stored bits are the same. FP16 and
FP32 weights are computed in FP32 and get scales in FP32: the range of FP16 is too small for a global scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from firesteel.values import Value

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]

E4M3_MAX = np.float32(448.0)
E2M1_MAX = np.float32(6.0)
E2M1_VALUES: F32 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_SUBNORMAL_SHIFT = np.float32(2.0**14)
"""Added to a number under 2^-6 it leaves multiples of 2^-9, E4M3's smallest step, in the last bits."""


def bf16_to_f32(bits: NDArray[Any]) -> F32:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: NDArray[Any]) -> U16:
    """Finite numbers only; the few that round beyond the largest become infinities, as in PyTorch."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
        np.uint16
    )


def round_to_bf16(values: NDArray[Any]) -> F32:
    return bf16_to_f32(f32_to_bf16(values))


def f32_to_e4m3(values: NDArray[Any]) -> U8:
    """Values must be from -448 to 448."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    sign, magnitude = bits >> np.uint32(24) & np.uint32(0x80), bits & np.uint32(0x7FFFFFFF)
    rounded = magnitude + np.uint32(0x7FFFF) + (magnitude >> np.uint32(20) & np.uint32(1))
    normal = (rounded >> np.uint32(20)) - np.uint32(120 << 3)
    subnormal = (magnitude.view(np.float32) + _SUBNORMAL_SHIFT).view(np.uint32) - _SUBNORMAL_SHIFT.view(
        np.uint32
    )
    is_normal = magnitude >= np.float32(2.0**-6).view(np.uint32)
    codes: U8 = (np.where(is_normal, normal, subnormal) | sign).astype(np.uint8)
    return codes


def _e4m3_value(byte: int) -> float:
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte & 0x7F == 0x7F:
        return float("nan")
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -size if byte & 0x80 else size


_E4M3_TABLE: F32 = np.array([_e4m3_value(byte) for byte in range(256)], np.float32)
_E8M0_TABLE: F32 = np.array([2.0 ** (byte - 127) for byte in range(255)] + [np.nan], np.float32)


def e4m3_to_f32(bits: NDArray[Any]) -> F32:
    return _E4M3_TABLE[bits.view(np.uint8)]


def e8m0_to_f32(bits: NDArray[Any]) -> F32:
    return _E8M0_TABLE[bits.view(np.uint8)]


def f32_to_e2m1(values: NDArray[Any]) -> U8:
    """Codes of 4 bits. A negative number that rounds to zero keeps its sign, as in compressed-tensors."""
    size = np.abs(values)
    code: U8 = (size > 0.25).astype(np.uint8)
    for least, ties_up in (
        (0.75, True),
        (1.25, False),
        (1.75, True),
        (2.5, False),
        (3.5, True),
        (5.0, False),
    ):
        code += size >= np.float32(least) if ties_up else size > np.float32(least)
    code |= (values < 0).astype(np.uint8) << np.uint8(3)
    return code


def e2m1_to_f32(codes: NDArray[Any]) -> F32:
    size = E2M1_VALUES[codes & 7]
    values: F32 = np.where(codes & 8, -size, size)
    return values


def pack_nibbles(codes: U8) -> U8:
    """Two codes a byte; the even column is the low nibble."""
    return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)


def unpack_nibbles(packed: U8) -> U8:
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    codes[..., 0::2] = packed & 15
    codes[..., 1::2] = packed >> 4
    return codes


NVFP4_GROUP, MXFP4_GROUP, FP8_BLOCK = 16, 32, 128
BF16_EPS, F32_EPS = np.float32(2.0**-7), np.float32(2.0**-23)
"""What compressed-tensors stores as the scale of a row or block of zeros."""
E4M3_EPS = np.float32(0.125)
"""The same for the scale of a group in NVFP4."""


class NotFinite(ArithmeticError):
    """A weight is infinite or NaN: no scale can be computed."""


class Quantized(Value):
    values: U8
    """One byte a weight, or two weights a byte."""
    scales: NDArray[Any]
    """As they are stored: bits of BF16 or E4M3, FP32, or exponents."""
    error: float
    """The sum of the squares of the differences from the weights."""
    norm: float
    """The sum of the squares of the weights."""


def as_f32(weight: NDArray[Any]) -> F32:
    """BF16 is given as its bits, in uint16."""
    return bf16_to_f32(weight) if weight.dtype == np.uint16 else weight.astype(np.float32)


def amax(weight: NDArray[Any]) -> float:
    """The largest absolute value."""
    return _largest(np.abs(as_f32(weight)), None).item() if weight.size else 0.0


def global_scale(amax: float, is_bf16: bool) -> float:
    """The divisor that puts the largest scale of a group at the end of E4M3's range."""
    inverse: NDArray[Any] = np.float32(1) / np.maximum(
        np.array([amax], np.float32), np.finfo(np.float32).tiny
    )
    inverse = (
        round_to_bf16(inverse) if is_bf16 else inverse
    )  # PyTorch divides a number by a tensor in two steps
    with np.errstate(over="ignore"):
        scale: NDArray[Any] = inverse * (E4M3_MAX * E2M1_MAX)
    scale = round_to_bf16(scale) if is_bf16 else scale
    return scale.item() if np.isfinite(scale).all() else 1.0


def fp8_rows(weight: NDArray[Any]) -> Quantized:
    """A scale for each row, [rows, 1]."""
    values = as_f32(weight)
    scale = _fp8_scale(_largest(np.abs(values), 1)[:, np.newaxis], weight)
    codes = _e4m3(values, scale, weight)
    return _result(codes, _stored(scale, weight), values, e4m3_to_f32(codes) * scale)


def fp8_block(weight: NDArray[Any]) -> Quantized:
    """A scale for each block of 128 x 128; blocks at the right and bottom may be smaller."""
    values = as_f32(weight)
    rows, columns = values.shape
    high, wide = -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)
    padded = np.zeros((high * FP8_BLOCK, wide * FP8_BLOCK), np.float32)
    padded[:rows, :columns] = np.abs(values)
    largest = _largest(padded.reshape(high, FP8_BLOCK, wide, FP8_BLOCK), (1, 3))
    scale = _fp8_scale(largest, weight)
    each = np.repeat(np.repeat(scale, FP8_BLOCK, 0), FP8_BLOCK, 1)[:rows, :columns]
    codes = _e4m3(values, each, weight)
    return _result(codes, _stored(scale, weight), values, e4m3_to_f32(codes) * each)


def nvfp4(weight: NDArray[Any], divisor: float) -> Quantized:
    """`divisor` is the global scale. Columns must be a multiple of 16."""
    values, divide_by = as_f32(weight), np.float32(divisor)
    groups = values.reshape(values.shape[0], -1, NVFP4_GROUP)
    scale = _largest(np.abs(groups), 2) / E2M1_MAX
    scale = round_to_bf16(scale) if weight.dtype == np.uint16 else scale
    codes = f32_to_e4m3(np.minimum(divide_by * scale, E4M3_MAX))
    rounded = e4m3_to_f32(codes)
    rounded = np.where(rounded == 0, E4M3_EPS, rounded)
    step = (rounded / divide_by)[..., np.newaxis]
    nibbles = f32_to_e2m1(groups / step)
    return _result(
        pack_nibbles(nibbles.reshape(values.shape)),
        f32_to_e4m3(rounded),
        values,
        (e2m1_to_f32(nibbles) * step).reshape(values.shape),
    )


def mxfp4(weight: NDArray[Any]) -> Quantized:
    """A power of two for each 32 columns, stored as its exponent."""
    values = as_f32(weight)
    groups = values.reshape(values.shape[0], -1, MXFP4_GROUP)
    bits = _largest(np.abs(groups), 2).view(np.uint32)
    # From 1.75 on the next power of two is nearer; then less 2, since E2M1 reaches to 4 and 6.
    exponent = (bits + np.uint32(1 << 21)) >> np.uint32(23)
    exponent = np.maximum(exponent.astype(np.int32) - 2, 0).astype(np.uint8)
    step = np.ldexp(np.float32(1), exponent.astype(np.int32) - 127)[..., np.newaxis]
    scaled: NDArray[Any] = groups / step
    scaled = round_to_bf16(scaled) if weight.dtype == np.uint16 else scaled
    nibbles = f32_to_e2m1(scaled)
    decoded = (e2m1_to_f32(nibbles) * step).reshape(values.shape)
    return _result(pack_nibbles(nibbles.reshape(values.shape)), exponent, values, decoded)


def _largest(sizes: F32, axis: Any) -> F32:
    largest: F32 = np.max(sizes, axis=axis, initial=0)
    if not np.isfinite(largest).all():
        raise NotFinite
    return np.asarray(largest, np.float32)


def _fp8_scale(largest: F32, weight: NDArray[Any]) -> F32:
    scale = largest / E4M3_MAX
    if weight.dtype != np.uint16:
        return np.where(scale == 0, F32_EPS, scale)
    scale = round_to_bf16(scale)
    return np.where(scale == 0, BF16_EPS, scale)


def _e4m3(values: F32, scale: F32, weight: NDArray[Any]) -> U8:
    scaled = values / scale
    scaled = round_to_bf16(scaled) if weight.dtype == np.uint16 else scaled
    return f32_to_e4m3(np.clip(scaled, -E4M3_MAX, E4M3_MAX))


def _stored(scale: F32, weight: NDArray[Any]) -> NDArray[Any]:
    return f32_to_bf16(scale) if weight.dtype == np.uint16 else scale


def _result(codes: U8, scales: NDArray[Any], values: F32, decoded: F32) -> Quantized:
    wide = values.astype(np.float64)
    error = float(np.square(decoded - wide).sum())
    return Quantized(codes, scales, error, float(np.square(wide).sum()))
