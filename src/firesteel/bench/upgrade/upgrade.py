"""`upgrade MODEL`: change the engine release of a running model; `--rollback` returns to the one before.

`releases` finds the other release. If both fit by the plan, the candidate starts alongside the model, is
verified, and both are measured in turns; only then the model switches. If not, the model is measured,
switches, is measured again and, if that is worse, switches back.

A switch stores the choice (`edge.home`), and the model follows. A gateway that serves the model sees the
choice: it finishes the running requests, queues new ones, and stops the old engine, so no client sees an
error. Without one the model is stopped and started. If the start fails, the old choice is stored again and
the old release started.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Literal

from firesteel.bench.upgrade.releases import find_release, release_of
from firesteel.bench.upgrade.result import Outcome, UpgradeOptions, UpgradeResult
from firesteel.bench.upgrade.trial import TrialVerdict, judge_in_sequence, measure_service, try_side_by_side
from firesteel.edge.home import (
    EngineRelease,
    Home,
    ModelRelease,
    choose_release,
    chosen_release,
    is_locked,
)
from firesteel.edge.host.process import port_is_free, uptime
from firesteel.edge.programs.build import BuildProgress
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.gateway.address import read_address
from firesteel.planner.advice import require_runnable
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.propose import Proposal
from firesteel.run.down import stop
from firesteel.run.endpoints import running_service
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.service import Service, load
from firesteel.run.spec import RunOptions
from firesteel.run.up import bring_up
from firesteel.values import replace
from firesteel.workspace import Workspace

UpgradeEvent = Event | BuildProgress | UpgradeResult
_DRAIN_S = 900.0
"""How long the requests that run while a gateway switches may take."""
_POLL_S = 0.2
"""The pause between two looks at what a gateway does with a model."""


class NotSwitched(FiresteelError):
    """The other release did not start; the model runs on the one before."""


async def upgrade(home: Home, name: str | None, options: UpgradeOptions) -> AsyncIterator[UpgradeEvent]:
    """Try another release under a running model, and switch to it if it is not worse; the last event is the
    result."""
    service = running_service(home, name)
    if service.phase != "ready" or service.spec.is_command or (service.spec.ask.sparks or 1) > 1:
        raise UsageError(
            f"{service.name} is {service.phase}; upgrade takes a model that runs on this host alone",
            next="firesteel ps",
        )
    before = release_of(_propose(home, service, None))
    yield BuildProgress("looking for releases")
    release = await find_release(home, before, options.to)
    if release is None or release == before:
        yield UpgradeResult(service.name, "newest", before, before, None, "neither", (), ())
        return
    candidate = _propose(home, service, release, f"{service.name[:50]}-next")
    if candidate.plan.fits:
        trial = _try_side_by_side(home, service, candidate, release, options)
    else:
        require_runnable(_propose(home, service, release, freed_bytes=service.spec.expected_bytes))
        trial = _try_in_sequence(home, service, before, release, options)
    async for event in trial:
        yield replace(event, before=before) if isinstance(event, UpgradeResult) else event


async def rollback(home: Home, name: str | None) -> AsyncIterator[UpgradeEvent]:
    """Back to the release before the last upgrade, at once; the last event is the result."""
    service = running_service(home, name)
    chosen = chosen_release(home, service.name)
    if chosen is None:
        raise UsageError(f"{service.name} was never upgraded", next=f"firesteel upgrade {service.name}")
    before = release_of(_propose(home, service, None))
    async for event in _switch(home, service, chosen.swapped(_format_now())):
        yield event
    after = release_of(_propose(home, service, None))
    yield UpgradeResult(service.name, "switched", before, after, after, "neither", ("rolled back",), ())


def _propose(
    home: Home, service: Service, release: EngineRelease | None, name: str | None = None, freed_bytes: int = 0
) -> Proposal:
    """Plan what runs on another release, under another name on a free port, or with more memory free."""
    workspace, ask = Workspace(home, release), service.spec.ask
    if release and release.engine_path:
        ask = replace(ask, engine_path=None)
    if name:
        first = (ask.port or 8000) + 1
        ask = replace(ask, name=name, port=next(port for port in range(first, 65536) if port_is_free(port)))
    host = workspace.host()
    host = replace(host, memory_available_bytes=host.memory_available_bytes + freed_bytes)
    return workspace.propose(ask, host)[0]


# --- side by side ---


async def _try_side_by_side(
    home: Home, service: Service, candidate: Proposal, release: EngineRelease, options: UpgradeOptions
) -> AsyncIterator[UpgradeEvent]:
    verdict = TrialVerdict(True, ("verified",))
    try:
        async for event in bring_up(candidate, home):
            yield event
        if options.measures:
            trial = try_side_by_side(home, service.name, candidate.name, options.answers, options.budget_s)
            async for item in trial:
                if isinstance(item, TrialVerdict):
                    verdict = item
                else:
                    yield item
    except (UsageError, HostNotReady):
        raise
    except FiresteelError as error:
        verdict = TrialVerdict(False, (f"it does not serve {service.name}: {error.what}",))
    finally:
        if running := load(home, candidate.name):
            async for _ in stop(running):
                pass
    current = release_of(_propose(home, service, None))
    if verdict.accepted:
        async for event in _switch(home, service, _make_choice(home, service, release)):
            yield event
    yield _make_result(service, release if verdict.accepted else current, release, "beside", verdict)


# --- in sequence ---


async def _try_in_sequence(
    home: Home, service: Service, before: EngineRelease, release: EngineRelease, options: UpgradeOptions
) -> AsyncIterator[UpgradeEvent]:
    verdict, measured = TrialVerdict(True, ("verified",)), None
    if options.measures:
        yield BuildProgress(f"both do not fit: measuring {service.name} as it is")
        measured = await measure_service(home, service.name, options.answers, options.budget_s)
    try:
        async for event in _switch(home, service, _make_choice(home, service, release)):
            yield event
    except NotSwitched as error:
        yield _make_result(service, before, release, "after", TrialVerdict(False, (error.what,)))
        return
    if measured is not None:
        yield BuildProgress("measuring it on the other release")
        other = await measure_service(home, service.name, options.answers, options.budget_s, measured)
        verdict = judge_in_sequence(measured, other, options.answers)
    if not verdict.accepted:
        chosen = chosen_release(home, service.name)
        assert chosen is not None
        async for event in _switch(home, service, chosen.swapped(_format_now())):
            yield event
    yield _make_result(service, release if verdict.accepted else before, release, "after", verdict)


def _make_result(
    service: Service,
    now: EngineRelease,
    tried: EngineRelease,
    how: Literal["beside", "after"],
    verdict: TrialVerdict,
) -> UpgradeResult:
    outcome: Outcome = "switched" if verdict.accepted else "kept"
    return UpgradeResult(service.name, outcome, now, now, tried, how, verdict.reasons, verdict.figures)


# --- the switch ---


def _make_choice(home: Home, service: Service, release: EngineRelease) -> ModelRelease:
    """The choice to store. The recipe's own release is not stored: it may change with the recipe."""
    before = chosen_release(home, service.name)
    return ModelRelease(service.name, release, before.current if before else None, _format_now())


