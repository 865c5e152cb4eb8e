"""Charts with two axes: total against per-user speed, time to first token and decode against depth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator

from firesteel.bench.report import formatting
from firesteel.bench.report.data import ChartSection, ReportData, parse_band, section
from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures
from firesteel.planner.speed.published import PublishedRun
from firesteel.render.charts import Axis, DataPoint, LinePlot, Series
from firesteel.units import Band
from firesteel.values import replace

_PLANNED_DEPTH = 1024
_LOG_FROM_TOKENS, _LOG_FROM_MS = 6, 10
"""How many times apart values are when a linear axis no longer shows the small ones."""
_NEEDS_DEPTHS = "it needs prompts of several lengths: `--depth 512,2k,8k`"
_Measured = tuple[Point, float, MeasuredFigure]
"""A load, its x and its y."""


def throughput(data: ReportData, name: str) -> ChartSection:
    measured = [
        (figures.point, figures.decode_tokens_per_s.value, total)
        for figures in _closed_loop(data.run)
        if figures.decode_tokens_per_s and (total := _total_tps(figures, data.run))
    ]
    series = _group(
        measured,
        key=lambda point: replace(point, shape="", users=1),
        name=lambda point: f"{point.text_label}, {formatting.tokens(point)} tokens",
        label=formatting.users,
    )
    title = "Total throughput against speed per user"
    if not series:
        return ChartSection(title, missing="it needs several user counts of one load: `--users 1,2,4,8`")
    plot = LinePlot(title, Axis("tok/s of each user"), Axis("tok/s of all users together"), series)
    note = (
        "Higher is more work done, further right is a faster answer for each user. The total of one user is "
        "calculated from TTFT and decode speed; totals of several users are measured."
    )
    return section(plot, name, note)


def _total_tps(figures: PointFigures, run: BenchRun) -> MeasuredFigure | None:
    """Of one user it follows from TTFT and decode speed; of several it was measured."""
    point, decode, ttft = figures.point, figures.decode_tokens_per_s, figures.ttft_mean_ms
    is_single = point.users == 1 and point.turns == 1 and run.settings.ignores_eos
    if figures.total_tokens_per_s or not (is_single and decode and ttft):
        return figures.total_tokens_per_s
    total = point.answer_tokens / (ttft.value / 1000 + (point.answer_tokens - 1) / decode.value)
    return MeasuredFigure(total, total, total, 1)


def time_to_first_token(data: ReportData, name: str) -> ChartSection:
    measured = [
        (point, float(point.prompt_tokens), figures.ttft_mean_ms)
        for figures in _closed_loop(data.run)
        if figures.ttft_mean_ms and not (point := figures.point).shared_tokens and point.turns == 1
    ]
    series = _group(measured, _text_and_users, lambda point: f"{point.text_label}, {formatting.users(point)}")
    title = "Time to first token against prompt length"
    if not series:
        return ChartSection(title, missing=_NEEDS_DEPTHS)
    band, length = parse_band(data.plan.get("ttft_ms")), data.plan.get("prompt_tokens")
    points = [point for group in series for point in group.points]
    x = _axis("tokens of the prompt", [point.x for point in points], _LOG_FROM_TOKENS)
    y = _axis("mean ms to the first token", [point.y for point in points], _LOG_FROM_MS)
    if band and isinstance(length, int) and 0 < length < 1e9:
        series = (*series, Series("planned, 1 user", (_planned_point(length, band),), "band"))
    return section(LinePlot(title, replace(x, base=2), y, series), name)


def decode_by_depth(data: ReportData, name: str) -> ChartSection:
    measured = [
        (figures.point, _middle_depth(figures.point), figures.decode_tokens_per_s)
        for figures in _closed_loop(data.run)
        if figures.decode_tokens_per_s
    ]
    series = _group(
        measured,
        _text_and_users,
        lambda point: f"measured: {point.text_label}, {formatting.users(point)}",
        keep_single_user=True,
    )
    title = "Decode speed against depth"
    if any(point.users == 1 for point, _, _ in measured):
        series = (*series, *_planned_decode(data))
    if data.published and series:
        points = tuple(
            DataPoint(max(1, row.middle_depth), row.decode_tps or 0.0, source=_describe(row))
            for row in data.published
        )
        series = (*series, Series("reported by others, 1 user", points, "hollow"))
    depths = [point.x for group in series for point in group.points]
    if len(set(depths)) < 2:
        return ChartSection(title, missing=_NEEDS_DEPTHS)
    x = _axis("tokens before the generated one", depths, _LOG_FROM_TOKENS)
    plot = LinePlot(title, replace(x, base=2), Axis("tok/s of each user"), series)
    note = "Depth is counted to the middle of the answer. A band is what the plan allows."
    if data.published:
        note += " Hollow markers are figures that others published, without an interval."
    return section(plot, name, note)


def _describe(row: PublishedRun) -> str:
    return ", ".join(filter(None, (row.engine, row.version, row.path, f"KV {row.kv_dtype or '?'}")))


def _planned_decode(data: ReportData) -> Iterator[Series]:
    """For one user: the measured depths and one beyond; with a draft model a band for each kind of text."""
    if data.plan.get("drafts"):
        for row in data.plan_comparisons():
            if row.measure == "decode" and row.point.users == 1:
                point = _planned_point(_PLANNED_DEPTH, row.planned)
                yield Series(f"planned, {row.point.text}", (point,), "band")
        return
    bands = {_PLANNED_DEPTH: parse_band(data.plan.get("decode_tokens_per_s"))}
    at_depth = data.plan.get("at_depth")
    for entry in at_depth if isinstance(at_depth, list | tuple) else ():
        match entry:
            case [int() as depth, band] if 0 < depth < 1e9:
                bands[depth] = parse_band(band)
    points = [_planned_point(depth, planned) for depth, planned in sorted(bands.items()) if planned]
    deepest = max((_middle_depth(figures.point) for figures in _closed_loop(data.run)), default=0.0)
    if points:
        count = max(2, 1 + sum(point.x <= deepest for point in points))
        yield Series("planned, 1 user", tuple(points[:count]), "band")


def _closed_loop(run: BenchRun) -> Iterator[PointFigures]:
    """Loads in which each user sends the next request after an answer; only these can be sorted by users."""
    return (figures for figures in run.figures if figures.point.rate_per_s is None)


def _group(
    measured: Iterable[_Measured],
    key: Callable[[Point], Hashable],
    name: Callable[[Point], str],
    label: Callable[[Point], str] = lambda _: "",
    keep_single_user: bool = False,
) -> tuple[Series, ...]:
    """Loads of equal `key` as a series; a load that nothing else can be joined to is left out."""
    groups: dict[Hashable, list[_Measured]] = defaultdict(list)
    for load in measured:
        groups[key(load[0])].append(load)
    series = []
    for group in groups.values():
        group.sort(key=lambda load: (load[0].users, _middle_depth(load[0])))
        first = group[0][0]
        has_line = len({(point.users, point.depth) for point, _, _ in group}) > 1
        if has_line or (keep_single_user and first.users == 1):
            points = tuple(
                DataPoint(x, y.value, (y.low, y.high) if y.n > 1 else None, label(point))
                for point, x, y in group
            )
            series.append(Series(name(first), points))
    return tuple(series)


def _text_and_users(point: Point) -> Hashable:
    return point.text_label, point.users


def _planned_point(x: float, band: Band) -> DataPoint:
    return DataPoint(x, band.expected, (band.low, band.high))


def _middle_depth(point: Point) -> float:
    """Tokens before the middle one of an answer, over all turns."""
    earlier_turns = (point.turns - 1) * (point.prompt_tokens + point.answer_tokens) / 2
    return point.depth + earlier_turns + point.answer_tokens / 2


def _axis(label: str, values: list[float], log_from: float) -> Axis:
    return Axis(label, is_log=max(values) / max(1.0, min(values)) > log_from)
