"""A word as typed -> the flag it means in one release.

vLLM and SGLang parse with argparse: an abbreviation that fits one spelling only is that flag
(`--kv-cache-mem` is `--kv-cache-memory-bytes`), and so is the `--no-` twin of a switch. vLLM adds two habits:
`_` is `-` in a flag name, and a JSON flag can be set a key at a time (`--compilation-config.mode 0`, or
`--compilation-config.custom_ops+ all` to append). llama.cpp compares whole words; `_` became `-` there too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firesteel.engines.schema.symbols import Config, Flag, Schema, Value
from firesteel.launch import EngineName

_ABBREVIATES: frozenset[EngineName] = frozenset({"vllm", "sglang"})
_DOTS: frozenset[EngineName] = frozenset({"vllm"})
_UNDERSCORES: frozenset[EngineName] = frozenset({"vllm", "llamacpp"})


@dataclass(frozen=True, slots=True)
class ResolvedFlag:
    flag: Flag
    spelling: str
    """The whole spelling that the word stands for."""
    negative: bool = False
    keys: tuple[str, ...] = ()
    """The way into a JSON flag: `--kernel-config.moe_backend` has `("moe_backend",)`."""
    abbreviated: bool = False


@dataclass(frozen=True, slots=True)
class AmbiguousFlag:
    """An abbreviation that fits several flags; the parser stops."""

    spellings: tuple[str, ...]


def resolve_flag(schema: Schema, word: str) -> ResolvedFlag | AmbiguousFlag | None:
    """None: the release has no such flag. A value after `=` is left aside."""
    typed, keys = _parts(schema.engine, word)
    spellings = _spellings(schema)
    if found := spellings.get(typed):
        return ResolvedFlag(found[0], typed, found[1], keys)
    if schema.engine not in _ABBREVIATES or not typed.strip("-"):
        return None
    if typed[1] != "-" and (short := spellings.get(typed[:2])) and short[0].takes != "nothing":
        return ResolvedFlag(*_found(spellings, typed[:2]))  # `-qfp8`: the value is glued on
    fits = [each for each in spellings if each.startswith(typed)]
    if len({spellings[each] for each in fits}) > 1:
        return AmbiguousFlag(tuple(fits))
    return ResolvedFlag(*_found(spellings, fits[0]), keys, abbreviated=True) if fits else None


def resolve_key(
    schema: Schema, flag: str, path: tuple[str, ...]
) -> Value | Literal["unknown", "ignored", "free"]:
    """One key of a JSON flag, by its way in. unknown: stops the start; ignored: does nothing, without a word;
    free: this JSON has no fixed keys."""
    value = schema.flags[flag].value
    for step in path:
        config = schema.configs.get(value.config)
        if config is None:
            return "free"
        if step not in config.keys:
            return _stray(config)
        value = config.keys[step]
    return value


def _stray(config: Config) -> Literal["unknown", "ignored"]:
    return "unknown" if config.strict else "ignored"


def _parts(engine: EngineName, word: str) -> tuple[str, tuple[str, ...]]:
    """`--a_b.c.d+=v` -> `--a-b`, (c, d)."""
    typed = word.partition("=")[0]
    keys: tuple[str, ...] = ()
    if engine in _DOTS and "." in typed:
        typed, *rest = typed.split(".")
        keys = tuple(step.removesuffix("+") for step in rest)
    if engine in _UNDERSCORES and typed.startswith("--"):
        typed = typed.replace("_", "-")
    return typed, keys


def _spellings(schema: Schema) -> dict[str, tuple[Flag, bool]]:
    """Every spelling that the parser has -> the flag, and whether it says no."""
    return {
        spelling: (flag, negative)
        for flag in schema.flags.values()
        for negative, group in ((False, flag.spellings), (True, flag.negatives))
        for spelling in group
    }


def _found(spellings: dict[str, tuple[Flag, bool]], spelling: str) -> tuple[Flag, str, bool]:
    flag, negative = spellings[spelling]
    return flag, spelling, negative
