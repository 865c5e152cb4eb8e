"""What a run made: the relative error of every matrix, size, time."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

from firesteel.values import Value
from firesteel.workshop.quantize.worker import BlockError


class MatrixError(Value):
    module: str
    relative: float
    """The norm of the difference, divided by the norm of the weights."""


class QuantizationResult(Value):
    errors: tuple[MatrixError, ...]
    """The largest first."""
    bytes: int
    resumed_bytes: int
    seconds: float
    kernel: str
    threads: int

    @property
    def mean_error(self) -> float:
        return sum(error.relative for error in self.errors) / len(self.errors)


def collect_errors(entries: Iterable[tuple[BlockError, ...]]) -> tuple[MatrixError, ...]:
    sums: dict[str, tuple[float, float]] = {}
    for entry in entries:
        for block in entry:
            error, norm = sums.get(block.module, (0.0, 0.0))
            sums[block.module] = error + block.error, norm + block.norm
    errors = [MatrixError(name, sqrt(error / norm) if norm else 0.0) for name, (error, norm) in sums.items()]
    return tuple(sorted(errors, key=lambda error: (-error.relative, error.module)))
