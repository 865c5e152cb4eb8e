"""What a guide's sentences speak of -> notes on what is dead by now.

A sentence names no version, so it is held against the newest release of each engine. A flag that any engine
still has is fine; one that none ever had may belong to another program, and nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from firesteel.engines.schema.releases import release_ranges
from firesteel.launch import EngineName, Launch
from firesteel.reads import Mention
from firesteel.rules.check import Finding, check
from firesteel.rules.context import NEWEST_KNOWN
from firesteel.rules.rule import rules

_GENERAL = ("flag-unknown", "variable-unread")
_BARE = frozenset({"engine", "version", "hardware", "flag", "env"})
"""A rule that asks for no more than these is about the name itself."""


def check_mentions(mentions: Iterable[Mention], hardware: str | None) -> tuple[Finding, ...]:
    """A note for each dead name, once a line."""
    once = {(mention.key, mention.spot.line): mention for mention in reversed(tuple(mentions))}
    known: dict[str, tuple[Finding, ...]] = {}
    found = []
    for mention in reversed(once.values()):
        if mention.key not in known:
            known[mention.key] = tuple(_notes(mention, hardware))
        found += [replace(note, spot=mention.spot) for note in known[mention.key]]
    return tuple(found)


def _notes(mention: Mention, hardware: str | None) -> Iterator[Finding]:
    found = {engine: _found(mention, engine, hardware) for engine in NEWEST_KNOWN}
    is_flag = mention.key.startswith("flag:")
    if is_flag and not all(found.values()):
        return
    for engine, findings in found.items():
        for finding in findings[:1]:
            if is_flag and finding.rule in _GENERAL and not release_ranges(engine, f"--{mention.key[5:]}"):
                continue
            says = f"{finding.says} (held against {engine} {NEWEST_KNOWN[engine]})"
            yield replace(
                finding, level="note", says=says, spot=mention.spot, saw=mention.spot.text, fix=None
            )


def _found(mention: Mention, engine: EngineName, hardware: str | None) -> list[Finding]:
    """What is wrong with the name itself in this engine's newest release; empty when nothing is."""
    kind, _, name = mention.key.partition(":")
    launch = Launch(
        name="",
        model="",
        engine=engine,
        version=NEWEST_KNOWN[engine],
        flags={name: True} if kind == "flag" else {},
        env={name: "VALUE"} if kind == "env" else {},
    )
    about = _about_names()
    return [
        finding
        for finding in check(launch, hardware=hardware)
        if finding.key == mention.key and finding.level != "note" and finding.rule in about
    ]


@cache
def _about_names() -> frozenset[str]:
    bare = {rule.id for rule in rules() if rule.when.model_fields_set <= _BARE and not rule.also}
    return frozenset(bare | set(_GENERAL))
