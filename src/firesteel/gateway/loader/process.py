"""The hands of the gateway: jobs of `loader.py`, each a child process, followed line by line.

Whatever becomes of a child (an error in its own words, a crash, a line that is none, silence), its job ends:
with a result, or with a `ChildFailed` that has a reason.
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
from firesteel.gateway.service_config import (
    InvalidMessage,
    ModelConfig,
    Reason,
    RunningModel,
    ServiceConfig,
    read_reason,
    read_running_model,
    read_service_config,
)
from firesteel.units import show_seconds

_MAX_LINE_BYTES = 4 * 2**20
_MAX_LINES = 10_000
"""That wait to be read."""
_TAIL_BYTES = 2000
_LAST_WORDS_S = 0.5
"""For what stdout still holds of a child that has ended."""
_BY_ITSELF_S = 2.0
_END_S = 150.0
"""For taking back what was started: five times an engine's grace is what `down` gives it."""
T = TypeVar("T")
_RESULTS = ("read", "up", "gone", "failed")


@dataclass(frozen=True, slots=True)
class LoadProgress:
    phase: str
    words: str
    eta_s: float | None = None


class LoaderFailed(Exception):
    def __init__(self, why: Reason, *, is_sudden: bool = False) -> None:
        super().__init__(str(why))
        self.why = why
        self.is_sudden = is_sudden
        """It did not come to its end: something may be left of what it did."""


class Loader(Protocol):
    """What the gateway can have done. Each generator ends with its result, or raises ChildFailed; closed
    before its end (`aclosing`), it takes back what it began."""

    def load(self, model: ModelConfig) -> AsyncGenerator[LoadProgress | RunningModel, None]: ...

    def unload(self, name: str) -> AsyncGenerator[LoadProgress | ExpectedRelease, None]: ...

    async def read(self, path: str) -> ServiceConfig: ...


@dataclass(frozen=True, slots=True)
class LoaderTimeouts:
    """How long a child may say nothing, and how long it may take in all; downloads do not count."""

    silence_s: float
    whole_s: float


def loader_timeouts(load_s: float) -> LoaderTimeouts:
    """Measured by the planned start: warm-up and proof follow it, and a busy host is slower than its plan."""
    return LoaderTimeouts(max(300.0, 2 * load_s), max(1800.0, 20 * load_s))


_LOADER = (sys.executable, "-P", "-m", "firesteel.gateway.loader.job")
_READS = LoaderTimeouts(120, 120)
_STOPS = LoaderTimeouts(300, 600)


class ProcessLoader:
    """The real ones."""

    def __init__(
        self, words: tuple[str, ...] = _LOADER, patience: Callable[[float], LoaderTimeouts] = loader_timeouts
    ) -> None:
        self._words, self._patience = words, patience

    def load(self, model: ModelConfig) -> AsyncGenerator[LoadProgress | RunningModel, None]:
        words = ("load", json.dumps(dict(model.ask)))
        return self._follow(_load_line, self._patience(model.load_s), words)

    def unload(self, name: str) -> AsyncGenerator[LoadProgress | ExpectedRelease, None]:
        return self._follow(_unload_line, _STOPS, ("unload", name))

    async def read(self, path: str) -> ServiceConfig:
        async with aclosing(self._follow(_read_line, _READS, ("read", path))) as lines:
            async for said in lines:
                if isinstance(said, ServiceConfig):
                    return said
        raise LoaderFailed(Reason("the loader did not say what the file holds"))

    async def _follow(
        self, read: Callable[[dict[str, Any]], T], patience: LoaderTimeouts, words: tuple[str, ...]
    ) -> AsyncGenerator[T, None]:
        child = await _Child.start((*self._words, *words))
        try:
            async with aclosing(child.lines(patience)) as lines:
                async for said in lines:
                    if "failed" in said:
                        raise LoaderFailed(read_reason(said["failed"]))
                    yield read(said)
        except InvalidMessage as error:
            raise LoaderFailed(
                Reason(f"the loader said what it never says: {error}"), is_sudden=True
            ) from None
        finally:
            await _whatever_comes(child.end())


