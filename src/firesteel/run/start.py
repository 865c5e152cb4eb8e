"""Start a supervisor with its engine, and wait until the engine answers or has failed.

Meanwhile its log is followed: which stage the start is in, and an estimate of how long it will still take. A
stage that reports its own progress (shards, graphs) is extrapolated. Any other is assumed to take the planned
time, or what it took before: `starts/NAME.json` under FIRESTEEL_HOME has the last few starts of each model. A
stage that takes longer than the planned maximum has no estimate any more, and the text says that it is late.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from firesteel.edge import home as state_file
from firesteel.edge.home import Home, free_bytes, make_way
from firesteel.edge.host import process
from firesteel.edge.http import engine_client
from firesteel.engines.diagnosis import diagnose
from firesteel.engines.logs import Stage, StartProgress, stages, start_progress
from firesteel.errors import FiresteelError, HostNotReady, SuspectWeights
from firesteel.launch import EngineName
from firesteel.planner.plan import Plan
from firesteel.planner.speed.startup import StartPhase
from firesteel.run.events import Event, PhaseProgress
from firesteel.run.service import (
    ServiceSpec,
    ServiceState,
    all_services,
    death,
    ended_for_memory,
    folder_of,
    last_lines,
    load,
    read_state,
    with_less_memory,
)
from firesteel.units import Band, show_bytes, show_seconds
from firesteel.values import Value, replace

EMBEDDED_LIMIT_S = 600
CONTAINER_LIMIT_S = 6 * 3600
"""An engine in a container may fetch its weights while it starts: 75 GB at 100 Mbit/s take 100 minutes."""
_POLL_S = 0.1
_NOT_CRASHED = (None, 0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""Exit codes of an engine that was stopped or killed; in a container a signal counts from 128."""
_ROOM_BYTES = 2**20
"""With less free on its disk, an engine may end because it cannot write."""
_ADOPT_S = 10
MAX_LINES = 20_000
_PROGRESS_S = 5.0
"""A long wait reports its progress at least this often."""


def start_supervisor(folder: Path) -> int:
    """Start it in the background and return its pid. Its engine inherits its environment."""
    # -P: modules in the current folder must not replace ours.
    argv = [sys.executable, "-P", "-m", "firesteel.run.supervise.supervisor", str(folder)]
    log = folder / "supervisor.log"
    make_way(log)
    return process.start_detached(argv, log, passed_variables(os.environ))


def adopt_all(home: Home) -> None:
    """Start a supervisor for every container that has lost its own, so that nothing stays unguarded."""
    for service in all_services(home):
        if service.phase != "unkept":
            continue
        supervisor, deadline = start_supervisor(service.folder), process.uptime() + _ADOPT_S
        while process.uptime() < deadline and not process.has_ended(supervisor):
            state = read_state(service.folder)
            if state and process.is_alive(state.supervisor):
                break
            time.sleep(_POLL_S)


async def wait_until_healthy(
    home: Home, spec: ServiceSpec, plan: Plan, has_ended: Callable[[], bool]
) -> AsyncIterator[Event]:
    """Report progress from the engine's log; `has_ended` says whether its supervisor has ended."""
    limit_s = CONTAINER_LIMIT_S if spec.stop or spec.container_bytes else _embedded_limit_s(plan)
    began, reporter, waits = process.uptime(), StartReporter(home, spec, plan), ""
    while process.uptime() - began < limit_s:
        supervisor_ended = has_ended()  # asked before the log is read, so that its last lines are not missed
        for text, left_s in reporter.updates(process.uptime() - began):
            yield PhaseProgress("launch", text, left_s)
        if supervisor_ended:
            raise start_failure(home, spec)
        service = load(home, spec.name)
        state = service.state if service else None
        if state and state.ended_at is not None and not state.restarts:
            raise start_failure(home, spec)  # its supervisor still waits for a disk that takes its state
        if state and state.engine is None and state.why and state.why != waits:  # a pause before a restart
            waits = state.why
            yield PhaseProgress("launch", waits)
        if state and await engine_client.is_healthy(spec.url):
            reporter.record(process.uptime() - began)
            return
        await asyncio.sleep(_POLL_S)
    raise FiresteelError(
        f"{spec.name} was not ready within {show_seconds(limit_s)}", next=f"firesteel logs {spec.name}"
    )


