"""`firesteel check WHAT`: findings as text, annotations or a report; pages of rules, and tables of facts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from firesteel.cli.options import PATH, json_option, print_json
from firesteel.cli.output import ci_annotations
from firesteel.cli.output.ci_annotations import filled
from firesteel.cli.output.show import LEVEL_STYLE, err, findings_view, out, table
from firesteel.library import documents
from firesteel.library.check import (
    CheckOptions,
    check_texts,
    compatibility,
    explain,
    fact_table,
    fact_tables,
    starts_with_a_text,
)

if TYPE_CHECKING:
    from firesteel.rules.checker import Finding
    from firesteel.rules.linter import CheckReport
    from firesteel.rules.rule import Level, Rule
    from firesteel.rules.tables import CompatibilityTable, FactTable, SupportRange

_SUPPORT_TABLE = "sm121"


class _CheckCommand(click.Command):
    """Options may follow files, `-` or a quoted line. What follows a program belongs to that program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        values, *_ = self.make_parser(ctx).parse_args(list(args))
        what = values.get("what")
        if isinstance(what, tuple) and what:  # click has a sentinel for an argument that was not given
            ctx.allow_interspersed_args = starts_with_a_text(what)
            ctx.ignore_unknown_options = not ctx.allow_interspersed_args
        return super().parse_args(ctx, args)


def _split_commas(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for text in value for part in text.split(",") if part.strip())


