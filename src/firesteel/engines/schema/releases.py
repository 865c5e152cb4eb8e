"""What each engine release accepts.

    known = find_schema("vllm", "0.24.1")          # the nearest known release, 0.24.0; `asked` says so
    known.flags["moe-backend"].value.accepts("marlin")
    release_ranges("vllm", "--swap-space")         # (("0.10.1", "0.17.1"),)

`scripts/learn-engines` generates the shipped histories from the released sources; `engine learn` adds
releases to the user's own folder, and the caller passes these in as `learned`. A release that was not read
may or may not have a flag that only one of its neighbours has: `nearest_schemas` returns both neighbours, and
only what they agree on is certain.

A command line is parsed before its version is known. For that, this module also has the syntax of each flag
in any known release: how many arguments follow it, and its other spellings. It is the union over all
releases; where a flag changed its kind, the newest counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

from firesteel import shipped_data
from firesteel.engines.schema.history import (
    EngineHistory,
    ReleaseRange,
    SymbolHistory,
    load_history,
    merge_ranges,
    schema_at,
    version_key,
)
from firesteel.engines.schema.symbols import Schema
from firesteel.launch import EngineName
from firesteel.values import Value, replace

SCHEMA_FILE = "schema.json"
_VERSION = re.compile(r"(\d{1,9}(?:\.\d{1,9}){0,4}(?:\.?post\d{1,9})?)((?:\.?(?:a|b|rc|dev)\d*)*)")


def known_versions(engine: EngineName, learned: Sequence[EngineHistory] = ()) -> tuple[str, ...]:
    """The known releases, oldest first."""
    if not learned:
        return _shipped_versions(engine)
    own = {version for history in learned if history.engine == engine for version in history.versions}
    return tuple(sorted(own.union(_shipped_releases(engine)[0]), key=version_key))


@cache
def _shipped_versions(engine: EngineName) -> tuple[str, ...]:
    return tuple(sorted(_shipped_releases(engine)[0], key=version_key))


def find_schema(engine: EngineName, version: str, learned: Sequence[EngineHistory] = ()) -> Schema | None:
    """The release, or the nearest known one with `asked` set; None when no known release is near.

    Near means the same minor version (0.24.1 is taken for 0.24.0; 0.5.15 for 0.5.15.post1), for llama.cpp any
    build that is not older than all known ones.
    """
    schemas = nearest_schemas(engine, version, learned)
    return schemas[0] if schemas else None


def nearest_schemas(
    engine: EngineName, version: str, learned: Sequence[EngineHistory] = ()
) -> tuple[Schema, ...]:
    """The release alone when it is known; else its known neighbours, the nearer first."""
    if learned:
        return _nearest_schemas(engine, version, learned)
    return _nearest_shipped_schemas(engine, version)


@lru_cache(maxsize=32)
def _nearest_shipped_schemas(engine: EngineName, version: str) -> tuple[Schema, ...]:
    """Cached, because a text is checked against one release many times."""
    return _nearest_schemas(engine, version, ())


def _nearest_schemas(
    engine: EngineName, version: str, learned: Sequence[EngineHistory]
) -> tuple[Schema, ...]:
    release, is_prerelease = _parse_version(version)
    wanted = version_key(release)
    versions = {version_key(known): known for known in known_versions(engine, learned)}

    def schema_of(key: tuple[int, ...]) -> Schema:
        """What the user learned wins."""
        known = versions[key]
        for history in reversed(learned):
            if history.engine == engine and known in history.versions:
                return schema_at(history, known)
        return schema_at(shipped_history(engine), known)

    if wanted in versions and not is_prerelease:
        return (schema_of(wanted),)
    older = [key for key in sorted(versions) if key < wanted]
    _, complete = _shipped_releases(engine)
    # Where every change was read, a release equals the known one before it.
    is_read = complete is not None and version_key(complete[0]) <= wanted <= version_key(complete[1])
    if older and is_read and not is_prerelease:
        return (replace(schema_of(older[-1]), version=release),)
    newer = [key for key in sorted(versions) if key >= wanted]
    neighbours = [*older[-1:], *newer[:1]]
    if not wanted or not any(_is_near(engine, wanted, key) for key in neighbours):
        return ()
    neighbours.sort(key=lambda key: not _is_near(engine, wanted, key))
    return tuple(replace(schema_of(key), asked=version) for key in neighbours)


def newest_schema(engine: EngineName, learned: Sequence[EngineHistory] = ()) -> Schema:
    """For an image tag like `latest`."""
    return nearest_schemas(engine, known_versions(engine, learned)[-1], learned)[0]


@lru_cache(maxsize=4096)
def release_ranges(
    engine: EngineName, symbol: str, value: str | None = None
) -> tuple[tuple[str, str | None], ...]:
    """(first, last) of the shipped releases that have a symbol, None for last when the newest has it; empty:
    none.

    A symbol is a flag in any of its spellings, `SpeculativeConfig.method`, `VLLM_USE_V1`, or one value of
    these.
    """
    history = shipped_history(engine)
    if symbol.startswith("-"):
        found = _by_spelling(engine).get(symbol, {})
        if value is None:
            return merge_ranges(history, tuple(range_ for ranges in found.values() for range_ in ranges))
        values = (history.flags[name].values.get(value, ()) for name in found)
        return merge_ranges(history, tuple(range_ for ranges in values for range_ in ranges))
    for table in (history.flags, history.keys, history.variables):
        if symbol in table:
            ranges = table[symbol].ranges if value is None else table[symbol].values.get(value, ())
            return merge_ranges(history, ranges)
    return ()


def flags_spelled(engine: EngineName, spelling: str) -> tuple[SymbolHistory, ...]:
    """The flags that any shipped release took under this spelling: a renamed one may keep its old name."""
    flags = shipped_history(engine).flags
    return tuple(flags[name] for name in _by_spelling(engine).get(spelling, {}))


@cache
def _by_spelling(engine: EngineName) -> dict[str, dict[str, tuple[ReleaseRange, ...]]]:
    """Every spelling that any shipped release had: the flags that had it, and when."""
    found: dict[str, dict[str, tuple[ReleaseRange, ...]]] = {}
    for name, flag in shipped_history(engine).flags.items():
        for range_ in flag.ranges:
            facts = range_.facts
            for spelling in dict.fromkeys((name, *facts.get("aliases", ()), *facts.get("negatives", ()))):
                by_name = found.setdefault(spelling, {})
                by_name[name] = (*by_name.get(name, ()), range_)
    return found


@cache
def shipped_history(engine: EngineName) -> EngineHistory:
    path = f"engines/{engine}/{SCHEMA_FILE}"
    return load_history(shipped_data.read_text(path), f"data/{path}")


@cache
def _shipped_releases(engine: EngineName) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """The versions of the shipped history, and where it is complete, without reading the whole of it."""
    return shipped_history(engine).versions, shipped_history(engine).complete


def _parse_version(version: str) -> tuple[str, bool]:
    """`v0.24.0rc1+cu130` -> the release, and whether this is a pre-release of it; empty: not a version."""
    text = version.strip().partition("+")[0].lower().lstrip("vb")
    match = _VERSION.fullmatch(text)
    return (match[1], bool(match[2])) if match else ("", False)


def _is_near(engine: EngineName, wanted: tuple[int, ...], known: tuple[int, ...]) -> bool:
    if engine == "llamacpp":
        return known <= wanted
    depth = 3 if engine == "sglang" else 2
    return wanted[:depth] == known[:depth]


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
    names: dict[str, set[str]] = {"nothing": set(), "value": set(), "optional": set(), "many": set()}
    aliases: dict[str, str] = {}
    for dashed, history in shipped_history(engine).flags.items():
        name = dashed.removeprefix("--")
        facts = [range_.facts for range_ in history.ranges]
        names[facts[-1].get("takes", "value")].add(name)
        aliases |= {alias.lstrip("-"): name for older in facts for alias in older.get("aliases", ())}
    return FlagArity(
        frozenset(names["nothing"]),
        frozenset(names["value"] | names["optional"]),
        frozenset(names["many"]),
        aliases,
    )
