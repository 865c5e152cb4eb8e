"""Which replica of a model gets a request: the least busy, or the one that has seen how the prompt begins.

An engine keeps the attention state of prompts it has read. An agent's next turn is its last one and a little
more: on the same replica only the little is computed. But a replica that everybody likes is a queue, and
waiting costs more than reading. So a replica that knows the beginning is taken while it is at most `SLACK`
requests above the least busy one; else the least busy takes it, and knows it too from then on.

Among equals, the one that has been given the fewest beginnings, so that conversations spread before there is
a load.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

SLACK = 2
MEMORY = 4096
"""Beginnings remembered; the longest unused is forgotten first. An engine forgets much sooner."""


class Replicas:
    """The replicas of one model. Told what each is busy with, it says who is next."""

    def __init__(self, count: int, *, slack: int = SLACK, memory: int = MEMORY) -> None:
        self._slack = slack
        self._memory = memory
        self._knows: OrderedDict[int, set[int]] = OrderedDict()
        self._known = [0] * count
        """How many beginnings each knows."""

    def pick(self, prefix: int, busy: Sequence[int], is_up: Sequence[bool]) -> int | None:
        """Its index, or None if none is up. `prefix` 0: unknown."""
        up = [index for index, up in enumerate(is_up) if up]
        if not up:
            return None
        least = min(busy[index] for index in up)
        near = [index for index in up if busy[index] <= least + self._slack]
        knowing = [index for index in near if index in self._knows.get(prefix, ())]
        chosen = self._best(knowing or up, busy)
        if prefix:
            self._remember(prefix, chosen)
        return chosen

    def forget(self, index: int) -> None:
        """A replica went: what comes back in its place has read nothing."""
        for knowing in self._knows.values():
            knowing.discard(index)
        self._known[index] = 0

    def _best(self, among: Iterable[int], busy: Sequence[int]) -> int:
        return min(among, key=lambda index: (busy[index], self._known[index], index))

    def _remember(self, prefix: int, index: int) -> None:
        knowing = self._knows.setdefault(prefix, set())
        self._knows.move_to_end(prefix)
        if index not in knowing:
            knowing.add(index)
            self._known[index] += 1
        if len(self._knows) > self._memory:
            _, forgotten = self._knows.popitem(last=False)
            for one in forgotten:
                self._known[one] -= 1
