"""`firesteel check WHAT`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import CheckJson
from firesteel.cli.fill import finding_json
from firesteel.cli.show import findings_view, out
from firesteel.errors import UsageError
from firesteel.reads import Reading
from firesteel.rules import Finding, explain

_MAX_BYTES = 10 * 2**20


@click.command("check", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--explain", "rule", metavar="RULE", help="Tell about one rule: what it says, where it holds, who saw it."
)
@click.option("--hardware", default="gb10", show_default=True, help="The machine that it would run on.")
@words.json_option
@click.argument("what", nargs=-1, type=click.UNPROCESSED)
def command(rule: str | None, hardware: str, as_json: bool, what: tuple[str, ...]) -> int:
    """What will crash, do nothing or wedge the host in WHAT.

    WHAT is a file, `-` for stdin, or the words of a `docker run`, `vllm serve`, `llama-server` or
    `sglang` line itself. Options of check come before it. Exits 3 when something would stop.
    """
    if rule:
        click.echo(_told(rule))
        return 0
    text, name = _open(what)
    readings = library.read(text, name)
    findings = library.check_readings(readings, hardware)
    if as_json:
        words.print_json(
            CheckJson(
                launches=len(readings), hardware=hardware, findings=[finding_json(each) for each in findings]
            )
        )
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
        return sys.stdin.read(_MAX_BYTES + 1), "stdin"
    if len(what) == 1 and "\n" not in what[0] and len(what[0]) < 4096 and Path(what[0]).is_file():
        return Path(what[0]).read_text(errors="replace"), what[0]
    if len(what) == 1 and not any(space in what[0] for space in " \n\t"):
        raise UsageError(f"there is no file `{what[0]}`", next="firesteel check -, and paste the line")
    import shlex

    return (what[0] if len(what) == 1 else shlex.join(what)), "line"


def _sum(readings: tuple[Reading, ...], findings: tuple[Finding, ...]) -> str:
    counts = {
        level: sum(finding.level == level for finding in findings) for level in ("stop", "warn", "note")
    }
    said = ", ".join(f"{count} {level}" for level, count in counts.items() if count) or "nothing found"
    first = readings[0].launch
    version = first.version or "version not known"
    more = f" and {len(readings) - 1} more" if len(readings) > 1 else ""
    return f"{said}; read as {first.engine} {version}{more}"


def _told(rule_id: str) -> str:
    rule = explain(rule_id)
    lines = [
        f"{rule.id}  ({rule.level}, {rule.confidence})",
        rule.says.replace("{value}", "VALUE"),
        *([f"use   {rule.instead}"] if rule.instead else []),
        *(f"hit   {line}" for line in rule.hits),
        *(f"miss  {line}" for line in rule.misses),
        *(f"seen  {source.seen}  {source.url}" for source in rule.sources),
    ]
    return "\n".join(lines)
