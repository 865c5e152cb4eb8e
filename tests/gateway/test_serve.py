"""The whole gateway over an outside server: its events, a service file that changes, its shutdown, and what
the process asks glibc for.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from firesteel.edge.home import Home, lock
from firesteel.errors import UsageError
from firesteel.gateway import serve
from firesteel.gateway.keys import add_key, keys_path
from firesteel.gateway.loader.process import ExpectedRelease, LoaderFailed, LoadProgress, ProcessLoader
from firesteel.gateway.serve import (
    ServeEvent,
    ServeOptions,
    ServiceFileWatch,
    file_version,
    serve_file,
    with_model_name,
)
from firesteel.gateway.service_config import ModelConfig, Reason, RunningModel, ServiceConfig
from tests.conftest import know_bandwidth


@dataclass
class Running:
    url: str
    ends: asyncio.Event
    events: list[ServeEvent]
    task: asyncio.Task[None]

    async def ended(self) -> float:
        """Tells it to end; how long that took."""
        began = time.monotonic()
        self.ends.set()
        await asyncio.wait_for(asyncio.shield(self.task), 60)
        return time.monotonic() - began

    def texts(self, kind: str) -> list[str]:
        return [each.text for each in self.events if each.kind == kind]


@asynccontextmanager
async def running(folder: Path, engine: str) -> AsyncIterator[Running]:
    file = folder / "service.yaml"
    file.write_text(f"listen: 127.0.0.1:1\nmodels:\n  far: {{url: '{engine}', memory: 1MiB}}\n")
    know_bandwidth(Home(folder / "home"))
    events: list[ServeEvent] = []
    ends, listens = asyncio.Event(), asyncio.Event()

    async def follow() -> None:
        async for event in serve_file(ServeOptions(file, listen="127.0.0.1:0"), Home(folder / "home"), ends):
            events.append(event)
            if event.kind == "listening":
                listens.set()

    task = asyncio.ensure_future(follow())
    try:
        async with asyncio.timeout(30):
            await listens.wait()
        yield Running(next(each.url for each in events if each.url), ends, events, task)
    finally:
        ends.set()
        await asyncio.wait_for(task, 60)


@dataclass
class Engine:
    """A fake engine that is healthy and answers a request when allowed to."""

    began: asyncio.Event = field(default_factory=asyncio.Event)
    may: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/v1/chat" in head and b"Content-Length: 2\r\n" not in head:  # `{}` only asks for its APIs
                self.began.set()
                await self.may.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            await writer.drain()
        writer.close()


@asynccontextmanager
async def an_engine() -> AsyncIterator[tuple[Engine, str]]:
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    try:
        yield engine, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        engine.may.set()
        server.close()


ASK = {"model": "far", "messages": []}


async def test_whoever_listens_to_events_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with (
        an_engine() as (_, engine),
        running(tmp_path, engine) as it,
        aiohttp.ClientSession() as client,
        client.get(f"{it.url}/api/events") as answer,
    ):
        await answer.content.readuntil(b"\n\n")
        assert await it.ended() < 5
        await answer.content.read()  # a whole answer: it does not break
    assert it.texts("drained") == ["all active requests finished"]


async def test_curves_through_the_front_door_with_keys(tmp_path: Path) -> None:
    """A key that may use another model sees nothing of this one, whatever it writes into its headers."""
    path = keys_path(Home(tmp_path / "home"))
    _, boss = add_key(path, "boss", scope="admin")
    _, owner = add_key(path, "owner", models=("far",))
    _, stranger = add_key(path, "stranger", models=("near",))
    async with (
        an_engine() as (_, engine),
        running(tmp_path, engine) as it,
        aiohttp.ClientSession() as client,
    ):

        async def names(key: str, range_name: str = "15m") -> set[str | None]:
            headers = {
                "Authorization": f"Bearer {key}",
                "X-Firesteel-Models": "far",
                "X-Firesteel-Admin": "1",
            }
            async with client.get(f"{it.url}/api/curves?range={range_name}", headers=headers) as answer:
                assert answer.status == 200
                document = await answer.json()
                assert document["step_s"] > 0 and document["start"] % document["step_s"] == 0
                return {series["model"] for series in document["series"]}

        async with asyncio.timeout(60):
            while await names(boss) != {None, "far"}:
                await asyncio.sleep(0.2)
        assert await names(owner) == {"far"} and await names(stranger) == set()
        async with client.get(f"{it.url}/api/curves") as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {boss}"}
        async with client.get(f"{it.url}/api/state", headers=headers) as answer:
            (model,) = (await answer.json())["models"]
        assert model["health"] == {"ok": True, "text": "healthy: no request in the last 5 min"}


def test_what_still_runs_in_the_end_is_looked_at(tmp_path: Path) -> None:
    """`--keep`, a model that was up before the gateway, or one that did not stop."""
    home, models = Home(tmp_path), tuple(ModelConfig(name, "", ("http://127.0.0.1:9",)) for name in "ab")
    config = ServiceConfig("f", "", 1, 1, models)
    assert serve._what_runs(home, config) == "none of its models runs"
    with lock(home.services / "b" / "supervisor.lock"):
        assert serve._what_runs(home, config) == "still running: b"


async def test_an_active_request_is_finished_before_drained_is_reported(tmp_path: Path) -> None:
    async with an_engine() as (engine, url), running(tmp_path, url) as it, aiohttp.ClientSession() as client:
        asked = asyncio.ensure_future(client.post(f"{it.url}/v1/chat/completions", json=ASK))
        await asyncio.wait_for(engine.began.wait(), 10)
        it.ends.set()
        async with asyncio.timeout(120):
            while not it.texts("draining"):
                await asyncio.sleep(0.01)
        assert it.texts("drained") == [] and "finished" not in it.texts("draining")[0]
        engine.may.set()
        assert (await asked).status == 200
        await it.ended()
    assert it.texts("drained") == ["all active requests finished"]


async def test_requests_that_are_cut_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_DRAIN_S", 0.3)
    async with an_engine() as (engine, url), running(tmp_path, url) as it, aiohttp.ClientSession() as client:
        asked = asyncio.ensure_future(client.post(f"{it.url}/v1/chat/completions", json=ASK))
        await asyncio.wait_for(engine.began.wait(), 10)
        await it.ended()
        with suppress(aiohttp.ClientError):
            await asked
    assert it.texts("drained") == ["1 request was cut off after 0.3 s"]


@pytest.mark.parametrize(
    ("model", "words", "events"),
    [
        ("one", "it was stopped by hand", "one: it was stopped by hand"),
        ("one", "one answers on http://127.0.0.1:1", "one answers on http://127.0.0.1:1"),
        ("one", "one-more is gone", "one: one-more is gone"),
        ("", "`listen` is another now", "`listen` is another now"),
    ],
)
def test_an_event_names_its_model(model: str, words: str, events: str) -> None:
    assert with_model_name(model, words) == events


async def test_web_pages_follow_the_file(tmp_path: Path) -> None:
    async with (
        an_engine() as (_, engine),
        running(tmp_path, engine) as it,
        aiohttp.ClientSession() as client,
    ):
        asks = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
        file = tmp_path / "service.yaml"
        text = file.read_text()

        async def until(status: int) -> None:
            async with asyncio.timeout(90):
                while True:
                    async with client.options(f"{it.url}/v1/chat/completions", headers=asks) as answer:
                        if answer.status == status:
                            return
                    await asyncio.sleep(0.1)

        await until(405)
        file.write_text(f"{text}cors: loopback\n")
        await until(200)
        file.write_text(f"{text}cors: any\n")  # no keys are in use
        await until(405)
        assert any("no keys are in use" in each for each in it.texts("file"))


async def test_a_model_that_never_fits_is_named_at_once(tmp_path: Path) -> None:
    async with an_engine() as (_, engine), running(tmp_path, engine) as it:
        file = tmp_path / "service.yaml"
        cmd = "cmd: 'python3 -m http.server ${PORT}'"
        models = f"  held: {{{cmd}, memory: 400MiB, pinned: true}}\n  near: {{{cmd}, memory: 200MiB}}\n"
        file.write_text(f"{file.read_text()}{models}memory: {{ceiling: 500MiB}}\n")
        async with asyncio.timeout(30):
            while not (said := [text for text in it.texts("model") if text.startswith("near")]):
                await asyncio.sleep(0.1)
        assert (
            said[0].startswith("near cannot be served: `near` needs 200.0 MiB")
            and "(`far`, `held`)" in said[0]
        )


async def test_any_page_needs_keys(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text("cors: any\nmodels:\n  far: {url: 'http://127.0.0.1:9'}\n")
    with pytest.raises(UsageError, match="no keys are in use"):
        async for event in serve_file(ServeOptions(file), Home(tmp_path / "home"), asyncio.Event()):
            assert event.kind == "reading"


GOOD = "models:\n  one: {recipe: smollm2, context: 2048}\n"


@dataclass
class Recorded:
    """Hands that write down what they are asked to read, and read nothing."""

    texts: list[str] = field(default_factory=list)

    async def read(self, path: str) -> ServiceConfig:
        self.texts.append(Path(path).read_text())
        if "wrong" in self.texts[-1]:
            raise LoaderFailed(Reason("f:1: wrong", "correct it"))
        return ServiceConfig(path, "127.0.0.1:1", 1, 1, ())

    def load(self, model: ModelConfig) -> AsyncGenerator[LoadProgress | RunningModel, None]:
        raise NotImplementedError

    def unload(self, name: str) -> AsyncGenerator[LoadProgress | ExpectedRelease, None]:
        raise NotImplementedError


@dataclass
class Seen:
    changes: list[ServiceConfig] = field(default_factory=list)
    troubles: list[Reason] = field(default_factory=list)


def watch(path: Path, loader: Recorded | ProcessLoader) -> tuple[ServiceFileWatch, Seen]:
    seen = Seen()
    return ServiceFileWatch(str(path), loader, seen.changes.append, seen.troubles.append), seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "service.yaml"
    found.write_text(GOOD)
    return found


async def test_a_file_that_stays_is_not_read(path: Path) -> None:
    loader = Recorded()
    it, _ = watch(path, loader)
    for _ in range(3):
        await it.check()
    assert not loader.texts


async def test_a_change_is_read_once_when_two_looks_agree(path: Path) -> None:
    loader = Recorded()
    it, seen = watch(path, loader)
    path.write_text("half")
    assert not await it.check()
    path.write_text("whole thing")
    assert not await it.check(), "it is still being written"
    assert await it.check()
    assert not await it.check()
    assert loader.texts == ["whole thing"] and len(seen.changes) == 1 and it.problem is None


async def test_another_release_of_an_engine_is_a_change(path: Path) -> None:
    loader, seen = Recorded(), Seen()
    releases = path.with_name("releases.json")
    it = ServiceFileWatch(
        str(path), loader, seen.changes.append, seen.troubles.append, releases=str(releases)
    )
    assert not await it.check()
    releases.write_text("[]")
    assert not await it.check()
    assert await it.check() and not await it.check()
    assert len(seen.changes) == 1 and not seen.troubles


async def test_mistakes_change_nothing_until_they_are_mended(path: Path) -> None:
    it, seen = watch(path, Recorded())
    path.write_text("wrong")
    for _ in range(4):
        await it.check()
    assert not seen.changes and len(seen.troubles) == 1
    assert it.problem == Reason("f:1: wrong", "correct it")
    path.write_text(GOOD + "\n")
    for _ in range(2):
        await it.check()
    assert len(seen.changes) == 1 and it.problem is None


async def test_another_file_in_its_place_is_a_change(path: Path) -> None:
    """As editors and Kubernetes do it; with the size and the time of the old one."""
    loader = Recorded()
    it, _ = watch(path, loader)
    about = path.stat()
    other = path.with_name("other")
    other.write_text(GOOD.replace("2048", "4096"))
    os.utime(other, ns=(about.st_atime_ns, about.st_mtime_ns))
    other.replace(path)
    assert path.stat().st_size == about.st_size and path.stat().st_mtime_ns == about.st_mtime_ns
    for _ in range(2):
        await it.check()
    assert loader.texts == [path.read_text()]


async def test_a_file_that_disappears_is_reported_and_one_that_comes_back_is_read(path: Path) -> None:
    loader = Recorded()
    it, seen = watch(path, loader)
    path.unlink()
    for _ in range(4):
        await it.check()
    assert len(seen.troubles) == 1 and "is missing" in seen.troubles[0].what and not loader.texts
    path.write_text(GOOD)
    for _ in range(2):
        await it.check()
    assert len(seen.changes) == 1 and it.problem is None


async def test_a_change_between_the_first_reading_and_the_first_look(path: Path) -> None:
    loader = Recorded()
    before = file_version(str(path))
    path.write_text("something longer than before " + GOOD)
    it = ServiceFileWatch(str(path), loader, lambda config: None, lambda why: None, before)
    for _ in range(2):
        await it.check()
    assert len(loader.texts) == 1


async def test_the_real_reader_has_the_lines_of_mistakes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))
    it, seen = watch(path, ProcessLoader())
    it.start()
    path.write_text("models:\n  one: {recipe: smollm2, colour: red}\n")
    async with asyncio.timeout(30):
        while not seen.troubles:
            await asyncio.sleep(0.05)
    await it.close()
    assert "service.yaml:2: " in seen.troubles[0].what and not seen.changes


_FAULTS = """
import resource, sys
from firesteel.gateway.serve import retain_free_memory
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
if sys.argv[1] == "held": retain_free_memory()
for _ in range(20): bytes(bytearray(400_000))
before = faults()
for _ in range(100): bytes(bytearray(400_000))
print(faults() - before)
"""


def _count_faults(how: str) -> int:
    said = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, check=True, timeout=60)
    return int(said.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_long_prompts_do_not_ask_for_their_pages_anew() -> None:
    assert _count_faults("held") < 1000 < _count_faults("as it is")


def test_what_is_frozen_is_not_looked_at_again() -> None:
    from firesteel.gateway.serve import freeze_startup_objects

    try:
        freeze_startup_objects()
        assert gc.get_freeze_count() > 0
        assert len(gc.get_objects()) < 1000
    finally:
        gc.unfreeze()
