"""An argument as typed -> the flag that it means in one release.

vLLM and SGLang parse with argparse: an unambiguous abbreviation stands for the flag (`--kv-cache-mem` is
`--kv-cache-memory-bytes`), and `--no-` negates a switch. vLLM adds two rules: `_` is `-` in a flag name, and
a JSON flag can be set one key at a time (`--compilation-config.mode 0`, or `--compilation-config.custom_ops+
all` to append). llama.cpp takes no abbreviations; it reads `_` as `-` too.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from firesteel.engines.schema.symbols import Flag, Schema, SymbolValue
from firesteel.launch import EngineName
from firesteel.values import Value

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
