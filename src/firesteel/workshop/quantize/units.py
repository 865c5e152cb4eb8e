"""A plan -> units of work: numbered, independent, of bounded size.

A unit is a group of small matrices, a block of rows of a large one, or a piece of a tensor that is copied.
Its number depends on the plan alone, so that a journal of numbers says what is done.
"""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.values import Value
from firesteel.workshop.quantize.formats import FP8_BLOCK
from firesteel.workshop.quantize.matrices import KeptTensor, Matrix
from firesteel.workshop.quantize.plan import MatrixGroup, QuantizationPlan

UNIT_ELEMENTS = 8 * 2**20


class RowBlock(Value):
    """Rows of a matrix of the result."""

    matrix: Matrix
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return (self.stop - self.start) * self.matrix.shape[1]


class QuantizeUnit(Value):
    group: MatrixGroup
    blocks: tuple[RowBlock, ...]

    @property
    def elements(self) -> int:
        return sum(block.elements for block in self.blocks)

    @property
    def is_whole(self) -> bool:
        """Whether the unit has all matrices of the group, so that it can find their scale by itself."""
        return self.elements == self.group.elements

    @property
    def is_transposed(self) -> bool:
        return self.blocks[0].matrix.transposed


class CopyUnit(Value):
    tensor: KeptTensor
    start: int
    """In bytes; in rows where FP8 is dequantized."""
    stop: int

    @property
    def elements(self) -> int:
        size = self.stop - self.start
        return size * self.tensor.source.shape[-1] if self.tensor.block_scale else size // 2


Unit = QuantizeUnit | CopyUnit


def units_of(plan: QuantizationPlan) -> Iterator[Unit]:
    for item in plan.items:
        if isinstance(item, KeptTensor):
            yield from _copies(item)
        elif item.elements <= UNIT_ELEMENTS or item.matrices[0].transposed:
            yield QuantizeUnit(item, tuple(RowBlock(matrix, 0, matrix.shape[0]) for matrix in item.matrices))
        else:
            for matrix in item.matrices:
                for block in row_blocks(matrix):
                    yield QuantizeUnit(item, (block,))


def row_blocks(matrix: Matrix) -> Iterator[RowBlock]:
    """Multiples of 128 rows: no block of FP8 that is written straddles two units; one that is read may."""
    rows, columns = matrix.shape
    step = max(FP8_BLOCK, UNIT_ELEMENTS // columns // FP8_BLOCK * FP8_BLOCK)
    for start in range(0, rows, step):
        yield RowBlock(matrix, start, min(start + step, rows))


def _copies(tensor: KeptTensor) -> Iterator[CopyUnit]:
    if tensor.block_scale:
        rows, columns = tensor.source.shape
        total, step = rows, max(FP8_BLOCK, UNIT_ELEMENTS // columns // FP8_BLOCK * FP8_BLOCK)
    else:
        total, step = tensor.source.bytes, UNIT_ELEMENTS * 2
    for start in range(0, total, step):
        yield CopyUnit(tensor, start, min(start + step, total))
