"""LoRA adapters on the command line of an engine, and in its requests.

    vLLM      --enable-lora --lora-modules NAME=PATH --max-loras N --max-lora-rank R; asked for as model NAME
    SGLang    --enable-lora --lora-paths NAME=PATH ...; asked for as model NAME
    llama.cpp --lora-scaled PATH:0,...; asked for with `lora: [{"id": 0, "scale": 1.0}]`

llama.cpp gets a scale of 0 at the start, since `--lora-init-without-apply` leaves it at 1
(https://github.com/ggml-org/llama.cpp/issues/28674, seen 2026-11-16; so in build 11549 here). A request that
says nothing of `lora` also reuses a prompt that was cached under an adapter (build 11549), so that requests
for the base model say it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.facts.model.adapter import Adapter, AdapterFormat
from firesteel.launch import EngineName, FlagValue

FORMATS: Mapping[EngineName, AdapterFormat] = {"vllm": "peft", "sglang": "peft", "llamacpp": "gguf"}
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Of `--max-lora-rank`: https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/config/lora.py, seen
2026-11-16."""
FIRST_LLAMACPP = 7448
"""The first build that takes several in one `--lora-scaled`."""


def adapter_flags(engine: EngineName, adapters: Sequence[Adapter]) -> dict[str, FlagValue]:
    """Of adapters that the engine can take (`rules.adapters`)."""
    if engine == "llamacpp":
        return {"lora-scaled": ",".join(f"{adapter.path}:0" for adapter in adapters)}
    named: list[object] = [f"{adapter.name}={adapter.path}" for adapter in adapters]
    rank = max(adapter.rank for adapter in adapters)
    if engine == "vllm":
        slots = min((known for known in VLLM_RANKS if known >= rank), default=rank)
        return {
            "enable-lora": True, "lora-modules": named, "max-loras": str(len(named)),
            "max-lora-rank": str(slots),
        }  # fmt: skip
    return {  # the base model has a slot of its own
        "enable-lora": True, "lora-paths": named, "max-loras-per-batch": str(len(named) + 1),
        "max-lora-rank": str(rank),
    }  # fmt: skip


def lora_slots(engine: EngineName, flags: Mapping[str, FlagValue]) -> tuple[int, int] | None:
    """(slots, rank) that the flags make vLLM or SGLang allocate; None: none."""
    if flags.get("enable-lora") is not True or engine == "llamacpp":
        return None
    count, rank = flags.get("max-loras", "1"), flags.get("max-lora-rank", "16")
    if engine == "sglang":
        count = flags.get("max-loras-per-batch", "8")
    digits = (value for value in (count, rank) if isinstance(value, str) and value.isdigit())
    numbers = [int(value) for value in digits if len(value) < 10]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def adapter_request(count: int, index: int | None) -> dict[str, Any]:
    """What a request to llama.cpp says of its adapters; `index` None: the base model."""
    return {"lora": [{"id": each, "scale": 1.0 if each == index else 0.0} for each in range(count)]}
