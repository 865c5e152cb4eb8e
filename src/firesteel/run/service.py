"""A service: one model that was started, as the files of its folder and the process table tell.

spec.json        what the supervisor starts; no secret is in it
state.json       what the supervisor saw: written by the supervisor alone
report.json      what `up` proved; absent until it did
cluster.json     what the runner of several hosts sees of each: written by the runner alone
supervisor.lock  held by the supervisor for as long as it lives
work.lock        held by an `up` that is under way, and by a command that removes these files
engine.log       the engine's own words; kept after the service has ended

Files may be damaged or lost, so a supervisor is also found by its arguments, and what an engine left behind
by its environment. Imports little: supervisor and gateway load it for as long as they live.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import field

from firesteel.edge import home as state_file
from firesteel.edge.docker.containers import is_container_running
from firesteel.edge.home import Home, is_locked, read_secrets
from firesteel.edge.host import process
from firesteel.edge.host.process import (
    Pid,
    command_lines,
    is_alive,
    is_stopped,
    now,
    oldest_child,
    read_memory_file,
    started_at,
)
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import ENGINE_KEY_VARIABLES, LOOPBACK, Ask, EngineName, Runtime
from firesteel.values import InvalidValue, Value, from_json, replace

T = TypeVar("T")

Phase = Literal["starting", "ready", "hung", "stopping", "unkept", "dead"]
"""hung: it was ready and does nothing now. unkept: a container whose supervisor was killed; it runs
unguarded."""
SUPERVISOR_LOCK = "supervisor.lock"
FILES = ("spec.json", "state.json", "report.json", "expect.json", "ranks.json", "cluster.json", "why.txt")
"""What `down` removes; the logs and the locks stay."""
STATE_WRITTEN_S = 10.0
"""A supervisor has written its first state by then."""
STOP_REQUESTED = "it was told to stop"
"""`ServiceState.why` after a stop was requested. Written by the supervisor, read by the gateway."""
WAITS_FOR_ROOM = "it is started again when there is room"
"""In `ServiceState.why`, while a full disk holds up a restart."""
_MEMORY_RAN_OUT = ("the memory guard stopped it", "memory ran out", "Cannot allocate memory")
"""In `ServiceState.why`."""
MAX_TAIL_BYTES = 2**20
STARTED_AGAIN = "firesteel: the engine is started again"
"""A line of `engine.log`, before each start but the first."""
STATE_IN_MEMORY = "firesteel-state"
"""A file in the supervisor's memory: its state, also while no disk takes it."""
WHY_FILE = "why.txt"
"""In a service's folder: why what the supervisor ran has ended, where that knows more than a code."""


class ServiceSpec(Value):
    """What the supervisor starts, and how it stops it."""

    name: str
    url: str
    model: str
    start: tuple[str, ...]
    env: Mapping[str, str] = {}
    ask: Ask = field(default_factory=Ask)
    """What it answers: its recipe, or the path or Hub id it was planned from, with its own port and name."""
    listen: str = LOOPBACK
    trusts_code: bool = False
    """The user allowed it to run the code that comes with the weights."""
    service_file: str = ""
    """The path of the service file that it is in; empty: it is in none."""
    is_swapped_in: bool = False
    """By a gateway: a launch that was proved on this host before is proved briefly."""
    stop: tuple[str, ...] = ()
    """A command that stops the engine, a container then; empty: a signal does."""
    memory_floor_bytes: int = 0
    """The supervisor stops the engine when less than this is available on the host."""
    stop_grace_s: float = 20
    """How long a polite stop may take before a certain one."""
    container_bytes: int = 0
    """What a container was planned to take; its memory is not that of the process we started."""
    available_bytes: int = 0
    """What the host had before the start."""
    expected_bytes: int = 0
    """What it was planned to take in all, so that a load is not taken for a collapse."""
    launch: str = ""
    """`planner.launch_key` of it: the same for what was asked for in the same words."""
    engine: EngineName = "llamacpp"
    """Whose words its log and its metrics speak."""
    attach: tuple[str, ...] = ()
    """A command that becomes the watcher of a container that runs already."""
    secrets: str = ""
    """The file with what must not be said here: the engine gets it as its environment."""
    is_guarded_by_key: bool = False
    """It answers only to clients that have the key."""
    at_boot: bool = False
    prefill_s: float = 0
    """How long the longest prompt may be read without a sign of life."""
    health: str = "/health"
    """The path that answers 200 when it is ready."""
    is_command: bool = False
    """A server started by the user's own command, not a known engine: it can be healthy, and not more."""
    time_share: float = 1
    """Of every wait, for a restart or a sign of life; less on a simulated Spark that runs faster."""

    @property
    def runtime(self) -> Runtime:
        return "container" if self.stop or self.container_bytes else "native"

    @property
    def up_arguments(self) -> tuple[str, ...]:
        """What to type after `firesteel up` to start it again."""
        ask = replace(self.ask, name=self.name)
        return up_arguments(ask, self.listen, self.trusts_code, self.at_boot, self.service_file)

    @property
    def again(self) -> str:
        """What starts it again, to print: a command, unless a gateway does."""
        if self.is_swapped_in:
            return "load it again"
        return f"firesteel up {shlex.join(self.up_arguments)}"


