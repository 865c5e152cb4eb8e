"""Check every launch in a text, filter the findings, and fix what can be fixed.

A comment suppresses a finding, with a reason:

    # firesteel: allow utilization-high because this host serves nothing else
    # firesteel: allow-file image-floating, restart-loops because it is a test rig

At the end of a line it applies to that line; on a line of its own, to the launch that begins below it, or
inside a launch to the next line. `allow-file` applies to the whole file. A baseline, what an earlier
`check --json` found, suppresses findings by file, rule and text, not by line: lines move.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from posixpath import normpath
from typing import Literal

from firesteel.catalog.image import Images, is_upstream
from firesteel.engines.schema.releases import known_versions
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.host.gpus import discrete_gpu
from firesteel.facts.host.hardware import hardware
from firesteel.launch import EngineName, Launch
from firesteel.reads.launches import mentions, not_read, scan
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.source_text import SourceFile, source_file
from firesteel.reads.stated import (
    NearbyText,
    StatedMachine,
    StatedRelease,
    chooses_program,
    find_machine,
    find_release,
    find_uncertainty,
    may_be_fork,
    may_have_more_flags,
)
from firesteel.rules.checker import TITLES, Finding, check
from firesteel.rules.fix import fix
from firesteel.rules.rule import SEVERITY, Level, explain, rules
from firesteel.rules.text_findings import check_across, check_mentions, is_about_engines
from firesteel.values import Value, from_json, replace

SPARK = "gb10"
STATED: Literal["stated"] = "stated"
_OF_RELEASES = frozenset({
    "unknown-flags", "refused-values", "stray-words", "flags-of-no-release", "values-of-no-release",
    "no-common-release", "another-engines-words", "unregistered-parsers",
})  # fmt: skip
"""Predicates about what a fork may have and no release has."""
_ONE_SERVICE = re.compile(r"compose (?:-\S+ )*(?:up|run|start) (?:-\S+ )*[a-z][\w-]*")
_SINCE_A_RELEASE = frozenset({"llamacpp-flash-attn-bare"})
"""What older builds accept."""


class LintOptions(Value):
    """What to check a text against, and which findings to report."""

    images: Images
    hardware: str | Literal["stated"] | None = "stated"
    """The machine that launches are for: the one that the text speaks of, or else a Spark; None: leave out
    what depends on the machine."""
    versions: Mapping[EngineName, str] = {}
    """Engine versions to assume where the text gives none."""
    select: tuple[str, ...] = ()
    """Patterns of rule ids; empty: all rules."""
    ignore: tuple[str, ...] = ()
    level: Level = "note"
    """The least severe level to report."""
    open_sibling: Callable[[str, str], str | None] | None = None
    """Reads the file that a file names, by the path of the one and the name in it; None where it cannot."""

    def opener(self, path: str) -> Callable[[str], str | None] | None:
        return partial(self.open_sibling, path) if self.open_sibling else None

    def includes(self, finding: Finding) -> bool:
        return (
            SEVERITY[finding.level] <= SEVERITY[self.level]
            and (not self.select or _is_selected_by(finding.rule, self.select))
            and not _is_selected_by(finding.rule, self.ignore)
        )


class FixedText(Value):
    """A text that `--fix` rewrites, with the findings that are gone then."""

    name: str
    before: str
    text: str
    findings: tuple[Finding, ...]
    file: Path | None = None
    """Where it is from, and is written to; None: it was typed."""

    @property
    def diff(self) -> str:
        before = self.before.replace("\r\n", "\n").splitlines(True)
        after = self.text.splitlines(True)
        return "".join(unified_diff(before, after, self.name, f"{self.name} (fixed)"))


class CheckReport(Value):
    """What was found in a text, or in many."""

    files: tuple[str, ...] = ()
    """The names of the texts that were checked."""
    launches: tuple[ReadLaunch, ...] = ()
    findings: tuple[Finding, ...] = ()
    machines: tuple[StatedMachine, ...] = ()
    """The machine that each launch was checked for, as the text states it."""
    allowed: tuple[tuple[Finding, str], ...] = ()
    """Findings that an allow comment suppresses, with its reason."""
    mentioned: int = 0
    """How many flags, variables and images of engines the sentences mention."""
    fixed: tuple[FixedText, ...] = ()
    unread: tuple[tuple[str, FiresteelError], ...] = ()
    """Texts that could not be read, or not all of them, and why."""
    hardware: str | None = None
    """The machine that was checked for; `stated`: each launch for the one that its text speaks of."""
    must_read_all: bool = False
    """The files were named one by one. In a folder, a broken YAML file may be another tool's template."""
    is_strict: bool = False
    """What could not be read is a failure."""

    @property
    def exit_code(self) -> int:
        if any(finding.level == "stop" for finding in self.findings):
            return 3
        is_lost = any(finding.rule == "launch-not-read" for finding in self.findings)
        if is_lost and (self.is_strict or (self.must_read_all and not self.launches)):
            return 2
        is_failure = self.must_read_all or any(isinstance(error, NoReason) for _, error in self.unread)
        return 2 if self.unread and (is_failure or self.is_strict) else 0


