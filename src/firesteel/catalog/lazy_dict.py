"""A shelf: things known by name, each read when somebody first takes it down.

The catalog has dozens of files, and most commands want one of them. Names are told by paths, so nothing
needs to be opened to know what there is.
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
        """What has been read so far."""
        return frozenset(self._read)

    def __getitem__(self, name: str) -> T:
        if name not in self._read:
            self._read[name] = self._readers[name]()
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        """Without reading it, which is what a Mapping would do."""
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)
