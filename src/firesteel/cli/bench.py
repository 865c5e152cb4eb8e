"""`firesteel bench [NAME]`, `firesteel bench --url http://host:8000/v1`"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from firesteel import library
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
from firesteel.bench.load.shapes import Sizes, fit_context, points, shapes
from firesteel.bench.load.subject import FoundSubject, of_service, of_url
from firesteel.bench.results.history import History, new_run_id, open_history
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, Point, RequestSample, RequestSettings
from firesteel.cli.options import bench, common
from firesteel.cli.output.bench import document, view
from firesteel.cli.output.bench_page import write_page
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import err, out, table
from firesteel.cli.up import command as up_command
from firesteel.cli.verify import base_of
from firesteel.edge.host.process import uptime
from firesteel.edge.http.engine_client import is_healthy
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.launch import Ask
from firesteel.planner import Plan, launch_key
from firesteel.run import Service, pick, stored_expected
from firesteel.run.verify.prove import key_of
from firesteel.units import show_seconds

_KEYS = ("FIRESTEEL_API_KEY", "OPENAI_API_KEY")
_QUIET_S = 10.0


@click.command("bench")
@click.argument("name", required=False)
@click.option("--url", help="Any OpenAI endpoint, http://host:8000/v1, in place of a service of ours.")
@click.option("--model", help="With --url: which of its models, where it has several.")
@click.option("--shape", "names", multiple=True, metavar="NAME", help="Load shape; `--shape list` names all.")
@click.option("--users", callback=bench.several(bench.count), metavar="1,4,16", help="Streams at once.")
@click.option(
    "--depth",
    callback=bench.several(bench.tokens),
    metavar="1k,8k",
    help="Tokens of each prompt.",
)
@click.option("--answer", callback=bench.several(bench.tokens), metavar="N", help="Tokens of each answer.")
@click.option("--text", callback=bench.several(bench.kind), metavar="KIND", help="prose, code, json, math.")
@click.option(
    "--rate",
    callback=bench.several(bench.rate),
    metavar="0.5,2",
    help="Requests a second, open loop.",
)
@click.option(
    "--budget",
    default="2m",
    callback=bench.one(bench.seconds),
    metavar="TIME",
    help="2m unless told.",
)
@click.option(
    "--precision",
    default="2%",
    callback=bench.one(bench.share),
    help="Stop when intervals are so narrow.",
)
@click.option(
    "--target",
    callback=bench.several(bench.goal),
    metavar="ttft=500ms,token=50ms",
    help="For goodput.",
)
@click.option("--thinking", type=click.Choice(["on", "off"]), help="Pin it; else as the server has it.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, help="0 unless told.")
@click.option("--cold", is_flag=True, help="Show the first, cold visits too.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Of texts and order.")
@click.option("--resume", metavar="RUN", help="Go on with a run that was cut off.")
@click.option("--key-env", metavar="VAR", help="The variable that has the key of --url.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report to read.")
@common.json_option
def command(
    name: str | None, url: str | None, model: str | None, names: tuple[str, ...], cold: bool,
    resume: str | None, key_env: str | None, html: Path | None, as_json: bool, **asked: Any,
) -> int:  # fmt: skip
    """Measure how fast NAME is, with intervals.

    Without words: the running service, one and four users, in about two minutes. Every run is kept;
    `firesteel history` lists them, `firesteel compare` holds two against each other.

    \b
    Exits 0  measured; requests that went wrong are counted and named
          1  nothing could be measured
    """
    if names == ("list",):
        return _list_shapes(as_json)
    _insist(name, url, model, names, resume, html)
    found, key = asyncio.run(_subject(name, url, model, key_env))
    with open_history(library.home()) as history:
        order = _resumed(history, resume, found, key, asked) if resume else _order(found, key, names, asked)
        done = _run(order, history)
        if html:
            write_page(html, StoredRun(done.run, done.samples), history)
    return _show(done, cold, html, as_json)


def _insist(
    name: str | None,
    url: str | None,
    model: str | None,
    names: tuple[str, ...],
    resume: str | None,
    html: Path | None,
) -> None:
    if url and name:
        raise UsageError("NAME is a service of ours, --url any other; give one of them", next="firesteel ps")
    if model and not url:
        raise UsageError(
            "--model goes with --url", next="firesteel bench --url http://host:8000/v1 --model M"
        )
    if resume and names:
        raise UsageError(
            "a run that goes on has its shapes already", next=f"firesteel bench --resume {resume}"
        )
    if html and not html.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {html.parent} to write to", next="another path for --html")


def _list_shapes(as_json: bool) -> int:
    rows = [(name, shape.about) for name, shape in shapes().items()]
    if as_json:
        raise UsageError("the list of shapes is for people", next="firesteel bench --shape list")
    out.print(table(("name", "load"), rows))
    return 0


async def _subject(
    name: str | None, url: str | None, model: str | None, key_env: str | None
) -> tuple[FoundSubject, str | None]:
    if url:
        key = _key(key_env, os.environ)
        return await of_url(base_of(url), model, key), key
    service = _picked(name)
    if not await is_healthy(service.spec.url, timeout_s=10):
        raise HostNotReady(f"{service.name} does not answer at {service.spec.url}", next="firesteel ps")
    plan = await asyncio.to_thread(_plan_of, service)
    host = await asyncio.to_thread(library.host)
    return of_service(service, stored_expected(service.folder), plan, host), key_of(service.spec)


def _key(variable: str | None, environ: Mapping[str, str]) -> str | None:
    """Never from the command line, which others on the machine can read."""
    if variable is None:
        return next((environ[name] for name in _KEYS if environ.get(name)), None)
    if not environ.get(variable):
        raise UsageError(f"the variable {variable} is not set", next=f"export {variable}=...")
    return environ[variable]


def _picked(name: str | None) -> Service:
    try:
        return pick(library.home(), name)
    except UsageError:
        raise
    except FiresteelError as error:
        raise HostNotReady(error.what, next=error.next) from error


def _plan_of(service: Service) -> Plan | None:
    """The plan of the very launch that runs: what was typed for it, planned again."""
    try:
        typed_words = shlex.split(service.spec.again)[2:]
        given = up_command.make_context("up", typed_words, resilient_parsing=True).params
        ask = Ask(
            next(iter(given["models"]), None), given["context"], given["users"], given["port"],
            engine=given["engine"], version=given["version"],
        )  # fmt: skip
        every = library.propose(ask, library.host())
    except (FiresteelError, ValueError, KeyError, click.ClickException):
        return None
    return next((each.plan for each in every if launch_key(each.plan.launch) == service.spec.launch), None)


def _order(
    found: FoundSubject, key: str | None, names: tuple[str, ...], asked: Mapping[str, Any]
) -> RunOrder:
    sizes = Sizes(
        asked["users"], asked["depth"], asked["text"], asked["rate"], next(iter(asked["answer"]), None)
    )
    wanted, notes = fit_context(points(names or ("quick",), sizes), found.context)
    if not wanted:
        raise UsageError(f"none of these points fits: {notes[0]}", next="--depth with fewer tokens")
    settings = RequestSettings(
        temperature=asked["temperature"],
        thinking={"on": True, "off": False, None: None}[asked["thinking"]],
        max_num_seqs=found.users,
        seed=asked["seed"],
        target=dict(asked["target"]),
    )
    limits = RunLimits(asked["budget"], asked["precision"])
    return RunOrder(
        found.subject, wanted, settings, limits, key, new_run_id(), notes=(*notes, *_crowded(wanted, found))
    )


def _crowded(wanted: Iterable[Point], found: FoundSubject) -> Iterable[str]:
    most = max((point.users for point in wanted if point.rate_per_s is None), default=0)
    if found.users and most > found.users:
        yield f"it serves {found.users} at once: of {most} users the others wait"


def _resumed(
    history: History, word: str, found: FoundSubject, key: str | None, asked: Mapping[str, Any]
) -> RunOrder:
    """The same points and settings; this stretch has as much time as the run had, unless it is told."""
    run, samples = (kept := history.resume(word)).run, kept.samples
    if run.subject.model != found.subject.model:
        what = f"run {run.id} is of {run.subject.model}, not of {found.subject.model}"
        raise UsageError(what, next="firesteel bench")
    spent = _spent(samples)
    budget_s, precision = (
        asked[name] if _is_told(name) else run.limits.get(key, asked[name])
        for name, key in (("budget", "budget_s"), ("precision", "precision"))
    )
    limits = RunLimits(spent + budget_s, precision)
    return RunOrder(found.subject, run.points, run.settings, limits, key, run.id, earlier_samples=samples)


def _spent(samples: Iterable[RequestSample]) -> float:
    """Seconds of the run's clock that earlier stretches took; as `measure` counts them."""
    ends = [each.started_s + each.total_s for each in samples]
    return max(ends) + 1.0 if ends else 0.0


