"""Alerts: what is wrong now, by the gateway's state; which of it is news; and its delivery.

`conditions` and `AlertTracker` are pure: each problem is reported once, and its end once, at a limited rate.
`AlertWatch` checks every five seconds, and `AlertSender` delivers to a webhook and a command. Nothing here
changes a model.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from firesteel.edge.home import disk_of, free_bytes
from firesteel.gateway.jobs import JobResult
from firesteel.gateway.periodic import BackgroundTasks, repeat
from firesteel.gateway.service_config import ServiceConfig
from firesteel.gateway.state import GatewayState, ModelStatus
from firesteel.service_settings import AlertEntry
from firesteel.units import show_bytes
from firesteel.values import Value, plain, replace

AlertKind = Literal["unhealthy", "load_failed", "guard", "disk"]
GUARD_TEXT = "the memory guard stopped it"
"""How the guard's reasons begin (`run.supervise.guard`)."""


class AlertKey(NamedTuple):
    kind: AlertKind
    subject: str
    """The model, or the folder."""


def conditions(
    state: GatewayState,
    failed_loads: Mapping[str, str],
    guarded: Mapping[str, str],
    disks: Mapping[str, int],
    disk_floor_bytes: int,
) -> dict[AlertKey, str]:
    """The text of each. A model has one at most, the one that says most: the guard, a load, its health.

    `failed_loads`: why the last load of a model failed. `guarded`: why the guard stopped an engine, until
    the model runs again. `disks`: free bytes by folder.
    """
    found = {}
    for model in state.models:
        name, health = model.name, model.health
        if name in guarded and model.phase != "ready":
            found[AlertKey("guard", name)] = f"{name}: {guarded[name]}"
        elif name in failed_loads and (why := _why_failed(model, failed_loads[name])):
            found[AlertKey("load_failed", name)] = f"{name} did not load: {why}"
        elif health and not health.ok and model.phase != "cannot":  # that was said when the file was read
            found[AlertKey("unhealthy", name)] = f"{name}: {health.text}"
    for folder, free in disks.items():
        if free < disk_floor_bytes:
            left = f"the disk under {folder} has {show_bytes(free)} left"
            found[AlertKey("disk", folder)] = f"{left}; `firesteel pull --prune` frees space"
    return found


def _why_failed(model: ModelStatus, last: str) -> str | None:
    """A load takes minutes, and whether it succeeds is known at its end: until then nothing is over."""
    return last if model.phase == "loading" else model.why if model.phase == "off" else None


AT_ONCE: frozenset[AlertKind] = frozenset(("load_failed", "guard"))
SETTLE_S = 60.0
QUIET_S = 600.0
MAX_PER_HOUR = 30
_HOUR_S = 3600.0
_FORGET_S = 86400.0


class Alert(Value):
    kind: AlertKind
    subject: str
    text: str
    is_over: bool = False
    """The problem is gone."""


class Problem(Value):
    """One condition, from when it was first seen until it is forgotten."""

    text: str
    since_s: float
    seen_s: float
    reported_s: float | None = None
    """When it was last reported."""
    is_reported: bool = False
    """And its end was not."""


