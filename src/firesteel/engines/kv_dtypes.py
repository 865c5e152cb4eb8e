"""The bytes per value that a flag like `--kv-cache-dtype fp8` means, for each engine.

llama.cpp's types are blocks of 32 values with a scale, so theirs are fractions. A type that is not listed
here is refused by name: a guess would be off by a factor of two or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TypeVar

from firesteel.errors import UsageError
from firesteel.launch import FlagValue

_Bytes = TypeVar("_Bytes", int, Fraction)

VLLM_DTYPES: Mapping[str, int] = {
    "auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_ds_mla": 1,
}  # fmt: skip
STATE_DTYPES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
LLAMACPP_DTYPES: Mapping[str, Fraction] = {
    "f32": Fraction(4), "f16": Fraction(2), "bf16": Fraction(2), "q8_0": Fraction(34, 32),
    "q5_1": Fraction(24, 32), "q5_0": Fraction(22, 32), "q4_1": Fraction(20, 32), "q4_0": Fraction(18, 32),
    "iq4_nl": Fraction(18, 32),
}  # fmt: skip
SGLANG_DTYPES: Mapping[str, int] = {
    "auto": 2, "bf16": 2, "bfloat16": 2, "float16": 2, "float32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip


def text_flag(flags: Mapping[str, FlagValue], flag: str, default: str) -> str:
    """The value of a flag, or the default where it is missing or not text."""
    value = flags.get(flag, default)
    return value if isinstance(value, str) else default


def bytes_per_value(known: Mapping[str, _Bytes], dtype: str, flag: str) -> _Bytes:
    """`flag` is only for the error message."""
    if dtype not in known:
        raise UsageError(
            f"firesteel does not know how many bytes a value takes with `--{flag} {dtype}`",
            next=f"use one of {', '.join(known)}",
        )
    return known[dtype]
