from __future__ import annotations

import pytest

from firesteel.catalog.docker_options import container_name, plain_reference


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
