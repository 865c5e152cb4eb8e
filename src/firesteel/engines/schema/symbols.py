"""What one release of an engine accepts, and what an argument as typed means in it.

A `Schema` is read from the sources of a release (the `learn` module of each engine), which `self_check`
judges, stored for every known release in an `EngineHistory`, and used by `resolve_flag`. It describes what
the parser of that release accepts, never whether it is a good idea.

`resolve_flag` finds the flag that an argument as typed means in one release. vLLM and SGLang parse with
argparse: an unambiguous abbreviation stands for the flag (`--kv-cache-mem` is `--kv-cache-memory-bytes`), and
`--no-` negates a switch. vLLM adds two rules: `_` is `-` in a flag name, and a JSON flag can be set one key
at a time (`--compilation-config.mode 0`, or `--compilation-config.custom_ops+all` to append). llama.cpp takes
no abbreviations; it reads `_` as `-` too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from firesteel.errors import FiresteelError
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


_ABBREVIATES: frozenset[EngineName] = frozenset({"vllm", "sglang"})
_TAKES_KEYS: frozenset[EngineName] = frozenset({"vllm"})
_UNDERSCORES: frozenset[EngineName] = frozenset({"vllm", "llamacpp"})


class ResolvedFlag(Value):
    flag: Flag
    spelling: str
    """The full spelling that the argument stands for."""
    negative: bool = False
    keys: tuple[str, ...] = ()
    """The path into a JSON flag: `--kernel-config.moe_backend` has `("moe_backend",)`."""
    abbreviated: bool = False


class AmbiguousFlag(Value):
    """An abbreviation of several flags; the engine refuses it."""

    spellings: tuple[str, ...]


def resolve_flag(schema: Schema, argument: str) -> ResolvedFlag | AmbiguousFlag | None:
    """None: the release has no such flag. A value after `=` is ignored."""
    typed, keys = _split_keys(schema.engine, argument)
    spellings = schema.spellings
    if typed in spellings:
        return ResolvedFlag(spellings[typed][0], typed, spellings[typed][1], keys)
    if schema.engine not in _ABBREVIATES or not typed.strip("-"):
        return None
    if typed[1] != "-" and (short := spellings.get(typed[:2])) and short[0].takes != "nothing":
        return ResolvedFlag(short[0], typed[:2], short[1])  # `-qfp8`: the value follows without a space
    first = bisect_left(schema.sorted_spellings, typed)
    if not schema.sorted_spellings[first : first + 1] or not schema.sorted_spellings[first].startswith(typed):
        return None
    matches = [spelling for spelling in spellings if spelling.startswith(typed)]
    if len({spellings[spelling] for spelling in matches}) > 1:
        return AmbiguousFlag(tuple(matches))
    flag, negative = spellings[matches[0]]
    return ResolvedFlag(flag, matches[0], negative, keys, abbreviated=True)


def resolve_key(
    schema: Schema, flag: str, path: tuple[str, ...]
) -> SymbolValue | Literal["unknown", "ignored", "free"]:
    """One key of a JSON flag, by its path. unknown: the engine refuses it; ignored: it silently has no
    effect; free: this JSON has no fixed keys."""
    value = schema.flags[flag].value
    for step in path:
        config = schema.configs.get(value.config)
        if config is None:
            return "free"
        if step not in config.keys:
            return "unknown" if config.strict else "ignored"
        value = config.keys[step]
    return value


def _split_keys(engine: EngineName, argument: str) -> tuple[str, tuple[str, ...]]:
    """`--a_b.c.d+=v` -> `--a-b`, (c, d)."""
    typed = argument.partition("=")[0]
    keys: tuple[str, ...] = ()
    if engine in _TAKES_KEYS and "." in typed:
        typed, *rest = typed.split(".")
        keys = tuple(step.removesuffix("+") for step in rest)
    if engine in _UNDERSCORES and typed.startswith("--"):
        typed = typed.replace("_", "-")
    return typed, keys


# --- a schema that was just read ---


def self_check(
    schema: Schema,
    engine: str,
    *,
    required: Sequence[str],
    flags: int,
    variables: int,
    named: Sequence[str] = (),
) -> Schema:
    """The schema itself, or an error that lists what is missing: flags that every release has, a plausible
    number of flags and variables, and values for the flags in `named`."""
    missing = [f"`--{name}`" for name in required if name not in schema.flags]
    missing += [f"the values of `--{name}`" for name in named if not schema.names(name)]
    if len(schema.flags) < flags:
        missing.append(f"more than {len(schema.flags)} flags (at least {flags} were expected)")
    if len(schema.variables) < variables:
        missing.append(f"more than {len(schema.variables)} variables (at least {variables} were expected)")
    if missing:
        raise layout_changed(engine, ", ".join(missing), schema.version)
    return schema


def layout_changed(engine: str, missing: str, version: str = "") -> FiresteelError:
    return FiresteelError(
        f"{missing} was not found in the sources of {f'{engine} {version}'.strip()}; firesteel cannot read"
        " the layout of this release, so nothing was learned",
        next="use a known release (firesteel engine learn ENGINE --list), or update firesteel",
    )
