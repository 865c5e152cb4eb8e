"""`firesteel check WHAT`"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import CheckJson, RuleJson
from firesteel.cli.fill import finding_json, source_json
from firesteel.cli.show import findings_view, out
from firesteel.errors import UsageError
from firesteel.facts.hardware import hardware
from firesteel.reads import Reading
from firesteel.rules import Finding, Rule, explain

_MAX_BYTES = 4 * 2**20
"""More than any reader takes; what is longer is refused there, and never read whole."""


@click.command("check", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--explain", "rule", metavar="RULE", help="Tell about one rule: what it says, who saw it.")
@click.option(
    "--host", "host_name", metavar="NAME", default="gb10", show_default=True, help="Where it would run."
)
@words.json_option
@click.argument("what", nargs=-1, type=click.UNPROCESSED)
def command(rule: str | None, host_name: str, as_json: bool, what: tuple[str, ...]) -> int:
    """What will crash, do nothing or wedge the host in WHAT.

    WHAT is a file, `-` for stdin, or the words of a `docker run`, `vllm serve`, `llama-server` or
    `sglang` line itself. Options of check come before it. Exits 3 when something would stop.
    """
    if rule:
        _show_rule(explain(rule), as_json)
        return 0
    if len(what) == 2 and what[1] == "--json" and " " in what[0]:
        as_json, what = True, what[:1]  # a quoted line, and the option after it
    text, name = _open(what)
    readings = library.read(text, name)
    findings = library.check_readings(readings, hardware(host_name).name)
    if as_json:
        rows = [finding_json(each) for each in findings]
        words.print_json(CheckJson(launches=len(readings), hardware=host_name.lower(), findings=rows))
    else:
        out.print(findings_view(findings))
        out.print(_sum(readings, findings))
    return 3 if any(finding.level == "stop" for finding in findings) else 0


def _open(what: tuple[str, ...]) -> tuple[str, str]:
    if not what:
        raise UsageError(
            "there is nothing to check", next="firesteel check run.sh, or: firesteel check docker run ..."
        )
    if what == ("-",):
        return sys.stdin.read(_MAX_BYTES), "stdin"
    if len(what) > 1:
        return shlex.join(what), "line"
    one = what[0]
    if any(space in one for space in " \n\t"):
        return one, "line"
    path = Path(one)
    if path.is_file():
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace"), one
    kind = "a folder, not a file" if path.is_dir() else "no file"
    raise UsageError(f"`{one}` is {kind}", next="firesteel check -, and paste the line")


def _sum(readings: tuple[Reading, ...], findings: tuple[Finding, ...]) -> str:
    counts = {
        level: sum(finding.level == level for finding in findings) for level in ("stop", "warn", "note")
    }
    said = ", ".join(f"{count} {level}" for level, count in counts.items() if count) or "nothing found"
    first = readings[0].launch
    version = first.version or "version not known"
    more = f" and {len(readings) - 1} more" if len(readings) > 1 else ""
    return f"{said}; read as {first.engine} {version}{more}"


def _show_rule(rule: Rule, as_json: bool) -> None:
    says = rule.says.replace("{value}", "VALUE")
    if as_json:
        words.print_json(
            RuleJson(
                rule=rule.id,
                level=rule.level,
                says=says,
                instead=rule.instead,
                confidence=rule.confidence,
                hits=list(rule.hits),
                misses=list(rule.misses),
                sources=[source_json(source) for source in rule.sources],
            )
        )
        return
    lines = [
        f"{rule.id}  ({rule.level}, {rule.confidence})",
        says,
        *([f"use   {rule.instead}"] if rule.instead else []),
        *(f"hit   {line}" for line in rule.hits),
        *(f"miss  {line}" for line in rule.misses),
        *(f"seen  {source.seen}  {source.url}" for source in rule.sources),
    ]
    click.echo("\n".join(lines))