class ServiceState(Value):
    supervisor: Pid
    engine: Pid | None
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    """As subprocess has it: negative for a signal."""
    why: str | None = None
    """Why it ended, in words, when that is known."""
    is_stopping: bool = False
    """Its supervisor has found a reason to end it, `why`, and is at it."""
    restarts: int = 0
    is_proved: bool = True
    """False from a restart until the supervisor has seen its answers proved again."""
    hang: str | None = None
    """What its supervisor sees of an engine that seems to hang; None: it answers or works."""


class Service(Value):
    name: str
    folder: Path
    spec: ServiceSpec
    """What spec.json says. If that file is lost or damaged: defaults, with the name of the folder, the URL of
    report.json and an empty `start`, so that a supervisor that still runs can be listed and stopped."""
    state: ServiceState | None
    phase: Phase
    report: Mapping[str, object] | None

    @property
    def log(self) -> Path:
        return self.folder / "engine.log"


def up_arguments(
    ask: Ask, listen: str, trusts_code: bool, at_boot: bool, service_file: str
) -> tuple[str, ...]:
    """What to type after `firesteel up`: sizes and releases in full, whatever the defaults will be then.

    A service file has its own sizes.
    """
    options: dict[str, object] = {
        "--port": ask.port, "--context": ask.context, "--users": ask.users, "--engine": ask.engine,
        "--engine-version": ask.version, "--engine-path": ask.engine_path,
        "--nodes": ask.sparks if (ask.sparks or 1) > 1 else None,
    }  # fmt: skip
    subject = [ask.model or ask.name or ""]
    if service_file:
        subject, options = ["-f", service_file, ask.name or ""], {}
    if listen != LOOPBACK:
        options["--listen"] = listen
    flags = [(name, str(value)) for name, value in options.items() if value is not None]
    if not service_file:
        flags += [("--adapter", f"{each.name}={each.reference}") for each in ask.adapters]
    is_native = ask.runtime == "native" and not (ask.engine_path or service_file)
    switches = {"--native": is_native, "--trust-remote-code": trusts_code, "--boot": at_boot}
    return (
        *(argument for argument in subject if argument),
        *(word for flag in flags for word in flag),
        *(name for name, is_on in switches.items() if is_on),
    )


def folder_of(home: Home, name: str) -> Path:
    return home.services / name


def all_services(home: Home) -> list[Service]:
    names = set(supervisors(home))
    try:
        names |= {folder.name for folder in home.services.iterdir() if folder.is_dir()}
    except FileNotFoundError:
        pass
    except OSError:
        if not names:  # otherwise what runs is more important than why its folder cannot be read
            raise
    found = (load(home, name) for name in sorted(names))
    return [service for service in found if service]


