"""Every symbol of an engine with the releases that have it, in one small JSON file.

A symbol is a flag, a key of a JSON config, an environment variable, or one value of these. Most stay the same
through dozens of releases, so one range `[first, last, facts]` replaces forty equal entries in forty files;
and it answers the question that people ask: since when, and until when? A range without `last` includes the
newest release, so a new release changes few lines.

    "--swap-space": {"is": [["0.11.0", "0.17.1", {"kind": "float", "default": 4}]]}

A range covers the known releases between its ends and claims nothing about a release that was not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import fields

from firesteel.engines.flags import compact_json
from firesteel.engines.schema.symbols import Config, Flag, Schema, SymbolValue
from firesteel.errors import FiresteelError
from firesteel.launch import EngineName
from firesteel.values import Value

Facts = dict[str, Any]
SymbolTable = Mapping[str, "SymbolHistory"]


class ReleaseRange(Value, array_like=True):
    """First and last release with equal facts; None for last: the newest known release has it too."""

    first: str
    last: str | None = None
    facts: Mapping[str, Any] = {}


class SymbolHistory(Value):
    """The releases that have a symbol, and each of its values."""

    ranges: tuple[ReleaseRange, ...] = msgspec.field(name="is")
    values: Mapping[str, tuple[ReleaseRange, ...]] = {}


class EngineHistory(Value):
    engine: EngineName
    versions: tuple[str, ...]
    """The releases that were read, oldest first."""
    flags: SymbolTable
    keys: SymbolTable
    """`SpeculativeConfig.method`; `SpeculativeConfig` alone is the config itself."""
    variables: SymbolTable
    complete: tuple[str, str] | None = msgspec.field(default=None, name="whole")
    """Every change between these two releases was read: a release between them that is not in `versions`
    equals the one before it."""


@lru_cache(maxsize=1024)
def version_key(version: str) -> tuple[int, ...]:
    """Sorts releases by age: 0.5.15 < 0.5.15.post1 < 0.5.16; a llama.cpp build is its number."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def build_history(schemas: Iterable[Schema], complete: tuple[str, str] | None = None) -> EngineHistory:
    """The schemas of releases -> the history of each symbol."""
    by_age = sorted(schemas, key=lambda schema: version_key(schema.version))
    versions = tuple(schema.version for schema in by_age)

    def table(facts_of: Callable[[Schema], dict[str, tuple[Facts, SymbolValue]]]) -> dict[str, SymbolHistory]:
        releases = [facts_of(schema) for schema in by_age]
        names = sorted(set().union(*releases))
        return {
            name: _symbol_history(versions, [release.get(name) for release in releases]) for name in names
        }

    return EngineHistory(
        by_age[0].engine,
        versions,
        table(_flag_facts),
        table(_key_facts),
        table(lambda schema: {name: (_facts(value), value) for name, value in schema.variables.items()}),
        complete,
    )


def schema_at(history: EngineHistory, version: str) -> Schema:
    """The schema of one release, as it was read."""
    index = {known: position for position, known in enumerate(history.versions)}
    wanted = index[version]

    def facts_in(ranges: Iterable[ReleaseRange]) -> Mapping[str, Any] | None:
        for range_ in ranges:
            if index[range_.first] <= wanted and (range_.last is None or wanted <= index[range_.last]):
                return range_.facts
        return None

    def symbols(table: SymbolTable) -> Iterable[tuple[str, Mapping[str, Any], SymbolValue]]:
        for name, symbol in table.items():
            if (facts := facts_in(symbol.ranges)) is not None:
                values = tuple(
                    value for value, ranges in symbol.values.items() if facts_in(ranges) is not None
                )
                yield name, facts, SymbolValue(values=values, **_fields(facts, SymbolValue))

    configs: dict[str, tuple[bool, dict[str, SymbolValue]]] = {}
    for path, facts, value in symbols(history.keys):
        name, _, key = path.partition(".")
        if key:
            configs[name][1][key] = value
        else:
            configs[name] = (facts.get("strict", True), {})
    return Schema(
        history.engine,
        version,
        {
            name[2:]: Flag(name[2:], value, **_fields(facts, Flag))
            for name, facts, value in symbols(history.flags)
        },
        {name: Config(name, keys, strict) for name, (strict, keys) in configs.items()},
        {name: value for name, _, value in symbols(history.variables)},
    )


