"""Notes on flags, values, variables and images in the prose of a guide: dead names, and what a rule knows.

Prose names no version, so a name is checked against the newest release of each engine. A flag that any
engine still has is fine by its name; one that no engine ever had may belong to another program, and is not
reported. Rules about one value (`--gpu-memory-utilization 0.95`) or one image hold in a sentence, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import identify
from firesteel.engines.schema.releases import find_schema, release_ranges
from firesteel.engines.schema.symbols import resolve_flag
from firesteel.launch import Container, EngineName, Launch
from firesteel.reads.launches import Mention
from firesteel.rules.checker import Finding, check
from firesteel.rules.context import NEWEST_KNOWN
from firesteel.rules.rule import rules
from firesteel.values import replace

_GENERAL_RULES = ("flag-unknown", "variable-unread")
_NAME_MATCHERS = frozenset({"engine", "version", "hardware", "flag", "env"})
"""A rule with only these matchers is about the name itself."""


_VALUE_MATCHERS = frozenset({"value", "other_than", "above", "up_to", "image", "image_lacks"})
_VARIABLE_PREDICATES = frozenset({"pinned-gid", "one-rail", "many-jit-jobs", "expandable-segments"})


def check_mentions(mentions: Iterable[Mention], hardware: str | None) -> tuple[Finding, ...]:
    """A note for each obsolete name, once per line."""
    by_line = {
        (mention.key, mention.value, mention.spot.line): mention for mention in reversed(tuple(mentions))
    }
    return tuple(
        replace(note, spot=mention.spot, saw=mention.spot.text)
        for mention in reversed(by_line.values())
        for note in _notes(mention.key, mention.value, hardware)
    )


@lru_cache(maxsize=4096)
def _notes(key: str, value: str, hardware: str | None) -> tuple[Finding, ...]:
    """A folder of guides mentions the same few names again and again."""
    notes = (*_find_notes(key, hardware), *_known_about(key, value, hardware))
    return tuple({note.rule: note for note in notes}.values())


def _known_about(key: str, value: str, hardware: str | None) -> Iterator[Finding]:
    """What rules about this value or image alone say. A flag of several engines must be wrong in all."""
    kind, _, name = key.partition(":")
    if kind != "image" and not value:
        return
    by_engine = []
    for engine, version in NEWEST_KNOWN.items():
        if kind == "flag" and not _has_flag(engine, name):
            continue
        launch = Launch(
            name="",
            model="",
            engine=engine,
            version=None if kind == "image" else version,
            flags={name: value} if kind == "flag" else {},
            env={name: value} if kind == "env" else {},
            container=Container(name) if kind == "image" else None,
        )
        found = [
            replace(finding, level="note", fix=None)
            for finding in check(launch, hardware=hardware)
            if finding.rule in _value_rules() and finding.key in (key, kind)
        ]
        by_engine.append(found)
    if kind != "flag" or all(by_engine):
        yield from (finding for found in by_engine for finding in found)


@lru_cache(maxsize=4096)
def _has_flag(engine: EngineName, name: str) -> bool:
    schema = find_schema(engine, NEWEST_KNOWN[engine])
    return schema is not None and resolve_flag(schema, f"--{name}") is not None


def is_about_engines(mention: Mention) -> bool:
    """Whether an engine has, or once had, what a text mentions."""
    kind, _, name = mention.key.partition(":")
    if kind == "flag":
        return any(_has_flag(engine, name) for engine in NEWEST_KNOWN) or _is_obsolete(f"--{name}")
    return kind == "env" or identify(name, shipped().images) is not None


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
    if any(_has_flag(engine, flag[2:]) for engine in NEWEST_KNOWN):
        return False
    return any(release_ranges(engine, flag) for engine in NEWEST_KNOWN)


@cache
def _flags_of_rules() -> frozenset[str]:
    ids = _name_rules()
    return frozenset(flag for rule in rules() if rule.id in ids for flag in rule.when.flag or ())


@cache
def _value_rules() -> frozenset[str]:
    """Rules about one value of a flag, a variable or an image, whatever else the launch has."""
    alone = (rule for rule in rules() if not rule.also)
    return frozenset(
        rule.id
        for rule in alone
        if (rule.when.given & _VALUE_MATCHERS and rule.when.given <= _NAME_MATCHERS | _VALUE_MATCHERS)
        or (rule.when.predicate in _VARIABLE_PREDICATES)
    )


@cache
def _name_rules() -> frozenset[str]:
    ids = {rule.id for rule in rules() if rule.when.given <= _NAME_MATCHERS and not rule.also}
    return frozenset(ids | set(_GENERAL_RULES))
