"""What one release of an engine understands: flags, keys of JSON flags, environment variables.

A `Schema` is read out of a release's own sources (`learn_vllm`, `learn_sglang`, `learn_llamacpp`), kept for
every known release in a `chronicle`, and asked by `resolve`. It says what the parser of that release takes,
never whether it is wise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from firesteel.launch import EngineName

Takes = Literal["value", "nothing", "optional", "many"]
"""How many words follow a flag: one, none, one or none, one or more."""

Kind = Literal["str", "int", "size", "float", "bool", "json"]
"""What a value is. `size` is an int that may be written 128k or 1G; `json` an object or a list."""

Default = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Value:
    """What may stand as a value: of a flag, of a key, of a variable."""

    kind: Kind = "str"
    values: tuple[str, ...] = ()
    """The names that the release knows, sorted; empty when it names none."""
    open: bool = True
    """A value outside `values` may be right too: a plugin's name, a path, a plain string."""
    folds: bool = False
    """Upper and lower case, and `-` and `_`, are the same in it."""
    config: str = ""
    """The config class whose keys a JSON value may have; empty when any key is."""
    default: Default = None
    """The release's default, where it is a plain value; None: none, or worked out at start."""

    def accepts(self, text: str) -> bool:
        """False only when the release is sure to refuse the text."""
        if self.open or not self.values:
            return True
        if not self.folds:
            return text in self.values
        return _folded(text) in {_folded(each) for each in self.values}


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    """The long spelling without its dashes, as a Launch has it."""
    value: Value = Value()
    takes: Takes = "value"
    aliases: tuple[str, ...] = ()
    """Other spellings, dashes included: `-tp`, `--device-memory-utilization`."""
    negatives: tuple[str, ...] = ()
    """Spellings that say the opposite: `--no-enable-prefix-caching`."""
    variables: tuple[str, ...] = ()
    """Environment variables that say the same (llama.cpp)."""
    deprecated: bool = False

    @property
    def spellings(self) -> tuple[str, ...]:
        return (f"--{self.name}", *self.aliases)


@dataclass(frozen=True, slots=True)
class Config:
    """The keys that a JSON flag may have."""

    name: str
    keys: Mapping[str, Value]
    strict: bool = True
    """An unknown key stops the start. False: it is ignored without a word."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One release of one engine."""

    engine: EngineName
    version: str
    flags: Mapping[str, Flag] = field(default_factory=dict)
    configs: Mapping[str, Config] = field(default_factory=dict)
    variables: Mapping[str, Value] = field(default_factory=dict)
    asked: str = ""
    """The version that was asked for, when it is another: this one is the nearest known."""

    @property
    def is_exact(self) -> bool:
        return not self.asked

    @property
    def spoken(self) -> str:
        """The version as a message should name it."""
        if self.is_exact:
            return self.version
        return f"{self.version} ({self.asked} is not known here, the nearest is {self.version})"

    def names(self, flag: str) -> tuple[str, ...]:
        """The values that the release names for a flag: `names("reasoning-parser")`."""
        return self.flags[flag].value.values if flag in self.flags else ()


def _folded(text: str) -> str:
    return text.lower().replace("-", "_")