def lint(text: str, path: str, options: LintOptions) -> CheckReport:
    """A text without a launch does not raise: the result has no launches, and maybe an error in `unread`."""
    source = source_file(text, path, options.opener(path))
    reader = scan(source, options.images)
    launches = tuple(reader.launches)
    pairs, machines = _check_launches(source, launches, options)
    findings = [finding for _, finding in pairs]
    mentioned = mentions(source)
    in_prose = check_mentions(mentioned, _hardware(StatedMachine(), options))
    others = (*in_prose, *_across(source, check_across(launches, machines, not_read(reader))))
    findings += [finding for finding in others if options.includes(finding)]
    comments = allowed(source.text, path, launches)
    suppressed = {
        finding: comment.reason for finding in findings for comment in comments if comment.covers(finding)
    }
    # Several launches may share a line, and differ only in what their findings say of the release.
    by_place = {(*_rule_and_part(finding), finding.location): finding for finding in reversed(findings)}
    left = (finding for finding in by_place.values() if finding not in suppressed)
    reported = sorted(left, key=_by_severity_and_place)
    return CheckReport(
        files=(path,),
        launches=launches,
        findings=tuple(reported),
        machines=machines,
        allowed=tuple(suppressed.items()),
        mentioned=0 if launches else sum(map(is_about_engines, mentioned)),
        unread=((path, reader.problem),) if reader.problem else (),
    )


def _across(source: SourceFile, findings: Iterator[Finding]) -> Iterator[Finding]:
    """`docker compose up vllm` names a service, so perhaps not all of them are meant to run."""
    one = _ONE_SERVICE.search(source.text)
    for finding in findings:
        why = f"the text starts one of them: `{one[0]}`" if one and finding.level == "stop" else ""
        yield replace(finding, level="warn", says=f"{finding.says} ({why})") if why else finding


def apply_fixes(text: str, path: str, options: LintOptions) -> tuple[str, tuple[Finding, ...]]:
    """The text with every safe fix applied, and the findings that were fixed."""
    source = source_file(text, path)

    def read(changed: str) -> Sequence[ReadLaunch]:
        nonlocal source
        source = SourceFile(path, changed, options.opener(path))
        return scan(source, options.images).launches

    def pairs(launches: Sequence[ReadLaunch]) -> list[tuple[ReadLaunch, Finding]]:
        comments = allowed(source.text, path, launches)
        findings, _ = _check_launches(source, launches, options)
        return [pair for pair in findings if not any(comment.covers(pair[1]) for comment in comments)]

    return fix(source.text, read, pairs)


def _check_launches(
    source: SourceFile, launches: Sequence[ReadLaunch], options: LintOptions
) -> tuple[list[tuple[ReadLaunch, Finding]], tuple[StatedMachine, ...]]:
    """The findings of each launch, and the machine that it was checked for."""
    around = NearbyText(source) if launches else None
    pairs, machines = [], []
    for parsed in launches:
        assert around is not None
        machine = find_machine(parsed, source.path, around) if options.hardware == STATED else StatedMachine()
        release = find_release(parsed, source.path, around) if parsed.launch.version is None else None
        is_fork = (machine.has_own_build and release is None) or around.builds_fork(parsed.launch.engine)
        if parsed.launch.container is None and is_fork:
            parsed = replace(parsed, is_own_build=True)
        findings = [
            _certain(finding, parsed, release, source.path, around)
            for finding in _check_launch(parsed, _hardware(machine, options), release, options)
        ]
        pairs += [(parsed, finding) for finding in findings if options.includes(finding)]
        machines.append(machine)
    return pairs, tuple(machines)


