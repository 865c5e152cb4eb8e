"""Version ranges: `packaging` is the reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from firesteel.units import GIB, KIB, MIB, TIB, check_range, has_no_end, is_in_range, parse_size, show_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("110GiB", 110 * GIB),
        ("64GB", 64 * 10**9),
        ("1.5 KiB", 1536),
        ("12", 12),
        ("0b", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "size"), [("64g", 64 * GIB), ("512m", 512 * MIB), ("1gb", GIB), ("9", 9)])
def test_docker_counts_in_powers_of_two(text: str, size: int) -> None:
    assert parse_size(text, docker=True) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GB", "1 light year", "64g", "1e9", "1\n2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (96576768, "92.1 MiB"),
        (GIB, "1.0 GiB"),
        (3 * TIB, "3.0 TiB"),
    ],
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert show_bytes(size) == text


NUMBERS = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
SUFFIXES = st.sampled_from(
    ["", "", "", "rc1", "a0", ".post1", ".dev1", "rc1.dev2", "+cu130", ".post1+x", "rc1+y"]
)
VERSIONS = st.builds("{}{}{}".format, st.sampled_from(["", "", "1!"]), NUMBERS, SUFFIXES)
CLAUSES = st.builds(
    "{}{}{}".format,
    st.sampled_from([">=", "<", ">=", "<", ">", "<=", "==", "!=", ">= ", " <"]),
    NUMBERS,
    SUFFIXES,
)


@given(VERSIONS, st.lists(CLAUSES, max_size=3).map(",".join))
def test_a_range_has_the_versions_that_packaging_says(version: str, text: str) -> None:
    try:
        specifiers = SpecifierSet(text)
    except ValueError:  # `>=1+cu130`
        return
    assert is_in_range(Version(version), text) == specifiers.contains(version, prereleases=True)
    ends = {specifier.operator for specifier in specifiers} - {">", ">=", "!="}
    assert has_no_end(text) == (not ends)


@pytest.mark.parametrize("text", [">=0.20,<0.24", "", ">=8955", "==0.24.*", "~=0.24.1"])
def test_a_range_in_a_file(text: str) -> None:
    assert check_range(text) == text
    assert is_in_range(Version("0.24.3"), text) == SpecifierSet(text).contains("0.24.3", prereleases=True)


def test_what_is_no_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"like >=0\.20,<0\.24"):
        check_range("0.24")
