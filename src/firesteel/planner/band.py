"""A figure that is not exact: the expected value and the range it may lie in."""

from __future__ import annotations

from firesteel.values import FileValue, Value


class Band(Value):
    low: float
    expected: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Band:
        return cls(value, value, value)

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def __add__(self, other: Band) -> Band:
        return Band(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def scaled(self, factor: float) -> Band:
        return Band(self.low * factor, self.expected * factor, self.high * factor)


class BandSchema(FileValue, kw_only=True):
    """A band in a file, alone or with more keys."""

    low: float
    expected: float
    high: float
