"""Check a launch against all rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from functools import cache
from types import MappingProxyType

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import ImageProblem, Images, identify
from firesteel.errors import escape_unprintable
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName, Launch, Spot
from firesteel.rules.context import NEWEST_KNOWN, Context, Match
from firesteel.rules.match import matches
from firesteel.rules.rule import SEVERITY, Confidence, Fix, Level, Rule, rules
from firesteel.rules.triggers import RuleIndex, names
from firesteel.values import Value

TITLES: dict[EngineName, str] = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang"}
_IMAGE_CHECKS_SEEN = date(2026, 11, 15)
_NO_SPOTS: Mapping[str, Spot] = MappingProxyType({})


class Finding(Value):
    rule: str
    level: Level
    says: str
    instead: str | None
    spot: Spot | None
    """Where it is in the user's text; None for a launch that was not read from a text."""
    saw: str
    """The part of the launch that the rule matched, as text."""
    confidence: Confidence
    sources: tuple[Evidence, ...]
    scope: str
    """Where the rule applies: `vLLM >=0.24.0 on gb10`."""
    key: str = ""
    """The part of the launch that matched: `flag:NAME`, `env:NAME`, `image`."""
    fix: Fix | None = None


def check(
    launch: Launch,
    *,
    hardware: str | None,
    spots: Mapping[str, Spot] = _NO_SPOTS,
    images: Images | None = None,
    is_own_build: bool = False,
) -> tuple[Finding, ...]:
    """Every finding, the most severe first, then in the order of the text.

    For an engine of unknown version, rules that apply from some version on give notes only. A moving tag
    counts as the newest known version, and findings that depend on that are warnings at most.
    """
    container = launch.container
    known = shipped().images if images is None else images
    image = identify(container.image, known) if container else None
    flaws = frozenset(key.removeprefix("flaw:") for key in spots if key.startswith("flaw:"))
    program = spots["program"].text if "program" in spots else ""
    context = Context(launch, hardware, image, flaws, known.releases, is_own_build, program)
    applicable = _index(launch.engine, hardware).find(names(context))
    all_matches = [(rule, match) for rule in applicable for match in matches(rule, context)]
    specific: dict[str, int] = {}
    for rule, match in all_matches:
        if not _is_general(rule):
            specific[match.key] = min(SEVERITY[rule.level], specific.get(match.key, SEVERITY["note"]))
    findings = [
        _finding(rule, match, context, spots)
        for rule, match in all_matches
        if not (_is_general(rule) and specific.get(match.key, 3) <= SEVERITY[rule.level])
    ]
    if image and hardware == "gb10":
        findings += [_image_finding(problem, spots) for problem in image.problems]
    return tuple(sorted(dict.fromkeys(findings), key=_sort_key))


@cache
def _index(engine: EngineName, hardware: str | None) -> RuleIndex:
    return RuleIndex(
        rule
        for rule in rules()
        if not rule.when.across
        and rule.when.engine in (None, engine)
        and rule.when.hardware in (None, hardware)
    )


def _image_finding(problem: ImageProblem, spots: Mapping[str, Spot]) -> Finding:
    """What `image inspect` found in the image of the launch."""
    spot = spots.get("image")
    return Finding(
        rule=f"image-{problem.check}",
        level=problem.level,
        says=problem.says,
        instead=problem.instead,
        spot=spot,
        saw=escape_unprintable(problem.evidence),
        confidence="verified",
        sources=(Evidence(url=problem.source, seen=_IMAGE_CHECKS_SEEN),),
        scope="this image, inspected here",
        key="image",
    )


def _is_general(rule: Rule) -> bool:
    """It only compares with the flags of the release; a specific rule of the same level replaces it."""
    return rule.when.predicate in ("unknown-flags", "refused-values", "unread-variables")


def _sort_key(finding: Finding) -> tuple[int, int, str]:
    return SEVERITY[finding.level], finding.spot.line if finding.spot else 0, finding.rule


def _finding(rule: Rule, match: Match, context: Context, spots: Mapping[str, Spot]) -> Finding:
    versions = _versions(rule)
    assumed = context.is_assumed and (bool(versions) or _is_general(rule))
    unknown = context.version is None and bool(versions)
    says = _fill(rule.says, match, context)
    spot = spots.get(match.key) or spots.get("program") or spots.get("image")
    title, newest = TITLES[context.launch.engine], NEWEST_KNOWN[context.launch.engine]
    spaced = re.sub(r"([<>=!]+)(?=\d)", r"\1 ", versions)
    return Finding(
        rule=rule.id,
        # Something uncertain never stops a launch.
        level="note" if unknown else "warn" if rule.level == "stop" and assumed else rule.level,
        says=f"if {title} {spaced}: {says}" if unknown else says,
        instead=_fill(rule.instead, match, context) if rule.instead else None,
        spot=spot,
        saw=escape_unprintable(match.shown or (spot.text if spot else "")),
        confidence=rule.confidence,
        sources=rule.sources,
        scope=_scope(rule) + (f", if this tag is as new as {title} {newest}" if assumed else ""),
        key=match.key,
        fix=None if unknown or assumed else rule.fix,
    )


def _versions(rule: Rule) -> str:
    return " and ".join(when.version for when in (rule.when, *rule.also) if when.version)


def _fill(text: str, match: Match, context: Context) -> str:
    image = context.launch.container.image if context.launch.container else ""
    names = {"name": match.name, "value": match.value, "image": image, "model": context.launch.model}
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", escape_unprintable(value))
    return text


def _scope(rule: Rule) -> str:
    when = rule.when
    engine = TITLES[when.engine] if when.engine else "any engine"
    machine = f" on {when.hardware}" if when.hardware else ""
    return f"{engine} {_versions(rule) or 'of any version'}{machine}" if when.engine else f"{engine}{machine}"
