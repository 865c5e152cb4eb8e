"""Figures as users write and read them: sizes, counts of tokens, durations, rates, bands, ranges of versions.

    parse_size("110GiB")                    118111600640
    show_bytes(118111600640)                "110.0 GiB"
    Band(low=60.0, expected=74.0, high=80.0)
    is_in_range(Version("0.24.0"), ">=0.20,<0.24")      False

Bytes are ints everywhere; GB is 10^9, GiB is 2^30. Convert only for display. A `Band` is a figure that is not
exact: the expected value and the range it may lie in. Ranges of engine versions follow PEP 440 (`>=8955` for
builds of llama.cpp). Those with `>=`, `<` and `<=`, which is all of ours, are compared here, because
importing `packaging.specifiers` takes as long as a fifth of a check.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from firesteel.values import Value

if TYPE_CHECKING:
    from packaging.version import Version

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12

_UNITS = {
    "": 1, "b": 1,
    "kb": KB, "mb": MB, "gb": GB, "tb": TB,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
}  # fmt: skip
_DOCKER_UNITS = {
    "": 1,
    "b": 1,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": TIB,
    "kb": KIB,
    "mb": MIB,
    "gb": GIB,
    "tb": TIB,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\Z")


def parse_size(text: str, *, docker: bool = False) -> int:
    """`110GiB` -> bytes. Docker counts `g` and `gb` as 2^30, so its sizes are read with `docker=True`."""
    match = _SIZE.match(text.strip())
    units = _DOCKER_UNITS if docker else _UNITS
    if not match or match[2].lower() not in units:
        known = "64g, 512m" if docker else "110GiB, 64GB"
        raise ValueError(f"`{text}` is not a size; write it like {known}")
    return int(float(match[1]) * units[match[2].lower()])


def show_bytes(count: int) -> str:
    """Two or three digits in the binary unit that suits: `92.1 MiB`, `59.0 GiB`."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def show_count(count: int) -> str:
    return f"{count:,}"


def show_seconds(seconds: float) -> str:
    """`0.4 s`, `40 s`, `12 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def show_rate(tokens_per_s: float) -> str:
    """`74 tok/s`, `3.6 tok/s`: without a decimal a slow model and half of it would look alike."""
    return f"{show_figure(tokens_per_s)} tok/s"


def show_figure(value: float) -> str:
    """`74`, `3.6`, `0.42`."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.095 else f"{value:.2g}"


_COUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([kKmM]?)")


def parse_count(text: str) -> int:
    """`16384`, `16k` (16,384 tokens, as contexts are counted), `1M`."""
    match = _COUNT.fullmatch(text.strip())
    if not match or (not match[2] and "." in match[1]):
        raise ValueError(f"`{text[:40]}` is not a number of tokens")
    return round(float(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()])


class Band(Value):
    low: float
    expected: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Band:
        return cls(value, value, value)

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def __add__(self, other: Band) -> Band:
        return Band(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def scaled(self, factor: float) -> Band:
        return Band(self.low * factor, self.expected * factor, self.high * factor)


class BandSchema(Band, forbid_unknown_fields=True):
    """A band in a file, alone or with more keys."""


_BOUND = re.compile(r"(>=|<=|<)(\d+(?:\.\d+)*)")


@lru_cache(maxsize=1024)  # of one release for every rule that has a range
def is_in_range(version: Version, text: str) -> bool:
    """Pre-releases count: 0.24.0rc1 is in `>=0.20`, and not in `<0.24`."""
    bounds = _bounds(text)
    if bounds is None:
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(text).contains(version, prereleases=True)
    return all(_is_within(version, operator, bound) for operator, bound in bounds)


def _is_within(version: Version, operator: str, bound: Version) -> bool:
    if operator == ">=":
        return version >= bound
    if operator == "<=":
        return _version(version.public) <= bound
    return version < bound and not (version.is_prerelease and _version(version.base_version) == bound)


def has_no_end(text: str) -> bool:
    """Whether any newer version is in the range, too."""
    return not any(operator in text for operator in ("<", "==", "~="))


def check_range(text: str) -> str:
    """Check a version range in a file: returns the text, or raises ValueError."""
    if _bounds(text) is not None:
        return text
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("should be a version range like >=0.20,<0.24 (llama.cpp: >=8955)") from None
    return text


@cache
def _bounds(text: str) -> tuple[tuple[str, Version], ...] | None:
    """Operators and versions; None unless all are `>=`, `<` or `<=` a plain release."""
    found = [_BOUND.fullmatch(part.strip()) for part in text.split(",") if part.strip()]
    return tuple((match[1], _version(match[2])) for match in found if match) if all(found) else None


def _version(text: str) -> Version:
    from packaging.version import Version  # not loaded by a gateway, which only needs sizes and bands

    return Version(text)
