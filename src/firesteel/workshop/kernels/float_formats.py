"""Small floating-point formats, as numpy arrays of their bits: BF16, E4M3, E2M1 and E8M0.

All rounding is to the nearest, ties to even, as in PyTorch.

    E4M3   sign, 4 bits of exponent (bias 7), 3 of mantissa; largest 448, no infinities, NaN is 0x7F and 0xFF
    E2M1   sign, 2 bits of exponent, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6
    E8M0   a power of two, 2^(byte - 127)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