def _is_told(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


# --- the run ---


def _run(order: RunOrder, history: History) -> RunFinished:
    try:
        with _stoppable():
            return _with_fast_loop(_measured(order, history))
    except (asyncio.CancelledError, KeyboardInterrupt):
        again = typed(f"firesteel bench --resume {order.id}")
        # click turns a KeyboardInterrupt into an Abort without words, and lets an Abort pass as it is.
        raise click.Abort(f"what was measured is kept; to go on: {again}") from None


@contextmanager
def _stoppable() -> Iterator[None]:
    """Whoever ends it politely (SIGTERM) is told the same as who presses Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _with_fast_loop(work: Any) -> RunFinished:
    """uvloop takes less time for each chunk; without it the client is only a little slower."""
    try:
        import uvloop  # where there is none, asyncio's own loop does

        loop: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        loop = None
    with asyncio.Runner(loop_factory=loop) as runner:
        found: RunFinished = runner.run(work)
        return found


async def _measured(order: RunOrder, history: History) -> RunFinished:
    last: RunFinished | None = None
    with watch_contention(library.home(), order.subject.url, order.id) as others:
        async for event in _followed(measure(order)):
            if isinstance(event, RunStarted) and not history.is_begun(order.id):
                history.begin(_noted(event.run, order, others()))
            elif isinstance(event, SampleTaken):
                history.add(order.id, event.sample)
            elif isinstance(event, RunFinished):
                last = replace(event, run=_noted(event.run, order, others()))
    assert last is not None
    history.finish(last.run)
    return last


def _noted(run: BenchRun, order: RunOrder, notes: tuple[str, ...]) -> BenchRun:
    """With its limits, to go on with: of a run that goes on, what was asked for this stretch of it."""
    limits, spent = order.limits, _spent(order.earlier_samples)
    run = replace(run, notes=(*run.notes, *notes))
    return replace(run, limits={"budget_s": limits.budget_s - spent, "precision": limits.precision})


async def _followed(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """What is under way, on stderr: one moving line on a terminal, else one every ten seconds."""
    status = err.status("bench") if err.is_terminal else None
    told = -_QUIET_S
    with status or nullcontext():
        async for event in events:
            if isinstance(event, RunProgress):
                left = f", at most {show_seconds(event.left_s)} more" if event.left_s else ""
                if status:
                    status.update(f"bench: {event.text}{left}")
                elif uptime() - told >= _QUIET_S:
                    told = uptime()
                    err.print(f"bench   {event.text}{left} ...", markup=False)
            yield event


def _show(done: RunFinished, cold: bool, html: Path | None, as_json: bool) -> int:
    if as_json:
        common.print_json(document(done.run, html))
    else:
        out.print(view(done.run, cold))
        if html:
            err.print(f"report  {html}", markup=False)
    return 0 if any(each.samples for each in done.run.figures) else 1
