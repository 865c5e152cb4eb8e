"""Known facts about SGLang releases and llama.cpp builds against what ships."""

from __future__ import annotations

import pytest

from firesteel.engines.schema.releases import find_schema, known_versions, nearest_schemas, release_ranges
from firesteel.launch import EngineName


@pytest.mark.parametrize(
    ("engine", "symbol", "value", "first", "last"),
    [
        ("sglang", "--mem-fraction-static", None, "0.5.2", None),
        ("sglang", "--context-length", None, "0.5.2", None),
        ("sglang", "--cuda-graph-max-bs", None, "0.5.2", "0.5.19"),
        ("sglang", "--cuda-graph-bs", None, "0.5.2", "0.5.19"),
        ("sglang", "--cuda-graph-config", None, "0.5.14", None),
        ("sglang", "--fp4-gemm-backend", None, "0.5.8", None),
        ("sglang", "--fp8-gemm-backend", None, "0.5.6.post2", None),
        ("sglang", "--tensor-parallel-size", None, "0.5.2", None),
        ("sglang", "--reasoning-parser", "nano_v3", "0.5.7", "0.5.9"),
        ("sglang", "--reasoning-parser", "nemotron_3", "0.5.10", None),
        ("sglang", "--kv-cache-dtype", "fp8_e4m3", "0.5.2", None),
        ("sglang", "--attention-backend", "cutlass_mla", "0.5.2", "0.5.19"),
        ("sglang", "--load-format", "fastsafetensors", "0.5.7", None),
        ("sglang", "--load-format", "instanttensor", "0.5.22", None),
        ("sglang", "--moe-runner-backend", "marlin", "0.5.12", None),
        ("llamacpp", "--ctx-size", None, "4806", None),
        ("llamacpp", "--n-gpu-layers", None, "4806", None),
        ("llamacpp", "-ngl", None, "4806", None),
        ("llamacpp", "--fit", None, "7407", None),
        ("llamacpp", "--load-mode", None, "10105", None),
        ("llamacpp", "--draft-max", None, "4806", "8954"),
        ("llamacpp", "--draft-min", None, "4806", "8954"),
        ("llamacpp", "--spec-draft-n-max", None, "8955", None),
        ("llamacpp", "--no-mmap", None, "4806", "10809"),
    ],
)
def test_when_it_lived(
    engine: EngineName, symbol: str, value: str | None, first: str, last: str | None
) -> None:
    assert release_ranges(engine, symbol, value) == ((first, last),)


def test_sglang_has_no_plain_fp8() -> None:
    newest = find_schema("sglang", known_versions("sglang")[-1])
    assert newest
    assert not newest.flags["kv-cache-dtype"].value.accepts("fp8")
    assert release_ranges("sglang", "--kv-cache-dtype", "fp8") == ()


@pytest.mark.parametrize(("build", "takes"), [("6000", "nothing"), ("7000", "value"), ("b11549", "value")])
def test_flash_attention_came_to_take_a_value(build: str, takes: str) -> None:
    found = find_schema("llamacpp", build)
    assert found and found.flags["flash-attn"].takes == takes


@pytest.mark.parametrize(
    ("build", "found"),
    [
        ("b10105", [("10105", "")]),
        ("10104", [("10104", "")]),
        ("10700", [("10586", "10700"), ("10809", "10700")]),
        ("99999", [("11549", "99999")]),
        ("4000", []),
    ],
)
def test_builds_between_changes_are_known_exactly(build: str, found: list[tuple[str, str]]) -> None:
    assert [(schema.version, schema.asked) for schema in nearest_schemas("llamacpp", build)] == found


def test_llamacpp_switches_and_variables() -> None:
    found = find_schema("llamacpp", "11549")
    assert found
    assert found.flags["jinja"].negatives == ("--no-jinja",)
    assert found.flags["ctx-size"].variables == ("LLAMA_ARG_CTX_SIZE",)
    assert "q8_0" in found.names("cache-type-k")
    assert not found.flags["cache-type-k"].value.accepts("fp8")


def test_sglang_posts_are_releases_of_their_own() -> None:
    assert [schema.version for schema in nearest_schemas("sglang", "0.5.15.post1")] == ["0.5.15.post1"]
    assert [schema.version for schema in nearest_schemas("sglang", "0.5.15.post9")] == [
        "0.5.15.post1",
        "0.5.16",
    ]
