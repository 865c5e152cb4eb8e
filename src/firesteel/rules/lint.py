"""A text -> what the rules say of every launch in it, less what was allowed or not asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from firesteel.catalog import Images
from firesteel.engines.schema.releases import known_versions
from firesteel.errors import UsageError
from firesteel.launch import EngineName
from firesteel.reads import ReadLaunch, SourceFile, mentions, scan, source_file
from firesteel.rules.allow import allowed
from firesteel.rules.check import Finding, check
from firesteel.rules.fix import fix
from firesteel.rules.mentions import check_mentions
from firesteel.rules.rule import Level, rules

_ORDER: dict[Level, int] = {"stop": 0, "warn": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Lint:
    """What to hold a text against, and what to tell of it."""

    images: Images
    hardware: str | None = "gb10"
    versions: Mapping[EngineName, str] = field(default_factory=dict)
    """The engines' versions, where the text does not tell them."""
    select: tuple[str, ...] = ()
    """Patterns of rules; none: all of them."""
    ignore: tuple[str, ...] = ()
    level: Level = "note"
    """The mildest that is told."""

    def wants(self, finding: Finding) -> bool:
        return (
            _ORDER[finding.level] <= _ORDER[self.level]
            and (not self.select or _any_like(finding.rule, self.select))
            and not _any_like(finding.rule, self.ignore)
        )


@dataclass(frozen=True, slots=True)
class Linted:
    path: str
    readings: tuple[ReadLaunch, ...]
    findings: tuple[Finding, ...]
    allowed: tuple[tuple[Finding, str], ...] = ()
    """What an allow-comment speaks for, and its reason."""
    problem: UsageError | None = None
    """Why some of the text could not be read."""


def lint(text: str, path: str, asked: Lint) -> Linted:
    """Never raises for a text without a launch: it has no readings then, and maybe a problem."""
    whole = source_file(text, path)
    readings, problem = scan(whole, asked.images)
    found = [finding for _, finding in _launches(readings, asked)]
    spoken = check_mentions(mentions(whole), asked.hardware)
    found += [finding for finding in spoken if asked.wants(finding)]
    comments = allowed(whole.text, path, readings)
    let = {finding: comment.reason for finding in found for comment in comments if comment.covers(finding)}
    kept = sorted((finding for finding in dict.fromkeys(found) if finding not in let), key=_place)
    return Linted(path, readings, tuple(kept), tuple(let.items()), problem)


def mend(text: str, path: str, asked: Lint) -> tuple[str, tuple[Finding, ...]]:
    """The text with every safe fix made, and what was mended."""
    whole = source_file(text, path)

    def read(changed: str) -> tuple[ReadLaunch, ...]:
        return scan(SourceFile(path, changed), asked.images)[0]

    def pairs(readings: Sequence[ReadLaunch]) -> list[tuple[ReadLaunch, Finding]]:
        comments = allowed(whole.text, path, readings)
        found = _launches(readings, asked)
        return [pair for pair in found if not any(comment.covers(pair[1]) for comment in comments)]

    mended = fix(whole.text, read, pairs)
    return mended.text, mended.findings


def _launches(readings: Sequence[ReadLaunch], asked: Lint) -> list[tuple[ReadLaunch, Finding]]:
    found = []
    for reading in readings:
        launch = reading.launch
        if launch.version is None and launch.engine in asked.versions:
            launch = replace(launch, version=asked.versions[launch.engine])
        findings = check(launch, hardware=asked.hardware, spots=reading.spots, images=asked.images)
        found += [(reading, finding) for finding in findings if asked.wants(finding)]
    return found


def _place(finding: Finding) -> tuple[int, int, int, str]:
    line, column = (finding.spot.line, finding.spot.column) if finding.spot else (0, 0)
    return _ORDER[finding.level], line, column, finding.rule


def _any_like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def engine_version(text: str) -> tuple[EngineName, str]:
    """A version as people write it -> whose it is: builds are llama.cpp's, 0.5.x SGLang's, others vLLM's."""
    plain = text.strip().removeprefix("v")
    if re.fullmatch(r"b?\d{3,6}", plain):
        return "llamacpp", plain.removeprefix("b")
    if re.fullmatch(r"\d+\.\d+(\.\w+)*", plain):
        return ("sglang" if plain.startswith("0.5.") else "vllm"), plain
    raise UsageError(f"`{text:.40}` is no engine version", next="--engine-version 0.28.0, 0.5.23 or b11549")


def release(engine: EngineName | None, text: str) -> str:
    """A version as people write it -> a release: `v0.26` is the last 0.26 that is known."""
    meant, plain = engine_version(text)
    known = known_versions(engine or meant)
    if plain in known or (engine or meant) == "llamacpp":
        return plain
    patches = [each for each in known if each.startswith(f"{plain}.")]
    return patches[-1] if patches else plain if plain.count(".") > 1 else f"{plain}.0"


def known_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Patterns that fit at least one rule; UsageError for one that fits none."""
    names = [rule.id for rule in rules()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"there is no rule `{pattern}`", next="firesteel check --explain '*', which lists them"
            )
    return tuple(patterns)
