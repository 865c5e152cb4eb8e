"""The admin API: large pages, streams of events, and the logs of engines."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest

from firesteel.gateway.admin import api
from firesteel.gateway.admin.api import LogTail
from firesteel.run.service import folder_of
from tests.gateway.test_admin_api import BOSS, FakeDispatcher, ask, client, dispatcher, events, served, until

__all__ = ["client", "dispatcher"]


async def test_a_large_page_leaves_the_loop_to_others(
    client: aiohttp.ClientSession, dispatcher: FakeDispatcher
) -> None:
    """Turns of the loop are counted, not milliseconds."""

    async def pages() -> Mapping[str, str]:
        return {"coder": "".join(f"x{at} 1\n" for at in range(6400))}

    dispatcher.pages, turns, is_done = pages, 0, False

    async def others() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    async with client.get("/metrics", headers=BOSS) as answer:
        assert "x6399" in await answer.text()
    is_done = True
    await beside
    assert turns > 100


# What happens


async def test_events(client: aiohttp.ClientSession, dispatcher: FakeDispatcher) -> None:
    async with asyncio.timeout(120), client.get("/api/events", headers=BOSS) as answer:
        assert answer.content_type == "text/event-stream"
        heard = events(answer)
        kind, data = await anext(heard)
        assert kind == "state" and len(json.loads(data)["models"]) == 2
        await ask(client, "/api/models/small/load", method="POST")
        kind, data = await anext(heard)
        assert (kind, json.loads(data)) == ("model", {"event": "model", "name": "small", "phase": "loading"})
    await until(lambda: len(dispatcher.subscribers) == 0)


async def test_a_quiet_stream_shows_that_it_lives(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "HEARTBEAT_S", 0.02)
    async with asyncio.timeout(120), client.get("/api/events", headers=BOSS) as answer:
        heard = events(answer)
        assert [(await anext(heard))[0] for _ in range(3)] == ["state", ":", ":"]


async def test_a_listener_that_does_not_read_loses_only_its_own(dispatcher: FakeDispatcher) -> None:
    slow, quick = dispatcher.subscribers.subscribe(), dispatcher.subscribers.subscribe()
    for at in range(100):
        dispatcher.subscribers.publish({"event": "model", "at": at})
        assert (await quick.get())["at"] == at
    assert slow.qsize() <= 8
    kept = [slow.get_nowait() for _ in range(slow.qsize())]
    assert kept[0] == {"event": "missed"} and kept[-1]["at"] == 99


async def test_listeners_are_counted(
    client: aiohttp.ClientSession, dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_STREAMS", 2)
    async with client.get("/api/events", headers=BOSS), client.get("/api/events", headers=BOSS):
        status, content = await ask(client, "/api/events")
        assert (status, content["error"]["code"]) == (503, "too_many_listeners")
    await until(lambda: len(dispatcher.subscribers) == 0)
    async with client.get("/api/events", headers=BOSS) as answer:
        assert answer.status == 200


async def test_the_end_ends_streams_too(dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_SHUTDOWN_S", 60)
    async with served(dispatcher) as (runner, session), session.get("/api/events", headers=BOSS) as answer:
        heard = events(answer)
        await anext(heard)
        async with asyncio.timeout(120):
            await runner.cleanup()
        assert len(dispatcher.subscribers) == 0


@pytest.mark.parametrize("path", ["/api/events", "/api/models/coder/logs?follow=1"])
async def test_a_drain_ends_streams_as_whole_answers(dispatcher: FakeDispatcher, path: str) -> None:
    log = folder_of(dispatcher.home, "coder") / "engine.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    async with served(dispatcher) as (runner, session), session.get(path, headers=BOSS) as answer:
        await anext(events(answer))
        api.end_streams(runner.app)
        async with asyncio.timeout(120):
            await answer.content.read()  # one that broke off would raise
        status, content = await ask(session, path)
        assert (status, content["error"]["code"]) == (503, "draining")


# What engines print


@pytest.fixture
def log(dispatcher: FakeDispatcher) -> Path:
    path = folder_of(dispatcher.home, "coder") / "engine.log"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"line {at}\n" for at in range(500)))
    return path


async def test_the_end_of_a_log(client: aiohttp.ClientSession, log: Path) -> None:
    _, found = await ask(client, "/api/models/coder/logs?lines=3")
    assert found == {"name": "coder", "lines": ["line 497", "line 498", "line 499"]}
    assert len((await ask(client, "/api/models/coder/logs"))[1]["lines"]) == 100


async def test_a_log_that_is_followed(
    client: aiohttp.ClientSession, dispatcher: FakeDispatcher, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_FOLLOW_S", 0.01)
    address = "/api/models/coder/logs?lines=2&follow=1"
    async with asyncio.timeout(120), client.get(address, headers=BOSS) as answer:
        heard = events(answer)
        assert [await anext(heard) for _ in range(2)] == [("line", "line 498"), ("line", "line 499")]
        with log.open("a") as file:
            file.write("data: not a field\nhalf")
        assert await anext(heard) == ("line", "data: not a field")
        with log.open("a") as file:
            file.write(" and half\rbar 10 %\rbar 20 %\n")
        assert [(await anext(heard))[1] for _ in range(3)] == ["half and half", "bar 10 %", "bar 20 %"]
        log.write_text("begun again\n")
        assert await anext(heard) == ("line", "begun again")
        log.unlink()
        log.write_text("another file, of the next start\n")
        assert await anext(heard) == ("line", "another file, of the next start")


def test_a_tail_is_bounded(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"x" * 3_000_000)
    tail = LogTail(path)
    request.addfinalizer(tail.close)
    assert all(len(line) <= 64 * 2**10 for line in tail.last(10))
    with path.open("ab") as file:
        file.write(os.urandom(1_000_000) + b"\n" * 10_000)
    read = [tail.more() for _ in range(10)]
    assert sum(map(len, read)) >= 10_000 and read[-1] == []
    assert all(len(line) <= 64 * 2**10 for lines in read for line in lines)
