"""Layers -> groups, as vLLM shares one pool of blocks among them.

All blocks of a pool have one size, and each group has a block table of its own, so layers are grouped until
every group fills a block about equally. Models of one kind have one group. Others are cut along the rarest
kind: ten full layers and thirty recurrent ones make four groups of ten. `get_kv_cache_groups` in
`v1/core/kv_cache_utils.py`; what each release does is in `tests/engines/kv_cases/README.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from firesteel.engines.vllm.kv_settings import KvSettings, Release
from firesteel.engines.vllm.kv_specs import Kind, KvSpec, unsupported_model

_OUTERMOST = frozenset({"BLHNC", "BLNHC", "BHLNC"})
"""KV layouts in which a block holds the pages of all its layers side by side."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    specs: tuple[KvSpec, ...]
    """One a layer."""
    is_mixed: bool = False
    """Layers that need the same tokens and may differ in page: vLLM's `UniformTypeKVCacheSpecs`."""

    @property
    def kind(self) -> Kind:
        return self.specs[0].kind

    @property
    def block(self) -> int:
        return self.specs[0].block

    @property
    def layers(self) -> int:
        return len(self.specs)

    @property
    def page(self) -> int:
        """As vLLM has it: of one layer, or of all together where they are mixed."""
        return self.total if self.is_mixed else self.specs[0].page

    @property
    def total(self) -> int:
        """Bytes that a block must have for this group."""
        return sum(spec.page for spec in self.specs)

    def blocks(self, settings: KvSettings, length: int) -> int:
        return max(spec.blocks(settings, length) for spec in set(self.specs))

    @property
    def repeats(self) -> int:
        """Layers of the commonest page size."""
        return Counter(spec.page for spec in self.specs).most_common(1)[0][1]


def group_layers(settings: KvSettings, specs: Sequence[KvSpec]) -> tuple[KvGroup, ...]:
    """The first rule that fits."""
    if not settings.hybrid:
        specs = _promoted(specs, settings.release)
    if not specs:
        return ()
    if _merge(specs):
        return (KvGroup(tuple(specs)),)
    if _is_one_type(specs):
        return (KvGroup(tuple(specs), is_mixed=True),)
    if settings.release < (0, 29) and any(spec.kind == "sliding_mla" for spec in specs):
        return _in_tuples(specs, settings.release)
    if settings.release >= (0, 29) and settings.layout in _OUTERMOST and len({s.page for s in specs}) > 1:
        return _packed(specs, settings.release)
    return _of_one_page(specs, settings.release)


def block_bytes(settings: KvSettings, found: Sequence[KvGroup]) -> int:
    """One block of the pool."""
    if settings.release < (0, 27) and len(found) > 1 and all(group.is_mixed for group in found):
        slots: Counter[int] = Counter()
        for group in found:
            slots |= Counter(spec.page for spec in group.specs)
        return sum(page * many for page, many in slots.items())
    return max((group.total for group in found), default=0)


def _merge(specs: Iterable[KvSpec]) -> bool:
    """Whether all are one kind. Full layers may differ in a window that is computed and not kept."""
    windows = {spec.reach for spec in specs if spec.kind == "full" and spec.reach}
    alike = {replace(spec, reach=0) if spec.kind == "full" else spec for spec in specs}
    return len(alike) == 1 and len(windows) <= 1


def _is_one_type(specs: Sequence[KvSpec]) -> bool:
    """Whether all need the same tokens, so that one block table does."""
    return len({_type(spec) for spec in specs}) == 1


def _type(spec: KvSpec) -> tuple[str, int, int, int]:
    kind = "full" if spec.kind == "mla" else spec.kind
    is_full = kind == "full"
    states = spec.content[0] if spec.kind == "mamba" else 0
    return kind, spec.block, 0 if is_full else spec.reach, states


def _promoted(specs: Sequence[KvSpec], release: Release) -> Sequence[KvSpec]:
    """Without the hybrid manager, layers that slide keep everything where others do."""
    if _merge(specs) or _is_one_type(specs) or not any(spec.kind in ("full", "mla") for spec in specs):
        return specs
    if any(spec.kind == "mamba" for spec in specs):
        raise unsupported_model("`--disable-hybrid-kv-cache-manager` with recurrent layers")
    # 0.24 to 0.26 forgot a field on the way, so that the two kinds were no longer one
    mark = (0,) if (0, 24) <= release < (0, 27) else ()
    return [
        replace(spec, kind="full", content=(*spec.content, *mark))
        if spec.kind in ("sliding", "chunked")
        else spec
        for spec in specs
    ]


def _of_one_page(specs: Sequence[KvSpec], release: Release) -> tuple[KvGroup, ...]:
    page = max(spec.page for spec in specs)
    if release >= (0, 27) and any(not _can_have(spec, page, release) for spec in specs):
        return _all_full(specs)
    buckets = _buckets([_with_page(spec, page, release) for spec in specs])
    least, most = min(map(len, buckets)), max(map(len, buckets))
    near = 1.5 if release >= (0, 18) else 1.25
    size = most if release >= (0, 12) and most < near * least else least
    return tuple(KvGroup(part) for bucket in buckets for part in _split(bucket, ceil(len(bucket) / size)))


