"""Arguments <-> flags, for any engine.

An engine takes a list of arguments; a Launch holds them as a map, so that a rule can look up one flag and a
recipe can change one flag. `format_flag` writes an entry of the map, `parse_argv` reads arguments back as
people type them. A `Grammar` holds the few things about an engine that the arguments themselves do not show:
which short spellings exist, which flags take no value.

Whether an unknown flag takes a value cannot be known from the arguments alone: `--new-thing model` may be a
switch and a model, or a flag and its value. The next argument decides: one that starts with a dash is a flag
(unless it is a negative number), any other is the value. Flags known to be switches never take it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from firesteel.launch import FlagValue
from firesteel.values import Value

_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")
_PORT = re.compile(r"[0-9]{1,5}\Z")
_MAX_KEY_DEPTH = 20
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([kKmMgGtT]?)")
_UNITS = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
"""vLLM reads lower-case units as decimal and upper-case units as binary."""


class Grammar(Value):
    """What must be known about an engine to parse its command line."""

    model_flags: tuple[str, ...]
    """Flags that carry the model, the usual one first."""
    name_flag: str
    """The flag that carries the name under which the model is served."""
    aliases: Mapping[str, str]
    """Spelling without its dashes -> the long spelling that every version takes."""
    switches: frozenset[str]
    """Flags that take no value."""
    lists: frozenset[str] = frozenset()
    """Flags that take every argument up to the next flag."""
    attached: Mapping[str, str] = {}
    """Short flags whose value follows without a space: `-O3`."""
    no_flags: frozenset[str] = frozenset()
    """Flags whose own name begins with `no-`; they do not negate another flag."""
    positional_model: bool = False
    allows_equals: bool = True
    """Whether `--flag=value` is legal."""
    allows_dots: bool = False
    """Whether `--flag.key value` sets one key of a JSON flag."""
    abbreviable: frozenset[str] = frozenset()
    """The long flags that an unambiguous prefix may stand for; empty: the engine takes no abbreviations."""
    shortcuts: Mapping[str, tuple[str, str]] = {}
    """Flags that set one key of a JSON flag."""


class ParsedCommandLine(Value):
    """The arguments after the program, by meaning."""

    model: str = ""
    port: int | None = None
    flags: Mapping[str, FlagValue] = {}
    extra: tuple[str, ...] = ()
    name: str | None = None
    """The name under which the model is served, when exactly one is given."""
    starts: Mapping[str, int] = {}
    """Long flag name (and `model`) -> the index of its argument, for pointing at it."""
    ends: Mapping[str, int] = {}
    """The same names -> the index after the last argument of the flag."""


def name_set(text: str) -> frozenset[str]:
    """Names separated by white space."""
    return frozenset(text.split())


def positive_int(value: FlagValue | None) -> int | None:
    """A whole number above zero, or None: for engines 0 and -1 mean that they choose themselves."""
    return int(value) or None if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value) else None


def parse_size(value: FlagValue | None) -> int | None:
    """`65536`, `128k` (128,000), `128K` (131,072); None for `auto`, `-1`, 0 and what is not a number."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return int(float(match[1]) * _UNITS[match[2]]) or None if match else None


def format_flag(grammar: Grammar, name: str, value: FlagValue) -> tuple[str, ...]:
    """The arguments that set one flag."""
    if value is True:
        return (f"--{name}",)
    if value is False:
        return (f"--no-{name}",)
    if isinstance(value, list) and name in grammar.lists:
        return (f"--{name}", *(item if isinstance(item, str) else compact_json(item) for item in value))
    if isinstance(value, dict | list):
        return (f"--{name}", compact_json(value))
    if grammar.allows_equals and (name in grammar.switches or name.startswith("no-") or _is_flag(value)):
        return (f"--{name}={value}",)
    return (f"--{name}", value)


def expand_shortcuts(grammar: Grammar, flags: Mapping[str, FlagValue]) -> Mapping[str, FlagValue]:
    """The flags, with every shortcut also as the key of the JSON flag that it sets."""
    expanded = dict(flags)
    for shortcut, (name, key) in grammar.shortcuts.items():
        config = expanded.get(name, {})
        if shortcut in flags and isinstance(config, dict):
            expanded[name] = {**config, key: flags[shortcut]}
    return expanded


