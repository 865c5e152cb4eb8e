"""Start a model that is a user's command: any server that speaks HTTP.

It has what our engines have: a supervisor with its memory guard, a reaper that takes its whole process tree
along, a log, restarts after a crash. There is nothing to plan and nothing to verify: it is up when its health
path answers 200.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping

from firesteel.edge.home import Home, Locked, lock, remove
from firesteel.edge.host import process
from firesteel.edge.host.memory import meminfo
from firesteel.edge.http import engine_client
from firesteel.errors import DoesNotFit, FiresteelError, HostNotReady
from firesteel.gateway.discovery import identity, is_identity_of, running_model
from firesteel.gateway.loader.child import say
from firesteel.hosts.cluster.on_nodes import key_of_nodes
from firesteel.launch import LOOPBACK, Ask
from firesteel.run.down import stop_and_remove
from firesteel.run.endpoints import free_port, reached_at
from firesteel.run.report import Report, write_report
from firesteel.run.service import ServiceSpec, folder_of, load, write_spec
from firesteel.run.spec import REAPER
from firesteel.run.start import start_failure, start_supervisor
from firesteel.units import show_bytes, show_seconds
from firesteel.values import Value, plain, replace

_START_LIMIT_S = 1800
_POLL_S = 0.1
_SAY_S = 5.0
_GRACE_S = 20.0
_NODE_GRACE_S = 120.0
"""For ssh, and for an engine there to end and give its memory back."""


class CommandJob(Value):
    """What to start; the fields of `ModelConfig.ask`."""

    name: str
    cmd: tuple[str, ...]
    port: int | None
    """None: a free one, taken when it is loaded."""
    health: str
    memory_bytes: int
    floor_bytes: int = 0
    """The guard stops it when the host has less."""
    env: Mapping[str, str] = {}
    path: str = ""
    address: str = LOOPBACK
    """Another host's, of a model on a `node`: the command watches it there and stops it at its end."""
    secrets: str = ""
    """The file with the key that it asks for."""
    avoid: tuple[int, ...] = ()
    """Ports of others in the file."""

    @property
    def url(self) -> str:
        """Empty before it has a port."""
        return reached_at(self.address, self.port) if self.port else ""

    @property
    def is_remote(self) -> bool:
        return self.address != LOOPBACK

    @property
    def launch(self) -> str:
        """Changes with anything that needs a restart."""
        text = json.dumps([self.cmd, self.health, self.memory_bytes, sorted(self.env.items())])
        return f"cmd-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    @property
    def identity(self) -> str:
        return identity(self.launch, self.url, bool(self.secrets))

    def spec(self) -> ServiceSpec:
        def filled(text: str) -> str:
            return text.replace("${PORT}", str(self.port))

        return ServiceSpec(
            self.name,
            self.url,
            self.name,
            self.cmd if self.is_remote else (sys.executable, "-I", "-S", REAPER, *map(filled, self.cmd)),
            env={name: filled(value) for name, value in self.env.items()},
            ask=Ask(port=self.port, name=self.name),
            service_file=self.path,
            is_swapped_in=True,
            memory_floor_bytes=self.floor_bytes,
            stop_grace_s=_NODE_GRACE_S if self.is_remote else _GRACE_S,
            available_bytes=meminfo().available_bytes,
            expected_bytes=self.memory_bytes,
            launch=self.launch,
            health=self.health,
            is_command=True,
            secrets=self.secrets,
            is_guarded_by_key=bool(self.secrets),
        )


async def load_command(job: CommandJob, home: Home) -> None:
    folder = folder_of(home, job.name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with lock(folder / "work.lock"):
            await _load(job, home)
    except Locked:
        what = f"another firesteel command is working on {job.name}"
        raise FiresteelError(what, next="firesteel ps") from None


async def _load(job: CommandJob, home: Home) -> None:
    running = load(home, job.name)
    if running and running.phase == "ready" and is_identity_of(job.identity, running.spec):
        say({"up": plain(replace(running_model(home, running), is_found=True))})
        return
    await stop_and_remove(home, job.name)
    if job.is_remote:
        key_of_nodes(home, job.name)
    else:
        _check_host(job)
    if job.port is None:
        job = replace(job, port=free_port(home, job.avoid))
    began, spec = process.uptime(), job.spec()
    try:
        await _start(spec, home)
    except BaseException:  # also when the load is cancelled: nothing may be left
        await asyncio.shield(stop_and_remove(home, job.name))
        raise
    seconds = process.uptime() - began
    report = Report(
        job.name, job.url, job.name, "cmd", None, (), (), seconds, 0.0,
        str(folder_of(home, job.name) / "engine.log"),
    )  # fmt: skip
    write_report(folder_of(home, job.name), report)
    service = load(home, job.name)
    if service is None:
        raise FiresteelError(f"{job.name} came up and is gone again", next=f"firesteel logs {job.name}")
    say({"up": plain(replace(running_model(home, service), load_s=seconds))})


def _check_host(job: CommandJob) -> None:
    available = meminfo().available_bytes
    if job.memory_bytes > available - job.floor_bytes:
        raise DoesNotFit(
            f"{job.name} needs {show_bytes(job.memory_bytes)}, and {show_bytes(available)} are available",
            next="firesteel ps",
        )
    if job.port and not process.port_is_free(job.port):
        raise HostNotReady(
            f"port {job.port} is taken", next=f"another `port` for `{job.name}` in {job.path or 'the file'}"
        )


async def _start(spec: ServiceSpec, home: Home) -> None:
    folder = folder_of(home, spec.name)
    remove(folder / "engine.log")
    write_spec(folder, spec)
    supervisor = start_supervisor(folder)
    began = said = process.uptime()
    while (now := process.uptime()) - began < _START_LIMIT_S:
        if process.has_ended(supervisor):
            raise start_failure(home, spec)
        service = load(home, spec.name)
        is_started = service is not None and service.state is not None and service.state.engine is not None
        if is_started and await engine_client.status(spec.url + spec.health) == 200:
            return
        if now - said > _SAY_S:
            said = now
            words = f"{spec.name} is starting, {show_seconds(now - began)}"
            say({"doing": {"phase": "launch", "words": words, "eta_s": None}})
        await asyncio.sleep(_POLL_S)
    raise FiresteelError(
        f"{spec.name} did not answer 200 at {spec.health} within {show_seconds(_START_LIMIT_S)}",
        next=f"firesteel logs {spec.name}",
    )
