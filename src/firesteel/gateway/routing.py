"""Choose the replica of a model for a request: the least busy, or one that has processed the same prefix.

An engine caches the attention state of prompts that it has processed. An agent's next turn is its last one
plus a little more: on the same replica only the new part is computed. But a replica that everybody prefers
becomes a queue, and waiting costs more than computing. So a replica that knows the prefix is chosen while it
has at most `SLACK` requests more than the least busy one; otherwise the least busy one is chosen, and knows
the prefix from then on.

Among equals, the replica with the fewest prefixes is chosen, so that conversations spread before there is
load.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

SLACK = 2
MAX_PREFIXES = 4096
"""Prefixes remembered; the least recently used is forgotten first. An engine forgets much sooner."""


class Replicas:
    """The replicas of one model, and the prefixes that each has processed."""

    def __init__(self, count: int, *, slack: int = SLACK, max_prefixes: int = MAX_PREFIXES) -> None:
        self._slack = slack
        self._max_prefixes = max_prefixes
        self._by_prefix: OrderedDict[int, set[int]] = OrderedDict()
        self._prefix_counts = [0] * count

    def pick(self, prefix: int, busy: Sequence[int], is_up: Sequence[bool]) -> int | None:
        """Return an index, or None if no replica is up. `prefix` 0: unknown."""
        candidates = [index for index, up in enumerate(is_up) if up]
        if not candidates:
            return None
        least = min(busy[index] for index in candidates)
        knowing = self._by_prefix.get(prefix, ())
        preferred = [index for index in candidates if index in knowing and busy[index] <= least + self._slack]
        chosen = min(preferred or candidates, key=lambda i: (busy[i], self._prefix_counts[i], i))
        if prefix:
            self._remember(prefix, chosen)
        return chosen

    def _remember(self, prefix: int, index: int) -> None:
        knowing = self._by_prefix.setdefault(prefix, set())
        self._by_prefix.move_to_end(prefix)
        if index not in knowing:
            knowing.add(index)
            self._prefix_counts[index] += 1
        if len(self._by_prefix) > self._max_prefixes:
            _, forgotten = self._by_prefix.popitem(last=False)
            for replica in forgotten:
                self._prefix_counts[replica] -= 1
