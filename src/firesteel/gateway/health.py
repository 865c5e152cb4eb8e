"""What really runs, once a second: engines of ours by their files and locks, servers at a URL by asking them.

The keeper of an engine restarts it, `firesteel down` ends it, `firesteel up` starts it, all without asking
the gateway. `judge` says what each look means, given what the schedule believes; nothing is read twice and
decided in between. A look taken while the gateway itself was at work on the model counts for nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from firesteel.edge.files.home import Home
from firesteel.edge.host.process import uptime
from firesteel.gateway.discovery import OwnServices, identity_of, up_of
from firesteel.gateway.executor import Executor
from firesteel.gateway.loader.process import Loader, LoaderFailed
from firesteel.gateway.periodic import repeat
from firesteel.gateway.scheduler.events import LoadFailed, ModelCrashed, ModelLoaded, ModelUnloaded
from firesteel.gateway.service_config import InvalidMessage, ModelConfig
from firesteel.run.service import Phase as ServicePhase
from firesteel.run.service import Service, death, load

_LOOK_S = 1.0
_ASK_S = 3.0
_ADOPT_S = 30.0
_MISSES = 2
"""A server at a URL that misses one look may be busy; one that misses two is down."""
_BY_HAND = "it was stopped by hand"
TOLD = "it was told to stop"
"""The keeper's own words (`run/supervise/supervisor.py`) for an end that somebody asked for."""


@dataclass(frozen=True, slots=True)
class ServiceObservation:
    """One look at what runs under a model's name."""

    phase: ServicePhase | None
    """None: nothing."""
    is_ours: bool = False
    """Started as it should be."""
    url: str = ""
    why: str = ""
    was_told: bool = False
    """Somebody stopped it."""

    @property
    def answers(self) -> bool:
        return self.is_ours and self.phase in ("ready", "unkept")


