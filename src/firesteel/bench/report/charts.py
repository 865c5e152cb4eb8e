"""The charts of a run, each with its section of the page.

`ReportData` is the input of all of them. Charts with two axes show total against per-user speed, and time to
first token and decode against depth. Charts with a row for each load show plan against measured, share of
the bandwidth, gaps and failed requests. Charts over time show the host: GPU clock, power, temperature,
memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from firesteel.bench.compare.against import (
    PlanComparison,
    PublishedComparison,
    against_plan,
    against_published,
)
from firesteel.bench.compare.stats import percentile
from firesteel.bench.measurements import (
    SHARE_HIGH,
    SHARE_LOW,
    BenchRun,
    MeasuredFigure,
    Point,
    PointFigures,
    RequestSample,
    StoredRun,
)
from firesteel.bench.report import tables
from firesteel.planner.speed.decode import constants
from firesteel.planner.speed.published import PublishedRun, run_sources
from firesteel.render.charts import Axis, DataPoint, LinePlot, Row, RowChart, Series, downsample, histogram
from firesteel.render.svg import BAD_COLOUR, LegendEntry
from firesteel.units import Band, show_bytes
from firesteel.values import Value, replace

_MAX_PUBLISHED = 24
_MIN_VALUE, _MAX_VALUE = 1e-9, 1e15


class ChartSection(Value):
    """A drawing and its table. A chart without data has neither: `missing` says what it needs."""

    title: str
    svg: str = ""
    head: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    missing: str = ""
    note: str = ""
    """How to read it."""


def section(
    chart: LinePlot | RowChart,
    name: str,
    note: str = "",
    table: tuple[tuple[str, ...], Sequence[tuple[str, ...]]] | None = None,
) -> ChartSection:
    """`table` replaces the table of the chart, where it has more to show."""
    undrawn = f"{chart.undrawn} more are only in the table." if chart.undrawn else ""
    note = " ".join(sentence for sentence in (note, undrawn) if sentence)
    return ChartSection(chart.title, chart.svg(name), *(table or chart.table()), note=note)


class ReportData(Value):
    run: BenchRun
    samples: tuple[RequestSample, ...] = ()
    published: tuple[PublishedRun, ...] = ()

    @classmethod
    def of(cls, stored: StoredRun, published: Sequence[PublishedRun] = ()) -> ReportData:
        rows = (row for row in published if row.decode_tps and _MIN_VALUE < row.decode_tps < _MAX_VALUE)
        return cls(stored.run, stored.samples, tuple(rows)[:_MAX_PUBLISHED])

    @property
    def plan(self) -> Mapping[str, Any]:
        return self.run.subject.plan

    def plan_comparisons(self) -> tuple[PlanComparison, ...]:
        return tuple(row for row in against_plan(self.run) if _is_plausible(row.planned))

    def published_comparisons(self) -> tuple[PublishedComparison, ...]:
        urls = {name: origin.url for name, origin in run_sources().items()}
        carried = constants().carried
        return against_published(self.run, self.published, urls, (carried.low, carried.high))


def has_no_gpu(run: BenchRun) -> bool:
    """Then arithmetic is the limit, and a small share of the bandwidth is not a sign of a fault."""
    return run.subject.host.get("gpus") in ([], ())


def is_number(value: object) -> TypeGuard[float]:
    """A number of a size that something measured can have: a stored plan may contain anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_VALUE


def parse_band(value: object) -> Band | None:
    match value:
        case {"low": low, "expected": expected, "high": high} if all(map(is_number, (low, expected, high))):
            band = Band(float(low), float(expected), float(high))
            return band if _is_plausible(band) else None
    return None


def _is_plausible(band: Band) -> bool:
    return 0 <= band.low <= band.expected <= band.high < _MAX_VALUE and band.expected > _MIN_VALUE


# --- two axes ---

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
        name=lambda point: f"{point.text_label}, {tables.tokens(point)} tokens",
        label=tables.users,
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
    series = _group(measured, _text_and_users, lambda point: f"{point.text_label}, {tables.users(point)}")
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
        lambda point: f"measured: {point.text_label}, {tables.users(point)}",
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


