"""Weights that are the same on every machine: bits from a hash, with the cases that rounding gets wrong."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32_SPECIAL = (0.0, -0.0, 448.0, 6.0, 2.0**-6, 2.0**-9, 2.0**-10, 1e-30, -1e-38, 3.0, -2.5, 0.75, 1.75, 5.0)


def bf16_bits(name: str, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Random BF16 from 2^-9 to 2^-2; in half of the tensors the first rows have zeros, special
    numbers and very small ones."""
    count = int(np.prod(shape))
    random = np.frombuffer(hashlib.shake_256(name.encode()).digest(2 * count), np.uint16)
    bits = (random & 0x807F) | ((118 + ((random >> 8) & 7)) << 7).astype(np.uint16)
    weight = bits.astype(np.uint16).reshape(shape)
    if len(shape) == 2 and shape[0] > 3 and shape[1] >= len(F32_SPECIAL) and random[0] & 1:
        weight[0] = 0
        special = np.array(F32_SPECIAL, np.float32).view(np.uint32) >> 16
        weight[1, : len(special)] = special
        weight[2] = (weight[2] & 0x807F) | (1 << 7)  # near the smallest normal number
    return weight


def f32(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    bits: NDArray[Any] = bf16_bits(name, shape).astype(np.uint32) << np.uint32(16)
    low = np.frombuffer(hashlib.shake_256(f"{name} low".encode()).digest(2 * bits.size), np.uint16)
    return (bits | low.reshape(shape)).view(np.float32)
