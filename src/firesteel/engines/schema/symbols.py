"""What one release of an engine accepts: flags, keys of JSON flags, environment variables.

A `Schema` is read from the sources of a release (the `learn` module of each engine), stored for every known
release in an `EngineHistory`, and used by `resolve`. It describes what the parser of that release accepts,
never whether it is a good idea.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from firesteel.launch import EngineName
from firesteel.values import Value

Takes = Literal["value", "nothing", "optional", "many"]
"""How many arguments follow a flag: one, none, one or none, one or more."""

Kind = Literal["str", "int", "size", "float", "bool", "json"]
"""The type of a value. `size` is an int that may be written 128k or 1G; `json` an object or a list."""

Default = str | int | float | bool | None


class SymbolValue(Value):
    """The values that a flag, a key or a variable accepts."""

    kind: Kind = "str"
    values: tuple[str, ...] = ()
    """The names that the release lists, sorted; empty when it lists none."""
    open: bool = True
    """A value outside `values` may be accepted too: the name of a plugin, a path, any string."""
    folds: bool = False
    """Upper and lower case, and `-` and `_`, are the same."""
    config: str = ""
    """The config class whose keys a JSON value may have; empty: any key."""
    default: Default = None
    """The default of the release, where it is a plain value; None: none, or computed at start."""

    def accepts(self, text: str) -> bool:
        """False only when the release is certain to refuse the text."""
        if self.open or not self.values:
            return True
        if not self.folds:
            return text in self.values
        return _folded(text) in map(_folded, self.values)


class Flag(Value):
    name: str
    """The long spelling without its dashes, as a Launch has it."""
    value: SymbolValue = SymbolValue()
    takes: Takes = "value"
    aliases: tuple[str, ...] = ()
    """Other spellings, dashes included: `-tp`, `--device-memory-utilization`."""
    negatives: tuple[str, ...] = ()
    """Spellings that negate the flag: `--no-enable-prefix-caching`."""
    variables: tuple[str, ...] = ()
    """Environment variables that set the same (llama.cpp)."""
    deprecated: bool = False

    @property
    def spellings(self) -> tuple[str, ...]:
        return (f"--{self.name}", *self.aliases)


class Config(Value):
    """The keys that a JSON flag may have."""

    name: str
    keys: Mapping[str, SymbolValue]
    strict: bool = True
    """An unknown key is refused. False: it is silently ignored."""


class Schema(Value, dict=True):
    """One release of one engine."""

    engine: EngineName
    version: str
    flags: Mapping[str, Flag] = {}
    configs: Mapping[str, Config] = {}
    variables: Mapping[str, SymbolValue] = {}
    asked: str = ""
    """The version that was asked for, when it is not known: this one is the nearest."""

    @property
    def is_exact(self) -> bool:
        return not self.asked

    @cached_property
    def spellings(self) -> Mapping[str, tuple[Flag, bool]]:
        """Every spelling that the engine accepts -> the flag, and whether the spelling negates it."""
        return {
            spelling: (flag, negative)
            for flag in self.flags.values()
            for negative, group in ((False, flag.spellings), (True, flag.negatives))
            for spelling in group
        }

    @cached_property
    def sorted_spellings(self) -> list[str]:
        return sorted(self.spellings)

    def names(self, flag: str) -> tuple[str, ...]:
        """The values that the release lists for a flag: `names("reasoning-parser")`."""
        return self.flags[flag].value.values if flag in self.flags else ()


def _folded(text: str) -> str:
    return text.lower().replace("-", "_")