class AlertTracker(Value):
    """Conditions over time -> alerts.

        tracker, alerts = tracker.after(conditions, now_s)

    A failed load and the guard are reported at once; health and disks after a minute. A problem is over when
    it has not been seen for a minute. While it lasts it is reported again every `repeat_s`. One that returns
    within ten minutes is reported when these are over. At most `MAX_PER_HOUR` are reported in one hour, the
    others later.
    """

    repeat_s: float = 6 * 3600.0
    problems: Mapping[AlertKey, Problem] = {}
    reported_at: tuple[float, ...] = ()
    """Of the last hour."""

    def after(self, now: Mapping[AlertKey, str], now_s: float) -> tuple[AlertTracker, list[Alert]]:
        reported_at = [at for at in self.reported_at if now_s - at < _HOUR_S]
        problems: dict[AlertKey, Problem] = {}
        alerts: list[Alert] = []
        held_back = 0
        for key in [*self.problems, *(key for key in now if key not in self.problems)]:
            before, problem, alert = self._next(key, self.problems.get(key), now.get(key), now_s)
            if alert is not None and len(reported_at) >= MAX_PER_HOUR:
                held_back += 1
                problem = before  # so that it is reported later
            elif alert is not None:
                reported_at.append(now_s)
                alerts.append(alert)
            if problem is not None:
                problems[key] = problem
        if alerts and held_back:
            more = f"{alerts[-1].text} (and {held_back} more, which are reported later)"
            alerts[-1] = replace(alerts[-1], text=more)
        return replace(self, problems=problems, reported_at=tuple(reported_at)), alerts

    def _next(
        self, key: AlertKey, problem: Problem | None, text: str | None, now_s: float
    ) -> tuple[Problem | None, Problem | None, Alert | None]:
        """The problem if the alert is not reported, the problem if it is, and the alert."""
        if text is None:
            return self._gone(key, problem, now_s) if problem else (None, None, None)
        if problem is None or now_s - problem.seen_s > SETTLE_S:  # new, or it was away
            problem = Problem(text, now_s, now_s, problem.reported_s if problem else None)
        problem = replace(problem, text=text, seen_s=now_s)
        if not self._is_due(key, problem, now_s):
            return problem, problem, None
        reported = replace(problem, reported_s=now_s, is_reported=True)
        return problem, reported, Alert(key.kind, key.subject, text)

    def _is_due(self, key: AlertKey, problem: Problem, now_s: float) -> bool:
        if problem.is_reported:
            return problem.reported_s is not None and now_s - problem.reported_s >= self.repeat_s
        if problem.reported_s is not None and now_s - problem.reported_s < QUIET_S:
            return False
        return key.kind in AT_ONCE or now_s - problem.since_s >= SETTLE_S

    def _gone(
        self, key: AlertKey, problem: Problem, now_s: float
    ) -> tuple[Problem | None, Problem | None, Alert | None]:
        away_s = now_s - problem.seen_s
        if problem.is_reported and away_s >= SETTLE_S:
            over = Alert(key.kind, key.subject, _over(key), is_over=True)
            return problem, replace(problem, is_reported=False), over
        kept = None if away_s >= _FORGET_S else problem
        return kept, kept, None

    @property
    def active(self) -> dict[AlertKey, Problem]:
        """Reported, and not over."""
        return {key: problem for key, problem in self.problems.items() if problem.is_reported}


def _over(key: AlertKey) -> str:
    texts: dict[AlertKind, str] = {
        "unhealthy": f"{key.subject} is healthy again",
        "load_failed": f"{key.subject} no longer fails to load",
        "guard": f"{key.subject} runs again after the guard had stopped it",
        "disk": f"the disk under {key.subject} has space again",
    }
    return texts[key.kind]


_MAX_WAITING = 100
_TIMEOUT_S = 10.0
_COMMAND_S = 30.0
_ATTEMPTS = 3
_PAUSE_S = 2.0
_STDERR_BYTES = 300


class AlertDocument(Value):
    """What is delivered, as JSON."""

    kind: str
    state: str
    """`firing` or `resolved`."""
    subject: str
    text: str
    """Slack and Mattermost show this field, Discord the next."""
    content: str
    host: str
    at: float
    document: str = "firesteel.alert/1"


def alert_document(alert: Alert, host: str, at: float) -> AlertDocument:
    state = "resolved" if alert.is_over else "firing"
    text = f"firesteel on {host}: {'over: ' if alert.is_over else ''}{alert.text}"
    return AlertDocument(alert.kind, state, alert.subject, text, text, host, at)


class AlertSender:
    """Delivers alerts: a POST to a webhook, and a command that gets the same JSON on its standard input.

    One after the other, in a separate task: a webhook that hangs delays alerts, never requests. What cannot
    be delivered after three attempts is reported to the operator and dropped.
    """

    def __init__(self, settings: Callable[[], AlertEntry], report: Callable[[str], None]) -> None:
        """`settings` are read for each alert: the file may have changed."""
        self._settings, self._report = settings, report
        self._queue: asyncio.Queue[Alert] = asyncio.Queue(_MAX_WAITING)

    def put(self, alert: Alert) -> None:
        """Never waits."""
        try:
            self._queue.put_nowait(alert)
        except asyncio.QueueFull:
            self._report(f"an alert was dropped, since {_MAX_WAITING} wait: {alert.text}")

    async def run(self) -> None:
        while True:  # until it is cancelled
            alert = await self._queue.get()
            for problem in await deliver(alert, self._settings()):
                self._report(problem)


async def deliver(alert: Alert, settings: AlertEntry, *, pause_s: float = _PAUSE_S) -> list[str]:
    """Return what went wrong."""
    body = json.dumps(plain(alert_document(alert, socket.gethostname(), time.time()))).encode()
    attempts: list[tuple[str, Callable[[], Awaitable[str | None]]]] = []
    if settings.webhook:
        url = settings.webhook if "://" in settings.webhook else os.environ.get(settings.webhook, "")
        attempts.append(("the alert webhook", lambda: post(url, body)))
    if settings.command:
        attempts.append((f"the alert command `{settings.command[0]}`", lambda: run(settings.command, body)))
    problems = []
    for what, attempt in attempts:
        problem = await _repeated(attempt, pause_s)
        if problem:
            problems.append(f"{what} failed: {problem}")
    return problems


