"""`firesteel audit MODEL`: what is wrong with a checkpoint; with `--fix`, the same one without it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from firesteel.cli.options import PATH, json_option, print_json
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import LEVEL_STYLE, err, out
from firesteel.errors import UsageError, escape_unprintable
from firesteel.library import documents, weights
from firesteel.units import parse_size, show_bytes, show_seconds

if TYPE_CHECKING:
    from firesteel.rules.checkpoint.checks import CheckpointFinding, Mend
    from firesteel.workshop.audit import AuditReport
    from firesteel.workshop.repair import RepairOptions, RepairReport
    from firesteel.workshop.repair.repair import WrittenLayout


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        size = parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if size < 1:
        raise click.BadParameter("a file holds at least one byte")
    return size


@click.command("audit")
@click.argument("model", metavar="MODEL")
@click.option("--deep", is_flag=True, help="Read every byte: weights, all scales, published digests.")
@click.option("--sarif", is_flag=True, help="Print SARIF 2.1.0, for code scanning.")
@click.option("--fix", is_flag=True, help="Show what a repair would do; with --out or --in-place, write it.")
@click.option("--scales", is_flag=True, help="With --fix: give matrices that engines stack one global scale.")
@click.option("--index", is_flag=True, help="With --fix: rewrite the index from what the files hold.")
@click.option("--config", is_flag=True, help="With --fix: make config.json say what the tensors are.")
@click.option(
    "--graft", metavar="OTHER", help="With --fix: take absent or damaged tensors from this checkpoint."
)
@click.option(
    "--to", type=click.Choice(weights.LAYOUTS), help="With --fix: lay the tensors out for this format."
)
@click.option(
    "--shard-size",
    callback=_size,
    metavar="SIZE",
    help="With --fix: split or merge into files of up to 5GB, say.",
)
@click.option("--out", type=PATH, metavar="FOLDER", help="With --fix: write a new checkpoint there.")
@click.option(
    "--in-place", is_flag=True, help="With --fix: change the checkpoint itself; --undo brings it back."
)
@click.option("--undo", is_flag=True, help="Undo a repair in place.")
@json_option
def command(model: str, deep: bool, sarif: bool, fix: bool, undo: bool, as_json: bool, **repair: Any) -> int:
    """Find what is wrong with a checkpoint: a folder, a GGUF file, or a Hub id; --fix repairs it.

    Reads headers, scales and small files, from the Hub by ranges. Says what an engine will do with each
    mistake, and whether --fix can repair it.

    --fix alone repairs everything that needs no other checkpoint; --scales, --index, --config, --graft, --to
    and --shard-size choose. Without --out and --in-place it writes nothing and shows what it would do. The
    result is audited before it is kept.

    \b
    Exits 0  nothing is wrong; with --fix: repaired, or nothing to repair
          1  it loads, and is worse than it should be; with --fix: something is left that it could not repair
          3  an engine refuses it, or answers with garbage
    """
    _require_one_mode(deep, sarif, fix, undo, repair)
    if undo:
        return _undo(model, as_json)
    if fix:
        return _fix(model, as_json, **repair)
    report = weights.audit(model, deep=deep, on_progress=_show_read if deep else lambda done, total: None)
    if sarif:
        from firesteel.cli.output.ci_annotations import checkpoint_sarif  # loads the rules

        click.echo(checkpoint_sarif(report.model, report.findings))
    elif as_json:
        print_json(report)
    else:
        _show(report)
    return report.exit_code


def _require_one_mode(deep: bool, sarif: bool, fix: bool, undo: bool, repair: dict[str, Any]) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in repair.items() if value]
    if fix and undo:
        raise UsageError("give --fix or --undo, not both", next="firesteel audit --help")
    if (fix or undo) and (deep or sarif):
        mode = "--fix" if fix else "--undo"
        what = f"{mode} and {'--deep' if deep else '--sarif'} do not go together"
        raise UsageError(what, next="firesteel audit --help")
    if given and not fix:
        does = "--undo brings everything back" if undo else f"{given[0]} needs --fix"
        raise UsageError(
            does,
            next="firesteel audit MODEL --undo" if undo else f"firesteel audit MODEL --fix {' '.join(given)}",
        )


def _show_read(done: int, total: int) -> None:
    if err.is_terminal:
        err.print(f"read {show_bytes(done)} of {show_bytes(total)}", end="\r")


def _show(report: AuditReport) -> None:
    summary = report.summary
    out.print(f"{escape_unprintable(report.model)}: {summary.format}")
    drafter = f", and {show_bytes(summary.drafter_bytes)} more with MTP" if summary.drafter_bytes else ""
    rows = [
        ("files", f"{summary.files:,}, {summary.tensors:,} tensors, {show_bytes(summary.stored_bytes)}"),
        ("vLLM loads", f"{show_bytes(summary.loaded_bytes)}{drafter}"),
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
        out.print(
            typed(f"next: firesteel audit {shlex.quote(report.model)} --fix, which shows what it would do"),
            soft_wrap=True,
        )


def _show_finding(found: CheckpointFinding, model: str) -> None:
    more = f" ({found.count:,} like it)" if found.count > 1 else ""
    head = Text(f"{found.level:<6}", LEVEL_STYLE[found.level]) + Text(found.check, "bold")
    out.print(head + Text(f": {escape_unprintable(found.says)}{more}"))
    out.print(Text(f"      found  {escape_unprintable(found.evidence)}"))
    out.print(Text(f"      then   {found.effect}"))
    out.print(Text(f"      fix    {escape_unprintable(typed(_mend(found, model)))}"), soft_wrap=True)
    out.print(Text(f"      seen   {found.source}", style="dim"))


def _mend(found: CheckpointFinding, model: str) -> str:
    command = f"firesteel audit {shlex.quote(model)} --fix"
    words = {
        "scales": f"{command} --scales",
        "index": f"{command} --index",
        "config": f"{command} --config",
        "graft": f"{command} --graft OTHER, a checkpoint that has it",
        "invert": f"{command} --scales",
        "convert": f"{command} --to compressed-tensors",
    }
    return words[found.mend] if found.mend else "--fix cannot: download or quantize it again"


def _verdict(report: AuditReport) -> str:
    counts = {
        level: sum(found.level == level for found in report.findings) for level in ("stop", "warn", "note")
    }
    findings = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
    return f"clean{f' ({findings})' if findings else ''}" if report.is_clean else findings


# --- --fix ---


def _fix(
    model: str,
    as_json: bool,
    *,
    scales: bool,
    index: bool,
    config: bool,
    graft: str | None,
    to: WrittenLayout | None,
    shard_size: int | None,
    out: Path | None,
    in_place: bool,
) -> int:
    if out and in_place:
        raise UsageError("give --out or --in-place, not both", next="firesteel audit --help")
    kinds: dict[Mend, bool] = {"scales": scales, "index": index, "config": config}
    options = weights.repair_options(
        (kind for kind, wanted in kinds.items() if wanted),
        graft=graft, to=to, shard_bytes=shard_size, out=out, in_place=in_place,
    )  # fmt: skip
    report = weights.repair(model, options, on_progress=_show_written)
    if as_json:
        print_json(report)
    else:
        _show_repair(report, options)
    return 1 if report.left and (options.writes or not report.done) else 0


def _undo(model: str, as_json: bool) -> int:
    restored = weights.undo_repair(model)
    if as_json:
        print_json(documents.weights.RepairUndoJson.of(model=model, restored=restored))
    else:
        out.print(f"{len(restored)} files are as they were: {', '.join(restored[:6])}")
    return 0


def _show_written(done: int, total: int) -> None:
    if err.is_terminal and total:
        err.print(f"wrote {show_bytes(done)} of {show_bytes(total)}", end="\r")


def _show_repair(report: RepairReport, options: RepairOptions) -> None:
    for what in report.done:
        out.print(f"{'did' if report.written else 'would':<8} {what}")
    if report.groups:
        worst = max(report.groups, key=lambda group: group.error_before)
        before = max(group.error_before for group in report.groups)
        after = max(group.error_after for group in report.groups)
        out.print(
            f"error    {before:.1%} before and {after:.1%} after, of the worst group; the worst before was "
            f"{worst.modules[0]} at a ratio of {worst.ratio:.3g}"
        )  # fmt: skip
    for check in report.mended:
        out.print(f"repaired {check}")
    if report.written or not report.done:
        for found in report.left:
            out.print(f"left     {found.level} {found.check}: {found.says}")
    if not report.done and not report.left:
        out.print("nothing to repair")
    if report.written:
        out.print(typed(f"next: firesteel audit {shlex.quote(str(report.written))}"), soft_wrap=True)
    elif report.done:
        again = f"firesteel audit {shlex.quote(report.model)} --fix ... --out FOLDER, or --in-place"
        out.print(typed(f"next: {again}; nothing was written"), soft_wrap=True)