async def _switch(home: Home, service: Service, chosen: ModelRelease) -> AsyncIterator[Event]:
    """Start the model on the chosen release; if that fails, on the one before."""
    old = chosen_release(home, service.name) or ModelRelease(service.name, None, None, "")
    choose_release(home, chosen)
    try:
        async for event in _follow_choice(home, service):
            yield event
    except FiresteelError as error:
        choose_release(home, replace(old, previous=old.previous or chosen.current))
        async for event in _follow_choice(home, service):
            yield event
        raise NotSwitched(
            f"{service.name} did not start on {chosen.current or 'its own release'} and is back on the one "
            f"before: {error.what}",
            next=error.next,
        ) from error


async def _follow_choice(home: Home, service: Service) -> AsyncIterator[Event]:
    """Stop what runs and start what is chosen; a gateway that serves the model stops it, when idle."""
    spec, name = service.spec, service.name
    wanted = _propose(home, service, None)
    key = launch_key(wanted.plan.launch)
    address = read_address(home)
    if address and name in address.models:
        yield PhaseProgress("stop", "the gateway finishes what runs; new requests wait")
        await _wait_until_left(home, name, key)
    elif (running := load(home, name)) and running.spec.launch != key:
        async for event in stop(running):
            yield event
    options = RunOptions(spec.listen, spec.trusts_code, spec.at_boot, spec.service_file, spec.is_swapped_in)
    while True:
        wanted = _propose(home, service, None)  # with the memory that is free by now
        try:
            async for event in bring_up(wanted, home, options):
                yield event
            break
        except FiresteelError:
            # A gateway whose client waits also starts it; then it is starting, or up.
            if not is_locked(home.services / name / "work.lock"):
                raise
            await asyncio.sleep(_POLL_S)
    yield PhaseDone("launch", f"{name} runs on {release_of(wanted)}")


async def _wait_until_left(home: Home, name: str, key: str) -> None:
    """Wait until the gateway has stopped the old engine, or has already started the new one."""
    began = uptime()
    while (running := load(home, name)) and running.spec.launch != key:
        if uptime() - began > _DRAIN_S:
            raise FiresteelError(f"the gateway still uses {name} after 15 minutes", next="firesteel ps")
        await asyncio.sleep(_POLL_S)


def _format_now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
