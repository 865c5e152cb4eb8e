"""Which points of two runs correspond: equal loads first, then, for imported runs, the nearest. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, Point
from firesteel.values import replace

_MAX_SIZE_DIFFERENCE = 0.05
"""How far prompts and answers of another tool may differ in tokens: it may count the chat template or not,
and may let answers end early."""
IndexPair = tuple[int, int]


def match_points(first: StoredRun, second: StoredRun) -> list[IndexPair]:
    """Pairs of indices; each point is used once. The name of the shape does not matter."""
    a, b = first.run, second.run
    free: dict[Point, list[int]] = defaultdict(list)
    for index, point in enumerate(b.points):
        free[replace(point, shape="")].append(index)
    loads = [replace(point, shape="") for point in a.points]
    pairs = [(index, free[load].pop(0)) for index, load in enumerate(loads) if free[load]]
    if first.is_own and second.is_own:
        return pairs
    return sorted((*pairs, *_nearest(a, b, pairs)))


def _nearest(a: BenchRun, b: BenchRun, pairs: Sequence[IndexPair]) -> Iterator[IndexPair]:
    used, used_other = {one for one, _ in pairs}, {other for _, other in pairs}
    left = [index for index in range(len(b.points)) if index not in used_other]
    for index, point in enumerate(a.points):
        if index in used or not left:
            continue
        nearest = min(left, key=lambda other: size_difference(point, b.points[other]))
        if size_difference(point, b.points[nearest]) <= _MAX_SIZE_DIFFERENCE:
            left.remove(nearest)
            yield index, nearest


def size_difference(one: Point, other: Point) -> float:
    """The larger relative difference of prompts and answers; 2 if the loads differ in anything else."""
    same = replace(other, shape=one.shape, prompt_tokens=one.prompt_tokens, answer_tokens=one.answer_tokens)
    if same != one:
        return 2.0
    sizes = ((one.prompt_tokens, other.prompt_tokens), (one.answer_tokens, other.answer_tokens))
    return max(abs(a - b) / max(a, b, 1) for a, b in sizes)
