"""Runs each job (`job.py`, `unload.py`) in a child process, reads its messages line by line, and waits after
an unload until the memory is free.

Whatever happens to a child (an error that it reports, a crash, an invalid line, silence), its job ends: with
a result, or with a `LoaderFailed` that has a reason.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from subprocess import PIPE
from typing import IO, Any, Protocol, TypeVar

from firesteel.edge.host.memory import meminfo
from firesteel.edge.host.process import uptime
from firesteel.errors import HostNotReady
from firesteel.gateway.service_config import ModelConfig, Reason, RunningModel, ServiceConfig
from firesteel.units import MIB, show_bytes, show_seconds
from firesteel.values import InvalidValue, Value, from_json

_MAX_LINE_BYTES = 4 * 2**20
_MAX_LINES = 10_000
"""Lines that wait to be read."""
_STDERR_BYTES = 2000
_READ_BYTES = 64 * 2**10
_STDOUT_GRACE_S = 0.5
"""For output that is still in the pipe when the child has exited."""
_EXIT_S = 2.0
_CANCEL_S = 150.0
"""To undo what was started: five times the grace that `down` gives an engine."""
T = TypeVar("T")
_RESULTS = ("read", "up", "gone", "failed")


class LoadProgress(Value):
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


class LoaderTimeouts(Value):
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
        child = _Child((*self._command, *arguments))
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


class _Child:
    """Its exit ends its output, even if something that it started holds its stdout open.

    Not asyncio's subprocess: a start that is cancelled halfway waits there until all pipes are connected and
    closed, so for ever if the task that connects them was cancelled too, as at the end of `asyncio.run`.
    """

    def __init__(self, argv: tuple[str, ...]) -> None:
        """In its own session: Ctrl-C goes to the gateway, which decides what its children do."""
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        """An empty line marks the end."""
        self._partial_line = b""
        self._stderr = b""
        self._has_exited = asyncio.Event()
        try:
            self._process = subprocess.Popen(
                argv, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        except OSError as error:
            raise LoaderFailed(Reason(f"the loader cannot be started: {error.strerror}")) from None
        self._follow(self._process.stdout, self._stdout_received, at_end=lambda: self._lines.put_nowait(b""))
        self._follow(self._process.stderr, self._stderr_received, at_end=lambda: None)
        threading.Thread(target=self._wait, daemon=True).start()

    # --- called by the loop ---

    def _follow(
        self, pipe: IO[bytes] | None, received: Callable[[bytes], None], at_end: Callable[[], None]
    ) -> None:
        assert pipe

        def read() -> None:
            data = pipe.read(_READ_BYTES)
            if data:
                received(data)
            else:
                self._loop.remove_reader(pipe)
                at_end()

        self._loop.add_reader(pipe, read)

    def _stdout_received(self, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line or b" ")
        if len(self._partial_line) > _MAX_LINE_BYTES or self._lines.qsize() > _MAX_LINES:
            self._lines.put_nowait(self._partial_line[:100] or b" ")  # invalid, so the job fails there
            self._partial_line = b""

    def _stderr_received(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-_STDERR_BYTES:]

    def _exited(self) -> None:
        self._has_exited.set()
        self._loop.call_later(_STDOUT_GRACE_S, self._lines.put_nowait, b"")

    def _wait(self) -> None:
        """In a thread."""
        self._process.wait()
        with suppress(RuntimeError):  # the loop was closed before the child ended
            self._loop.call_soon_threadsafe(self._exited)

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
            async with asyncio.timeout(wait_s):
                return await self._lines.get()
        except TimeoutError:
            problem = "exceeded its total time" if is_total else "was silent for too long"
            why = Reason(f"the loader {problem} ({show_seconds(wait_s)}) and was stopped")
            raise LoaderFailed(why, is_sudden=True) from None

    async def _ended_without_result(self) -> LoaderFailed:
        await self._wait_for_exit(5)
        code = self._process.returncode
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        why = Reason(f"the loader ended without a result (exit code {code}){last}")
        return LoaderFailed(why, is_sudden=True)

    async def end(self) -> None:
        """Ask it to end, which undoes what it began; then kill it."""
        if self._process.stdin:
            self._process.stdin.close()
        if not await self._wait_for_exit(_EXIT_S):
            self._process.send_signal(signal.SIGTERM)
            if not await self._wait_for_exit(_CANCEL_S):
                self._process.kill()
                await self._wait_for_exit(_EXIT_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                self._loop.remove_reader(pipe)
                pipe.close()

    async def _wait_for_exit(self, limit_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._has_exited.wait()
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


# --- waiting after a stop until the memory is free ---
#
# The kernel frees a dead engine's memory over seconds, a GPU driver over more, and a load that starts before
# that can take down the host (https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/193, seen
# 2026-11-15: 30 GiB still resident after the kill). So the next load waits until `MemAvailable` no longer
# rises: for a short time if the expected memory came back, for longer if not, and never forever.

LIMIT_S = 60.0
CALM_S = 1.0
"""Without a rise, once enough memory is free."""
LONG_CALM_S = 10.0
"""Without a rise, before that: another program may have taken it, or it is still being released."""
_SHARE = 0.5
"""The share of the held memory that must be seen free: other programs move the same counter."""
_NOISE_BYTES = 32 * MIB
_POLL_S = 0.1


class AvailableSample(Value):
    time_s: float
    available_bytes: int


class ExpectedRelease(Value):
    """Memory available on the host before the stop, and memory that the engine held."""

    available_bytes: int = 0
    held_bytes: int = 0
    is_process: bool = False
    """An engine without a container and without a GPU: its memory is free once it has ended, even if another
    program has taken it since."""

    @property
    def target_bytes(self) -> int:
        return self.available_bytes + round(self.held_bytes * _SHARE)


def is_released(samples: Sequence[AvailableSample], release: ExpectedRelease) -> bool:
    """Whether memory has not risen for long enough, or the time limit is over."""
    if not samples:
        return False
    last = samples[-1]
    if release.is_process or last.time_s - samples[0].time_s >= LIMIT_S:
        return True
    has_target = last.available_bytes >= release.target_bytes
    calm_s = CALM_S if has_target else LONG_CALM_S
    return last.time_s - _last_rise_s(samples) >= calm_s


def describe_release(release: ExpectedRelease, available_bytes: int | None) -> str:
    """What can be said about the memory after the wait, which may have ended without it."""
    if release.is_process or (available_bytes is not None and available_bytes >= release.target_bytes):
        return "and its memory is free"
    if available_bytes is None:
        return "and whether its memory is free cannot be read"
    risen_bytes = max(0, available_bytes - release.available_bytes)
    return f"but of its {show_bytes(release.held_bytes)} only {show_bytes(risen_bytes)} are seen free"


def _last_rise_s(samples: Sequence[AvailableSample]) -> float:
    """When it last rose by more than noise; slow rises add up."""
    low, rise_s = samples[0].available_bytes, samples[0].time_s
    for sample in samples:
        if sample.available_bytes - low > _NOISE_BYTES:
            low, rise_s = sample.available_bytes, sample.time_s
        low = min(low, sample.available_bytes)
    return rise_s


async def wait_until_released(
    release: ExpectedRelease,
    read: Callable[[], int] = lambda: meminfo().available_bytes,
    poll_s: float = _POLL_S,
) -> int | None:
    """Return what is available then, or None where memory cannot be read."""
    samples: list[AvailableSample] = []
    try:
        while not is_released(samples, release):  # 60 s at most
            if samples:
                await asyncio.sleep(poll_s)
            samples.append(AvailableSample(uptime(), read()))
    except HostNotReady:
        return None
    return samples[-1].available_bytes
