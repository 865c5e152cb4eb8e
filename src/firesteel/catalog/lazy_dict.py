"""A mapping whose values are read at first use.

The catalog has dozens of files, and most commands need one of them. The keys come from the paths, so no
file has to be opened to list them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class LazyDict(Mapping[str, T], Generic[T]):
    def __init__(self, readers: Mapping[str, Callable[[], T]]) -> None:
        self._readers = readers
        self._read: dict[str, T] = {}

    @property
    def opened(self) -> frozenset[str]:
        """The keys whose values have been read."""
        return frozenset(self._read)

    def __getitem__(self, name: str) -> T:
        if name not in self._read:
            self._read[name] = self._readers[name]()
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        """Mapping's own method would read the value."""
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)
