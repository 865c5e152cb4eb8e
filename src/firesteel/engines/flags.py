"""Words <-> flags, for any engine.

An engine's command line is a list of words; a Launch keeps it as a map, so that a rule can ask for
one flag and a recipe can change one flag. `spell` writes the map down, `parse` reads words back as
people type them. Between the two stands a `Grammar`: the few things about an engine that nobody can
guess from the words (which short spellings exist, which flags take no value).

Whether an unknown flag takes a value cannot be known from the words alone: `--new-thing model` may be
a switch and a model, or a flag and its value. The next word decides: one that starts with a dash is a
flag (unless it is a negative number), any other is the value. Flags known to be switches never take it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from firesteel.launch import FlagValue

_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")
_PORT = re.compile(r"[0-9]{1,5}\Z")


@dataclass(frozen=True, slots=True)
class Grammar:
    """What must be known of an engine to read its command line."""

    model: tuple[str, ...]
    """Flags that carry the model, the usual one first."""
    name: str
    """The flag that carries the name the server answers to."""
    aliases: Mapping[str, str]
    """Spelling without its dashes -> the long spelling that every version takes."""
    switches: frozenset[str]
    """Flags that take no value."""
    lists: frozenset[str] = frozenset()
    """Flags that take every word up to the next flag."""
    glued: Mapping[str, str] = field(default_factory=dict)
    """Short flags whose value follows without a space: `-O3`."""
    negatives: frozenset[str] = frozenset()
    """Names that really begin with `no-` and are no twin of another flag."""
    positional_model: bool = False
    equals: bool = True
    """Whether `--flag=value` is legal."""
    dotted: bool = False
    """Whether `--flag.key value` sets one key of a JSON flag."""
    abbreviates: frozenset[str] = frozenset()
    """Every long flag that is known, where any beginning that fits no other will do; empty: none will."""
    shortcuts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Flags that set one key of a JSON flag."""


@dataclass(frozen=True, slots=True)
class ParsedCommandLine:
    """What the words after the program say."""

    model: str = ""
    port: int | None = None
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    name: str | None = None
    """The name the server answers to, when exactly one is given."""
    at: Mapping[str, int] = field(default_factory=dict)
    """Long flag name (and `model`) -> the index of its word, for pointing at it."""
    upto: Mapping[str, int] = field(default_factory=dict)
    """The same names -> the index after the last word that says it."""


def name_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def positive_int(value: FlagValue | None) -> int | None:
    """A whole number above zero, or None: engines take 0 and -1 for `you decide`."""
    return int(value) or None if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value) else None


def format_flag(grammar: Grammar, name: str, value: FlagValue) -> tuple[str, ...]:
    """One flag -> the words that say it."""
    if value is True:
        return (f"--{name}",)
    if value is False:
        return (f"--no-{name}",)
    if isinstance(value, list) and name in grammar.lists:
        return (f"--{name}", *(item if isinstance(item, str) else compact_json(item) for item in value))
    if isinstance(value, dict | list):
        return (f"--{name}", compact_json(value))
    if grammar.equals and (name in grammar.switches or name.startswith("no-") or _is_flag(value)):
        return (f"--{name}={value}",)
    return (f"--{name}", value)


def expand_shortcuts(grammar: Grammar, flags: Mapping[str, FlagValue]) -> Mapping[str, FlagValue]:
    """The flags with every shortcut also in the JSON flag that it sets a key of."""
    meant = dict(flags)
    for short, (name, key) in grammar.shortcuts.items():
        config = meant.get(name, {})
        if short in flags and isinstance(config, dict):
            meant[name] = {**config, key: flags[short]}
    return meant


