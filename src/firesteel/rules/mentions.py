"""Notes on flags and variables in the prose of a guide that no longer exist.

Prose names no version, so a name is checked against the newest release of each engine. A flag that any
engine still has is fine; one that no engine ever had may belong to another program, and is not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache

from firesteel.engines.schema.releases import find_schema, release_ranges
from firesteel.engines.schema.resolve import resolve_flag
from firesteel.launch import EngineName, Launch
from firesteel.reads import Mention
from firesteel.rules.checker import Finding, check
from firesteel.rules.context import NEWEST_KNOWN
from firesteel.rules.rule import rules

_GENERAL_RULES = ("flag-unknown", "variable-unread")
_NAME_MATCHERS = frozenset({"engine", "version", "hardware", "flag", "env"})
"""A rule with only these matchers is about the name itself."""


def check_mentions(mentions: Iterable[Mention], hardware: str | None) -> tuple[Finding, ...]:
    """A note for each obsolete name, once per line."""
    by_line = {(mention.key, mention.spot.line): mention for mention in reversed(tuple(mentions))}
    return tuple(
        replace(note, spot=mention.spot, saw=mention.spot.text)
        for mention in reversed(by_line.values())
        for note in _notes(mention.key, hardware)
    )


@lru_cache(maxsize=4096)
def _notes(key: str, hardware: str | None) -> tuple[Finding, ...]:
    """A folder of guides mentions the same few names again and again."""
    return tuple(_find_notes(key, hardware))


def _find_notes(key: str, hardware: str | None) -> Iterator[Finding]:
    is_flag = key.startswith("flag:")
    if is_flag and key[5:] not in _flags_of_rules() and not _is_obsolete(f"--{key[5:]}"):
        return
    by_engine: dict[EngineName, list[Finding]] = {}
    for engine in NEWEST_KNOWN:
        by_engine[engine] = _check_name(key, engine, hardware)
        if is_flag and not by_engine[engine]:
            return
    for engine, findings in by_engine.items():
        for finding in findings[:1]:
            is_general = is_flag and finding.rule in _GENERAL_RULES
            if is_general and not release_ranges(engine, f"--{key[5:]}"):
                continue
            says = f"{finding.says} (checked against {engine} {NEWEST_KNOWN[engine]})"
            yield replace(finding, level="note", says=says, fix=None)


def _check_name(key: str, engine: EngineName, hardware: str | None) -> list[Finding]:
    """Findings about the name itself in the newest release of this engine."""
    kind, _, name = key.partition(":")
    launch = Launch(
        name="",
        model="",
        engine=engine,
        version=NEWEST_KNOWN[engine],
        flags={name: True} if kind == "flag" else {},
        env={name: "VALUE"} if kind == "env" else {},
    )
    name_rules = _name_rules()
    return [
        finding
        for finding in check(launch, hardware=hardware)
        if finding.key == key and finding.level != "note" and finding.rule in name_rules
    ]


def _is_obsolete(flag: str) -> bool:
    """Some release of some engine had it, and no newest release has it."""
    schemas = (find_schema(engine, version) for engine, version in NEWEST_KNOWN.items())
    if any(schema and resolve_flag(schema, flag) for schema in schemas):
        return False
    return any(release_ranges(engine, flag) for engine in NEWEST_KNOWN)


@cache
def _flags_of_rules() -> frozenset[str]:
    ids = _name_rules()
    return frozenset(flag for rule in rules() if rule.id in ids for flag in rule.when.flag or ())


@cache
def _name_rules() -> frozenset[str]:
    ids = {rule.id for rule in rules() if rule.when.given <= _NAME_MATCHERS and not rule.also}
    return frozenset(ids | set(_GENERAL_RULES))
