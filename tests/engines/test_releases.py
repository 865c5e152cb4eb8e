"""Known facts about releases, each looked up in their sources, against what ships."""

from __future__ import annotations

import pytest

from firesteel.engines.schema.releases import (
    find_schema,
    flag_arity,
    known_versions,
    nearest_schemas,
    newest_schema,
    release_ranges,
)
from firesteel.engines.schema.symbols import Schema
from firesteel.launch import EngineName

FIRST = "0.10.1"
"""The oldest vLLM release that was read: what begins there may be older."""


def known(version: str) -> Schema:
    found = find_schema("vllm", version)
    assert found and found.is_exact
    return found


@pytest.mark.parametrize(
    ("symbol", "first", "last"),
    [
        ("--model", FIRST, None),
        ("--gpu-memory-utilization", FIRST, None),
        ("--swap-space", FIRST, "0.17.1"),
        ("--disable-log-requests", FIRST, "0.16.0"),
        ("--guided-decoding-backend", FIRST, "0.11.2"),
        ("--calculate-kv-scales", FIRST, "0.27.1"),
        ("--override-attention-dtype", FIRST, "0.27.1"),
        ("--max-num-partial-prefills", FIRST, "0.26.0"),
        ("--attention-backend", "0.13.0", None),
        ("--moe-backend", "0.17.0", None),
        ("--linear-backend", "0.22.0", None),
        ("--kernel-config", "0.16.0", None),
        ("--optimization-level", "0.12.0", None),
        ("--max-cudagraph-capture-size", "0.11.1", None),
        ("--reasoning-parser-plugin", "0.11.1", None),
        ("--default-chat-template-kwargs", "0.14.0", None),
        ("--fail-on-environ-validation", "0.17.0", None),
        ("--performance-mode", "0.17.0", None),
        ("--spec-method", "0.22.0", None),
        ("--spec-model", "0.22.0", None),
        ("--spec-tokens", "0.22.0", None),
        ("--jit-monitor-mode", "0.25.0", None),
        ("--max-num-queued-reqs", "0.29.0", None),
        ("--override-generation-config", FIRST, None),
        ("--hf-overrides", FIRST, None),
        ("--trust-remote-code", FIRST, None),
        ("--enable-expert-parallel", FIRST, None),
        ("VLLM_USE_FLASHINFER_MOE_FP4", FIRST, "0.23.0"),
        ("VLLM_USE_FLASHINFER_MOE_FP8", FIRST, "0.23.0"),
        ("VLLM_USE_FLASHINFER_MOE_FP16", "0.11.0", "0.23.0"),
        ("VLLM_FLASHINFER_MOE_BACKEND", FIRST, "0.23.0"),
        ("VLLM_NVFP4_GEMM_BACKEND", "0.11.1", "0.23.0"),
        ("VLLM_MXFP4_USE_MARLIN", FIRST, "0.23.0"),
        ("VLLM_USE_NVFP4_CT_EMULATIONS", FIRST, "0.23.0"),
        ("VLLM_USE_FBGEMM", "0.11.0", "0.23.0"),
        ("VLLM_ATTENTION_BACKEND", FIRST, "0.14.1"),
        ("VLLM_USE_V1", FIRST, "0.11.0"),
        ("VLLM_TEST_FORCE_FP8_MARLIN", FIRST, "0.28.0"),
        ("VLLM_USE_V2_MODEL_RUNNER", "0.12.0", None),
        ("VLLM_ENABLE_STARTUP_PLAN", "0.26.0", None),
        ("VLLM_RAISE_ON_LOGIT_NANS", "0.28.0", None),
        ("VLLM_COMPUTE_NANS_IN_LOGITS", FIRST, None),
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", FIRST, None),
        ("VLLM_USE_DEEP_GEMM", FIRST, None),
        ("VLLM_API_KEY", FIRST, None),
        ("SpeculativeConfig.disable_by_batch_size", FIRST, "0.16.0"),
        ("SpeculativeConfig.num_speculative_tokens_per_batch_size", "0.24.0", None),
        ("SpeculativeConfig.moe_backend", "0.19.0", None),
        ("SpeculativeConfig.attention_backend", "0.21.0", None),
        ("SpeculativeConfig.kv_cache_dtype", "0.26.0", None),
    ],
)
def test_the_releases_that_have_a_vllm_symbol(symbol: str, first: str, last: str | None) -> None:
    assert release_ranges("vllm", symbol) == ((first, last),)


@pytest.mark.parametrize(
    ("symbol", "value", "first", "last"),
    [
        ("--reasoning-parser", "nemotron_v3", "0.17.1", None),
        ("--reasoning-parser", "gemma4", "0.19.0", None),
        ("--reasoning-parser", "poolside_v1", "0.21.0", None),
        ("--reasoning-parser", "qwen3", FIRST, None),
        ("--reasoning-parser", "openai_gptoss", "0.10.2", None),
        ("--tool-call-parser", "gemma4", "0.19.0", None),
        ("--tool-call-parser", "poolside_v1", "0.21.0", None),
        ("--tool-call-parser", "minimax", FIRST, "0.23.0"),
        ("--tool-call-parser", "qwen3_coder", FIRST, None),
        ("--tool-call-parser", "qwen3_xml", "0.11.0", None),
        ("--load-format", "gguf", FIRST, "0.23.0"),
        ("--load-format", "bitsandbytes", FIRST, "0.27.1"),
        ("--load-format", "fastsafetensors", FIRST, None),
        ("--load-format", "instanttensor", "0.18.0", None),
        ("--load-format", "ipc_cache", "0.30.0", None),
        ("--kv-cache-dtype", "nvfp4", "0.20.0", None),
        ("--kv-cache-dtype", "nvfp4_4over6", "0.28.0", None),
        ("--moe-backend", "marlin", "0.17.0", None),
        ("--moe-backend", "flashinfer_b12x", "0.22.0", None),
        ("--moe-backend", "b12x", "0.29.0", None),
        ("--linear-backend", "b12x", "0.28.0", None),
        ("--attention-backend", "FLASHINFER_MLA_SPARSE_SM120", "0.24.0", None),
        ("--performance-mode", "interactivity", "0.17.0", None),
        ("SpeculativeConfig.method", "mtp", "0.11.0", None),
        ("SpeculativeConfig.method", "dflash", "0.20.0", None),
        ("SpeculativeConfig.method", "dspark", "0.25.0", None),
    ],
)
def test_when_a_vllm_value_lived(symbol: str, value: str, first: str, last: str | None) -> None:
    assert release_ranges("vllm", symbol, value) == ((first, last),)


