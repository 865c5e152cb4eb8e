"""`up`: plan, check, pull, launch, warm, verify, report, as a stream of events.

Nothing is started unless the plan fits, the rules agree, the port is free and the disk has space. After that,
a failure or an interruption stops what was started.

    bring_up = run_stages(startup, ready, fetch, stopped_on_failure(start, verify))

`hosts.cluster` puts two more stages between these. The models of one service file are planned together
(`plan_all`) before the first one starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path

from msgspec import Struct

from firesteel.edge.home import Home, Locked, lock, remove
from firesteel.edge.host import process
from firesteel.edge.host.memory import evict, meminfo
from firesteel.edge.http import engine_client
from firesteel.edge.http.sync_client import get_from_engine
from firesteel.errors import DoesNotFit, FiresteelError, HostNotReady, SuspectWeights
from firesteel.facts.host.hardware import Host
from firesteel.planner.advice import require_runnable
from firesteel.planner.propose import Proposal
from firesteel.run.damage import audit_pulled, explain_with_digests
from firesteel.run.down import remove_files, stop_and_remove, stop_processes
from firesteel.run.endpoints import free_port, listening, port_of
from firesteel.run.events import Event, PhaseDone, PhaseProgress, PlanReady, ServiceReady
from firesteel.run.preflight import (
    held_bytes,
    holders_to_stop,
    memory_holders,
    preflight,
    stop_commands,
)
from firesteel.run.pull import pull_launch
from firesteel.run.report import read_report
from firesteel.run.service import (
    WAITS_FOR_ROOM,
    Service,
    ServiceSpec,
    api_key,
    death,
    folder_of,
    forget_proof,
    hang_of,
    load,
    own_reason,
    write_spec,
)
from firesteel.run.spec import RunOptions, make_spec, need_trust, start_argv, write_secrets_of
from firesteel.run.start import adopt_all, start_failure, start_supervisor, wait_until_healthy
from firesteel.run.supervise import boot
from firesteel.run.verify.after_start import warm_and_verify
from firesteel.run.weights import staged_files
from firesteel.service_file import ServiceFile, chosen, written_ports
from firesteel.units import show_bytes
from firesteel.values import replace
from firesteel.workspace import Workspace

_DEFAULTS = RunOptions()
_MAX_HOLDERS = 4
"""Other programs that are named when there is no room."""
_POLL_S = 0.05
_LAST_LOOK_S = 10
_EXIT_NOTED_S = 2
"""A supervisor notices the end of its engine within a second, and writes down how it ended."""


class Startup(Struct):
    """One `up` in progress: what a stage finds, the next ones use."""

    proposal: Proposal
    home: Home
    options: RunOptions
    has_runner: bool = False
    """A stage replaces the start command by that of a runner, which stops the containers of all hosts."""
    spec: ServiceSpec = ServiceSpec("", "", "", ())
    """What the supervisor gets: from `run_stages`, and with the paths of the weights from `fetch`."""
    is_started: bool = False
    """A supervisor may be running, so a failure has something to stop."""
    start_s: float = 0.0

    @property
    def folder(self) -> Path:
        return folder_of(self.home, self.proposal.name)


Stage = Callable[[Startup], AsyncGenerator[Event]]


def bring_up(proposal: Proposal, home: Home, options: RunOptions = _DEFAULTS) -> AsyncGenerator[Event]:
    return run_stages(Startup(proposal, home, options), ready, fetch, stopped_on_failure(start, verify))


async def run_stages(startup: Startup, *stages: Stage) -> AsyncGenerator[Event]:
    """These stages with the work lock held, unless it is already up. If an earlier `up` was interrupted
    after its start, this one continues from there."""
    home, options = startup.home, startup.options
    startup.proposal = proposal = listening(startup.proposal, options.listen)
    name = proposal.name
    yield PlanReady(proposal)
    adopt_all(home)
    startup.spec = make_spec(proposal, home, options, has_runner=startup.has_runner)
    running = load(home, name)
    _refuse_hung(running)
    _refuse_waiting(running)
    # Before the plan is checked: its memory is in use.
    is_up = running is not None and running.phase == "ready" and not _is_unverified(running, startup.spec)
    if running and is_up and not _lacks_unit(running, startup.spec):
        yield _already(running, startup.spec)
        return
    if not is_up and not (running and _is_unverified(running, startup.spec)):
        await _require_fit(proposal, home)
    need_trust(proposal, options)
    if options.at_boot:
        await boot.require_systemd()
    try:
        with lock(startup.folder / "work.lock"):
            async with aclosing(_run_locked(startup, stages)) as events:
                async for event in events:
                    yield event
    except Locked:
        raise FiresteelError(f"another firesteel command is working on {name}", next="firesteel ps") from None


async def _require_fit(proposal: Proposal, home: Home) -> None:
    """If the plan does not fit, name what else holds the memory, and suggest stopping it if that helps."""
    held = held_bytes(home)
    try:
        require_runnable(proposal, held)
    except DoesNotFit as error:
        short_bytes = proposal.plan.memory.short_bytes
        others = await memory_holders(home, on_gpu=not proposal.plan.is_in_host_memory)
        large = [holder for holder in others if holder.bytes >= short_bytes / 10][:_MAX_HOLDERS]
        running = [f"{name} runs here and holds {show_bytes(size)}" for name, size in held.items()]
        stops = holders_to_stop(short_bytes, others[:_MAX_HOLDERS]) if short_bytes else ()
        ways = [f"{stop_commands(stops)}, then repeat the command"] if stops else []
        raise DoesNotFit(
            "; ".join([error.what, *running, *map(str, large)]), next="; or ".join([*ways, error.next or ""])
        ) from None


async def _run_locked(startup: Startup, stages: Iterable[Stage]) -> AsyncGenerator[Event]:
    home, name = startup.home, startup.proposal.name
    running = load(home, name)
    _refuse_hung(running)
    _refuse_waiting(running)
    if running and running.phase == "ready" and not _is_unverified(running, startup.spec):
        done = _already(running, startup.spec)
        if _lacks_unit(running, startup.spec):
            yield await _enable_at_boot(startup, running.spec)
        yield done
        return
    wants_unit = startup.spec.at_boot
    if running and running.state and _is_unverified(running, startup.spec):
        yield PhaseProgress("launch", "it was already started; continuing from there")
        startup.spec, startup.is_started, supervisor = running.spec, True, running.state.supervisor
        wait = partial(_until_healthy, has_ended=lambda: not process.is_alive(supervisor))
        stages = (stopped_on_failure(wait, verify),)
    else:
        if running:
            forget_proof(home, name)  # it was not stopped, so it died
            async with aclosing(stop_processes(running)) as events:
                async for event in events:
                    yield event
        remove_files(startup.folder)
    async with aclosing(_in_turn(startup, stages)) as events:
        async for event in events:
            yield event
    if wants_unit or startup.spec.at_boot:
        yield await _enable_at_boot(startup, startup.spec)


async def _enable_at_boot(startup: Startup, spec: ServiceSpec) -> PhaseDone:
    """`spec`: of what runs, which an `up` without --boot may have started."""
    if not spec.at_boot:
        spec = replace(spec, at_boot=True)
        write_spec(startup.folder, spec)  # first: `down` removes the unit of a service that has this
    await boot.enable(spec.name, startup.home, spec.up_arguments)
    return PhaseDone("boot", f"{spec.name} starts when the machine boots")


async def _in_turn(startup: Startup, stages: Iterable[Stage]) -> AsyncGenerator[Event]:
    """Closed by a reader that has enough, it closes the stage as well: the work lock is held until then."""
    for stage in stages:
        async with aclosing(stage(startup)) as events:
            async for event in events:
                yield event


def _refuse_hung(running: Service | None) -> None:
    """Its supervisor restarts it if that lasts; two at work on one engine would be one too many."""
    if running and running.phase == "hung":
        raise FiresteelError(
            f"{running.name} is up on {running.spec.url}, but it hangs: {hang_of(running.state)}",
            next=f"firesteel ps; it is restarted if that lasts. At once: firesteel down {running.name}, then "
            f"{running.spec.again}",
        )


def _refuse_waiting(running: Service | None) -> None:
    """It would wait with its supervisor for as long as the disk is full."""
    if running and running.state and WAITS_FOR_ROOM in (running.state.why or ""):
        raise HostNotReady(
            f"{running.name} was up, and then {death(running.state)}",
            next="df -h, and free some space: it starts by itself then",
        )


def _already(running: Service, wanted: ServiceSpec) -> ServiceReady:
    """Report what runs, provided that it is what was asked for."""
    name, url, again = running.name, running.spec.url, f"firesteel down {running.name}, then {wanted.again}"
    if not running.spec.start:
        raise FiresteelError(
            f"{name} is running, but its spec.json cannot be read, so its settings are unknown", next=again
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


def _lacks_unit(running: Service, wanted: ServiceSpec) -> bool:
    return wanted.at_boot and not running.spec.at_boot


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


def ready(startup: Startup) -> AsyncGenerator[Event]:
    """The host can take it: port, disk, docker, memory."""
    return preflight(startup.proposal, startup.home, startup.spec.again)


async def fetch(startup: Startup) -> AsyncGenerator[Event]:
    """Image and weights are on this host, and only now is it known where."""
    proposal, home = startup.proposal, startup.home
    for stage in (pull_launch(proposal, home), audit_pulled(proposal, home)):
        async with aclosing(stage) as events:
            async for event in events:
                yield event
    if proposal.plan.launch.container:
        async for event in ready(startup):  # again: with the image, the GPU can be tried in a container
            yield event
        if files := staged_files(proposal, home):
            dropped = await asyncio.to_thread(evict, files)  # CUDA counts page cache as used
            if dropped.bytes:
                text = f"{show_bytes(dropped.bytes)} of weights dropped from the page cache"
                yield PhaseDone("check", text)
    startup.spec = replace(startup.spec, start=start_argv(proposal, home))


async def start(startup: Startup) -> AsyncGenerator[Event]:
    """A supervisor runs the engine, which responds. Only within `stopped_on_failure`."""
    remove(startup.folder / "engine.log")
    write_secrets_of(startup.proposal, startup.spec)
    yield PhaseProgress("launch", "starting")
    startup.spec = replace(startup.spec, available_bytes=meminfo().available_bytes)
    write_spec(startup.folder, startup.spec)
    startup.is_started = True
    supervisor = start_supervisor(startup.folder)
    async for event in _until_healthy(startup, partial(process.has_ended, supervisor)):
        yield event


async def _until_healthy(startup: Startup, has_ended: Callable[[], bool]) -> AsyncGenerator[Event]:
    began, spec = process.uptime(), startup.spec
    async for event in wait_until_healthy(startup.home, spec, startup.proposal.plan, has_ended):
        yield event
    startup.start_s = process.uptime() - began
    yield PhaseDone("launch", f"{spec.engine} answers after {startup.start_s:.1f} s")


async def verify(startup: Startup) -> AsyncGenerator[Event]:
    """Its answers are right: warm it up, check it, report. And it is still there after that."""
    spec = startup.spec
    async with aclosing(warm_and_verify(startup.proposal, startup.home, spec, startup.start_s)) as events:
        async for event in events:
            if isinstance(event, ServiceReady):
                await _require_alive(startup.home, spec)
            yield event


async def _require_alive(home: Home, spec: ServiceSpec) -> None:
    """By its own answer: what its supervisor has written may be a second old."""
    service = load(home, spec.name)
    is_there = service is not None and service.phase not in ("stopping", "dead")
    status = await engine_client.status(f"{spec.url}{spec.health}", timeout_s=_LAST_LOOK_S, key=api_key(spec))
    if not is_there or status != 200:
        raise FiresteelError(
            f"{spec.name} was verified, and then stopped answering", next=f"firesteel logs {spec.name}"
        )


def stopped_on_failure(*stages: Stage) -> Stage:
    """These stages as one; Ctrl-C, a failed check or a bug in them stops what they started."""
    return partial(_stopped_on_failure, stages=stages)


async def _stopped_on_failure(startup: Startup, stages: Iterable[Stage]) -> AsyncGenerator[Event]:
    proposal, home, spec = startup.proposal, startup.home, startup.spec  # its name and limits do not change
    try:
        async with aclosing(_in_turn(startup, stages)) as events:
            async for event in events:
                yield event
    except BaseException as error:
        if not startup.is_started:
            raise
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


# --- what differs between a service that runs and the one that is asked for ---

_MAX_DIFFERENCES = 4


def differences(running: ServiceSpec, wanted: ServiceSpec) -> str:
    """In the engine's own words: `--ctx-size 4096, not 1024; --port 8000, not 8001`"""
    found = _changed(_flags(running.start), _flags(wanted.start))
    if running.is_guarded_by_key != wanted.is_guarded_by_key:
        found += ["it asks for a key" if running.is_guarded_by_key else "it asks for no key"]
    elif running.listen != wanted.listen:
        found += [f"it listens on {running.listen}, not {wanted.listen}"]
    found += _changed(running.env, wanted.env)
    more = [f"{len(found) - _MAX_DIFFERENCES} more"] if len(found) > _MAX_DIFFERENCES else []
    return "; ".join([*found[:_MAX_DIFFERENCES], *more]) or "it was planned by another version of firesteel"


