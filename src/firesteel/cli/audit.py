"""`firesteel audit MODEL`"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click
from rich.text import Text

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import LEVEL_STYLE, err, out
from firesteel.errors import escape_unprintable
from firesteel.library import documents
from firesteel.library.weights import audit
from firesteel.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from firesteel.rules.checkpoint.checks import CheckpointFinding
    from firesteel.workshop.audit import AuditReport


@click.command("audit")
@click.argument("model", metavar="MODEL")
@click.option("--deep", is_flag=True, help="Read every byte: weights, all scales, published digests.")
@click.option("--sarif", is_flag=True, help="Print SARIF 2.1.0, for code scanning.")
@options.json_option
def command(model: str, deep: bool, sarif: bool, as_json: bool) -> int:
    """Find what is wrong with a checkpoint: a folder, a GGUF file, or a Hub id.

    Reads headers, scales and small files, from the Hub by ranges. Says what an engine will do with each
    mistake, and whether `firesteel repair` can mend it.

    \b
    Exits 0  nothing is wrong
          1  it loads, and is worse than it should be
          3  an engine refuses it, or answers with garbage
    """
    report = audit(model, deep=deep, on_progress=_progress if deep else lambda done, total: None)
    if sarif:
        from firesteel.cli.output.ci_annotations import checkpoint_sarif  # loads the rules

        click.echo(checkpoint_sarif(report.model, report.findings))
    elif as_json:
        options.print_json(documents.weights.AuditJson.of(report))
    else:
        _show(report)
    return report.exit_code


def _progress(done: int, total: int) -> None:
    if err.is_terminal:
        err.print(f"read {show_bytes(done)} of {show_bytes(total)}", end="\r")


def _show(report: AuditReport) -> None:
    summary = report.summary
    out.print(f"{escape_unprintable(report.model)}: {summary.format}")
    rows = [
        ("files", f"{summary.files:,}, {summary.tensors:,} tensors, {show_bytes(summary.stored_bytes)}"),
        ("vLLM loads", _loads(report)),
        ("formats", ", ".join(f"{show_bytes(size)} {name}" for name, size in summary.bytes_by_format)),
    ]
    if summary.quantization:
        rows.append(("quantization", f"pass nothing: vLLM finds `{summary.quantization}` by itself"))
        rows.append(("read by", f"vLLM {summary.vllm}; SGLang {summary.sglang}"))
    for name, text in rows:
        out.print(f"  {name:<13} {text}")
    for found in report.findings:
        _show_finding(found, report.model)
    for what in report.unread:
        out.print(f"not read  {what}")
    how = f"read {show_bytes(report.read_bytes)} of scales" if not report.is_deep else "read every byte"
    verdict = _verdict(report)
    out.print(f"{verdict}; {how} in {show_seconds(report.seconds)}")
    if report.mendable:
        out.print(typed(f"next: firesteel repair {shlex.quote(report.model)}, which shows what it would do"))


def _loads(report: AuditReport) -> str:
    summary = report.summary
    drafter = f", and {show_bytes(summary.drafter_bytes)} more with MTP" if summary.drafter_bytes else ""
    return f"{show_bytes(summary.loaded_bytes)}{drafter}"


def _show_finding(found: CheckpointFinding, model: str) -> None:
    more = f" ({found.count:,} like it)" if found.count > 1 else ""
    head = Text(f"{found.level:<6}", LEVEL_STYLE[found.level]) + Text(found.check, "bold")
    out.print(head + Text(f": {escape_unprintable(found.says)}{more}"))
    out.print(Text(f"      found  {escape_unprintable(found.evidence)}"))
    out.print(Text(f"      then   {found.effect}"))
    out.print(Text(f"      mend   {escape_unprintable(_mend(found, model))}"))
    out.print(Text(f"      seen   {found.source}", style="dim"))


def _mend(found: CheckpointFinding, model: str) -> str:
    command = f"firesteel repair {shlex.quote(model)}"
    words = {
        "scales": f"{command} --scales",
        "index": f"{command} --index",
        "config": f"{command} --config",
        "graft": f"{command} --graft OTHER, a checkpoint that has it",
        "invert": f"{command} --scales",
        "convert": f"{command} --to compressed-tensors",
    }
    return words[found.mend] if found.mend else "repair cannot: download or quantize it again"


def _verdict(report: AuditReport) -> str:
    counts = {
        level: sum(found.level == level for found in report.findings) for level in ("stop", "warn", "note")
    }
    told = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
    return f"clean{f' ({told})' if told else ''}" if report.is_clean else told
