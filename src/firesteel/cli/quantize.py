"""`firesteel quantize MODEL --to FORMAT`"""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import SlowLines
from firesteel.cli.output.show import err, grid, out, speed_band, table
from firesteel.errors import UsageError
from firesteel.library import documents, weights
from firesteel.units import show_bytes, show_seconds

if TYPE_CHECKING:  # load numpy, which is not always installed
    from firesteel.library.weights import QuantizationJob, QuantizedCheckpoint
    from firesteel.workshop.audit import AuditReport
    from firesteel.workshop.quantize.forecast import ServedForecast
    from firesteel.workshop.quantize.other_quantizers import CalibrationPlan
    from firesteel.workshop.quantize.results import QuantizationResult
    from firesteel.workshop.quantize.run import QuantizationProgress

_WORST = 10


@click.command("quantize")
@click.argument("model", metavar="MODEL")
@click.option(
    "--to",
    "format_name",
    metavar="FORMAT",
    required=True,
    help="Write this format: fp8-dynamic, fp8-block, nvfp4, nvfp4-spark, nvfp4-w4a4, mxfp4, or a GGUF label "
    "such as q4_k_m.",
)
@click.option(
    "--out", "folder", metavar="FOLDER", type=options.PATH, help="Write there (default: NAME-FORMAT)."
)
@click.option(
    "--keep",
    "--ignore",
    "keep",
    metavar="PATTERN",
    multiple=True,
    help="Leave these modules as they are: a name, a part of one, `*` or `re:...`; repeatable.",
)
@click.option(
    "--imatrix",
    metavar="FILE",
    type=options.PATH,
    help="For a GGUF label: the importance matrix that llama-imatrix made.",
)
@click.option("--threads", type=click.IntRange(1, 512), help="Use this many cores (default: all).")
@click.option(
    "--calibrate",
    "data",
    metavar="DATA",
    help="Plan W4A4 with measured activations and print ModelOpt's command for it.",
)
@click.option("--upload", "repository", metavar="ORG/NAME", help="Send the result to the Hub, privately.")
@click.option("--public", is_flag=True, help="With --upload: create a public repository.")
@click.option(
    "--despite",
    multiple=True,
    metavar="CHECK",
    help="Quantize although the audit of MODEL stops at this check; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be written, to the byte, and write nothing.")
@options.host_option
@options.json_option
def command(
    model: str,
    format_name: str,
    folder: Path | None,
    keep: tuple[str, ...],
    imatrix: Path | None,
    threads: int | None,
    data: str | None,
    repository: str | None,
    public: bool,
    despite: tuple[str, ...],
    dry_run: bool,
    host_name: str | None,
    as_json: bool,
) -> int:
    """Quantize a checkpoint, without calibration data and in bounded memory.

    MODEL is a folder with safetensors in BF16, FP16, FP32 or FP8 in blocks, or a Hub id that was pulled. The
    result is a folder that vLLM and SGLang load. An interrupted run resumes when the same command is
    given again. For a GGUF label, MODEL is a GGUF file in 16 bits, and llama.cpp's quantizer makes another.
    Exits 3 when the audit stops MODEL or the result, or a matrix would stay as it is by accident.
    """
    if weights.is_gguf_label(format_name):
        _quantize_gguf(model, format_name, folder, imatrix, threads, dry_run, as_json)
        return 0
    if imatrix:
        raise UsageError("--imatrix is for GGUF labels", next="--to q4_k_m")
    if data:
        _calibrate(weights.plan_calibration(model, data, out=folder, host_name=host_name), as_json)
        return 0
    job = weights.plan_job(
        model, format_name, out=folder, keep=keep, threads=threads, host_name=host_name,
        repository=repository, is_public=public, despite=despite,
    )  # fmt: skip
    if dry_run and as_json:
        options.print_json(documents.weights.quantize_plan_json(job.plan, job.out, job.forecast))
        return 0
    if not as_json:
        _show_plan(job)
    if job.only_uploads:
        _upload(job)
        return 0
    weights.require_place(job)
    if dry_run:
        return 0
    done = _run(job)
    if job.repository and done.can_be_published:
        _upload(job)
    if as_json:
        options.print_json(documents.weights.quantize_json(job.plan, job.out, done.result, done.audit))
    else:
        _show_result(job, done.result)
        _show_audit(done.audit)
        then = "plan" if done.can_be_published else "audit"
        click.echo(typed(f"next: firesteel {then} {shlex.quote(str(job.out))}"), err=True)
    return 0 if done.can_be_published else 3