def _embedded_limit_s(plan: Plan) -> float:
    """Many times what the plan of this host says, where that is long."""
    start_up = plan.speed.start_up if plan.speed else None
    planned_s = sum(phase.seconds.high for phase in start_up.phases) if start_up else 0.0
    return max(EMBEDDED_LIMIT_S, 10 * planned_s)


class StartReporter:
    """Follows the engine's log: how far the start is, and how long it will still take."""

    def __init__(self, home: Home, spec: ServiceSpec, plan: Plan) -> None:
        self._home, self._spec, self._version = home, spec, plan.launch.version
        self._log, self._read_bytes = folder_of(home, spec.name) / "engine.log", 0
        start_up = plan.speed.start_up if plan.speed else None
        self._planned = start_up.phases if start_up else ()
        self._earlier = earlier_starts(home, spec.name, spec.engine, self._version)
        self._tracker = StartTracker(spec.engine)
        self._reported_s = 0.0

    def updates(self, now_s: float) -> Iterator[tuple[str, float | None]]:
        """Pairs of text and remaining seconds."""
        text, self._read_bytes = _new_lines(self._log, self._read_bytes)
        for line in text.replace("\r", "\n").splitlines():
            if progress := start_progress(self._spec.engine, line):
                self._tracker = self._tracker.advance(progress, now_s)
                yield self._update(now_s)
        if now_s - self._reported_s > _PROGRESS_S:
            yield self._update(now_s)

    def _update(self, now_s: float) -> tuple[str, float | None]:
        self._reported_s = now_s
        left = time_left(self._tracker, self._planned, self._earlier, now_s)
        text = describe(self._tracker, self._planned, self._earlier, now_s)
        return text, left.expected if left else None

    def record(self, now_s: float) -> None:
        seconds = self._tracker.seconds(now_s)
        record_start(self._home, self._spec.name, StartTimes(self._spec.engine, self._version, seconds))


