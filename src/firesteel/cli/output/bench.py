"""A run, for people and for scripts: the table with its notes, and the JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text as Words

from firesteel.bench.compare.against import against_plan
from firesteel.bench.values import BenchRun, MeasuredFigure, PointFigures
from firesteel.cli.output.documents import BenchJson
from firesteel.cli.output.show import table
from firesteel.printable import printable


def document(run: BenchRun, html: Path | None = None) -> BenchJson:
    told = {name: value for name, value in asdict(run).items() if name != "limits"}
    return BenchJson.model_validate({**told, "html": str(html) if html else None})


def view(run: BenchRun, cold: bool = False) -> Group:
    """The table, with the notes that belong to it."""
    rows = [[Words(str(at)), *_row(each, cold)] for at, each in enumerate(run.figures, 1)]
    columns = (
        "#",
        "shape",
        "text",
        "users",
        "tokens",
        "decode tok/s",
        "total tok/s",
        "TTFT ms",
        "p99",
        "prefill tok/s",
        "n",
    )
    parts: list[Any] = [table((*columns, "cold TTFT ms", "cold tok/s") if cold else columns, rows), Words()]
    parts += [Words(printable(line)) for line in _lines(run)]
    return Group(*parts)


def _row(each: PointFigures, cold: bool) -> list[Words]:
    point = each.point
    depth = f"{point.depth:,} + {point.answer_tokens}" + (f", {point.turns} turns" if point.turns > 1 else "")
    users = f"{point.rate_per_s:g}/s" if point.rate_per_s else str(point.users)
    first = each.ttft_ms
    cells = [
        point.shape, point.text, users, depth, figure(each.decode_tokens_per_s),
        figure(each.total_tokens_per_s),
        figure(each.ttft_mean_ms), _plain(first.get("p99")), figure(each.prefill_tokens_per_s),
        f"{each.repetitions}" + (f", {sum(each.wrong.values())} wrong" if each.wrong else ""),
    ]  # fmt: skip
    if cold:
        cells += [_plain(each.cold.get("ttft_ms")), _plain(each.cold.get("decode_tokens_per_s"))]
    return [Words(cell) for cell in cells]


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def figure(found: MeasuredFigure | None) -> str:
    """`53.8 ±1.2%`; of one observation the interval says nothing."""
    if found is None:
        return "-"
    return (
        f"{_plain(found.value)} ±{found.half_width:.1%}" if found.n > 1 else f"{_plain(found.value)} (once)"
    )


def _lines(run: BenchRun) -> Iterable[str]:
    for held in against_plan(run):
        band = held.planned
        planned = f"{_plain(band.expected)} ({_plain(band.low)} to {_plain(band.high)})"
        yield f"plan    {held.measure} {figure(held.measured)}, planned {planned}: {held.verdict}"
    for at, each in enumerate(run.figures):
        yield from (f"note    #{at + 1}: {note}" for note in each.notes)
        yield from _more(at, each)
    yield from (f"note    {note}" for note in run.notes)
    yield f"client  {_client(run)}"
    if beside := _beside(run.beside):
        yield f"beside  {beside}"
    warmth = run.settings.temperature
    told = "not known" if warmth is None else f"{warmth:g}"
    yield f"run     {run.id}, temperature {told}, seed {run.settings.seed}"
    yield "n: visits that count. Intervals are of 95 %, over visits: streams side by side are one of n."


def _more(at: int, each: PointFigures) -> Iterable[str]:
    found = {
        "of the bandwidth bound": each.bandwidth_share and f"{each.bandwidth_share:.2f}",
        "tokens a step": each.accepted_per_step and f"{each.accepted_per_step:.2f}",
        "J/token of the GPU": each.joules_per_token and f"{each.joules_per_token:.3f}",
        "requests/s within the target": each.goodput_per_s is not None and f"{each.goodput_per_s:.2f}",
        "of prompts cached": each.cached_share and each.point.shared_tokens and f"{each.cached_share:.0%}",
        "tok/s by the engine's own clock": each.server.get("decode_tokens_per_s")
        and f"{each.server['decode_tokens_per_s']:.1f}",
    }
    told = ", ".join(f"{value} {name}" for name, value in found.items() if value)
    if told:
        yield f"also    #{at + 1}: {told}"


def _client(run: BenchRun) -> str:
    lag, cpu = run.client.get("p99_lag_ms"), run.client.get("cpu_share")
    late = f"at most {lag:.2f} ms late in 99 of 100 cases" if lag is not None else "its lateness is not known"
    return f"{late}, {cpu:.1%} of a core" if cpu is not None else late


def _beside(seen: Mapping[str, Any]) -> str:
    units = {"clock_mhz": "MHz", "power_w": "W", "temperature_c": "°C"}
    told = [
        f"{seen[name]['least']:.0f} to {seen[name]['most']:.0f} {unit}"
        for name, unit in units.items()
        if name in seen
    ]
    return ", ".join(told)
