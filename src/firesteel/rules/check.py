"""A launch -> what the rules say of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from firesteel import catalog
from firesteel.catalog import Images
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName, Launch, Spot
from firesteel.rules.context import NEWEST_KNOWN, Context, Match, visible
from firesteel.rules.match import matches
from firesteel.rules.rule import Confidence, Fix, Level, Rule, rules

_ORDER: dict[Level, int] = {"stop": 0, "warn": 1, "note": 2}
_TITLES: dict[EngineName, str] = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang"}
_NO_SPOTS: Mapping[str, Spot] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    level: Level
    says: str
    instead: str | None
    spot: Spot | None
    """Where it stands in what the user wrote; None for a launch that nobody wrote."""
    saw: str
    confidence: Confidence
    sources: tuple[Evidence, ...]
    scope: str
    """Where the rule holds: `vLLM >=0.24.0 on gb10`."""
    key: str = ""
    """The part of the launch that was seen: `flag:NAME`, `env:NAME`, `image`."""
    fix: Fix | None = None


def check(
    launch: Launch,
    *,
    hardware: str | None,
    spots: Mapping[str, Spot] = _NO_SPOTS,
    images: Images | None = None,
) -> tuple[Finding, ...]:
    """Every finding, the gravest first, then in the order of the text.

    An engine of unknown version meets the rules that hold for every version; of those that hold from some
    version on, it is told in a note. A tag that moves counts as the newest version known, and what is found
    by that warns at most.
    """
    box = launch.container
    known = catalog.shipped().images if images is None else images
    image = catalog.identify(box.image, known) if box else None
    flaws = frozenset(key.removeprefix("flaw:") for key in spots if key.startswith("flaw:"))
    scene = Context(launch, hardware, image, flaws, known.releases)
    seen = [(rule, sight) for rule in rules() for sight in matches(rule, scene)]
    told: dict[str, int] = {}
    for rule, sight in seen:
        if not _is_general(rule):
            told[sight.key] = min(_ORDER[rule.level], told.get(sight.key, _ORDER["note"]))
    found = [
        _finding(rule, sight, scene, spots)
        for rule, sight in seen
        if not (_is_general(rule) and told.get(sight.key, 3) <= _ORDER[rule.level])
    ]
    return tuple(sorted(dict.fromkeys(found), key=_place))


def _is_general(rule: Rule) -> bool:
    """It only repeats what the release says; a rule that knows more and is no milder goes in its place."""
    return rule.when.predicate in ("unknown-flags", "refused-values", "unread-variables")


def _place(finding: Finding) -> tuple[int, int, str]:
    return _ORDER[finding.level], finding.spot.line if finding.spot else 0, finding.rule


def _finding(rule: Rule, sight: Match, scene: Context, spots: Mapping[str, Spot]) -> Finding:
    versions = _versions(rule)
    assumed = scene.is_assumed and (bool(versions) or _is_general(rule))
    unknown = scene.version is None and bool(versions)
    elsewhere = bool(rule.when.hardware) and scene.is_elsewhere
    says = _fill(rule.says, sight, scene)
    spot = spots.get(sight.key) or spots.get("program") or spots.get("image")
    return Finding(
        rule=rule.id,
        level="note" if unknown else _mild(rule.level) if assumed or elsewhere else rule.level,
        says=f"if {_TITLES[scene.launch.engine]} {_spaced(versions)}: {says}" if unknown else says,
        instead=_fill(rule.instead, sight, scene) if rule.instead else None,
        spot=spot,
        saw=visible(sight.saw or (spot.text if spot else "")),
        confidence=rule.confidence,
        sources=rule.sources,
        scope=_scope(rule) + (f", if this tag is as new as {_newest(scene)}" if assumed else ""),
        key=sight.key,
        fix=None if unknown or assumed else rule.fix,
    )


def _mild(level: Level) -> Level:
    """What is not certain stops nothing."""
    return "warn" if level == "stop" else level


def _versions(rule: Rule) -> str:
    return " and ".join(when.version for when in (rule.when, *rule.also) if when.version)


def _spaced(versions: str) -> str:
    return re.sub(r"([<>=!]+)(?=\d)", r"\1 ", versions)


def _newest(scene: Context) -> str:
    return f"{_TITLES[scene.launch.engine]} {NEWEST_KNOWN[scene.launch.engine]}"


def _fill(text: str, sight: Match, scene: Context) -> str:
    image = scene.launch.container.image if scene.launch.container else ""
    names = {"name": sight.name, "value": sight.value, "image": image, "model": scene.launch.model}
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", visible(value))
    return text


def _scope(rule: Rule) -> str:
    when = rule.when
    engine = _TITLES[when.engine] if when.engine else "any engine"
    machine = f" on {when.hardware}" if when.hardware else ""
    return f"{engine} {_versions(rule) or 'of any version'}{machine}" if when.engine else f"{engine}{machine}"
