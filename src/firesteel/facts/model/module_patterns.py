"""Names of modules, as quantizers write them in their ignore lists: exact, part of a path, `*` wildcards,
`re:`.

A config is untrusted input, so the number of patterns and the shape of regular expressions are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from itertools import accumulate

from firesteel.facts.model.weight_format import UnknownQuantization
from firesteel.values import Value

_MAX_PATTERNS = 256
_WILDCARDS = frozenset("*?[")
_MAX_EXPRESSION_CHARS = 200
_MAX_EXPRESSIONS, _MAX_LOOPS = 32, 3
_RISKY = re.compile(r"\)[*+{]|\(\?|\\\d|[*+}][*+{]")
"""A repeated group, and other constructs that can make a regular expression run for ever."""


class ModulePatterns(Value):
    """A set of modules."""

    names: frozenset[str] = frozenset()
    """Modules and everything inside them; any part of a path matches."""
    trees: frozenset[str] = frozenset()
    """The same for whole paths: the meaning of `model.layers.1*`."""
    patterns: tuple[re.Pattern[str], ...] = ()

    def match(self, name: str) -> bool:
        parts = name.split(".")[:16]
        if self.trees and not self.trees.isdisjoint(accumulate(parts, "{}.{}".format)):
            return True
        if self.names and not self.names.isdisjoint(_subpaths(parts, _lengths(self.names))):
            return True
        return any(pattern.match(name) for pattern in self.patterns) if self.patterns else False


def parse_modules(entries: Iterable[object]) -> ModulePatterns:
    """`model.layers.1*` means layer 1 and what is in it, not layers 10 to 19."""
    names: set[str] = set()
    trees: set[str] = set()
    patterns: list[re.Pattern[str]] = []
    expressions = 0
    for entry in entries:
        if not isinstance(entry, str):
            continue
        stem = entry.removesuffix("*").removesuffix(".")
        if entry.startswith("re:"):
            patterns.append(_expression(entry[3:]))
            expressions += 1
        elif _WILDCARDS.isdisjoint(entry):
            names.add(entry)
        elif _WILDCARDS.isdisjoint(stem):
            trees.add(stem)
        else:
            patterns += [re.compile(translate(stem)), re.compile(translate(f"{stem}.*"))]
    if len(patterns) > _MAX_PATTERNS or expressions > _MAX_EXPRESSIONS:
        raise UnknownQuantization(
            f"{len(patterns):,} patterns of module names are more than any real model has"
        )
    return ModulePatterns(frozenset(names), frozenset(trees), tuple(patterns))


def _expression(text: str) -> re.Pattern[str]:
    loops = sum(text.count(sign) for sign in "*+{")
    if len(text) > _MAX_EXPRESSION_CHARS or loops > _MAX_LOOPS or _RISKY.search(text):
        raise UnknownQuantization(f"`re:{text[:80]}` is a pattern of module names that may run for ever")
    try:
        return re.compile(text)
    except re.error as error:
        raise UnknownQuantization(f"`re:{text[:80]}` is not a regular expression: {error}") from None


@lru_cache(maxsize=64)
def _lengths(names: frozenset[str]) -> tuple[int, ...]:
    """How many parts these paths have: mostly one, or as many as a layer's."""
    return tuple(sorted({name.count(".") + 1 for name in names}))


def _subpaths(parts: Sequence[str], lengths: Iterable[int]) -> Iterable[str]:
    """Every run of so many whole names in a path: of two, `a.b.c` has `a.b` and `b.c`."""
    for length in lengths:
        for start in range(len(parts) - length + 1):
            yield ".".join(parts[start : start + length])
