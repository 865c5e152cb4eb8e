"""Reads the scales of a checkpoint: scalars in runs, vectors whole, the beginning of large tensors.

A quantized model has hundreds of thousands of scalars. They lie together, because files are written by type,
so that a few reads get them all; what would take more is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from firesteel.facts.formats.byte_source import ByteSource
from firesteel.facts.formats.number_bytes import ValueSummary, is_number_type, read_scalar, summarize
from firesteel.facts.model.contents import SCALES, WeightFile, split_name
from firesteel.facts.model.tensors import Tensor
from firesteel.values import Value

_Wanted = tuple[Tensor, int, int]
"""A tensor, where its bytes start in the file, and how many of them are read."""
_SMALL_SCALES = ("F32", "BF16", "F16", "F64")
"""Scales of rows and blocks in these types are a thousandth of a checkpoint; E4M3 scales are an eighth."""


class ReadLimits(Value):
    """What reading scales may cost."""

    gap_bytes: int
    """Scales that are no further apart are read at once."""
    total_bytes: int
    reads: int
    sample_bytes: int = 4096
    samples: int = 512
    """How many large scale tensors are looked into."""


FROM_DISK = ReadLimits(gap_bytes=8 * 1024, total_bytes=256 * 2**20, reads=400_000)
FROM_HUB = ReadLimits(gap_bytes=256 * 1024, total_bytes=32 * 2**20, reads=64, sample_bytes=1024, samples=16)
_MAX_READ = 4 * 2**20


class ScaleReader:
    """Reads scales until a limit is reached, and counts what it left out."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self.scalars: dict[str, float] = {}
        self.values: dict[str, ValueSummary] = {}
        self.read_bytes = 0
        self._reads = self._left_out = 0
        self._sampled = 0

    def unread(self) -> Iterator[str]:
        if self._left_out:
            yield (
                f"{self._left_out:,} scale tensors were not read: they are too scattered for a quick audit; "
                "pull the model and audit the folder"
            )

    def read_scales(self, source: ByteSource, file: WeightFile) -> None:
        for run in self._runs(self._wanted(file)):
            start, end = run[0][1], run[-1][1] + run[-1][2]
            if self._reads >= self._limits.reads or self.read_bytes + end - start > self._limits.total_bytes:
                self._left_out += len(run)
                continue
            data = source.read(start, end - start)
            self._reads += 1
            self.read_bytes += len(data)
            for tensor, at, length in run:
                piece = data[at - start : at - start + length]
                if length == tensor.bytes and prod(tensor.shape) == 1:
                    self.scalars[tensor.name] = read_scalar(tensor.dtype, piece)
                else:
                    self.values[tensor.name] = summarize(tensor.dtype, piece)

    def _wanted(self, file: WeightFile) -> Iterator[_Wanted]:
        """Tensor, where it starts in the file, and how much of it is read."""
        at = file.data_start
        large = sum(1 for tensor in file.tensors if _is_large_scale(tensor))
        every, seen = max(1, large // max(1, self._limits.samples // 8)), 0
        for tensor in file.tensors:
            start, at = at, at + tensor.bytes
            if not tensor.bytes or not is_number_type(tensor.dtype):
                continue
            if _is_large_scale(tensor):
                seen += 1
                if seen % every == 0 and self._sampled < self._limits.samples:
                    self._sampled += 1
                    yield tensor, start, min(tensor.bytes, self._limits.sample_bytes)
            elif split_name(tensor.name)[1] in SCALES:
                yield tensor, start, min(tensor.bytes, _MAX_READ)

    def _runs(self, wanted: Iterator[_Wanted]) -> Iterator[list[_Wanted]]:
        run: list[_Wanted] = []
        for each in wanted:
            if run:
                end = run[-1][1] + run[-1][2]
                if each[1] - end > self._limits.gap_bytes or each[1] + each[2] - run[0][1] > _MAX_READ:
                    yield run
                    run = []
            run.append(each)
        if run:
            yield run


def _is_large_scale(tensor: Tensor) -> bool:
    return (
        tensor.dtype not in _SMALL_SCALES
        and tensor.bytes > 8
        and split_name(tensor.name)[1] in ("weight_scale", "scales")
    )
