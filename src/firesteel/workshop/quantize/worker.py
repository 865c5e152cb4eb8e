"""A plan -> units of work: numbered, independent, of bounded size; and doing one.

A unit is a group of small matrices, a block of rows of a large one, or a piece of a tensor that is copied.
Its number depends on the plan alone, so that a journal of numbers says what is done. A worker reads the rows,
computes, and writes at the place that the plan gave them. Every read and write has its own offset, so that
threads share the open files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firesteel.errors import FiresteelError
from firesteel.values import Value
from firesteel.workshop.kernels import dequantize
from firesteel.workshop.kernels.native import Kernel
from firesteel.workshop.kernels.reference import NotFinite, Quantized, f32_to_bf16, global_scale
from firesteel.workshop.quantize.formats import FP8_BLOCK, PINNED_INPUT_SCALE, is_nvfp4, outputs
from firesteel.workshop.quantize.matrices import BlockScale, KeptTensor, Matrix
from firesteel.workshop.quantize.plan import MatrixGroup, QuantizationPlan
from firesteel.workshop.quantize.source import SourceTensor

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


_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}


class BlockError(Value):
    """How far a block of a matrix is from its source: sums of squares."""

    module: str
    error: float
    norm: float


class Worker:
    def __init__(self, plan: QuantizationPlan, folder: Path, kernel: Kernel) -> None:
        self._kernel = kernel
        self._of_thread = threading.local()
        self._sources = _open_all(
            plan.source.folder, {tensor.file for tensor in plan.source.tensors}, os.O_RDONLY
        )
        self._outputs = _open_all(folder, (file.name for file in plan.files), os.O_WRONLY)
        self._places = {
            name: (self._outputs[file.name], offset)
            for file in plan.files
            for name, offset in file.offsets.items()
        }

    def close(self) -> None:
        for descriptor in (*self._sources.values(), *self._outputs.values()):
            os.close(descriptor)

    def largest(self, block: RowBlock) -> float:
        """The first pass over a large group; the second reads it again."""
        return self._amax(block, self._read_rows(block, {}, self._buffer(block)))

    def _amax(self, block: RowBlock, rows: NDArray[Any]) -> float:
        try:
            return self._kernel.amax(rows)
        except NotFinite:
            raise _not_finite(block.matrix) from None

    def quantize(self, unit: QuantizeUnit, largest: float | None) -> tuple[BlockError, ...]:
        slabs: dict[int, NDArray[Any]] = {}
        buffer = self._buffer(unit.blocks[0]) if len(unit.blocks) == 1 else None
        blocks = [(block, self._read_rows(block, slabs, buffer)) for block in unit.blocks]
        slabs.clear()
        errors = []
        is_grouped = is_nvfp4(unit.blocks[0].matrix.scheme)
        if is_grouped and largest is None:
            largest = max(self._amax(block, rows) for block, rows in blocks)
        divisor = global_scale(largest or 0.0, unit.blocks[0].matrix.is_bf16) if is_grouped else 1.0
        for block, rows in blocks:
            try:
                result = self._compute(block.matrix, rows, divisor)
            except NotFinite:
                raise _not_finite(block.matrix) from None
            self._write_block(block, result, divisor)
            errors.append(BlockError(block.matrix.module, result.error, result.norm))
        self._give_back(unit)
        return tuple(errors)

    def copy(self, unit: CopyUnit) -> tuple[()]:
        """Nothing is computed, so there are no errors to return."""
        source, scale = unit.tensor.source, unit.tensor.block_scale
        descriptor, offset = self._places[source.name]
        if scale is None:
            data = self._read(source, unit.start, unit.stop - unit.start)
            _write(descriptor, data, offset + unit.start)
            self._drop(source, unit.start, unit.stop - unit.start)
        else:
            rows = self._dequantized(source, scale, unit.start, unit.stop)
            _write(descriptor, rows, offset + unit.start * source.shape[1] * 2)
        return ()

    # --- reading ---

    def _buffer(self, block: RowBlock) -> NDArray[np.uint8]:
        """One for each thread: a new one costs as much as what is read into it."""
        size = _row_range(block)[1]
        if getattr(self._of_thread, "buffer", np.empty(0)).size < size:
            self._of_thread.buffer = np.empty(size, np.uint8)
        buffer: NDArray[np.uint8] = self._of_thread.buffer
        return buffer

    def _read_rows(
        self, block: RowBlock, slabs: dict[int, NDArray[Any]], buffer: NDArray[np.uint8] | None
    ) -> NDArray[Any]:
        """BF16 as its bits, else FP32; in the buffer where they are stored as they are needed."""
        matrix, source = block.matrix, block.matrix.source
        if matrix.block_scale is not None:
            return self._dequantized(source, matrix.block_scale, block.start, block.stop)
        if matrix.transposed:
            if matrix.expert not in slabs:
                slabs[matrix.expert] = self._slab(matrix)
            first = matrix.first
            return np.ascontiguousarray(slabs[matrix.expert][:, first + block.start : first + block.stop].T)
        start, size = _row_range(block)
        return _plain(self._read(source, start, size, buffer), source.dtype).reshape(-1, matrix.shape[1])

    def _slab(self, matrix: Matrix) -> NDArray[Any]:
        """An expert that is stored as [inputs, outputs]."""
        inputs, source = matrix.shape[1], matrix.source
        size = inputs * matrix.outputs * _ITEM_BYTES[source.dtype]
        return _plain(self._read(source, matrix.expert * size, size), source.dtype).reshape(
            inputs, matrix.outputs
        )

    def _dequantized(self, source: SourceTensor, scales: BlockScale, start: int, stop: int) -> NDArray[Any]:
        """Rows of FP8 in blocks, as the bits of BF16. They may begin and end within a block."""
        scale, (height, _) = scales.tensor, scales.block
        columns = source.shape[1]
        rows = self._read(source, start * columns, (stop - start) * columns).reshape(-1, columns)
        top, bottom = start // height, -(-stop // height)
        row_bytes = scale.bytes // scale.shape[0]
        stored = self._read(scale, top * row_bytes, (bottom - top) * row_bytes)
        array = dequantize.as_array(stored, scale.dtype, (bottom - top, scale.shape[1]))
        values = dequantize.to_f32(array, scale.dtype)
        return f32_to_bf16(dequantize.fp8_block(rows, values, scales.block, start - top * height))

    def _read(
        self, tensor: SourceTensor, start: int, size: int, buffer: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        buffer = np.empty(size, np.uint8) if buffer is None else buffer[:size]
        view, offset = memoryview(buffer.data), tensor.offset + start
        while view:
            count = os.preadv(self._sources[tensor.file], [view], offset)
            if not count:
                raise FiresteelError(
                    f"{tensor.file} ended in the middle of `{tensor.name}`", next="download it again"
                )
            view, offset = view[count:], offset + count
        return buffer

    def _give_back(self, unit: QuantizeUnit) -> None:
        """On a Spark the page cache is memory that the GPU does not get."""
        for block in unit.blocks:
            if not block.matrix.transposed and block.matrix.block_scale is None:
                self._drop(block.matrix.source, *_row_range(block))
        if unit.is_transposed:
            matrix = unit.blocks[0].matrix
            size = matrix.shape[1] * matrix.outputs * _ITEM_BYTES[matrix.source.dtype]
            self._drop(matrix.source, matrix.expert * size, size)

    def _drop(self, tensor: SourceTensor, start: int, size: int) -> None:
        os.posix_fadvise(self._sources[tensor.file], tensor.offset + start, size, os.POSIX_FADV_DONTNEED)

    # --- writing ---

    def _compute(self, matrix: Matrix, rows: NDArray[Any], divisor: float) -> Quantized:
        match matrix.scheme:
            case "fp8-rows":
                return self._kernel.fp8_rows(rows)
            case "fp8-block":
                return self._kernel.fp8_block(rows)
            case "mxfp4":
                return self._kernel.mxfp4(rows)
            case _:
                return self._kernel.nvfp4(rows, divisor)

    def _write_block(self, block: RowBlock, result: Quantized, divisor: float) -> None:
        matrix = block.matrix
        values, scales, *globals = outputs(matrix.module, matrix.scheme, matrix.shape, matrix.is_bf16)
        scale_row = block.start // FP8_BLOCK if matrix.scheme == "fp8-block" else block.start
        for tensor, array, row in ((values, result.values, block.start), (scales, result.scales, scale_row)):
            descriptor, offset = self._places[tensor.name]
            _write(descriptor, array, offset + row * (tensor.bytes // tensor.shape[0]))
        if block.start == 0:
            for tensor, value in zip(globals, (divisor, PINNED_INPUT_SCALE), strict=False):
                descriptor, offset = self._places[tensor.name]
                _write(descriptor, np.array([value], np.float32), offset)

    def sync(self) -> None:
        """All that was written is on the disk, and no longer in the page cache."""
        for descriptor in self._outputs.values():
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _row_range(block: RowBlock) -> tuple[int, int]:
    """Bytes from the start of the tensor, and how many."""
    matrix = block.matrix
    row_bytes = matrix.shape[1] * _ITEM_BYTES[matrix.source.dtype]
    first = matrix.expert * matrix.outputs + matrix.first + block.start
    return first * row_bytes, (block.stop - block.start) * row_bytes


def _plain(data: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        return data.view(np.uint16)
    return data.view(np.float16).astype(np.float32) if dtype == "F16" else data.view(np.float32)


def _not_finite(matrix: Matrix) -> FiresteelError:
    return FiresteelError(
        f"`{matrix.source.name}` holds infinities or NaN, so the checkpoint is damaged or was trained badly",
        next="download it again; firesteel audit --deep finds all of them",
    )


def _write(descriptor: int, array: NDArray[Any], offset: int) -> None:
    view = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def _open_all(folder: Path, names: Any, flags: int) -> Mapping[str, int]:
    return {name: os.open(folder / name, flags | os.O_CLOEXEC) for name in names}
