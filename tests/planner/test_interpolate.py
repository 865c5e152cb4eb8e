"""A label that may be either of two layouts: every figure lies between theirs, and they agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import firesteel
from firesteel.facts.model.architecture import Checkpoint
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.tensors import Weights
from firesteel.facts.model.typical import heavier_weights, typical_weights
from firesteel.launch import Ask
from firesteel.library import plans
from firesteel.planner import Band, MeasuredMemory, MemoryPart, Plan, between, launch_key
from firesteel.planner.interpolate import memory_between
from firesteel.proposals import propose_checkpoint
from firesteel.units import GIB
from firesteel.values import replace

CONFIGS = Path(__file__).parent.parent / "facts" / "configs"
GB10 = firesteel.host("gb10")
NAMES = ("Qwen--Qwen3-8B", "Qwen--Qwen3.5-35B-A3B", "meta-llama--Meta-Llama-3.1-70B")


def layouts(name: str) -> tuple[Weights, Weights]:
    sizes = parameters_of_config(json.loads((CONFIGS / f"{name}.json").read_text()))
    light, heavy = (make(sizes, "nvfp4", "config.json") for make in (typical_weights, heavier_weights))
    assert light is not None and heavy is not None
    return light, heavy


def planned(name: str, weights: Weights, heavier: Weights | None, *seen: MeasuredMemory) -> Plan:
    shape = architecture_of_config(json.loads((CONFIGS / f"{name}.json").read_text()))
    checkpoint = Checkpoint(name, name, "safetensors", name, shape, weights, heavier=heavier)
    known = {each.key: each for each in seen}
    return propose_checkpoint(
        checkpoint, plans.catalog().images, GB10, Ask(context=40960, users=5), known
    ).plan


def lies_between(middle: Band, one: Band, other: Band) -> bool:
    low, high = sorted((one.expected, other.expected))
    return (
        (middle.low, middle.high) == (min(one.low, other.low), max(one.high, other.high))
        and low <= middle.expected <= high
        and (low == high or low < middle.expected < high)
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_lies_between_those_of_the_layouts(name: str) -> None:
    light, heavy = layouts(name)
    both = [planned(name, *each).speed for each in ((light, heavy), (light, None), (heavy, None))]
    middle, fast, slow = both
    assert middle and fast and slow and middle.batch and fast.batch and slow.batch
    assert lies_between(*(each.decode_tokens_per_s for each in (middle, fast, slow)))
    assert slow.bound_tokens_per_s < middle.bound_tokens_per_s < fast.bound_tokens_per_s
    assert fast.bytes_per_token < middle.bytes_per_token < slow.bytes_per_token
    for (depth, band), (_, one), (_, other) in zip(
        middle.at_depth, fast.at_depth, slow.at_depth, strict=True
    ):
        assert lies_between(band, one, other), depth
    crowds = (middle.batch, fast.batch, slow.batch)
    assert lies_between(*(each.per_user_tokens_per_s for each in crowds))
    assert lies_between(*(each.total_tokens_per_s for each in crowds))
    assert middle.start_up and fast.start_up and slow.start_up
    assert lies_between(middle.start_up.seconds, fast.start_up.seconds, slow.start_up.seconds)


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_agree_with_each_other(name: str) -> None:
    """Nobody is faster deeper or in a crowd, bytes make the bound, and the parts of a step its rate."""
    speed = planned(name, *layouts(name)).speed
    assert speed and speed.batch
    alone = speed.decode_tokens_per_s
    rates = [band.expected for _, band in speed.at_depth]
    assert rates == sorted(rates, reverse=True) and rates[0] == pytest.approx(alone.expected)
    assert speed.batch.per_user_tokens_per_s.expected <= alone.expected
    assert speed.batch.total_tokens_per_s.expected == pytest.approx(
        5 * speed.batch.per_user_tokens_per_s.expected
    )
    assert speed.bytes_per_token * speed.bound_tokens_per_s == pytest.approx(speed.bandwidth_bytes_per_s)
    assert sum(speed.parts_ms.values()) == pytest.approx(1000 / alone.expected, rel=0.01)
    if speed.prefill:
        tokens, took = speed.prefill.tokens_per_s, speed.prefill.ttft_ms
        assert tokens.expected == pytest.approx(1000 * speed.prefill.prompt_tokens / took.expected)


@pytest.mark.parametrize("name", NAMES[:2])  # the third needs more than there is
def test_the_fraction_covers_the_heavy_layout(name: str) -> None:
    plan = planned(name, *layouts(name))
    fraction = plan.launch.flags["gpu-memory-utilization"]
    assert isinstance(fraction, str)
    assert float(fraction) * plan.memory.host_total_bytes >= plan.memory.needed.high
    assert plan.memory.needed.high == planned(name, layouts(name)[1], None).memory.needed.high


@pytest.mark.parametrize(("way", "is_used"), [(-1.0, False), (0.25, False), (0.75, True), (2.0, True)])
def test_a_measurement_applies_to_both_layouts_or_none(way: float, is_used: bool) -> None:
    """What the process held beside its cache, from the light weights (0) on the way to the heavy ones (1)."""
    name, (light, heavy) = NAMES[0], layouts(NAMES[0])
    before = planned(name, light, heavy)
    held = light.total_bytes + way * (heavy.total_bytes - light.total_bytes)
    seen = MeasuredMemory(
        launch_key(before.launch),
        "vllm",
        None,
        round(held) + before.kv_bytes,
        "2026-11-15",
        checkpoint_bytes=light.total_bytes,
        planned_kv_bytes=before.kv_bytes,
    )
    after = planned(name, light, heavy, seen)
    assert any(part.basis == "measured" for part in after.memory.parts) is is_used
    assert any("not used" in note for note in after.notes) is not is_used
    weights = after.memory.parts[0].bytes
    assert (weights.low, weights.high) == (light.total_bytes, heavy.total_bytes)


def test_parts_that_only_one_layout_has_may_be_absent() -> None:
    one = planned(NAMES[0], layouts(NAMES[0])[0], None)
    padding = MemoryPart("expert padding", Band.exactly(GIB), "formula", "")
    more = replace(one, memory=replace(one.memory, parts=(*one.memory.parts[:2], padding)))
    for first, second in ((one, more), (more, one)):
        found = between(first, second).memory
        assert next(part.bytes for part in found.parts if part.name == "expert padding") == Band(
            0, GIB / 2, GIB
        )
    assert memory_between(one.memory, one.memory) == one.memory
