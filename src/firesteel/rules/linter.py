"""Check every launch in a text, filter the findings, and fix what can be fixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from functools import partial

from firesteel.catalog import Images
from firesteel.dataclass import dataclass
from firesteel.engines.schema.releases import known_versions
from firesteel.errors import UsageError
from firesteel.launch import EngineName
from firesteel.reads import ReadLaunch, SourceFile, mentions, scan, source_file
from firesteel.rules.across import check_across
from firesteel.rules.allow import allowed
from firesteel.rules.checker import Finding, check
from firesteel.rules.fix import fix
from firesteel.rules.mentions import check_mentions, is_about_engines
from firesteel.rules.rule import SEVERITY, Level, rules


@dataclass(frozen=True, slots=True)
class LintOptions:
    """What to check a text against, and which findings to report."""

    images: Images
    hardware: str | None = "gb10"
    versions: Mapping[EngineName, str] = field(default_factory=dict)
    """Engine versions to assume where the text gives none."""
    select: tuple[str, ...] = ()
    """Patterns of rule ids; empty: all rules."""
    ignore: tuple[str, ...] = ()
    level: Level = "note"
    """The least severe level to report."""
    open_beside: Callable[[str, str], str | None] | None = None
    """Reads the file that a file names, by the path of the one and the name in it; None where it cannot."""

    def opener(self, path: str) -> Callable[[str], str | None] | None:
        return partial(self.open_beside, path) if self.open_beside else None

    def includes(self, finding: Finding) -> bool:
        return (
            SEVERITY[finding.level] <= SEVERITY[self.level]
            and (not self.select or _matches_any(finding.rule, self.select))
            and not _matches_any(finding.rule, self.ignore)
        )


@dataclass(frozen=True, slots=True)
class LintResult:
    path: str
    readings: tuple[ReadLaunch, ...]
    findings: tuple[Finding, ...]
    allowed: tuple[tuple[Finding, str], ...] = ()
    """Findings that an allow comment suppresses, with its reason."""
    mentioned: int = 0
    """How many flags, variables and images of engines its sentences mention."""
    problem: UsageError | None = None
    """Why some of the text could not be read."""


def lint(text: str, path: str, options: LintOptions) -> LintResult:
    """A text without a launch does not raise: the result has no readings, and maybe a problem."""
    source = source_file(text, path, options.opener(path))
    readings, problem, unread = scan(source, options.images)
    findings = [finding for _, finding in _check_launches(readings, options)]
    mentioned = mentions(source)
    others = (*check_mentions(mentioned, options.hardware), *check_across(readings, unread))
    findings += [finding for finding in others if options.includes(finding)]
    comments = allowed(source.text, path, readings)
    suppressed = {
        finding: comment.reason for finding in findings for comment in comments if comment.covers(finding)
    }
    reported = sorted(
        (finding for finding in dict.fromkeys(findings) if finding not in suppressed), key=_sort_key
    )
    about_engines = 0 if readings else sum(map(is_about_engines, mentioned))
    return LintResult(path, readings, tuple(reported), tuple(suppressed.items()), about_engines, problem)


def apply_fixes(text: str, path: str, options: LintOptions) -> tuple[str, tuple[Finding, ...]]:
    """The text with every safe fix applied, and the findings that were fixed."""
    source = source_file(text, path)

    def read(changed: str) -> tuple[ReadLaunch, ...]:
        return scan(SourceFile(path, changed, options.opener(path)), options.images).launches

    def pairs(readings: Sequence[ReadLaunch]) -> list[tuple[ReadLaunch, Finding]]:
        comments = allowed(source.text, path, readings)
        findings = _check_launches(readings, options)
        return [pair for pair in findings if not any(comment.covers(pair[1]) for comment in comments)]

    return fix(source.text, read, pairs)


def _check_launches(readings: Sequence[ReadLaunch], options: LintOptions) -> list[tuple[ReadLaunch, Finding]]:
    pairs = []
    for reading in readings:
        launch = reading.launch
        if launch.version is None and launch.engine in options.versions:
            launch = replace(launch, version=options.versions[launch.engine])
        findings = check(launch, hardware=options.hardware, spots=reading.spots, images=options.images)
        pairs += [(reading, finding) for finding in findings if options.includes(finding)]
    return pairs


def _sort_key(finding: Finding) -> tuple[int, int, int, str]:
    line, column = (finding.spot.line, finding.spot.column) if finding.spot else (0, 0)
    return SEVERITY[finding.level], line, column, finding.rule


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def engine_version(text: str) -> tuple[EngineName, str]:
    """Recognize the engine by its version: a build is llama.cpp, 0.5.x is SGLang, anything else vLLM."""
    plain = text.strip().removeprefix("v")
    if re.fullmatch(r"b?\d{3,6}", plain):
        return "llamacpp", plain.removeprefix("b")
    if re.fullmatch(r"\d+\.\d+(\.\w+)*", plain):
        return ("sglang" if plain.startswith("0.5.") else "vllm"), plain
    raise UsageError(
        f"`{text:.40}` is not an engine version", next="--engine-version 0.28.0, 0.5.23 or b11549"
    )


def release(engine: EngineName | None, text: str) -> str:
    """The release that a version means: `v0.26` is the last known 0.26."""
    recognized, plain = engine_version(text)
    known = known_versions(engine or recognized)
    if plain in known or (engine or recognized) == "llamacpp":
        return plain
    patches = [version for version in known if version.startswith(f"{plain}.")]
    return patches[-1] if patches else plain if plain.count(".") > 1 else f"{plain}.0"


def known_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns. Raise UsageError for one that matches no rule."""
    names = [rule.id for rule in rules()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"there is no rule `{pattern}`", next="firesteel check --explain '*', which lists them"
            )
    return tuple(patterns)
