"""Runs as files to share: CSV, Markdown for an issue, and the JSON and CSV of llama-benchy. Pure.

Nothing names the user or the machine's address. Text that a server chose is made harmless: a cell of a
spreadsheet never begins a formula, and Markdown gets no markup.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from firesteel.bench.measurements import BenchRun, MeasuredFigure, PointFigures, RequestSample, StoredRun
from firesteel.bench.report.tables import figure, found_text, load, number
from firesteel.bench.results.figures import (
    RepetitionSamples,
    by_repetition,
    decode_tokens_per_s,
    ttft_ms,
)
from firesteel.errors import UsageError, printable

FORMATS: Mapping[str, Callable[[Sequence[StoredRun], str], str]] = {
    "csv": lambda runs, version: csv_text(runs),
    "markdown": lambda runs, version: "\n".join(markdown_text(stored, version) for stored in runs),
    "llama-benchy": lambda runs, version: benchy_json(_require_one_run(runs), version),
    "llama-benchy-csv": lambda runs, version: benchy_csv(_require_one_run(runs)),
}
"""The name that `bench export --as` takes -> what makes a file of runs and the version of firesteel."""
_FIGURES: Mapping[str, Callable[[PointFigures], MeasuredFigure | None]] = {
    "decode_tokens_per_s": lambda f: f.decode_tokens_per_s,
    "total_tokens_per_s": lambda f: f.total_tokens_per_s,
    "prefill_tokens_per_s": lambda f: f.prefill_tokens_per_s,
    "ttft_mean_ms": lambda f: f.ttft_mean_ms,
}
"""The figures of a CSV row that have an interval, by the name of their column."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet runs a cell that begins with one of these."""
_MARKUP = re.compile(r"([\\`*_\[\]<>#|~&$])")
_MENTION = re.compile(r"@(?=\w)")
_MARKDOWN_COLUMNS: tuple[tuple[str, Callable[[PointFigures], str]], ...] = (
    ("load", lambda f: load(f.point)),
    ("decode tok/s", lambda f: figure(f.decode_tokens_per_s)),
    ("total tok/s", lambda f: figure(f.total_tokens_per_s)),
    ("TTFT ms", lambda f: figure(f.ttft_mean_ms)),
    ("p99", lambda f: number(f.ttft_ms.get("p99"))),
    ("prefill tok/s", lambda f: figure(f.prefill_tokens_per_s)),
    ("n", lambda f: str(f.repetitions)),
    ("failed", lambda f: str(sum(f.wrong.values()))),
)
"""The columns of the Markdown table; one in which nothing is known is left out."""
_BENCHY_COLUMNS = ("t_s", "t_s_req", "peak_ts", "peak_ts_req", "ttfr", "est_ppt", "e2e_ttft")
"""The columns of llama-benchy's CSV, each as a mean and a standard deviation."""


def _require_one_run(runs: Sequence[StoredRun]) -> StoredRun:
    if len(runs) != 1:
        raise UsageError("a file of llama-benchy holds one run", next="firesteel bench export last")
    return runs[0]


# --- CSV ---


