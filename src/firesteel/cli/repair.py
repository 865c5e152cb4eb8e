"""`firesteel repair MODEL`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.cli.options import PATH, json_option, print_json
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import err, out
from firesteel.errors import UsageError
from firesteel.library import documents, weights
from firesteel.units import parse_size, show_bytes

if TYPE_CHECKING:
    from firesteel.rules.checkpoint.checks import Mend
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


@click.command("repair")
@click.argument("model", metavar="MODEL")
@click.option("--scales", is_flag=True, help="Give matrices that engines stack one global scale.")
@click.option("--index", is_flag=True, help="Write the index anew, from what the files hold.")
@click.option("--config", is_flag=True, help="Make config.json say what the tensors are.")
@click.option("--graft", metavar="OTHER", help="Take absent or damaged tensors from this checkpoint.")
@click.option("--to", type=click.Choice(weights.LAYOUTS), help="Lay the tensors out for this format.")
@click.option(
    "--shard-size", callback=_size, metavar="SIZE", help="Split or merge into files of up to 5GB, say."
)
@click.option("--out", type=PATH, metavar="FOLDER", help="Write a new checkpoint there.")
@click.option("--in-place", is_flag=True, help="Change the checkpoint itself; --undo brings it back.")
@click.option("--undo", is_flag=True, help="Undo a repair in place.")
@json_option
def command(
    model: str,
    scales: bool,
    index: bool,
    config: bool,
    graft: str | None,
    to: WrittenLayout | None,
    shard_size: int | None,
    out: Path | None,
    in_place: bool,
    undo: bool,
    as_json: bool,
) -> int:
    """Mend a checkpoint that `firesteel audit` has found mistakes in.

    Without --scales, --index, --config, --graft, --to and --shard-size it mends everything that needs no
    other checkpoint. Without --out and --in-place it writes nothing and shows what it would do. The result is
    audited before it is kept.

    \b
    Exits 0  mended, or nothing to mend
          1  something is left that it could not mend
    """
    if undo:
        return _undo(model, as_json)
    if out and in_place:
        raise UsageError("give --out or --in-place, not both", next="firesteel repair --help")
    kinds: dict[Mend, bool] = {"scales": scales, "index": index, "config": config}
    options = weights.repair_options(
        (kind for kind, wanted in kinds.items() if wanted),
        graft=graft, to=to, shard_bytes=shard_size, out=out, in_place=in_place,
    )  # fmt: skip
    report = weights.repair(model, options, on_progress=_progress)
    if as_json:
        print_json(documents.weights.RepairJson.of(report))
    else:
        _show(report, options)
    return 1 if report.left and (options.writes or not report.done) else 0


def _undo(model: str, as_json: bool) -> int:
    restored = weights.undo_repair(model)
    if as_json:
        print_json(documents.weights.RepairUndoJson.of(model=model, restored=restored))
    else:
        out.print(f"{len(restored)} files are as they were: {', '.join(restored[:6])}")
    return 0


def _progress(done: int, total: int) -> None:
    if err.is_terminal and total:
        err.print(f"wrote {show_bytes(done)} of {show_bytes(total)}", end="\r")


def _show(report: RepairReport, options: RepairOptions) -> None:
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
        out.print(f"mended   {check}")
    if report.written or not report.done:
        for found in report.left:
            out.print(f"left     {found.level} {found.check}: {found.says}")
    if not report.done and not report.left:
        out.print("nothing to mend")
    if report.written:
        out.print(typed(f"next: firesteel audit {report.written}"), soft_wrap=True)
    elif report.done:
        out.print(
            typed(
                f"next: firesteel repair {report.model} ... --out FOLDER, or --in-place; nothing was written"
            )
        )