def compact_json(value: object) -> str:
    """JSON without spaces, as engines print it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def parse_argv(grammar: Grammar, words: Sequence[str], *, default_host: str) -> ParsedCommandLine:
    """Words as typed -> model, port, name and flags. Never raises; a repeated flag's last value wins,
    as it does in the engines. `default_host` is what firesteel writes itself and so leaves out."""
    flags: dict[str, FlagValue] = {}
    at: dict[str, int] = {}
    loose: list[tuple[int, str]] = []
    pairs = list(_pairs(grammar, words))
    ends = [index for index, _, _ in pairs[1:]] + [len(words)] * bool(pairs)
    upto: dict[str, int] = {}
    for (index, name, value), end in zip(pairs, ends, strict=True):
        if name is None:
            loose.append((index, str(value)))
        else:
            _store(grammar, flags, name, value)
            known = name.partition(".")[0] if grammar.dotted else name
            at[known], upto[known] = index, end
    return replace(_sort_out(grammar, flags, at, loose, default_host), upto=upto)


def _sort_out(
    grammar: Grammar,
    flags: dict[str, FlagValue],
    at: dict[str, int],
    loose: list[tuple[int, str]],
    default_host: str,
) -> ParsedCommandLine:
    """Lift model, port and name out of the map: a Launch has fields for those."""
    model = ""
    for flag in grammar.model:
        value = flags.get(flag)
        if isinstance(value, str) and not model:
            model, at["model"] = value, at[flag]
            del flags[flag]
    if grammar.positional_model and loose and not model:
        at["model"], model = loose.pop(0)
    port, name = flags.get("port"), flags.get(grammar.name)
    if isinstance(port, str) and _PORT.match(port) and 0 < int(port) < 2**16:
        del flags["port"]
    else:
        port = None
    if isinstance(name, str) and name and "," not in name:
        del flags[grammar.name]
    else:
        name = None
    if flags.get("host") == default_host:
        del flags["host"]
    extra = tuple(word for _, word in loose)
    return ParsedCommandLine(model, int(port) if port else None, flags, extra, name, at)


def _pairs(grammar: Grammar, words: Sequence[str]) -> Iterator[tuple[int, str | None, FlagValue]]:
    """(index of the word, flag name or None for a loose word, value)."""
    index = 0
    while index < len(words):
        start, word = index, words[index]
        index += 1
        if word == "--":
            yield from ((at, None, words[at]) for at in range(index, len(words)))
            return
        name, glued = _split(grammar, word)
        if name is None:
            yield start, None, word
        elif glued is not None:
            yield start, name, _value(glued)
        elif name.startswith("no-") and name not in grammar.negatives:
            yield start, name[3:], False
        elif name in grammar.switches or index == len(words) or _is_flag(words[index]):
            yield start, name, True
        elif name in grammar.lists:
            end = index
            while end < len(words) and not _is_flag(words[end]):
                end += 1
            yield start, name, _value(words[index]) if end == index + 1 else list(words[index:end])
            index = end
        else:
            yield start, name, _value(words[index])
            index += 1


def _split(grammar: Grammar, word: str) -> tuple[str | None, str | None]:
    """`--flag=value` -> (long name, value); (None, None) when the word is not a flag."""
    if not _is_flag(word):
        return None, None
    if word[1] != "-" and word[1] in grammar.glued and len(word) > 2 and word[2] != ".":
        return grammar.glued[word[1]], word[2:].removeprefix("=")
    typed, equals, value = word.lstrip("-").partition("=")
    if equals and not grammar.equals:
        return None, None
    first, dot, rest = typed.partition(".") if grammar.dotted else (typed, "", "")
    if word.startswith("--"):
        first = _whole(grammar, first.replace("_", "-"))
    return grammar.aliases.get(first, first) + dot + rest, value if equals else None


def _whole(grammar: Grammar, typed: str) -> str:
    """`gpu-mem` -> `gpu-memory-utilization`; the word itself when it is a flag, or could be several."""
    if not grammar.abbreviates or typed in grammar.abbreviates or typed in grammar.aliases:
        return typed
    meant = {grammar.aliases.get(name, name) for name in _beginning(grammar.abbreviates, typed)}
    if typed.startswith("no-"):
        meant |= {f"no-{name}" for name in _beginning(grammar.switches, typed[3:])}
    return meant.pop() if len(meant) == 1 else typed


@lru_cache(maxsize=4096)
def _beginning(flags: frozenset[str], typed: str) -> tuple[str, ...]:
    return tuple(name for name in flags if name.startswith(typed))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NEGATIVE.match(word) and not word[1].isspace()


def _value(text: str) -> FlagValue:
    """A JSON object or list -> itself; all other text stays text."""
    if text[:1] not in ("{", "["):
        return text
    value = _json(text)
    return value if isinstance(value, dict | list) else text


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _store(grammar: Grammar, flags: dict[str, FlagValue], name: str, value: FlagValue) -> None:
    """Set a flag; `config.a.b` sets a key inside the JSON flag `config`, `config.a+` adds to a list."""
    base, dot, rest = name.partition(".")
    if not grammar.dotted or not dot:
        flags[name] = value
        return
    adds = rest.endswith("+")
    keys = rest.rstrip("+").split(".")[:20]
    leaf: object = _json(value) if isinstance(value, str) else value
    if adds:
        leaf = value.split(",") if isinstance(value, str) else value
    before = flags.get(base)
    inside: dict[str, object] = dict(before) if isinstance(before, dict) else {}
    flags[base] = inside
    for key in keys[:-1]:
        deeper = inside.get(key)
        inside[key] = deeper = dict(deeper) if isinstance(deeper, dict) else {}
        inside = deeper
    known = inside.get(keys[-1])
    inside[keys[-1]] = (
        [*known, *leaf] if adds and isinstance(known, list) and isinstance(leaf, list) else leaf
    )
