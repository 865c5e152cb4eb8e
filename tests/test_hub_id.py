"""Names of repositories on the Hub."""

from __future__ import annotations

import pytest

from firesteel.hub_id import is_hub_id, is_hub_model, is_valid_hub_id


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


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai/gpt-oss-20b", True),
        ("poolside/Laguna-XS.2", True),
        ("models/gpt-oss.gguf", False),
        ("./models/x", False),
        ("~/models", False),
        ("/models/x", False),
        ("<HF_MODEL_HANDLE>", False),
        ("$MODEL", False),
        ("gpt2", False),
    ],
)
def test_is_hub_model(model: str, expected: bool) -> None:
    assert is_hub_model(model) is expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("ggml-org/gpt-oss-20b-GGUF", True),
        ("ggml-org/gpt-oss-20b-GGUF:MXFP4", True),
        ("ggml-org/gpt-oss-20b-GGUF:", False),
        ("ggml-org/gpt-oss-20b-GGUF:a:b", False),
        ("models/gpt-oss.GGUF", False),
    ],
)
def test_a_label_may_choose_a_file(model: str, expected: bool) -> None:
    assert is_hub_model(model, with_label=True) is expected
    assert not is_hub_model(model) or ":" not in model
