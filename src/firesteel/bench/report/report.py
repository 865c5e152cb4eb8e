"""A run as a page: the verdict in words first, then what was measured, then every figure and its charts.

    report_page(kept, published_rows(kept.run), before)

One file that needs nothing else: it can be sent, kept and printed. Pure: the same run gives the same page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from math import isfinite
from typing import Any

from firesteel.bench.compare.runs import Comparison, compare
from firesteel.bench.compare.stats import FigureDifference
from firesteel.bench.compare.verdict import VerdictLine, verdict
from firesteel.bench.report import format
from firesteel.bench.report.charts import Chart, ReportData
from firesteel.bench.report.curves import decode_at_depth, first_word, throughput
from firesteel.bench.report.format import safe
from firesteel.bench.report.html import Markup, drawing, heading, link, listing, page, paragraph, table
from firesteel.bench.report.strips import between_tokens, planned_and_measured, roofline, wrong_kinds
from firesteel.bench.report.timeline import over_time
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures
from firesteel.planner.speed import published
from firesteel.planner.speed.published import PublishedRun as Published
from firesteel.units import show_bytes

_MOST = 1e12
_WIDEST = 50
"""Times its figure: an interval beyond says nothing."""
_MOST_FLAGS = 80


def published_rows(run: BenchRun) -> tuple[Published, ...]:
    """What others published of the same checkpoint in the same engine."""
    checkpoint = str(run.subject.launch.get("model") or run.subject.model)
    sparks = run.subject.launch.get("sparks")
    return published.runs_of(checkpoint, run.subject.engine or "", sparks if isinstance(sparks, int) else 1)


def report_page(kept: StoredRun, published: Sequence[Published] = (), before: BenchRun | None = None) -> str:
    """`before`: an earlier run to hold it against."""
    kept = replace(kept, run=sound(kept.run))
    run, shown = kept.run, ReportData.of(kept, published)
    parts = [
        *_top(kept),
        *_measured_what(run),
        *_figures(run),
        *(part for chart in _charts(shown) for part in _chart(chart)),
        *_sources(shown),
        *(_against(compare(StoredRun(sound(before)), replace(kept, samples=()))) if before else ()),
        *_notes(run),
    ]
    return page(f"{run.subject.model}: bench {run.id}", parts)


# --- the top ---


def _top(kept: StoredRun) -> Iterator[Markup]:
    run = kept.run
    yield heading(1, f"How fast is {run.subject.model}?")
    engine = " ".join(word for word in (run.subject.engine, run.subject.version) if word)
    host = run.subject.host.get("title")
    where = f" on {host}" if host else ""
    yield paragraph(
        f"{engine or 'an engine that is not known'}{where}, {_when(run.began)}, run {run.id}", "quiet"
    )
    if kept.origin != "measured here":
        yield paragraph(f"Not measured here: {kept.origin}, from {kept.source}.", "made")
    if any("made up" in note for note in run.notes):
        yield paragraph("These figures are made up: nothing was measured.", "made")
    yield heading(2, "In short")
    lines = "\n".join(map(_verdict_line, verdict(run)))
    yield Markup(f'<ul class="verdict">\n{lines}\n</ul>')


def _verdict_line(line: VerdictLine) -> str:
    words = {"fact": "Measured", "good": "Good", "warning": "Warning", "unknown": "Not known"}
    return f"<li><b>{words[line.kind]}</b> {safe(line.text, 1000)}</li>"


def _when(began: str) -> str:
    return f"{began[:16].replace('T', ' ')} UTC" if began.endswith(("+00:00", "Z")) else began


# --- what it was ---


def _measured_what(run: BenchRun) -> Iterator[Markup]:
    yield heading(2, "What was measured")
    yield table((), list(_about(run)), "")
    if words := list(_launch(run.subject.launch)):
        yield heading(3, "How it was started")
        yield table(("setting", "value"), words, "", _MOST_FLAGS)


def _about(run: BenchRun) -> Iterator[tuple[str, str]]:
    subject, settings, unknown = run.subject, run.settings, "not known"
    yield "model", subject.model
    yield "engine", " ".join(word for word in (subject.engine, subject.version) if word) or unknown
    yield "image", str(subject.launch.get("image") or "none, or not known")
    yield "image digest", subject.image_digest or unknown
    yield "launch", subject.launch_key or unknown
    yield "host", _host(subject.host) or unknown
    yield "address", subject.url
    yield "began", _when(run.began)
    yield "thinking", {True: "on", False: "off", None: "as the server has it"}[settings.thinking]
    yield "temperature", unknown if settings.temperature is None else f"{settings.temperature:g}"
    yield "max_num_seqs", unknown if settings.max_num_seqs is None else f"{settings.max_num_seqs:,}"
    yield (
        "answers",
        "of the length that was asked for" if settings.ignores_eos else "end where the model ends them",
    )
    yield "seed", str(settings.seed)
    if settings.target:
        yield "target", ", ".join(f"{name} {value:g}" for name, value in settings.target.items())
    yield "client", _client(run.client)


def _host(host: Mapping[str, Any]) -> str:
    memory, rate = host.get("memory_total_bytes"), host.get("bandwidth_bytes_per_s")
    gpus = host.get("gpus")
    told = [
        str(host.get("title") or host.get("name") or ""),
        f"{host['cores']} cores" if isinstance(host.get("cores"), int) else "",
        show_bytes(memory) if isinstance(memory, int) else "",
        f"{rate / 1e9:.0f} GB/s" if isinstance(rate, int | float) and abs(rate) < _MOST * 1e3 else "",
        *(map(str, gpus[:16]) if isinstance(gpus, list | tuple) else ()),
    ]
    return ", ".join(word for word in told if word)


def _client(told: Mapping[str, float]) -> str:
    lag, cpu = told.get("p99_lag_ms"), told.get("cpu_share")
    late = f"at most {lag:.2f} ms late in 99 of 100 cases" if lag is not None else "its lateness is not known"
    return f"{late}, {cpu:.1%} of a core" if cpu is not None else late


def _launch(launch: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in ("flags", "env"):
        found = launch.get(kind)
        for name, value in found.items() if isinstance(found, Mapping) else ():
            yield f"--{name}" if kind == "flags" else str(name), _value(value)
    start = launch.get("start")
    if isinstance(start, list | tuple):
        yield "command", " ".join(map(str, start[:200]))


def _value(value: object) -> str:
    return (
        {True: "on", False: "off", None: ""}[value]
        if value is None or isinstance(value, bool)
        else str(value)
    )


# --- every figure ---

_HEAD = ("load", "decode tok/s", "total tok/s", "TTFT ms", "p50 / p90 / p99", "prefill tok/s", "visits")


def _figures(run: BenchRun) -> Iterator[Markup]:
    yield heading(2, "Every figure")
    if not run.figures:
        yield paragraph("There are none.")
        return
    yield table(_HEAD, [_cells(each) for each in run.figures], "")
    if also := _also(run.figures):
        yield table(*also, "")
    yield paragraph(
        "A load is the kind of text, users at once, and tokens of the prompt + of the answer. Intervals are "
        "of 95 %, over visits; (once): one visit, so no interval. A dash: not known.",
        "quiet",
    )


def _cells(each: PointFigures) -> tuple[str, ...]:
    wrong = sum(each.wrong.values())
    spread = " / ".join(format.plain(each.ttft_ms.get(name)) for name in ("p50", "p90", "p99"))
    return (
        format.load(each.point), format.figure(each.decode_tokens_per_s),
        format.figure(each.total_tokens_per_s), format.figure(each.ttft_mean_ms),
        spread if each.ttft_ms else "-", format.figure(each.prefill_tokens_per_s),
        f"{each.repetitions}" + (f", {wrong:,} wrong" if wrong else ""),
    )  # fmt: skip


_MORE: tuple[tuple[str, Callable[[PointFigures], float | None], str], ...] = (
    ("of the bandwidth bound", lambda each: each.bandwidth_share, ".2f"),
    ("tokens a step", lambda each: each.accepted_per_step, ".2f"),
    ("J/token of the GPU", lambda each: each.joules_per_token, ".3f"),
    ("requests/s within the target", lambda each: each.goodput_per_s, ".2f"),
    ("of prompts cached", lambda each: each.cached_share if each.point.shared_tokens else None, ".0%"),
    ("of the KV cache", lambda each: each.kv_usage, ".0%"),
    ("preempted", lambda each: each.preemptions, ",.0f"),
    ("TTFT ms, cold", lambda each: each.cold.get("ttft_ms"), ""),
    ("decode tok/s, cold", lambda each: each.cold.get("decode_tokens_per_s"), ""),
    ("decode tok/s by the engine's own clock", lambda each: each.server.get("decode_tokens_per_s"), ""),
)


def _also(every: Sequence[PointFigures]) -> tuple[tuple[str, ...], list[tuple[str, ...]]] | None:
    """What is known of some of them only; a column of which nothing is known is left out."""
    columns = [each for each in _MORE if any(each[1](one) is not None for one in every)]
    if not columns:
        return None
    rows = [
        (format.load(one.point), *(_known(value(one), form) for _, value, form in columns)) for one in every
    ]
    return ("load", *(name for name, _, _ in columns)), rows


def _known(value: float | None, form: str) -> str:
    return format.plain(value) if value is None or not form else f"{value:{form}}"


def _charts(shown: ReportData) -> Iterator[Chart]:
    makers = (throughput, first_word, decode_at_depth, planned_and_measured, roofline, between_tokens)
    yield from (make(shown, f"chart{at}") for at, make in enumerate(makers, 1))
    yield from over_time(shown)
    yield wrong_kinds(shown, "wrong")


def _chart(chart: Chart) -> Iterator[Markup]:
    is_part = bool(chart.svg) and not chart.head  # one of several under a heading that was given before
    yield heading(3 if is_part else 2, chart.title)
    if chart.svg:
        yield drawing(chart.svg)
    if chart.reads:
        yield paragraph(chart.reads, "quiet")
    if chart.why:
        yield paragraph(chart.why if chart.svg or chart.head else f"Left out: {chart.why}.")
    if chart.rows:
        yield table(chart.head, chart.rows, "")


def _sources(shown: ReportData) -> Iterator[Markup]:
    names = dict.fromkeys(row.source for row in shown.published)
    known = published.origins()
    rows = [f"<li>{link(known[name].url)}, seen {known[name].seen}</li>" for name in names if name in known]
    if rows:
        yield heading(3, "Where reported figures come from")
        yield Markup(f"<ul>\n{chr(10).join(rows)}\n</ul>")


# --- against an earlier one ---


def _against(found: Comparison) -> Iterator[Markup]:
    yield heading(2, f"Against run {found.first}")
    if found.why_not:
        told = format.join_words(f"{name} ({says})" for name, says in found.why_not)
        yield paragraph(f"They cannot be compared, since they differ in {told}.")
        return
    if found.apart:
        yield listing([f"differs: {each}" for each in found.apart])
    if not found.rows:
        yield paragraph("No load was measured in both.")
        return
    rows = [
        (format.load(row.point), f"{row.measure}, {row.unit}",
         format.figure(row.first), format.figure(row.second),
         f"{row.difference.ratio:.2f}", _difference(row.difference))
        for row in found.rows
    ]  # fmt: skip
    yield table(("load", "figure", f"then ({found.first})", "now", "ratio", "verdict"), rows, "")
    if found.notes:
        yield listing(found.notes)


def _difference(found: FigureDifference) -> str:
    return f"too few to say ({found.n})" if found.verdict == "too few" else found.verdict


# --- notes ---


def _notes(run: BenchRun) -> Iterator[Markup]:
    yield heading(2, "Notes")
    notes = [
        *run.notes,
        *(f"{format.load(each.point)}: {note}" for each in run.figures for note in each.notes),
    ]
    yield listing(notes) if notes else paragraph("There are none.")
    why = run.subject.plan.get("why")
    if why:
        yield paragraph(f"Planned from: {why}", "quiet")


# --- what a file may hold ---


def sound(run: BenchRun) -> BenchRun:
    """Without numbers that are none. A run may come from a file of anybody's: loads beyond all bounds, values
    that are not finite, and rates of nothing are left out, and that is said."""
    kept = [_sound(each) for each in run.figures if _is_load(each.point)]
    left = len(run.figures) - len(kept)
    notes = (*run.notes, *((f"{left} loads are left out: their sizes cannot be",) if left else ()))
    return replace(run, figures=tuple(kept), client=_finite(run.client), notes=notes)


def _is_load(point: Point) -> bool:
    counts = (point.users, point.prompt_tokens, point.answer_tokens, point.turns)
    rate = point.rate_per_s
    is_rate = rate is None or (isfinite(rate) and 0 < rate < _MOST)
    return all(0 < each < _MOST for each in counts) and 0 <= point.shared_tokens < _MOST and is_rate


def _sound(figures: PointFigures) -> PointFigures:
    changed: dict[str, Any] = {}
    for each in fields(figures):
        value = getattr(figures, each.name)
        if isinstance(value, MeasuredFigure):
            changed[each.name] = value if _is_figure(value) else None
        elif isinstance(value, float) or each.name == "preemptions":
            changed[each.name] = value if value is not None and 0 <= value < _MOST else None
        elif isinstance(value, Mapping):
            changed[each.name] = _finite(value)
    return replace(figures, **changed)


def _is_figure(figure: MeasuredFigure) -> bool:
    is_ordered = -_MOST < figure.low <= figure.value <= figure.high <= _WIDEST * figure.value
    return is_ordered and 1 / _MOST < figure.value < _MOST and 0 < figure.n < _MOST


def _finite(told: Mapping[str, Any]) -> dict[str, Any]:
    pairs: Iterable[tuple[str, Any]] = told.items()
    return {name: value for name, value in pairs if isinstance(value, int | float) and 0 <= value < _MOST}