def _new_lines(log: Path, start: int) -> tuple[str, int]:
    """The complete lines from byte `start` on, and where to continue."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            data = file.read()
    except OSError:
        return "", start
    whole = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
    return whole.decode(errors="replace"), start + len(whole)


def has_crashed(state: ServiceState | None) -> bool:
    """The engine ended by itself; neither its supervisor nor the kernel ended it."""
    return state is not None and not state.why and state.exit_code not in _NOT_CRASHED


def start_failure(home: Home, spec: ServiceSpec) -> FiresteelError:
    """Why it did not start, from its exit and a diagnosis of its log."""
    service = load(home, spec.name)
    lines = last_lines(service.log, MAX_LINES) if service else []
    diagnosis = diagnose("\n".join(lines), spec.engine, spec.runtime)
    what = f"{spec.name} did not start: {death(service.state if service else None)}"
    show_log = f"firesteel logs {spec.name}"
    with suppress(OSError):
        if diagnosis.cause is None and (left := free_bytes(home.root)) < _ROOM_BYTES:
            full = f"the disk under {home.root} has only {show_bytes(left)} free, and it writes its log there"
            return HostNotReady(f"{what}; {full}", next="df -h, free some space, then the same again")
    if diagnosis.cause is None and ended_for_memory(service.state if service else None):
        return FiresteelError(what, next=with_less_memory(spec))
    if diagnosis.cause is None:
        suspect = f" ({diagnosis.suspect[1]})" if diagnosis.suspect else ""
        # An error that the engine itself reports comes from its weights only while it reads them.
        reads = diagnosis.suspect is None or (diagnosis.reached and diagnosis.reached.stage == "weights")
        unknown = SuspectWeights if reads and service and has_crashed(service.state) else FiresteelError
        return unknown(what + suspect, next=show_log)
    kind = HostNotReady if diagnosis.cause.is_host else FiresteelError
    hint = (diagnosis.cause.next or show_log).replace("MODEL", spec.name)
    if "--reread" in hint:
        says = f"{what}. {diagnosis.cause.says} ({diagnosis.cause.text})"
        return SuspectWeights(says, next=hint, otherwise=show_log)
    return kind(f"{what}. {diagnosis.cause.says} ({diagnosis.cause.text})", next=hint)


# --- which of the caller's environment variables a supervisor and its engine get ---

# A shell has cloud keys and tokens, and an engine runs for weeks with code of others in it. So variables are
# passed by an allow-list: what programs need to find their files, libraries, GPU and docker. What a launch
# names beyond that (`-e NAME`, for example the Hub token of a launch that downloads) goes to the engine
# alone, through the service's secrets file.
_PASSED_NAMES = frozenset(
    (
        "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LD_LIBRARY_PATH",
        "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "PYTHONPATH", "PYTHONDONTWRITEBYTECODE",
        "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY",
        "DOCKER_API_VERSION",
    )
)  # fmt: skip
"""XDG_RUNTIME_DIR: where the socket of a rootless docker is. DOCKER_AUTH_CONFIG holds credentials."""
_PASSED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "FIRESTEEL_")
_SECRET_NAME = re.compile(r"(?:KEY|KEYS|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH)$", re.IGNORECASE)
"""NVIDIA_API_KEY and FIRESTEEL_API_KEY have an allowed prefix."""


def passed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name in _PASSED_NAMES or (name.startswith(_PASSED_PREFIXES) and not _SECRET_NAME.search(name))
    }


_ENGINE_PREFIXES: Mapping[EngineName, tuple[str, ...]] = {
    "vllm": ("VLLM_",),
    "sglang": ("SGLANG_", "SGL_"),
    "llamacpp": ("LLAMA_", "GGML_"),
}
_LIBRARY_PREFIXES = ("TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "NCCL_", "GLOO_", "OMP_", "MAX_JOBS")


def withheld_variables(engine: EngineName, environ: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """What the caller has set for such an engine, and it does not get. `env`: of the launch."""
    passed = {**passed_variables(environ), **env}
    prefixes = (*_ENGINE_PREFIXES[engine], *_LIBRARY_PREFIXES)
    found = (name for name in environ if name.startswith(prefixes) and name not in passed)
    return sorted(name for name in found if not _SECRET_NAME.search(name))


# --- how long it will still take ---

Seconds = Mapping[Stage, float]
"""Duration of every stage of a start."""
_STAGE_OF_PHASE: Mapping[str, Stage] = {
    "process": "process",
    "container and imports": "process",
    "cluster forming": "forming",
    "weights": "weights",
    "compile": "compile",
    "CUDA graphs": "graphs",
    "kernels built on the spot": "warm",
    "warm-up": "warm",
}
"""The planner's phases -> the stages that a log shows."""
_MIN_SHARE = 0.05
"""Below this progress, the pace of a stage predicts little."""
_MIN_SHOWN_S = 5


class StartTracker(Value):
    """Progress of a start. It never goes back: drafter weights loaded after the graphs count as `graphs`."""

    engine: EngineName
    stage: Stage = "process"
    since_s: float = 0
    """When the stage began, counted from the start."""
    progress: StartProgress | None = None
    took: tuple[tuple[Stage, float], ...] = ()
    """The finished stages."""

    def advance(self, progress: StartProgress, now_s: float) -> StartTracker:
        order = stages(self.engine)
        if order.index(progress.stage) < order.index(self.stage):
            return self
        if progress.stage == self.stage:
            return replace(self, progress=progress)
        finished = (self.stage, now_s - self.since_s)
        return StartTracker(self.engine, progress.stage, now_s, progress, (*self.took, finished))

    def seconds(self, now_s: float) -> Seconds:
        """By stage, the current one included."""
        return dict((*self.took, (self.stage, now_s - self.since_s)))


def time_left(
    tracker: StartTracker, planned: Iterable[StartPhase], earlier: Sequence[Seconds], now_s: float
) -> Band | None:
    """Seconds until it listens; None if nothing is known, or if it is late."""
    bands = _bands(planned, earlier)
    if tracker.stage == "listening":
        return Band.exactly(0)
    share = tracker.progress.share if tracker.progress else None
    current = _stage_left(bands.get(tracker.stage), share, now_s - tracker.since_s)
    if not bands or current is None:
        return None
    order = stages(tracker.engine)
    later = (bands[stage] for stage in order[order.index(tracker.stage) + 1 :] if stage in bands)
    return sum(later, current)