def merge_ranges(
    history: EngineHistory, ranges: Iterable[ReleaseRange]
) -> tuple[tuple[str, str | None], ...]:
    """(first, last) of each unbroken run of releases, however the facts changed meanwhile; None for last: the
    newest release has it."""
    merged: list[tuple[int, int]] = []
    index = {version: position for position, version in enumerate(history.versions)}
    for range_ in sorted(ranges, key=lambda range_: index[range_.first]):
        first, last = index[range_.first], index[range_.last] if range_.last else len(index) - 1
        if merged and merged[-1][1] + 1 >= first:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple((history.versions[first], _last_version(history, last)) for first, last in merged)


def _last_version(history: EngineHistory, position: int) -> str | None:
    """Where every change was read, the build before the one that removed the symbol."""
    if position + 1 == len(history.versions):
        return None
    after = history.versions[position + 1]
    if history.complete and version_key(after) <= version_key(history.complete[1]):
        return str(int(after) - 1)
    return history.versions[position]


def dump_history(history: EngineHistory) -> str:
    """JSON with one line per symbol: small, and a diff shows what a release changed."""
    parts = [f'"engine":{compact_json(history.engine)}', f'"versions":{compact_json(history.versions)}']
    parts += [f'"whole":{compact_json(history.complete)}'] if history.complete else []
    for name, table in (("flags", history.flags), ("keys", history.keys), ("variables", history.variables)):
        lines = (f"{compact_json(key)}:{compact_json(_symbol_to_json(table[key]))}" for key in table)
        parts.append(f'"{name}":{{\n' + ",\n".join(lines) + "\n}")
    return "{" + ",\n".join(parts) + "}\n"


def load_history(text: str, name: str = "engine data") -> EngineHistory:
    """The inverse of `dump_history`; `name` is for the error message."""
    try:
        return msgspec.json.decode(text, type=EngineHistory)
    except (msgspec.DecodeError, TypeError, UnicodeError) as error:
        raise FiresteelError(
            f"{name} is not what firesteel wrote there ({type(error).__name__}: {error})",
            next="delete it and run `firesteel engine learn` again",
        ) from error


def _symbol_history(
    versions: Sequence[str], releases: Sequence[tuple[Facts, SymbolValue] | None]
) -> SymbolHistory:
    names = sorted({name for release in releases if release for name in release[1].values})
    return SymbolHistory(
        _ranges(versions, [release and release[0] for release in releases]),
        {
            name: _ranges(
                versions, [{} if release and name in release[1].values else None for release in releases]
            )
            for name in names
        },
    )


def _ranges(versions: Sequence[str], releases: Sequence[Facts | None]) -> tuple[ReleaseRange, ...]:
    ranges: list[ReleaseRange] = []
    before: Facts | None = None
    for index, facts in enumerate(releases):
        if before is not None and facts != before:
            ranges[-1] = ReleaseRange(ranges[-1].first, versions[index - 1], before)
        if facts is not None and facts != before:
            ranges.append(ReleaseRange(versions[index], None, facts))
        before = facts
    return tuple(ranges)


def _flag_facts(schema: Schema) -> dict[str, tuple[Facts, SymbolValue]]:
    flags = schema.flags.values()
    return {f"--{flag.name}": (_facts(flag) | _facts(flag.value), flag.value) for flag in flags}


def _key_facts(schema: Schema) -> dict[str, tuple[Facts, SymbolValue]]:
    facts: dict[str, tuple[Facts, SymbolValue]] = {}
    for config in schema.configs.values():
        facts[config.name] = ({} if config.strict else {"strict": False}, SymbolValue())
        facts |= {f"{config.name}.{name}": (_facts(value), value) for name, value in config.keys.items()}
    return facts


def _facts(symbol: Flag | SymbolValue) -> Facts:
    """The fields that are not at their default; names and values are stored separately."""
    facts: Facts = {}
    for field in fields(symbol):
        value = getattr(symbol, field.name)
        if field.name not in ("name", "value", "values") and value != field.default:
            facts[field.name] = list(value) if isinstance(value, tuple) else value
    return facts


def _fields(facts: Mapping[str, Any], cls: type[Flag | SymbolValue]) -> Facts:
    """The inverse of `_facts`: those that are fields of this class."""
    own = {name: value for name, value in facts.items() if name in cls.__struct_fields__}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}


def _symbol_to_json(symbol: SymbolHistory) -> Facts:
    entry: Facts = {"is": [_range_to_json(range_) for range_ in symbol.ranges]}
    if symbol.values:
        entry["values"] = {
            name: [_range_to_json(range_) for range_ in ranges] for name, ranges in symbol.values.items()
        }
    return entry


def _range_to_json(range_: ReleaseRange) -> list[Any]:
    if range_.facts:
        return [range_.first, range_.last, dict(range_.facts)]
    return [range_.first, range_.last] if range_.last else [range_.first]