async def _repeated(attempt: Callable[[], Awaitable[str | None]], pause_s: float) -> str | None:
    problem = None
    for number in range(_ATTEMPTS):
        if number:
            await asyncio.sleep(pause_s * number)
        problem = await attempt()
        if problem is None:
            return None
    return problem


async def post(url: str, body: bytes) -> str | None:
    """Return the problem. The address is not repeated: it is a secret at most services."""
    import aiohttp  # the gateway without alerts needs it for its admin API only

    if not url.startswith(("http://", "https://")):
        return "its variable is not set to an http address"
    headers = {"Content-Type": "application/json"}
    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.post(url, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            return None if answer.status < 300 else f"it answered HTTP {answer.status}"
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return f"no answer ({type(error).__name__})"


async def run(command: tuple[str, ...], body: bytes) -> str | None:
    """Return the problem. Without a shell, in a separate session, so that all of it can be ended."""
    document = json.loads(body)
    # For commands that read no JSON: `FIRESTEEL_ALERT_TEXT` and the others.
    variables = {f"FIRESTEEL_ALERT_{name.upper()}": str(document[name]) for name in ("kind", "state", "text")}
    env = {**os.environ, **variables}
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=DEVNULL, stderr=PIPE, env=env, start_new_session=True
        )
    except OSError as error:
        return error.strerror or str(error)
    try:
        async with asyncio.timeout(_COMMAND_S):
            _, stderr = await child.communicate(body)
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
        return f"it took longer than {_COMMAND_S:.0f} s and was ended"
    if child.returncode == 0:
        return None
    said = stderr.decode(errors="replace").strip()[-_STDERR_BYTES:]
    return f"exit code {child.returncode}{f': {said}' if said else ''}"


_CHECK_S = 5.0


class AlertWatch:
    def __init__(
        self,
        state: Callable[[], GatewayState],
        config: Callable[[], ServiceConfig],
        report: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` gets every alert, and what cannot be delivered, for the operator's log."""
        self._state, self._config, self._report, self._clock = state, config, report, clock
        self._sender = AlertSender(lambda: config().alerts, report)
        self._failed_loads: dict[str, str] = {}
        """Why each last load failed, until one succeeds."""
        self._guarded: dict[str, str] = {}
        self.guard_stops: dict[str, int] = {}
        """By model, since the gateway started."""
        self.disks: dict[str, int] = {}
        """Free bytes by folder, as last seen."""
        self.tracker = AlertTracker()
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        self._tasks.start(self._sender.run(), repeat(self.check, _CHECK_S))

    async def close(self) -> None:
        await self._tasks.close()

    def noted(self, model: str, text: str) -> None:
        if GUARD_TEXT in text:
            if model not in self._guarded:
                self.guard_stops[model] = self.guard_stops.get(model, 0) + 1
            self._guarded[model] = text[text.index(GUARD_TEXT) :]

    def job_finished(self, model: str, result: JobResult) -> None:
        if result == "failed":
            self._failed_loads.setdefault(model, "")
        elif result == "loaded":
            self._failed_loads.pop(model, None)

    async def check(self) -> None:
        config, state = self._config(), self._state()
        for model in state.models:
            if model.name in self._failed_loads and model.why:
                self._failed_loads[model.name] = model.why
        disks = self.disks = await asyncio.to_thread(_free_bytes, config.disk_folders)
        found = conditions(state, self._failed_loads, self._guarded, disks, config.alerts.disk)
        ready = {model.name for model in state.models if model.phase == "ready"}
        for name in ready & self._guarded.keys():
            del self._guarded[name]
        tracker = replace(self.tracker, repeat_s=config.alerts.repeat)
        self.tracker, alerts = tracker.after(found, self._clock())
        for alert in alerts:
            self._report(f"{'over: ' if alert.is_over else ''}{alert.text}")
            if config.alerts.is_used:
                self._sender.put(alert)


def _free_bytes(folders: tuple[str, ...]) -> dict[str, int]:
    """Each disk once, by the first of its folders."""
    found, disks = {}, set()
    for folder in map(Path, folders):
        try:
            disk, free = disk_of(folder), free_bytes(folder)
        except OSError:
            continue  # a disk that is gone cannot fill up
        if disk not in disks:
            disks.add(disk)
            found[str(folder)] = free
    return found