def is_supervised(folder: Path) -> bool:
    """Whether a supervisor has this service."""
    return is_locked(folder / SUPERVISOR_LOCK)


def load(home: Home, name: str) -> Service | None:
    """A supervisor that lives is a service, whatever became of its files; and so are files without one."""
    folder = folder_of(home, name)
    spec, state = read_spec(folder), current_state(folder)
    if (
        spec is None
        and not _is_live(folder, state)
        and not any(os.path.lexists(folder / file) for file in FILES)
    ):
        return None
    report = _read_object(folder / "report.json") or None
    if spec is None:
        url = report.get("url") if report else None
        spec = ServiceSpec(name, str(url or "").removesuffix("/v1"), name, ())
    return Service(name, folder, spec, state, _phase(folder, spec, state, report), report)


def _is_live(folder: Path, state: ServiceState | None) -> bool:
    """Its supervisor holds the lock; or it lives and has not ended, and the lock is lost or not taken yet."""
    if is_supervised(folder):
        return True
    if state is None:
        return supervisor_of(folder) is not None
    return state.ended_at is None and is_alive(state.supervisor)


def supervisor_of(folder: Path) -> Pid | None:
    """In the process table: it is there from its first moment on, before its lock and its first state."""
    return supervisors(Home(folder.parent.parent)).get(folder.name)


def current_state(folder: Path) -> ServiceState | None:
    """What a living supervisor has in memory, or else state.json; what the process table shows where neither
    says anything about what runs."""
    state = read_state(folder)
    if state and is_alive(state.supervisor):
        return _state_in_memory(state.supervisor) or state
    if state and not is_supervised(folder):
        return state
    supervisor = supervisor_of(folder)
    if supervisor is None:
        return state
    if in_memory := _state_in_memory(supervisor):
        return in_memory
    is_damaged = state is None and os.path.lexists(folder / "state.json")
    if not is_damaged and now() - started_at(supervisor) < STATE_WRITTEN_S:
        return state
    return ServiceState(supervisor, oldest_child(supervisor), started_at(supervisor))


def pick(home: Home, name: str | None) -> Service:
    """The service of that name, or the only one."""
    services = all_services(home)
    names = [service.name for service in services]
    if name is None and len(services) == 1:
        return services[0]
    if name in names:
        return services[names.index(name)]
    if not names:
        raise FiresteelError("nothing is running", next="firesteel up")
    if name is None:
        raise UsageError(f"several are running: {', '.join(names)}", next=f"name one, for example {names[0]}")
    raise UsageError(f"no service is called `{name}`; there is {', '.join(names)}", next="firesteel ps")


def _phase(
    folder: Path, spec: ServiceSpec, state: ServiceState | None, report: Mapping[str, object] | None
) -> Phase:
    """A held lock or a living supervisor is the proof of life; files alone prove nothing."""
    if not _is_live(folder, state):
        # A spec that cannot be read does not tell whether it was a container.
        has_ended = state is not None and state.ended_at is not None
        if (spec.stop or not spec.start) and not has_ended and is_container_running(spec.name):
            return "unkept"
        if state is None:
            return "starting" if is_locked(folder / "work.lock") else "dead"
        # When a supervisor is killed, the kernel first releases its lock and then kills the engine, which
        # takes a while to die on a busy host. Until it has, its memory and its port are taken.
        return "stopping" if state.engine and is_alive(state.engine) else "dead"
    if state is None or state.engine is None or not is_alive(state.supervisor):
        return "starting"
    if state.is_stopping or state.ended_at is not None or not is_alive(state.engine):
        return "stopping"
    if not (report and state.is_proved):
        return "starting"
    return "hung" if hang_of(state) else "ready"


def hang_of(state: ServiceState | None) -> str | None:
    """What shows that a service hangs. A stopped process is seen at once, before its supervisor tells it."""
    if state and state.engine and is_stopped(state.engine):
        return "its process is stopped, as by SIGSTOP"
    if state and is_stopped(state.supervisor):
        return "its supervisor is stopped, as by SIGSTOP, so nothing guards it"
    return state.hang if state else None


