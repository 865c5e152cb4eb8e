"""Delivers alerts: a POST to a webhook, and a command that gets the same JSON on its standard input.

One after the other, in a task of its own: a webhook that hangs delays alerts, never requests. What cannot be
delivered after three attempts is reported to the operator and dropped.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from contextlib import suppress

from firesteel.gateway.alerts.tracker import Alert
from firesteel.gateway.service_config import AlertSettings
from firesteel.values import Value, plain

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
    def __init__(self, settings: Callable[[], AlertSettings], report: Callable[[str], None]) -> None:
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


async def deliver(alert: Alert, settings: AlertSettings, *, pause_s: float = _PAUSE_S) -> list[str]:
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
    """Return the problem. Without a shell, in a session of its own, so that all of it can be ended."""
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
