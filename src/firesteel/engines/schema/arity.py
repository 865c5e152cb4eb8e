"""How many arguments follow each flag, in any known release; read from the shipped history.

A command line is parsed before its version is known, so this is the union over all releases; where a flag
changed its kind, the newest counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from firesteel.engines.schema.releases import shipped_history_text
from firesteel.launch import EngineName


@dataclass(frozen=True, slots=True)
class FlagArity:
    switches: frozenset[str]
    """Flags without a value."""
    values: frozenset[str]
    """Flags with one value, or at most one."""
    lists: frozenset[str]
    """Flags that take every argument up to the next flag."""

    @property
    def all(self) -> frozenset[str]:
        return self.switches | self.values | self.lists


def flag_arity(engine: EngineName) -> FlagArity:
    # The raw JSON: building the whole history takes ten times as long, and every command would pay for it.
    flags = json.loads(shipped_history_text(engine))["flags"]
    names: dict[str, set[str]] = {"nothing": set(), "value": set(), "optional": set(), "many": set()}
    for name, history in flags.items():
        newest = history["is"][-1]  # [first, last, facts], of which the last two may be missing
        takes = newest[2].get("takes", "value") if len(newest) > 2 else "value"
        names[takes].add(name.removeprefix("--"))
    return FlagArity(
        frozenset(names["nothing"]), frozenset(names["value"] | names["optional"]), frozenset(names["many"])
    )
