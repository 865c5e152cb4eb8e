"""Planned figures beside measured ones."""

from __future__ import annotations

from firesteel.catalog.catalog import shipped
from firesteel.catalog.launches import with_flags
from firesteel.engines.logs import ReportedMemory
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask
from firesteel.planner.memory.account import _adapter_parts
from firesteel.planner.propose import propose
from firesteel.run.report import compare
from firesteel.units import GIB
from firesteel.values import replace


def test_what_vllm_says_of_loading_counts_the_slots_of_adapters() -> None:
    """Seen with vLLM 0.26.0 on an H200: 0.25 GiB of weights and two slots were reported as 0.27 GiB."""
    plan = propose(shipped(), idle_host(hardware("gb10")), Ask("llama-3.3-70b-nvfp4"))[0].plan
    (weights,) = (part.bytes.expected for part in plan.memory.parts if part.name == "weights")
    model = shipped().models["nvidia/Llama-3.3-70B-Instruct-NVFP4"]
    launch = with_flags(plan.launch, {"enable-lora": True, "max-loras": "2", "max-lora-rank": "64"})
    (adapters,) = _adapter_parts(launch, model.architecture)
    memory = replace(plan.memory, parts=(*plan.memory.parts, adapters))
    measured = int(weights + adapters.bytes.expected)
    assert adapters.bytes.expected > GIB / 2
    (with_slots,) = compare(
        replace(plan, launch=launch, memory=memory), ReportedMemory(weights_bytes=measured), None, ()
    )
    (without,) = compare(plan, ReportedMemory(weights_bytes=measured), None, ())
    assert with_slots.is_within and not without.is_within
