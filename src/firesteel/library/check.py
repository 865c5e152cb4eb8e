"""What is wrong with launches in texts, why an engine did not start, and what is known about a Spark."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from firesteel.edge import files
from firesteel.edge.home import find_home
from firesteel.edge.process_pool import map_in_processes
from firesteel.errors import FiresteelError, UsageError, escape_unprintable
from firesteel.launch import EngineName
from firesteel.reads import launches
from firesteel.reads.launches import no_launch_error
from firesteel.rules import linter, tables
from firesteel.rules.checker import Finding
from firesteel.rules.linter import (
    LintOptions,
    LintResult,
    NoReason,
    apply_fixes,
    engine_version,
    known_patterns,
    lint,
    machine_to_check,
    new_findings,
    parse_baseline,
)
from firesteel.rules.rule import Level
from firesteel.rules.rule import explain as explain_rule
from firesteel.rules.rule import rules as known_rules
from firesteel.values import Value, replace
from firesteel.workspace import find_workspace

if TYPE_CHECKING:
    from firesteel.edge.files import GitChanges
    from firesteel.engines.diagnosis import Diagnosis
    from firesteel.reads.reader import ReadLaunch
    from firesteel.rules.rule import Rule
    from firesteel.rules.tables import CompatibilityTable, FactTable


# --- texts ---


class CheckOptions(Value):
    """What to check texts against, and what to report."""

    select: tuple[str, ...] = ()
    """Patterns of rule ids; empty: all rules."""
    ignore: tuple[str, ...] = ()
    level: Level = "note"
    """The least severe level to report."""
    version: str | None = None
    """Assumed where the text names none."""
    host_name: str | None = None
    """The machine to check for; None: the one that the text speaks of."""
    engine_only: bool = False
    """Leave out what depends on the machine."""
    baseline: Path | None = None
    """Leave out what this file, the output of an earlier `check --json`, has."""
    changed_since: str | None = None
    """Leave out what stands on lines that git says have not changed since."""
    is_strict: bool = False
    """What could not be read is a failure."""
    skips_others: bool = False
    """A text that starts no engine is no failure."""
    finds_fixes: bool = False
    writes_fixes: bool = False


class CheckSource(Value):
    """A text to check, and what to call it. One that has a path can be rewritten."""

    name: str
    text: str
    path: Path | None = None


class FixedText(Value):
    source: CheckSource
    text: str
    findings: tuple[Finding, ...]

    @property
    def diff(self) -> str:
        name, before = self.source.name, self.source.text.replace("\r\n", "\n")
        lines = before.splitlines(True), self.text.splitlines(True)
        return "".join(difflib.unified_diff(*lines, name, f"{name} (fixed)"))


class CheckReport(Value):
    linted: tuple[LintResult, ...]
    fixed: tuple[FixedText, ...]
    unread: tuple[tuple[str, FiresteelError], ...]
    must_read_all: bool
    """The files were named one by one. In a folder, a broken YAML file may be another tool's template."""
    is_strict: bool = False
    hardware: str | None = None
    """The machine that was checked for; `stated`: each launch for the one that its text speaks of."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for linted in self.linted for finding in linted.findings)

    @property
    def exit_code(self) -> int:
        if any(finding.level == "stop" for finding in self.findings):
            return 3
        is_lost = any(finding.rule == "launch-not-read" for finding in self.findings)
        has_launch = any(linted.readings for linted in self.linted)
        if is_lost and (self.is_strict or (self.must_read_all and not has_launch)):
            return 2
        is_failure = self.must_read_all or any(isinstance(error, NoReason) for _, error in self.unread)
        return 2 if self.unread and (is_failure or self.is_strict) else 0


def read(text: str, path: str = "text") -> tuple[ReadLaunch, ...]:
    """The launches in a `docker run` line or any text that has some."""
    return launches.read(text, path, find_workspace().images(text))


def check(text: str, *, path: str = "text", hardware_name: str | None = "stated") -> tuple[Finding, ...]:
    """What the rules say of every launch in a text: on the machine that it speaks of, on `gb10`, or (None)
    without what depends on the machine."""
    found = lint(text, path, linter.LintOptions(find_workspace().images(text), hardware_name))
    if not found.readings:
        raise found.problem or no_launch_error(path)
    return found.findings


def check_texts(what: Sequence[str], options: CheckOptions, stdin: TextIO | None = None) -> CheckReport:
    """What the rules say of files and folders, of a command line given word by word, or (`-`) of `stdin`.

    One text alone must be readable and start an engine; of many, the unreadable ones are listed.
    """
    wanted = _lint_options(what, options)
    linted, fixed, unread = [], [], []
    alone = not _are_paths(what) or (len(what) == 1 and not Path(what[0]).is_dir())
    work = partial(_lint, options=wanted, finds=options.finds_fixes, writes=options.writes_fixes)
    for name, mended, result in map_in_processes(work, tuple(_open(what, stdin))):
        if mended:
            fixed.append(mended)
        if isinstance(result, FiresteelError):
            if alone:
                raise result
            unread.append((name, result))
            continue
        told = [finding for finding in result.findings if finding.rule != "launch-not-read"]
        has_content = result.readings or told or result.mentioned
        is_empty = not has_content and (result.problem or not result.findings)
        if is_empty and alone and not options.skips_others:
            raise result.problem or no_launch_error(name)
        if result.problem and not alone:
            unread.append((name, result.problem))
        if result.readings or result.findings or (alone and result.mentioned):
            linted.append(result)
    for fix in fixed if options.writes_fixes else ():
        if fix.source.path:
            files.write_text(fix.source.path, fix.text)
    must_read_all = _are_paths(what) and not any(Path(word).is_dir() for word in what)
    return CheckReport(
        _filtered(linted, options.baseline, options.changed_since),
        tuple(fixed),
        tuple(unread),
        must_read_all,
        options.is_strict,
        wanted.hardware,
    )


def _lint_options(what: Sequence[str], options: CheckOptions) -> LintOptions:
    return LintOptions(
        images=find_workspace().images(),
        hardware=machine_to_check(options.host_name, options.engine_only),
        versions=dict([engine_version(options.version)] if options.version else []),
        select=known_patterns(options.select),
        ignore=known_patterns(options.ignore),
        level=options.level,
        open_beside=partial(files.read_beside, _folders(what)),
    )


def _lint(
    opened: CheckSource | Path, options: LintOptions, finds: bool, writes: bool
) -> tuple[str, FixedText | None, LintResult | FiresteelError]:
    """The name of a text (empty: it could not be opened), what was fixed in it, and what was found."""
    name, fixed = "", None
    try:
        source = opened if isinstance(opened, CheckSource) else _read(opened)
        name, text = source.name, source.text
        if finds or writes:
            better, mended = apply_fixes(text, name, options)
            fixed = FixedText(source, better, mended) if mended else None
            text = better if writes else text
        result = lint(text, name, options)
    except FiresteelError as error:
        return name, fixed, error
    # What a fix needs of a launch is much, and of a folder all of it would be held and sent back.
    readings = tuple(replace(reading, spots={}, words={}) for reading in result.readings)
    return name, fixed, replace(result, readings=readings)


def _read(path: Path) -> CheckSource:
    # The name must be printable, whatever bytes the path has.
    return CheckSource(str(path).encode(errors="replace").decode(), files.read_text(path), path)


def _filtered(
    linted: Sequence[LintResult], baseline: Path | None, changed_since: str | None
) -> tuple[LintResult, ...]:
    """The results without what is known, and without what stands on lines that have not changed."""
    if changed_since is not None:
        from firesteel.edge.files import GitChanges  # runs git

        changes = GitChanges(changed_since)
        linted = tuple(_on_changed_lines(result, changes) for result in linted)
    if baseline is not None:
        known = parse_baseline(
            files.read_text(baseline, next=f"firesteel check --json ... > {baseline}"), str(baseline)
        )
        findings = [finding for result in linted for finding in result.findings]
        new = set(map(id, new_findings(findings, known)))
        linted = tuple(
            replace(result, findings=tuple(finding for finding in result.findings if id(finding) in new))
            for result in linted
        )
    return tuple(linted)


def _on_changed_lines(result: LintResult, changes: GitChanges) -> LintResult:
    lines = changes.lines(Path(result.path).resolve())

    def is_changed(finding: Finding) -> bool:
        line = finding.spot.line if finding.spot else 0
        return lines is None or any(line in changed for changed in lines)

    return replace(result, findings=tuple(filter(is_changed, result.findings)))


def _open(what: Sequence[str], stdin: TextIO | None) -> Iterator[CheckSource | Path]:
    """The texts, or the files to read them from."""
    if not what:
        raise UsageError(
            "there is nothing to check", next="firesteel check run.sh, or: firesteel check docker run ..."
        )
    if tuple(what) == ("-",):
        yield CheckSource("stdin", stdin.read(files.MAX_BYTES) if stdin else "")
    elif _are_paths(what):
        yield from files.find_files([Path(word) for word in what])
    elif len(what) > 1 and _is_path(what[0]) and starts_with_a_text(what):
        missing = next(word for word in what if not _is_path(word))
        raise UsageError(f"`{missing}` is not a file", next="firesteel check with files that exist")
    elif len(what) > 1:
        yield CheckSource("line", shlex.join(what))
    elif any(space in what[0] for space in " \n\t"):
        yield CheckSource("line", what[0])
    else:
        raise UsageError(f"`{what[0]}` is not a file", next="firesteel check -, and paste the line")


def starts_with_a_text(what: Sequence[str]) -> bool:
    """The first word is something to read, not the program of a command line."""
    first = what[0]
    if first == "-" or any(space in first for space in " \n\t"):
        return True
    if not _is_path(first):
        return False
    path = Path(first)
    if path.suffix[1:].isalpha() or (path.is_file() and not os.access(path, os.X_OK)):
        return True
    # `docker run ...` may be typed beside a folder called `docker`, and `./llama-server -m x` is a program.
    return _are_paths(what) or (path.is_dir() and what[1].startswith("-"))


def _folders(what: Sequence[str]) -> tuple[Path, ...]:
    """The folders that files named by a text may lie in: those given, and those of given files."""
    paths = [Path(word).resolve() for word in what] if _are_paths(what) else []
    return tuple(path if path.is_dir() else path.parent for path in paths)


def _are_paths(what: Sequence[str]) -> bool:
    return bool(what) and all(_is_path(word) for word in what)


def _is_path(word: str) -> bool:
    try:
        return not word.startswith("-") and "\n" not in word and Path(word).exists()
    except OSError:  # longer than a file name can be, so a command line
        return False


# --- rules and facts ---


def explain(pattern: str) -> tuple[Rule, ...]:
    """The rules whose ids match (`vllm-*`), or the one of that id."""
    matching = tuple(rule for rule in known_rules() if fnmatchcase(rule.id, pattern))
    return matching or (explain_rule(pattern),)


def compatibility(table: str = "sm121") -> CompatibilityTable:
    """What works on a machine, release by release, according to the rules."""
    return tables.compatibility(table)


def fact_tables() -> tuple[str, ...]:
    """The names of tables beside those of `compatibility`."""
    return tables.FACT_TABLES


def fact_table(name: str) -> FactTable:
    """What is known about a DGX Spark, with source and day; one of `fact_tables`."""
    if name not in tables.FACT_TABLES:
        known = ", ".join(("sm121", *tables.FACT_TABLES))
        raise UsageError(
            f"there is no table `{name:.60}`; there are {known}", next="firesteel check --facts hardware"
        )
    return tables.fact_table(name)


# --- logs ---


class LogDiagnosis(Value):
    """Why an engine did not start, and which log says so."""

    name: str
    diagnosis: Diagnosis
    where: str = ""
    """Where the right log may be, if this is none of an engine."""

    @property
    def is_unknown(self) -> bool:
        return self.diagnosis.state == "failed" and not self.diagnosis.causes

    @property
    def is_not_a_log(self) -> bool:
        """Empty, or without a line that an engine would write."""
        found = self.diagnosis
        return found.state == "unfinished" and not found.notes and (not found.lines or not found.engine)

    @property
    def exit_code(self) -> int:
        return 1 if self.is_unknown or self.is_not_a_log else 0


def diagnose(log: Path | str, engine: EngineName | None = None) -> Diagnosis:
    """Why an engine did not start, from its log: a file, or its text."""
    from firesteel.engines.diagnosis import diagnose as diagnose_log

    if isinstance(log, str):
        return diagnose_log(log, engine)
    from firesteel.edge.files import open_log

    with open_log(log, str(log)) as text:
        return diagnose_log(text, engine)


def diagnose_log(log: str, engine: EngineName | None = None, stdin: BinaryIO | None = None) -> LogDiagnosis:
    """The same of a file, of the log of a service by its name, or (`-`) of `stdin`."""
    from firesteel.engines.diagnosis import diagnose as diagnose_log

    name, chunks = _open_log(log, stdin)
    with chunks as text:
        diagnosis = diagnose_log(text, engine)
    where = "docker logs NAME 2>&1 | firesteel logs - --why"
    if (find_home().services / name / "engine.log").is_file():
        where = f"firesteel ps, to see why {escape_unprintable(name)} has written nothing"
    return LogDiagnosis(name, diagnosis, where)


def _open_log(log: str, stdin: BinaryIO | None) -> tuple[str, AbstractContextManager[Iterator[str]]]:
    from firesteel.edge.files import open_log
    from firesteel.run.service import all_logs

    if log == "-" and stdin:
        return "stdin", open_log(stdin, log)
    path = Path(log)
    try:
        if path.is_file() or path.is_fifo():
            return log.encode(errors="replace").decode(), open_log(path, log)
    except (OSError, ValueError):
        pass  # cannot be a path, so perhaps a service
    services = all_logs(find_home())
    if log in services:
        return log, open_log(services[log], log)
    known = f", and no service of that name has a log ({', '.join(sorted(services))})" if services else ""
    raise UsageError(
        f"`{escape_unprintable(log)}` is not a file{known}",
        next="firesteel logs FILE --why, or: docker logs NAME 2>&1 | firesteel logs - --why",
    )
