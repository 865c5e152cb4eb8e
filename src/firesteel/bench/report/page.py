"""The report of a run, and the history, as one HTML file that can be sent, kept and printed.

    report_page(stored, published_rows(stored.run), earlier)

The verdict comes first, then what was measured, then every figure and its charts. The history has the decode
speed of each load over time. A page has no script, loads nothing, is well-formed XML, and suits light, dark
and paper. All text is escaped here; only `Markup` is taken as markup. A run may come from an untrusted file,
so `sanitize` drops impossible numbers. Pure: the same run gives the same page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NewType

from msgspec.structs import fields

from firesteel.bench.compare.runs import Comparison, compare
from firesteel.bench.measurements import BenchRun, MeasuredFigure, Point, PointFigures, StoredRun
from firesteel.bench.report import charts, tables
from firesteel.bench.report.charts import ChartSection, ReportData, host_over_time, is_number
from firesteel.bench.report.tables import number
from firesteel.bench.report.verdict import verdict
from firesteel.planner.speed import published as published_runs
from firesteel.planner.speed.published import PublishedRun
from firesteel.render.charts import Axis, DataPoint, LinePlot, Series
from firesteel.render.svg import escape_text
from firesteel.units import show_bytes
from firesteel.values import replace

Markup = NewType("Markup", str)
"""Text that is markup already, and is not escaped."""
_Column = tuple[str, Callable[[PointFigures], str]]
"""The heading of a column, and the text of its cell."""
_Dated = tuple[datetime, BenchRun]
"""A run and when it began."""
_MAX_CELL = 400
"""Characters of one cell; the rest of a longer text is cut."""
_CSS = """
:root { color-scheme: light dark; --ink: #1b1f23; --paper: #fff; --line: #c9ced4; --quiet: #57606a;
  --card: #f5f7f9; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --paper: #14181d; --line: #3c444d; --quiet: #a0a9b3; --card: #1d232a; }
}
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); }
.verdict { list-style: none; padding: .8rem 1rem; margin: 1rem 0; background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; }
.verdict li { margin: .35rem 0; display: grid; grid-template-columns: 7rem 1fr; }
figure { margin: .5rem 0; } svg { width: 100%; height: auto; max-width: 52rem; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem .25rem 0; text-align: left;
  vertical-align: top; white-space: nowrap; }