@pytest.mark.parametrize(
    ("symbol", "value"),
    [
        ("--speculative-disable-by-batch-size", None),
        ("--tool-call-parser-plugin", None),
        ("VLLM_FP8_MOE_BACKEND", None),
        ("--reasoning-parser", "nano_v3"),
    ],
)
def test_a_symbol_that_never_existed(symbol: str, value: str | None) -> None:
    assert release_ranges("vllm", symbol, value) == ()


def test_every_vllm_minor_is_there() -> None:
    minors = {tuple(version.split(".")[:2]) for version in known_versions("vllm")}
    assert minors >= {("0", str(minor)) for minor in range(11, 33)}


@pytest.mark.parametrize(("version", "flags", "variables"), [("0.11.0", 184, 181), ("0.32.0", 317, 301)])
def test_counts(version: str, flags: int, variables: int) -> None:
    found = known(version)
    assert len(found.flags) == flags
    assert sum(name.startswith("VLLM_") for name in found.variables) == variables


def test_what_flags_take() -> None:
    flags = known("0.32.0").flags
    assert flags["tensor-parallel-size"].aliases == ("-tp",)
    assert flags["gpu-memory-utilization"].spellings == (
        "--gpu-memory-utilization",
        "--device-memory-utilization",
    )
    assert flags["gpu-memory-utilization"].value.default == 0.92
    assert known("0.19.1").flags["gpu-memory-utilization"].value.default == 0.9
    assert flags["enable-prefix-caching"].takes == "nothing"
    assert flags["enable-prefix-caching"].negatives == ("--no-enable-prefix-caching",)
    assert not flags["headless"].negatives
    assert flags["served-model-name"].takes == "many"
    assert flags["hf-token"].takes == "optional"
    assert flags["max-model-len"].value.kind == "size"
    assert flags["speculative-config"].value.config == "SpeculativeConfig"
    assert flags["hf-overrides"].value.kind == "json"


def test_values_are_judged_as_the_release_does() -> None:
    flags = known("0.32.0").flags
    assert flags["attention-backend"].value.accepts("flashinfer")
    assert not flags["attention-backend"].value.accepts("flash_infer")
    assert flags["moe-backend"].value.accepts("FlashInfer-CUTLASS")
    assert not flags["kv-cache-dtype"].value.accepts("fp8_e4m3fn")
    assert flags["reasoning-parser"].value.accepts("a-plugin-of-mine")
    assert known("0.23.0").flags["safetensors-load-strategy"].value.accepts("eagre")
    assert not known("0.24.0").flags["safetensors-load-strategy"].value.accepts("eagre")


def test_unknown_keys_were_ignored_before_configs_became_strict() -> None:
    assert not known("0.11.0").configs["CompilationConfig"].strict
    assert known("0.32.0").configs["CompilationConfig"].strict
    assert known("0.11.0").configs["SpeculativeConfig"].strict


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("0.24.0", ["0.24.0"]),
        ("v0.24.0", ["0.24.0"]),
        ("0.24.0+cu130", ["0.24.0"]),
        ("0.24.1", ["0.24.0", "0.25.0"]),
        ("0.24.0rc1", ["0.24.0", "0.23.0"]),
        ("0.24", ["0.24.0", "0.23.0"]),
        ("0.99.0", []),
        ("nightly", []),
        ("", []),
    ],
)
def test_the_nearest_known_release(asked: str, found: list[str]) -> None:
    assert [schema.version for schema in nearest_schemas("vllm", asked)] == found


def test_the_nearest_is_stated_as_such() -> None:
    near = find_schema("vllm", "0.24.1")
    assert near and not near.is_exact
    assert (near.version, near.asked) == ("0.24.0", "0.24.1")


def test_the_newest_is_the_last() -> None:
    assert newest_schema("vllm").version == known_versions("vllm")[-1]


@pytest.mark.parametrize(
    ("engine", "flag", "kind"),
    [
        ("vllm", "enable-return-routed-experts", "switches"),
        ("vllm", "trust-remote-code", "switches"),
        ("vllm", "gpu-memory-utilization", "values"),
        ("vllm", "swap-space", "values"),
        ("vllm", "served-model-name", "lists"),
        ("sglang", "trust-remote-code", "switches"),
        ("sglang", "mem-fraction-static", "values"),
        ("llamacpp", "flash-attn", "values"),
        ("llamacpp", "metrics", "switches"),
    ],
)
def test_kinds_are_those_of_the_sources(engine: EngineName, flag: str, kind: str) -> None:
    assert flag in getattr(flag_arity(engine), kind)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_a_flag_has_one_kind(engine: EngineName) -> None:
    known = flag_arity(engine)
    assert len(known.all) == len(known.switches) + len(known.values) + len(known.lists)
