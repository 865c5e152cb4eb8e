"""What is wrong with launches in texts, why an engine did not start, and what is known about a Spark."""

from __future__ import annotations

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
    CheckReport,
    FixedText,
    LintOptions,
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
    """A text that starts no engine is not a failure."""
    finds_fixes: bool = False
    writes_fixes: bool = False


Typed = tuple[str, str]
"""What to call a text that is no file, and the text."""


def read(text: str, path: str = "text") -> tuple[ReadLaunch, ...]:
    """The launches in a `docker run` line or any text that has some."""
    return launches.read(text, path, find_workspace().images(text))


def check(text: str, *, path: str = "text", hardware_name: str | None = "stated") -> tuple[Finding, ...]:
    """What the rules say of every launch in a text: on the machine that it speaks of, on `gb10`, or (None)
    without what depends on the machine."""
    found = lint(text, path, linter.LintOptions(find_workspace().images(text), hardware_name))
    if not found.launches:
        raise found.unread[0][1] if found.unread else no_launch_error(path)
    return found.findings


def check_texts(what: Sequence[str], options: CheckOptions, stdin: TextIO | None = None) -> CheckReport:
    """What the rules say of files and folders, of a command line given word by word, or (`-`) of `stdin`.

    One text alone must be readable and start an engine; of many, the unreadable ones are listed.
    """
    wanted = _lint_options(what, options)
    results: list[CheckReport] = []
    alone = not _are_paths(what) or (len(what) == 1 and not Path(what[0]).is_dir())
    work = partial(_lint, options=wanted, finds=options.finds_fixes, writes=options.writes_fixes)
    for result in map_in_processes(work, tuple(_open(what, stdin))):
        if alone:
            _require_content(result, options.skips_others)
            result = replace(result, unread=())
        is_shown = result.launches or result.findings or (alone and result.mentioned)
        results.append(result if is_shown else CheckReport(fixed=result.fixed, unread=result.unread))
    for fix in (fix for result in results for fix in result.fixed if options.writes_fixes):
        if fix.file:
            files.write_text(fix.file, fix.text)
    if options.changed_since is not None:
        from firesteel.edge.files import GitChanges  # runs git

        changes = GitChanges(options.changed_since)
        results = [_on_changed_lines(result, changes) for result in results]
    findings = tuple(finding for result in results for finding in result.findings)
    return CheckReport(
        files=tuple(name for result in results for name in result.files),
        launches=tuple(launch for result in results for launch in result.launches),
        findings=_without_known(findings, options.baseline) if options.baseline else findings,
        machines=tuple(machine for result in results for machine in result.machines),
        allowed=tuple(pair for result in results for pair in result.allowed),
        mentioned=sum(result.mentioned for result in results),
        fixed=tuple(fix for result in results for fix in result.fixed),
        unread=tuple(pair for result in results for pair in result.unread),
        hardware=wanted.hardware,
        must_read_all=_are_paths(what) and not any(Path(word).is_dir() for word in what),
        is_strict=options.is_strict,
    )


def _require_content(result: CheckReport, skips_others: bool) -> None:
    """One text alone must be readable, and start or mention an engine."""
    error = result.unread[0][1] if result.unread else None
    if error and not result.files:
        raise error
    others = [finding for finding in result.findings if finding.rule != "launch-not-read"]
    has_content = result.launches or others or result.mentioned
    if not has_content and (error or not result.findings) and not skips_others:
        raise error or no_launch_error(result.files[0])


def _lint_options(what: Sequence[str], options: CheckOptions) -> LintOptions:
    return LintOptions(
        images=find_workspace().images(),
        hardware=machine_to_check(options.host_name, options.engine_only),
        versions=dict([engine_version(options.version)] if options.version else []),
        select=known_patterns(options.select),
        ignore=known_patterns(options.ignore),
        level=options.level,
        open_sibling=partial(files.read_referenced, _folders(what)),
    )


def _lint(opened: Typed | Path, options: LintOptions, finds: bool, writes: bool) -> CheckReport:
    """What was found in a text, and fixed. One that cannot be read has no name among `files`; one that cannot
    be opened has none in `unread` either."""
    name = ""
    fixed: tuple[FixedText, ...] = ()
    try:
        file = opened if isinstance(opened, Path) else None
        if isinstance(opened, Path):
            text = files.read_text(opened)
            # The name must be printable, whatever bytes the path has.
            name = str(opened).encode(errors="replace").decode()
        else:
            name, text = opened
        if finds or writes:
            better, findings = apply_fixes(text, name, options)
            fixed = (FixedText(name, text, better, findings, file),) if findings else ()
            text = better if writes else text
        result = lint(text, name, options)
    except FiresteelError as error:
        return CheckReport(fixed=fixed, unread=((name, error),))
    # A fix needs a lot about each launch, and for a folder all of it would be kept and sent back.
    launches = tuple(replace(read, locations={}, words={}) for read in result.launches)
    return replace(result, launches=launches, fixed=fixed)


def _without_known(findings: Sequence[Finding], baseline: Path) -> tuple[Finding, ...]:
    text = files.read_text(baseline, next=f"firesteel check --json ... > {baseline}")
    return new_findings(findings, parse_baseline(text, str(baseline)))


def _on_changed_lines(result: CheckReport, changes: GitChanges) -> CheckReport:
    if not result.files:
        return result
    lines = changes.lines(Path(result.files[0]).resolve())

    def is_changed(finding: Finding) -> bool:
        line = finding.location.line if finding.location else 0
        return lines is None or any(line in changed for changed in lines)

    return replace(result, findings=tuple(filter(is_changed, result.findings)))


def _open(what: Sequence[str], stdin: TextIO | None) -> Iterator[Typed | Path]:
    """The texts, or the files to read them from."""
    if not what:
        raise UsageError(
            "there is nothing to check", next="firesteel check run.sh, or: firesteel check docker run ..."
        )
    if tuple(what) == ("-",):
        yield "stdin", stdin.read(files.MAX_BYTES) if stdin else ""
    elif _are_paths(what):
        yield from files.find_files([Path(word) for word in what])
    elif len(what) > 1 and _is_path(what[0]) and starts_with_a_text(what):
        missing = next(word for word in what if not _is_path(word))
        raise UsageError(f"`{missing}` is not a file", next="firesteel check with files that exist")
    elif len(what) > 1:
        yield "line", shlex.join(what)
    elif any(space in what[0] for space in " \n\t"):
        yield "line", what[0]
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
    # `docker run ...` may be typed next to a folder called `docker`, and `./llama-server -m x` is a program.
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
    """The names of tables other than those of `compatibility`."""
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
    from firesteel.run.service import read_spec

    name, chunks = _open_log(log, stdin)
    spec = read_spec(find_home().services / name) if "/" not in name else None
    with chunks as text:
        diagnosis = diagnose_log(text, engine, spec.runtime if spec else None)
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