@click.command(
    "check",
    cls=_CheckCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--explain", "rule", metavar="RULE", help="Explain a rule, or all rules like `vllm-*`.")
@click.option(
    "--facts",
    is_flag=False,
    flag_value=_SUPPORT_TABLE,
    metavar="[TABLE]",
    help="Show what is known about a DGX Spark, with source and day: sm121 (the default: kernels, formats and"
    " flags of vLLM on a GB10, release by release), hardware (the chip next to a B200), drivers, images, or"
    " variables (of the environment, by release).",
)
@click.option("--fix", "fixes", is_flag=True, help="Apply safe fixes to the files and show the diff.")
@click.option("--diff", "diffs", is_flag=True, help="Show what --fix would change.")
@click.option(
    "--select", multiple=True, callback=_split_commas, metavar="RULES", help="Check only these rules."
)
@click.option("--ignore", multiple=True, callback=_split_commas, metavar="RULES", help="Skip these rules.")
@click.option(
    "--level",
    type=click.Choice(tuple(LEVEL_STYLE)),
    default="note",
    help="Report findings of this level and above.",
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
@click.option(
    "--baseline",
    type=PATH,
    metavar="FILE",
    help="Leave out findings that FILE, printed by an earlier --json, already has.",
)
@click.option(
    "--changed-since", metavar="REF", help="Report only lines that git says have changed since REF."
)
@click.option(
    "--strict", is_flag=True, help="Exit 2 if a file or what looks like a launch could not be read."
)
@click.option("--skip-others", is_flag=True, help="Skip files that start no engine.")
@click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0, for code scanning.")
@click.option("--markdown", "form", flag_value="markdown", help="Print a report for the authors of the text.")
@click.option("--github", "form", flag_value="github", help="Print annotations for GitHub Actions.")
@json_option
@click.argument("what", nargs=-1, type=click.UNPROCESSED)
def command(
    rule: str | None,
    facts: str | None,
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
        show_rules(rule, as_json)
        return 0
    if facts:
        show_facts(facts, as_json)
        return 0
    options = CheckOptions(
        select, ignore, level, version, host_name, engine_only, baseline, changed_since, strict, skip_others,
        finds_fixes=fixes or diffs, writes_fixes=fixes,
    )  # fmt: skip
    result = check_texts(what, options, sys.stdin)
    if as_json:
        print_json(documents.check.check_json(result))
    elif form == "sarif":
        click.echo(ci_annotations.sarif(result.findings, result.unread))
    elif form == "markdown":
        click.echo(markdown(result))
    elif form == "github":
        for line in ci_annotations.github(result.findings, result.unread):
            click.echo(line)
    else:
        _show(result, wants_fixes=fixes or diffs)
    return result.exit_code


def _show(result: CheckReport, wants_fixes: bool) -> None:
    for fixed in result.fixed:
        out.print(Text(fixed.diff.rstrip("\n")), soft_wrap=True)
        if fixed.file is None:
            out.print(Text(fixed.text.rstrip("\n")), soft_wrap=True)
    if wants_fixes and not result.fixed:
        err.print("nothing here has a safe fix")
    out.print(findings_view(result.findings))
    for name, error in result.unread:
        file = f"{name}: " if name and name not in error.what else ""
        err.print(f"not read: {file}{error.what}")
    out.print(_summary(result))


def _summary(result: CheckReport) -> str:
    counts = {level: sum(finding.level == level for finding in result.findings) for level in LEVEL_STYLE}
    text = ", ".join(f"{count} {level}" for level, count in counts.items() if count) or "nothing found"
    text += f", {len(result.allowed)} allowed" if result.allowed else ""
    launches = result.launches
    if not launches:
        names = result.mentioned
        of_engines = "flag, variable or image" if names == 1 else "flags, variables and images"
        return f"{text}; it starts no engine, and its text mentions {names} {of_engines}"
    on_others = other_machines(result)
    if len(result.files) > 1:
        return f"{text}; {len(launches)} launches in {len(result.files)} files{on_others}"
    if len(launches) > 1:
        return f"{text}; {len(launches)} launches{on_others}"
    launch = launches[0].launch
    return f"{text}; read as {launch.engine} {launch.version or '(version not known)'}{on_others}"


def other_machines(result: CheckReport) -> str:
    """Launches for another machine are not checked against a Spark: how many, and what says so."""
    machines = [machine for machine in result.machines if machine.kind == "other"]
    if not machines:
        return ""
    launches = len(result.launches)
    first = machines[0]
    where = f", {first.location.path}:{first.location.line}" if first.location else ""
    count = "" if launches == 1 else f"{len(machines)} of them " if len(machines) < launches else "all "
    return f", {count}for another machine ({first.what}{where}); --host gb10 checks for a Spark"


# --- rules ---


def show_rules(pattern: str, as_json: bool) -> None:
    matching = explain(pattern)
    if not as_json:
        click.echo("\n\n".join(_rule_page(rule) for rule in matching))
        return
    rule = matching[0]
    instead = filled(rule.instead) if rule.instead else None
    says = filled(rule.says)
    print_json(documents.check.RuleJson.of(rule, rule=rule.id, says=says, instead=instead))


def _rule_page(rule: Rule) -> str:
    lines = [
        f"{rule.id}  ({rule.level}, {rule.confidence})",
        filled(rule.says),
        *([f"use   {filled(rule.instead)}"] if rule.instead else []),
        *(["fix   firesteel check --fix fixes it"] if rule.fix else []),
        *(f"hit   {line}" for line in rule.hits),
        *(f"miss  {line}" for line in rule.misses),
        *(f"seen  {source.seen}  {source.url}" for source in rule.sources),
    ]
    return "\n".join(lines)


# --- a report for the authors of the texts ---


_TITLES = {"stop": "Does not start, or does harm", "warn": "Has no effect, or is likely to do harm"}
"""Notes are for users of the launch, not for its author."""


def markdown(result: CheckReport) -> str:
    """Every stop and warning by file and line, with what was seen, the fix and the sources."""
    findings = result.findings
    counts = ", ".join(f"{sum(each.level == level for each in findings)} {level}" for level in _TITLES)
    lines = ["# Launches that do not do what they say", ""]
    launches = f"{len(result.launches)} launches in {len(result.files)} files"
    lines.append(f"{launches}: {counts}{other_machines(result)}.")
    for level, title in _TITLES.items():
        of_level = [finding for finding in findings if finding.level == level]
        lines += ["", f"## {title}"] if of_level else []
        for rule in dict.fromkeys(finding.rule for finding in of_level):
            lines += ["", f"### {rule}", ""]
            same = [finding for finding in of_level if finding.rule == rule]
            for finding in same:
                lines += _markdown_entry(finding)
            urls = dict.fromkeys(f"{source.url} ({source.seen})" for source in same[0].sources)
            lines += ["", f"Sources: {', '.join(urls)}"]
    return "\n".join(lines)


def _markdown_entry(finding: Finding) -> Iterator[str]:
    location = finding.location
    where = f"`{location.path}:{location.line}`" if location else "a launch"
    yield f"- {where}: {filled(finding.says)}"
    if finding.saw:
        yield f"  - seen: {_code(finding.saw)}"
    if finding.instead:
        yield f"  - fix: {filled(finding.instead)}"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{' '.join(text.split())}{fence}"


# --- facts ---

_EFFECTS = {"stop": "stops", "warn": "hurts", "note": "note", None: "no known problem"}


def show_facts(name: str, as_json: bool) -> None:
    if name == _SUPPORT_TABLE:
        _show_support(compatibility(name), as_json)
    else:
        _show_table(fact_table(name), as_json)


def _show_support(support: CompatibilityTable, as_json: bool) -> None:
    if as_json:
        print_json(support)
        return
    out.print(support.title)
    rows = [
        (row.what, row.guides, "\n".join(_span(span) for span in row.spans), row.now) for row in support.rows
    ]
    out.print(table(("what", "guides say", "vLLM releases", "now"), rows))
    out.print("`firesteel check --explain RULE` shows the sources of a rule")
    out.print(f"more tables: {', '.join(fact_tables())}")


def _show_table(found: FactTable, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out.print(found.title)
    rows = [
        (row.what, *row.values, row.note or "", f"{row.confidence} {row.source.seen}\n{row.source.url}")
        for row in found.rows
    ]
    out.print(table((*found.columns, "note", "source"), rows))


def _span(span: SupportRange) -> str:
    until = f"to {span.last}" if span.last else "and later"
    releases = span.first if span.first == span.last else f"{span.first} {until}"
    return f"{releases}: {_EFFECTS[span.level]}" + (f" ({', '.join(span.rules)})" if span.rules else "")
