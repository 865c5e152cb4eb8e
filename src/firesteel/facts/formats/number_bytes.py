"""Numbers as checkpoints store them: the few values of a scale tensor, without numpy.

An audit asks only whether a scale is zero, negative, not a number, or at the end of its range, and what a
scalar is. Counting equal bit patterns answers that at the speed of C, also for a million row scales, so that
`plan` needs no array library.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections import Counter

from firesteel.values import Value

E4M3_MAX = 448.0
_CODES = {"F64": "Q", "F32": "I", "F16": "H", "BF16": "H", "F8_E4M3": "B", "F8_E5M2": "B", "F8_E8M0": "B"}
_CODES |= {"U8": "B"}
"""The unsigned integer that holds the bits of one value. MXFP4's exponents are stored as `U8` too."""


class ValueSummary(Value):
    count: int
    low: float
    """The lowest number; NaN where there is none."""
    high: float
    zeros: int = 0
    negatives: int = 0
    not_finite: int = 0
    at_maximum: int = 0
    """E4M3 only: how many are 448, the largest."""

    @property
    def is_sound(self) -> bool:
        """A scale can be used: every one is a number above zero."""
        return not (self.zeros or self.negatives or self.not_finite)

    def merged(self, other: ValueSummary) -> ValueSummary:
        lows = [low for low in (self.low, other.low) if not math.isnan(low)]
        highs = [high for high in (self.high, other.high) if not math.isnan(high)]
        return ValueSummary(
            self.count + other.count,
            min(lows, default=math.nan),
            max(highs, default=math.nan),
            self.zeros + other.zeros,
            self.negatives + other.negatives,
            self.not_finite + other.not_finite,
            self.at_maximum + other.at_maximum,
        )


def is_number_type(dtype: str) -> bool:
    return dtype in _CODES


def read_scalar(dtype: str, data: bytes) -> float:
    """The one value of a tensor of one element."""
    if dtype == "F32":  # almost all of them
        return float(struct.unpack("<f", data)[0])
    return value_of(dtype, int.from_bytes(data, "little"))


def summarize(dtype: str, data: bytes) -> ValueSummary:
    """The values of a tensor, or of a piece of it."""
    bits = array(_CODES[dtype], data)
    if sys.byteorder == "big":
        bits.byteswap()
    values: Counter[float] = Counter()
    not_finite = 0
    for pattern, count in Counter(bits).items():
        value = value_of(dtype, pattern)
        if math.isfinite(value):
            values[value] += count
        else:
            not_finite += count
    top = E4M3_MAX if dtype == "F8_E4M3" else None
    return ValueSummary(
        count=sum(values.values()) + not_finite,
        low=min(values, default=math.nan),
        high=max(values, default=math.nan),
        zeros=values[0.0],
        negatives=sum(count for value, count in values.items() if value < 0),
        not_finite=not_finite,
        at_maximum=values[top] if top else 0,
    )


_NOT_FINITE_F16 = bytes(byte for byte in range(256) if byte & 0x7C == 0x7C)


def summarize_blocks(blocks: bytes, block_bytes: int, starts: tuple[int, ...]) -> ValueSummary:
    """The F16 scales that start at these bytes of each block: how many are infinite or no numbers."""
    highs = [blocks[start + 1 :: block_bytes] for start in starts]  # with the exponent
    broken = sum(len(high) - len(high.translate(None, _NOT_FINITE_F16)) for high in highs)
    count = sum(map(len, highs))
    zeros = count if blocks.count(0) == len(blocks) else 0
    return ValueSummary(count, math.nan, math.nan, zeros=zeros, not_finite=broken)


def value_of(dtype: str, bits: int) -> float:
    """The number that a bit pattern stands for."""
    match dtype:
        case "F32":
            return float(struct.unpack("<f", struct.pack("<I", bits))[0])
        case "BF16":
            return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
        case "F16":
            return float(struct.unpack("<e", struct.pack("<H", bits))[0])
        case "F64":
            return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
        case "F8_E4M3":
            return E4M3_VALUES[bits]
        case "F8_E5M2":
            return float(struct.unpack("<e", struct.pack("<H", bits << 8))[0])
    return math.nan if bits == 255 else 2.0 ** (bits - 127)


def _e4m3(bits: int) -> float:
    sign, exponent, mantissa = -1.0 if bits & 0x80 else 1.0, bits >> 3 & 0xF, bits & 7
    if exponent == 0xF and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return float(sign * (8 + mantissa) * 2.0 ** (exponent - 10))


E4M3_VALUES = tuple(map(_e4m3, range(256)))
"""By code."""
