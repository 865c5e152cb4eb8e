"""Every symbol of an engine with the releases it lived in, in one small JSON file.

A symbol is a flag, a key of a JSON config, an environment variable, or one value of these. Most live
unchanged through dozens of releases, so a span `[first, last, facts]` says in a line what a file a release
would say forty times; and it answers `since when?` and `until when?`, which is what a person wants to hear.
A span without `last` is still alive in the newest release, so a new release changes few lines.

    "--swap-space": {"is": [["0.11.0", "0.17.1", {"kind": "float", "default": 4}]]}

A span covers the known releases between its ends; nothing is claimed about a release that was not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from firesteel.engines.schema.symbols import Config, Flag, Schema, Value
from firesteel.errors import FiresteelError
from firesteel.launch import EngineName

Facts = dict[str, Any]
SymbolTable = Mapping[str, "SymbolHistory"]
_ALWAYS = Value()


@dataclass(frozen=True, slots=True)
class ReleaseRange:
    """First and last release; None for last: still alive in the newest known."""

    first: str
    last: str | None
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SymbolHistory:
    """One symbol through the releases, and each of its values likewise."""

    spans: tuple[ReleaseRange, ...]
    values: Mapping[str, tuple[ReleaseRange, ...]]


@dataclass(frozen=True, slots=True)
class EngineHistory:
    engine: EngineName
    versions: tuple[str, ...]
    """The releases that were read, oldest first."""
    flags: SymbolTable
    keys: SymbolTable
    """`SpeculativeConfig.method`; a bare `SpeculativeConfig` is the config itself."""
    variables: SymbolTable
    whole: tuple[str, str] | None = None
    """Every change between these two was read: a release between them is the one before it in `versions`."""


def version_key(version: str) -> tuple[int, ...]:
    """Releases by age: 0.5.15 < 0.5.15.post1 < 0.5.16; a llama.cpp build is its number."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def build_history(schemas: Iterable[Schema], whole: tuple[str, str] | None = None) -> EngineHistory:
    """What each release says -> what each symbol lived through."""
    known = sorted(schemas, key=lambda schema: version_key(schema.version))
    versions = tuple(schema.version for schema in known)

    def lives(facts_of: Callable[[Schema], dict[str, tuple[Facts, Value]]]) -> dict[str, SymbolHistory]:
        told = [facts_of(schema) for schema in known]
        return {
            name: _life(versions, [each.get(name) for each in told]) for name in sorted(set().union(*told))
        }

    tables = (lives(_flag_facts), lives(_key_facts), lives(_variable_facts))
    return EngineHistory(known[0].engine, versions, *tables, whole)


def schema_at(book: EngineHistory, version: str) -> Schema:
    """One release again, as it was read."""
    place = {each: index for index, each in enumerate(book.versions)}
    now = place[version]

    def alive(spans: Iterable[ReleaseRange]) -> Mapping[str, Any] | None:
        for span in spans:
            if place[span.first] <= now and (span.last is None or now <= place[span.last]):
                return span.facts
        return None

    def living(table: SymbolTable) -> Iterable[tuple[str, Mapping[str, Any], Value]]:
        for name, life in table.items():
            if (facts := alive(life.spans)) is not None:
                names = tuple(value for value, spans in life.values.items() if alive(spans) is not None)
                yield name, facts, _value(facts, names)

    configs: dict[str, tuple[bool, dict[str, Value]]] = {}
    for path, facts, value in living(book.keys):
        name, _, key = path.partition(".")
        if key:
            configs[name][1][key] = value
        else:
            configs[name] = (facts.get("strict", True), {})
    return Schema(
        book.engine,
        version,
        {name[2:]: _flag(name[2:], facts, value) for name, facts, value in living(book.flags)},
        {name: Config(name, keys, strict) for name, (strict, keys) in configs.items()},
        {name: value for name, _, value in living(book.variables)},
    )


def lifetimes(book: EngineHistory, spans: Iterable[ReleaseRange]) -> tuple[tuple[str, str | None], ...]:
    """First and last release of each time it lived, however its facts changed meanwhile."""
    merged: list[tuple[int, int]] = []
    place = {version: index for index, version in enumerate(book.versions)}
    for span in sorted(spans, key=lambda span: place[span.first]):
        first, last = place[span.first], place[span.last] if span.last else len(place) - 1
        if merged and merged[-1][1] + 1 >= first:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple((book.versions[first], _last(book, last)) for first, last in merged)


def _last(book: EngineHistory, index: int) -> str | None:
    """None when it still lives. Where every change was read, the build before the one that ended it."""
    if index + 1 == len(book.versions):
        return None
    after = book.versions[index + 1]
    if book.whole and version_key(after) <= version_key(book.whole[1]):
        return str(int(after) - 1)
    return book.versions[index]


