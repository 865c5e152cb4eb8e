"""`up`: plan, check, pull, launch, warm, verify, report, as a stream of events.

Nothing is started before the plan fits, the rules agree, the port is free and the disk has room. From
then on a failure or an interruption takes back what was started.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path

from firesteel import engines
from firesteel.edge import process
from firesteel.edge.home import Home, Locked, expand_home, lock, write_text
from firesteel.edge.memory import meminfo
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.launch import Launch
from firesteel.rules import Proposal, insist
from firesteel.run import verify
from firesteel.run.down import end, forget_files
from firesteel.run.events import Doing, Done, Event, Planned, Ready
from firesteel.run.judge import Asked, judge_answers
from firesteel.run.pull import pull
from firesteel.run.report import Report, compare, read_report
from firesteel.run.service import MAX_TAIL_BYTES, Service, Spec, folder_of, last_lines, load, write_spec
from firesteel.run.start import failed_start, start_keeper, until_healthy
from firesteel.run.steps import make_steps
from firesteel.run.warm import warm


async def bring_up(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    name = proposal.name
    yield Planned(proposal)
    insist(proposal)
    folder = folder_of(home, name)
    try:
        with lock(folder / "work.lock"):
            running = load(home, name)
            if running and running.phase == "ready":
                yield _already(running, _spec(proposal, home))
                return
            if running and _was_left(running, _spec(proposal, home)):
                async for event in _follow(proposal, home, running):
                    yield event
                return
            if running:
                async for event in end(running):
                    yield event
            forget_files(folder)
            async for event in _launch(proposal, home, folder):
                yield event
    except Locked:
        raise FiresteelError(f"another firesteel is at work on {name}", next="firesteel ps") from None


def _already(running: Service, wanted: Spec) -> Ready:
    """What runs is the answer only if it is what was asked for."""
    if running.spec.start != wanted.start or running.report is None:
        raise FiresteelError(
            f"{running.name} is up already on {running.spec.url}, and not as asked for now",
            next=f"firesteel down {running.name}, then the same again",
        )
    return Ready(read_report(running.report), already=True)


def _was_left(running: Service, wanted: Spec) -> bool:
    """Started as asked for by an `up` that did not live to prove it."""
    return running.phase == "starting" and running.state is not None and running.spec.start == wanted.start


async def _follow(proposal: Proposal, home: Home, running: Service) -> AsyncIterator[Event]:
    """Goes on where another `up` stopped."""
    state = running.state
    assert state is not None
    yield Doing("launch", "it was started before; going on from there")
    async for event in _until_proved(
        proposal, home, running.spec, lambda: not process.is_alive(state.keeper)
    ):
        yield event


async def _launch(proposal: Proposal, home: Home, folder: Path) -> AsyncIterator[Event]:
    _need_port(proposal)
    async for event in pull(proposal, home):
        yield event
    spec = _spec(proposal, home)
    (folder / "engine.log").unlink(missing_ok=True)
    write_spec(folder, spec)
    yield Doing("launch", "starting")
    keeper = start_keeper(folder)
    async for event in _until_proved(proposal, home, spec, lambda: process.has_ended(keeper)):
        yield event


async def _until_proved(
    proposal: Proposal, home: Home, spec: Spec, has_ended: Callable[[], bool]
) -> AsyncIterator[Event]:
    launch = proposal.plan.launch
    started = process.uptime()
    try:
        async for event in until_healthy(home, spec, launch.engine, has_ended):
            yield event
        start_s = process.uptime() - started
        yield Done("launch", f"{launch.engine} answers after {start_s:.1f} s")
        async for event in warm(spec):
            yield event
        async for event in _prove(proposal, home, spec, start_s):
            yield event
    except BaseException as error:
        # Ctrl-C, a crash of ours, a failed check: what was started goes again.
        reason = _deeper(home, spec, error)
        await asyncio.shield(_take_back(home, spec))
        raise reason from None


def _deeper(home: Home, spec: Spec, error: BaseException) -> BaseException:
    """An engine that stopped answering because it died: its death is the reason to tell."""
    service = load(home, spec.name)
    died = service is not None and service.phase == "dead"
    return failed_start(home, spec) if died and isinstance(error, FiresteelError) else error


async def _take_back(home: Home, spec: Spec) -> None:
    service = load(home, spec.name)
    if service:
        async for _ in end(service):
            pass
    forget_files(folder_of(home, spec.name))


def _need_port(proposal: Proposal) -> None:
    port = proposal.plan.launch.port
    if process.port_is_free(port):
        return
    owner = process.port_owner(port)
    by = f" by {owner}" if owner else ""
    another = next((each for each in range(port + 1, port + 100) if process.port_is_free(each)), port + 100)
    raise HostNotReady(f"port {port} is in use{by}", next=f"firesteel up {_named(proposal)} --port {another}")


def _named(proposal: Proposal) -> str:
    """What the user would type for it: the recipe's name, or the path it was planned from."""
    return proposal.name if proposal.recipe else shlex.quote(proposal.asked)


def _spec(proposal: Proposal, home: Home) -> Spec:
    launch = proposal.plan.launch
    start = make_steps(proposal, home)[-1]
    return Spec(
        name=launch.name,
        url=f"http://127.0.0.1:{launch.port}",
        model=launch.name,
        start=expand_home(start.command.argv),
        env=dict(start.command.env),
        again=f"firesteel up {_named(proposal)} --port {launch.port}",
        stop=start.undo.argv if start.undo else (),
        memory_floor_bytes=proposal.plan.host.keep_free_bytes // 2,
        available_bytes=meminfo().available_bytes,
        container_bytes=round(proposal.plan.memory.needed.low) if launch.container else 0,
    )


async def _prove(proposal: Proposal, home: Home, spec: Spec, start_s: float) -> AsyncIterator[Event]:
    async for each in verify.ask(spec.url, spec.model):
        if isinstance(each, str):
            yield Doing("verify", each)
            continue
        service = load(home, spec.name)
        if service is None or service.phase == "dead":
            raise failed_start(home, spec)
        report = _report(proposal, service, each, start_s)
    failed = [check for check in report.checks if not check.passed]
    if failed:
        saw = "; ".join(f"{check.name}: {check.saw}" for check in failed)
        raise FiresteelError(
            f"{spec.name} came up, but its answers are wrong ({saw}); it was stopped",
            next=f"firesteel logs {spec.name}",
        )
    yield Done("verify", ", ".join(check.name for check in report.checks))
    write_text(folder_of(home, spec.name) / "report.json", json.dumps(asdict(report), indent=1))
    yield Ready(report)


def _report(proposal: Proposal, service: Service, asked: Asked, start_s: float) -> Report:
    launch, spec = proposal.plan.launch, service.spec
    taken = engines.taken(launch.engine, "\n".join(last_lines(service.log, MAX_TAIL_BYTES)))
    engine = service.state.engine if service.state else None
    return Report(
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


def _process_bytes(engine: process.Pid | None, launch: Launch) -> int | None:
    """A container's memory is not that of the `docker run` we are the parent of."""
    return process.memory(engine).total_bytes if engine and launch.container is None else None
