"""Charts with a line for each load: plan against measured, roofline, gaps, what went wrong. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firesteel.bench.compare.against import PlanComparison, PublishedComparison
from firesteel.bench.compare.stats import percentile
from firesteel.bench.report import format
from firesteel.bench.report.charts import Chart, ReportData, has_no_gpu, is_number, left_out
from firesteel.bench.report.drawing import ChartAxis, Key
from firesteel.bench.report.row_chart import ChartRow, RowChart, binned, draw_rows
from firesteel.bench.results.context import SHARE_HIGH, SHARE_LOW
from firesteel.bench.values import MeasuredFigure, Point, PointFigures
from firesteel.units import show_bytes

MOST_ROWS = 12
_LONGEST_S = 1e6
WRONG_WORDS: Mapping[str, str] = {
    "http": "an HTTP status that is not 200",
    "refused": "no connection",
    "dropped": "it ended without its end",
    "stalled": "nothing came for too long",
    "garbled": "not the protocol",
    "no usage": "no count of tokens was told",
    "wrong usage": "a count of tokens that cannot be",
    "short": "fewer tokens than were asked for",
    "late": "sent after its time",
    "unsent": "its turn never came: as many as may be were open",
}


# --- the plan against what was measured ---


def planned_and_measured(shown: ReportData, name: str) -> Chart:
    title = "Plan against measured"
    held, beside = shown.held(), shown.beside()
    lines = _lines(held, beside)
    if not lines:
        why = "no plan was kept with it, and nobody published its figures"
        return Chart(title, why=why if not shown.plan else "its plan speaks of none of these loads")
    keys: list[Key] = [("mark", 0, "measured here")]
    keys += [("band", 0, "planned")] if held else []
    keys += [("hollow", 0, "reported by others")] if beside else []
    chart = RowChart(
        title, _told(lines), ChartAxis("as a share of what was measured here"), tuple(lines[:MOST_ROWS]),
        line=(1.0, "measured here"), keys=tuple(keys),
    )  # fmt: skip
    rows = [
        (format.load(each.point), each.measure, format.figure(each.measured),
         f"planned {format.band(each.planned)}", f"{each.off:.2f}", each.verdict)
        for each in held
    ] + [
        (format.load(each.point), "decode", format.figure(each.measured),
         f"reported {format.plain(each.published.decode_tps)} at {each.published.middle_depth:,}",
         f"{each.ratio:.2f}", each.verdict)
        for each in beside
    ]  # fmt: skip
    head = ("load", "figure", "measured", "against", "ratio", "verdict")
    reads = "A band that reaches over the line holds what was measured. For TTFT less is better."
    return Chart(title, draw_rows(chart, name), head, tuple(rows), left_out(lines, MOST_ROWS), reads)


def _told(rows: Iterable[ChartRow]) -> str:
    return "; ".join(f"{row.name}: {row.words}" for row in rows)


def _lines(held: Sequence[PlanComparison], beside: Sequence[PublishedComparison]) -> list[ChartRow]:
    others: dict[Point, list[PublishedComparison]] = defaultdict(list)
    for near in beside:
        others[near.point].append(near)
    found = [_line(each, others.pop(each.point, []) if each.measure == "decode" else []) for each in held]
    return found + [_line_of_others(rows) for rows in others.values()]


def _line(held: PlanComparison, others: Sequence[PublishedComparison]) -> ChartRow:
    base, band = held.measured.value, held.planned
    return ChartRow(
        f"{held.measure}, {format.load(held.point)}",
        f"{format.plain(base)}, planned {format.band(band)}: {held.verdict}",
        dot=_shares(held.measured), band=(band.low / base, band.expected / base, band.high / base),
        hollow=tuple((each.published.decode_tps or base) / base for each in others),
    )  # fmt: skip


def _line_of_others(rows: Sequence[PublishedComparison]) -> ChartRow:
    measured = rows[0].measured
    told = [each.published.decode_tps or measured.value for each in rows]
    words = f"{format.plain(measured.value)}, reported {format.plain(min(told))} to {format.plain(max(told))}"
    hollow = tuple(each / measured.value for each in told)
    return ChartRow(f"decode, {format.load(rows[0].point)}", words, dot=_shares(measured), hollow=hollow)


def _shares(figure: MeasuredFigure) -> tuple[float, float, float]:
    return (figure.low / figure.value, 1.0, figure.high / figure.value) if figure.n > 1 else (1.0, 1.0, 1.0)


# --- the roofline ---


def roofline(shown: ReportData, name: str) -> Chart:
    title = "Share of what the memory's bandwidth allows"
    is_cpu = has_no_gpu(shown.run)
    known = [(each, each.bandwidth_share) for each in shown.run.figures if each.bandwidth_share is not None]
    if not known:
        return Chart(
            title, why="the bytes of a token or the bandwidth are not known, or no load was of one user"
        )
    rows = tuple(
        ChartRow(format.load(each.point), f"{share:.2f}, {_judged(share, is_cpu)}", bar=share)
        for each, share in known
    )
    bound = shown.plan.get("bound_tokens_per_s")
    limit = f"the bound: {bound:.0f} tok/s" if is_number(bound) else "the bound"
    corridor = (SHARE_LOW, SHARE_HIGH, f"usual on a GB10: {SHARE_LOW} to {SHARE_HIGH}")
    says = _told(rows)
    chart = RowChart(
        title, says, ChartAxis("decode of one user over the bound"), rows[:MOST_ROWS], corridor, (1.0, limit)
    )
    table = tuple(
        (
            format.load(each.point),
            format.figure(each.decode_tokens_per_s),
            f"{share:.2f}",
            _judged(share, is_cpu),
        )
        for each, share in known
    )
    head = ("load", "decode tok/s", "share of the bound", "verdict")
    return Chart(
        title, draw_rows(chart, name), head, table, left_out(rows, MOST_ROWS), _bound_words(shown.plan)
    )


def _judged(share: float, is_cpu: bool) -> str:
    if share > SHARE_HIGH:
        return "more than can be: it reads less than planned"
    if share < SHARE_LOW:
        return "not unusual without a GPU" if is_cpu else "something slows it"
    return "as usual"


def _bound_words(plan: Mapping[str, Any]) -> str:
    size, rate = plan.get("bytes_per_token"), plan.get("bandwidth_bytes_per_s")
    if not is_number(size) or not is_number(rate):
        return ""
    return (
        f"A step reads {show_bytes(round(size))}, and the memory gives {rate / 1e9:.0f} GB/s: the one "
        "divided into the other is the most steps that a second can have."
    )


# --- between tokens ---


def between_tokens(shown: ReportData, name: str) -> Chart:
    title = "Time between pieces of an answer"
    gaps_of = _gaps(shown)
    found = [(each, gaps_of.get(each.point, [])) for each in shown.run.figures]
    known = [(each, gaps) for each, gaps in found if gaps or _has_spread(each)]
    if not known:
        return Chart(title, why="no answer came in more than one piece")
    drawn = known[:MOST_ROWS]
    every = [gap for _, gaps in drawn for gap in gaps] or [1.0]
    low, high = max(0.01, percentile(every, 0.1) / 1.5), max(0.02, percentile(every, 99.9) * 1.5)
    rows = tuple(_gap_row(each, gaps, low, high) for each, gaps in drawn)
    says = _told(rows)
    chart = RowChart(title, says, ChartAxis("ms (log scale)", is_log=True), rows)
    table = tuple(
        (format.load(each.point), *(format.plain(_spread(each, gaps).get(p)) for p in ("p50", "p90", "p99")),
         *(format.plain(each.time_per_output_token_ms.get(p)) for p in ("p50", "p99")))
        for each, gaps in known
    )  # fmt: skip
    head = ("load", "gap ms p50", "p90", "p99", "ms a token p50", "p99")
    reads = (
        "The three ticks: half, nine tenths and ninety-nine hundredths of the gaps are shorter. A piece may "
        "hold several tokens."
    )
    return Chart(title, draw_rows(chart, name), head, table, left_out(known, MOST_ROWS), reads)


def _gaps(shown: ReportData) -> Mapping[Point, list[float]]:
    """In ms, of warm samples that went right."""
    found: dict[Point, list[float]] = defaultdict(list)
    points = shown.run.points
    for each in shown.samples:
        if 0 <= each.point < len(points) and not each.wrong and not each.is_cold:
            found[points[each.point]] += [1000 * gap for gap in each.gaps_s if 0 <= gap < _LONGEST_S]
    return found


def _has_spread(each: PointFigures) -> bool:
    return all(each.inter_token_ms.get(name, 0) > 0 for name in ("p50", "p90", "p99"))


def _spread(each: PointFigures, gaps: Sequence[float]) -> Mapping[str, float]:
    if _has_spread(each) or not gaps:
        return each.inter_token_ms
    return {f"p{share}": percentile(gaps, share) for share in (50, 90, 99)}


def _gap_row(each: PointFigures, gaps: Sequence[float], low: float, high: float) -> ChartRow:
    spread = _spread(each, gaps)
    three = (spread["p50"], spread["p90"], spread["p99"])
    words = " / ".join(format.plain(value) for value in three) + " ms"
    span = (max(low, three[0]), max(low, three[1]), max(low, three[2])) if gaps else three
    return ChartRow(format.load(each.point), words, bins=binned(gaps, low, high), span=span)


# --- what went wrong ---


def wrong_kinds(shown: ReportData, name: str) -> Chart:
    title = "Requests that went wrong"
    counts = Counter[str]()
    for each in shown.run.figures:
        counts.update(each.wrong)
    good = sum(each.samples for each in shown.run.figures)
    if not counts:
        return Chart(title, reads=f"None did; {good:,} good ones are in the figures.")
    examples = {str(each.wrong): each.why for each in reversed(shown.samples) if each.wrong}
    rows = tuple(
        (kind, f"{many:,}", WRONG_WORDS.get(kind, "-"), examples.get(kind, "-"))
        for kind, many in counts.most_common(20)
    )
    says = format.join_words(f"{many:,} {kind}" for kind, many in counts.most_common(20))
    drawn = tuple(
        ChartRow(kind, f"{many:,}", bar=float(many)) for kind, many in counts.most_common(MOST_ROWS)
    )
    chart = RowChart(title, says, ChartAxis("requests", is_count=True), drawn, is_bad=True)
    head = ("kind", "requests", "that is", "one of them")
    return Chart(
        title,
        draw_rows(chart, name),
        head,
        rows,
        reads=f"None of them is in a figure; {good:,} good ones are.",
    )