def _changed(running: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    found = []
    for name in dict.fromkeys((*running, *wanted)):
        one, other = running.get(name), wanted.get(name)
        if other is None:
            found.append(f"it has {name} {one}".rstrip())
        elif one is None:
            found.append(f"it lacks {name} {other}".rstrip())
        elif one != other:
            found.append(f"{name} {one}, not {other}")
    return found


def _flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Flag -> value, as engines and docker take them; words that belong to no flag are left out."""
    flags: dict[str, str] = {}
    for index, word in enumerate(argv):
        if word.startswith("-") and not word.lstrip("-").isdigit():
            name, equals, value = word.partition("=")
            following = argv[index + 1] if index + 1 < len(argv) else "-"
            value = value if equals else "" if following.startswith("-") else following
            flags[name] = f"{flags[name]} {value}" if name in flags else value
    return flags


# --- the models of one service file ---


def plan_all(
    file: ServiceFile, names: tuple[str, ...], workspace: Workspace, running: Iterable[Service]
) -> list[Proposal]:
    """The best way to serve each model, in the file's order, in the memory that those before it leave."""
    running = tuple(running)
    ready = {service.name for service in running if service.phase == "ready"}
    ports = {service.name: port_of(service) for service in running if service.phase != "dead"}
    taken_ports = [*written_ports(file)]
    external_bytes = sum(entry.memory or 0 for entry in file.models.values() if entry.addresses)
    ceiling, host = file.memory.ceiling, workspace.host()
    available = host.room_bytes
    if ceiling is not None:
        available = min(available, max(0, ceiling - external_bytes))
    planned: list[Proposal] = []
    taken = 0
    for name, ask in chosen(file, names).items():
        rest = replace(host, memory_available_bytes=host.keep_free_bytes + max(0, available - taken))
        if ask.port is None:
            ask = replace(ask, port=ports.get(name) or free_port(workspace.home, taken_ports))
            taken_ports.append(ask.port or 0)
        # What runs already holds its memory: it is planned on the host as it is.
        propose = workspace.propose_joined if ask.sparks else workspace.propose
        best = propose(ask, host if name in ready else rest)[0]
        if not best.plan.fits:
            raise _does_not_fit(best, planned, rest, ceiling, external_bytes)
        planned.append(best)
        taken += 0 if name in ready else round(best.plan.memory.needed.expected)
    return planned


def _does_not_fit(
    best: Proposal, planned: list[Proposal], rest: Host, ceiling: int | None, external_bytes: int
) -> DoesNotFit:
    needed = show_bytes(round(best.plan.memory.needed.expected))
    next_to = f" next to {', '.join(proposal.name for proposal in planned)}" if planned else ""
    under = f" under the ceiling of {show_bytes(ceiling)}" if ceiling else ""
    external = f", of which {show_bytes(external_bytes)} are for models at a `url`" if external_bytes else ""
    return DoesNotFit(
        f"{best.name} needs {needed}, and{next_to} there is room for {show_bytes(rest.room_bytes)}"
        f"{under}{external}",
        next=f"start fewer of them by name, or give {best.name} a smaller `context`",
    )
