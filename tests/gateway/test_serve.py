"""The whole gateway over an outside server: its events, and its shutdown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from firesteel.edge.home import Home, lock
from firesteel.errors import UsageError
from firesteel.gateway import serve
from firesteel.gateway.key_file import add_key, keys_path
from firesteel.gateway.serve import ServeEvent, ServeOptions, serve_file, with_model_name
from firesteel.gateway.service_config import ModelConfig, ServiceConfig
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


async def test_any_page_needs_keys(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text("cors: any\nmodels:\n  far: {url: 'http://127.0.0.1:9'}\n")
    with pytest.raises(UsageError, match="no keys are in use"):
        async for event in serve_file(ServeOptions(file), Home(tmp_path / "home"), asyncio.Event()):
            assert event.kind == "reading"
