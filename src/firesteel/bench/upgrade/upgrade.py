"""`upgrade MODEL`: change the engine release of a running model; `--rollback` returns to the one before.

A release is a tag of its image, a version of its package, or a build of its program. If both fit by the plan,
the candidate starts alongside the model, is verified, and both are measured in turns; only then the model
switches. If not, the model is measured, switches, is measured again and, if that is worse, switches back.

A switch stores the choice (`edge.home`), and the model follows. A gateway that serves the model sees the
choice: it finishes the running requests, queues new ones, and stops the old engine, so no client sees an
error. Without one the model is stopped and started. If the start fails, the old choice is stored again and
the old release started.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Literal

from firesteel.bench.upgrade.result import Outcome, UpgradeOptions, UpgradeResult
from firesteel.bench.upgrade.trial import TrialVerdict, judge_in_sequence, measure_service, try_side_by_side
from firesteel.edge.docker.registry import Registry, parse_reference
from firesteel.edge.home import (
    EngineRelease,
    Home,
    ModelRelease,
    choose_release,
    chosen_release,
    is_locked,
)
from firesteel.edge.host.process import port_is_free, run, uptime
from firesteel.edge.programs import wheels
from firesteel.edge.programs.build import BuildProgress
from firesteel.edge.programs.installed import find_program, installed_engines
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

_NUMBER = re.compile(r"\d+")


def release_of(proposal: Proposal) -> EngineRelease:
    """What a proposal would run."""
    launch, image = proposal.plan.launch, proposal.image
    version = launch.version or "unknown"
    if launch.program:
        return EngineRelease(launch.engine, version, engine_path=launch.program.argv[0])
    if launch.container:
        return EngineRelease(launch.engine, version, image=launch.container.image)
    return EngineRelease(launch.engine, version, package=image.package if image else None)


async def find_release(home: Home, current: EngineRelease, to: str | None) -> EngineRelease | None:
    """The requested one, or the newest; None: there is no newer one."""
    if current.engine_path:
        return _program(home, current, to)
    if current.package:
        return await _package(home, current, to)
    return _image(current, to)


# --- a program of this machine ---


def _program(home: Home, current: EngineRelease, to: str | None) -> EngineRelease | None:
    if to and "/" in to:
        found = find_program(current.engine, home, to)
        return EngineRelease(current.engine, found.version or "unknown", engine_path=found.argv[0])
    there = {
        engine.version: str(folder / engine.program[0])
        for folder, engine in reversed([*installed_engines(home).items()])
        if engine.engine == current.engine
    }
    wanted = to.removeprefix("b") if to else newest(current.version, there)
    if wanted is None:
        return None
    if wanted not in there:
        raise UsageError(
            f"no {current.engine} {wanted} is installed here; there is {', '.join(there) or 'none'}",
            next=f"firesteel engine install {current.engine}=={wanted}, or --to PATH",
        )
    return EngineRelease(current.engine, wanted, engine_path=there[wanted])


# --- the embedded engine ---


async def _package(home: Home, current: EngineRelease, to: str | None) -> EngineRelease | None:
    name, _, version = (current.package or "").partition("==")
    if to and re.fullmatch(r"\d+(\.\d+){2,}", to.removeprefix(f"{name}==")):
        wanted: str | None = to.removeprefix(f"{name}==")
    else:
        versions = await _published(home, name)
        builds = {_build(one): one for one in reversed(versions)}
        wanted = builds.get(to.removeprefix("b")) if to else newest(version, versions)
        if to and wanted is None:
            what = f"{name} has no release with llama.cpp {to[:40]}"
            raise UsageError(what, next=f"pip index versions {name}")
    if wanted is None:
        return None
    return EngineRelease(current.engine, _build(wanted), package=f"{name}=={wanted}")


def _build(version: str) -> str:
    """`2026.10.11549` -> `11549`, the build of llama.cpp."""
    return version.split(".")[2] if version.count(".") >= 2 else version


async def _published(home: Home, name: str) -> list[str]:
    """By the pip of this user, with the user's index."""
    async for _ in wheels.pull_engine(home, "pip"):
        pass
    pip = (str(wheels.engine_python(home, "pip")), "-P", "-m", "pip", "--disable-pip-version-check")
    code, output = await run(*pip, "index", "versions", name)
    listed = re.search(r"^Available versions: (.+)$", output, re.M)
    if code or listed is None:
        what = f"pip does not list the releases of {name}"
        raise HostNotReady(what, next="check the network, or --to VERSION")
    return [version.strip() for version in listed[1].split(",")]


