"""`firesteel bench [NAME]`, `firesteel bench --url http://host:8000/v1`"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from firesteel import library
from firesteel.bench.load import shapes as load_shapes
from firesteel.bench.load.contention import watch_contention
from firesteel.bench.load.measure import (
    Event,
    RunFinished,
    RunOrder,
    RunProgress,
    RunStarted,
    SampleTaken,
    measure,
)
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.load.shapes import Sizes, fit_context, points
from firesteel.bench.load.subject import FoundSubject, of_service, of_url
from firesteel.bench.results.history import History, new_run_id, open_history
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, Point, RequestSample, RequestSettings
from firesteel.cli.endpoints import base_url, key_from, pick_service, require_one_target
from firesteel.cli.options import bench, common
from firesteel.cli.output.bench import view
from firesteel.cli.output.bench_page import write_page
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import SlowLines
from firesteel.cli.output.show import err, out, table
from firesteel.edge.http.engine_client import is_healthy
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.planner import Plan, launch_key
from firesteel.run import Service, stored_expected
from firesteel.run.verify.prove import key_of
from firesteel.units import show_seconds


@click.command("bench")
@click.argument("name", required=False)
@click.option("--url", help="Measure any OpenAI endpoint (http://host:8000/v1) instead of a service.")
@click.option("--model", help="With --url: measure this model, if the server has several.")
@bench.load_options(budget="2m")
@click.option(
    "--rate",
    callback=bench.several(bench.rate),
    metavar="0.5,2",
    help="Send this many requests a second, whether or not earlier ones were answered (open loop).",
)
@click.option(
    "--target",
    callback=bench.several(bench.target),
    metavar="ttft=500ms,token=50ms",
    help="Count the requests that meet this target (goodput).",
)
@bench.thinking_option
@click.option(
    "--temperature",
    type=click.FloatRange(0, 2),
    default=0.0,
    show_default=True,
    help="Sample at this temperature.",
)
@click.option("--cold", is_flag=True, help="Show the first, cold repetitions too.")
@click.option("--resume", metavar="RUN", help="Continue a run that was interrupted.")
@click.option("--key-env", metavar="VAR", help="Read the key for --url from this environment variable.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML report to this file."
)
@common.json_option
def command(
    name: str | None, url: str | None, model: str | None, shapes: tuple[str, ...], cold: bool,
    resume: str | None, key_env: str | None, html: Path | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Measure how fast NAME is, with confidence intervals.

    Without arguments: the running service with one and four users, in about two minutes. Every run is kept;
    `firesteel history` lists them and `firesteel compare` compares two.

    \b
    Exits 0  measured; failed requests are counted and named
          1  nothing could be measured
    """
    if shapes == ("list",):
        _list_shapes(as_json)
        return 0
    require_one_target("bench", name, url, model)
    if resume and shapes:
        raise UsageError("a resumed run keeps its shapes", next=f"firesteel bench --resume {resume}")
    if html and not html.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {html.parent}", next="another path for --html")
    server, key = asyncio.run(_subject(name, url, model, key_env))
    with open_history(library.home()) as history:
        if resume:
            order = _resumed(history, resume, server, key, options)
        else:
            order = _order(server, key, shapes, options)
        done = _run(order, history)
        if html:
            write_page(html, StoredRun(done.run, done.samples), history)
    if as_json:
        from firesteel.bench.documents import bench_json

        common.print_json(bench_json(done.run, html))
    else:
        out.print(view(done.run, cold))
        if html:
            err.print(f"report  {html}", markup=False)
    return 0 if any(figures.samples for figures in done.run.figures) else 1


def _list_shapes(as_json: bool) -> None:
    if not as_json:
        out.print(
            table(("name", "load"), [(name, shape.about) for name, shape in load_shapes.shapes().items()])
        )
        return
    from firesteel.bench.documents import BenchShapesJson, ShapeJson

    rows = tuple(ShapeJson(name=name, **vars(shape)) for name, shape in load_shapes.shapes().items())
    common.print_json(BenchShapesJson(shapes=rows))


# --- options -> the run to do ---


async def _subject(
    name: str | None, url: str | None, model: str | None, key_env: str | None
) -> tuple[FoundSubject, str | None]:
    if url:
        key = key_from(os.environ, key_env)
        return await of_url(base_url(url), model, key), key
    service = pick_service(name)
    if not await is_healthy(service.spec.url, timeout_s=10):
        raise HostNotReady(f"{service.name} does not answer at {service.spec.url}", next="firesteel ps")
    plan = await asyncio.to_thread(_plan_of, service)
    host = await asyncio.to_thread(library.host)
    return of_service(service, stored_expected(service.folder), plan, host), key_of(service.spec)


def _plan_of(service: Service) -> Plan | None:
    """The plan of the launch that runs, made again from what was asked for; None when it would differ."""
    workspace = library.workspace()
    try:
        proposals = workspace.propose(service.spec.ask, workspace.host())
    except FiresteelError:
        return None
    plans = (proposal.plan for proposal in proposals)
    return next((plan for plan in plans if launch_key(plan.launch) == service.spec.launch), None)


