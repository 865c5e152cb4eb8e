"""Names of repositories on the Hub."""

from __future__ import annotations

import pytest

from firesteel.hub_id import is_hub_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", True),
        ("0x/a_b", True),
        ("o" * 96 + "/" + "n" * 96, True),
        ("o" * 97 + "/n", False),
        ("smollm2", False),
        ("../name", False),
        ("org/na..me", False),
        ("or--g/name", False),
        ("org/name/more", False),
        ("org/name\n", False),
        ("\u00f6rg/name", False),
        ("", False),
    ],
)
def test_is_hub_id(text: str, expected: bool) -> None:
    assert is_hub_id(text) is expected
