"""Events -> lines on stderr, as they come. On a terminal the current phase is one moving line."""

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

_INTERVAL_S = 10.0
_FIGURE = re.compile(r"[0-9.]+( [KMGT]?i?B| s| min)?")


class SlowLines:
    """Prints at most one line every ten seconds: progress in a log file, not on a terminal."""

    def __init__(self) -> None:
        self._printed_at = -_INTERVAL_S

    def print(self, line: str) -> None:
        if uptime() - self._printed_at >= _INTERVAL_S:
            self._printed_at = uptime()
            err.print(line, markup=False)


async def follow(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Shows each event and passes it on."""
    status = err.status("starting") if err.is_terminal else None
    with status or nullcontext():
        async for event in _with_waits(events) if status else _fewer(_with_waits(events)):
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


async def _with_waits(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Adds an event every ten seconds of silence: what it is waiting for, and for how long already."""
    last: PhaseProgress | None = None
    since = uptime()
    coming = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=_INTERVAL_S)
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
        # Awaited even if it is done: on cancellation `events` cleans up, and its outcome must be retrieved.
        coming.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, FiresteelError):
            await coming


async def _fewer(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Drops progress that differs only in its figures from the last, unless ten seconds have passed."""
    last, last_s = "", 0.0
    async for event in events:
        if isinstance(event, PhaseProgress):
            text = _FIGURE.sub("", event.text)
            if text == last and uptime() - last_s < _INTERVAL_S:
                continue
            last, last_s = text, uptime()
        yield event


def _planned(event: PlanReady) -> str:
    proposal = event.proposal
    memory, speed = proposal.plan.memory, proposal.plan.speed
    rate = f", about {speed.decode_tokens_per_s.expected:.0f} tok/s" if speed else ""
    warnings = sum(finding.level == "warn" for finding in proposal.findings)
    return (
        f"{proposal.name}: {memory.verdict}, {show_bytes(round(memory.needed.expected))} "
        f"of {show_bytes(memory.budget_bytes)}{rate}, {f'{warnings} warnings' if warnings else 'no warnings'}"
    )
