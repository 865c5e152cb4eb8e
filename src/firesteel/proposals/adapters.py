"""The LoRA adapters of an ask and its recipe: those that a launch can have, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.catalog.launches import with_adapters
from firesteel.catalog.recipe import Recipe
from firesteel.errors import UsageError
from firesteel.facts.model.adapter import Adapter
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import AdapterReference, Ask, Launch
from firesteel.rules.adapters import UnreadAdapter, adapter_findings
from firesteel.rules.checker import Finding

OpenedAdapters = Mapping[AdapterReference, Adapter | UnreadAdapter]
"""What is known of each that the ask or a recipe names."""


def named_adapters(ask: Ask, recipe: Recipe | None) -> tuple[AdapterReference, ...]:
    """Those of the ask over those of the recipe."""
    names = {adapter.name for adapter in ask.adapters}
    shipped = recipe.adapters.items() if recipe else ()
    kept = (AdapterReference(name, reference) for name, reference in shipped if name not in names)
    return (*kept, *ask.adapters)


def add_adapters(
    launch: Launch, shape: Architecture, named: Sequence[AdapterReference], opened: OpenedAdapters
) -> tuple[Launch, tuple[Adapter, ...], tuple[Finding, ...]]:
    """The launch with the adapters that it can have, these, and why it cannot have the others."""
    known = [
        opened.get(each) or UnreadAdapter(each.name, UsageError("it was not read", next="firesteel plan"))
        for each in named
    ]
    findings = adapter_findings(launch, shape, known)
    refused = {finding.saw for finding in findings}
    adapters = tuple(each for each in known if isinstance(each, Adapter) and each.name not in refused)
    return with_adapters(launch, adapters), adapters, findings
