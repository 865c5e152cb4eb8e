"""Checkpoints that are in no catalog."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import firesteel
from firesteel.edge.home import Home
from firesteel.errors import UsageError
from firesteel.facts.host.hardware import Host
from firesteel.facts.model.architecture import Checkpoint, Format
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.typical import is_gguf, typical_weights
from firesteel.launch import Ask, EngineName
from firesteel.library import plans
from firesteel.planner.plan import Plan, more_users
from firesteel.planner.propose import propose_checkpoint
from firesteel.run.spec import RunOptions, make_spec
from firesteel.values import replace

CONFIGS = Path(__file__).parent.parent / "facts" / "configs"
GB10 = firesteel.host("gb10")


def planned(name: str, label: str, ask: Ask, host: Host = GB10) -> Plan:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    weights = typical_weights(parameters_of_config(config), label, "config.json")
    form: Format = "gguf" if is_gguf(label) else "safetensors"
    checkpoint = Checkpoint(name, name, form, name, architecture_of_config(config), weights)
    return propose_checkpoint(checkpoint, plans.catalog().images, host, ask).plan


def test_sglang_without_a_version_is_the_image_that_recipes_pin() -> None:
    plan = planned("Qwen--Qwen3-8B", "bf16", Ask(engine="sglang"))
    pinned = plans.catalog().images.named["sglang-0.5.21"]
    assert plan.launch.version == pinned.version
    assert plan.launch.container is not None and plan.launch.container.image == pinned.reference
    assert plan.speed is not None and plan.speed.basis == "fitted"


@pytest.mark.parametrize(("engine", "flag"), [("sglang", "enable-metrics"), ("llamacpp", "metrics")])
def test_an_engine_that_hides_its_metrics_is_told_to_show_them(engine: EngineName, flag: str) -> None:
    label = "q8_0" if engine == "llamacpp" else "bf16"
    assert planned("Qwen--Qwen3-8B", label, Ask(engine=engine)).launch.flags[flag] is True


def test_a_label_makes_a_band_of_bytes_and_of_speed() -> None:
    sure, label = (planned("Qwen--Qwen3.5-35B-A3B", each, Ask()) for each in ("q8_0", "ud-q4_k_xl"))
    weights = label.memory.parts[0].bytes
    assert weights.low == pytest.approx(0.85 * weights.expected)
    assert weights.high == pytest.approx(1.25 * weights.expected)
    assert label.speed is not None and "85% to 125%" in label.speed.explanation
    assert sure.memory.parts[0].bytes.high < 1.01 * sure.memory.parts[0].bytes.expected


def test_a_name_that_was_asked_for_is_that_of_the_service() -> None:
    """`image build` proves a checkpoint as a service of a name of its own, and stops that one."""
    assert planned("Qwen--Qwen3-8B", "bf16", Ask(name="proof-x")).launch.name == "proof-x"
    assert planned("Qwen--Qwen3-8B", "bf16", Ask()).launch.name == "qwen--qwen3-8b"


def test_a_sum_that_the_user_gives_has_no_band() -> None:
    plan = planned("Qwen--Qwen3.5-35B-A3B", "ud-q4_k_xl", Ask(weights_bytes=22_200_000_000))
    assert plan.memory.parts[0].bytes.is_exact


def test_heads_that_do_not_divide_evenly_are_refused() -> None:
    """Qwen3.5-27B has 24 query heads and 4 for keys: over eight Sparks each key would be copied to two."""
    planned("Qwen--Qwen3.5-27B", "bf16", Ask(sparks=8))
    with pytest.raises(UsageError, match="48 query"):
        planned("MiniMaxAI--MiniMax-M2.5", "bf16", Ask(sparks=5))


def test_a_checkpoint_is_for_four_users_or_for_as_many_as_fit() -> None:
    four = planned("Qwen--Qwen3-8B", "bf16", Ask(context=32768))
    assert four.cache.users == 4 and not [note for note in four.notes if "at once" in note]
    one = planned("Qwen--Qwen3-8B", "bf16", Ask(context=32768, users=1))
    more = more_users(one)
    assert more and more.each_bytes * 3 == pytest.approx(
        four.cache.pool_bytes - one.cache.pool_bytes, rel=0.1
    )
    room = one.memory.budget_bytes - round(one.memory.needed.expected)
    assert (more.most - 1) * more.each_bytes == pytest.approx(room, rel=0.1)

    short = round(four.memory.needed.expected) - 2 * more.each_bytes - GB10.memory_total_bytes
    tight = replace(GB10, memory_available_bytes=GB10.memory_total_bytes + short + GB10.keep_free_bytes)
    two = planned("Qwen--Qwen3-8B", "bf16", Ask(context=32768), tight)
    assert two.fits and two.cache.users in (1, 2)
    assert any(f"for {two.cache.users} at once: 4 would need" in note for note in two.notes)
    none = planned("Qwen--Qwen3-8B", "bf16", Ask(context=32768), replace(GB10, memory_available_bytes=2**30))
    assert not none.fits and none.cache.users == 1 and not [note for note in none.notes if "at once" in note]


def test_what_a_checkpoint_is_served_for_is_asked_again(tmp_path: Path) -> None:
    """The memory that is free then may be another."""
    asked = plans.catalog()
    config = json.loads((CONFIGS / "Qwen--Qwen3-8B.json").read_text())
    weights = typical_weights(parameters_of_config(config), "bf16", "config.json")
    checkpoint = Checkpoint("q", "q", "safetensors", "/models/q", architecture_of_config(config), weights)
    proposal = propose_checkpoint(checkpoint, asked.images, GB10, Ask("/models/q"))
    assert proposal.ask.users is None
    assert make_spec(proposal, Home(tmp_path), RunOptions()).ask.users == 4
