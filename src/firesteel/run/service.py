"""A service: one model that was started, as the files of its folder tell.

spec.json        what the supervisor was told to start; no secret is in it
state.json       what the supervisor saw: written by the supervisor alone
report.json      what `up` proved; absent until it did
supervisor.lock  held by the supervisor for as long as it lives
work.lock        held by an `up` that is under way, and by whoever removes these files
engine.log       the engine's own words

Version 0.1.0 called the supervisor `keeper`, in state.json and in the name of its lock. A service that it
started may still run, so both names are read.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from firesteel.edge.docker.containers import is_container_running
from firesteel.edge.files.home import Home, is_locked, write_text
from firesteel.edge.host.process import Pid, is_alive
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import EngineName

Phase = Literal["starting", "ready", "stopping", "unkept", "dead"]
"""unkept: a container whose supervisor was killed; it runs, and nobody guards it."""
SUPERVISOR_LOCK, KEEPER_LOCK = "supervisor.lock", "keeper.lock"
STOP_REQUESTED = "it was told to stop"
"""`ServiceState.why` after somebody asked for the stop. Written by the supervisor, read by the gateway."""
MAX_TAIL_BYTES = 2**20
_MAX_FILE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What the supervisor starts, and how it stops it."""

    name: str
    url: str
    model: str
    start: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    again: str = ""
    """What to type to start it again."""
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
    """It answers only to whoever has the key."""
    at_boot: bool = False
    prefill_s: float = 0
    """How long the longest prompt may be read without a sign of life."""
    time_share: float = 1
    """Of every wait, for a restart or a sign of life; less where time runs faster, as on a pretend Spark."""


@dataclass(frozen=True, slots=True)
class ServiceState:
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


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    folder: Path
    spec: ServiceSpec
    state: ServiceState | None
    phase: Phase
    report: Mapping[str, object] | None

    @property
    def log(self) -> Path:
        return self.folder / "engine.log"


def folder_of(home: Home, name: str) -> Path:
    return home.services / name


def all_services(home: Home) -> list[Service]:
    if not home.services.is_dir():
        return []
    found = (load(home, folder.name) for folder in sorted(home.services.iterdir()) if folder.is_dir())
    return [service for service in found if service]


def is_supervised(folder: Path) -> bool:
    """Whether a supervisor, of this version or of 0.1.0, has this service."""
    return is_locked(folder / SUPERVISOR_LOCK) or is_locked(folder / KEEPER_LOCK)


def load(home: Home, name: str) -> Service | None:
    """A supervisor that lives is a service, whatever became of its files."""
    folder = folder_of(home, name)
    spec = read_spec(folder)
    if spec is None and not is_supervised(folder):
        return None
    spec = spec or ServiceSpec(name, "", name, ())
    state = read_state(folder)
    report = _read(folder / "report.json")
    return Service(name, folder, spec, state, _phase(folder, spec, state, report), report)


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
    """A held lock is the proof of life; files alone prove nothing."""
    if not is_supervised(folder):
        if state is None:
            return "starting" if is_locked(folder / "work.lock") else "dead"
        if spec.stop and state.ended_at is None and is_container_running(spec.name):
            return "unkept"
        # When a supervisor is killed, the kernel first releases its lock and then kills the engine, which
        # takes a while to die on a busy host. Until it has, its memory and its port are taken.
        return "stopping" if state.engine and is_alive(state.engine) else "dead"
    if state is None or state.engine is None or not is_alive(state.supervisor):
        return "starting"  # a new supervisor has not yet written who it is
    if state.is_stopping or state.ended_at is not None or not is_alive(state.engine):
        return "stopping"
    return "ready" if report and state.is_proved else "starting"


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


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a log, however long it has grown; a progress bar's carriage return ends a line too."""
    with path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(0, log.tell() - MAX_TAIL_BYTES))
        return log.read().decode(errors="replace").replace("\r", "\n").splitlines()[-count:]


def write_spec(folder: Path, spec: ServiceSpec) -> None:
    write_text(folder / "spec.json", json.dumps(asdict(spec), indent=1))


def write_state(folder: Path, state: ServiceState) -> None:
    write_text(folder / "state.json", json.dumps(asdict(state), indent=1))


def read_spec(folder: Path) -> ServiceSpec | None:
    """None when there is none, and when it is not one."""
    found = _read(folder / "spec.json")
    try:
        return ServiceSpec(**_known(ServiceSpec, found)) if found else None
    except (TypeError, KeyError):
        return None


def read_state(folder: Path) -> ServiceState | None:
    found = _read(folder / "state.json")
    try:
        if found and "keeper" in found:
            found = {**found, "supervisor": found["keeper"]}
        pids = {name: _pid(found[name]) for name in ("supervisor", "engine")} if found else {}
        return ServiceState(**{**_known(ServiceState, found), **pids}) if found else None
    except (TypeError, KeyError):
        return None


def _known(kind: type[ServiceSpec] | type[ServiceState], found: Mapping[str, Any]) -> dict[str, Any]:
    """What this release knows of a file that another may have written; lists are tuples here."""
    read = {}
    for each in fields(kind):
        if each.name in found:
            value = found[each.name]
            value = tuple(value) if isinstance(value, list) else value
            if not _is_a(each.name, value, each.default):
                raise TypeError(f"{each.name} is {value!r:.100}")
            read[each.name] = value
    return read


_MAY_BE_NONE: Mapping[str, type | tuple[type, ...]] = {
    "ended_at": (int, float), "exit_code": int, "why": str, "engine": (dict, str),
}  # fmt: skip


def _is_a(name: str, value: object, default: object) -> bool:
    """By what the field is when nobody says anything; texts where somebody must."""
    if name in _MAY_BE_NONE and (value is None or isinstance(value, _MAY_BE_NONE[name])):
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, (int, float)) or name == "started_at":
        return isinstance(value, (int, float))
    if isinstance(value, tuple):
        return all(isinstance(each, str) for each in value)
    return isinstance(value, (dict, str)) if name in ("env", "supervisor") else isinstance(value, str)


def _pid(found: dict[str, int] | None) -> Pid | None:
    return Pid(**found) if found else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
