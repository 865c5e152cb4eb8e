"""`firesteel check WHAT`"""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import click
from rich.text import Text

from firesteel import library
from firesteel.cli import annotate, words
from firesteel.cli.documents import CheckJson, FixedJson, RuleJson, UnreadJson
from firesteel.cli.fill import finding_json, source_json
from firesteel.cli.show import err, findings_view, out
from firesteel.edge import texts
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.hardware import hardware
from firesteel.reads import nothing_started
from firesteel.rules import Finding, Lint, Linted, Rule, explain, known_patterns, lint, mend, rules

_LEVELS = ("stop", "warn", "note")


@dataclass(frozen=True, slots=True)
class _Text:
    """What to check, and what to call it. A file can be written to."""

    name: str
    text: str
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class _Done:
    linted: tuple[Linted, ...]
    fixed: tuple[tuple[_Text, str, tuple[Finding, ...]], ...]
    unread: tuple[tuple[str, FiresteelError], ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for each in self.linted for finding in each.findings)


def _listed(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for text in value for part in text.split(",") if part.strip())


@click.command("check", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--explain", "rule", metavar="RULE", help="Tell about a rule, or all like `vllm-*`.")
@click.option("--fix", "fixes", is_flag=True, help="Mend what is safe to mend, in place, and show the diff.")
@click.option("--diff", "diffs", is_flag=True, help="Show what --fix would change.")
@click.option("--select", multiple=True, callback=_listed, metavar="RULES", help="Only these rules.")
@click.option("--ignore", multiple=True, callback=_listed, metavar="RULES", help="All but these rules.")
@click.option("--level", type=click.Choice(_LEVELS), default="note", help="The mildest to tell of.")
@click.option("--engine-version", metavar="VERSION", help="The engine's version, where nothing tells it.")
@click.option(
    "--host", "host_name", metavar="NAME", default="gb10", show_default=True, help="Where it would run."
)
@click.option("--skip-others", is_flag=True, help="Pass over files that start no engine.")
@click.option("--sarif", "form", flag_value="sarif", help="SARIF 2.1.0 on stdout, for code scanning.")
@click.option("--github", "form", flag_value="github", help="Annotations for GitHub Actions on stdout.")
@words.json_option
@click.argument("what", nargs=-1, type=click.UNPROCESSED)
def command(
    rule: str | None,
    fixes: bool,
    diffs: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    level: str,
    engine_version: str | None,
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
    asked = Lint(
        images=library.images(),
        hardware=hardware(host_name).name,
        version=engine_version,
        select=known_patterns(select),
        ignore=known_patterns(ignore),
        level=level,  # type: ignore[arg-type]  # click.Choice lets only levels through
    )
    done = _check(what, asked, fixes or diffs, skip_others)
    if fixes:
        _write(done)
    form = "json" if as_json else form
    _tell(done, host_name.lower(), form, fixes or diffs)
    return 3 if any(finding.level == "stop" for finding in done.findings) else 0


def _check(what: tuple[str, ...], asked: Lint, mends: bool, skip_others: bool) -> _Done:
    """One text alone must be read and start something; among many, what cannot be read is told of."""
    linted, fixed, unread = [], [], []
    alone = not _are_paths(what) or (len(what) == 1 and not Path(what[0]).is_dir())
    for each in _open(what):
        try:
            if isinstance(each, FiresteelError):
                raise each
            text = each.text
            if mends:
                text, mended = mend(each.text, each.name, asked)
                if mended:
                    fixed.append((each, text, mended))
            result = lint(text, each.name, asked)
        except FiresteelError as error:
            if alone:
                raise
            unread.append((str(each.name) if isinstance(each, _Text) else "", error))
            continue
        if not result.readings and alone and not skip_others and not result.findings:
            raise result.problem or nothing_started(each.name)
        if result.problem and not alone:
            unread.append((each.name, result.problem))
        if result.readings or result.findings:
            linted.append(result)
    return _Done(tuple(linted), tuple(fixed), tuple(unread))


def _are_paths(what: tuple[str, ...]) -> bool:
    return all(" " not in word and not word.startswith("-") and Path(word).exists() for word in what)


def _open(what: tuple[str, ...]) -> Iterator[_Text | FiresteelError]:
    if not what:
        raise UsageError(
            "there is nothing to check", next="firesteel check run.sh, or: firesteel check docker run ..."
        )
    if what == ("-",):
        yield _Text("stdin", sys.stdin.read(texts.MAX_BYTES))
    elif _are_paths(what):
        for path in texts.gather([Path(word) for word in what]):
            try:
                yield _Text(str(path), texts.open_text(path), path)
            except FiresteelError as error:
                yield error
    elif len(what) > 1:
        yield _Text("line", shlex.join(what))
    elif any(space in what[0] for space in " \n\t"):
        yield _Text("line", what[0])
    else:
        raise UsageError(f"`{what[0]}` is no file", next="firesteel check -, and paste the line")


def _write(done: _Done) -> None:
    for each, text, _ in done.fixed:
        if each.path:
            texts.write_text(each.path, text)


def _tell(done: _Done, host_name: str, form: str | None, mends: bool) -> None:
    if form == "json":
        words.print_json(_json(done, host_name))
    elif form == "sarif":
        click.echo(annotate.sarif(done.findings))
    elif form == "github":
        for line in annotate.github(done.findings):
            click.echo(line)
    else:
        _show(done, mends)


def _json(done: _Done, host_name: str) -> CheckJson:
    return CheckJson(
        launches=sum(len(each.readings) for each in done.linted),
        hardware=host_name,
        files=[each.path for each in done.linted],
        findings=[finding_json(finding) for finding in done.findings],
        allowed=[finding_json(finding) for each in done.linted for finding in each.allowed],
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
    version = first.version or "version not known"
    more = f" and {len(readings) - 1} more" if len(readings) > 1 else ""
    return f"{said}; read as {first.engine} {version}{more}"


def _show_rules(pattern: str, as_json: bool) -> None:
    found = [rule for rule in rules() if fnmatchcase(rule.id, pattern)] or [explain(pattern)]
    if as_json:
        words.print_json(_rule_json(found[0]))
        return
    click.echo("\n\n".join(_rule_page(rule) for rule in found))


def _rule_json(rule: Rule) -> RuleJson:
    return RuleJson(
        rule=rule.id,
        level=rule.level,
        says=rule.says.replace("{value}", "VALUE"),
        instead=rule.instead,
        confidence=rule.confidence,
        hits=list(rule.hits),
        misses=list(rule.misses),
        sources=[source_json(source) for source in rule.sources],
    )


def _rule_page(rule: Rule) -> str:
    lines = [
        f"{rule.id}  ({rule.level}, {rule.confidence})",
        rule.says.replace("{value}", "VALUE"),
        *([f"use   {rule.instead}"] if rule.instead else []),
        *(["fix   firesteel check --fix mends it"] if rule.fix else []),
        *(f"hit   {line}" for line in rule.hits),
        *(f"miss  {line}" for line in rule.misses),
        *(f"seen  {source.seen}  {source.url}" for source in rule.sources),
    ]
    return "\n".join(lines)
