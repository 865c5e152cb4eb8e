"""The names that clients ask for: of models, their aliases and their adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from firesteel.service_file.parameters import Place, parameter_faults

if TYPE_CHECKING:  # it imports this module
    from firesteel.service_file import ModelEntry

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}\Z")


def name_faults(models: Mapping[str, ModelEntry]) -> Iterator[tuple[Place, str]]:
    """Whoever asks for one means one model."""
    whose: dict[str, str] = {}
    for name, entry in models.items():
        for adapter in entry.adapters:
            here = ("models", name, "adapters", adapter)
            if not entry.recipe:
                yield here, f"`{name}`: `adapters` are for a `recipe`"
            elif not NAME.match(adapter):
                yield (
                    here,
                    f"`{name}`: `{adapter[:80]}` is no name: letters, digits, dots, dashes, 63 at most",
                )
            elif adapter in models or adapter in entry.aliases or adapter in whose:
                yield here, f"`{name}`: the adapter `{adapter}` has the name of another model here"
            whose.setdefault(adapter, name)
        for alias, parameters in entry.aliases.items():
            here = ("models", name, "aliases", alias)
            yield from parameter_faults(here, alias, parameters)
            if not _ALIAS.match(alias):
                yield here, f"`{name}`: `{alias[:80]}` cannot be asked for; write it like `gpt-oss:20b`"
            elif alias in models:
                yield here, f"`{name}`: the alias `{alias}` is the name of a model here"
            elif alias in whose:
                yield here, f"`{name}`: the alias `{alias}` is given already, to `{whose[alias]}`"
            whose.setdefault(alias, name)