def _certain(
    finding: Finding, parsed: ReadLaunch, release: StatedRelease | None, path: str, around: NearbyText
) -> Finding:
    """A stop must be certain: the text is meant to run, complete, and of this engine."""
    if finding.level != "stop":
        return finding
    why = find_uncertainty(parsed, path, around) or _uncertainty_of_rule(finding, parsed, release, around)
    return replace(finding, level="warn", says=f"{finding.says} ({why})", fix=None) if why else finding


def _uncertainty_of_rule(
    finding: Finding, parsed: ReadLaunch, release: StatedRelease | None, around: NearbyText
) -> str:
    rule = next((rule for rule in rules() if rule.id == finding.rule), None)
    if rule is None:  # what was seen in the image itself
        return ""
    if rule.when.flaw == "glued" and "flaw:partial" in parsed.locations:
        return "a template of the chart may split it"
    if parsed.uncertainty and not rule.when.flaw:  # a shell reads the line first, whatever it starts
        return parsed.uncertainty
    if any(word.is_conditional for word in parsed.words.get(finding.key, ())):
        return "the script adds it under a condition"
    needs_absent = any(when.flag for when in rule.unless)
    if needs_absent and (more := may_have_more_flags(parsed)):
        return f"`{more[:40]}` may be the flag"
    is_unstated = parsed.launch.version is None and release is None
    may_be_older = parsed.is_own_build or (not parsed.launch.container and chooses_program(around))
    if is_unstated and rule.id in _SINCE_A_RELEASE and may_be_older:
        return "a build of its own may be older"
    is_of_release = rule.when.predicate in _OF_RELEASES or rule.when.engine == "llamacpp"
    if is_unstated and is_of_release and may_be_fork(parsed, around):
        return "the text speaks of a build of its own, or of a fork"
    return ""


def _hardware(machine: StatedMachine, options: LintOptions) -> str | None:
    if options.hardware != STATED:
        return options.hardware
    return None if machine.kind == "other" else SPARK


def _check_launch(
    parsed: ReadLaunch, hardware: str | None, release: StatedRelease | None, options: LintOptions
) -> Sequence[Finding]:
    launch = parsed.launch

    def check_with(version: str | None) -> tuple[Finding, ...]:
        held = replace(launch, version=version)
        return check(
            held,
            hardware=hardware,
            locations=parsed.locations,
            images=options.images,
            is_own_build=parsed.is_own_build,
        )

    if launch.version is not None:
        return check_with(launch.version)
    if release is None or not _is_about(release, launch):
        return check_with(options.versions.get(launch.engine))
    if release.low == release.high:
        return check_with(release.low)
    low, high = check_with(release.low), check_with(release.high)
    return [
        *(finding for finding in low if _rule_and_part(finding) in set(map(_rule_and_part, high))),
        *_only_at(release, f"{TITLES[launch.engine]} {release.low}", low, high),
        *_only_at(release, f"{TITLES[launch.engine]} {release.high}", high, low),
    ]


def _is_about(release: StatedRelease, launch: Launch) -> bool:
    """An image decides its own release, except that a recipe's minimum holds for all it names."""
    if launch.container is None:
        return True
    return release.is_minimum_of_recipe and is_upstream(launch.container.image)


def _rule_and_part(finding: Finding) -> tuple[str, str, str]:
    return finding.rule, finding.key, finding.saw


def _only_at(
    release: StatedRelease, version: str, here: Sequence[Finding], there: Sequence[Finding]
) -> Iterator[Finding]:
    """What holds at one end of the range only. The text allows that end, so what the release lacks is as
    certain as ever; that a Spark needs another release is not what the author was asked."""
    known = set(map(_rule_and_part, there))
    for finding in here:
        if _rule_and_part(finding) in known:
            continue
        is_of_spark = explain(finding.rule).when.hardware is not None
        yield replace(
            finding,
            level="warn" if is_of_spark and finding.level == "stop" else finding.level,
            says=f"with {version}, which line {release.location.line} allows: {finding.says}",
            fix=None,
        )


def _by_severity_and_place(finding: Finding) -> tuple[int, int, int, str]:
    line, column = (finding.location.line, finding.location.column) if finding.location else (0, 0)
    return SEVERITY[finding.level], line, column, finding.rule