# --- an image ---


def _image(current: EngineRelease, to: str | None) -> EngineRelease | None:
    reference = (current.image or "").partition("@")[0]
    folder, slash, last = reference.rpartition("/")
    name, _, tag = last.partition(":")
    repository = f"{folder}{slash}{name}"
    if to and ("/" in to or ":" in to):
        return EngineRelease(current.engine, _version(to.rpartition(":")[2]), image=to)
    if to:
        wanted: str | None = _asked_tag(current, tag, to)
    else:
        tags = Registry(parse_reference(reference)).tags()
        wanted = newest(tag, (one for one in tags if re.fullmatch(_same_tags(current, tag), one)))
    if wanted is None:
        return None
    return EngineRelease(current.engine, _version(wanted), image=f"{repository}:{wanted}")


def _same_tags(current: EngineRelease, tag: str) -> str:
    """A pattern for releases of the same thing: `v0.29.0-cu130` of `v0.28.0-cu130`."""
    if current.engine == "llamacpp":
        return rf"{re.escape(_stem(tag))}-b\d+"
    return r"\d+".join(map(re.escape, _NUMBER.split(tag)))


def _stem(tag: str) -> str:
    """llama.cpp's tags end with the build, and the CUDA release stands before it."""
    return re.sub(r"-b[0-9]+$", "", tag)


def _version(tag: str) -> str:
    match = re.search(r"(?<=-b)\d+$", tag) or re.search(r"\d+(\.\d+)*", tag)
    return match[0] if match else tag


def _asked_tag(current: EngineRelease, tag: str, to: str) -> str:
    """`v0.28.0` and `0.29.0` -> `v0.29.0`; `server-cuda13` and `b11600` -> `server-cuda13-b11600`."""
    if current.engine == "llamacpp" and re.fullmatch(r"b?\d+", to):
        return f"{_stem(tag)}-b{to.removeprefix('b')}"
    if not to[0].isdigit():
        return to
    return re.sub(r"\d+(\.\d+)*", to, tag, count=1) if re.search(r"\d", tag) else to


def newest(current: str, others: Iterable[str]) -> str | None:
    """The newest that is newer than the current one, by their numbers."""

    def order(version: str) -> tuple[int, ...]:
        return tuple(map(int, _NUMBER.findall(version)))

    return max((one for one in others if order(one) > order(current)), key=order, default=None)


# --- the upgrade ---

_DRAIN_S = 900.0
"""For the requests that run while a gateway switches."""
_POLL_S = 0.2


class NotSwitched(FiresteelError):
    """The other release did not start; the model runs on the one before."""


UpgradeEvent = Event | BuildProgress | UpgradeResult


async def upgrade(home: Home, name: str | None, options: UpgradeOptions) -> AsyncIterator[UpgradeEvent]:
    """The last event is the result."""
    service = running_service(home, name)
    if service.phase != "ready" or service.spec.is_command or (service.spec.ask.sparks or 1) > 1:
        raise UsageError(
            f"{service.name} is {service.phase}; upgrade takes a model that runs on this host alone",
            next="firesteel ps",
        )
    before = release_of(_proposal(home, service, None))
    yield BuildProgress("looking for releases")
    release = await find_release(home, before, options.to)
    if release is None or release == before:
        yield UpgradeResult(service.name, "newest", before, before, None, "neither", (), ())
        return
    candidate = _proposal(home, service, release, f"{service.name[:50]}-next")
    if candidate.plan.fits:
        trial = _try_side_by_side(home, service, candidate, release, options)
    else:
        require_runnable(_proposal(home, service, release, freed_bytes=service.spec.expected_bytes))
        trial = _try_in_sequence(home, service, before, release, options)
    async for event in trial:
        yield replace(event, before=before) if isinstance(event, UpgradeResult) else event


