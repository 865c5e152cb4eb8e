"""The syntax of each flag in any known release: how many arguments follow it, and its other spellings.

A command line is parsed before its version is known, so this is the union over all releases; where a flag
changed its kind, the newest counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from firesteel import shipped_data
from firesteel.engines.schema.releases import SCHEMA_FILE
from firesteel.launch import EngineName
from firesteel.values import Value


class FlagArity(Value):
    switches: frozenset[str]
    """Flags without a value."""
    values: frozenset[str]
    """Flags with one value, or at most one."""
    lists: frozenset[str]
    """Flags that take every argument up to the next flag."""
    aliases: Mapping[str, str]
    """Other spelling -> flag, both without dashes."""

    @property
    def all(self) -> frozenset[str]:
        return self.switches | self.values | self.lists


@cache
def flag_arity(engine: EngineName) -> FlagArity:
    flags = json.loads(shipped_data.read_text(f"engines/{engine}/{SCHEMA_FILE}"))["flags"]
    names: dict[str, set[str]] = {"nothing": set(), "value": set(), "optional": set(), "many": set()}
    aliases: dict[str, str] = {}
    for dashed, history in flags.items():
        name = dashed.removeprefix("--")
        facts = [range_[2] if len(range_) > 2 else {} for range_ in history["is"]]
        names[facts[-1].get("takes", "value")].add(name)
        aliases |= {alias.lstrip("-"): name for older in facts for alias in older.get("aliases", ())}
    return FlagArity(
        frozenset(names["nothing"]),
        frozenset(names["value"] | names["optional"]),
        frozenset(names["many"]),
        aliases,
    )
