"""Whether an engine can serve LoRA adapters with a model: stops, each with the adapter's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from firesteel.engines.engine import FIRST_LLAMACPP, FORMATS, VLLM_RANKS
from firesteel.errors import FiresteelError
from firesteel.facts.evidence import Evidence
from firesteel.facts.model.adapter import Adapter
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import Launch
from firesteel.rules.checker import TITLES, Finding
from firesteel.values import Value

_SEEN = date(2026, 11, 16)
_LLAMACPP = "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md"
_VLLM = "https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/lora/peft_helper.py"
_SGLANG = "https://github.com/sgl-project/sglang/tree/main/python/sglang/srt/lora"
_SOURCES = {"llamacpp": _LLAMACPP, "vllm": _VLLM, "sglang": _SGLANG}


class UnreadAdapter(Value):
    """One that was named and cannot be read."""

    name: str
    error: FiresteelError


def adapter_findings(
    launch: Launch, shape: Architecture, adapters: Sequence[Adapter | UnreadAdapter]
) -> tuple[Finding, ...]:
    return tuple(
        _finding(launch, adapter.name, rule, says, instead)
        for adapter in adapters
        for rule, says, instead in _objections(launch, shape, adapter)
    )


def _objections(
    launch: Launch, shape: Architecture, adapter: Adapter | UnreadAdapter
) -> Iterator[tuple[str, str, str]]:
    if isinstance(adapter, UnreadAdapter):
        yield "adapter-unread", adapter.error.what, adapter.error.next
        return
    title, wanted = TITLES[launch.engine], FORMATS[launch.engine]
    if adapter.format != wanted:
        convert = "convert_lora_to_gguf.py of llama.cpp makes a GGUF of a PEFT folder"
        is_gguf = wanted == "gguf"
        says = f"{title} takes {'a GGUF' if is_gguf else 'a PEFT folder'}, and this is the other"
        yield "adapter-format", says, convert if is_gguf else "give the PEFT folder that it was made from"
        return
    family = adapter.architecture
    if family and family != shape.model_type and not _is_same_family(family, shape.model_type):
        yield (
            "adapter-base",
            f"it was made for a model of the architecture {family}, and this one is {shape.model_type}",
            f"serve it with {adapter.base or 'the model that it was made for'}",
        )
    for wrong in adapter.misfits(shape):
        made_for = f", made for {adapter.base}" if adapter.base else ""
        yield (
            "adapter-base",
            f"it does not belong to this model{made_for}: {wrong}",
            f"serve it with {adapter.base or 'the model that it was made for'}",
        )
        break
    if launch.engine == "vllm" and adapter.rank > VLLM_RANKS[-1]:
        yield (
            "adapter-rank",
            f"its rank is {adapter.rank}; vLLM takes {VLLM_RANKS[-1]} at most",
            "a lower rank",
        )
    if launch.engine != "llamacpp" and adapter.features:
        yield (
            "adapter-feature",
            f"it has {' and '.join(adapter.features)}, which {title} does not take",
            "merge it into the model (PEFT's merge_and_unload), or train it without",
        )
    if launch.engine == "llamacpp":
        if any(mark in adapter.path for mark in ",:"):
            yield "adapter-path", "llama.cpp splits its path at `,` and `:`", "rename the file"
        if launch.version and launch.version.isdigit() and int(launch.version) < FIRST_LLAMACPP:
            yield (
                "adapter-release",
                f"build {launch.version} of llama.cpp cannot load adapters switched off",
                f"build {FIRST_LLAMACPP} or newer",
            )


def _is_same_family(adapter: str, model: str) -> bool:
    """A GGUF's architecture against a config's `model_type`: `qwen3moe` and `qwen3_moe`."""
    return adapter.replace("_", "").replace("-", "") == model.replace("_", "").replace("-", "")


def _finding(launch: Launch, name: str, rule: str, says: str, instead: str) -> Finding:
    return Finding(
        rule=rule,
        level="stop",
        says=f"adapter `{name}`: {says}",
        instead=instead,
        location=None,
        saw=name,
        confidence="verified",
        sources=(Evidence(url=_SOURCES[launch.engine], seen=_SEEN),),
        scope=TITLES[launch.engine],
        key=f"adapter:{name}",
    )