def csv_text(runs: Iterable[StoredRun]) -> str:
    """A line for each load; an unknown figure is an empty cell."""
    rows = [_make_csv_row(stored, figures) for stored in runs for figures in stored.run.figures]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["run"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _escape_formula(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _make_csv_row(stored: StoredRun, figures: PointFigures) -> dict[str, object]:
    """A load as a row: its run, its point and its figures."""
    run, point = stored.run, figures.point
    row: dict[str, object] = {
        "run": run.id, "began": run.began, "origin": stored.origin, "model": run.subject.model,
        "engine": run.subject.engine, "version": run.subject.version, "shape": point.shape,
        "text": point.text_label, "users": point.users if point.rate_per_s is None else None,
        "rate_per_s": point.rate_per_s, "prompt_tokens": point.prompt_tokens,
        "shared_tokens": point.shared_tokens, "answer_tokens": point.answer_tokens, "turns": point.turns,
    }  # fmt: skip
    for name, read in _FIGURES.items():
        found = read(figures)
        row[name] = found.value if found else None
        has_interval = found is not None and found.n > 1
        row[f"{name}_low"] = found.low if found and has_interval else None
        row[f"{name}_high"] = found.high if found and has_interval else None
    for name, values in (("ttft", figures.ttft_ms), ("inter_token", figures.inter_token_ms)):
        row |= {f"{name}_{p}_ms": values.get(p) for p in ("p50", "p90", "p99")}
    return row | {
        "repetitions": figures.repetitions, "requests": figures.samples,
        "failed": sum(figures.wrong.values()), "goodput_per_s": figures.goodput_per_s,
        "joules_per_token": figures.joules_per_token, "accepted_per_step": figures.accepted_per_step,
    }  # fmt: skip


def _escape_formula(value: object) -> object:
    """A text that begins like a formula gets a quote before it, as spreadsheets expect."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


# --- Markdown ---


def markdown_text(stored: StoredRun, version: str) -> str:
    """A table of a run and its notes, to paste into an issue."""
    run = stored.run
    known = [
        (name, cell) for name, cell in _MARKDOWN_COLUMNS if any(cell(f).strip("-0") for f in run.figures)
    ]
    lines = [f"### {_escape_markup(run.subject.model)}", "", _describe_run(run), ""]
    if stored.origin != "measured here":
        lines += ["Not measured here: reported by others or by another tool.", ""]
    lines += [f"| {' | '.join(name for name, _ in known)} |", f"|{'---|' * len(known)}"]
    lines += [f"| {' | '.join(_escape_markup(cell(f)) for _, cell in known)} |" for f in run.figures]
    notes = [found_text(found, run.settings.target) for found in run.found]
    notes += [f"{load(f.point)}: {note}" for f in run.figures for note in f.notes]
    lines += ["", *(f"- {_escape_markup(note)}" for note in [*notes, *run.notes])]
    lines += ["", f"Measured with firesteel {version}: ± is a 95 % interval over n repetitions."]
    return "\n".join(lines) + "\n"


def _describe_run(run: BenchRun) -> str:
    """What was measured and how: engine, host, settings, date."""
    subject, settings = run.subject, run.settings
    temperature = settings.temperature
    facts = [
        " ".join(filter(None, (subject.engine, subject.version))) or "unknown engine",
        str(subject.host.get("title") or ""),
        "" if temperature is None else f"temperature {temperature:g}",
        {True: "thinking on", False: "thinking off", None: ""}[settings.thinking],
        run.began[:16].replace("T", " "),
        f"run {run.id}",
    ]
    return ", ".join(_escape_markup(fact) for fact in facts if fact)


def _escape_markup(text: str) -> str:
    """A text on one line, without links and mentions, and with its markup escaped."""
    text = _MENTION.sub("(at)", printable(" ".join(text.split())))  # an escaped @ still notifies a user
    return _MARKUP.sub(r"\\\1", text)


# --- llama-benchy ---
# Its JSON and CSV as 0.4.0 writes them: https://github.com/eugr/llama-benchy. What Spark Arena takes is that
# CSV together with a recipe of sparkrun, which uploads both (https://github.com/spark-arena/sparkrun,
# src/sparkrun/arena). All seen 2026-11-16.


def benchy_json(stored: StoredRun, version: str) -> str:
    """A run as llama-benchy writes it; `version` says that firesteel measured."""
    run = stored.run
    loads = list(_find_benchy_loads(stored))
    document = {
        "version": f"firesteel {version}",
        "timestamp": run.began[:19].replace("T", " ") + "Z",
        "latency_mode": "none",
        "latency_ms": 0.0,
        "model": run.subject.model,
        "prefix_caching_enabled": any(figures.point.shared_tokens for figures, _ in loads),
        "max_concurrency": max((figures.point.users for figures, _ in loads), default=1),
        "benchmarks": [_make_benchy_entry(figures, values) for figures, values in loads],
    }
    return json.dumps(document, indent=2) + "\n"


def benchy_csv(stored: StoredRun) -> str:
    """Two lines for each load: reading the prompt, and generating."""
    out = io.StringIO()
    columns = [f"{name}_{part}" for name in _BENCHY_COLUMNS for part in ("mean", "std")]
    writer = csv.DictWriter(out, ["model", "test_name", *columns], lineterminator="\n")
    writer.writeheader()
    for figures, values in _find_benchy_loads(stored):
        point = figures.point
        depth = f" @ d{point.shared_tokens}" if point.shared_tokens else ""
        ends = f"{depth} (c{point.users})"
        reading = {"t_s": "pp_throughput", "t_s_req": "pp_req_throughput"} | {
            name: name for name in ("ttfr", "est_ppt", "e2e_ttft")
        }
        generating = {"t_s": "tg_throughput", "t_s_req": "tg_req_throughput"}
        for test, names in (
            (f"pp{point.prompt_tokens}{ends}", reading), (f"tg{point.answer_tokens}{ends}", generating),
        ):  # fmt: skip
            metrics = {column: _summarize_values(values[name]) for column, name in names.items()}
            cells = {f"{c}_{part}": m[part] for c, m in metrics.items() if m for part in ("mean", "std")}
            writer.writerow({"model": _escape_formula(stored.run.subject.model), "test_name": test, **cells})
    return out.getvalue()


def _find_benchy_loads(stored: StoredRun) -> Iterator[tuple[PointFigures, dict[str, list[float]]]]:
    """Loads that llama-benchy knows, with their values: a fixed number of users, one turn, generated text."""
    for index, figures in enumerate(stored.run.figures):
        point = figures.point
        if point.rate_per_s is None and point.turns == 1 and not point.prompts:
            own = [sample for sample in stored.samples if sample.point == index]
            yield figures, _collect_benchy_values(list(by_repetition(point, own).values()), point.users)


def _collect_benchy_values(repetitions: Sequence[RepetitionSamples], users: int) -> dict[str, list[float]]:
    """A load's values by llama-benchy's definitions: a prompt's rate is its tokens over the wait for the
    first. What we do not measure (peaks, prompts of a batch) stays unknown."""

    def each(read: Callable[[RequestSample], float | None]) -> list[float]:
        return [v for r in repetitions for sample in r.counted if (v := read(sample)) is not None]

    def prompt_rate(sample: RequestSample) -> float | None:
        wait_ms = ttft_ms(sample)
        return 1000 * sample.prompt_tokens / wait_ms if sample.prompt_tokens and wait_ms else None

    decode, prefill = each(decode_tokens_per_s), each(prompt_rate)
    totals = [total for r in repetitions if (total := r.total_tokens_per_s()) is not None]
    return {
        "pp_throughput": prefill if users == 1 else [],
        "pp_req_throughput": prefill,
        "tg_throughput": decode if users == 1 else totals,
        "tg_req_throughput": decode,
        "ttfr": each(ttft_ms),
        "est_ppt": each(ttft_ms),
        "e2e_ttft": each(ttft_ms),
    }


def _make_benchy_entry(figures: PointFigures, values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    point = figures.point
    metrics = {name: _summarize_values(found) for name, found in values.items()}
    return {
        "concurrency": point.users,
        "context_size": point.shared_tokens,
        "prompt_size": point.prompt_tokens,
        "response_size": point.answer_tokens,
        "is_context_prefill_phase": False,
        **metrics,
        "peak_throughput": None,
        "peak_req_throughput": None,
        "throughput_over_time": None,
        "requests_throughput_over_time": None,
    }


def _summarize_values(values: Sequence[float]) -> dict[str, Any] | None:
    return {"mean": fmean(values), "std": pstdev(values), "values": list(values)} if values else None
