"""Launches of other registries against our recipes: every flag that differs has a reason, none is idle."""

from __future__ import annotations

from dataclasses import replace

import yaml
from registries import differences as registries
from registries import others

from firesteel.catalog.catalog import shipped


def test_every_difference_has_a_reason() -> None:
    found = list(registries.differences())
    assert {each.launch.registry for each in found} >= {"eugr", "vllm-project"}
    assert [(each.launch.path, each.flag, each.theirs) for each in found if each.reason is None] == []


def test_every_reason_explains_a_difference() -> None:
    used = {each.reason for each in registries.differences()}
    assert {row["why"] for row in registries.reasons()} - used == set()


def test_a_new_flag_of_theirs_is_noticed() -> None:
    first = registries.launches()[0]
    changed = replace(first, flags={**first.flags, "enforce-eager": True})
    assert "enforce-eager" in registries.differing(changed, registries.nearest(changed))


def test_every_launch_of_another_kind_is_here_or_has_its_reason() -> None:
    found = [others.reason_of(launch) for launch in others.others()]
    assert {launch.kind for launch in others.others()} == {"SGLang", "AWQ", "INT4"}
    assert None not in found
    assert [row["model"] for row in others.reasons() if row not in found] == []
    assert all(row.get("here") or row.get("why") for row in others.reasons())


def test_what_is_said_to_be_here_is_here() -> None:
    rows = [*others.reasons(), *yaml.safe_load((registries.FOLDER / "models.yaml").read_text())]
    assert {name for row in rows for name in row.get("here", ())} - shipped().recipes.keys() == set()
