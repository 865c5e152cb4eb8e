"""Events -> lines on stderr, as they come. On a terminal the phase under way is one moving line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress

from firesteel.cli.output.show import err
from firesteel.edge.host.process import uptime
from firesteel.errors import FiresteelError
from firesteel.run import Event, PhaseDone, PhaseProgress, PlanReady
from firesteel.units import show_bytes, show_seconds

_QUIET_S = 10.0
_FIGURE = re.compile(r"[0-9.]+( [KMGT]?i?B| s| min)?")


async def follow(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Passes events on and shows each."""
    status = err.status("starting") if err.is_terminal else None
    with status or nullcontext():
        async for event in _beating(events) if status else _seldom(_beating(events)):
            if isinstance(event, PhaseProgress):
                if status:
                    status.update(f"{event.phase}: {event.text}")
                else:
                    err.print(f"{event.phase:<7} {event.text} ...")
            elif isinstance(event, PhaseDone):
                err.print(f"{event.phase:<7} {event.text}")
            elif isinstance(event, PlanReady):
                err.print(f"{'plan':<7} {_planned(event)}")
            yield event


async def _beating(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """A wait without news says that it is one, and for how long already."""
    last: PhaseProgress | None = None
    since = uptime()
    coming = asyncio.ensure_future(anext(events))
    try:
        while True:  # as long as there are events
            done, _ = await asyncio.wait({coming}, timeout=_QUIET_S)
            if not done:
                if last:
                    yield PhaseProgress(last.phase, f"{last.text}, {show_seconds(uptime() - since)} so far")
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            last, since = event if isinstance(event, PhaseProgress) else None, uptime()
            yield event
            coming = asyncio.ensure_future(anext(events))
    finally:
        if not coming.done():  # we were told to end: what was started is taken back there
            coming.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration, FiresteelError):
                await coming


async def _seldom(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """In a log a moving line is a line every half second: the same thing is told every ten."""
    last, at = "", 0.0
    async for event in events:
        if isinstance(event, PhaseProgress):
            what = _FIGURE.sub("", event.text)
            if what == last and uptime() - at < _QUIET_S:
                continue
            last, at = what, uptime()
        yield event


def _planned(event: PlanReady) -> str:
    proposal = event.proposal
    memory, speed = proposal.plan.memory, proposal.plan.speed
    fast = f", about {speed.decode_tokens_per_s.expected:.0f} tok/s" if speed else ""
    worries = sum(finding.level == "warn" for finding in proposal.findings)
    checked = f", {worries} warnings" if worries else ", no rule objects"
    return (
        f"{proposal.name}: {memory.verdict}, {show_bytes(round(memory.needed.expected))} "
        f"of {show_bytes(memory.budget_bytes)}{fast}{checked}"
    )
