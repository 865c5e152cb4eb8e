"""How many words follow each flag, in any release that was read: out of the chronicle, never typed.

A line is read before its version is known, so this is the union over all releases; where a flag changed
its kind, the newest counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from firesteel.engines.schema.releases import shipped_history_text
from firesteel.launch import EngineName

NOTHING_SAID: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FlagArity:
    switches: frozenset[str]
    """No word."""
    values: frozenset[str]
    """One word, or at most one."""
    lists: frozenset[str]
    """Every word up to the next flag."""

    @property
    def all(self) -> frozenset[str]:
        return self.switches | self.values | self.lists


def flag_arity(engine: EngineName) -> FlagArity:
    # The file as it lies: building the whole chronicle takes ten times as long, and every command pays it.
    takes = {
        name.removeprefix("--"): _takes(*life["is"][-1])
        for name, life in json.loads(shipped_history_text(engine))["flags"].items()
    }

    def those(*kind: str) -> frozenset[str]:
        return frozenset(name for name, taken in takes.items() if taken in kind)

    return FlagArity(those("nothing"), those("value", "optional"), those("many"))


def _takes(first: str, last: str | None = None, facts: Mapping[str, str] = NOTHING_SAID) -> str:
    """A span as the file writes it, with what is usual left out."""
    return facts.get("takes", "value")