def _order(
    server: FoundSubject, key: str | None, shapes: tuple[str, ...], options: Mapping[str, Any]
) -> RunOrder:
    sizes = Sizes(
        options["users"], options["depth"], options["text"], options["rate"],
        next(iter(options["answer"]), None),
    )  # fmt: skip
    wanted, notes = fit_context(points(shapes or ("quick",), sizes), server.context)
    if not wanted:
        raise UsageError(f"none of these points fits: {notes[0]}", next="--depth with fewer tokens")
    settings = RequestSettings(
        temperature=options["temperature"],
        thinking={"on": True, "off": False, None: None}[options["thinking"]],
        max_num_seqs=server.users,
        seed=options["seed"],
        target=dict(options["target"]),
    )
    limits = RunLimits(options["budget"], options["precision"])
    notes = (*notes, *_queueing(wanted, server))
    return RunOrder(server.subject, wanted, settings, limits, key, new_run_id(), notes=notes)


def _queueing(wanted: Iterable[Point], server: FoundSubject) -> Iterable[str]:
    most = max((point.users for point in wanted if point.rate_per_s is None), default=0)
    if server.users and most > server.users:
        yield f"it serves {server.users} requests at once; with {most} users the others wait"


def _resumed(
    history: History, run_name: str, server: FoundSubject, key: str | None, options: Mapping[str, Any]
) -> RunOrder:
    """The same points and settings, and again as much time as the run had, unless the user says otherwise."""
    stored = history.resume(run_name)
    run = stored.run
    if run.subject.model != server.subject.model:
        what = f"run {run.id} measured {run.subject.model}, not {server.subject.model}"
        raise UsageError(what, next="firesteel bench")
    budget_s, precision = (
        options[name] if _was_given(name) else run.limits.get(limit, options[name])
        for name, limit in (("budget", "budget_s"), ("precision", "precision"))
    )
    limits = RunLimits(_elapsed_s(stored.samples) + budget_s, precision)
    return RunOrder(
        server.subject, run.points, run.settings, limits, key, run.id, earlier_samples=stored.samples
    )


def _elapsed_s(samples: Iterable[RequestSample]) -> float:
    """Seconds of the run's clock that earlier parts took, counted as `measure` counts them."""
    ends = [sample.started_s + sample.total_s for sample in samples]
    return max(ends) + 1.0 if ends else 0.0


def _was_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


# --- the run ---


def _run(order: RunOrder, history: History) -> RunFinished:
    try:
        with _sigterm_as_sigint():
            return _run_fast(_measured(order, history))
    except (asyncio.CancelledError, KeyboardInterrupt):
        again = typed(f"firesteel bench --resume {order.id}")
        # click turns a KeyboardInterrupt into an Abort without a message, but lets an Abort pass.
        raise click.Abort(f"what was measured so far is kept; to continue: {again}") from None


@contextmanager
def _sigterm_as_sigint() -> Iterator[None]:
    """SIGTERM ends a run like Ctrl-C: with the hint how to continue it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_fast(work: Coroutine[Any, Any, RunFinished]) -> RunFinished:
    """uvloop needs less CPU time for each chunk, so the client disturbs the measurement less."""
    try:
        import uvloop  # optional

        loop: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        loop = None
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)


async def _measured(order: RunOrder, history: History) -> RunFinished:
    last: RunFinished | None = None
    with watch_contention(library.home(), order.subject.url, order.id) as others:
        async for event in _followed(measure(order)):
            if isinstance(event, RunStarted) and not history.is_begun(order.id):
                history.begin(_annotated(event.run, order, others()))
            elif isinstance(event, SampleTaken):
                history.add(order.id, event.sample)
            elif isinstance(event, RunFinished):
                last = replace(event, run=_annotated(event.run, order, others()))
    assert last is not None
    history.finish(last.run)
    return last


def _annotated(run: BenchRun, order: RunOrder, notes: tuple[str, ...]) -> BenchRun:
    """With its limits, so that it can be resumed; of a resumed run, those of this part."""
    limits, elapsed_s = order.limits, _elapsed_s(order.earlier_samples)
    return replace(
        run,
        notes=(*run.notes, *notes),
        limits={"budget_s": limits.budget_s - elapsed_s, "precision": limits.precision},
    )


async def _followed(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Shows progress on stderr: one moving line on a terminal, otherwise a line every ten seconds."""
    status = err.status("bench") if err.is_terminal else None
    lines = SlowLines()
    with status or nullcontext():
        async for event in events:
            if isinstance(event, RunProgress):
                left = f", at most {show_seconds(event.left_s)} more" if event.left_s else ""
                if status:
                    status.update(f"bench: {event.text}{left}")
                else:
                    lines.print(f"bench   {event.text}{left} ...")
            yield event
