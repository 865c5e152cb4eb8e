"""Measurements: of a service or any OpenAI endpoint, of two servers in turns, and of their answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.bench.compare import answers as both_answers
from firesteel.bench.compare import servers as ab
from firesteel.bench.load import measure as recorded
from firesteel.bench.load import prompts as own_prompts
from firesteel.bench.load import schedule as load_shapes
from firesteel.bench.load.measure import Event, RunFinished, RunProgress, RunStarted
from firesteel.bench.load.schedule import RunLimits, Shape, Sizes
from firesteel.bench.measurements import RequestSettings, StoredRun
from firesteel.edge.home import find_home
from firesteel.errors import FiresteelError
from firesteel.library.history import compare_runs, history

if TYPE_CHECKING:
    from firesteel.bench.compare.answers import QualityComparison
    from firesteel.bench.compare.runs import Comparison

__all__ = [  # values of other packages that its functions take or return
    "RequestSettings",
    "RunFinished",
    "RunLimits",
    "RunProgress",
    "RunStarted",
    "Sizes",
    "StoredRun",
]


def known_shapes() -> Mapping[str, Shape]:
    """The shapes of load that `measure` knows, by name."""
    return load_shapes.shapes()


async def measure(
    name: str | None = None,
    *,
    url: str | None = None,
    model: str | None = None,
    key: str | None = None,
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    settings: RequestSettings | None = None,
    limits: RunLimits | None = None,
    resume: str | None = None,
    prompts: str | Path | None = None,
    find: bool = False,
) -> AsyncGenerator[Event]:
    """Measures a service or any OpenAI endpoint; the last event is `RunFinished`, and the run is stored.

    `resume`: an interrupted run to continue; it keeps its points and settings. `prompts`: a file with the
    user's prompts. `find`: search for the highest load that holds `settings.target`, instead of `shapes`.
    """
    if resume:
        budget_s, precision = (limits.budget_s, limits.precision) if limits else (None, None)
        resumed = resume_run(
            resume, name, url=url, model=model, key=key, budget_s=budget_s, precision=precision,
            prompts=prompts,
        )  # fmt: skip
        async for event in resumed:
            yield event
        return
    own = own_prompts.read_prompts(Path(prompts)) if prompts else None
    server = await recorded.find_server(find_home(), name, url, model, key)
    with history() as runs:
        if find:
            order = recorded.search_order(server, sizes, settings, limits, own)
        else:
            order = recorded.make_order(server, shapes, sizes, settings, limits, own=own)
        async for event in recorded.measure_recorded(order, runs, find_home()):
            yield event


async def resume_run(
    run: str,
    name: str | None = None,
    *,
    url: str | None = None,
    model: str | None = None,
    key: str | None = None,
    budget_s: float | None = None,
    precision: float | None = None,
    prompts: str | Path | None = None,
) -> AsyncGenerator[Event]:
    """Continue an interrupted run, with its own limits unless others are given."""
    own = own_prompts.read_prompts(Path(prompts)) if prompts else None
    server = await recorded.find_server(find_home(), name, url, model, key)
    with history() as runs:
        order = recorded.resume_order(runs, run, server, budget_s, precision, own)
        async for event in recorded.measure_recorded(order, runs, find_home()):
            yield event


async def compare_in_turns(
    first: str,
    second: str,
    *,
    model: str | None = None,
    key: str | None = None,
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    limits: RunLimits | None = None,
) -> AsyncGenerator[Event | Comparison]:
    """Measure two servers (URLs or running services) in turns; the last event is the `Comparison`."""
    events = measure_in_turns(first, second, model=model, key=key, shapes=shapes, sizes=sizes, limits=limits)
    async for event in events:
        yield event[1] if isinstance(event, tuple) else event


async def measure_in_turns(
    first: str,
    second: str,
    *,
    model: str | None = None,
    key: str | None = None,
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    limits: RunLimits | None = None,
    seed: int = 0,
    despite: Iterable[str] = (),
) -> AsyncGenerator[tuple[ab.Side, Event] | Comparison]:
    """The same, with the side (0 or 1) of each event. `despite`: settings that may differ."""
    done: dict[int, StoredRun] = {}
    servers = await ab.find_servers(find_home(), (first, second), model, key)
    with history() as known:
        async for side, event in ab.measure_in_turns(known, servers, shapes, sizes, limits, seed):
            if isinstance(event, RunFinished):
                if event.too_short:
                    hint = f"add --budget {load_shapes.budget_text(2 * event.wanted_s)}, for both together"
                    raise FiresteelError(event.too_short, next=hint)
                done[side] = StoredRun(event.run, event.samples)
            yield side, event
    yield compare_runs(done[0], done[1], despite=despite, is_interleaved=True)


async def compare_answers(
    first: str, second: str, *, model: str | None = None, key: str | None = None, budget_s: float = 240.0
) -> QualityComparison:
    """Two URLs or running services, asked the same at temperature 0: how their answers differ."""
    events = ask_both(first, second, model=model, key=key, budget_s=budget_s)
    return [event async for event in events if not isinstance(event, int)][-1]


async def ask_both(
    first: str,
    second: str,
    *,
    model: str | None = None,
    key: str | None = None,
    budget_s: float = 240.0,
    answer_tokens: int | None = None,
) -> AsyncGenerator[int | QualityComparison]:
    """The same; how many prompts were asked so far, and at the end the comparison."""
    servers = await ab.find_servers(find_home(), (first, second), model, key)
    pairs = []
    async for pair in both_answers.ask_both(servers, budget_s, answer_tokens):
        pairs.append(pair)
        yield len(pairs)
    yield both_answers.compare_quality((first, second), pairs)
