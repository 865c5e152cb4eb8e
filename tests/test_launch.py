"""Names of repositories on the Hub."""

from __future__ import annotations

import pytest

from firesteel.launch import container_name, is_hub_id, is_hub_model, is_valid_hub_id, plain_reference


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [("qwen3 coder/x:y", "firesteel-qwen3-coder-x-y"), ("//", "firesteel-launch")],
)
def test_container_names(name: str, expected: str) -> None:
    assert container_name(name) == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("vllm/vllm-openai:v0.28.0", "vllm/vllm-openai:v0.28.0"),
        ("docker.io/vllm/vllm-openai", "vllm/vllm-openai"),
        ("index.docker.io/vllm/vllm-openai", "vllm/vllm-openai"),
        ("registry-1.docker.io/vllm/vllm-openai", "vllm/vllm-openai"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "nvcr.io/nvidia/vllm:26.04-py3"),
        ("my.docker.io/vllm", "my.docker.io/vllm"),
    ],
)
def test_the_hosts_of_docker_hub(reference: str, expected: str) -> None:
    assert plain_reference(reference) == expected
