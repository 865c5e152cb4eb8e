"""The door to what each engine release understands.

    known = schema("vllm", "0.24.1")        # the nearest known, 0.24.0, and it says so
    known.flags["moe-backend"].value.accepts("marlin")
    lived("vllm", "--swap-space")           # (("0.10.1", "0.17.1"),)

What ships was read out of the releases by `scripts/learn-engines`; `firesteel learn` adds releases to the
user's own folder, and the caller passes these in as `learned`. For a release that was not read, a flag that
one neighbour has and the other has not may or may not be there: `around` gives both, and only what they agree
on is sure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files

from firesteel.engines.schema.history import (
    EngineHistory,
    ReleaseRange,
    lifetimes,
    load_history,
    schema_at,
    version_key,
)
from firesteel.engines.schema.symbols import Schema
from firesteel.launch import EngineName

SCHEMA_FILE = "schema.json"
_VERSION = re.compile(r"(\d{1,9}(?:\.\d{1,9}){0,4}(?:\.?post\d{1,9})?)((?:\.?(?:a|b|rc|dev)\d*)*)")


def known_versions(engine: EngineName, learned: Sequence[EngineHistory] = ()) -> tuple[str, ...]:
    """The releases that are known, oldest first."""
    return tuple(sorted(_places(engine, learned), key=version_key))


def find_schema(engine: EngineName, version: str, learned: Sequence[EngineHistory] = ()) -> Schema | None:
    """The release, or the nearest known one with `asked` set; None when no release is near.

    Near is: the same minor (0.24.1 is taken for 0.24.0; 0.5.15 for 0.5.15.post1), for llama.cpp any build
    that is not older than all that are known.
    """
    found = nearest_schemas(engine, version, learned)
    return found[0] if found else None


def nearest_schemas(
    engine: EngineName, version: str, learned: Sequence[EngineHistory] = ()
) -> tuple[Schema, ...]:
    """The release alone when it is known; else its known neighbours, the nearer first."""
    return _around(engine, version, learned) if learned else _shipped_around(engine, version)


@lru_cache(maxsize=32)
def _shipped_around(engine: EngineName, version: str) -> tuple[Schema, ...]:
    """Kept, because a text is held against one release many times."""
    return _around(engine, version, ())


def _around(engine: EngineName, version: str, learned: Sequence[EngineHistory]) -> tuple[Schema, ...]:
    release, is_early = _plain(version)
    wanted, places = version_key(release), _places(engine, learned)
    by_age = {version_key(each): each for each in places}
    if wanted in by_age and not is_early:
        return (schema_at(places[by_age[wanted]], by_age[wanted]),)
    older = [age for age in sorted(by_age) if age < wanted]
    if older and _is_unchanged(shipped_history(engine), wanted) and not is_early:
        return (replace(schema_at(places[by_age[older[-1]]], by_age[older[-1]]), version=release),)
    newer = [age for age in sorted(by_age) if age >= wanted]
    both = [*older[-1:], *newer[:1]]
    if not wanted or not any(_is_near(engine, wanted, age) for age in both):
        return ()
    both.sort(key=lambda age: not _is_near(engine, wanted, age))
    return tuple(replace(schema_at(places[by_age[age]], by_age[age]), asked=version) for age in both)


def newest_schema(engine: EngineName, learned: Sequence[EngineHistory] = ()) -> Schema:
    """For a floating tag: judged as this, and said so."""
    name = known_versions(engine, learned)[-1]
    return schema_at(_places(engine, learned)[name], name)


def release_ranges(
    engine: EngineName, symbol: str, value: str | None = None
) -> tuple[tuple[str, str | None], ...]:
    """(first, last) of each time a symbol lived among the shipped releases, None for last when it still does:
    a flag in any of its spellings, `SpeculativeConfig.method`, `VLLM_USE_V1`, or one value of these. Empty:
    never seen."""
    book = shipped_history(engine)
    if value is None and symbol.startswith("-"):
        return lifetimes(book, _spelled(book, symbol))
    for table in (book.flags, book.keys, book.variables):
        if symbol in table:
            spans = table[symbol].spans if value is None else table[symbol].values.get(value, ())
            return lifetimes(book, spans)
    return ()


def _spelled(book: EngineHistory, spelling: str) -> Iterator[ReleaseRange]:
    """Every span in which some flag could be written so."""
    for name, flag in book.flags.items():
        for span in flag.spans:
            facts = span.facts
            if spelling in (name, *facts.get("aliases", ()), *facts.get("negatives", ())):
                yield span


@cache
def shipped_history(engine: EngineName) -> EngineHistory:
    return load_history(shipped_history_text(engine), f"data/engines/{engine}/{SCHEMA_FILE}")


def shipped_history_text(engine: EngineName) -> str:
    return (files("firesteel") / "data" / "engines" / engine / SCHEMA_FILE).read_text("utf-8")


def _places(engine: EngineName, learned: Sequence[EngineHistory]) -> dict[str, EngineHistory]:
    """Release -> the chronicle that has it; what the user learned wins."""
    books = [shipped_history(engine), *(book for book in learned if book.engine == engine)]
    return {version: book for book in books for version in book.versions}


def _is_unchanged(book: EngineHistory, wanted: tuple[int, ...]) -> bool:
    """Every change around it was read, and it is none."""
    return book.whole is not None and version_key(book.whole[0]) <= wanted <= version_key(book.whole[1])


def _plain(version: str) -> tuple[str, bool]:
    """`v0.24.0rc1+cu130` -> the release, and whether this is only on the way to it; empty: no version."""
    text = version.strip().partition("+")[0].lower().lstrip("vb")
    match = _VERSION.fullmatch(text)
    return (match[1], bool(match[2])) if match else ("", False)


def _is_near(engine: EngineName, wanted: tuple[int, ...], known: tuple[int, ...]) -> bool:
    if engine == "llamacpp":
        return known <= wanted
    depth = 3 if engine == "sglang" else 2
    return wanted[:depth] == known[:depth]
