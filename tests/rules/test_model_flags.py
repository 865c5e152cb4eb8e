"""Does it fit, as far as a text tells."""

from __future__ import annotations

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.rules.linter import LintOptions, lint

RUN = "docker run --gpus all vllm/vllm-openai:v0.28.0"
ASKED = LintOptions(shipped().images)


def told(line: str) -> dict[str, str]:
    return {finding.rule: finding.says for finding in lint(line, "line", ASKED).findings}


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        (f"{RUN} openai/gpt-oss-120b --gpu-memory-utilization 0.5", "60.8 GiB"),
        (f"{RUN} openai/gpt-oss-120b --gpu-memory-utilization 0.5 --max-num-seqs 200", "60.8 GiB"),
        ("vllm serve openai/gpt-oss-120b --gpu-memory-utilization 0.5", None),
        (f"{RUN} openai/gpt-oss-120b --gpu-memory-utilization 0.5 --quantization fp8", None),
        ("llama-server -hf ggml-org/gpt-oss-120b-GGUF -c 131072 -np 8 --cache-ram 0", None),
        ("vllm serve openai/gpt-oss-120b --gpu-memory-utilization 0.5 --nnodes 2", None),
        ("vllm serve openai/gpt-oss-120b --gpu-memory-utilization $UTIL", None),
        ("vllm serve openai/gpt-oss-120b", None),
    ],
)
def test_a_known_model(line: str, needed: str | None) -> None:
    says = told(line).get("model-too-large")
    assert (says is None) == (needed is None)
    if says and needed:
        assert f"0.5 of all memory is {needed}" in says


def test_a_fraction_and_shared_memory() -> None:
    line = "docker run --gpus all --shm-size 64gb vllm/vllm-openai:v0.28.0 a/b --gpu-memory-utilization 0.9"
    assert "173.5 GiB" in told(line)["memory-promised-twice"]
