"""Adapters that an engine cannot serve with a model, each refused by its name."""

from __future__ import annotations

import pytest

from firesteel.catalog.launches import with_adapters
from firesteel.engines.engine import VLLM_RANKS, adapter_flags, parse_argv
from firesteel.engines.engine import argv as engine_argv
from firesteel.engines.schema.releases import find_schema, known_versions
from firesteel.engines.schema.symbols import ResolvedFlag, resolve_flag
from firesteel.errors import UsageError
from firesteel.facts.model.adapter import Adapter, AdapterModule
from firesteel.launch import Container, EngineName, Launch
from firesteel.planner.memory.account import _adapter_parts
from firesteel.rules.adapters import UnreadAdapter, adapter_findings
from firesteel.values import replace
from tests.facts.test_adapter import SMOLLM2

PEFT = Adapter("polite", "/data/polite", "peft", 16, 1000, (AdapterModule("q_proj", 576, 576),), 30)
GGUF = replace(PEFT, path="/data/polite.gguf", format="gguf", architecture="llama")
VLLM, SGLANG = Launch("small", "org/small", "vllm"), Launch("small", "org/small", "sglang")
LLAMACPP = Launch("small", "/m.gguf", "llamacpp", "11549")


@pytest.mark.parametrize(("launch", "adapter"), [(VLLM, PEFT), (SGLANG, PEFT), (LLAMACPP, GGUF)])
def test_what_fits_has_no_finding(launch: Launch, adapter: Adapter) -> None:
    assert adapter_findings(launch, SMOLLM2, [adapter]) == ()


@pytest.mark.parametrize(
    ("launch", "adapter", "rule", "says"),
    [
        (VLLM, GGUF, "adapter-format", "vLLM takes a PEFT folder"),
        (LLAMACPP, PEFT, "adapter-format", "llama.cpp takes a GGUF"),
        (LLAMACPP, replace(GGUF, architecture="qwen2"), "adapter-base", "of the architecture qwen2"),
        (VLLM, replace(PEFT, layers=40, base="org/big"), "adapter-base", "made for org/big"),
        (VLLM, replace(PEFT, rank=600), "adapter-rank", "its rank is 600; vLLM takes 512"),
        (VLLM, replace(PEFT, features=("DoRA",)), "adapter-feature", "it has DoRA"),
        (SGLANG, replace(PEFT, features=("a bias",)), "adapter-feature", "SGLang does not take"),
        (LLAMACPP, replace(GGUF, path="/a,b.gguf"), "adapter-path", "splits its path"),
        (replace(LLAMACPP, version="7000"), GGUF, "adapter-release", "build 7000"),
        (VLLM, UnreadAdapter("polite", UsageError("not here", next="pull it")), "adapter-unread", "not here"),
    ],
)
def test_what_does_not_fit_is_stopped_by_name(
    launch: Launch, adapter: Adapter | UnreadAdapter, rule: str, says: str
) -> None:
    (found,) = adapter_findings(launch, SMOLLM2, [adapter])
    assert (found.rule, found.level) == (rule, "stop")
    assert found.says.startswith("adapter `polite`: ") and says in found.says and found.instead


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_every_release_that_may_serve_them_has_the_flags(engine: EngineName) -> None:
    flags = adapter_flags(engine, [GGUF if engine == "llamacpp" else PEFT])
    versions = [version for version in known_versions(engine) if engine != "llamacpp" or int(version) >= 7448]
    for version in (versions[0], versions[len(versions) // 2], versions[-1]):
        schema = find_schema(engine, version)
        assert schema is not None
        for name in flags:
            assert isinstance(resolve_flag(schema, f"--{name}"), ResolvedFlag), (version, name)


def test_the_ranks_are_those_of_the_newest_vllm() -> None:
    schema = find_schema("vllm", known_versions("vllm")[-1])
    assert schema is not None
    found = resolve_flag(schema, "--max-lora-rank")
    assert isinstance(found, ResolvedFlag)
    assert {str(rank) for rank in VLLM_RANKS} <= set(found.flag.value.values)


def test_flags_and_their_inverse() -> None:
    launch = with_adapters(VLLM, [PEFT, replace(PEFT, name="curt", path="org/curt", rank=40)])
    argv = engine_argv(launch)
    assert "--lora-modules polite=/data/polite curt=org/curt --max-loras 2 --max-lora-rank 64" in " ".join(
        argv
    )
    parsed = parse_argv("vllm", argv)
    assert parsed.flags["lora-modules"] == ["polite=/data/polite", "curt=org/curt"]


def test_a_path_is_mounted_and_a_hub_id_is_not() -> None:
    launch = replace(VLLM, container=Container("image"))
    found = with_adapters(launch, [PEFT, replace(PEFT, name="curt", path="org/curt")])
    assert found.container is not None
    (mount,) = found.container.mounts
    assert (mount.source, mount.target, mount.read_only) == ("/data/polite", "/adapters/polite", True)
    assert found.flags["lora-modules"] == ["polite=/adapters/polite", "curt=org/curt"]


def test_memory_of_slots_and_of_files() -> None:
    def expected(launch: Launch, adapter: Adapter) -> float:
        (part,) = _adapter_parts(with_adapters(launch, [adapter]), SMOLLM2)
        return part.bytes.expected

    assert expected(LLAMACPP, GGUF) == 1000
    one = expected(VLLM, PEFT)
    assert expected(VLLM, replace(PEFT, rank=17)) == 2 * one  # vLLM's next rank is 32
    assert expected(SGLANG, PEFT) == 2 * one  # a slot for the base model
