"""Ranges of engine versions: `>=0.20,<0.24`, and `>=8955` for builds of llama.cpp.

The rules of PEP 440. Ranges with `>=` and `<`, which is all of ours, are compared here, since importing
`packaging.specifiers` takes as long as a fifth of a check; all others are left to it.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from packaging.version import Version

_BOUND = re.compile(r"(>=|<)(\d+(?:\.\d+)*)")


@lru_cache(maxsize=1024)  # of one release for every rule that has a range
def is_in_range(version: Version, text: str) -> bool:
    """Pre-releases count: 0.24.0rc1 is in `>=0.20`, and not in `<0.24`."""
    bounds = _bounds(text)
    if bounds is None:
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(text).contains(version, prereleases=True)
    return all(
        version >= bound
        if operator == ">="
        else version < bound and not (version.is_prerelease and Version(version.base_version) == bound)
        for operator, bound in bounds
    )


def has_no_end(text: str) -> bool:
    """Whether any newer version is in the range, too."""
    return not any(operator in text for operator in ("<", "==", "~="))


def check_range(text: str) -> str:
    """For schemas of files: the text, or ValueError."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("should be a version range like >=0.20,<0.24 (llama.cpp: >=8955)") from None
    return text


@cache
def _bounds(text: str) -> tuple[tuple[str, Version], ...] | None:
    """Operators and versions; None unless all are `>=` or `<` a plain release."""
    found = [_BOUND.fullmatch(part.strip()) for part in text.split(",") if part.strip()]
    return tuple((match[1], Version(match[2])) for match in found if match) if all(found) else None
