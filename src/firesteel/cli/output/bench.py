"""A measured run as a table, with its notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from firesteel.cli.output.show import table
from firesteel.errors import printable
from firesteel.library.history import band, client_cost, figure, found_text, number, planned_rows

if TYPE_CHECKING:
    from firesteel.bench.measurements import BenchRun, PointFigures

_COLUMNS = (
    "#", "shape", "text", "users", "tokens", "decode tok/s", "total tok/s", "TTFT ms", "p99", "prefill tok/s",
    "n",
)  # fmt: skip
_COLD_COLUMNS = ("cold TTFT ms", "cold tok/s")


def run_view(run: BenchRun, cold: bool = False) -> Group:
    rows = [[Text(str(number)), *_row(figures, cold)] for number, figures in enumerate(run.figures, 1)]
    columns = (*_COLUMNS, *_COLD_COLUMNS) if cold else _COLUMNS
    lines = [Text(printable(line)) for line in _lines(run)]
    return Group(table(columns, rows), Text(), *lines)


def _row(figures: PointFigures, cold: bool) -> list[Text]:
    point = figures.point
    depth = f"{point.depth:,} + {point.answer_tokens}" + (f", {point.turns} turns" if point.turns > 1 else "")
    users = f"{point.rate_per_s:g}/s" if point.rate_per_s else str(point.users)
    cells = [
        point.shape, point.text_label, users, depth,
        figure(figures.decode_tokens_per_s), figure(figures.total_tokens_per_s),
        figure(figures.ttft_mean_ms), number(figures.ttft_ms.get("p99")),
        figure(figures.prefill_tokens_per_s),
        f"{figures.repetitions}" + (f", {sum(figures.wrong.values())} failed" if figures.wrong else ""),
    ]  # fmt: skip
    if cold:
        cells += [number(figures.cold.get("ttft_ms")), number(figures.cold.get("decode_tokens_per_s"))]
    return [Text(cell) for cell in cells]


def _lines(run: BenchRun) -> Iterable[str]:
    yield from (f"find    {found_text(found, run.settings.target)}" for found in run.found)
    for row in planned_rows(run):
        yield f"plan    {row.measure} {figure(row.measured)}, planned {band(row.planned)}: {row.verdict}"
    for row_number, figures in enumerate(run.figures, 1):
        yield from (f"note    #{row_number}: {note}" for note in figures.notes)
        if more := _more(figures):
            yield f"also    #{row_number}: {more}"
    yield from (f"note    {note}" for note in run.notes)
    yield f"client  {client_cost(run.client)}"
    if gpu := _gpu(run.beside):
        yield f"gpu     {gpu}"
    temperature = run.settings.temperature
    shown = "not known" if temperature is None else f"{temperature:g}"
    yield f"run     {run.id}, temperature {shown}, seed {run.settings.seed}"
    yield "n: repetitions that count. Intervals are 95 %, over repetitions: parallel streams count as one."


def _more(figures: PointFigures) -> str:
    values = {
        "of the bandwidth bound": figures.bandwidth_share and f"{figures.bandwidth_share:.2f}",
        "tokens per step": figures.accepted_per_step and f"{figures.accepted_per_step:.2f}",
        "J/token of the GPU": figures.joules_per_token and f"{figures.joules_per_token:.3f}",
        "requests/s within the target": figures.goodput_per_s is not None and f"{figures.goodput_per_s:.2f}",
        "of prompts cached": figures.cached_share
        and figures.point.shared_tokens
        and f"{figures.cached_share:.0%}",
        "tok/s by the engine's own clock": figures.server.get("decode_tokens_per_s")
        and f"{figures.server['decode_tokens_per_s']:.1f}",
    }
    return ", ".join(f"{value} {name}" for name, value in values.items() if value)


def _gpu(samples: Mapping[str, Any]) -> str:
    units = {"clock_mhz": "MHz", "power_w": "W", "temperature_c": "°C"}
    return ", ".join(
        f"{samples[name]['least']:.0f} to {samples[name]['most']:.0f} {unit}"
        for name, unit in units.items()
        if name in samples
    )
