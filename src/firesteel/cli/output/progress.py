"""Events -> lines on stderr, as they come; the checks of `verify` and the report of `up` at the end.

On a terminal the current phase is one moving line. What a model answered is shown as plain text, whatever
markup it holds.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Group, RenderableType
from rich.text import Text

from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import bytes_band, err, grid, show_body, speed_band, table, terms
from firesteel.edge.host.signals import cancel_on_signals
from firesteel.errors import escape_unprintable
from firesteel.library.run import Event, PhaseDone, PhaseProgress, PlanReady, more_users
from firesteel.units import show_bytes, show_rate, show_seconds
from firesteel.values import replace

if TYPE_CHECKING:
    from firesteel.edge.programs.build import BuildProgress
    from firesteel.planner.propose import Proposal
    from firesteel.run.report import Compared, Report
    from firesteel.run.verify.checks import CheckResult

E = TypeVar("E")
T = TypeVar("T")
_INTERVAL_S = 10.0
_FIGURE = re.compile(r"[0-9.]+( [KMGT]?i?B| s| min)?")


class SlowLines:
    """Prints at most one line every ten seconds: progress in a log file, not on a terminal."""

    def __init__(self) -> None:
        self._printed_at = -_INTERVAL_S

    def print(self, line: str) -> None:
        if time.monotonic() - self._printed_at >= _INTERVAL_S:
            self._printed_at = time.monotonic()
            err.print(line)


@contextmanager
def told_on_interrupt(text: str | Callable[[], str]) -> Iterator[None]:
    """Ctrl-C or a signal ends the command with this text."""
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt):
        # click turns a KeyboardInterrupt into an Abort without a message, but lets an Abort pass.
        raise click.Abort(typed(text if isinstance(text, str) else text())) from None


async def last_of(events: AsyncIterator[BuildProgress | Event | T], kind: type[T]) -> T:
    """Shows the progress of a build or an upgrade, and returns its result: the last event."""
    from firesteel.library.images import BuildProgress  # only builds need it

    cancel_on_signals()
    lines, result = SlowLines(), None
    async with aclosing(_with_waits(events, (PhaseProgress, BuildProgress))) as waited:
        async for event in waited:
            if isinstance(event, kind):
                result = event
            elif isinstance(event, BuildProgress):
                lines.print(build_line(event))
            elif isinstance(event, PhaseProgress | PhaseDone):
                lines.print(f"{event.phase}: {escape_unprintable(event.text)}")
    assert result is not None
    return result


def build_line(progress: BuildProgress) -> str:
    left = f", about {show_seconds(progress.left_s)} left" if progress.left_s else ""
    return f"{escape_unprintable(progress.text)}{left}"


async def done_texts(*streams: AsyncIterator[Event]) -> list[str]:
    """Follows them one after the other until they end or a signal comes; what was done, a line each."""
    cancel_on_signals()
    return [
        event.text for stream in streams async for event in follow(stream) if isinstance(event, PhaseDone)
    ]


async def follow(events: AsyncIterator[Event]) -> AsyncGenerator[Event]:
    """Shows each event and passes it on, also those of the clean-up after a cancellation."""
    status = err.status("starting") if err.is_terminal else None
    with status or nullcontext():
        async with aclosing(_with_waits(events, (PhaseProgress,))) as waited:
            async for event in waited if status else _fewer(waited):
                if isinstance(event, PhaseProgress):
                    if status:
                        status.update(Text(f"{event.phase}: {event.text}", no_wrap=True, overflow="ellipsis"))
                    else:
                        err.print(f"{event.phase:<7} {event.text} ...")
                elif isinstance(event, PhaseDone):
                    err.print(f"{event.phase:<7} {event.text}")
                elif isinstance(event, PlanReady):
                    err.print(f"{'plan':<7} {_planned(event)}")
                    for line in _notices(event):
                        err.print(f"{'':<7} {line}")
                yield event


async def _with_waits(events: AsyncIterator[E], waits: tuple[type, ...]) -> AsyncGenerator[E]:
    """Adds an event every ten seconds of silence after one of `waits`: for how long it has lasted already.

    One task runs the operation from its first event to its last, so that a cancellation reaches it where it
    waits, and never between two events, where nothing would make it clean up. The events of the clean-up
    are passed on, too.
    """
    queue: asyncio.Queue[E | None] = asyncio.Queue()
    operation = asyncio.ensure_future(_put_all(events, queue))
    operation.add_done_callback(lambda _: queue.put_nowait(None))
    last: Any = None
    since = time.monotonic()
    try:
        while True:
            try:
                async with asyncio.timeout(_INTERVAL_S):
                    event = await queue.get()
            except TimeoutError:
                if last:
                    yield replace(last, text=f"{last.text}, {show_seconds(time.monotonic() - since)} so far")
                continue
            except asyncio.CancelledError:
                if operation.done():
                    raise
                operation.cancel()
                continue
            if event is None:
                break
            last, since = event if isinstance(event, waits) else None, time.monotonic()
            yield event
    finally:
        operation.cancel()  # does nothing unless this generator is closed before the operation has ended
        await asyncio.gather(operation, return_exceptions=True)
    operation.result()  # raises what ended it


async def _put_all(events: AsyncIterator[E], queue: asyncio.Queue[E | None]) -> None:
    async for event in events:
        queue.put_nowait(event)


async def _fewer(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Drops progress that differs only in its figures from the last, unless ten seconds have passed."""
    last, last_s = "", 0.0
    async for event in events:
        if isinstance(event, PhaseProgress):
            text = _FIGURE.sub("", event.text)
            if text == last and time.monotonic() - last_s < _INTERVAL_S:
                continue
            last, last_s = text, time.monotonic()
        yield event


