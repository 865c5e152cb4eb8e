"""Runs in files: ours as rows to share, and those of other tools.

    {"firesteel_rows": 1, "rows": [{"model": ..., "depth": 512, "decode_tps": 80.1, "decode_tps_low": ...}]}

Rows have the columns of `data/measured/runs.csv`. An export contains only what a stranger may know: the
model, the engine, the sizes, the figures, and the kind of machine; no address, host name or environment.
Imported rows are `reported`; runs of this machine stay `measured here`, and plans use only those.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from firesteel.bench.measurements import (
    BenchRun,
    MeasuredFigure,
    Point,
    PointFigures,
    RequestSettings,
    StoredRun,
    Subject,
    invalid,
    load_json,
)
from firesteel.bench.results import other_tools
from firesteel.bench.results.history import History
from firesteel.edge import files
from firesteel.errors import UsageError, printable
from firesteel.values import FileValue, InvalidValue, from_json, plain

FORM = 1
MAX_ROWS = 10_000
_Rate = Annotated[float, Meta(gt=0, lt=1e9)]


class ExportRow(FileValue, kw_only=True):
    """The columns of `runs.csv`, which name rates `*_tps`, plus intervals, count, date and machine."""

    run: Annotated[str, Meta(max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    model: Annotated[str, Meta(max_length=300)]
    checkpoint: Annotated[str, Meta(max_length=300)] = ""
    quant: Annotated[str, Meta(max_length=80)] = ""
    path: Annotated[str, Meta(max_length=80)] = ""
    shape: Annotated[str, Meta(max_length=300)] = ""
    layout: Annotated[str, Meta(max_length=300)] = ""
    kv_dtype: Annotated[str, Meta(max_length=80)] = ""
    engine: Annotated[str, Meta(max_length=80)] = ""
    version: Annotated[str, Meta(max_length=120)] = ""
    sparks: Annotated[int, Meta(ge=1, le=64)] = 1
    depth: Annotated[int, Meta(ge=0, le=2**24)]
    generated: Annotated[int, Meta(ge=1, le=2**24)]
    users: Annotated[int, Meta(ge=1, le=2**16)]
    speculation: Annotated[str, Meta(max_length=300)] = ""
    accepted: Annotated[str, Meta(max_length=80)] = ""
    decode_tps: _Rate | None = None
    decode_tps_low: Annotated[float, Meta(ge=0, lt=1e9)] | None = None
    decode_tps_high: _Rate | None = None
    total_tps: _Rate | None = None
    prefill_tps: _Rate | None = None
    ttft_ms: _Rate | None = None
    n: Annotated[int, Meta(ge=1, le=10**6)] = 1
    text: Annotated[str, Meta(pattern="^(code|prose|json|math)$")] = "prose"
    shared: Annotated[int, Meta(ge=0, le=2**24)] = 0
    temperature: Annotated[float, Meta(ge=0, le=1000)] | None = None
    thinking: bool | None = None
    max_num_seqs: int | None = None
    date: Annotated[str, Meta(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")] = ""
    host: Annotated[str, Meta(max_length=200)] = ""
    kind: Annotated[str, Meta(max_length=80)] = ""
    source: Annotated[str, Meta(max_length=500)] = ""
    note: Annotated[str, Meta(max_length=2000)] = ""


class _RowsSchema(FileValue, kw_only=True):
    firesteel_rows: Annotated[int, Meta(ge=FORM, le=FORM)]
    rows: Annotated[tuple[ExportRow, ...], Meta(max_length=MAX_ROWS)]


def export_rows(stored: StoredRun) -> tuple[ExportRow, ...]:
    """One row per point with a fixed number of users and a known kind of text; others have no such row."""
    return tuple(
        _row(stored, figures)
        for figures in stored.run.figures
        if (point := figures.point).rate_per_s is None and point.turns == 1 and not point.prompts
    )


def _row(stored: StoredRun, figures: PointFigures) -> ExportRow:
    run, point, decode = stored.run, figures.point, figures.decode_tokens_per_s
    launch, settings = run.subject.launch, run.settings
    flags: Mapping[str, Any] = launch["flags"] if isinstance(launch.get("flags"), Mapping) else {}
    return ExportRow(
        run=run.id,
        model=run.subject.model,
        checkpoint=str(launch.get("model") or ""),
        kv_dtype=str(flags.get("kv-cache-dtype") or flags.get("cache-type-k") or ""),
        engine=run.subject.engine or "",
        version=run.subject.version or "",
        sparks=int(launch.get("sparks") or 1),
        depth=point.depth,
        generated=point.answer_tokens,
        users=point.users,
        speculation=_speculation(flags),
        accepted="" if figures.accepted_per_step is None else f"{figures.accepted_per_step:.2f} a step",
        decode_tps=decode.value if decode else None,
        decode_tps_low=decode.low if decode else None,
        decode_tps_high=decode.high if decode else None,
        total_tps=figures.total_tokens_per_s.value if figures.total_tokens_per_s else None,
        prefill_tps=figures.prefill_tokens_per_s.value if figures.prefill_tokens_per_s else None,
        ttft_ms=figures.ttft_ms.get("p50") or figures.ttft_ms.get("mean"),
        n=decode.n if decode else max(1, figures.repetitions),
        text=point.text,
        shared=point.shared_tokens,
        temperature=settings.temperature,
        thinking=settings.thinking,
        max_num_seqs=settings.max_num_seqs,
        date=run.began[:10],
        host=str(run.subject.host.get("title") or "")[:200],
        source="firesteel" if stored.is_own else PurePath(stored.source).name,
        note="; ".join((*run.notes, *figures.notes))[:2000],
    )


def _speculation(flags: Mapping[str, Any]) -> str:
    """Empty: no speculation."""
    names = ("speculative-config", "speculative-algorithm", "spec-type", "model-draft")
    value = next((flags[name] for name in names if flags.get(name)), "")
    return (json.dumps(value) if isinstance(value, Mapping) else str(value))[:300]


def export_text(rows: Iterable[ExportRow]) -> str:
    return json.dumps({"firesteel_rows": FORM, "rows": [plain(row) for row in rows]}, indent=1)


def import_text(text: str, where: str) -> tuple[StoredRun, ...]:
    """Runs that were measured on another machine: `reported`, each with its own id."""
    document = load_json(text, where)
    try:
        rows = from_json(_RowsSchema, document).rows
    except (InvalidValue, RecursionError) as error:
        raise invalid(error, where) from error
    by_run: dict[str, list[ExportRow]] = {}
    for row in rows:
        by_run.setdefault(row.run, []).append(row)
    return tuple(_reported(name, rows, where) for name, rows in by_run.items())


def _reported(name: str, rows: Sequence[ExportRow], where: str) -> StoredRun:
    """Its id depends on its content, so that a file that is imported twice is one run."""
    first = rows[0]
    digest = hashlib.sha256(b"".join(msgspec.json.encode(row) for row in rows)).hexdigest()[:8]
    launch: dict[str, Any] = {"model": first.checkpoint, "sparks": first.sparks}
    figures = tuple(_figures(row) for row in rows)
    run = BenchRun(
        id=f"{name[:60]}-{digest}",
        began=first.date,
        subject=Subject(
            "", first.model, first.engine or None, first.version or None, launch=launch,
            host={"title": first.host} if first.host else {},
        ),
        settings=RequestSettings(first.temperature, first.thinking, first.max_num_seqs),
        points=tuple(found.point for found in figures),
        figures=figures,
        is_whole=True,
        notes=(first.note,) if first.note else (),
    )  # fmt: skip
    source = first.source if first.source not in ("", "firesteel") else printable(where)
    return StoredRun(run, (), "reported", source)


def _figures(row: ExportRow) -> PointFigures:
    point = Point(
        "single" if row.users == 1 else "sweep", row.text, row.users,  # type: ignore[arg-type]  # by its pattern
        max(1, row.depth - row.shared), row.generated, row.shared,
    )  # fmt: skip
    decode = _without_interval(row.decode_tps)
    low, high = row.decode_tps_low, row.decode_tps_high
    if decode and low is not None and high is not None and low <= decode.value <= high:
        decode = MeasuredFigure(decode.value, low, high, row.n)
    return PointFigures(
        point,
        row.n,
        decode_tokens_per_s=decode,
        total_tokens_per_s=_without_interval(row.total_tps),
        prefill_tokens_per_s=_without_interval(row.prefill_tps),
        ttft_ms={"p50": row.ttft_ms} if row.ttft_ms is not None else {},
    )


def _without_interval(value: float | None) -> MeasuredFigure | None:
    return None if value is None else MeasuredFigure(value, 0.0, 2 * value, 1)


# --- runs in any file ---

ALL_RUNS = 10_000


def read_file(path: Path) -> str:
    """The whole file, or an error: half of a result is useless."""
    text = files.read_text(path)
    if len(text.encode(errors="replace")) >= files.MAX_BYTES:
        most = files.MAX_BYTES // 2**20
        raise UsageError(f"{path} is longer than {most} MiB", next="export it without single requests")
    return text


def find_run(history: History, name: str) -> StoredRun:
    """A file has a `.` or a `/` in its name and exists; everything else is a run of the history."""
    path = Path(name)
    if ("/" in name or "." in name) and len(name) < 4096 and "\0" not in name and path.exists():
        return other_tools.read_results(read_file(path), name)
    return history.run(name)


def import_runs(history: History, path: Path) -> dict[str, StoredRun | None]:
    """Adds the runs of a file as `reported`, by id; None for a run that was already there."""
    known = {run.id for run in history.runs(ALL_RUNS)}
    imported: dict[str, StoredRun | None] = {}
    text = read_file(path)
    is_rows = text.lstrip()[:1] == "{" and '"firesteel_rows"' in text[:1000]
    for stored in import_text(text, str(path)) if is_rows else [other_tools.read_results(text, str(path))]:
        run = stored.run
        imported[run.id] = None if run.id in known else stored
        if run.id not in known:
            history.begin(run, "reported", stored.source)
            history.add(run.id, *stored.samples)
    return imported
