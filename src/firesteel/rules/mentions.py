"""Notes on flags and variables in the prose of a guide that no longer exist.

Prose names no version, so a name is checked against the newest release of each engine. A flag that any
engine still has is fine; one that no engine ever had may belong to another program, and is not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from firesteel.engines.schema.releases import release_ranges
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
    notes: dict[str, tuple[Finding, ...]] = {}
    findings = []
    for mention in reversed(by_line.values()):
        if mention.key not in notes:
            notes[mention.key] = tuple(_notes(mention, hardware))
        findings += [replace(note, spot=mention.spot) for note in notes[mention.key]]
    return tuple(findings)


def _notes(mention: Mention, hardware: str | None) -> Iterator[Finding]:
    by_engine = {engine: _check_name(mention, engine, hardware) for engine in NEWEST_KNOWN}
    is_flag = mention.key.startswith("flag:")
    if is_flag and not all(by_engine.values()):
        return
    for engine, findings in by_engine.items():
        for finding in findings[:1]:
            is_general = is_flag and finding.rule in _GENERAL_RULES
            if is_general and not release_ranges(engine, f"--{mention.key[5:]}"):
                continue
            says = f"{finding.says} (checked against {engine} {NEWEST_KNOWN[engine]})"
            yield replace(
                finding, level="note", says=says, spot=mention.spot, saw=mention.spot.text, fix=None
            )


def _check_name(mention: Mention, engine: EngineName, hardware: str | None) -> list[Finding]:
    """Findings about the name itself in the newest release of this engine."""
    kind, _, name = mention.key.partition(":")
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
        if finding.key == mention.key and finding.level != "note" and finding.rule in name_rules
    ]


@cache
def _name_rules() -> frozenset[str]:
    ids = {rule.id for rule in rules() if rule.when.given <= _NAME_MATCHERS and not rule.also}
    return frozenset(ids | set(_GENERAL_RULES))
