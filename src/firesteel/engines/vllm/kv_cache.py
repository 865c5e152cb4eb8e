"""vLLM's pool of KV blocks: how layers share it, how much a request takes, and what the server will print.

Layers -> groups that share one pool of blocks, as in vLLM.

All blocks of a pool have one size, and each group has its own block table, so layers are grouped until every
group fills a block about equally. A model with one kind of layer has one group. Others are split by the
rarest kind: ten full layers and thirty recurrent ones make four groups of ten. `get_kv_cache_groups` in
`v1/core/kv_cache_utils.py`; what each release does is in `tests/engines/kv_cases/README.md`.

vLLM refuses to start when its pool does not hold one request of full length, and prints the size of the pool
in tokens otherwise. Both follow from blocks, and the arithmetic changed with almost every release, so it is
repeated release by release. `tests/engines/kv_cases` holds vLLM's own answers, which these figures equal to
the digit, and describes the arithmetic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from math import ceil

from firesteel.engines.vllm.kv_settings import KvSettings, Release, candidate_releases, read_settings
from firesteel.engines.vllm.kv_specs import Kind, KvSpec, layer_specs, unsupported_model
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import Launch
from firesteel.units import GIB
from firesteel.values import Value, replace

_OUTERMOST = frozenset({"BLHNC", "BLNHC", "BHLNC"})
"""KV layouts in which a block holds the pages of all its layers side by side."""


class KvGroup(Value, dict=True):
    specs: tuple[KvSpec, ...]
    """One per layer."""
    is_mixed: bool = False
    """Layers that need the same tokens and may differ in page: vLLM's `UniformTypeKVCacheSpecs`."""

    @property
    def kind(self) -> Kind:
        return self.specs[0].kind

    @property
    def block_size(self) -> int:
        return self.specs[0].block_size

    @property
    def layers(self) -> int:
        return len(self.specs)

    @property
    def page_bytes(self) -> int:
        """As vLLM counts it: of one layer, or of all layers together where they are mixed."""
        return self.total_page_bytes if self.is_mixed else self.specs[0].page_bytes

    @property
    def total_page_bytes(self) -> int:
        """Bytes that this group needs in a block."""
        return sum(spec.page_bytes for spec in self.specs)

    def blocks(self, settings: KvSettings, length: int) -> int:
        return max(spec.blocks(settings, length) for spec in self._distinct)

    @cached_property
    def _distinct(self) -> set[KvSpec]:
        return set(self.specs)

    @property
    def page_sizes(self) -> Counter[int]:
        """Bytes of a page -> how many layers have it."""
        return Counter(spec.page_bytes for spec in self.specs)

    @property
    def repeats(self) -> int:
        """Layers with the most common page size."""
        return max(self.page_sizes.values())

    @property
    def is_balanced(self) -> bool:
        """Whether every page size has equally many layers."""
        return len(set(self.page_sizes.values())) == 1


def group_layers(settings: KvSettings, specs: Sequence[KvSpec]) -> tuple[KvGroup, ...]:
    """The first rule that applies decides."""
    if not settings.is_hybrid_managed:
        specs = _promote_windows(specs, settings.release)
    if not specs:
        return ()
    if _are_equal(specs):
        return (KvGroup(tuple(specs)),)
    if _need_same_tokens(specs):
        return (KvGroup(tuple(specs), is_mixed=True),)
    if settings.release < (0, 29) and any(spec.kind == "sliding_mla" for spec in specs):
        return _group_deepseek_v4(specs, settings.release)
    if (
        settings.release >= (0, 29)
        and settings.layout in _OUTERMOST
        and len({spec.page_bytes for spec in specs}) > 1
    ):
        return _group_packed(specs, settings.release)
    return _group_by_equal_page(specs, settings.release)


def block_bytes(settings: KvSettings, groups: Sequence[KvGroup]) -> int:
    """The size of one block of the pool."""
    if settings.release < (0, 27) and len(groups) > 1 and all(group.is_mixed for group in groups):
        slots: Counter[int] = Counter()
        for group in groups:
            slots |= group.page_sizes
        return sum(page_bytes * count for page_bytes, count in slots.items())
    return max((group.total_page_bytes for group in groups), default=0)


def _are_equal(specs: Iterable[KvSpec]) -> bool:
    """Whether all are of one kind. Full layers may differ in a window that is computed and not stored."""
    distinct = set(specs)
    windows = {spec.window for spec in distinct if spec.kind == "full" and spec.window}
    alike = {replace(spec, window=0) if spec.kind == "full" else spec for spec in distinct}
    return len(alike) == 1 and len(windows) <= 1


