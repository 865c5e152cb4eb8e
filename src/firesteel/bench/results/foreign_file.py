"""What the readers of other tools' result files share: a checked value with its place, and a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from firesteel.bench.compare.stats import mean_interval, student_quantile
from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures, RequestSettings, Subject
from firesteel.errors import UsageError
from firesteel.values import Value

MAX_ENTRIES = 10_000
MAX_VALUES = 200_000
UNCHANGED = "use the file as the tool wrote it"
_MAX_NUMBER = 1e12


class FileNode(Value):
    """A value in a file with its place; a wrong type is an error that names the place."""

    value: Any
    where: str

    def __getitem__(self, key: str) -> FileNode:
        if not isinstance(self.value, Mapping):
            raise self.error("is not an object")
        return FileNode(self.value.get(key), f"{self.where}.{key}")

    def error(self, what: str) -> UsageError:
        return UsageError(f"{self.where} {what}", next=UNCHANGED)

    def number(self) -> float:
        value = self.value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < _MAX_NUMBER:
            raise self.error("is not a number of 0 or more")
        return float(value)

    def optional_number(self) -> float | None:
        return None if self.value is None else self.number()

    def count(self, least: int = 0) -> int:
        value = self.number()
        if value != int(value) or not least <= value <= 2**31:
            raise self.error(f"is not a whole number of {least} or more")
        return int(value)

    def text(self) -> str:
        if not isinstance(self.value, str) or len(self.value) > 500:
            raise self.error("is not a short text")
        return self.value

    def items(self, most: int = MAX_VALUES) -> list[FileNode]:
        if not isinstance(self.value, list) or len(self.value) > most:
            raise self.error(f"is not a list of at most {most:,}")
        return [FileNode(value, f"{self.where}[{index}]") for index, value in enumerate(self.value)]

    def numbers(self) -> list[float]:
        return [item.number() for item in self.items()]


def foreign_run(
    name: str, began: str, subject: Subject, rows: Sequence[PointFigures], notes: Sequence[str]
) -> BenchRun:
    return BenchRun(
        id=name,
        began=began,
        subject=subject,
        settings=RequestSettings(temperature=None),
        points=tuple(row.point for row in rows),
        figures=tuple(rows),
        is_whole=True,
        notes=tuple(notes),
    )


def foreign_point(users: int, prompt: int, answer: int) -> Point:
    return Point("single" if users == 1 else "sweep", "prose", users, max(1, prompt), max(1, answer))


def mean_with_std(mean: float, std: float, n: int) -> MeasuredFigure | None:
    """From a mean and the standard deviation of a whole, as numpy counts it: over n, not n - 1."""
    if n < 2:
        return mean_interval([mean] * n)
    margin = student_quantile(0.975, n - 1) * std / sqrt(n - 1)
    return MeasuredFigure(mean, max(0.0, mean - margin), mean + margin, n)


def rate_of(time_ms: MeasuredFigure | None) -> MeasuredFigure | None:
    """Tokens per second from milliseconds per token."""
    if time_ms is None or not time_ms.value:
        return None
    fastest = 1000 / time_ms.low if time_ms.low else 2000 / time_ms.value
    return MeasuredFigure(1000 / time_ms.value, 1000 / time_ms.high, fastest, time_ms.n)
