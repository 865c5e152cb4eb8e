"""`firesteel bench [NAME]`, `firesteel bench --url http://host:8000/v1`

Its subcommands are in `history` and `compare`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from firesteel.cli.groups import CommandGroup, or_subcommand
from firesteel.cli.options import (
    FILE,
    PATH,
    complete_service,
    json_option,
    load_options,
    print_json,
    rate,
    require_one_target,
    several,
    target,
    thinking_option,
)
from firesteel.cli.output.bench import run_view
from firesteel.cli.output.progress import SlowLines, told_on_interrupt
from firesteel.cli.output.show import err, out, table
from firesteel.errors import UsageError
from firesteel.library import documents, history
from firesteel.library.bench import (
    RequestSettings,
    RunFinished,
    RunLimits,
    RunProgress,
    RunStarted,
    Sizes,
    StoredRun,
    known_shapes,
    measure,
    resume_run,
)
from firesteel.library.run import environment_key
from firesteel.units import show_seconds

if TYPE_CHECKING:
    from firesteel.bench.load.measure import Event

_TABLES: tuple[Literal["csv", "markdown"], ...] = ("csv", "markdown")


_HISTORY = "firesteel.cli.history"


@click.command(
    "bench",
    cls=CommandGroup,
    subcommands={
        "list": f"{_HISTORY}:list_runs",
        "show": f"{_HISTORY}:show",
        "compare": "firesteel.cli.compare:command",
        "export": f"{_HISTORY}:export",
        "chart": f"{_HISTORY}:chart",
        "import": f"{_HISTORY}:import_command",
        "delete": f"{_HISTORY}:delete",
    },
)
@click.argument("name", required=False, shell_complete=or_subcommand(complete_service))
@click.option("--url", help="Measure any OpenAI endpoint (http://host:8000/v1) instead of a service.")
@click.option("--model", help="With --url: measure this model, if the server has several.")
@load_options(budget="2m")
@click.option(
    "--rate",
    callback=several(rate),
    metavar="0.5,2",
    help="Send this many requests a second, whether or not earlier ones were answered (open loop).",
)
@click.option(
    "--target",
    callback=several(target),
    metavar="ttft=500ms,token=50ms",
    help="Count the requests that meet this target (goodput).",
)
@click.option(
    "--prompts",
    type=PATH,
    metavar="FILE",
    help="Send the prompts of this file (JSONL, ShareGPT, or one a line) instead of generated ones.",
)
@click.option(
    "--find",
    callback=several(target),
    metavar="ttft=2s,token=50ms",
    help="Find the most users and the highest rate at which nine in ten requests meet this target.",
)
@thinking_option
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
@click.option("--html", type=FILE, help="Write an HTML report to this file.")
@click.option("--csv", type=FILE, help="Write a table with a line for each load to this file.")
@click.option("--markdown", type=FILE, help="Write a report to paste into an issue to this file.")
@json_option
def command(
    name: str | None, url: str | None, model: str | None, shapes: tuple[str, ...], cold: bool,
    resume: str | None, html: Path | None, as_json: bool, prompts: Path | None,
    **options: Any,
) -> int:  # fmt: skip
    """Measure how fast NAME is, with confidence intervals.

    Without arguments: the running service with one and four users, in about two minutes. Every run is kept;
    `firesteel bench list` lists them and `firesteel bench compare` compares two. A service that is called
    like a subcommand comes after `--`: `firesteel bench -- list`.

    \b
    Exits 0  measured; failed requests are counted and named
          1  nothing could be measured
    """
    if shapes == ("list",):
        _list_shapes(as_json)
        return 0
    require_one_target("bench", name, url, model)
    if options["find"]:
        _check_find(shapes, resume, options)
    if resume and shapes:
        raise UsageError("a resumed run keeps its shapes", next=f"firesteel bench --resume {resume}")
    if prompts and (options["depth"] or options["text"]):
        raise UsageError("--prompts brings its own text and lengths", next="leave out --depth and --text")
    files: dict[str, Path | None] = {"html": html, "csv": options["csv"], "markdown": options["markdown"]}
    for option, path in files.items():
        if path and not path.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {path.parent}", next=f"another path for --{option}")
    done = _run_fast(_events(name, url, model, shapes, resume, prompts, options))
    stored = StoredRun(done.run, done.samples)
    if html:
        history.write_report(html, stored)
    for format in _TABLES:
        if path := files[format]:
            history.write_text(path, history.as_text([stored], format))
    if as_json:
        print_json(documents.bench.BenchJson.of(done.run, html=html))
    else:
        out.print(run_view(done.run, cold))
        for path in filter(None, files.values()):
            err.print(f"report  {path}")
    return 0 if any(figures.samples for figures in done.run.figures) else 1


def _check_find(shapes: tuple[str, ...], resume: str | None, options: Mapping[str, Any]) -> None:
    given = {"--resume": resume, "--shape": shapes} | {
        f"--{name}": options[name] for name in ("users", "rate", "target")
    }
    if wrong := [name for name, value in given.items() if value]:
        what = f"--find chooses the load by itself and does not go with {', '.join(wrong)}"
        raise UsageError(what, next="firesteel bench --find ttft=2s,token=50ms --depth 512 --answer 128")


def _list_shapes(as_json: bool) -> None:
    if not as_json:
        out.print(table(("name", "load"), [(name, shape.about) for name, shape in known_shapes().items()]))
        return
    rows = tuple(documents.bench.ShapeJson.of(shape, name=name) for name, shape in known_shapes().items())
    print_json(documents.bench.BenchShapesJson.of(shapes=rows))


def _events(
    name: str | None,
    url: str | None,
    model: str | None,
    shapes: tuple[str, ...],
    resume: str | None,
    prompts: Path | None,
    options: Mapping[str, Any],
) -> AsyncIterator[Event]:
    key = environment_key(options["key_env"]) if url else None
    if resume:
        return resume_run(
            resume, name, url=url, model=model, key=key, prompts=prompts,
            budget_s=_given("budget", options["budget"]), precision=_given("precision", options["precision"]),
        )  # fmt: skip
    sizes = Sizes(
        options["users"], options["depth"], options["text"], options["rate"],
        next(iter(options["answer"]), None),
    )  # fmt: skip
    settings = RequestSettings(
        temperature=options["temperature"],
        thinking={"on": True, "off": False, None: None}[options["thinking"]],
        seed=options["seed"],
        target=dict(options["target"] or options["find"]),
    )
    return measure(
        name, url=url, model=model, key=key, shapes=shapes or ("quick",), sizes=sizes, settings=settings,
        limits=RunLimits(options["budget"], options["precision"]), prompts=prompts,
        find=bool(options["find"]),
    )  # fmt: skip


def _given(name: str, value: float) -> float | None:
    """None if it is only the default."""
    source = click.get_current_context().get_parameter_source(name)
    return None if source is ParameterSource.DEFAULT else value


# --- the run ---


def _run_fast(events: AsyncIterator[Event]) -> RunFinished:
    """uvloop needs less CPU time for each chunk, so the client disturbs the measurement less."""
    try:
        import uvloop  # optional

        loop: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        loop = None
    began: list[str] = []

    def what_is_kept() -> str:
        if not began:
            return "nothing was measured yet"
        return f"what was measured so far is kept; to continue: firesteel bench --resume {began[0]}"

    with told_on_interrupt(what_is_kept), _sigterm_as_sigint(), asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(_followed(events, began))


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


async def _followed(events: AsyncIterator[Event], began: list[str]) -> RunFinished:
    """Shows progress on stderr: one moving line on a terminal, otherwise a line every ten seconds.

    `began` gets the id of the run when it has one.
    """
    status = err.status("bench") if err.is_terminal else None
    last, lines = None, SlowLines()
    with status or nullcontext():
        async for event in events:
            if isinstance(event, RunStarted):
                began.append(event.run.id)
            elif isinstance(event, RunFinished):
                last = event
            elif isinstance(event, RunProgress):
                left = f", at most {show_seconds(event.left_s)} more" if event.left_s else ""
                if status:
                    status.update(f"bench: {event.text}{left}")
                else:
                    lines.print(f"bench   {event.text}{left} ...")
    assert last is not None
    return last
