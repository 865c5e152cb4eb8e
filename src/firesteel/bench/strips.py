"""Charts with a line for each load: plan against measured, roofline, gaps, what went wrong. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firesteel.bench import said
from firesteel.bench.against import Beside, Held
from firesteel.bench.charts import Chart, Shown, has_no_gpu, is_number, left_out
from firesteel.bench.drawing import Axis, Key
from firesteel.bench.figures import SHARE_HIGH, SHARE_LOW
from firesteel.bench.rows import Row, Rows, binned, rowed
from firesteel.bench.stats import percentile
from firesteel.bench.values import Figure, Figures, Point
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


def planned_and_measured(shown: Shown, name: str) -> Chart:
    title = "Plan against measured"
    held, beside = shown.held(), shown.beside()
    lines = _lines(held, beside)
    if not lines:
        why = "no plan was kept with it, and nobody published its figures"
        return Chart(title, why=why if not shown.plan else "its plan speaks of none of these loads")
    keys: list[Key] = [("mark", 0, "measured here")]
    keys += [("band", 0, "planned")] if held else []
    keys += [("hollow", 0, "reported by others")] if beside else []
    chart = Rows(
        title, _told(lines), Axis("as a share of what was measured here"), tuple(lines[:MOST_ROWS]),
        line=(1.0, "measured here"), keys=tuple(keys),
    )  # fmt: skip
    rows = [
        (said.load(each.point), each.measure, said.figure(each.measured),
         f"planned {said.band(each.planned)}", f"{each.off:.2f}", each.verdict)
        for each in held
    ] + [
        (said.load(each.point), "decode", said.figure(each.measured),
         f"reported {said.plain(each.published.decode_tps)} at {each.published.middle_depth:,}",
         f"{each.ratio:.2f}", each.verdict)
        for each in beside
    ]  # fmt: skip
    head = ("load", "figure", "measured", "against", "ratio", "verdict")
    reads = "A band that reaches over the line holds what was measured. For TTFT less is better."
    return Chart(title, rowed(chart, name), head, tuple(rows), left_out(lines, MOST_ROWS), reads)


def _told(rows: Iterable[Row]) -> str:
    return "; ".join(f"{row.name}: {row.words}" for row in rows)


def _lines(held: Sequence[Held], beside: Sequence[Beside]) -> list[Row]:
    others: dict[Point, list[Beside]] = defaultdict(list)
    for near in beside:
        others[near.point].append(near)
    found = [_line(each, others.pop(each.point, []) if each.measure == "decode" else []) for each in held]
    return found + [_line_of_others(rows) for rows in others.values()]


def _line(held: Held, others: Sequence[Beside]) -> Row:
    base, band = held.measured.value, held.planned
    return Row(
        f"{held.measure}, {said.load(held.point)}",
        f"{said.plain(base)}, planned {said.band(band)}: {held.verdict}",
        dot=_shares(held.measured), band=(band.low / base, band.expected / base, band.high / base),
        hollow=tuple((each.published.decode_tps or base) / base for each in others),
    )  # fmt: skip


def _line_of_others(rows: Sequence[Beside]) -> Row:
    measured = rows[0].measured
    told = [each.published.decode_tps or measured.value for each in rows]
    words = f"{said.plain(measured.value)}, reported {said.plain(min(told))} to {said.plain(max(told))}"
    hollow = tuple(each / measured.value for each in told)
    return Row(f"decode, {said.load(rows[0].point)}", words, dot=_shares(measured), hollow=hollow)


def _shares(figure: Figure) -> tuple[float, float, float]:
    return (figure.low / figure.value, 1.0, figure.high / figure.value) if figure.n > 1 else (1.0, 1.0, 1.0)


# --- the roofline ---


def roofline(shown: Shown, name: str) -> Chart:
    title = "Share of what the memory's bandwidth allows"
    is_cpu = has_no_gpu(shown.run)
    known = [(each, each.bandwidth_share) for each in shown.run.figures if each.bandwidth_share is not None]
    if not known:
        return Chart(
            title, why="the bytes of a token or the bandwidth are not known, or no load was of one user"
        )
    rows = tuple(
        Row(said.load(each.point), f"{share:.2f}, {_judged(share, is_cpu)}", bar=share)
        for each, share in known
    )
    bound = shown.plan.get("bound_tps")
    limit = f"the bound: {bound:.0f} tok/s" if is_number(bound) else "the bound"
    corridor = (SHARE_LOW, SHARE_HIGH, f"usual on a GB10: {SHARE_LOW} to {SHARE_HIGH}")
    says = _told(rows)
    chart = Rows(
        title, says, Axis("decode of one user over the bound"), rows[:MOST_ROWS], corridor, (1.0, limit)
    )
    table = tuple(
        (said.load(each.point), said.figure(each.decode_tps), f"{share:.2f}", _judged(share, is_cpu))
        for each, share in known
    )
    head = ("load", "decode tok/s", "share of the bound", "verdict")
    return Chart(title, rowed(chart, name), head, table, left_out(rows, MOST_ROWS), _bound_words(shown.plan))


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


def between_tokens(shown: Shown, name: str) -> Chart:
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
    chart = Rows(title, says, Axis("ms (log scale)", is_log=True), rows)
    table = tuple(
        (said.load(each.point), *(said.plain(_spread(each, gaps).get(p)) for p in ("p50", "p90", "p99")),
         *(said.plain(each.time_per_output_token_ms.get(p)) for p in ("p50", "p99")))
        for each, gaps in known
    )  # fmt: skip
    head = ("load", "gap ms p50", "p90", "p99", "ms a token p50", "p99")
    reads = (
        "The three ticks: half, nine tenths and ninety-nine hundredths of the gaps are shorter. A piece may "
        "hold several tokens."
    )
    return Chart(title, rowed(chart, name), head, table, left_out(known, MOST_ROWS), reads)


def _gaps(shown: Shown) -> Mapping[Point, list[float]]:
    """In ms, of warm samples that went right."""
    found: dict[Point, list[float]] = defaultdict(list)
    points = shown.run.points
    for each in shown.samples:
        if 0 <= each.point < len(points) and not each.wrong and not each.is_cold:
            found[points[each.point]] += [1000 * gap for gap in each.gaps_s if 0 <= gap < _LONGEST_S]
    return found


def _has_spread(each: Figures) -> bool:
    return all(each.inter_token_ms.get(name, 0) > 0 for name in ("p50", "p90", "p99"))


def _spread(each: Figures, gaps: Sequence[float]) -> Mapping[str, float]:
    if _has_spread(each) or not gaps:
        return each.inter_token_ms
    return {f"p{share}": percentile(gaps, share) for share in (50, 90, 99)}


def _gap_row(each: Figures, gaps: Sequence[float], low: float, high: float) -> Row:
    spread = _spread(each, gaps)
    three = (spread["p50"], spread["p90"], spread["p99"])
    words = " / ".join(said.plain(value) for value in three) + " ms"
    span = (max(low, three[0]), max(low, three[1]), max(low, three[2])) if gaps else three
    return Row(said.load(each.point), words, bins=binned(gaps, low, high), span=span)


# --- what went wrong ---


def wrong_kinds(shown: Shown, name: str) -> Chart:
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
    says = said.listed(f"{many:,} {kind}" for kind, many in counts.most_common(20))
    drawn = tuple(Row(kind, f"{many:,}", bar=float(many)) for kind, many in counts.most_common(MOST_ROWS))
    chart = Rows(title, says, Axis("requests", is_count=True), drawn, is_bad=True)
    head = ("kind", "requests", "that is", "one of them")
    return Chart(
        title, rowed(chart, name), head, rows, reads=f"None of them is in a figure; {good:,} good ones are."
    )
