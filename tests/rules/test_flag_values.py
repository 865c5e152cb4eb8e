"""Values that nothing stands behind: kernels, parsers, flags of another engine, speculative configs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from firesteel.engines.schema.releases import newest_schema, release_ranges, shipped_history
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.rules.context import Context
from firesteel.rules.flag_values import (
    FLAGS,
    PARSERS,
    attention_without_kernel,
    drafts_overflow_batch,
    drafts_through_flashinfer,
    experts_without_kernel,
    flags_of_another_engine,
    method_is_unknown,
    schedule_is_malformed,
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


def drafting(flags: Mapping[str, FlagValue], version: str | None = "0.28.0") -> Context:
    return Context(Launch("m", "org/m", "vllm", version, flags=flags), "gb10", None)


@pytest.mark.parametrize(
    ("version", "method", "why"),
    [
        ("0.24.0", "dspark", "first in 0.25.0"),
        ("0.25.0", "dspark", None),
        ("0.19.1", "dflash", "first in 0.20.0"),
        ("0.28.0", "mtpp", "no release since 0.10.1 had it"),
        ("0.28.0", "mtp", None),
        ("0.28.0", "$METHOD", None),
        ("0.28.0", 3, None),
        ("0.24.7", "dspark", None),  # not a release that was read
        (None, "dspark", None),
    ],
)
def test_methods(version: str | None, method: object, why: str | None) -> None:
    found = method_is_unknown(drafting({"speculative-config": {"method": method}}, version))
    assert [match.value for match in found] == ([why] if why else [])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"attention-backend": "flashinfer"}, "--attention-backend flashinfer"),
        ({"attention-backend": "FLASH_ATTN"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_the_drafter_follows_the_model(
    flags: Mapping[str, FlagValue], expected: str | None, method: str
) -> None:
    found = drafts_through_flashinfer(drafting({**flags, "speculative-config": {"method": method}}))
    assert [match.shown for match in found] == ([expected] if expected else [])


def test_the_drafters_own_key_goes_first() -> None:
    own: FlagValue = {"method": "dflash", "attention_backend": "FLASH_ATTN"}
    assert not drafts_through_flashinfer(
        drafting({"attention-backend": "flashinfer", "speculative-config": own})
    )
    own = {"method": "dflash", "attention_backend": "FLASHINFER"}
    (match,) = drafts_through_flashinfer(
        drafting({"attention-backend": "triton_attn", "speculative-config": own})
    )
    assert match.key == "flag:speculative-config"


def test_shortcuts_say_the_same() -> None:
    flags: Mapping[str, FlagValue] = {"spec-method": "dflash", "attention-backend": "FLASHINFER"}
    assert drafts_through_flashinfer(drafting(flags))
    assert not drafts_through_flashinfer(drafting({**flags, "spec-method": "mtp"}))


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ([[1, 8, 3], [9, 32, 1]], None),
        ([[9, 32, 1], [1, 8, 3]], None),  # any order
        ([[1, 8, 3], [16, 32, 0]], None),  # a gap, and none at all
        ([[1, 1, 0]], None),
        ([], "it is empty"),
        (3, "it is not a list"),
        ({"1": 3}, "it is not a list"),
        ([[1, 8]], "an entry is not [first, last, tokens]"),
        ([5], "an entry is not [first, last, tokens]"),
        ([[0, 8, 3]], "[0, 8, 3] is not a range"),
        ([[8, 1, 3]], "[8, 1, 3] is not a range"),
        ([[1, 8, -1]], "[1, 8, -1] is not a range"),
        ([[2, 8, 3]], "the first range must begin at 1"),
        ([[1, 8, 3], [8, 16, 1]], "two ranges overlap"),
        ([[1, 8, 3], [1, 4, 1]], "two ranges overlap"),
        ("$SCHEDULE", None),
        ([["1", "8", "3"]], None),  # the engine may read these as numbers
        (None, None),
    ],
)
def test_schedule(schedule: object, why: str | None) -> None:
    """Held once against `validate_and_normalize_dynamic_sd_schedule` of 0.24.0 and 0.32.0."""
    config: FlagValue = {"method": "mtp", "num_speculative_tokens_per_batch_size": schedule}
    found = schedule_is_malformed(drafting({"speculative-config": config}))
    assert [match.value for match in found] == ([why] if why else [])


def test_no_config_no_schedule() -> None:
    assert not schedule_is_malformed(drafting({}))
    assert not schedule_is_malformed(drafting({"speculative-config": "$CONFIG"}))


@pytest.mark.parametrize(
    ("tokens", "users", "batch", "expected"),
    [
        (15, "256", "2048", True),
        (8, "256", "2048", False),
        (3, "4", "8192", False),
        ("many", "4", "1", False),
        (3, None, "1", False),
    ],
)
def test_drafts_overflow_batch(tokens: object, users: str | None, batch: str, expected: bool) -> None:
    flags: dict[str, FlagValue] = {
        "speculative-config": {"num_speculative_tokens": tokens},
        "max-num-batched-tokens": batch,
    }
    if users:
        flags["max-num-seqs"] = users
    launch = Launch("m", "m", "vllm", flags=flags)
    assert bool(drafts_overflow_batch(Context(launch, None, None))) is expected
