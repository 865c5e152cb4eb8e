"""Names of repositories on the Hub."""

from __future__ import annotations

import pytest

from firesteel.hub_id import is_hub_id, is_valid_hub_id


@pytest.mark.parametrize(
    ("text", "has_form", "is_valid"),
    [
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", True, True),
        ("0x/a_b", True, True),
        ("o" * 96 + "/" + "n" * 96, True, True),
        ("o" * 97 + "/n", True, False),
        ("smollm2", False, False),
        ("../name", False, False),
        ("org/na..me", True, False),
        ("or--g/name", True, False),
        ("org/name/more", False, False),
        ("org/name\n", False, False),
        ("\u00f6rg/name", False, False),
        ("", False, False),
    ],
)
def test_is_hub_id(text: str, has_form: bool, is_valid: bool) -> None:
    assert (is_hub_id(text), is_valid_hub_id(text)) == (has_form, is_valid)