td.long, th.long { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
thead th { white-space: normal; }
th { font-weight: 600; }
.alert { border: 2px dashed currentColor; padding: .4rem .8rem; font-weight: 600; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; } table { font-size: 7pt; }
  figure, tr, .verdict { break-inside: avoid; } h2, h3 { break-after: avoid; } .wide { overflow: visible; }
}
"""


# --- the report of a run ---

_CHARTS = (
    charts.throughput, charts.time_to_first_token, charts.decode_by_depth,
    charts.plan_against_measured, charts.bandwidth_share, charts.chunk_gaps,
)  # fmt: skip
_MAX_FLAGS = 80
"""Rows of the table of flags and variables."""
_UNKNOWN = "unknown"
_KINDS = {"fact": "Measured", "good": "Good", "warning": "Warning", "unknown": "Unknown"}
"""The kind of a line of the summary -> the word before it."""
_COLUMNS: tuple[_Column, ...] = (
    ("load", lambda f: tables.load(f.point)),
    ("decode tok/s", lambda f: tables.figure(f.decode_tokens_per_s)),
    ("total tok/s", lambda f: tables.figure(f.total_tokens_per_s)),
    ("TTFT ms", lambda f: tables.figure(f.ttft_mean_ms)),
    ("p50 / p90 / p99", lambda f: " / ".join(number(f.ttft_ms.get(p)) for p in ("p50", "p90", "p99"))),
    ("prefill tok/s", lambda f: tables.figure(f.prefill_tokens_per_s)),
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
"""The columns of a second table, so that both are narrow enough to read."""


def report_page(
    stored: StoredRun, published: Sequence[PublishedRun] = (), earlier: BenchRun | None = None
) -> str:
    """The page of a run. `published` are rows of others to draw beside it, `earlier` a run to compare it
    with."""
    stored = replace(stored, run=sanitize(stored.run))
    run, data = stored.run, ReportData.of(stored, published)
    drawings = [
        *(chart(data, f"chart{number}") for number, chart in enumerate(_CHARTS, 1)),
        *host_over_time(run.beside),
        charts.failures(data, "failures"),
    ]
    body = [
        *_write_summary(stored),
        *_write_subject(run),
        *_write_figures(run.figures),
        *(part for chart in drawings for part in _write_chart(chart)),
        *_write_sources(published),
    ]
    if earlier:
        body += _write_comparison(compare(StoredRun(sanitize(earlier)), replace(stored, samples=())))
    return document(f"{run.subject.model}: bench {run.id}", [*body, *_write_notes(run)])


def published_rows(run: BenchRun) -> tuple[PublishedRun, ...]:
    """What others published about the same checkpoint in the same engine."""
    launch = run.subject.launch
    sparks = launch.get("sparks")
    model, engine = str(launch.get("model") or run.subject.model), run.subject.engine or ""
    return published_runs.runs_of(model, engine, sparks if isinstance(sparks, int) else 1)


def _write_summary(stored: StoredRun) -> Iterator[Markup]:
    run = stored.run
    yield element("h1", f"How fast is {run.subject.model}?")
    title = run.subject.host.get("title")
    host = f" on {title}" if title else ""
    yield element(
        "p",
        f"{_name_engine(run) or 'unknown engine'}{host}, {_format_time(run.began)}, run {run.id}",
        "quiet",
    )
    if stored.origin != "measured here":
        yield element("p", f"Not measured here: {stored.origin}, from {stored.source}.", "alert")
    if any("made up" in note for note in run.notes):
        yield element("p", "These figures are made up: nothing was measured.", "alert")
    yield element("h2", "Summary")
    lines = (f"<li><b>{_KINDS[line.kind]}</b> {escape_text(line.text, 1000)}</li>" for line in verdict(run))
    yield Markup("\n".join(['<ul class="verdict">', *lines, "</ul>"]))


def _write_subject(run: BenchRun) -> Iterator[Markup]:
    subject, settings = run.subject, run.settings
    rows = {
        "model": subject.model,
        "engine": _name_engine(run) or _UNKNOWN,
        "image": str(subject.launch.get("image") or "none or unknown"),
        "image digest": subject.image_digest or _UNKNOWN,
        "launch": subject.launch_key or _UNKNOWN,
        "host": _describe_host(subject.host) or _UNKNOWN,
        "address": subject.url,
        "began": _format_time(run.began),
        "thinking": {True: "on", False: "off", None: "default of the server"}[settings.thinking],
        "temperature": _UNKNOWN if settings.temperature is None else f"{settings.temperature:g}",
        "max_num_seqs": _UNKNOWN if settings.max_num_seqs is None else f"{settings.max_num_seqs:,}",
        "answers": "of the requested length" if settings.ignores_eos else "end where the model ends them",
        "seed": str(settings.seed),
        "target": ", ".join(f"{name} {value:g}" for name, value in settings.target.items()) or "none",
        "client": tables.client_cost(run.client),
    }
    yield element("h2", "What was measured")
    yield table((), list(rows.items()))
    if launch := list(_list_settings(subject.launch)):
        yield element("h3", "How it was started")
        yield table(("setting", "value"), launch, _MAX_FLAGS)


def _describe_host(host: Mapping[str, Any]) -> str:
    memory, bandwidth, gpus = map(host.get, ("memory_total_bytes", "bandwidth_bytes_per_s", "gpus"))
    facts = [
        str(host.get("title") or host.get("name") or ""),
        f"{host['cores']} cores" if isinstance(host.get("cores"), int) else "",
        show_bytes(memory) if isinstance(memory, int) else "",
        f"{bandwidth / 1e9:.0f} GB/s" if is_number(bandwidth) else "",
        *(map(str, gpus[:16]) if isinstance(gpus, list | tuple) else ()),
    ]
    return ", ".join(filter(None, facts))


def _list_settings(launch: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Flags, variables and the command, as rows of a table."""
    for kind, prefix in (("flags", "--"), ("env", "")):
        settings = launch.get(kind)
        for name, value in settings.items() if isinstance(settings, Mapping) else ():
            is_switch = value is None or isinstance(value, bool)
            yield f"{prefix}{name}", {True: "on", False: "off", None: ""}[value] if is_switch else str(value)
    start = launch.get("start")
    if isinstance(start, list | tuple):
        yield "command", " ".join(map(str, start[:200]))


def _write_figures(every: Sequence[PointFigures]) -> Iterator[Markup]:
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


def _write_chart(chart: ChartSection) -> Iterator[Markup]:
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


def _write_sources(published: Sequence[PublishedRun]) -> Iterator[Markup]:
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


