"""`firesteel check WHAT`"""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import click
from rich.text import Text

from firesteel.cli.options import check_filters, common
from firesteel.cli.output import ci_annotations, rule_pages
from firesteel.cli.output.check_report import markdown, other_machines
from firesteel.cli.output.show import err, findings_view, out
from firesteel.dataclass import dataclass
from firesteel.edge.files import text_files
from firesteel.edge.process_pool import map_in_processes
from firesteel.errors import FiresteelError, UsageError
from firesteel.library import documents
from firesteel.reads import no_launch_error
from firesteel.rules import (
    Finding,
    Level,
    LintOptions,
    LintResult,
    NoReason,
    apply_fixes,
    engine_version,
    known_patterns,
    lint,
    machine_to_check,
)
from firesteel.workspace import find_workspace

_LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True)
class _Source:
    """A text to check, and what to call it. One that has a path can be rewritten."""

    name: str
    text: str
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class _Fixed:
    source: _Source
    text: str
    findings: tuple[Finding, ...]

    @property
    def diff(self) -> str:
        name, before = self.source.name, self.source.text.replace("\r\n", "\n")
        lines = before.splitlines(True), self.text.splitlines(True)
        return "".join(difflib.unified_diff(*lines, name, f"{name} (fixed)"))


@dataclass(frozen=True, slots=True)
class _Result:
    linted: tuple[LintResult, ...]
    fixed: tuple[_Fixed, ...]
    unread: tuple[tuple[str, FiresteelError], ...]
    must_read_all: bool
    """The files were named one by one. In a folder, a broken YAML file may be another tool's template."""
    is_strict: bool = False

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


