"""`firesteel check WHAT`"""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, get_args

import click
from rich.text import Text

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output import ci_annotations
from firesteel.cli.output.ci_annotations import filled
from firesteel.cli.output.documents import AllowedJson, CheckJson, FixedJson, RuleJson, UnreadJson
from firesteel.cli.output.fill import finding_json, source_json
from firesteel.cli.output.show import err, findings_view, out
from firesteel.edge.files import text_files
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.host.hardware import hardware
from firesteel.reads import no_launch_error
from firesteel.rules import (
    Finding,
    Level,
    LintOptions,
    LintResult,
    NoReason,
    Rule,
    apply_fixes,
    engine_version,
    explain,
    known_patterns,
    lint,
    rules,
)

_LEVELS: tuple[Level, ...] = get_args(Level)
Mends = Literal["file", "shown"] | None
"""Whether fixes are written, shown only, or not looked for."""


@dataclass(frozen=True, slots=True)
class _Text:
    """What to check, and what to call it. A file can be written to."""

    name: str
    text: str
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class _Done:
    linted: tuple[LintResult, ...]
    fixed: tuple[tuple[_Text, str, tuple[Finding, ...]], ...]
    unread: tuple[tuple[str, FiresteelError], ...]
    must_be_read: bool
    """The files were named one by one; of a folder, what is no YAML may be another tool's template."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for each in self.linted for finding in each.findings)

    @property
    def exit_code(self) -> int:
        if any(finding.level == "stop" for finding in self.findings):
            return 3
        missed = self.must_be_read or any(isinstance(error, NoReason) for _, error in self.unread)
        return 2 if self.unread and missed else 0


def _listed(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for text in value for part in text.split(",") if part.strip())


@click.command("check", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--explain", "rule", metavar="RULE", help="Tell about a rule, or all like `vllm-*`.")
@click.option("--fix", "fixes", is_flag=True, help="Mend what is safe to mend, in place, and show the diff.")
@click.option("--diff", "diffs", is_flag=True, help="Show what --fix would change.")
@click.option("--select", multiple=True, callback=_listed, metavar="RULES", help="Only these rules.")
@click.option("--ignore", multiple=True, callback=_listed, metavar="RULES", help="All but these rules.")
@click.option("--level", type=click.Choice(_LEVELS), default="note", help="The mildest to tell of.")
@click.option("--engine-version", "version", metavar="VERSION", help="The engine's, where nothing tells it.")
@click.option(
    "--host", "host_name", metavar="NAME", default="gb10", show_default=True, help="Where it would run."
)
@click.option("--skip-others", is_flag=True, help="Pass over files that start no engine.")
@click.option("--sarif", "form", flag_value="sarif", help="SARIF 2.1.0 on stdout, for code scanning.")
@click.option("--github", "form", flag_value="github", help="Annotations for GitHub Actions on stdout.")
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
    host_name: str,
    skip_others: bool,
    form: str | None,
    as_json: bool,
    what: tuple[str, ...],
) -> int:
    """What will crash, do nothing or wedge the host in WHAT.

    WHAT is files and folders, `-` for stdin, or the words of a `docker run`, `vllm serve`, `llama-server` or
    `sglang` line itself. Scripts, Markdown guides, compose files, Kubernetes manifests, systemd units,
    llama-swap configs and recipes are read. Options of check come before WHAT. Exits 3 when something would
    stop.
    """
    if rule:
        _show_rules(rule, as_json)
        return 0
    if len(what) == 2 and what[1] == "--json" and " " in what[0]:
        as_json, what = True, what[:1]  # a quoted line, and the option after it
    _insist_on_order(what)
    asked = LintOptions(
        images=library.images(),
        hardware=hardware(host_name).name,
        versions=dict([engine_version(version)] if version else []),
        select=known_patterns(select),
        ignore=known_patterns(ignore),
        level=level,
    )
    mends: Mends = "file" if fixes else "shown" if diffs else None
    done = _check(what, asked, mends, skip_others)
    if fixes:
        _write(done)
    form = "json" if as_json else form
    _tell(done, host_name.lower(), form, mends is not None)
    return done.exit_code


def _check(what: tuple[str, ...], asked: LintOptions, mends: Mends, skip_others: bool) -> _Done:
    """One text alone must be read and start something; among many, what cannot be read is told of."""
    linted, fixed, unread = [], [], []
    alone = not _are_paths(what) or (len(what) == 1 and not Path(what[0]).is_dir())
    for each in _open(what):
        try:
            if isinstance(each, FiresteelError):
                raise each
            text = each.text
            if mends:
                better, mended = apply_fixes(each.text, each.name, asked)
                if mended:
                    fixed.append((each, better, mended))
                text = better if mends == "file" else text
            result = lint(text, each.name, asked)
        except FiresteelError as error:
            if alone:
                raise
            unread.append((str(each.name) if isinstance(each, _Text) else "", error))
            continue
        if not result.readings and alone and not skip_others and not result.findings:
            raise result.problem or no_launch_error(each.name)
        if result.problem and not alone:
            unread.append((each.name, result.problem))
        if result.readings or result.findings:
            linted.append(result)
    named = _are_paths(what) and not any(Path(word).is_dir() for word in what)
    return _Done(tuple(linted), tuple(fixed), tuple(unread), named)


def _are_paths(what: tuple[str, ...]) -> bool:
    return bool(what) and all(_is_path(word) for word in what)


def _is_path(word: str) -> bool:
    try:
        return not word.startswith("-") and "\n" not in word and Path(word).exists()
    except OSError:  # longer than a name can be: a command line
        return False


def _insist_on_order(what: tuple[str, ...]) -> None:
    """`check run.sh --level stop` and `check run.sh missing.sh` are no command lines."""
    if len(what) < 2 or not _is_path(what[0]) or _are_paths(what):
        return
    options = [word for word in what if word.startswith("-")]
    if options and (what[0].endswith((".sh", ".md", ".yaml", ".yml")) or Path(what[0]).is_dir()):
        rest = " ".join(word for word in what if word not in options)
        raise UsageError(
            f"options come before WHAT, and {options[0]} stands after it",
            next=f"firesteel check {' '.join(options)} {rest}",
        )
    missing = next((word for word in what if not _is_path(word)), None)
    if missing and not options:
        raise UsageError(f"`{missing}` is no file", next="firesteel check with the files that there are")


def _open(what: tuple[str, ...]) -> Iterator[_Text | FiresteelError]:
    if not what:
        raise UsageError(
            "there is nothing to check", next="firesteel check run.sh, or: firesteel check docker run ..."
        )
    if what == ("-",):
        yield _Text("stdin", sys.stdin.read(text_files.MAX_BYTES))
    elif _are_paths(what):
        for path in text_files.find_files([Path(word) for word in what]):
            try:
                yield _Text(_name(path), text_files.read_text(path), path)
            except FiresteelError as error:
                yield error
    elif len(what) > 1:
        yield _Text("line", shlex.join(what))
    elif any(space in what[0] for space in " \n\t"):
        yield _Text("line", what[0])
    else:
        raise UsageError(f"`{what[0]}` is no file", next="firesteel check -, and paste the line")


def _name(path: Path) -> str:
    """As text that can be printed, whatever bytes it has."""
    return str(path).encode(errors="replace").decode()


def _write(done: _Done) -> None:
    for each, text, _ in done.fixed:
        if each.path:
            text_files.write_text(each.path, text)


def _tell(done: _Done, host_name: str, form: str | None, mends: bool) -> None:
    if form == "json":
        common.print_json(_json(done, host_name))
    elif form == "sarif":
        click.echo(ci_annotations.sarif(done.findings, done.unread))
    elif form == "github":
        for line in ci_annotations.github(done.findings, done.unread):
            click.echo(line)
    else:
        _show(done, mends)


def _json(done: _Done, host_name: str) -> CheckJson:
    return CheckJson(
        launches=sum(len(each.readings) for each in done.linted),
        hardware=host_name,
        files=[each.path for each in done.linted],
        findings=[finding_json(finding) for finding in done.findings],
        allowed=[
            AllowedJson(finding=finding_json(finding), reason=reason)
            for each in done.linted
            for finding, reason in each.allowed
        ],
        fixed=[
            FixedJson(file=each.name, rules=[finding.rule for finding in mended], diff=_diff(each, text))
            for each, text, mended in done.fixed
        ],
        unread=[UnreadJson(file=name, why=error.what) for name, error in done.unread],
    )


def _diff(each: _Text, text: str) -> str:
    before, after = each.text.replace("\r\n", "\n").splitlines(True), text.splitlines(True)
    return "".join(difflib.unified_diff(before, after, each.name, f"{each.name} (mended)"))


def _show(done: _Done, mends: bool) -> None:
    for each, text, _ in done.fixed:
        out.print(Text(_diff(each, text).rstrip("\n")), soft_wrap=True)
        if each.path is None:
            out.print(Text(text.rstrip("\n")), soft_wrap=True)
    if mends and not done.fixed:
        err.print("nothing here has a safe fix")
    out.print(findings_view(done.findings))
    for name, error in done.unread:
        err.print(
            f"not read: {error.what}" if not name or name in error.what else f"not read: {name}: {error.what}"
        )
    out.print(_sum(done))


def _sum(done: _Done) -> str:
    counts = {level: sum(finding.level == level for finding in done.findings) for level in _LEVELS}
    said = ", ".join(f"{count} {level}" for level, count in counts.items() if count) or "nothing found"
    let = sum(len(each.allowed) for each in done.linted)
    said += f", {let} allowed" if let else ""
    readings = [reading for each in done.linted for reading in each.readings]
    if not readings:
        return f"{said}; no launch in it"
    first = readings[0].launch
    if len(done.linted) > 1:
        return f"{said}; {len(readings)} launches in {len(done.linted)} files"
    if len(readings) > 1:
        return f"{said}; {len(readings)} launches"
    return f"{said}; read as {first.engine} {first.version or 'of a version not known'}"


def _show_rules(pattern: str, as_json: bool) -> None:
    found = [rule for rule in rules() if fnmatchcase(rule.id, pattern)] or [explain(pattern)]
    if as_json:
        common.print_json(_rule_json(found[0]))
        return
    click.echo("\n\n".join(_rule_page(rule) for rule in found))


def _rule_json(rule: Rule) -> RuleJson:
    return RuleJson(
        rule=rule.id,
        level=rule.level,
        says=filled(rule.says),
        instead=filled(rule.instead) if rule.instead else None,
        confidence=rule.confidence,
        hits=list(rule.hits),
        misses=list(rule.misses),
        sources=[source_json(source) for source in rule.sources],
    )


def _rule_page(rule: Rule) -> str:
    lines = [
        f"{rule.id}  ({rule.level}, {rule.confidence})",
        filled(rule.says),
        *([f"use   {filled(rule.instead)}"] if rule.instead else []),
        *(["fix   firesteel check --fix mends it"] if rule.fix else []),
        *(f"hit   {line}" for line in rule.hits),
        *(f"miss  {line}" for line in rule.misses),
        *(f"seen  {source.seen}  {source.url}" for source in rule.sources),
    ]
    return "\n".join(lines)
