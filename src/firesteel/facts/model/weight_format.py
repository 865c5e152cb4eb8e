"""How one weight is stored: its values in a few bits, and scales for a group, a block, a row or the tensor.

Layouts as ModelOpt, compressed-tensors, AutoGPTQ, AutoAWQ and bitsandbytes write them, read in vLLM 0.32,
`vllm/model_executor/layers/quantization`, seen 2026-11-15.
"""

from __future__ import annotations

from functools import cache
from math import ceil, prod

from firesteel.errors import FiresteelError, printable
from firesteel.facts.formats.byte_source import MAX_ERROR_CHARS
from firesteel.values import Value


class UnknownQuantization(FiresteelError):
    """A checkpoint whose size cannot be computed from its config."""

    def __init__(self, what: str) -> None:
        super().__init__(printable(what, MAX_ERROR_CHARS), next="firesteel models")


class WeightFormat(Value):
    name: str
    bits: int
    group_size: int = 0
    """Adjacent values of a row that share a scale; 0: no groups."""
    scale_bits: int = 0
    """Bits of the scale and zero point of a group, or of the scale of a block or a row."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale."""
    has_row_scales: bool = False
    column_bytes: int = 0
    """Bytes for each input, such as GPTQ's column order."""
    tensor_bytes: int = 0
    """Bytes for the whole tensor, such as a global scale and an input scale."""

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        rows, columns = prod(shape[:-1]), shape[-1]
        scales = 0
        if self.group_size:
            scales = rows * ceil(columns / self.group_size)
        elif self.block:
            scales = ceil(rows / self.block[0]) * ceil(columns / self.block[1])
        elif self.has_row_scales:
            scales = rows
        values = rows * ceil(columns * self.bits / 8)
        return values + ceil(scales * self.scale_bits / 8) + columns * self.column_bytes + self.tensor_bytes


@cache
def unquantized(bits: int) -> WeightFormat:
    return WeightFormat(f"{bits}-bit", bits)


NVFP4 = WeightFormat("nvfp4", 4, 16, 8, tensor_bytes=8)
NVFP4_WEIGHTS_ONLY = WeightFormat("nvfp4", 4, 16, 8, tensor_bytes=4)
MXFP4 = WeightFormat("mxfp4", 4, 32, 8)
MXFP8 = WeightFormat("mxfp8", 8, 32, 8)
FP8 = WeightFormat("fp8", 8, tensor_bytes=8)
FP8_ROWS = WeightFormat("fp8", 8, scale_bits=16, has_row_scales=True)
INT8_ROWS = WeightFormat("int8", 8, scale_bits=16, has_row_scales=True)
NF4 = WeightFormat("nf4", 4, 64, 8, tensor_bytes=4)
BNB_INT8 = WeightFormat("int8", 8, scale_bits=32, has_row_scales=True)


def fp8_block(rows: int, columns: int) -> WeightFormat:
    return WeightFormat("fp8", 8, scale_bits=32, block=(rows, columns))