def _notices(event: PlanReady) -> Iterator[str]:
    """What to know about a model before it serves anybody."""
    if served := _served_at_once(event.proposal):
        yield served
    yield from (note for note in event.proposal.plan.notes if "at once" in note)
    model, recipe = event.proposal.model, event.proposal.recipe
    if model:
        yield f"licence: {terms(model)}"
        if model.safety:
            yield f"safety: {model.safety}"
    if recipe and recipe.requests.body:
        yield f"requests, unless they say otherwise: {show_body(recipe.requests.body)}"


def _served_at_once(proposal: Proposal) -> str | None:
    """`serves 4 requests at once, of 8,192 tokens; each more takes 120.0 MiB, and 37 fit: --users`"""
    plan = proposal.plan
    if not plan.fits or (more := more_users(proposal)) is None:
        return None
    users, context = plan.cache.users, plan.cache.context
    requests = "1 request" if users == 1 else f"{users} requests"
    room = f", and {more.most} fit (--users)" if more.most > users else ", and no more fit"
    each = f"one more takes {show_bytes(more.each_bytes)}{room}"
    return f"serves {requests} at once, of {context:,} tokens each; {each}"


def _planned(event: PlanReady) -> str:
    proposal = event.proposal
    memory, speed = proposal.plan.memory, proposal.plan.speed
    rate = f", about {show_rate(speed.decode_tokens_per_s.expected)}" if speed else ""
    levels = [finding.level for finding in proposal.findings]
    counts = ((levels.count("stop"), "stop"), (levels.count("warn"), "warning"))
    found = ", ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count)
    audited = "".join(f", {note}" for note in proposal.plan.notes if note.startswith("audited"))
    return (
        f"{proposal.name}: {memory.verdict}, {show_bytes(round(memory.needed.expected))} "
        f"of {show_bytes(memory.budget_bytes)}{rate}, {found or 'no warnings'}"
        f"{audited}"
    )


# --- checks and reports ---


_ABILITIES = (
    "2+2", "facts", "long prompt", "tool call", "conversation", "system prompt", "reasoning",
    "agent tools", "agent turns", "agent results",
)  # fmt: skip
"""Checks whose notes are about what the model can; the others are about how it is served."""


def proofs_view(checks: Iterable[CheckResult]) -> Group:
    checks = tuple(checks)
    rows = [(Text(check.name), _check_status(check), Text(check.observed)) for check in checks]
    shown: list[RenderableType] = [table(("check", "", "result"), rows)]
    noted = [check.name for check in checks if not (check.passed or check.fails_launch)]
    for is_ability, says in (
        (True, "a small model often gets that wrong; of a large one it is a sign of damage"),
        (
            False,
            "it answers, but not as planned, as its flags ask or as its API says; firesteel bench measures "
            "what that costs, and a client may stumble over it",
        ),
    ):
        if names := [name for name in noted if (name in _ABILITIES) is is_ability]:
            shown.append(Text(f"note: {', '.join(names)}: {says}", "dim"))
    return Group(*shown)


def _check_status(check: CheckResult) -> Text:
    if check.passed:
        return Text("ok", style="green")
    return Text("FAILED", style="bold red") if check.fails_launch else Text("note", style="yellow")


def _band_position(row: Compared) -> Text:
    if row.is_within:
        return Text("within")
    above = row.measured > row.planned.high
    return Text("above the plan" if above else "below the plan", style="yellow")


def report_view(report: Report) -> Group:
    compared = [
        (
            row.what,
            bytes_band(row.planned) if row.unit == "bytes" else speed_band(row.planned),
            show_bytes(round(row.measured)) if row.unit == "bytes" else show_rate(row.measured),
            _band_position(row),
        )
        for row in report.compared
    ]
    ready = f"{report.start_s:.1f} s after the launch; first token after {report.first_token_ms:.0f} ms"
    service = grid([("url", report.url), ("model", report.model), ("ready", ready), ("log", report.log)])
    return Group(
        proofs_view(report.checks),
        Text(),
        table(("figure", "planned", "measured", ""), compared),
        Text(),
        service,
    )
