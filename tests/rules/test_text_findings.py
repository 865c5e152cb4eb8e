"""What a guide's sentences speak of."""

from __future__ import annotations

import pytest

from firesteel.reads.launches import mentions
from firesteel.reads.source_text import SourceFile
from firesteel.rules.text_findings import check_mentions

DEAD = "--speculative-disable-by-batch-size"


def told(text: str, path: str = "guide.md") -> list[tuple[str, int, str]]:
    found = check_mentions(mentions(SourceFile(path, text)), "gb10")
    assert all(finding.level == "note" for finding in found)
    return [
        (finding.saw, finding.location.line if finding.location else 0, finding.rule) for finding in found
    ]


def notes(text: str, path: str = "guide.md") -> dict[str, str]:
    return {saw: rule for saw, _, rule in told(text, path)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Set `{DEAD} 32`.", {f"{DEAD} 32": "spec-disable-flag-gone"}),
        ("Set `--max-model-len 1` and `--gpus all`.", {}),
        ("Set --speculative-disable-by-batch-size 32.", {f"{DEAD} 32": "spec-disable-flag-gone"}),
        ("| `--gpu-memory-utilization` | never `--gpu-memory-utilization 0.95` |",
         {"--gpu-memory-utilization 0.95": "utilization-over-0.90"}),
        ("`--gpu-memory-utilization 0.8` is right.", {}),
        ("Use ghcr.io/ggml-org/llama.cpp:server-cuda, it is fast.",
         {"ghcr.io/ggml-org/llama.cpp:server-cuda": "llamacpp-cuda12-image-no-gb10"}),
        ("Use vllm/vllm-openai:v0.28.0.", {}),
        ("vLLM has `--kv-cache-dtype fp8`, and SGLang has not.", {}),
        ("Set `NCCL_IB_GID_INDEX=3`", {"NCCL_IB_GID_INDEX=3": "gid-index-pinned"}),
        ("```\n--speculative-disable-by-batch-size 32\n```", {}),
        ("Never `--made-up-by-nobody`.", {}),
        ("Set `VLLM_FP8_MOE_BACKEND=x`", {"VLLM_FP8_MOE_BACKEND=x": "vllm-env-never-existed"}),
        ("Set `VLLM_API_KEY` and `HF_TOKEN`", {}),
        ("See `Using NvFp4LinearBackend.VLLM_CUTLASS for NVFP4 GEMM`", {}),
        ("Once `--num-lookahead-slots 3`", {"--num-lookahead-slots 3": "flag-unknown"}),
    ],
)  # fmt: skip
def test_dead_names_are_notes(text: str, expected: dict[str, str]) -> None:
    assert notes(text) == expected


def test_a_name_is_reported_once_per_line() -> None:
    name, rule = "VLLM_FP8_MOE_BACKEND", "vllm-env-never-existed"
    text = f"a\n\nSet `{name}` and `{name}`.\n`{name}`\n"
    assert told(text) == [(name, 3, rule), (name, 4, rule)]


def test_only_markdown_has_sentences() -> None:
    assert notes("`VLLM_FP8_MOE_BACKEND`", "run.sh") == {}
    assert notes("```\n```\n`VLLM_FP8_MOE_BACKEND`", "stdin") != {}


def test_a_flag_that_one_engine_lost_and_another_has_is_fine() -> None:
    """`--swap-space` is gone from vLLM; nobody else has it. `--api-key` is everywhere."""
    assert "--swap-space 4" in notes("`--swap-space 4` `--api-key x`")