def death(state: ServiceState | None) -> str:
    """How a dead service ended, as a sentence's end."""
    if state is None:
        return "it never started"
    if state.why:
        return state.why
    if state.exit_code is None:
        return "its supervisor was killed, and the engine with it"
    if state.exit_code < 0:
        number = -state.exit_code
        name = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
        return f"the engine was killed by signal {number}{name}"
    return f"the engine exited with code {state.exit_code}"


def ended_for_memory(state: ServiceState | None) -> bool:
    """Stopped by the guard, or killed by the kernel: the same start would end in the same way."""
    why = (state.why if state else None) or ""
    return any(sign in why for sign in _MEMORY_RAN_OUT)


def with_less_memory(spec: ServiceSpec) -> str:
    """What to type after that."""
    if spec.is_command:  # what it takes is not planned
        return f"what its log says it takes: firesteel logs {spec.name}, then {spec.again}"
    model = shlex.quote(spec.ask.model or spec.name)
    less = f"firesteel up {model} with a smaller --context or fewer --users"
    if spec.service_file or spec.is_swapped_in:
        less = f"a smaller `context` or fewer `users` in the service file, and {spec.again}"
    return f"firesteel plan {model}, for what takes the memory; then {less}"


def after_death(service: Service) -> str:
    """What to type when it is dead."""
    if ended_for_memory(service.state):
        return with_less_memory(service.spec)
    return f"firesteel logs {service.name}, then {service.spec.again}"


