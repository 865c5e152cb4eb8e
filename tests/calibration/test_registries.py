"""Launches of other registries against our recipes: every flag that differs has a reason, none is idle."""

from __future__ import annotations

from dataclasses import replace

from registries import differences as registries


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