def _quantize_gguf(
    model: str,
    label: str,
    file: Path | None,
    imatrix: Path | None,
    threads: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    job = weights.plan_gguf_job(model, label, out=file, imatrix=imatrix, threads=threads)
    plan = job.plan
    planned = f"{show_bytes(plan.bytes)}" if plan.bytes else "known after the conversion"
    if not as_json:
        out.print(grid([
            ("model", f"{plan.source}, {show_bytes(plan.source_bytes)}"),
            ("result", f"{job.out}, tensors {planned}"),
            ("by", f"{plan.quantizer}" + (f", after {plan.converter}" if plan.converter else "")),
        ]))  # fmt: skip
    written = None
    if not dry_run:
        err.print("quantize: llama.cpp is at work ...")
        written = weights.run_gguf_job(job)
    if as_json:
        document = documents.weights.QuantizeGgufJson.of(
            model=model, format=label.lower(), out=job.out, source_bytes=plan.source_bytes,
            planned_bytes=plan.bytes, bytes=written,
        )  # fmt: skip
        options.print_json(document)
    elif written:
        out.print(f"wrote {job.out}: {show_bytes(written)}")
        click.echo(typed(f"next: firesteel plan {shlex.quote(str(job.out))}"), err=True)


def _calibrate(plan: CalibrationPlan, as_json: bool) -> None:
    """Shows the command of ModelOpt's own container, where it would not wedge the host."""
    if as_json:
        options.print_json(plan)
        return
    hours = f"{plan.hours_low:.1f} to {plan.hours_high:.1f} h"
    err.print(
        f"about {show_bytes(plan.needed_bytes)} of memory on {plan.host} for {hours}; not run by firesteel:"
    )
    out.print(shlex.join(plan.command), soft_wrap=True)
    click.echo(typed(f"next: that command, then firesteel plan {shlex.quote(str(plan.out))}"), err=True)


def _upload(job: QuantizationJob) -> None:
    err.print(f"upload {job.out.name} to {job.repository} ...")
    err.print(f"uploaded: {weights.upload(job)}")


def _show_plan(job: QuantizationJob) -> None:
    plan, found, kernel = job.plan, job.forecast, job.kernel
    matrices = Counter(matrix.scheme for matrix in plan.matrices)
    schemes = ", ".join(f"{count:,} matrices in {scheme}" for scheme, count in matrices.items())
    kept = Counter(tensor.why for tensor in plan.kept)
    kept_bytes = sum(tensor.bytes for tensor in plan.kept)
    rows = [
        ("model", f"{plan.source.origin}, {plan.source.bytes:,} bytes ({show_bytes(plan.source.bytes)})"),
        ("format", f"{plan.format.name}: {plan.format.about}"),
        ("result", f"{job.out}, {plan.bytes:,} bytes ({show_bytes(plan.bytes)}) in {len(plan.files)} files"),
        ("weights", f"{schemes}; {show_bytes(kept_bytes)} stay as they are"),
        *((f"  {count:,}", why) for why, count in kept.most_common()),
    ]
    if plan.format.name == "nvfp4-w4a4":
        rows.append(("input scale", "pinned to 1, not measured; nvfp4 keeps activations in 16 bits"))
    if found:
        rows += [
            ("before", _served(found.before, found.host)),
            ("after", _served(found.after, found.host)),
            ("time", f"{show_seconds(found.seconds)} at {found.kernel_bytes_per_s / 1e9:.1f} GB/s a core "
                     f"({kernel.name} kernel, measured now), if the disk is as fast"),
        ]  # fmt: skip
    else:
        rows.append(("plan", f"not possible: {job.why_not}"))
    if kernel.name == "numpy":
        rows.append(("slow", "no C compiler was found, so numpy computes, about 15 times as slowly"))
    out.print(grid(rows))


def _served(served: ServedForecast, host: str) -> str:
    speed = served.decode_tokens_per_s
    fits = "fits" if served.fits else "does not fit"
    return f"{show_bytes(served.weights_bytes)}, {fits} on {host}" + (
        f", {speed_band(speed)}" if speed else ""
    )


def _run(job: QuantizationJob) -> QuantizedCheckpoint:
    lines = SlowLines()
    status = err.status("starting") if err.is_terminal else None

    def show(progress: QuantizationProgress) -> None:
        if status:
            status.update(_progress(progress))
        else:
            lines.print(_progress(progress))

    with status or nullcontext():
        return weights.run_job(job, show)


def _show_audit(audited: AuditReport) -> None:
    for found in audited.findings:
        out.print(f"audit: {found.level}: {found.says}")
    if not audited.findings:
        out.print(f"audit: nothing is wrong; {audited.summary.tensors:,} tensors")


def _progress(progress: QuantizationProgress) -> str:
    share = progress.done_bytes / progress.total_bytes
    left = f", {show_seconds(progress.eta_s)} left" if progress.eta_s is not None else ""
    resumed = f", {show_bytes(progress.resumed_bytes)} by an earlier run" if progress.resumed_bytes else ""
    return (
        f"quantize {share:.0%}: {show_bytes(progress.done_bytes)} of {show_bytes(progress.total_bytes)}"
        f"{resumed}, {progress.bytes_per_s / 1e9:.2f} GB/s{left}"
    )


def _show_result(job: QuantizationJob, result: QuantizationResult) -> None:
    speed = (job.plan.source.bytes - result.resumed_bytes) / result.seconds / 1e9 if result.seconds else 0
    out.print(
        f"\nwrote {job.out}: {show_bytes(result.bytes)} in {show_seconds(result.seconds)}, {speed:.2f} GB/s; "
        f"mean error of {len(result.errors):,} matrices {result.mean_error:.2%}"
    )
    rows = [(error.module, f"{error.relative:.2%}") for error in result.errors[:_WORST]]
    out.print(table(("largest errors", "relative"), rows))
