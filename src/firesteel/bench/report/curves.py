"""Charts with two axes: throughput against speed, the first word and decode against depth. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from firesteel.bench.report import format
from firesteel.bench.report.charts import Chart, ReportData, band_of, ends_of, left_out
from firesteel.bench.report.drawing import MOST_SERIES, ChartAxis
from firesteel.bench.report.plot import Dot, Plot, Ribbon, Series, draw_plot
from firesteel.bench.values import BenchRun, Point, PointFigures
from firesteel.planner import Band
from firesteel.planner.speed.published import PublishedRun as Published

_PLANNED_DEPTH = 1024
_WIDE = 10
"""Times apart, from where an even scale shows the small ones no more."""
Group = dict[tuple[Any, ...], list[PointFigures]]


def _grouped(every: Iterable[PointFigures], key: Callable[[Point], tuple[Any, ...]]) -> Group:
    found: Group = defaultdict(list)
    for each in every:
        found[key(each.point)].append(each)
    return found


def _closed(run: BenchRun) -> Iterator[PointFigures]:
    """Where each user asks when answered: loads that can be ordered by their users."""
    return (each for each in run.figures if each.point.rate_per_s is None)


# --- throughput against the speed of each ---


def total_of(each: PointFigures, run: BenchRun) -> float | None:
    """Of one user it is what its TTFT and its decode come to; of several it was measured."""
    if each.total_tokens_per_s:
        return each.total_tokens_per_s.value
    point, decode, first = each.point, each.decode_tokens_per_s, each.ttft_mean_ms
    if point.users > 1 or point.turns > 1 or not run.settings.ignores_eos or not decode or not first:
        return None
    return point.answer_tokens / (first.value / 1000 + (point.answer_tokens - 1) / decode.value)


def _crowds(run: BenchRun) -> Group:
    known = (each for each in _closed(run) if each.decode_tokens_per_s and total_of(each, run))
    every = _grouped(known, lambda p: (p.text, p.prompt_tokens, p.shared_tokens, p.answer_tokens, p.turns))
    return {
        key: sorted(group, key=lambda each: each.point.users)
        for key, group in every.items()
        if len({each.point.users for each in group}) > 1
    }


def throughput(shown: ReportData, name: str) -> Chart:
    title = "Throughput of all against the speed of each"
    groups = _crowds(shown.run)
    if not groups:
        return Chart(title, why="it needs several counts of users with the same load: `--users 1,2,4,8`")
    series = tuple(
        Series(f"{key[0]}, {format.tokens(group[0].point)} tokens", _crowd_dots(group, shown.run))
        for key, group in list(groups.items())[:MOST_SERIES]
    )
    says = "Each mark is a count of users at once. " + _ends(groups, shown.run)
    plot = Plot(
        title,
        says,
        ChartAxis("tok/s of each user while it is answered"),
        ChartAxis("tok/s of all together"),
        series,
    )
    rows = tuple(
        (
            format.load(each.point),
            format.figure(each.decode_tokens_per_s),
            _total_words(each, shown.run),
            _first_words(each),
        )
        for group in groups.values()
        for each in group
    )
    reads = (
        "Up is more work done, right is a faster answer for each. Of one user the total is what TTFT and "
        "decode come to; of several it was measured."
    )
    head = ("load", "each, tok/s", "all, tok/s", "TTFT ms, mean")
    return Chart(title, draw_plot(plot, name), head, rows, left_out(groups, MOST_SERIES), reads)


def _crowd_dots(group: Sequence[PointFigures], run: BenchRun) -> tuple[Dot, ...]:
    found = []
    for each in group:
        decode, total = each.decode_tokens_per_s, total_of(each, run)
        assert decode and total
        low, high = ends_of(each.total_tokens_per_s)
        found.append(Dot(decode.value, total, low, high, format.users(each.point)))
    return tuple(found)


def _ends(groups: Group, run: BenchRun) -> str:
    group = next(iter(groups.values()))
    told = (
        f"with {format.users(each.point)} each has {format.figure(each.decode_tokens_per_s)} and all "
        f"{format.plain(total_of(each, run))} tok/s"
        for each in (group[0], group[-1])
    )
    return f"{format.join_words(told)}.".capitalize()


def _total_words(each: PointFigures, run: BenchRun) -> str:
    return (
        format.figure(each.total_tokens_per_s)
        if each.total_tokens_per_s
        else f"{format.plain(total_of(each, run))} (worked out)"
    )


def _first_words(each: PointFigures) -> str:
    return format.figure(each.ttft_mean_ms)


# --- the first word against the prompt ---


def first_word(shown: ReportData, name: str) -> Chart:
    title = "Time to the first word against the length of the prompt"
    known = (
        each for each in _closed(shown.run)
        if each.ttft_mean_ms and not each.point.shared_tokens and each.point.turns == 1
    )  # fmt: skip
    every = _grouped(known, lambda point: (point.text, point.users))
    groups = _by_depth(every)
    if not groups:
        return Chart(title, why="it needs prompts of several lengths: `--depth 512,2k,8k`")
    series = tuple(
        Series(f"{key[0]}, {format.users(group[0].point)}", tuple(_first_dots(group)))
        for key, group in list(groups.items())[:MOST_SERIES]
    )
    ribbons, planned = _planned_first(shown.plan)
    x = _tokens_axis([dot.x for each in series for dot in each.dots])
    heights = [dot.y for each in series for dot in each.dots]
    is_wide = max(heights) / min(heights) > _WIDE
    y = ChartAxis("ms to the first word, mean" + (" (log scale)" if is_wide else ""), is_log=is_wide)
    plot = Plot(title, _range(series, "ms to the first word"), x, y, series, ribbons)
    rows = tuple(
        (
            format.load(each.point),
            _first_words(each),
            *(format.plain(each.ttft_ms.get(p)) for p in ("p50", "p90", "p99")),
        )
        for group in groups.values()
        for each in group
    )
    head = ("load", "TTFT ms, mean", "p50", "p90", "p99")
    return Chart(title, draw_plot(plot, name), head, (*rows, *planned), left_out(groups, MOST_SERIES))


def _by_depth(every: Group) -> Group:
    return {
        key: sorted(group, key=lambda each: each.point.depth)
        for key, group in every.items()
        if len({each.point.depth for each in group}) > 1
    }


def _first_dots(group: Iterable[PointFigures]) -> Iterator[Dot]:
    for each in group:
        assert each.ttft_mean_ms
        yield Dot(each.point.prompt_tokens, each.ttft_mean_ms.value, *ends_of(each.ttft_mean_ms))


def _planned_first(plan: Mapping[str, Any]) -> tuple[tuple[Ribbon, ...], tuple[tuple[str, ...], ...]]:
    band, length = band_of(plan.get("ttft_ms")), plan.get("prompt_tokens")
    if band is None or not isinstance(length, int) or not 0 < length < 1e9:
        return (), ()
    row = (f"planned, 1 user, a prompt of {length:,}", format.band(band), "-", "-", "-")
    return (Ribbon("planned", ((length, band.low, band.expected, band.high),)),), (row,)


def _tokens_axis(depths: Sequence[float], words: str = "tokens of the prompt") -> ChartAxis:
    is_wide = max(depths) / max(1.0, min(depths)) > 6
    return ChartAxis(f"{words} (log scale)" if is_wide else words, is_log=is_wide, base=2)


def _range(series: Iterable[Series], unit: str) -> str:
    told = (
        f"{each.name}: {format.plain(each.dots[0].y)} {unit} at {each.dots[0].x:,.0f} tokens, "
        f"{format.plain(each.dots[-1].y)} at {each.dots[-1].x:,.0f}"
        for each in series
        if each.dots
    )
    return "; ".join(told)


# --- decode against depth ---


def decode_at_depth(shown: ReportData, name: str) -> Chart:
    title = "Decode against depth"
    known = (each for each in _closed(shown.run) if each.decode_tokens_per_s)
    every = _grouped(known, lambda point: (point.text, point.users))
    groups = {
        key: sorted(group, key=lambda each: _middle(each.point))
        for key, group in every.items()
        if key[1] == 1 or len({each.point.depth for each in group}) > 1
    }
    planned = _planned_depths(shown) if any(key[1] == 1 for key in groups) else ()
    ribbons = tuple(Ribbon(each[0], each[1]) for each in planned)
    series = [
        Series(f"measured: {key[0]}, {format.users(group[0].point)}", tuple(_decode_dots(group)))
        for key, group in list(groups.items())[: MOST_SERIES - 1]
    ]
    if shown.published and groups:
        dots = tuple(Dot(max(1, row.middle_depth), row.decode_tps or 0.0) for row in shown.published)
        series.append(Series("reported by others, 1 user", dots, is_reported=True))
    depths = [dot.x for each in series for dot in each.dots] + [
        row[0] for each in ribbons for row in each.rows
    ]
    if not groups or len(set(depths)) < 2:
        return Chart(title, why="it needs prompts of several lengths: `--depth 512,2k,8k`")
    axis = _tokens_axis(depths, "tokens before the one that is written")
    plot = Plot(title, _range(series, "tok/s"), axis, ChartAxis("tok/s of each user"), tuple(series), ribbons)
    rows = tuple(
        (
            f"measured: {format.load(each.point)}",
            f"{_middle(each.point):,.0f}",
            format.interval(each.decode_tokens_per_s),
        )
        for group in groups.values()
        for each in group
    )
    return Chart(
        title, draw_plot(plot, name), ("what", "depth", "decode tok/s"),
        (*rows, *_planned_rows(ribbons), *_published_rows(shown.published)),
        left_out(groups, MOST_SERIES - 1),
        "Depth is counted to the middle of the answer."
        + (" The band is what the plan allows." if ribbons else "")
        + (" Hollow marks are figures of other hands, without an interval." if shown.published else ""),
    )  # fmt: skip


def _middle(point: Point) -> float:
    return (
        point.depth
        + (point.turns - 1) * (point.prompt_tokens + point.answer_tokens) / 2
        + point.answer_tokens / 2
    )


def _decode_dots(group: Iterable[PointFigures]) -> Iterator[Dot]:
    for each in group:
        assert each.decode_tokens_per_s
        yield Dot(_middle(each.point), each.decode_tokens_per_s.value, *ends_of(each.decode_tokens_per_s))


Planned = tuple[str, tuple[tuple[float, float, float, float], ...]]


def _planned_depths(shown: ReportData) -> tuple[Planned, ...]:
    """Of one user, as far as the measured depths go and one further; with drafts a band for each text."""
    plan = shown.plan
    if plan.get("drafts"):
        held = [each for each in shown.held() if each.measure == "decode" and each.point.users == 1]
        return tuple((f"planned, {each.point.text}", (_at(_PLANNED_DEPTH, each.planned),)) for each in held)
    rows = {
        _PLANNED_DEPTH: band_of(plan.get("decode_tokens_per_s")),
        **dict(_depth_rows(plan.get("at_depth"))),
    }
    known = sorted((depth, band) for depth, band in rows.items() if band is not None)
    deepest = max((_middle(each.point) for each in _closed(shown.run)), default=0.0)
    after = next((at for at, (depth, _) in enumerate(known) if depth > deepest), len(known))
    kept = tuple(_at(depth, band) for depth, band in known[: max(2, after + 1)])
    return (("planned, 1 user", kept),) if kept else ()


def _depth_rows(rows: object) -> Iterator[tuple[int, Band | None]]:
    for row in rows if isinstance(rows, list | tuple) else ():
        match row:
            case [int() as depth, band] if 0 < depth < 1e9:
                yield depth, band_of(band)


def _at(depth: float, band: Band) -> tuple[float, float, float, float]:
    return depth, band.low, band.expected, band.high


def _planned_rows(ribbons: Iterable[Ribbon]) -> Iterator[tuple[str, ...]]:
    for ribbon in ribbons:
        for depth, low, mid, high in ribbon.rows:
            yield ribbon.name, f"{depth:,.0f}", format.band(Band(low, mid, high))


def _published_rows(rows: Iterable[Published]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        told = (
            f"{row.engine} {row.version or 'of a version not named'}",
            row.path,
            f"KV {row.kv_dtype or '?'}",
        )
        words = ", ".join(word for word in told if word)
        yield f"reported: {words}", f"{row.middle_depth:,}", format.plain(row.decode_tps)
