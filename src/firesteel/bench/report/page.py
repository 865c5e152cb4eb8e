"""The report of a run: the verdict first, then what was measured, then every figure and its charts.

    report_page(stored, published_rows(stored.run), earlier)

It is one file that can be sent, kept and printed. Pure: the same run gives the same page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from firesteel.bench.compare.runs import Comparison, compare
from firesteel.bench.compare.verdict import verdict
from firesteel.bench.report import formatting, line_charts, row_charts
from firesteel.bench.report.data import ChartSection, ReportData, is_number
from firesteel.bench.report.formatting import number
from firesteel.bench.report.html import Markup, bullets, document, element, table
from firesteel.bench.report.sanitize import sanitize
from firesteel.bench.report.timeline import host_over_time
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, PointFigures
from firesteel.planner.speed import published as published_runs
from firesteel.planner.speed.published import PublishedRun
from firesteel.render.svg import escape_text
from firesteel.units import show_bytes
from firesteel.values import replace

_CHARTS = (
    line_charts.throughput, line_charts.time_to_first_token, line_charts.decode_by_depth,
    row_charts.plan_against_measured, row_charts.bandwidth_share, row_charts.chunk_gaps,
)  # fmt: skip
_MAX_FLAGS = 80
_UNKNOWN = "unknown"
_KINDS = {"fact": "Measured", "good": "Good", "warning": "Warning", "unknown": "Unknown"}


def published_rows(run: BenchRun) -> tuple[PublishedRun, ...]:
    """What others published about the same checkpoint in the same engine."""
    launch = run.subject.launch
    sparks = launch.get("sparks")
    model, engine = str(launch.get("model") or run.subject.model), run.subject.engine or ""
    return published_runs.runs_of(model, engine, sparks if isinstance(sparks, int) else 1)


def report_page(
    stored: StoredRun, published: Sequence[PublishedRun] = (), earlier: BenchRun | None = None
) -> str:
    """`earlier`: a run to compare it with."""
    stored = replace(stored, run=sanitize(stored.run))
    run, data = stored.run, ReportData.of(stored, published)
    charts = [
        *(chart(data, f"chart{number}") for number, chart in enumerate(_CHARTS, 1)),
        *host_over_time(run.beside),
        row_charts.failures(data, "failures"),
    ]
    body = [
        *_summary(stored),
        *_subject(run),
        *_figures(run.figures),
        *(part for chart in charts for part in _chart(chart)),
        *_sources(published),
    ]
    if earlier:
        body += _comparison(compare(StoredRun(sanitize(earlier)), replace(stored, samples=())))
    return document(f"{run.subject.model}: bench {run.id}", [*body, *_notes(run)])


def _summary(stored: StoredRun) -> Iterator[Markup]:
    run = stored.run
    yield element("h1", f"How fast is {run.subject.model}?")
    title = run.subject.host.get("title")
    host = f" on {title}" if title else ""
    yield element("p", f"{_engine(run) or 'unknown engine'}{host}, {_time(run.began)}, run {run.id}", "quiet")
    if stored.origin != "measured here":
        yield element("p", f"Not measured here: {stored.origin}, from {stored.source}.", "alert")
    if any("made up" in note for note in run.notes):
        yield element("p", "These figures are made up: nothing was measured.", "alert")
    yield element("h2", "Summary")
    lines = (f"<li><b>{_KINDS[line.kind]}</b> {escape_text(line.text, 1000)}</li>" for line in verdict(run))
    yield Markup("\n".join(['<ul class="verdict">', *lines, "</ul>"]))


def _time(began: str) -> str:
    return f"{began[:16].replace('T', ' ')} UTC" if began.endswith(("+00:00", "Z")) else began


def _engine(run: BenchRun) -> str:
    return " ".join(filter(None, (run.subject.engine, run.subject.version)))


def _subject(run: BenchRun) -> Iterator[Markup]:
    subject, settings = run.subject, run.settings
    rows = {
        "model": subject.model,
        "engine": _engine(run) or _UNKNOWN,
        "image": str(subject.launch.get("image") or "none or unknown"),
        "image digest": subject.image_digest or _UNKNOWN,
        "launch": subject.launch_key or _UNKNOWN,
        "host": _host(subject.host) or _UNKNOWN,
        "address": subject.url,
        "began": _time(run.began),
        "thinking": {True: "on", False: "off", None: "default of the server"}[settings.thinking],
        "temperature": _UNKNOWN if settings.temperature is None else f"{settings.temperature:g}",
        "max_num_seqs": _UNKNOWN if settings.max_num_seqs is None else f"{settings.max_num_seqs:,}",
        "answers": "of the requested length" if settings.ignores_eos else "end where the model ends them",
        "seed": str(settings.seed),
        "target": ", ".join(f"{name} {value:g}" for name, value in settings.target.items()) or "none",
        "client": formatting.client_cost(run.client),
    }
    yield element("h2", "What was measured")
    yield table((), list(rows.items()))
    if launch := list(_launch(subject.launch)):
        yield element("h3", "How it was started")
        yield table(("setting", "value"), launch, _MAX_FLAGS)


def _host(host: Mapping[str, Any]) -> str:
    memory, bandwidth, gpus = map(host.get, ("memory_total_bytes", "bandwidth_bytes_per_s", "gpus"))
    facts = [
        str(host.get("title") or host.get("name") or ""),
        f"{host['cores']} cores" if isinstance(host.get("cores"), int) else "",
        show_bytes(memory) if isinstance(memory, int) else "",
        f"{bandwidth / 1e9:.0f} GB/s" if is_number(bandwidth) else "",
        *(map(str, gpus[:16]) if isinstance(gpus, list | tuple) else ()),
    ]
    return ", ".join(filter(None, facts))


def _launch(launch: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind, prefix in (("flags", "--"), ("env", "")):
        settings = launch.get(kind)
        for name, value in settings.items() if isinstance(settings, Mapping) else ():
            is_switch = value is None or isinstance(value, bool)
            yield f"{prefix}{name}", {True: "on", False: "off", None: ""}[value] if is_switch else str(value)
    start = launch.get("start")
    if isinstance(start, list | tuple):
        yield "command", " ".join(map(str, start[:200]))


_Column = tuple[str, Callable[[PointFigures], str]]
_COLUMNS: tuple[_Column, ...] = (
    ("load", lambda f: formatting.load(f.point)),
    ("decode tok/s", lambda f: formatting.figure(f.decode_tokens_per_s)),
    ("total tok/s", lambda f: formatting.figure(f.total_tokens_per_s)),
    ("TTFT ms", lambda f: formatting.figure(f.ttft_mean_ms)),
    ("p50 / p90 / p99", lambda f: " / ".join(number(f.ttft_ms.get(p)) for p in ("p50", "p90", "p99"))),
    ("prefill tok/s", lambda f: formatting.figure(f.prefill_tokens_per_s)),
    ("repetitions", lambda f: number(f.repetitions, ".0f")),
    ("failed requests", lambda f: f"{sum(f.wrong.values()):,}"),
)
_MORE_COLUMNS: tuple[_Column, ...] = (
    _COLUMNS[0],
    ("share of the bandwidth limit", lambda f: number(f.bandwidth_share, ".2f")),
    ("tokens per step", lambda f: number(f.accepted_per_step, ".2f")),
    ("J/token of the GPU", lambda f: number(f.joules_per_token, ".3f")),
    ("requests/s within the target", lambda f: number(f.goodput_per_s, ".2f")),
    ("cached share of prompts", lambda f: number(f.cached_share if f.point.shared_tokens else None, ".0%")),
    ("KV cache usage", lambda f: number(f.kv_usage, ".0%")),
    ("preemptions", lambda f: number(f.preemptions, ",.0f")),
    ("TTFT ms, cold", lambda f: number(f.cold.get("ttft_ms"))),
    ("decode tok/s, cold", lambda f: number(f.cold.get("decode_tokens_per_s"))),
    ("decode tok/s by the engine's own clock", lambda f: number(f.server.get("decode_tokens_per_s"))),
)


def _figures(every: Sequence[PointFigures]) -> Iterator[Markup]:
    yield element("h2", "All figures")
    if not every:
        yield element("p", "There are none.")
        return
    for columns in (_COLUMNS, _MORE_COLUMNS):
        known = [(name, cell) for name, cell in columns if any(cell(f).strip("- /") for f in every)]
        if len(known) > 1:
            yield table([name for name, _ in known], [[cell(f) for _, cell in known] for f in every])
    yield element(
        "p",
        "A load is the kind of text, the concurrent users, and the tokens of prompt + answer. Intervals are "
        "95 % intervals over repetitions; (once) is a single repetition without an interval. A dash is "
        "unknown; a column in which nothing is known is left out.",
        "quiet",
    )


def _chart(chart: ChartSection) -> Iterator[Markup]:
    is_subsection = chart.svg and not chart.head
    yield element("h3" if is_subsection else "h2", chart.title)
    if chart.svg:
        yield Markup(f"<figure>{chart.svg}</figure>")
    if chart.note:
        yield element("p", chart.note, "quiet")
    if chart.missing:
        yield element("p", f"Left out: {chart.missing}.")
    if chart.rows:
        yield table(chart.head, chart.rows)


def _sources(published: Sequence[PublishedRun]) -> Iterator[Markup]:
    sources = published_runs.run_sources()
    rows = [
        f'<li><a href="{(url := escape_text(sources[name].url))}" rel="noreferrer">{url}</a>, '
        f"seen {sources[name].seen}</li>"
        for name in dict.fromkeys(row.source for row in published)
        if name in sources
    ]
    if rows:
        yield element("h3", "Sources of reported figures")
        yield Markup("\n".join(["<ul>", *rows, "</ul>"]))


def _comparison(comparison: Comparison) -> Iterator[Markup]:
    yield element("h2", f"Compared with run {comparison.first}")
    if comparison.why_not:
        reasons = formatting.join_words(f"{name} ({values})" for name, values in comparison.why_not)
        yield element("p", f"They cannot be compared, since they differ in {reasons}.")
        return
    if comparison.apart:
        yield bullets([f"differs: {difference}" for difference in comparison.apart])
    if not comparison.rows:
        yield element("p", "No load was measured in both.")
        return
    rows = [
        (formatting.load(row.point), f"{row.measure}, {row.unit}",
         formatting.figure(row.first), formatting.figure(row.second), f"{change.ratio:.2f}",
         f"too few to say ({change.n})" if change.verdict == "too few" else change.verdict)
        for row in comparison.rows
        for change in [row.difference]
    ]  # fmt: skip
    yield table(("load", "figure", f"then ({comparison.first})", "now", "ratio", "verdict"), rows)
    if comparison.notes:
        yield bullets(comparison.notes)


def _notes(run: BenchRun) -> Iterator[Markup]:
    yield element("h2", "Notes")
    of_loads = (f"{formatting.load(f.point)}: {note}" for f in run.figures for note in f.notes)
    notes = [*run.notes, *of_loads]
    yield bullets(notes) if notes else element("p", "There are none.")
    if why := run.subject.plan.get("why"):
        yield element("p", f"Planned from: {why}", "quiet")