def describe(
    tracker: StartTracker, planned: Iterable[StartPhase], earlier: Sequence[Seconds], now_s: float
) -> str:
    """`loading weights, 9 of 20 shards, about 2 min left`"""
    planned = tuple(planned)
    head = str(tracker.progress) if tracker.progress else "starting"
    left = time_left(tracker, planned, earlier, now_s)
    if left is None and tracker.stage in _bands(planned, earlier):
        return f"{head}, longer than planned: {show_seconds(now_s - tracker.since_s)} so far"
    if left is None:
        return f"{head}, {show_seconds(now_s)} so far" if now_s >= _MIN_SHOWN_S else head
    return f"{head}, about {show_seconds(left.expected)} left" if left.expected >= _MIN_SHOWN_S else head


def _stage_left(band: Band | None, share: float | None, spent_s: float) -> Band | None:
    """Of the current stage; None if it is late. A stage that is not in the plan is assumed to be short."""
    if share is not None and share >= _MIN_SHARE:
        left_s = spent_s * (1 - share) / share
        return Band(left_s * 0.7, left_s, left_s * 1.5)
    if band is None:
        return Band.exactly(0)
    if spent_s > band.high:
        return None
    return Band(max(0, band.low - spent_s), max(0, band.expected - spent_s), band.high - spent_s)


def _bands(planned: Iterable[StartPhase], earlier: Sequence[Seconds]) -> dict[Stage, Band]:
    bands: dict[Stage, Band] = {}
    first_only: set[Stage] = set()
    for phase in planned:
        stage = _STAGE_OF_PHASE.get(phase.name)
        if stage:
            bands[stage] = bands.get(stage, Band.exactly(0)) + phase.seconds
            if phase.is_first_only:
                first_only.add(stage)
    return _bands_of_earlier(earlier, first_only) if earlier else bands


def _bands_of_earlier(earlier: Sequence[Seconds], first_only: set[Stage]) -> dict[Stage, Band]:
    """The last start is the expected value, all of them give the band; what it cached takes no time again."""
    bands = {}
    for stage in dict.fromkeys(stage for seconds in earlier for stage in seconds):
        took = [seconds.get(stage, 0) for seconds in earlier]
        if stage in first_only or stage == "download":
            bands[stage] = Band(0, min(took[1:], default=0), 1.25 * max(took))
        else:
            bands[stage] = Band(0.8 * min(took), took[-1], 1.25 * max(took))
    return bands


# --- how long earlier starts took: only an estimate depends on it, so a damaged file counts as empty ---

_MAX_STARTS = 5


class StartTimes(Value):
    engine: EngineName
    version: str | None
    seconds: Seconds
    proof_s: float | None = None
    """From the first answer until it was warm and verified; None: not measured."""
    whole_s: float | None = None
    """From the plan until it was verified, downloads not counted."""
    is_brief: bool = False
    """It was proved briefly (`verify/after_start.py`)."""


def record_start(home: Home, name: str, start: StartTimes) -> None:
    state_file.write_state(_starts_path(home, name), [*_read_starts(home, name), start][-_MAX_STARTS:])


def _starts_path(home: Home, name: str) -> Path:
    return home.root / "starts" / f"{name}.json"


def earlier_starts(home: Home, name: str, engine: EngineName, version: str | None) -> tuple[Seconds, ...]:
    """Of the same engine and version, the newest last."""
    return tuple(
        start.seconds
        for start in _read_starts(home, name)
        if start.engine == engine and start.version == version and start.seconds
    )


def record_verified(home: Home, name: str, proof_s: float, whole_s: float, *, is_brief: bool = False) -> None:
    """Complete the entry of the last start."""
    if starts := _read_starts(home, name):
        completed = replace(starts[-1], proof_s=proof_s, whole_s=whole_s, is_brief=is_brief)
        state_file.write_state(_starts_path(home, name), [*starts[:-1], completed])


def last_verified(
    home: Home, name: str, engine: EngineName, version: str | None, *, is_brief: bool = False
) -> StartTimes | None:
    """The newest completed start of the same engine and version, proved as the next one will be."""
    for start in reversed(_read_starts(home, name)):
        is_same = (start.engine, start.version, start.is_brief) == (engine, version, is_brief)
        if is_same and start.whole_s is not None:
            return start
    return None


def _read_starts(home: Home, name: str) -> list[StartTimes]:
    return state_file.read_state(_starts_path(home, name), list[StartTimes]) or []
