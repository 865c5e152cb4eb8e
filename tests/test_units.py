from __future__ import annotations

import pytest

from firesteel.units import GIB, KIB, MIB, TIB, parse_size, show_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("110GiB", 110 * GIB), ("64GB", 64 * 10**9), ("1.5 KiB", 1536), ("12", 12), ("0b", 0)],
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