def observe(service: Service | None, identity: str) -> ServiceObservation:
    if service is None:
        return ServiceObservation(None)
    state = service.state
    why = (state.why or "") if state and service.phase != "dead" else death(state)
    is_ours = identity_of(service.spec) == identity
    return ServiceObservation(
        service.phase, is_ours, service.spec.url, why, state is not None and state.why == TOLD
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    event: ModelLoaded | ModelUnloaded | ModelCrashed | LoadFailed | None = None
    note: str = ""


def judge(name: str, believed: str, seen: ServiceObservation, *, is_mine: bool = False) -> Verdict:
    """`believed`: the schedule's phase. `loading` without a job of ours: it was to come back by itself.
    `is_mine`: a gateway of this home started it."""
    if believed == "off":
        return _when_off(name, seen, is_mine)
    if believed == "ready":
        return _when_ready(name, seen)
    return _when_returning(name, seen) if believed == "loading" else Verdict()


def _when_off(name: str, seen: ServiceObservation, is_mine: bool) -> Verdict:
    if seen.answers:
        earlier = "was running already, started by an earlier gateway"
        return Verdict(
            ModelLoaded(name), f"{name} {earlier}" if is_mine else "it was started outside the gateway"
        )
    if seen.phase in (None, "dead", "stopping"):
        return Verdict()
    return Verdict(note="somebody else is starting it" if seen.is_ours else _stranger(name, seen))


def _when_ready(name: str, seen: ServiceObservation) -> Verdict:
    if seen.phase is None:
        return Verdict(ModelUnloaded(name), _BY_HAND)
    if not seen.is_ours:
        return Verdict(ModelUnloaded(name), _stranger(name, seen))
    if seen.answers:
        return Verdict(note="its keeper was killed; it gets another" if seen.phase == "unkept" else "")
    if seen.was_told:
        return Verdict(ModelCrashed(name, _BY_HAND), _BY_HAND)
    why = seen.why or "its engine ended"
    if seen.phase == "dead":
        return Verdict(ModelCrashed(name, why), why)
    return Verdict(ModelCrashed(name, why, is_returning=True), f"coming back by itself: {why}")


def _when_returning(name: str, seen: ServiceObservation) -> Verdict:
    if seen.phase is None or seen.phase == "dead":
        why = _BY_HAND if seen.phase is None or seen.was_told else seen.why
        return Verdict(LoadFailed(name, why), why)
    if seen.answers:
        return Verdict(ModelLoaded(name), f"{name} answers again")
    if seen.phase == "ready":
        return Verdict(LoadFailed(name, "something else runs under its name now"), _stranger(name, seen))
    return Verdict(note=f"coming back by itself: {seen.why}" if seen.why else "coming back by itself")


def _stranger(name: str, seen: ServiceObservation) -> str:
    return f"another {name} runs on {seen.url}, not as the file says; it is stopped when this one is loaded"


class Health:
    """Looks, and tells the swap."""

    def __init__(self, swap: Executor, hands: Loader, home: Home) -> None:
        self._swap, self._hands, self._home = swap, hands, home
        self._tasks: list[asyncio.Task[None]] = []
        self._misses: dict[tuple[str, str], int] = {}
        self._is_down: set[str] = set()
        self._adopted_s = -_ADOPT_S

    async def start(self) -> None:
        """One look around first: what runs already is found before anybody is served."""
        await asyncio.gather(self.look_around(), self.ask_around())
        looks = (repeat(self.look_around, _LOOK_S), repeat(self.ask_around, _ASK_S))
        self._tasks = [asyncio.ensure_future(each) for each in looks]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def answers(self, name: str) -> tuple[bool, ...]:
        """Of an outside model's replicas, in their order, which of them answer."""
        served = self._swap.served(name)
        return tuple(self._misses.get((name, url), 0) < _MISSES for url in served.urls) if served else ()

    # --- engines of ours ---

    async def look_around(self) -> None:
        ours = [each.name for each in self._swap.reading.models if not each.is_outside and not each.why_not]
        turns = {name: self._swap.turn(name) for name in ours}
        services = await asyncio.to_thread(lambda: [load(self._home, name) for name in ours])
        for name, service in zip(ours, services, strict=True):
            if turns[name] is not None and turns[name] == self._swap.turn(name):
                self._tell(name, service)
        if any(service and service.phase == "unkept" for service in services):
            await self._adopt()

    def _tell(self, name: str, service: Service | None) -> None:
        believed, identity = self._swap.phase(name), self._swap.identity(name)
        seen = observe(service, identity)
        is_mine = believed == "off" and seen.answers and OwnServices(self._home).is_mine(name, identity)
        verdict = judge(name, believed, seen, is_mine=is_mine)
        self._swap.note(name, verdict.note)
        if isinstance(verdict.event, ModelLoaded) and service:
            self._swap.found(name, up_of(self._home, service))
        elif isinstance(verdict.event, (ModelUnloaded, ModelCrashed, LoadFailed)):
            self._swap.lost(verdict.event)

    async def _adopt(self) -> None:
        """Reading the file gives every container without a keeper a new one; that is not for this process."""
        if uptime() - self._adopted_s < _ADOPT_S:
            return
        self._adopted_s = uptime()
        try:
            await self._hands.read(self._swap.reading.path)
        except (LoaderFailed, InvalidMessage):  # a file with mistakes is the watch's to tell
            return

    # --- servers at a URL ---

    async def ask_around(self) -> None:
        outside = [each for each in self._swap.reading.models if each.is_outside]
        pairs = [(each.name, url) for each in outside for url in each.urls]
        answers = await asyncio.gather(*(is_answering(url) for _, url in pairs))
        for pair, answer in zip(pairs, answers, strict=True):
            # A first look decides at once: nobody has seen it answer yet.
            missed = self._misses[pair] + 1 if pair in self._misses else _MISSES
            self._misses[pair] = 0 if answer else missed
        for served in outside:
            self._tell_outside(served)

    def _tell_outside(self, served: ModelConfig) -> None:
        name = served.name
        current = self._swap.served(name)
        if current is None or current.urls != served.urls:  # the file changed while they were asked
            return
        silent = [url for url in served.urls if self._misses.get((name, url), 0) >= _MISSES]
        if len(silent) < len(served.urls):
            self._swap.note(name, f"no answer from {', '.join(silent)}" if silent else "")
            if name in self._is_down:
                self._is_down.discard(name)
                self._swap.tell(ModelLoaded(name))
        elif name not in self._is_down:
            self._is_down.add(name)
            why = f"nobody answers at {', '.join(silent)}"
            self._swap.note(name, why)
            self._swap.tell(ModelCrashed(name, why))


_NOT_THERE = (404, 405, 501)
_ALIVE = (200, 401, 403)
"""One that asks for a key is there."""
_PATIENCE_S = 3.0


async def is_answering(url: str) -> bool:
    """`/health`, and `/v1/models` of a server that has no such thing. No key is sent."""
    status = await _status(f"{url}/health")
    if status in _NOT_THERE:
        status = await _status(f"{url}/v1/models")
    return status in _ALIVE


async def _status(url: str) -> int | None:
    try:
        return await asyncio.wait_for(_asked(url), _PATIENCE_S)
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None


async def _asked(url: str) -> int:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=is_tls or None, limit=8192)
    try:
        head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("ascii"))
        words = (await reader.readuntil(b"\r\n")).split(b" ", 2)
        return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/1.") else 0
    finally:
        writer.close()