def _need_same_tokens(specs: Sequence[KvSpec]) -> bool:
    """Whether all need the same tokens, so that one block table is enough."""
    return len({_token_needs(spec) for spec in specs}) == 1


def _token_needs(spec: KvSpec) -> tuple[str, int, int, int]:
    if spec.kind in ("full", "mla"):
        return "full", spec.block_size, 0, 0
    return spec.kind, spec.block_size, spec.window, spec.variant[0] if spec.kind == "mamba" else 0


def _promote_windows(specs: Sequence[KvSpec], release: Release) -> Sequence[KvSpec]:
    """Without the hybrid manager, sliding layers keep every token if other layers do."""
    if (
        _are_equal(specs)
        or _need_same_tokens(specs)
        or not any(spec.kind in ("full", "mla") for spec in specs)
    ):
        return specs
    if any(spec.kind == "mamba" for spec in specs):
        raise unsupported_model("`--disable-hybrid-kv-cache-manager` with recurrent layers")
    # 0.24 to 0.26 lost a field in the conversion, so that the two kinds were no longer equal
    mark = (0,) if (0, 24) <= release < (0, 27) else ()
    return [
        replace(spec, kind="full", variant=(*spec.variant, *mark))
        if spec.kind in ("sliding", "chunked")
        else spec
        for spec in specs
    ]


def _group_by_equal_page(specs: Sequence[KvSpec], release: Release) -> tuple[KvGroup, ...]:
    page_bytes = max(spec.page_bytes for spec in specs)
    if release >= (0, 27) and any(not _can_resize(spec, page_bytes, release) for spec in specs):
        return _promote_all(specs)
    resized = {spec: _resize_page(spec, page_bytes, release) for spec in dict.fromkeys(specs)}
    buckets = _group_by([resized[spec] for spec in specs], lambda spec: spec)
    smallest, largest = min(map(len, buckets)), max(map(len, buckets))
    limit = 1.5 if release >= (0, 18) else 1.25
    size = largest if release >= (0, 12) and largest < limit * smallest else smallest
    groups = []
    for bucket in buckets:
        parts = ceil(len(bucket) / size)
        groups += [KvGroup(tuple(bucket[part::parts])) for part in range(parts)]
    return tuple(groups)


def _promote_all(specs: Sequence[KvSpec]) -> tuple[KvGroup, ...]:
    """MLA and windows whose pages cannot be resized: the windows keep every token."""
    promoted = [replace(spec, kind="full") if spec.kind == "sliding" else spec for spec in specs]
    if any(spec.kind == "chunked" for spec in specs) or not _need_same_tokens(promoted):
        raise unsupported_model("a page of MLA does not divide the largest page, and cannot be padded")
    return (KvGroup(tuple(promoted), is_mixed=True),)


