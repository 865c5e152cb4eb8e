"""Charts with a row for each load: plan against measured, share of the bandwidth, gaps, failed requests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from firesteel.bench.compare.stats import percentile
from firesteel.bench.report import formatting
from firesteel.bench.report.data import ChartSection, ReportData, has_no_gpu, is_number, section
from firesteel.bench.results.context import SHARE_HIGH, SHARE_LOW
from firesteel.bench.values import MeasuredFigure, Point
from firesteel.render.charts import Axis, Row, RowChart, histogram
from firesteel.render.svg import BAD_COLOUR, LegendEntry
from firesteel.units import Band, show_bytes

_MAX_GAP_S = 1e6
_PERCENTILES = ("p50", "p90", "p99")
_FAILURES: Mapping[str, str] = {
    "http": "the HTTP status was not 200",
    "refused": "no connection",
    "dropped": "the stream broke off",
    "stalled": "nothing arrived for too long",
    "garbled": "the response does not follow the protocol",
    "no usage": "the response has no token count",
    "wrong usage": "the token count is impossible",
    "short": "fewer tokens than requested",
    "late": "sent after its scheduled time",
    "unsent": "never sent: too many requests were open",
}


def plan_against_measured(data: ReportData, name: str) -> ChartSection:
    title = "Plan against measured"
    planned, published = data.plan_comparisons(), data.published_comparisons()
    if not planned and not published:
        why = "the plan covers none of these loads" if data.plan else "the run has no plan"
        return ChartSection(title, missing=f"{why}, and nobody published figures for them")
    reported: dict[Point, list[float]] = defaultdict(list)
    for other in published:
        reported[other.point].append(other.published.decode_tps or other.measured.value)
    rows = [
        _ratio_row(row.measure, row.point, row.measured, row.planned, row.verdict,
                   reported.pop(row.point, []) if row.measure == "decode" else [])
        for row in planned
    ]  # fmt: skip
    measured = {other.point: other.measured for other in published}
    rows += [
        _ratio_row("decode", point, measured[point], None, "", values) for point, values in reported.items()
    ]
    legend: list[LegendEntry] = [("marker", 0, "measured here")]
    legend += [("band", 0, "planned")] if planned else []
    legend += [("hollow", 0, "reported by others")] if published else []
    axis, limit = Axis("relative to the measured value"), (1.0, "measured here")
    chart = RowChart(title, axis, tuple(rows), limit=limit, legend=tuple(legend))
    table = [
        (formatting.load(row.point), row.measure, formatting.figure(row.measured),
         f"planned {formatting.band(row.planned)}", f"{row.off:.2f}", row.verdict)
        for row in planned
    ] + [
        (formatting.load(row.point), "decode", formatting.figure(row.measured),
         f"reported {formatting.number(row.published.decode_tps)} at {row.published.middle_depth:,}",
         f"{row.ratio:.2f}", row.verdict)
        for row in published
    ]  # fmt: skip
    head = ("load", "figure", "measured", "against", "ratio", "verdict")
    note = "A band that crosses the line contains the measured value. For TTFT, less is better."
    return section(chart, name, note, (head, table))


def _ratio_row(
    measure: str,
    point: Point,
    measured: MeasuredFigure,
    planned: Band | None,
    verdict: str,
    reported: list[float],
) -> Row:
    """All values as multiples of the measured one."""
    base = measured.value
    label = f"planned {formatting.band(planned)}: {verdict}" if planned else (
        f"reported {formatting.number(min(reported))} to {formatting.number(max(reported))}"
    )  # fmt: skip
    return Row(
        f"{measure}, {formatting.load(point)}",
        f"{formatting.number(base)}, {label}",
        marker=1.0,
        whisker=(measured.low / base, measured.high / base) if measured.n > 1 else None,
        band=(planned.low / base, planned.expected / base, planned.high / base) if planned else None,
        reported=tuple(value / base for value in reported),
    )


def bandwidth_share(data: ReportData, name: str) -> ChartSection:
    title = "Share of the memory bandwidth limit"
    rows = tuple(
        Row(
            formatting.load(figures.point),
            f"{share:.2f}, {_judge_share(share, has_no_gpu(data.run))}",
            bar=(0.0, share),
        )
        for figures in data.run.figures
        if (share := figures.bandwidth_share) is not None
    )
    if not rows:
        why = "the bytes read per token or the bandwidth are unknown, or no load has a single user"
        return ChartSection(title, missing=why)
    bound, size, rate = (
        data.plan.get(key) for key in ("bound_tokens_per_s", "bytes_per_token", "bandwidth_bytes_per_s")
    )
    limit = (1.0, f"limit: {bound:.0f} tok/s" if is_number(bound) else "limit")
    usual = (SHARE_LOW, SHARE_HIGH, f"usual on a GB10: {SHARE_LOW} to {SHARE_HIGH}")
    chart = RowChart(title, Axis("decode speed of one user / limit"), rows, usual, limit)
    if not is_number(size) or not is_number(rate):
        return section(chart, name)
    note = (
        f"A step reads {show_bytes(round(size))} and the memory delivers {rate / 1e9:.0f} GB/s: bandwidth "
        "divided by bytes is the most steps per second."
    )
    return section(chart, name, note)


def _judge_share(share: float, is_cpu: bool) -> str:
    if share > SHARE_HIGH:
        return "above the possible: it reads less than planned"
    if share < SHARE_LOW:
        return "not unusual without a GPU" if is_cpu else "something slows it down"
    return "as usual"


def chunk_gaps(data: ReportData, name: str) -> ChartSection:
    title = "Time between chunks of an answer"
    known = [
        (figures, tuple(figures.inter_token_ms[p] for p in _PERCENTILES))
        for figures in data.run.figures
        if all(figures.inter_token_ms.get(p, 0) > 0 for p in _PERCENTILES)
    ]
    if not known:
        return ChartSection(title, missing="no answer came in more than one chunk")
    gaps_ms: dict[Point, list[float]] = defaultdict(list)
    for sample in data.samples:
        if 0 <= sample.point < len(data.run.points) and not sample.wrong and not sample.is_cold:
            gaps_ms[data.run.points[sample.point]] += [
                1000 * gap for gap in sample.gaps_s if 0 <= gap < _MAX_GAP_S
            ]
    every_gap = [gap for figures, _ in known for gap in gaps_ms[figures.point]] or [1.0]
    low, high = max(0.01, percentile(every_gap, 0.1) / 1.5), max(0.02, percentile(every_gap, 99.9) * 1.5)
    rows = tuple(
        Row(
            formatting.load(figures.point),
            " / ".join(map(formatting.number, spread)) + " ms",
            bins=histogram(gaps_ms[figures.point], low, high),
            percentiles=spread,
        )
        for figures, spread in known
    )
    chart = RowChart(title, Axis("ms", is_log=True), rows)
    table = [
        (formatting.load(figures.point), *map(formatting.number, spread),
         *(formatting.number(figures.time_per_output_token_ms.get(p)) for p in ("p50", "p99")))
        for figures, spread in known
    ]  # fmt: skip
    head = ("load", "gap ms p50", "p90", "p99", "ms per token p50", "p99")
    return section(
        chart, name, "The ticks are p50, p90 and p99. A chunk may hold several tokens.", (head, table)
    )


def failures(data: ReportData, name: str) -> ChartSection:
    title = "Failed requests"
    counts = sum((Counter(figures.wrong) for figures in data.run.figures), Counter[str]()).most_common(20)
    good = sum(figures.samples for figures in data.run.figures)
    if not counts:
        return ChartSection(title, note=f"None; the figures include {good:,} good ones.")
    examples = {str(sample.wrong): sample.why for sample in reversed(data.samples) if sample.wrong}
    table = [
        (kind, f"{count:,}", _FAILURES.get(kind, "-"), examples.get(kind, "-")) for kind, count in counts
    ]
    rows = tuple(Row(kind, f"{count:,}", bar=(0.0, float(count))) for kind, count in counts)
    chart = RowChart(title, Axis("requests", is_count=True), rows, colours=(BAD_COLOUR,))
    note = f"No figure includes them; the figures include {good:,} good ones."
    return section(chart, name, note, (("kind", "requests", "meaning", "example"), table))
