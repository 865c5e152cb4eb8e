"""A plan as a chart in SVG: what fills the memory, speed against the bandwidth limit, quality. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.catalog.recipe import Quality
from firesteel.planner.plan import Plan
from firesteel.planner.propose import Proposal
from firesteel.planner.speed.speed import Speed
from firesteel.render.charts import Axis, Row, RowChart, draw_panels
from firesteel.render.svg import COLOURS
from firesteel.units import Band, show_bytes, show_figure, show_seconds


def draw_plan(proposal: Proposal) -> str:
    plan = proposal.plan
    charts = [_memory(plan)]
    if plan.speed and not plan.speed.requests_per_s:
        charts.append(_speed(plan.speed))
    if proposal.recipe and proposal.recipe.quality:
        charts.append(_quality(proposal.recipe.quality))
    title = f"{plan.launch.model} on {plan.machine}: {plan.memory.verdict}"
    engine = f"{plan.launch.engine} {plan.launch.version or ''}".rstrip()
    size = f"{plan.cache.users} x {plan.cache.context:,} tokens"
    prompt = plan.speed.prefill if plan.speed else None
    if prompt:
        size += f"; a prompt of {prompt.prompt_tokens:,} in {show_seconds(prompt.ttft_ms.expected / 1000)}"
    return draw_panels(title, charts, f"{engine}, {size}; whiskers are the bands of estimated values")


def _memory(plan: Plan) -> RowChart:
    """The parts end to end, against the bytes that are available."""
    rows, start = [], 0.0
    for part in plan.memory.parts:
        low, size, high = (value / 2**30 for value in (part.bytes.low, part.bytes.expected, part.bytes.high))
        whisker = (start + low, start + high) if high > low else None
        label = show_bytes(round(part.bytes.expected))
        rows.append(Row(part.name, label, bar=(start, start + size), whisker=whisker))
        start += size
    available = plan.memory.budget_bytes
    limit = (available / 2**30, f"available: {show_bytes(available)}")
    return RowChart("Memory", Axis("GiB"), tuple(rows), limit=limit, colours=COLOURS)


def _quality(scores: tuple[Quality, ...]) -> RowChart:
    """Every suite as a share of the unquantized model's score, or as it is where there is no baseline."""
    rows = []
    for score in scores:
        label = f"{score.this:g} of {score.baseline:g}" if score.baseline else f"{score.this:g}, no baseline"
        rows.append(Row(score.suite, label, bar=(0.0, score.this)))
    return RowChart("Quality, as published", Axis("score"), tuple(rows), colours=COLOURS)


def _speed(speed: Speed) -> RowChart:
    limit = (speed.bound_tokens_per_s, f"bandwidth limit: {speed.bound_tokens_per_s:.0f}")
    title = f"Decode, {speed.basis}, {show_bytes(speed.bytes_per_token)} read per token"
    return RowChart(title, Axis("tok/s"), tuple(_rates(speed)), limit=limit, colours=COLOURS)


def _rates(speed: Speed) -> Iterator[Row]:
    yield _rate("one user", speed.decode_tokens_per_s)
    yield from (_rate(f"at {depth:,} tokens", rate) for depth, rate in speed.at_depth if depth > 1024)
    if drafted := speed.drafted_tokens_per_s:
        yield _rate("one user, drafted", drafted)
    if several := speed.served or speed.batch:
        yield _rate(f"each of {several.users} users", several.per_user_tokens_per_s)
        yield _rate(f"all {several.users} users", several.total_tokens_per_s)


def _rate(name: str, band: Band) -> Row:
    label = f"{show_figure(band.expected)} ({show_figure(band.low)} to {show_figure(band.high)})"
    return Row(name, label, bar=(0.0, band.expected), whisker=(band.low, band.high))