# --- a row for each load ---

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
    """Measured figures over planned ones as ratios, with those that others reported."""
    title = "Plan against measured"
    planned, published = data.plan_comparisons(), data.published_comparisons()
    if not planned and not published:
        why = "the plan covers none of these loads" if data.plan else "the run has no plan"
        return ChartSection(title, missing=f"{why}, and there are no published figures for them")
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
        (tables.load(row.point), row.measure, tables.figure(row.measured),
         f"planned {tables.band(row.planned)}", f"{row.off:.2f}", row.verdict)
        for row in planned
    ] + [
        (tables.load(row.point), "decode", tables.figure(row.measured),
         f"reported {tables.number(row.published.decode_tps)} at {row.published.middle_depth:,}",
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
    label = f"planned {tables.band(planned)}: {verdict}" if planned else (
        f"reported {tables.number(min(reported))} to {tables.number(max(reported))}"
    )  # fmt: skip
    return Row(
        f"{measure}, {tables.load(point)}",
        f"{tables.number(base)}, {label}",
        marker=1.0,
        whisker=(measured.low / base, measured.high / base) if measured.n > 1 else None,
        band=(planned.low / base, planned.expected / base, planned.high / base) if planned else None,
        reported=tuple(value / base for value in reported),
    )


def bandwidth_share(data: ReportData, name: str) -> ChartSection:
    title = "Share of the memory bandwidth limit"
    rows = tuple(
        Row(
            tables.load(figures.point),
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
    """How the gaps between chunks of an answer are distributed, by load."""
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
            tables.load(figures.point),
            " / ".join(map(tables.number, spread)) + " ms",
            bins=histogram(gaps_ms[figures.point], low, high),
            percentiles=spread,
        )
        for figures, spread in known
    )
    chart = RowChart(title, Axis("ms", is_log=True), rows)
    table = [
        (tables.load(figures.point), *map(tables.number, spread),
         *(tables.number(figures.time_per_output_token_ms.get(p)) for p in ("p50", "p99")))
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


# --- the host over time ---

_METRICS: Mapping[str, tuple[str, str, float]] = {
    "clock_mhz": ("GPU clock", "MHz", 1),
    "power_w": ("GPU power", "W", 1),
    "temperature_c": ("GPU temperature", "\u00b0C", 1),
    "use_percent": ("GPU utilization", "%", 1),
    "memory_available_bytes": ("Available memory", "GiB", 2**30),
    "kv_usage": ("KV cache usage", "%", 0.01),
}
"""Key in the samples of a run: title, unit, and what a sample is divided by."""


def host_over_time(samples: Mapping[str, Any]) -> tuple[ChartSection, ...]:
    """The minimum, mean and maximum of each metric, then a chart of each that was kept over time."""
    title = "The host during the run"
    rows = tuple(_summary(samples))
    if not rows:
        return (ChartSection(title, missing="no clock, power, temperature or memory was sampled"),)
    charts = tuple(_charts(samples.get("over_time")))
    note = "" if charts else "Only the minimum, mean and maximum were kept, so there is no chart over time."
    return ChartSection(title, head=("metric", "minimum", "mean", "maximum"), rows=rows, note=note), *charts


def _summary(samples: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, (title, unit, divisor) in _METRICS.items():
        match samples.get(key):
            case {"least": least, "mean": mean, "most": most} if all(map(is_number, (least, mean, most))):
                yield f"{title}, {unit}", *(tables.number(v / divisor) for v in (least, mean, most))


def _charts(over_time: object) -> Iterator[ChartSection]:
    """Of `{"at_s": [...], "clock_mhz": [...], ...}`: lists of one length, None where nothing was sampled."""
    if not isinstance(over_time, Mapping) or not isinstance(times := over_time.get("at_s"), list | tuple):
        return
    for key, (title, unit, divisor) in _METRICS.items():
        values = over_time.get(key)
        pairs = zip(times, values, strict=False) if isinstance(values, list | tuple) else ()
        points = [DataPoint(t, value / divisor) for t, value in pairs if is_number(t) and is_number(value)]
        if len(points) < 2:
            continue
        series = Series("", downsample(sorted(points, key=lambda point: point.x)), "line")
        plot = LinePlot(
            title, Axis("seconds of the run"), Axis(unit), (series,),
            height=190, is_tight=True, from_zero=key != "temperature_c",
        )  # fmt: skip
        yield ChartSection(title, plot.svg(key.replace("_", "-")))