def compact_json(value: object) -> str:
    """JSON without spaces, as engines print it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def parse_argv(grammar: Grammar, arguments: Sequence[str], *, default_host: str) -> ParsedCommandLine:
    """Arguments as typed -> model, port, name and flags. Never raises; the last value of a repeated flag
    wins, as in the engines. `default_host` is what firesteel writes itself, so it is left out."""
    flags: dict[str, FlagValue] = {}
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    positionals: list[tuple[int, str]] = []
    for start, end, name, value in _split_arguments(grammar, arguments):
        if name is None:
            positionals.append((start, str(value)))
        else:
            _store(grammar, flags, name, value)
            base = name.partition(".")[0] if grammar.allows_dots else name
            starts[base], ends[base] = start, end
    model = ""
    for flag in grammar.model_flags:
        if not model and isinstance(named := flags.get(flag), str):
            model, starts["model"] = named, starts[flag]
            del flags[flag]
    if grammar.positional_model and positionals and not model:
        starts["model"], model = positionals.pop(0)
    extra = tuple(argument for _, argument in positionals)
    port, name = _pop_port(flags), _pop_name(grammar, flags)
    if flags.get("host") == default_host:
        del flags["host"]
    return ParsedCommandLine(model, port, flags, extra, name, starts, ends)


def _pop_port(flags: dict[str, FlagValue]) -> int | None:
    port = flags.get("port")
    if not isinstance(port, str) or not _PORT.match(port) or not 0 < int(port) < 2**16:
        return None
    del flags["port"]
    return int(port)


def _pop_name(grammar: Grammar, flags: dict[str, FlagValue]) -> str | None:
    name = flags.get(grammar.name_flag)
    if not isinstance(name, str) or not name or "," in name:
        return None
    del flags[grammar.name_flag]
    return name


def _split_arguments(
    grammar: Grammar, arguments: Sequence[str]
) -> Iterator[tuple[int, int, str | None, FlagValue]]:
    """(first index, index after the last, flag name or None for a positional argument, value)."""
    index = 0
    while index < len(arguments):
        start, argument = index, arguments[index]
        index += 1
        if argument == "--":
            yield from ((rest, rest + 1, None, arguments[rest]) for rest in range(index, len(arguments)))
            return
        name, attached = _split_flag(grammar, argument)
        value: FlagValue = True
        if name is None:
            value = argument
        elif attached is not None:
            value = _parse_value(attached)
        elif name.startswith("no-") and name not in grammar.no_flags:
            name, value = name[3:], False
        elif name in grammar.switches or index == len(arguments) or _is_flag(arguments[index]):
            value = True
        elif name in grammar.lists:
            first = index
            while index < len(arguments) and not _is_flag(arguments[index]):
                index += 1
            value = _parse_value(arguments[first]) if index == first + 1 else list(arguments[first:index])
        else:
            value = _parse_value(arguments[index])
            index += 1
        yield start, index, name, value


def _split_flag(grammar: Grammar, argument: str) -> tuple[str | None, str | None]:
    """`--flag=value` -> (long name, value); (None, None) when the argument is not a flag."""
    if not _is_flag(argument):
        return None, None
    if argument[1] in grammar.attached and len(argument) > 2 and argument[2] != ".":
        return grammar.attached[argument[1]], argument[2:].removeprefix("=")
    typed, equals, value = argument.lstrip("-").partition("=")
    if equals and not grammar.allows_equals:
        return None, None
    base, dot, keys = typed.partition(".") if grammar.allows_dots else (typed, "", "")
    if argument.startswith("--"):
        base = _complete(grammar, base.replace("_", "-"))
    return grammar.aliases.get(base, base) + dot + keys, value if equals else None


def _complete(grammar: Grammar, typed: str) -> str:
    """`gpu-mem` -> `gpu-memory-utilization`; the text itself when it is a flag, or could be several."""
    if not grammar.abbreviable or typed in grammar.abbreviable or typed in grammar.aliases:
        return typed
    matches = {grammar.aliases.get(name, name) for name in _starting_with(grammar.abbreviable, typed)}
    if typed.startswith("no-"):
        matches |= {f"no-{name}" for name in _starting_with(grammar.switches, typed[3:])}
    return matches.pop() if len(matches) == 1 else typed


@lru_cache(maxsize=4096)
def _starting_with(flags: frozenset[str], prefix: str) -> tuple[str, ...]:
    return tuple(name for name in flags if name.startswith(prefix))


def _is_flag(argument: str) -> bool:
    is_dashed = len(argument) > 1 and argument[0] == "-" and not argument[1].isspace()
    return is_dashed and not _NEGATIVE.match(argument)


def _parse_value(text: str) -> FlagValue:
    """A JSON object or list -> itself; all other text stays text."""
    if text[:1] not in ("{", "["):
        return text
    value = _parse_json(text)
    return value if isinstance(value, dict | list) else text


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _store(grammar: Grammar, flags: dict[str, FlagValue], name: str, value: FlagValue) -> None:
    """Set a flag; `config.a.b` sets a key inside the JSON flag `config`, `config.a+` adds to a list."""
    base, dot, path = name.partition(".")
    if not grammar.allows_dots or not dot:
        flags[name] = value
        return
    appends = path.endswith("+")
    *parents, last = path.rstrip("+").split(".")[:_MAX_KEY_DEPTH]
    leaf: object = value
    if isinstance(value, str):
        leaf = value.split(",") if appends else _parse_json(value)
    # Copied level by level: the JSON given before may be shared with the caller.
    before = flags.get(base)
    config: dict[str, object] = dict(before) if isinstance(before, dict) else {}
    flags[base] = config
    for key in parents:
        inner = config.get(key)
        config[key] = inner = dict(inner) if isinstance(inner, dict) else {}
        config = inner
    known = config.get(last)
    if appends and isinstance(known, list) and isinstance(leaf, list):
        leaf = [*known, *leaf]
    config[last] = leaf