def _is_selected_by(name: str, patterns: Sequence[str]) -> bool:
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


def machine_to_check(host_name: str | None, engine_only: bool) -> str | None:
    """`LintOptions.hardware` for what the user asked for."""
    if host_name and engine_only:
        raise UsageError("--host and --engine-only exclude each other", next="firesteel check without one")
    if engine_only or host_name is None:
        return None if engine_only else STATED
    if discrete_gpu(host_name.replace("-", " ")):
        return None  # no rule is about it: what is left holds on every machine
    return hardware(host_name).name


# --- allow comments ---

_COMMENT = re.compile(
    r"firesteel:\s*allow(?P<file>-file)?\s+(?P<rules>[\w.*-]+(?:\s*,\s*[\w.*-]+)*)(?P<reason>[^\n]*)"
)
_OWN_LINE = re.compile(r"\s*(#|//|;|<!--)")
_MAX_DISTANCE = 5
"""Lines between a comment and its launch: a fence, `services:`, a name."""


class NoReason(UsageError):
    """An allow comment without a reason: the file is not checked until it has one."""


class Allowed(Value):
    rules: tuple[str, ...]
    reason: str
    first: int
    last: int
    """The lines that it applies to."""

    def covers(self, finding: Finding) -> bool:
        line = finding.location.line if finding.location else 0
        return self.first <= line <= self.last and any(fnmatchcase(finding.rule, rule) for rule in self.rules)


def allowed(text: str, path: str, launches: Sequence[ReadLaunch]) -> tuple[Allowed, ...]:
    """Every allow comment of a text."""
    if "firesteel:" not in text:
        return ()
    lines = [[location.line for location in parsed.locations.values()] or [0] for parsed in launches]
    ranges = sorted((min(own), max(own)) for own in lines)
    return tuple(
        _allowed(comment, number, bool(_OWN_LINE.match(line)), ranges, path)
        for number, line in enumerate(text.split("\n"), start=1)
        if (comment := _COMMENT.search(line))
    )


def _allowed(
    comment: re.Match[str], number: int, is_own_line: bool, ranges: Iterable[tuple[int, int]], path: str
) -> Allowed:
    reason = re.sub(r"(-->|\))\s*$", "", comment["reason"])
    reason = re.sub(r"^[\s:(-]*(because\b)?", "", reason).strip()
    if not reason.strip("."):
        raise NoReason(
            f"{path}:{number}: this allows `{comment['rules']}` without a reason",
            next=f"firesteel: allow {comment['rules']} because ...",
        )
    rules = tuple(rule.strip() for rule in comment["rules"].split(","))
    first, last = (1, 2**31) if comment["file"] else _affected_lines(number, is_own_line, ranges)
    return Allowed(rules, reason, first, last)


def _affected_lines(number: int, is_own_line: bool, ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    if not is_own_line:
        return number, number
    for first, last in ranges:
        if number < first <= number + _MAX_DISTANCE:
            return first, last
        if first <= number <= last:
            break
    return number + 1, number + 1


# --- baseline ---

_PlaceFreeKey = tuple[str, str, str]


class KnownFinding(Value):
    """The part of a finding in JSON by which it is known again."""

    file: str | None
    rule: str
    saw: str


class Baseline(Value):
    document: str
    findings: tuple[KnownFinding, ...]


def parse_baseline(text: str, path: str) -> Baseline:
    next = f"firesteel check --json ... > {shlex.quote(str(path))}"
    try:
        baseline = from_json(Baseline, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not what `check --json` prints: {error}", next=next) from None
    if not baseline.document.startswith("firesteel.check/"):
        raise UsageError(f"{path} is a {baseline.document:.40}, not a firesteel.check", next=next)
    return baseline


def new_findings(findings: Iterable[Finding], baseline: Baseline) -> tuple[Finding, ...]:
    """The findings that the baseline does not have, or not as often."""
    left: Counter[_PlaceFreeKey] = Counter(
        (normpath(known.file or ""), known.rule, known.saw) for known in baseline.findings
    )
    new = []
    for finding in findings:
        identity = (normpath(finding.location.path if finding.location else ""), finding.rule, finding.saw)
        if left[identity] > 0:
            left[identity] -= 1
        else:
            new.append(finding)
    return tuple(new)