def _write_comparison(comparison: Comparison) -> Iterator[Markup]:
    yield element("h2", f"Compared with run {comparison.first}")
    if comparison.why_not:
        reasons = tables.join_words(f"{name} ({values})" for name, values in comparison.why_not)
        yield element("p", f"They cannot be compared, since they differ in {reasons}.")
        return
    if comparison.apart:
        yield bullets([f"differs: {difference}" for difference in comparison.apart])
    if not comparison.rows:
        yield element("p", "No load was measured in both.")
        return
    rows = [
        (tables.load(row.point), f"{row.measure}, {row.unit}",
         tables.figure(row.first), tables.figure(row.second), f"{change.ratio:.2f}",
         f"too few to say ({change.n})" if change.verdict == "too few" else change.verdict)
        for row in comparison.rows
        for change in [row.difference]
    ]  # fmt: skip
    yield table(("load", "figure", f"then ({comparison.first})", "now", "ratio", "verdict"), rows)
    if comparison.notes:
        yield bullets(comparison.notes)


def _write_notes(run: BenchRun) -> Iterator[Markup]:
    yield element("h2", "Notes")
    of_loads = (f"{tables.load(f.point)}: {note}" for f in run.figures for note in f.notes)
    notes = [*run.notes, *of_loads]
    yield bullets(notes) if notes else element("p", "There are none.")
    if why := run.subject.plan.get("why"):
        yield element("p", f"Planned from: {why}", "quiet")


def _format_time(began: str) -> str:
    return f"{began[:16].replace('T', ' ')} UTC" if began.endswith(("+00:00", "Z")) else began


def _name_engine(run: BenchRun) -> str:
    return " ".join(filter(None, (run.subject.engine, run.subject.version)))


# --- the history ---
# A step in a line is a change of engine, image, settings or host, or a fault: every point has the run to look
# at. Runs that were reported by others or by another tool are hollow markers, and are joined to nothing.

_DAY_S = 86_400


def history_page(runs: Sequence[StoredRun]) -> str:
    """The page of many runs: the decode speed of each load over time, model by model."""
    by_model: dict[str, list[StoredRun]] = defaultdict(list)
    for stored in runs:
        by_model[stored.run.subject.model].append(replace(stored, run=sanitize(stored.run)))
    body = [element("h1", "Speed over time")]
    for index, (model, own) in enumerate(sorted(by_model.items()), 1):
        body += [element("h2", model), *_write_model(own, f"history{index}")]
    return document("Speed over time", body)


def _write_model(runs: Sequence[StoredRun], name: str) -> Iterator[Markup]:
    dated = [(began, stored) for stored in runs if (began := _parse_time(stored.run.began))]
    measured = sorted(((began, s.run) for began, s in dated if s.is_own), key=lambda pair: pair[0])
    reported = sorted(((began, s.run) for began, s in dated if not s.is_own), key=lambda pair: pair[0])
    if not any(figures.decode_tokens_per_s for _, run in (*measured, *reported) for figures in run.figures):
        yield element("p", "No run of it has a date and a decode speed.")
        return
    first = min(began for began, _ in (*measured, *reported))
    series = [*_make_series(measured, first), *_make_series(reported, first, "reported: ", "hollow")]
    # Loads that were measured most often come first: only six are drawn.
    series.sort(key=lambda each: (each.kind == "hollow", -len(each.points)))
    days = Axis(f"days since {first:%Y-%m-%d %H:%M} UTC")
    plot = LinePlot(f"Decode speed over time, {name}", days, Axis("tok/s of each user"), tuple(series))
    yield Markup(f"<figure>{plot.svg(name)}</figure>")
    if plot.undrawn:
        yield element("p", f"{plot.undrawn} more loads are only in the table.", "quiet")
    yield table(*plot.table())


def _make_series(
    runs: Sequence[_Dated], first: datetime, prefix: str = "", kind: Literal["marker", "hollow"] = "marker"
) -> Iterator[Series]:
    """A line for each load: its decode speed by days since `first`."""
    loads: dict[str, list[DataPoint]] = defaultdict(list)
    for began, run in runs:
        days = (began - first).total_seconds() / _DAY_S
        for figures in run.figures:
            if (speed := figures.decode_tokens_per_s) and figures.point.rate_per_s is None:
                load = ", ".join(filter(None, (run.subject.engine, tables.load(figures.point))))
                interval = (speed.low, speed.high) if speed.n > 1 else None
                source = ", ".join(filter(None, (run.subject.version, f"run {run.id}")))
                loads[load].append(DataPoint(days, speed.value, interval, source=source))
    for load, points in loads.items():
        yield Series(f"{prefix}{load}", tuple(points), kind)