async def rollback(home: Home, name: str | None) -> AsyncIterator[UpgradeEvent]:
    """Back to the release before the last upgrade, at once; the last event is the result."""
    service = running_service(home, name)
    chosen = chosen_release(home, service.name)
    if chosen is None:
        raise UsageError(f"{service.name} was never upgraded", next=f"firesteel upgrade {service.name}")
    before = release_of(_proposal(home, service, None))
    async for event in _switch(home, service, chosen.swapped(_today())):
        yield event
    after = release_of(_proposal(home, service, None))
    yield UpgradeResult(service.name, "switched", before, after, after, "neither", ("rolled back",), ())


def _proposal(
    home: Home, service: Service, release: EngineRelease | None, name: str | None = None, freed_bytes: int = 0
) -> Proposal:
    """What runs, on another release, or under another name on a free port, or with more memory free."""
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
    current = release_of(_proposal(home, service, None))
    if verdict.accepted:
        async for event in _switch(home, service, _chosen(home, service, release)):
            yield event
    yield _result(service, release if verdict.accepted else current, release, "beside", verdict)


# --- in sequence ---


async def _try_in_sequence(
    home: Home, service: Service, before: EngineRelease, release: EngineRelease, options: UpgradeOptions
) -> AsyncIterator[UpgradeEvent]:
    verdict, measured = TrialVerdict(True, ("verified",)), None
    if options.measures:
        yield BuildProgress(f"both do not fit: measuring {service.name} as it is")
        measured = await measure_service(home, service.name, options.answers, options.budget_s)
    try:
        async for event in _switch(home, service, _chosen(home, service, release)):
            yield event
    except NotSwitched as error:
        yield _result(service, before, release, "after", TrialVerdict(False, (error.what,)))
        return
    if measured is not None:
        yield BuildProgress("measuring it on the other release")
        other = await measure_service(home, service.name, options.answers, options.budget_s, measured)
        verdict = judge_in_sequence(measured, other, options.answers)
    if not verdict.accepted:
        chosen = chosen_release(home, service.name)
        assert chosen is not None
        async for event in _switch(home, service, chosen.swapped(_today())):
            yield event
    yield _result(service, release if verdict.accepted else before, release, "after", verdict)


def _result(
    service: Service,
    now: EngineRelease,
    tried: EngineRelease,
    how: Literal["beside", "after"],
    verdict: TrialVerdict,
) -> UpgradeResult:
    outcome: Outcome = "switched" if verdict.accepted else "kept"
    return UpgradeResult(service.name, outcome, now, now, tried, how, verdict.reasons, verdict.figures)


# --- the switch ---


def _chosen(home: Home, service: Service, release: EngineRelease) -> ModelRelease:
    """The recipe's own release is not written down: it may change with the recipe."""
    before = chosen_release(home, service.name)
    return ModelRelease(service.name, release, before.current if before else None, _today())


async def _switch(home: Home, service: Service, chosen: ModelRelease) -> AsyncIterator[Event]:
    """The model on the chosen release, or on the one before when that does not start."""
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
    """Stops what runs and starts what is chosen; a gateway that serves the model stops it, when idle."""
    spec, name = service.spec, service.name
    wanted = _proposal(home, service, None)
    key = launch_key(wanted.plan.launch)
    address = read_address(home)
    if address and name in address.models:
        yield PhaseProgress("stop", "the gateway finishes what runs; new requests wait")
        await _until_left(home, name, key)
    elif (running := load(home, name)) and running.spec.launch != key:
        async for event in stop(running):
            yield event
    options = RunOptions(spec.listen, spec.trusts_code, spec.at_boot, spec.service_file, spec.is_swapped_in)
    while True:
        wanted = _proposal(home, service, None)  # with the memory that is free by now
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


async def _until_left(home: Home, name: str, key: str) -> None:
    """Until the gateway has stopped the old engine, or has already started the new one."""
    began = uptime()
    while (running := load(home, name)) and running.spec.launch != key:
        if uptime() - began > _DRAIN_S:
            raise FiresteelError(f"the gateway still uses {name} after 15 minutes", next="firesteel ps")
        await asyncio.sleep(_POLL_S)


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