async def _whatever_comes(ending: Any) -> None:
    """A second cancel must not leave a child behind."""
    task = asyncio.ensure_future(ending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


class _Child(asyncio.SubprocessProtocol):
    """Not asyncio's `Process`: that one's `wait` waits for its pipes too, and a grandchild may hold those."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        """An empty one is the end."""
        self._half = b""
        self._errors = b""
        self._has_exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport

    @staticmethod
    async def start(words: tuple[str, ...]) -> _Child:
        """In a session of its own: Ctrl-C is for the gateway, which tells its children what it means."""
        try:
            _, child = await asyncio.get_running_loop().subprocess_exec(
                _Child, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        except OSError as error:
            raise LoaderFailed(Reason(f"the loader cannot be started: {error.strerror}")) from None
        return child

    # --- what the loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)  # uvloop's is of another family

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._errors = (self._errors + data)[-_TAIL_BYTES:]
            return
        *whole, self._half = (self._half + data).split(b"\n")
        for line in whole:
            self._lines.put_nowait(line or b" ")
        if len(self._half) > _MAX_LINE_BYTES or self._lines.qsize() > _MAX_LINES:
            self._lines.put_nowait(self._half[:100] or b" ")  # no line of ours: it ends there
            self._half = b""

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._lines.put_nowait(b"")

    def process_exited(self) -> None:
        """Its end is the end of its lines, even if something that it started holds its stdout open."""
        self._has_exited.set()
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._lines.put_nowait, b"")

    # --- what we call ---

    async def lines(self, patience: LoaderTimeouts) -> AsyncGenerator[dict[str, Any], None]:
        """Until its result; what follows that is not ours to wait for."""
        until = uptime() + patience.whole_s
        while True:
            left_s = max(0.0, until - uptime())
            line = await self._line(min(patience.silence_s, left_s), left_s <= patience.silence_s)
            if not line:
                raise await self._sudden_end()
            said = _object(line)
            if _phase(said) == "pull":
                until = uptime() + patience.whole_s
            yield said
            if any(word in said for word in _RESULTS):
                return

    async def _line(self, wait_s: float, is_all: bool) -> bytes:
        try:
            return await asyncio.wait_for(self._lines.get(), wait_s)
        except TimeoutError:
            what = "was not done after all the time that it has" if is_all else "said nothing"
            why = Reason(f"the loader {what} ({show_seconds(wait_s)}), and was stopped")
            raise LoaderFailed(why, is_sudden=True) from None

    async def _sudden_end(self) -> LoaderFailed:
        await self._exited(5)
        code = self._transport.get_returncode()
        lines = self._errors.decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        return LoaderFailed(
            Reason(f"the loader ended without a result (exit code {code}){last}"), is_sudden=True
        )

    async def end(self) -> None:
        """Asks it to go, which takes back what it began; then makes it."""
        stdin = self._transport.get_pipe_transport(0)
        if stdin:
            stdin.close()
        if not await self._exited(_BY_ITSELF_S):
            self._send(signal.SIGTERM)
            if not await self._exited(_END_S):
                self._send(signal.SIGKILL)
                await self._exited(_BY_ITSELF_S)
        self._transport.close()

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._transport.send_signal(number)

    async def _exited(self, limit_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_exited.wait(), limit_s)
        return self._has_exited.is_set()


def _object(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidMessage(f"{line[:100]!r}") from None
    if not isinstance(said, dict) or not said:
        raise InvalidMessage(f"{line[:100]!r}")
    return said


def _phase(said: dict[str, Any]) -> object:
    part = said.get("doing", said.get("done"))
    return part.get("phase") if isinstance(part, dict) else None


def _load_line(said: dict[str, Any]) -> LoadProgress | RunningModel:
    return read_running_model(said["up"]) if "up" in said else _progress(said)


def _unload_line(said: dict[str, Any]) -> LoadProgress | ExpectedRelease:
    return _freed(said["gone"]) if "gone" in said else _progress(said)


def _read_line(said: dict[str, Any]) -> LoadProgress | ServiceConfig:
    return read_service_config(said["read"]) if "read" in said else _progress(said)


def _progress(said: dict[str, Any]) -> LoadProgress:
    part = said.get("doing", said.get("done"))
    if not isinstance(part, dict):
        raise InvalidMessage(f"{said!r:.100}")
    left_s = part.get("eta_s")
    is_number = isinstance(left_s, (int, float)) and not isinstance(left_s, bool)
    return LoadProgress(str(part.get("phase", "")), str(part.get("words", "")), left_s if is_number else None)


def _freed(said: object) -> ExpectedRelease:
    if not isinstance(said, dict):
        raise InvalidMessage(f"{said!r:.100}")
    sizes = (said.get("available_bytes"), said.get("held_bytes"))
    return ExpectedRelease(*(size if isinstance(size, int) else 0 for size in sizes))