def dump_history(book: EngineHistory) -> str:
    """JSON with a line a symbol: small, and a diff shows what a release changed."""
    head = [f'"engine":{_compact(book.engine)}', f'"versions":{_compact(book.versions)}']
    head += [f'"whole":{_compact(book.whole)}'] if book.whole else []
    tables = [
        f'"{name}":{{\n' + ",\n".join(_lines(table)) + "\n}"
        for name, table in (("flags", book.flags), ("keys", book.keys), ("variables", book.variables))
    ]
    return "{" + ",\n".join([*head, *tables]) + "}\n"


def _lines(table: SymbolTable) -> Iterator[str]:
    return (f"{_compact(name)}:{_compact(_written(life))}" for name, life in table.items())


def load_history(text: str, name: str = "engine data") -> EngineHistory:
    try:
        read = json.loads(text)
        flags, keys, variables = (
            {name: _read(life) for name, life in read[table].items()}
            for table in ("flags", "keys", "variables")
        )
        whole = (read["whole"][0], read["whole"][1]) if "whole" in read else None
        engine = cast(EngineName, read["engine"])
        return EngineHistory(engine, tuple(read["versions"]), flags, keys, variables, whole)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FiresteelError(
            f"{name} is not what firesteel wrote there ({type(error).__name__}: {error})",
            next="delete it and run `firesteel learn` again",
        ) from error


def _life(versions: Sequence[str], told: Sequence[tuple[Facts, Value] | None]) -> SymbolHistory:
    names = sorted({name for each in told if each for name in each[1].values})
    return SymbolHistory(
        _spans(versions, [each and each[0] for each in told]),
        {
            name: _spans(versions, [{} if each and name in each[1].values else None for each in told])
            for name in names
        },
    )


def _spans(versions: Sequence[str], told: Sequence[Facts | None]) -> tuple[ReleaseRange, ...]:
    spans: list[ReleaseRange] = []
    before: Facts | None = None
    for index, facts in enumerate(told):
        if before is not None and facts != before:
            spans[-1] = ReleaseRange(spans[-1].first, versions[index - 1], before)
        if facts is not None and facts != before:
            spans.append(ReleaseRange(versions[index], None, facts))
        before = facts
    return tuple(spans)


def _flag_facts(schema: Schema) -> dict[str, tuple[Facts, Value]]:
    return {
        f"--{flag.name}": (_facts(flag) | _facts(flag.value), flag.value) for flag in schema.flags.values()
    }


def _key_facts(schema: Schema) -> dict[str, tuple[Facts, Value]]:
    told: dict[str, tuple[Facts, Value]] = {}
    for config in schema.configs.values():
        told[config.name] = ({} if config.strict else {"strict": False}, _ALWAYS)
        told |= {f"{config.name}.{name}": (_facts(value), value) for name, value in config.keys.items()}
    return told


def _variable_facts(schema: Schema) -> dict[str, tuple[Facts, Value]]:
    return {name: (_facts(value), value) for name, value in schema.variables.items()}


def _facts(thing: Flag | Value) -> Facts:
    """Fields that are not at their default; names, values and parts have their own place."""
    told: Facts = {}
    for each in fields(thing):
        value = getattr(thing, each.name)
        if each.name not in ("name", "value", "values") and value != each.default:
            told[each.name] = list(value) if isinstance(value, tuple) else value
    return told


def _value(facts: Mapping[str, Any], names: tuple[str, ...]) -> Value:
    return Value(
        facts.get("kind", "str"),
        names,
        facts.get("open", True),
        facts.get("folds", False),
        facts.get("config", ""),
        facts.get("default"),
    )


def _flag(name: str, facts: Mapping[str, Any], value: Value) -> Flag:
    return Flag(
        name,
        value,
        facts.get("takes", "value"),
        tuple(facts.get("aliases", ())),
        tuple(facts.get("negatives", ())),
        tuple(facts.get("variables", ())),
        facts.get("deprecated", False),
    )


def _written(life: SymbolHistory) -> Facts:
    told: Facts = {"is": [_span_written(span) for span in life.spans]}
    if life.values:
        told["values"] = {
            name: [_span_written(span) for span in spans] for name, spans in life.values.items()
        }
    return told


def _span_written(span: ReleaseRange) -> list[Any]:
    if span.facts:
        return [span.first, span.last, dict(span.facts)]
    return [span.first, span.last] if span.last else [span.first]


def _read(life: Facts) -> SymbolHistory:
    return SymbolHistory(
        _spans_read(life["is"]), {name: _spans_read(spans) for name, spans in life.get("values", {}).items()}
    )


def _spans_read(spans: list[list[Any]]) -> tuple[ReleaseRange, ...]:
    return tuple(
        ReleaseRange(span[0], span[1] if len(span) > 1 else None, span[2] if len(span) > 2 else {})
        for span in spans
    )


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
