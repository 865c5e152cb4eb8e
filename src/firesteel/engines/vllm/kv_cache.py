"""vLLM's pool of KV blocks: what a request takes of it, and what the server will print about it.

vLLM refuses to start when its pool does not hold one request of the whole length, and prints its size in
tokens otherwise. Both follow from blocks, and the arithmetic changed with almost every release, so it is
followed release by release. `tests/engines/kv_cases` holds vLLM's own answers, which these figures equal to
the digit, and the arithmetic in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from firesteel.engines.vllm.kv_groups import KvGroup, block_bytes, group_layers
from firesteel.engines.vllm.kv_settings import KvSettings, Release, candidate_releases, read_settings
from firesteel.engines.vllm.kv_specs import KvSpec, layer_specs
from firesteel.errors import UsageError
from firesteel.facts import Architecture
from firesteel.launch import Launch
from firesteel.units import GIB


@dataclass(frozen=True, slots=True)
class KvRefusal:
    """vLLM will not start, in the figures of its own message."""

    needed_bytes: int
    needed_gib: str
    """As the message has it: `10.0`, and `10.00` before 0.14."""
    largest_context: int
    """The longest request that the pool would hold; 0: none."""


@dataclass(frozen=True, slots=True)
class ReportedKv:
    """The two figures of the boot log, and the blocks behind them."""

    num_blocks: int
    tokens: int
    """`GPU KV cache size: ... tokens`. Up to 0.20.0 it says nothing true of models with several groups."""
    concurrency: float
    context: int
    """The length that concurrency is for: what was asked, or what `--max-model-len -1` found."""
    refused: KvRefusal | None = None

    @property
    def concurrency_text(self) -> str:
        """As in `Maximum concurrency for ... tokens per request: ...x`."""
        return f"{self.concurrency:.2f}"


@dataclass(frozen=True, slots=True)
class VllmPool:
    settings: KvSettings
    specs: tuple[KvSpec, ...]
    groups: tuple[KvGroup, ...]
    context: int
    block_bytes: int
    """One block, in all layers of its group."""

    @property
    def unsure(self) -> str:
        """Why these may not be vLLM's own figures; empty when they are."""
        return self.settings.unsure

    @property
    def blocks_per_request(self) -> int:
        """Of the whole context."""
        return self._blocks(self.context)

    @property
    def request_bytes(self) -> int:
        """`... GiB KV cache is needed`."""
        return self.request_bytes_at(self.context)

    @property
    def least_bytes(self) -> int:
        """The smallest pool that vLLM starts with."""
        return self.request_bytes + self._null_bytes

    def request_bytes_at(self, length: int) -> int:
        release, found = self.settings.release, self.groups
        if release < (0, 14) or (release < (0, 29) and len(found) == 1 and found[0].is_mixed):
            layers = self.specs if release < (0, 14) else found[0].specs
            return sum(spec.page * spec.blocks(self.settings, length) for spec in layers)
        if release < (0, 29) and all(group.is_mixed for group in found):
            tuple_bytes = sum({spec.page for spec in found[0].specs})
            return max(group.repeats for group in found) * tuple_bytes * self._blocks(length)
        return self.block_bytes * self._blocks(length)

    def num_blocks(self, pool_bytes: int) -> int:
        return self.settings.blocks or (pool_bytes // self.block_bytes if self.block_bytes else 1)

    def reported(self, pool_bytes: int, *, auto: bool = False) -> ReportedKv:
        """What a server with this pool prints; `auto` is `--max-model-len -1`, which cuts it to fit."""
        room = self._room(pool_bytes)
        fits = self.request_bytes <= room
        largest = self.context if fits else self._largest(room)
        if not fits and not (auto and largest):
            return ReportedKv(0, 0, 0.0, self.context, self._refused(largest))
        blocks = self.num_blocks(pool_bytes)
        concurrency = blocks / self._blocks_for_concurrency(largest)
        return ReportedKv(blocks, self._tokens(blocks, concurrency, largest), concurrency, largest)

    def _refused(self, largest: int) -> KvRefusal:
        gib = self.request_bytes / GIB
        text = f"{gib:.2f}" if self.settings.release < (0, 14) else str(round(gib, 2))
        return KvRefusal(self.request_bytes, text, largest)

    @property
    def _null_bytes(self) -> int:
        """Block 0 is never given out; from 0.29 the refusal counts it."""
        return self.block_bytes if self.settings.release >= (0, 29) else 0

    def _room(self, pool_bytes: int) -> int:
        if self.settings.blocks and self.settings.release >= (0, 20, 1):
            pool_bytes = self.settings.blocks * self.block_bytes
        return pool_bytes - self._null_bytes

    def _blocks(self, length: int) -> int:
        return sum(group.blocks(self.settings, length) for group in self.groups)

    def _blocks_for_concurrency(self, length: int) -> int:
        if self.settings.release >= (0, 27) or not self.groups:
            return max(1, self._blocks(length))
        total = sum(group.blocks(self.settings, length) * group.page for group in self.groups)
        return ceil(total / self.groups[0].page)

    def _tokens(self, blocks: int, concurrency: float, length: int) -> int:
        if self.settings.release >= (0, 20, 1):
            return int(concurrency * length)
        return blocks // len(self.groups) * min(group.block for group in self.groups)

    def _largest(self, room: int) -> int:
        return _last(lambda length: self.request_bytes_at(length) <= room, self.context)


def vllm_pool(launch: Launch, shape: Architecture, context: int) -> VllmPool:
    return _pool(read_settings(launch, shape), shape, context)


def vllm_pools(launch: Launch, shape: Architecture, context: int) -> tuple[VllmPool, ...]:
    """The pools that the launch may turn out to have: one, or one a release where that is not known."""
    releases = candidate_releases(launch)
    if len(releases) == 1:
        return (_pool(read_settings(launch, shape, releases[0]), shape, context),)
    return tuple(pool for release in releases for pool in _if_it_runs(launch, shape, context, release))


def _if_it_runs(launch: Launch, shape: Architecture, context: int, release: Release) -> list[VllmPool]:
    """Older releases refuse some models outright."""
    try:
        return [_pool(read_settings(launch, shape, release), shape, context)]
    except UsageError:
        return []


def _pool(known: KvSettings, shape: Architecture, context: int) -> VllmPool:
    layers = layer_specs(known, shape, context)
    found = group_layers(known, layers)
    return VllmPool(known, layers, found, context, block_bytes(known, found))


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which it holds, 0 for none; it must hold for all below it."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