def _all_full(specs: Sequence[KvSpec]) -> tuple[KvGroup, ...]:
    """MLA beside windows whose pages do not fit: the windows are kept whole."""
    promoted = [replace(spec, kind="full") if spec.kind == "sliding" else spec for spec in specs]
    if any(spec.kind == "chunked" for spec in specs) or not _is_one_type(promoted):
        raise unsupported_model("a page of MLA does not divide the largest page, and cannot be padded")
    return (KvGroup(tuple(promoted), is_mixed=True),)


def _with_page(spec: KvSpec, page: int, release: Release) -> KvSpec:
    if not page % spec.page and spec.kind != "mamba":
        return replace(spec, block=spec.block * (page // spec.page), page=page)
    if spec.page != page and not _can_have(spec, page, release):
        raise unsupported_model("a layer's page does not divide the largest page (padded from 0.24)")
    return replace(spec, page=page)


def _can_have(spec: KvSpec, page: int, release: Release) -> bool:
    """Whether a page can be made as large as the largest, by more tokens or by padding."""
    if spec.kind == "mamba":
        return spec.page == page or release >= (0, 26)
    return not page % spec.page or (release >= (0, 24) and spec.kind != "mla")


def _buckets(specs: Sequence[KvSpec]) -> list[list[KvSpec]]:
    """Layers kind by kind, in the order of their first."""
    found: dict[KvSpec, list[KvSpec]] = {}
    for spec in specs:
        found.setdefault(spec, []).append(spec)
    return list(found.values())


def _split(bucket: Sequence[KvSpec], parts: int) -> list[tuple[KvSpec, ...]]:
    return [tuple(bucket[part::parts]) for part in range(parts)]


def _types(specs: Sequence[KvSpec]) -> list[KvGroup]:
    """Layers that need the same tokens, type by type, in the order of their first."""
    found: dict[tuple[str, int, int, int], list[KvSpec]] = {}
    for spec in specs:
        found.setdefault(_type(spec), []).append(spec)
    return [KvGroup(tuple(bucket), is_mixed=True) for bucket in found.values()]


def _in_tuples(specs: Sequence[KvSpec], release: Release) -> tuple[KvGroup, ...]:
    """DeepSeek-V4 up to 0.28: windows are cut to match the compressed layers, and padded to their pages."""
    full = KvGroup(tuple(spec for spec in specs if spec.kind == "mla"), is_mixed=True)
    windows = _types([spec for spec in specs if spec.kind != "mla"])
    size = _least_padding([full.repeats, *(group.repeats for group in windows)], full.repeats)
    pages = sorted({spec.page for spec in full.specs})

    def padded(spec: KvSpec) -> KvSpec:
        if release >= (0, 27):
            return spec
        return replace(spec, page=min(page for page in pages if page >= spec.page))

    found = [full]
    for group in windows:
        wide = KvGroup(tuple(padded(spec) for spec in group.specs), is_mixed=True)
        found += _cut(wide, ceil(wide.repeats / size))
    return tuple(found)


def _cut(group: KvGroup, parts: int) -> list[KvGroup]:
    """Every group gets its share of each page size."""
    if parts == 1:
        return [group]
    by_page: dict[int, list[KvSpec]] = {}
    for spec in group.specs:
        by_page.setdefault(spec.page, []).append(spec)
    repeats = list(zip(*by_page.values(), strict=False))
    return [
        KvGroup(tuple(spec for repeat in repeats[part::parts] for spec in repeat), is_mixed=True)
        for part in range(parts)
    ]


def _packed(specs: Sequence[KvSpec], release: Release) -> tuple[KvGroup, ...]:
    """Blocks outermost: pages stay as they are, and a block is as wide as the widest group."""
    buckets = _types(specs)
    floor = max((b.repeats for b in buckets if _is_balanced(b) and len(_pages(b)) > 1), default=0)
    balanced = [bucket.repeats for bucket in buckets if _is_balanced(bucket)]
    size = _least_padding(balanced, floor) if floor else None

    def parts(bucket: KvGroup) -> int:
        return ceil(bucket.repeats / size) if size and _is_balanced(bucket) else 1

    def is_state(bucket: KvGroup) -> bool:
        slides = bucket.kind in ("sliding", "sliding_mla") and size is None and release >= (0, 30)
        return bucket.kind == "mamba" or slides

    anchor = max(_widest(b, b.layers if is_state(b) else parts(b)) for b in buckets)
    return tuple(cut for bucket in buckets for cut in _cut(bucket, _parts(bucket, parts, is_state, anchor)))


def _parts(
    bucket: KvGroup, parts: Callable[[KvGroup], int], is_state: Callable[[KvGroup], bool], anchor: int
) -> int:
    if not is_state(bucket):
        return parts(bucket)
    fit = max(anchor // bucket.specs[0].page, 1)
    return max(parts(bucket), ceil(bucket.layers / fit))


def _pages(bucket: KvGroup) -> Counter[int]:
    return Counter(spec.page for spec in bucket.specs)


def _is_balanced(bucket: KvGroup) -> bool:
    return len(set(_pages(bucket).values())) == 1


def _widest(bucket: KvGroup, parts: int) -> int:
    return sum(ceil(many / parts) * page for page, many in _pages(bucket).items())


def _least_padding(values: Sequence[int], least: int) -> int:
    """The size, from `least` up, to whose multiples all values are rounded up with the least waste."""
    sizes = range(max(1, least), max(values) + 1)
    return min(sizes, key=lambda size: (sum(-value % size for value in values), -size), default=max(1, least))