class _CheckCommand(click.Command):
    """Options may follow files, `-` or a quoted line. What follows a program belongs to that program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        values, *_ = self.make_parser(ctx).parse_args(list(args))
        what = values.get("what")
        if isinstance(what, tuple) and what:  # click has a sentinel for an argument that was not given
            ctx.allow_interspersed_args = _starts_with_a_text(what)
            ctx.ignore_unknown_options = not ctx.allow_interspersed_args
        return super().parse_args(ctx, args)


def _starts_with_a_text(what: Sequence[str]) -> bool:
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


def _split_commas(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for text in value for part in text.split(",") if part.strip())


@click.command(
    "check",
    cls=_CheckCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--explain", "rule", metavar="RULE", help="Explain a rule, or all rules like `vllm-*`.")
@click.option("--fix", "fixes", is_flag=True, help="Apply safe fixes to the files and show the diff.")
@click.option("--diff", "diffs", is_flag=True, help="Show what --fix would change.")
@click.option(
    "--select", multiple=True, callback=_split_commas, metavar="RULES", help="Check only these rules."
)
@click.option("--ignore", multiple=True, callback=_split_commas, metavar="RULES", help="Skip these rules.")
@click.option(
    "--level", type=click.Choice(_LEVELS), default="note", help="Report findings of this level and above."
)
@click.option(
    "--engine-version",
    "version",
    metavar="VERSION",
    help="Assume this engine version where the text names none.",
)
@click.option(
    "--host",
    "host_name",
    metavar="NAME",
    help="Check for this machine, whatever the text says: gb10, or a GPU such as h200.",
)
@click.option("--engine-only", is_flag=True, help="Leave out what depends on the machine.")
@check_filters.filter_options
@click.option("--skip-others", is_flag=True, help="Skip files that start no engine.")
@click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0, for code scanning.")
@click.option("--markdown", "form", flag_value="markdown", help="Print a report for the authors of the text.")
@click.option("--github", "form", flag_value="github", help="Print annotations for GitHub Actions.")
@common.json_option
@click.argument("what", nargs=-1, type=click.UNPROCESSED)
def command(
    rule: str | None,
    fixes: bool,
    diffs: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    level: Level,
    version: str | None,
    host_name: str | None,
    engine_only: bool,
    baseline: Path | None,
    changed_since: str | None,
    strict: bool,
    skip_others: bool,
    form: str | None,
    as_json: bool,
    what: tuple[str, ...],
) -> int:
    """Find what will crash, have no effect or wedge the host in WHAT.

    WHAT is files and folders, `-` for stdin, or a `docker run`, `vllm serve`, `llama-server` or `sglang`
    command line. Scripts, Markdown guides, compose files, Kubernetes manifests, systemd units, llama-swap
    configurations and recipes are read. Options come before a command line that is not quoted, and before or
    after anything else. Exits 3 if a rule of level `stop` is broken.
    """
    if rule:
        rule_pages.show(rule, as_json)
        return 0
    lint_options = LintOptions(
        images=find_workspace().images(),
        hardware=machine_to_check(host_name, engine_only),
        versions=dict([engine_version(version)] if version else []),
        select=known_patterns(select),
        ignore=known_patterns(ignore),
        level=level,
        open_beside=partial(text_files.read_beside, _folders(what)),
    )
    result = _check(what, lint_options, fixes, diffs, skip_others)
    linted = check_filters.filtered(result.linted, baseline, changed_since)
    result = replace(result, linted=linted, is_strict=strict)
    if as_json:
        common.print_json(_json(result, lint_options.hardware))
    elif form == "sarif":
        click.echo(ci_annotations.sarif(result.findings, result.unread))
    elif form == "markdown":
        click.echo(markdown(result.linted))
    elif form == "github":
        for line in ci_annotations.github(result.findings, result.unread):
            click.echo(line)
    else:
        _show(result, wants_fixes=fixes or diffs)
    return result.exit_code


def _check(
    what: tuple[str, ...], options: LintOptions, fixes: bool, diffs: bool, skip_others: bool
) -> _Result:
    """One text alone must be readable and start an engine; of many, the unreadable ones are listed."""
    linted, fixed, unread = [], [], []
    alone = not _are_paths(what) or (len(what) == 1 and not Path(what[0]).is_dir())
    work = partial(_lint, options=options, fixes=fixes, diffs=diffs)
    for name, mended, result in map_in_processes(work, tuple(_open(what))):
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
        if is_empty and alone and not skip_others:
            raise result.problem or no_launch_error(name)
        if result.problem and not alone:
            unread.append((name, result.problem))
        if result.readings or result.findings or (alone and result.mentioned):
            linted.append(result)
    if fixes:
        for fix in fixed:
            if fix.source.path:
                text_files.write_text(fix.source.path, fix.text)
    must_read_all = _are_paths(what) and not any(Path(word).is_dir() for word in what)
    return _Result(tuple(linted), tuple(fixed), tuple(unread), must_read_all)


def _lint(
    opened: _Source | Path, options: LintOptions, fixes: bool, diffs: bool
) -> tuple[str, _Fixed | None, LintResult | FiresteelError]:
    """The name of a text (empty: it could not be opened), what was fixed in it, and what was found."""
    name, fixed = "", None
    try:
        source = opened if isinstance(opened, _Source) else _read(opened)
        name, text = source.name, source.text
        if fixes or diffs:
            better, mended = apply_fixes(text, name, options)
            fixed = _Fixed(source, better, mended) if mended else None
            text = better if fixes else text
        result = lint(text, name, options)
    except FiresteelError as error:
        return name, fixed, error
    # What a fix needs of a launch is much, and of a folder all of it would be held and sent back.
    readings = tuple(replace(reading, spots={}, words={}) for reading in result.readings)
    return name, fixed, replace(result, readings=readings)


def _read(path: Path) -> _Source:
    # The name must be printable, whatever bytes the path has.
    return _Source(str(path).encode(errors="replace").decode(), text_files.read_text(path), path)


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


def _open(what: tuple[str, ...]) -> Iterator[_Source | Path]:
    """The texts, or the files to read them from."""
    if not what:
        raise UsageError(
            "there is nothing to check", next="firesteel check run.sh, or: firesteel check docker run ..."
        )
    if what == ("-",):
        yield _Source("stdin", sys.stdin.read(text_files.MAX_BYTES))
    elif _are_paths(what):
        yield from text_files.find_files([Path(word) for word in what])
    elif len(what) > 1 and _is_path(what[0]) and _starts_with_a_text(what):
        missing = next(word for word in what if not _is_path(word))
        raise UsageError(f"`{missing}` is not a file", next="firesteel check with files that exist")
    elif len(what) > 1:
        yield _Source("line", shlex.join(what))
    elif any(space in what[0] for space in " \n\t"):
        yield _Source("line", what[0])
    else:
        raise UsageError(f"`{what[0]}` is not a file", next="firesteel check -, and paste the line")


# --- showing ---


def _json(result: _Result, host_name: str | None) -> documents.rules.CheckJson:
    shown = documents.rules
    return shown.CheckJson(
        launches=sum(len(linted.readings) for linted in result.linted),
        hardware=host_name,
        machines=tuple(
            shown.machine_json(machine) for linted in result.linted for machine in linted.machines
        ),
        files=tuple(linted.path for linted in result.linted),
        findings=tuple(map(shown.finding_json, result.findings)),
        allowed=tuple(
            shown.AllowedJson(finding=shown.finding_json(finding), reason=reason)
            for linted in result.linted
            for finding, reason in linted.allowed
        ),
        fixed=tuple(
            shown.FixedJson(
                file=fixed.source.name,
                rules=tuple(finding.rule for finding in fixed.findings),
                diff=fixed.diff,
            )
            for fixed in result.fixed
        ),
        unread=tuple(shown.UnreadJson(file=name, why=error.what) for name, error in result.unread),
    )


def _show(result: _Result, wants_fixes: bool) -> None:
    for fixed in result.fixed:
        out.print(Text(fixed.diff.rstrip("\n")), soft_wrap=True)
        if fixed.source.path is None:
            out.print(Text(fixed.text.rstrip("\n")), soft_wrap=True)
    if wants_fixes and not result.fixed:
        err.print("nothing here has a safe fix")
    out.print(findings_view(result.findings))
    for name, error in result.unread:
        file = f"{name}: " if name and name not in error.what else ""
        err.print(f"not read: {file}{error.what}")
    out.print(_summary(result))


def _summary(result: _Result) -> str:
    counts = {level: sum(finding.level == level for finding in result.findings) for level in _LEVELS}
    text = ", ".join(f"{count} {level}" for level, count in counts.items() if count) or "nothing found"
    allowed = sum(len(linted.allowed) for linted in result.linted)
    text += f", {allowed} allowed" if allowed else ""
    readings = [reading for linted in result.linted for reading in linted.readings]
    if not readings:
        names = sum(linted.mentioned for linted in result.linted)
        of_engines = "flag, variable or image" if names == 1 else "flags, variables and images"
        return f"{text}; it starts no engine, and its text mentions {names} {of_engines}"
    elsewhere = other_machines(result.linted)
    if len(result.linted) > 1:
        return f"{text}; {len(readings)} launches in {len(result.linted)} files{elsewhere}"
    if len(readings) > 1:
        return f"{text}; {len(readings)} launches{elsewhere}"
    launch = readings[0].launch
    return f"{text}; read as {launch.engine} {launch.version or '(version not known)'}{elsewhere}"