def _resize_page(spec: KvSpec, page_bytes: int, release: Release) -> KvSpec:
    if not page_bytes % spec.page_bytes and spec.kind != "mamba":
        return replace(
            spec, block_size=spec.block_size * (page_bytes // spec.page_bytes), page_bytes=page_bytes
        )
    if spec.page_bytes != page_bytes and not _can_resize(spec, page_bytes, release):
        raise unsupported_model("a layer's page does not divide the largest page (padded from 0.24)")
    return replace(spec, page_bytes=page_bytes)


def _can_resize(spec: KvSpec, page_bytes: int, release: Release) -> bool:
    """Whether a page can be made as large as the largest, with more tokens or with padding."""
    if spec.kind == "mamba":
        return spec.page_bytes == page_bytes or release >= (0, 26)
    return not page_bytes % spec.page_bytes or (release >= (0, 24) and spec.kind != "mla")


def _group_by(specs: Iterable[KvSpec], key: Callable[[KvSpec], Hashable]) -> list[list[KvSpec]]:
    """Layers with equal keys, in the order of the first of each."""
    groups: dict[Hashable, list[KvSpec]] = {}
    for spec in specs:
        groups.setdefault(key(spec), []).append(spec)
    return list(groups.values())


def _group_by_token_needs(specs: Sequence[KvSpec]) -> list[KvGroup]:
    """Layers that need the same tokens."""
    return [KvGroup(tuple(group), is_mixed=True) for group in _group_by(specs, _token_needs)]


def _group_deepseek_v4(specs: Sequence[KvSpec], release: Release) -> tuple[KvGroup, ...]:
    """DeepSeek-V4 up to 0.28: windows are split to match the compressed layers, and padded to their pages."""
    full = KvGroup(tuple(spec for spec in specs if spec.kind == "mla"), is_mixed=True)
    windows = _group_by_token_needs([spec for spec in specs if spec.kind != "mla"])
    size = _least_padding([full.repeats, *(group.repeats for group in windows)], full.repeats)
    pages = sorted({spec.page_bytes for spec in full.specs})

    def padded(spec: KvSpec) -> KvSpec:
        if release >= (0, 27):
            return spec
        return replace(
            spec, page_bytes=min(page_bytes for page_bytes in pages if page_bytes >= spec.page_bytes)
        )

    groups = [full]
    for group in windows:
        wide = KvGroup(tuple(padded(spec) for spec in group.specs), is_mixed=True)
        groups += _split_group(wide, ceil(wide.repeats / size))
    return tuple(groups)


def _split_group(group: KvGroup, parts: int) -> list[KvGroup]:
    """Every part gets its share of each page size."""
    if parts == 1:
        return [group]
    by_page = _group_by(group.specs, lambda spec: spec.page_bytes)
    repeats = list(zip(*by_page, strict=False))
    return [
        KvGroup(tuple(spec for repeat in repeats[part::parts] for spec in repeat), is_mixed=True)
        for part in range(parts)
    ]


def _group_packed(specs: Sequence[KvSpec], release: Release) -> tuple[KvGroup, ...]:
    """Blocks outermost: pages keep their size, and a block is as large as the largest group."""
    buckets = _group_by_token_needs(specs)
    balanced = [bucket for bucket in buckets if bucket.is_balanced]
    floor = max((bucket.repeats for bucket in balanced if len(bucket.page_sizes) > 1), default=0)
    size = _least_padding([bucket.repeats for bucket in balanced], floor) if floor else None

    def parts(bucket: KvGroup) -> int:
        return ceil(bucket.repeats / size) if size and bucket.is_balanced else 1

    def is_state(bucket: KvGroup) -> bool:
        slides = bucket.kind in ("sliding", "sliding_mla") and size is None and release >= (0, 30)
        return bucket.kind == "mamba" or slides

    # States are spread so that none of their groups needs a larger block than the other layers do.
    anchor = max(_part_bytes(b, b.layers if is_state(b) else parts(b)) for b in buckets)
    groups: list[KvGroup] = []
    for bucket in buckets:
        count = parts(bucket)
        if is_state(bucket):
            count = max(count, ceil(bucket.layers / max(anchor // bucket.specs[0].page_bytes, 1)))
        groups += _split_group(bucket, count)
    return tuple(groups)


def _part_bytes(bucket: KvGroup, parts: int) -> int:
    """Bytes of the largest part."""
    return sum(ceil(count / parts) * page_bytes for page_bytes, count in bucket.page_sizes.items())


def _least_padding(values: Sequence[int], smallest: int) -> int:
    """The size, from `smallest` up, to whose multiples all values can be rounded up with the least waste."""
    sizes = range(max(1, smallest), max(values) + 1)
    return min(
        sizes, key=lambda size: (sum(-value % size for value in values), -size), default=max(1, smallest)
    )


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
        usable_bytes = pool_bytes - self._null_bytes
        if self.settings.num_blocks_override and self.settings.release >= (0, 20, 1):
            usable_bytes = self.settings.num_blocks_override * self.block_bytes - self._null_bytes
        fits = self.request_bytes <= usable_bytes
        # More tokens never need fewer bytes, so the longest request that fits can be bisected.
        lengths = range(1, self.context + 1)
        largest = self.context if fits else bisect_right(lengths, usable_bytes, key=self.request_bytes_at)
        if not fits and not (auto and largest):
            gib = self.request_bytes / GIB
            text = f"{gib:.2f}" if self.settings.release < (0, 14) else str(round(gib, 2))
            return ReportedKv(0, 0, 0.0, self.context, KvRefusal(self.request_bytes, text, largest))
        blocks = self.num_blocks(pool_bytes)
        concurrency = blocks / self._blocks_for_concurrency(largest)
        tokens = int(concurrency * largest)
        if self.settings.release < (0, 20, 1):
            tokens = blocks // len(self.groups) * min(group.block_size for group in self.groups)
        return ReportedKv(blocks, tokens, concurrency, largest)

    @property
    def _null_bytes(self) -> int:
        """Block 0 is never allocated; from 0.29 on the check at start counts it."""
        return self.block_bytes if self.settings.release >= (0, 29) else 0

    def _blocks(self, length: int) -> int:
        return sum(group.blocks(self.settings, length) for group in self.groups)

    def _blocks_for_concurrency(self, length: int) -> int:
        if self.settings.release >= (0, 27) or not self.groups:
            return max(1, self._blocks(length))
        total_page_bytes = sum(
            group.blocks(self.settings, length) * group.page_bytes for group in self.groups
        )
        return ceil(total_page_bytes / self.groups[0].page_bytes)


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
