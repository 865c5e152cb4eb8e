"""`up`: plan, check, pull, launch, warm, verify, report, as a stream of events.

Nothing is started unless the plan fits, the rules agree, the port is free and the disk has space. After that,
a failure or an interruption stops what was started.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from firesteel.edge.files.home import Home, Locked, lock, remove
from firesteel.edge.host import process
from firesteel.edge.host.memory import evict, meminfo
from firesteel.edge.http.poll import get_from_engine
from firesteel.errors import DoesNotFit, FiresteelError, SuspectWeights
from firesteel.proposals import Proposal, require_runnable
from firesteel.run.down import remove_files, stop_and_remove, stop_processes
from firesteel.run.events import Event, PhaseDone, PhaseProgress, PlanReady, ServiceReady
from firesteel.run.fetch.audit_weights import audit_pulled
from firesteel.run.fetch.damage import explain_with_digests
from firesteel.run.fetch.pull import pull_launch
from firesteel.run.fetch.stored import staged_files
from firesteel.run.proofs import forget_proof
from firesteel.run.report import read_report
from firesteel.run.service import (
    Service,
    ServiceSpec,
    api_key,
    folder_of,
    hang_of,
    load,
    own_reason,
    write_spec,
)
from firesteel.run.spec_differences import differences
from firesteel.run.start.listen import listening
from firesteel.run.start.options import RunOptions, make_spec, need_trust, start_argv, write_secrets_of
from firesteel.run.start.preflight import held_bytes, preflight
from firesteel.run.start.start import adopt_all, start_failure, start_supervisor, wait_until_healthy
from firesteel.run.supervise import boot
from firesteel.run.verify.prove import prove
from firesteel.units import show_bytes
from firesteel.values import replace

_DEFAULTS = RunOptions()
_POLL_S = 0.05
_EXIT_NOTED_S = 2
"""A supervisor notices the end of its engine within a second, and writes down how it ended."""


async def bring_up(proposal: Proposal, home: Home, options: RunOptions = _DEFAULTS) -> AsyncIterator[Event]:
    name = proposal.name
    proposal = listening(proposal, options.listen)
    yield PlanReady(proposal)
    adopt_all(home)
    spec, running = make_spec(proposal, home, options), load(home, name)
    _refuse_hung(running)
    # Before the plan is checked: its memory is in use.
    if running and running.phase == "ready" and not _is_unverified(running, spec):
        yield _already(running, spec)
        return
    if not (running and _is_unverified(running, spec)):
        _require_fit(proposal, home)
    need_trust(proposal, options)
    if options.at_boot:
        boot.require_systemd()
    try:
        with lock(folder_of(home, name) / "work.lock"):
            async for event in _bring_up(proposal, home, spec, options):
                yield event
    except Locked:
        raise FiresteelError(f"another firesteel command is working on {name}", next="firesteel ps") from None


def _require_fit(proposal: Proposal, home: Home) -> None:
    """Say what else runs if the plan does not fit beside it; stopping it is suggested where that helps."""
    held = held_bytes(home)
    try:
        require_runnable(proposal, held)
    except DoesNotFit as error:
        if not held:
            raise
        running = ", ".join(f"{name} runs here and holds {show_bytes(size)}" for name, size in held.items())
        raise DoesNotFit(f"{error.what}; {running}", next=error.next) from None


async def _bring_up(
    proposal: Proposal, home: Home, spec: ServiceSpec, options: RunOptions
) -> AsyncIterator[Event]:
    """With the work lock held: continue with what runs, or start it."""
    running = load(home, proposal.name)
    _refuse_hung(running)
    if running and running.phase == "ready" and not _is_unverified(running, spec):
        yield _already(running, spec)
        return
    if running and running.state and _is_unverified(running, spec):
        yield PhaseProgress("launch", "it was already started; continuing from there")
        supervisor = running.state.supervisor
        async for event in _until_verified(
            proposal, home, running.spec, lambda: not process.is_alive(supervisor)
        ):
            yield event
        return
    if running:
        forget_proof(home, proposal.name)  # it was not stopped by anybody, so it died
        async for event in stop_processes(running):
            yield event
    remove_files(folder_of(home, proposal.name))
    async for event in _launch(proposal, home, spec, options):
        yield event


def _refuse_hung(running: Service | None) -> None:
    """Its supervisor restarts it if that lasts; two at work on one engine would be one too many."""
    if running and running.phase == "hung":
        raise FiresteelError(
            f"{running.name} is up on {running.spec.url}, but it hangs: {hang_of(running.state)}",
            next=f"firesteel ps; it is restarted if that lasts. At once: firesteel down {running.name}, then "
            f"{running.spec.again}",
        )


def _already(running: Service, wanted: ServiceSpec) -> ServiceReady:
    """Report what runs, provided that it is what was asked for."""
    name, url, again = running.name, running.spec.url, f"firesteel down {running.name}, then {wanted.again}"
    if not running.spec.start:
        raise FiresteelError(
            f"{name} runs, and its spec.json cannot be read, so as what is unknown", next=again
        )
    if not _is_same(running.spec, wanted) or running.report is None:
        raise FiresteelError(
            f"{name} is already up on {url}, with other settings: {differences(running.spec, wanted)}",
            next=again,
        )
    status, _ = get_from_engine(f"{url}/health", api_key(running.spec))
    if status != 200:
        how = f"HTTP {status}" if status else "nothing"
        raise FiresteelError(f"{name} runs, but {url}/health answers {how}", next=f"firesteel logs {name}")
    return ServiceReady(read_report(running.report), already=True)


def _is_same(one: ServiceSpec, other: ServiceSpec) -> bool:
    """Started with the same settings. The plan may differ, since it depends on the memory that is free."""
    return (one.launch, one.url, one.is_guarded_by_key) == (other.launch, other.url, other.is_guarded_by_key)


def _is_unverified(running: Service, wanted: ServiceSpec) -> bool:
    """Started with the same settings by an `up` that ended before it was verified, or its report is lost."""
    is_reported = running.phase == "ready" and _has_report(running)
    is_up = running.phase in ("starting", "ready") and running.state is not None
    return is_up and not is_reported and _is_same(running.spec, wanted)


def _has_report(running: Service) -> bool:
    try:
        return bool(running.report and read_report(running.report))
    except ValueError:
        return False


async def _launch(
    proposal: Proposal, home: Home, spec: ServiceSpec, options: RunOptions
) -> AsyncIterator[Event]:
    checks = preflight(proposal, home, spec.again)
    for stage in (checks, pull_launch(proposal, home), audit_pulled(proposal, home)):
        async for event in stage:
            yield event
    if proposal.plan.launch.container:
        async for event in _final_preflight(proposal, home, spec):
            yield event
    folder = folder_of(home, spec.name)
    remove(folder / "engine.log")
    write_secrets_of(proposal, spec)
    yield PhaseProgress("launch", "starting")
    # Only now is it known where the Hub's files are.
    start = start_argv(proposal, home)
    start = await options.over_hosts(start) if options.over_hosts else start
    # From here to the `try` of `_until_verified` nothing waits, so that nothing can come between.
    spec = replace(spec, start=start, available_bytes=meminfo().available_bytes)
    write_spec(folder, spec)
    supervisor = start_supervisor(folder)
    has_ended = partial(process.has_ended, supervisor)
    async for event in _until_verified(proposal, home, spec, has_ended, options.proves):
        yield event
    if spec.at_boot:
        await boot.enable(spec.name, home, spec.up_arguments)
        yield PhaseDone("boot", f"{spec.name} starts when the machine boots")


async def _final_preflight(proposal: Proposal, home: Home, spec: ServiceSpec) -> AsyncIterator[Event]:
    """The image is here now, so the GPU can be tried in a container. And CUDA counts page cache as used."""
    async for event in preflight(proposal, home, spec.again):
        yield event
    if files := staged_files(proposal, home):
        dropped = await asyncio.to_thread(evict, files)
        if dropped.bytes:
            yield PhaseDone("check", f"{show_bytes(dropped.bytes)} of weights dropped from the page cache")


async def _until_verified(
    proposal: Proposal,
    home: Home,
    spec: ServiceSpec,
    has_ended: Callable[[], bool],
    proves: Callable[[], Awaitable[str]] | None = None,
) -> AsyncIterator[Event]:
    started = process.uptime()
    try:
        async for event in wait_until_healthy(home, spec, proposal.plan, has_ended):
            yield event
        start_s = process.uptime() - started
        yield PhaseDone("launch", f"{spec.engine} answers after {start_s:.1f} s")
        if proves:
            yield PhaseDone("launch", await proves())
        async for event in prove(proposal, home, spec, start_s):
            yield event
    except BaseException as error:
        # Ctrl-C, a failed check or a bug: stop what was started.
        forget_proof(home, spec.name)
        reason = await _root_cause(home, spec, error)
        listens = not isinstance(error, GeneratorExit)
        if listens:
            yield PhaseProgress("stop", f"stopping {spec.name}")
        stopped = await asyncio.shield(stop_and_remove(home, spec.name))
        if listens and stopped:
            yield stopped
        if listens and isinstance(reason, SuspectWeights):
            async for event in explain_with_digests(reason, proposal, home):  # raises what it finds
                yield event
        raise reason from None


async def _root_cause(home: Home, spec: ServiceSpec, error: BaseException) -> BaseException:
    """If the engine stopped answering because it died, its death is the error to report."""
    if not isinstance(error, FiresteelError):
        return error
    if why := own_reason(folder_of(home, spec.name)):  # a runner over several hosts: it is stopping them
        return FiresteelError(f"{spec.name} did not start: {why}", next=f"firesteel logs {spec.name}")
    began = process.uptime()
    while (service := load(home, spec.name)) and service.phase != "dead":
        limit_s = 3 * spec.stop_grace_s if service.phase == "stopping" else _EXIT_NOTED_S
        if process.uptime() - began > limit_s:
            return error
        await asyncio.sleep(_POLL_S)
    return start_failure(home, spec) if service else error
