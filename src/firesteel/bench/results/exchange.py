"""Runs to share: the figures of a run as rows of `data/measured/runs.csv`, with their intervals, as JSON.

    {"firesteel_rows": 1, "rows": [{"model": ..., "depth": 512, "decode_tps": 80.1, "decode_tps_low": ...}]}

Only what a stranger may know goes out: the model, the engine, the sizes, the figures, and what kind of
machine it was. No address, no name of a host, no environment. Whoever takes rows in has them as `reported`;
what was measured on this machine stays `measured here`, and only that is believed by plans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from firesteel.bench.results.serialize import StoredRun, loaded
from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures, RequestSettings, Subject
from firesteel.errors import UsageError
from firesteel.printable import printable

FORM = 1
MAX_ROWS = 10_000
_Rate = Field(default=None, gt=0, lt=1e9)


class ExportRow(BaseModel):
    """The columns of `runs.csv`, and what they lack: intervals, how many, when, on what."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    run: str = Field(max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    model: str = Field(max_length=300)
    checkpoint: str = Field(default="", max_length=300)
    quant: str = Field(default="", max_length=80)
    path: str = Field(default="", max_length=80)
    shape: str = Field(default="", max_length=300)
    layout: str = Field(default="", max_length=300)
    kv_dtype: str = Field(default="", max_length=80)
    engine: str = Field(default="", max_length=80)
    version: str = Field(default="", max_length=120)
    sparks: int = Field(default=1, ge=1, le=64)
    depth: int = Field(ge=0, le=2**24)
    generated: int = Field(ge=1, le=2**24)
    users: int = Field(ge=1, le=2**16)
    speculation: str = Field(default="", max_length=300)
    accepted: str = Field(default="", max_length=80)
    decode_tps: float | None = _Rate
    decode_tps_low: float | None = Field(default=None, ge=0, lt=1e9)
    decode_tps_high: float | None = _Rate
    total_tps: float | None = _Rate
    prefill_tps: float | None = _Rate
    ttft_ms: float | None = _Rate
    n: int = Field(default=1, ge=1, le=10**6)
    text: str = Field(default="prose", pattern="^(code|prose|json|math)$")
    shared: int = Field(default=0, ge=0, le=2**24)
    temperature: float | None = None
    thinking: bool | None = None
    max_num_seqs: int | None = None
    date: str = Field(default="", pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")
    host: str = Field(default="", max_length=200)
    kind: str = Field(default="", max_length=80)
    source: str = Field(default="", max_length=500)
    note: str = Field(default="", max_length=2000)


class _RowsSchema(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    firesteel_rows: int = Field(ge=FORM, le=FORM)
    rows: tuple[ExportRow, ...] = Field(max_length=MAX_ROWS)


def rows_of(kept: StoredRun) -> tuple[ExportRow, ...]:
    """One a point of a fixed number of users; loads of other kinds have no such row."""
    plain = [each for each in kept.run.figures if each.point.rate_per_s is None and each.point.turns == 1]
    return tuple(_row(kept, each) for each in plain)


def _row(kept: StoredRun, figures: PointFigures) -> ExportRow:
    run, point, decode = kept.run, figures.point, figures.decode_tokens_per_s
    launch, settings = run.subject.launch, run.settings
    flags = launch.get("flags")
    said: Mapping[str, Any] = flags if isinstance(flags, Mapping) else {}
    return ExportRow(
        run=run.id,
        model=run.subject.model,
        checkpoint=str(launch.get("model") or ""),
        kv_dtype=str(said.get("kv-cache-dtype") or said.get("cache-type-k") or ""),
        engine=run.subject.engine or "",
        version=run.subject.version or "",
        sparks=int(launch.get("sparks") or 1),
        depth=point.depth,
        generated=point.answer_tokens,
        users=point.users,
        speculation=_speculation(said),
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
        source=PurePath(kept.source).name if kept.origin != "measured here" else "firesteel",
        note="; ".join((*run.notes, *figures.notes))[:2000],
    )


def _speculation(flags: Mapping[str, Any]) -> str:
    """Empty: none."""
    said = flags.get("speculative-config") or flags.get("speculative-algorithm") or flags.get("spec-type")
    said = said or flags.get("model-draft")
    return (json.dumps(said) if isinstance(said, Mapping) else str(said or ""))[:300]


def export_text(rows: Iterable[ExportRow]) -> str:
    return json.dumps({"firesteel_rows": FORM, "rows": [row.model_dump() for row in rows]}, indent=1)


def is_rows(said: object) -> bool:
    return isinstance(said, Mapping) and "firesteel_rows" in said


def import_text(text: str, where: str) -> tuple[StoredRun, ...]:
    """Runs that were measured elsewhere: `reported`, each under an id of its own."""
    said = loaded(text, where)
    try:
        sheet = _RowsSchema.model_validate(said)
    except (ValidationError, RecursionError) as error:
        raise UsageError(
            f"{where}: {_first(error)}", next="firesteel history export, for the form"
        ) from error
    by_run: dict[str, list[ExportRow]] = {}
    for row in sheet.rows:
        by_run.setdefault(row.run, []).append(row)
    return tuple(_reported(name, rows, where) for name, rows in by_run.items())


def _first(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"`{'.'.join(str(part) for part in problem['loc'])[:80] or 'the whole'}`: {problem['msg'].lower()}"


def _reported(name: str, rows: Sequence[ExportRow], where: str) -> StoredRun:
    """Its id says what is in it, so that the same file taken in twice is one run."""
    first = rows[0]
    mark = hashlib.sha256("".join(row.model_dump_json() for row in rows).encode()).hexdigest()[:8]
    launch: dict[str, Any] = {"model": first.checkpoint, "sparks": first.sparks}
    figures = tuple(_figures(row) for row in rows)
    run = BenchRun(
        id=f"{name[:60]}-{mark}",
        began=first.date,
        subject=Subject(
            "", first.model, first.engine or None, first.version or None, launch=launch,
            host={"title": first.host} if first.host else {},
        ),
        settings=RequestSettings(first.temperature, first.thinking, first.max_num_seqs),
        points=tuple(each.point for each in figures),
        figures=figures,
        is_whole=True,
        notes=(first.note,) if first.note else (),
    )  # fmt: skip
    return StoredRun(
        run, (), "reported", first.source if first.source not in ("", "firesteel") else printable(where)
    )


def _figures(row: ExportRow) -> PointFigures:
    point = Point(
        "single" if row.users == 1 else "sweep", row.text, row.users,  # type: ignore[arg-type]  # by its pattern
        max(1, row.depth - row.shared), row.generated, row.shared,
    )  # fmt: skip
    decode = None
    if row.decode_tps is not None:
        low, high = row.decode_tps_low, row.decode_tps_high
        is_told = low is not None and high is not None and low <= row.decode_tps <= high
        decode = MeasuredFigure(
            row.decode_tps,
            low if is_told and low is not None else 0.0,
            high if is_told and high is not None else 2 * row.decode_tps,
            row.n if is_told else 1,
        )
    return PointFigures(
        point,
        row.n,
        decode_tokens_per_s=decode,
        total_tokens_per_s=_alone(row.total_tps),
        prefill_tokens_per_s=_alone(row.prefill_tps),
        ttft_ms={"p50": row.ttft_ms} if row.ttft_ms is not None else {},
    )


def _alone(value: float | None) -> MeasuredFigure | None:
    """A figure whose interval did not travel."""
    return None if value is None else MeasuredFigure(value, 0.0, 2 * value, 1)