def own_reason(folder: Path) -> str | None:
    """What a runner over several hosts wrote before it stopped them."""
    try:
        return (folder / WHY_FILE).read_text("utf-8", errors="replace").strip()[:500] or None
    except OSError:
        return None


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a log, however long it has grown; a progress bar's carriage return ends a line too.

    Empty for a log that cannot be read: serving, stopping and reporting go on without it."""
    try:
        with open(path, "rb", opener=state_file.open_without_waiting) as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - MAX_TAIL_BYTES))
            return log.read().decode(errors="replace").replace("\r", "\n").splitlines()[-count:]
    except OSError:
        return []


def lines_of_last_start(path: Path, count: int) -> list[str]:
    """Of an engine that was started again: what an earlier start reported would be counted twice."""
    lines = last_lines(path, count)
    starts = [number for number, line in enumerate(lines, 1) if line.startswith(STARTED_AGAIN)]
    return lines[starts[-1] :] if starts else lines


def write_spec(folder: Path, spec: ServiceSpec) -> None:
    state_file.write_state(folder / "spec.json", spec)


def write_state(folder: Path, state: ServiceState) -> None:
    state_file.write_state(folder / "state.json", state)


def read_spec(folder: Path) -> ServiceSpec | None:
    """None when there is none, and when it is damaged."""
    return _parse(ServiceSpec, _read_object(folder / "spec.json"))


def api_key(spec: ServiceSpec) -> str | None:
    """The key that its engine asks for; the secrets may hold others, which the launch passes on."""
    if not spec.is_guarded_by_key:
        return None
    return read_secrets(Path(spec.secrets)).get(ENGINE_KEY_VARIABLES.get(spec.engine, ""))


def read_state(folder: Path) -> ServiceState | None:
    return _parse(ServiceState, _read_object(folder / "state.json"))


def _state_in_memory(supervisor: Pid) -> ServiceState | None:
    """None of a supervisor of an older version, or of another user."""
    content = read_memory_file(supervisor.number, STATE_IN_MEMORY, state_file.MAX_STATE_BYTES)
    try:
        document = json.loads(content)
    except ValueError:
        return None
    return _parse(ServiceState, document) if isinstance(document, dict) else None


def _read_object(path: Path) -> dict[str, Any]:
    """Empty when there is none."""
    document = state_file.read_json(path)
    return document if isinstance(document, dict) else {}


def _parse(kind: type[T], document: Mapping[str, Any]) -> T | None:
    try:
        return from_json(kind, document)
    except InvalidValue:
        return None


# --- what the process table shows, whatever became of the files ---

_SUPERVISOR_MODULE = "firesteel.run.supervise.supervisor"


def supervisors(home: Home) -> dict[str, Pid]:
    """By the name of the service, whose folder is their last argument; the engine is their oldest child."""
    services = home.services.resolve()
    found: dict[str, Pid] = {}
    for pid, arguments in command_lines():
        if _SUPERVISOR_MODULE in arguments:
            folder = Path(arguments[-1])
            if folder.parent.resolve() == services:
                found.setdefault(folder.name, pid)
    return found


SERVICE_VARIABLE = "FIRESTEEL_SERVICE"
"""The folder of the service, in the environment of its engine and of all that the engine starts."""


def end_leftovers(folder: Path) -> int:
    """Kill what an engine left behind; how many there were. It outlived its supervisor and its reaper, so
    its memory would stay in use. Only for a service whose supervisor is gone, or is the caller."""
    pids = process.with_variable(SERVICE_VARIABLE, str(folder))
    for pid in pids:
        process.send(pid, signal.SIGKILL)
    return len(pids)


# --- logs, which are kept after a service has ended ---


def all_logs(home: Home) -> dict[str, Path]:
    """By the name of the service."""
    return {path.parent.name: path for path in home.services.glob("*/engine.log")}


def find_log(home: Home, name: str | None = None) -> Path:
    """The log of that service; without a name, the one that was written to last."""
    logs = all_logs(home)
    if name in logs:
        return logs[name]
    if name is not None:
        known = f"; there are logs of {', '.join(sorted(logs))}" if logs else ""
        raise UsageError(f"there is no log of `{name}`{known}", next="firesteel ps")
    if not logs:
        raise FiresteelError("nothing has run yet, so there is no log", next="firesteel up")
    return max(logs.values(), key=lambda path: path.stat().st_mtime)


# --- proofs: which launch was verified on this host, and one of its answers ---


class Proof(Value):
    """`proofs/NAME.json` under FIRESTEEL_HOME has the last one of each name. A model that is swapped in
    again with the same command, engine, weights and driver is the one that was proved, if it still gives that
    answer word for word (`verify/after_start.py`). A proof is forgotten when the model crashes, does not come
    up, or fails `verify`."""

    digest: str
    """Of everything that its answers depend on (`verify.after_start.proof_digest`)."""
    answer: str


def read_proof(home: Home, name: str) -> Proof | None:
    return state_file.read_state(_proof_path(home, name), Proof)


def record_proof(home: Home, name: str, proof: Proof) -> None:
    state_file.write_state(_proof_path(home, name), proof)


def forget_proof(home: Home, name: str) -> None:
    with suppress(OSError):  # a proof that cannot be removed cannot be written either
        _proof_path(home, name).unlink(missing_ok=True)


def _proof_path(home: Home, name: str) -> Path:
    return home.root / "proofs" / f"{name}.json"


# --- services over several hosts ---

STATUS_FILE = "cluster.json"


class NodeStatus(Value):
    host: str
    rank: int
    phase: str
    """`waiting` (until every node answers), `fallback` (this host, which serves another model meanwhile),
    `starting`, `running`, `silent` (no answer, not yet lost), `stopping`, `ended`."""
    pid: int | None = None
    resident_bytes: int = 0
    available_bytes: int = 0
    log: str = ""


class ClusterStatus(Value):
    phase: str
    why: str | None
    transport: str
    nodes: tuple[NodeStatus, ...]
    notices: tuple[str, ...] = ()


def write_status(folder: Path, status: ClusterStatus) -> None:
    state_file.write_state(folder / STATUS_FILE, status)


def read_status(folder: Path) -> ClusterStatus | None:
    """None for a service of one host."""
    return state_file.read_state(folder / STATUS_FILE, ClusterStatus)
