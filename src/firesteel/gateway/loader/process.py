"""Runs each job (`job.py`, `unload.py`) in a child process, and reads its messages line by line.

Whatever happens to a child (an error that it reports, a crash, an invalid line, silence), its job ends: with
a result, or with a `LoaderFailed` that has a reason.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from firesteel.edge.host.process import uptime
from firesteel.gateway.loader.memory_release import ExpectedRelease
from firesteel.gateway.service_config import ModelConfig, Reason, RunningModel, ServiceConfig
from firesteel.typed_json import InvalidValue, from_json
from firesteel.units import show_seconds

_MAX_LINE_BYTES = 4 * 2**20
_MAX_LINES = 10_000
"""Lines that wait to be read."""
_STDERR_BYTES = 2000
_STDOUT_GRACE_S = 0.5
"""For output that is still in the pipe when the child has exited."""
_EXIT_S = 2.0
_CANCEL_S = 150.0
"""To undo what was started: five times the grace that `down` gives an engine."""
T = TypeVar("T")
_RESULTS = ("read", "up", "gone", "failed")


@dataclass(frozen=True, slots=True)
class LoadProgress:
    phase: str
    text: str
    eta_s: float | None = None


class LoaderFailed(Exception):
    def __init__(self, why: Reason, *, is_sudden: bool = False) -> None:
        super().__init__(str(why))
        self.why = why
        self.is_sudden = is_sudden
        """It did not finish: something that it started may still run."""


class Loader(Protocol):
    """What the gateway can have done. Each generator ends with its result or raises `LoaderFailed`; closed
    early (`aclosing`), it undoes what it began."""

    def load(self, model: ModelConfig) -> AsyncGenerator[LoadProgress | RunningModel, None]: ...

    def unload(self, name: str) -> AsyncGenerator[LoadProgress | ExpectedRelease, None]: ...

    async def read(self, path: str) -> ServiceConfig: ...


@dataclass(frozen=True, slots=True)
class LoaderTimeouts:
    """The longest silence of a child, and the longest time in all; downloads do not count."""

    silence_s: float
    total_s: float


def loader_timeouts(load_s: float) -> LoaderTimeouts:
    """From the planned start-up. Warm-up and verification follow it, and a busy host is slower."""
    return LoaderTimeouts(max(300.0, 2 * load_s), max(1800.0, 20 * load_s))


_LOADER = (sys.executable, "-P", "-m", "firesteel.gateway.loader")
_READ_TIMEOUTS = LoaderTimeouts(120, 120)
_UNLOAD_TIMEOUTS = LoaderTimeouts(300, 600)


class ProcessLoader:
    def __init__(
        self,
        command: tuple[str, ...] = _LOADER,
        timeouts: Callable[[float], LoaderTimeouts] = loader_timeouts,
    ) -> None:
        self._command, self._timeouts = command, timeouts

    def load(self, model: ModelConfig) -> AsyncGenerator[LoadProgress | RunningModel, None]:
        timeouts = self._timeouts(model.load_s)
        return self._run("up", RunningModel, timeouts, "load", json.dumps(dict(model.ask)))

    def unload(self, name: str) -> AsyncGenerator[LoadProgress | ExpectedRelease, None]:
        return self._run("gone", ExpectedRelease, _UNLOAD_TIMEOUTS, "unload", name)

    async def read(self, path: str) -> ServiceConfig:
        async with aclosing(self._run("read", ServiceConfig, _READ_TIMEOUTS, "read", path)) as messages:
            async for message in messages:
                if isinstance(message, ServiceConfig):
                    return message
        raise LoaderFailed(Reason("the loader did not return the service file"))

    async def _run(
        self, result_key: str, result_type: type[T], timeouts: LoaderTimeouts, *arguments: str
    ) -> AsyncGenerator[LoadProgress | T, None]:
        child = await _Child.start((*self._command, *arguments))
        try:
            async with aclosing(child.messages(timeouts)) as messages:
                async for message in messages:
                    if "failed" in message:
                        raise LoaderFailed(from_json(Reason, message["failed"]))
                    if result_key in message:
                        yield from_json(result_type, message[result_key])
                    else:
                        yield _progress(message)
        except InvalidValue as error:
            raise LoaderFailed(
                Reason(f"the loader sent an invalid message: {error}"), is_sudden=True
            ) from None
        finally:
            await _uncancelled(child.end())


async def _uncancelled(ending: Any) -> None:
    """A second cancellation must not leave a child behind."""
    task = asyncio.ensure_future(ending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


class _Child(asyncio.SubprocessProtocol):
    """Not asyncio's `Process`: its `wait` also waits for the pipes, which a grandchild may hold open."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        """An empty line marks the end."""
        self._partial_line = b""
        self._stderr = b""
        self._has_exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport

    @staticmethod
    async def start(argv: tuple[str, ...]) -> _Child:
        """In its own session: Ctrl-C goes to the gateway, which decides what its children do."""
        try:
            _, child = await asyncio.get_running_loop().subprocess_exec(
                _Child, *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        except OSError as error:
            raise LoaderFailed(Reason(f"the loader cannot be started: {error.strerror}")) from None
        return child

    # --- called by the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)  # uvloop's has another base class

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._stderr = (self._stderr + data)[-_STDERR_BYTES:]
            return
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line or b" ")
        if len(self._partial_line) > _MAX_LINE_BYTES or self._lines.qsize() > _MAX_LINES:
            self._lines.put_nowait(self._partial_line[:100] or b" ")  # invalid, so the job fails there
            self._partial_line = b""

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._lines.put_nowait(b"")

    def process_exited(self) -> None:
        """Its exit ends its output, even if something that it started holds its stdout open."""
        self._has_exited.set()
        asyncio.get_running_loop().call_later(_STDOUT_GRACE_S, self._lines.put_nowait, b"")

    # --- called by the loader ---

    async def messages(self, timeouts: LoaderTimeouts) -> AsyncGenerator[dict[str, Any], None]:
        """Until its result; anything after that is ignored."""
        deadline_s = uptime() + timeouts.total_s
        while True:
            left_s = max(0.0, deadline_s - uptime())
            line = await self._next_line(min(timeouts.silence_s, left_s), left_s <= timeouts.silence_s)
            if not line:
                raise await self._ended_without_result()
            message = _parse_line(line)
            if _is_download(message):
                deadline_s = uptime() + timeouts.total_s
            yield message
            if any(key in message for key in _RESULTS):
                return

    async def _next_line(self, wait_s: float, is_total: bool) -> bytes:
        try:
            return await asyncio.wait_for(self._lines.get(), wait_s)
        except TimeoutError:
            problem = "exceeded its total time" if is_total else "was silent for too long"
            why = Reason(f"the loader {problem} ({show_seconds(wait_s)}) and was stopped")
            raise LoaderFailed(why, is_sudden=True) from None

    async def _ended_without_result(self) -> LoaderFailed:
        await self._wait_for_exit(5)
        code = self._transport.get_returncode()
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        why = Reason(f"the loader ended without a result (exit code {code}){last}")
        return LoaderFailed(why, is_sudden=True)

    async def end(self) -> None:
        """Ask it to end, which undoes what it began; then kill it."""
        stdin = self._transport.get_pipe_transport(0)
        if stdin:
            stdin.close()
        if not await self._wait_for_exit(_EXIT_S):
            self._send_signal(signal.SIGTERM)
            if not await self._wait_for_exit(_CANCEL_S):
                self._send_signal(signal.SIGKILL)
                await self._wait_for_exit(_EXIT_S)
        self._transport.close()

    def _send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._transport.send_signal(number)

    async def _wait_for_exit(self, limit_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_exited.wait(), limit_s)
        return self._has_exited.is_set()


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        return from_json(dict[str, Any], json.loads(line))
    except (ValueError, RecursionError):
        raise InvalidValue(f"{line[:100]!r}") from None


def _is_download(message: dict[str, Any]) -> bool:
    part = message.get("doing", message.get("done"))
    return isinstance(part, dict) and part.get("phase") == "pull"


def _progress(message: dict[str, Any]) -> LoadProgress:
    part = message.get("doing", message.get("done"))
    if not isinstance(part, dict):
        raise InvalidValue(f"{message!r:.100}")
    eta_s = part.get("eta_s")
    is_number = isinstance(eta_s, (int, float)) and not isinstance(eta_s, bool)
    return LoadProgress(str(part.get("phase", "")), str(part.get("words", "")), eta_s if is_number else None)