def _parse_time(began: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(began)
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


# --- impossible numbers ---

_MAX_NUMBER = 1e12
"""A larger number in a file is no figure of a benchmark."""
_MAX_RELATIVE_WIDTH = 50
"""An interval that reaches beyond this multiple of its figure says nothing."""


def sanitize(run: BenchRun) -> BenchRun:
    """A run without loads of impossible size, non-finite values and rates of zero; a note says what was
    dropped."""
    figures = tuple(_sanitize_figures(load) for load in run.figures if _is_possible(load.point))
    dropped = len(run.figures) - len(figures)
    notes = (f"{dropped} loads of impossible size are left out",) if dropped else ()
    return replace(run, figures=figures, client=_keep_possible(run.client), notes=(*run.notes, *notes))


def _is_possible(point: Point) -> bool:
    counts = (point.users, point.prompt_tokens, point.answer_tokens, point.turns, point.shared_tokens + 1)
    rate = 1.0 if point.rate_per_s is None else point.rate_per_s
    return all(0 < count < _MAX_NUMBER for count in (*counts, rate))


def _sanitize_figures(figures: PointFigures) -> PointFigures:
    changed: dict[str, Any] = {}
    for field in fields(figures):
        value = getattr(figures, field.name)
        if isinstance(value, MeasuredFigure):
            is_ordered = (
                -_MAX_NUMBER < value.low <= value.value <= value.high <= _MAX_RELATIVE_WIDTH * value.value
            )
            is_sized = 1 / _MAX_NUMBER < value.value < _MAX_NUMBER and 0 < value.n < _MAX_NUMBER
            changed[field.name] = value if is_ordered and is_sized else None
        elif isinstance(value, float) or field.name == "preemptions":
            changed[field.name] = value if value is not None and 0 <= value < _MAX_NUMBER else None
        elif isinstance(value, Mapping):
            changed[field.name] = _keep_possible(value)
    return replace(figures, **changed)


def _keep_possible(values: Mapping[str, Any]) -> dict[str, Any]:
    """Only the values that are possible numbers."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and 0 <= value < _MAX_NUMBER
    }


# --- parts of a page ---


def document(title: str, body: Iterable[Markup]) -> str:
    """A page with this body; its policy forbids scripts and anything from elsewhere."""
    policy = escape_text("default-src 'none'; style-src 'unsafe-inline'")
    head = (
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en">\n<head>\n'
        '<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape_text(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>"
    )
    return "\n".join([head, *body, "</main>\n</body>\n</html>\n"])


def element(tag: str, text: str, style_class: str = "") -> Markup:
    """An element that holds an escaped text."""
    attribute = f' class="{style_class}"' if style_class else ""
    return Markup(f"<{tag}{attribute}>{escape_text(text, 1000)}</{tag}>")


def bullets(entries: Sequence[str], limit: int = 60) -> Markup:
    """A list of escaped texts."""
    shown = [*entries[:limit], *([f"and {len(entries) - limit:,} more"] if len(entries) > limit else [])]
    lines = "\n".join(f"<li>{escape_text(entry, 600)}</li>" for entry in shown)
    return Markup(f"<ul>\n{lines}\n</ul>")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], limit: int = 200) -> Markup:
    """A table of escaped texts; the first cell of a row is its heading."""
    columns = "".join(f'<th scope="col">{escape_text(name)}</th>' for name in head)
    top = f"<thead><tr>{columns}</tr></thead>" if head else ""
    lines = [
        f'<tr><th scope="row"{_fill_cell(row[0])}</th>'
        f"{''.join(f'<td{_fill_cell(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows[:limit]
    ]
    body = "\n".join(["<tbody>", *lines, "</tbody>"])
    left_out = f"<p>{len(rows) - limit:,} more rows are left out.</p>" if len(rows) > limit else ""
    return Markup(f'<div class="wide"><table>{top}{body}</table></div>{left_out}')


def _fill_cell(text: str) -> str:
    """The end of a tag and the text of its cell. Long text may wrap anywhere, so that the table stays inside
    the page."""
    wraps = ' class="long"' if len(text) > 32 else ""
    return f"{wraps}>{escape_text(text, _MAX_CELL)}"
