"""vLLM's pool of KV blocks: how much a request takes, and what the server will print about the pool.

vLLM refuses to start when its pool does not hold one request of full length, and prints the size of the pool
in tokens otherwise. Both follow from blocks, and the arithmetic changed with almost every release, so it is
repeated release by release. `tests/engines/kv_cases` holds vLLM's own answers, which these figures equal to
the digit, and describes the arithmetic.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from math import ceil

from firesteel.engines.vllm.kv_groups import KvGroup, block_bytes, group_layers
from firesteel.engines.vllm.kv_settings import KvSettings, candidate_releases, read_settings
from firesteel.engines.vllm.kv_specs import KvSpec, layer_specs
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import Launch
from firesteel.units import GIB
from firesteel.values import Value, replace


class KvRefusal(Value):
    """vLLM will not start: the figures of its own message."""

    needed_bytes: int
    needed_gib: str
    """As in the message: `10.0`, and `10.00` before 0.14."""
    largest_context: int
    """The longest request that the pool would hold; 0: none."""


class ReportedKv(Value):
    """The two figures of the boot log, and the blocks behind them."""

    num_blocks: int
    tokens: int
    """`GPU KV cache size: ... tokens`. Up to 0.20.0 it is wrong for models with several groups."""
    concurrency: float
    context: int
    """The length that `concurrency` is for: the requested one, or the one that `--max-model-len -1` found."""
    refused: KvRefusal | None = None

    @property
    def concurrency_text(self) -> str:
        """As in `Maximum concurrency for ... tokens per request: ...x`."""
        return f"{self.concurrency:.2f}"


class VllmPool(Value):
    settings: KvSettings
    specs: tuple[KvSpec, ...]
    groups: tuple[KvGroup, ...]
    context: int
    block_bytes: int
    """One block, in all layers of its group."""

    @property
    def unsure(self) -> str:
        """Why these figures may differ from vLLM's own; empty when they do not."""
        return self.settings.unsure

    @property
    def request_bytes(self) -> int:
        """`... GiB KV cache is needed`."""
        return self.request_bytes_at(self.context)

    def bytes_for(self, users: int) -> int:
        """What that many requests of full length hold at once, in whole blocks.

        The tokens of a step are shared: while one request is read, the others hold what they keep between
        steps, which for a sliding window is the window. Releases before 0.14 count the pages of single layers
        when they check their pool at start (`request_bytes`): mostly fewer than the blocks that they use,
        but more where short windows were turned into full attention.
        """
        one_token = replace(self.settings, in_flight_tokens=1 + self.settings.draft_tokens)
        between_steps = replace(self, settings=one_token)._held_bytes
        first = max(self._held_bytes, self.block_bytes * ceil(self.request_bytes / max(1, self.block_bytes)))
        return first + (users - 1) * between_steps

    @property
    def _held_bytes(self) -> int:
        return self.block_bytes * self._blocks(self.context)

    def resident(self, pool_bytes: int) -> int:
        """How many requests of full length a pool holds at once; vLLM prints fewer where windows slide."""
        usable = self.num_blocks(pool_bytes) * self.block_bytes - self.block_bytes  # block 0 is never used
        if usable < self._held_bytes:
            return 0
        each = self.bytes_for(2) - self.bytes_for(1)
        return 1 + (usable - self._held_bytes) // max(1, each)

    @property
    def least_bytes(self) -> int:
        """The smallest pool that vLLM starts with."""
        return self.request_bytes + self._null_bytes

    def request_bytes_at(self, length: int) -> int:
        release, groups = self.settings.release, self.groups
        if release < (0, 14) or (release < (0, 29) and len(groups) == 1 and groups[0].is_mixed):
            layers = self.specs if release < (0, 14) else groups[0].specs
            return sum(spec.page_bytes * spec.blocks(self.settings, length) for spec in layers)
        if release < (0, 29) and all(group.is_mixed for group in groups):
            tuple_bytes = sum({spec.page_bytes for spec in groups[0].specs})
            return max(group.repeats for group in groups) * tuple_bytes * self._blocks(length)
        return self.block_bytes * self._blocks(length)

    def num_blocks(self, pool_bytes: int) -> int:
        return self.settings.num_blocks_override or (
            pool_bytes // self.block_bytes if self.block_bytes else 1
        )

    def reported(self, pool_bytes: int, *, auto: bool = False) -> ReportedKv:
        """What a server with this pool prints; `auto` is `--max-model-len -1`, which shortens the context to
        fit."""
        usable_bytes = self._usable_bytes(pool_bytes)
        fits = self.request_bytes <= usable_bytes
        # More tokens never need fewer bytes, so the longest request that fits can be bisected.
        lengths = range(1, self.context + 1)
        largest = self.context if fits else bisect_right(lengths, usable_bytes, key=self.request_bytes_at)
        if not fits and not (auto and largest):
            return ReportedKv(0, 0, 0.0, self.context, self._refusal(largest))
        blocks = self.num_blocks(pool_bytes)
        concurrency = blocks / self._blocks_for_concurrency(largest)
        return ReportedKv(blocks, self._tokens(blocks, concurrency, largest), concurrency, largest)

    def _refusal(self, largest: int) -> KvRefusal:
        gib = self.request_bytes / GIB
        text = f"{gib:.2f}" if self.settings.release < (0, 14) else str(round(gib, 2))
        return KvRefusal(self.request_bytes, text, largest)

    @property
    def _null_bytes(self) -> int:
        """Block 0 is never allocated; from 0.29 on the check at start counts it."""
        return self.block_bytes if self.settings.release >= (0, 29) else 0

    def _usable_bytes(self, pool_bytes: int) -> int:
        if self.settings.num_blocks_override and self.settings.release >= (0, 20, 1):
            pool_bytes = self.settings.num_blocks_override * self.block_bytes
        return pool_bytes - self._null_bytes

    def _blocks(self, length: int) -> int:
        return sum(group.blocks(self.settings, length) for group in self.groups)

    def _blocks_for_concurrency(self, length: int) -> int:
        if self.settings.release >= (0, 27) or not self.groups:
            return max(1, self._blocks(length))
        total_page_bytes = sum(
            group.blocks(self.settings, length) * group.page_bytes for group in self.groups
        )
        return ceil(total_page_bytes / self.groups[0].page_bytes)

    def _tokens(self, blocks: int, concurrency: float, length: int) -> int:
        if self.settings.release >= (0, 20, 1):
            return int(concurrency * length)
        return blocks // len(self.groups) * min(group.block_size for group in self.groups)


def vllm_pool(launch: Launch, architecture: Architecture, context: int) -> VllmPool:
    return _pool(read_settings(launch, architecture), architecture, context)


def vllm_pools(launch: Launch, architecture: Architecture, context: int) -> tuple[VllmPool, ...]:
    """The pools that the launch may have: one, or one per release where the release is not known."""
    releases = candidate_releases(launch)
    if len(releases) == 1:
        return (_pool(read_settings(launch, architecture, releases[0]), architecture, context),)
    pools = []
    for release in releases:
        with suppress(UsageError):  # older releases do not support some models
            pools.append(_pool(read_settings(launch, architecture, release), architecture, context))
    return tuple(pools)


def _pool(settings: KvSettings, architecture: Architecture, context: int) -> VllmPool:
    layers = layer_specs(settings, architecture, context)
    groups = group_layers(settings, layers)
    return VllmPool(settings, layers, groups, context, block_bytes(settings, groups))
