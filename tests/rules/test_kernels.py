"""Names that nothing stands behind: kernels, parsers, flags of another engine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from firesteel.engines.schema.releases import newest_schema, release_ranges, shipped_history
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.rules.context import Context
from firesteel.rules.kernels import (
    FLAGS,
    PARSERS,
    attention_without_kernel,
    experts_without_kernel,
    flags_of_another_engine,
    unregistered_parsers,
)

OTHERS: Mapping[EngineName, tuple[EngineName, ...]] = {
    "vllm": ("sglang", "llamacpp"),
    "sglang": ("vllm", "llamacpp"),
    "llamacpp": ("vllm", "sglang"),
}


def context(
    flags: Mapping[str, FlagValue],
    *,
    engine: EngineName = "vllm",
    version: str | None = None,
    model: str = "org/m",
) -> Context:
    return Context(Launch("m", model, engine, version, flags=flags), "gb10", None)


def spellings(engine: EngineName) -> set[str]:
    """Every way in which a flag of any release could be written."""
    flags = shipped_history(engine).flags
    more = {
        each
        for flag in flags.values()
        for span in flag.ranges
        for each in (*span.facts.get("aliases", ()), *span.facts.get("negatives", ()))
    }
    return set(flags) | more


@pytest.mark.parametrize(("engine", "name"), [(engine, name) for engine in FLAGS for name in FLAGS[engine]])
def test_no_release_had_another_engines_flag(engine: EngineName, name: str) -> None:
    """Not even as the beginning of a longer one, which argparse would take."""
    assert not [each for each in spellings(engine) if each.startswith(f"--{name}")]
    assert any(f"--{name}" in spellings(other) for other in OTHERS[engine])


@pytest.mark.parametrize(("engine", "name"), [(engine, name) for engine in FLAGS for name in FLAGS[engine]])
def test_what_to_write_instead_is_there(engine: EngineName, name: str) -> None:
    words = [word.strip(",;:") for word in FLAGS[engine][name].split() if word.startswith("--")]
    assert words or FLAGS[engine][name].startswith("nothing")
    for word in words:
        assert word == "--speculative-*" or release_ranges(engine, word)[-1][1] is None, word


@pytest.mark.parametrize(("engine", "flag"), list(PARSERS))
def test_parsers_of_another_engine(engine: EngineName, flag: str) -> None:
    other: EngineName = "vllm" if engine == "sglang" else "sglang"
    here = newest_schema(engine).flags[flag].value.values
    for theirs, ours in PARSERS[engine, flag].items():
        assert not release_ranges(engine, f"--{flag}", theirs)
        assert release_ranges(other, f"--{flag}", theirs)
        assert ours in here


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"attention-backend": "FLASHMLA"}, "FLASHMLA"),
        ({"attention-backend": "flashinfer_mla"}, "FLASHINFER_MLA"),
        ({"attention-config": {"backend": "CUTLASS_MLA"}}, "CUTLASS_MLA"),
        ({"speculative-config": {"attention_backend": "FLASH_ATTN_MLA"}}, "FLASH_ATTN_MLA"),
        ({"attention-backend": "TRITON_MLA"}, None),
        ({"attention-backend": "FLASHINFER"}, None),
        ({"attention-backend": True}, None),
        ({"attention-config": {"backend": 3}}, None),
        ({"attention-config": "FLASHMLA"}, None),
        ({}, None),
    ],
)
def test_attention(flags: Mapping[str, FlagValue], expected: str | None) -> None:
    assert [match.name for match in attention_without_kernel(context(flags))] == (
        [expected] if expected else []
    )


@pytest.mark.parametrize(
    ("model", "backend", "expected"),
    [
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "flashinfer_trtllm", "NVFP4"),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "flashinfer_cutlass", None),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "nonsense", None),  # `value-refused` says that
        ("Qwen/Qwen3.6-35B-A3B-FP8", "flashinfer_b12x", "FP8"),
        ("Qwen/Qwen3.6-35B-A3B-FP8", "deep_gemm", None),
        ("org/Ling-A6.1B-FP8", "flashinfer_trtllm", "FP8"),
        ("org/Model-30B-A3B-MXFP8", "flashinfer_trtllm", None),  # other experts, not looked at
        ("org/Model-30B-A3B-W4AFP8", "flashinfer_trtllm", None),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "flashinfer_trtllm", None),  # no experts
        ("Qwen/Qwen3.6-35B-A3B", "flashinfer_trtllm", None),
        ("/models/a3b", "flashinfer_trtllm", None),
    ],
)
def test_experts(model: str, backend: str, expected: str | None) -> None:
    said: tuple[dict[str, FlagValue], ...] = (
        {"moe-backend": backend},
        {"kernel-config": {"moe_backend": backend}},
    )
    for flags in said:
        found = experts_without_kernel(context(flags, model=model))
        assert [match.value for match in found] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("engine", "version", "flags", "expected"),
    [
        ("vllm", "0.17.0", {"reasoning-parser": "nemotron_v3"}, ["first in 0.17.1"]),
        ("vllm", "0.17.1", {"reasoning-parser": "nemotron_v3"}, []),
        ("vllm", "0.24.0", {"tool-call-parser": "minimax"}, []),  # not looked up
        (
            "vllm",
            "0.24.0",
            {"tool-call-parser": "minimax", "enable-auto-tool-choice": True},
            ["last in 0.23.0"],
        ),
        ("vllm", "0.24.0", {"reasoning-parser": "made-up"}, ["no release since 0.10.1 had it"]),
        ("vllm", "0.24.0", {"reasoning-parser": "gpt-oss"}, ["its name here is `openai_gptoss`"]),
        ("vllm", "0.24.0", {"reasoning-parser": "mine", "reasoning-parser-plugin": "mine.py"}, []),
        ("vllm", "0.24.0", {"reasoning-parser": "$PARSER"}, []),
        ("vllm", "0.24.7", {"reasoning-parser": "made-up"}, []),  # not a release that was read
        ("vllm", None, {"reasoning-parser": "made-up"}, []),
        ("sglang", "0.5.9", {"tool-call-parser": "gemma4"}, ["first in 0.5.11"]),
        ("sglang", "0.5.10", {"reasoning-parser": "nano_v3"}, ["last in 0.5.9"]),
        ("sglang", "0.5.9", {"reasoning-parser": "nano_v3"}, []),
        ("llamacpp", "9000", {"reasoning-parser": "qwen3"}, []),
    ],
)
def test_parsers(
    engine: EngineName, version: str | None, flags: Mapping[str, FlagValue], expected: list[str]
) -> None:
    found = unregistered_parsers(context(flags, engine=engine, version=version))
    assert [match.value for match in found] == expected


@pytest.mark.parametrize(
    ("engine", "flags", "expected"),
    [
        ("sglang", {"max-model-len": "1", "context-length": "1"}, ["--context-length"]),
        ("sglang", {"tool-call-parser": "openai"}, ["--tool-call-parser gpt-oss"]),
        ("vllm", {"tool-call-parser": "gpt-oss"}, []),
        (
            "vllm",
            {"tool-call-parser": "gpt-oss", "enable-auto-tool-choice": True},
            ["--tool-call-parser openai"],
        ),
        ("vllm", {"reasoning-parser": "gpt-oss", "reasoning-parser-plugin": "p.py"}, []),
        ("llamacpp", {"served-model-name": ["a"]}, ["--alias"]),
        ("vllm", {}, []),
    ],
)
def test_flags_of_another_engine(
    engine: EngineName, flags: Mapping[str, FlagValue], expected: list[str]
) -> None:
    assert [match.value for match in flags_of_another_engine(context(flags, engine=engine))] == expected
