"""Version ranges: `packaging` is the reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from firesteel.version_range import check_range, has_no_end, is_in_range

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
