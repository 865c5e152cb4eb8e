"""What the web page needs of the gateway: its files, previews of loads, changes as events, and commands."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from firesteel.edge.home import Home
from firesteel.gateway.admin.api import IS_ENDING, STREAMS, send_event, start, streaming
from firesteel.gateway.admin.events import Subscribers, changes, publish_changes
from firesteel.gateway.page import page_responses, read_files
from firesteel.gateway.scheduler.capacity import LoadPreview
from firesteel.gateway.scheduler.events import (
    LoadRequested,
    ModelLoaded,
    RequestArrived,
    SchedulerLimits,
    TimePassed,
)
from firesteel.gateway.scheduler.scheduler import Scheduler
from firesteel.gateway.service_config import ModelConfig
from firesteel.gateway.state import GatewayState
from firesteel.values import replace
from tests.gateway.page.scripted_gateway import model, state
from tests.gateway.play import scheduled
from tests.gateway.test_admin_api import BOSS, GUEST, FakeDispatcher

# --- previews ---


def scheduler(*models: ModelConfig, ceiling: int = 100) -> Scheduler:
    made = Scheduler(models, SchedulerLimits(ceiling, min_dwell_s=60.0, idle_grace_s=10.0), 0.0)
    made.handle(TimePassed(), 0.0)
    return made


def load(made: Scheduler, name: str, now_s: float) -> None:
    made.handle(LoadRequested(name, True), now_s)
    made.handle(ModelLoaded(name), now_s)


def test_a_preview_names_what_has_to_go() -> None:
    made = scheduler(scheduled("a", 60), scheduled("b", 30), scheduled("c", 70))
    assert made.preview("c", 0.0) == LoadPreview()
    load(made, "a", 1.0)
    assert made.preview("b", 2.0) == LoadPreview()
    assert made.preview("c", 2.0) == LoadPreview(("a",))  # still protected: what will have to go all the same
    load(made, "b", 3.0)
    assert made.preview("c", 100.0) == LoadPreview(("a",))


def test_a_preview_does_what_the_scheduler_then_does() -> None:
    made = scheduler(scheduled("a", 60), scheduled("b", 70))
    load(made, "a", 1.0)
    evicted = made.preview("b", 100.0).evicts
    effects = made.handle(RequestArrived("request", "b"), 100.0)
    assert [effect.model for effect in effects if hasattr(effect, "model")] == list(evicted) == ["a"]


def test_a_preview_says_why_a_load_is_impossible() -> None:
    made = scheduler(scheduled("a", 60, pinned=True), scheduled("b", 50), scheduled("c", 200))
    made.handle(ModelLoaded("a"), 1.0)
    assert "alongside the models that always stay (`a`)" in (made.preview("b", 2.0).why_not or "")
    assert "Reduce its context" in (made.preview("c", 2.0).why_not or "")


def test_a_load_under_way_can_be_followed_by_another() -> None:
    made = scheduler(scheduled("a", 60), scheduled("b", 70))
    made.handle(LoadRequested("a", True), 1.0)
    assert made.preview("b", 2.0) == LoadPreview(("a",))
    made.handle(LoadRequested("b", True), 2.0)
    assert made.preview("b", 3.0).is_requested
    made.handle(LoadRequested("b", False), 4.0)
    assert not made.preview("b", 5.0).is_requested


# --- changes ---


def test_only_what_changed_is_published() -> None:
    before = state(model("a"), model("b"))
    assert changes(before, state(model("a"), model("b"))) == []
    (only,) = changes(before, state(model("a"), model("b", busy=1)))
    assert (only["event"], only["name"], only["busy"]) == ("model", "b", 1)
    (rest,) = changes(before, state(model("a"), model("b"), waiting=1))
    assert rest["event"] == "gateway" and "models" not in rest
    (whole,) = changes(before, state(model("a")))
    assert whole["event"] == "state" and len(whole["models"]) == 1


def test_a_few_bytes_of_free_memory_are_no_news() -> None:
    before = state()
    assert before.memory.available_bytes
    memory = replace(before.memory, available_bytes=before.memory.available_bytes + 4096)
    assert changes(before, replace(before, memory=memory)) == []


async def test_nothing_is_read_while_nobody_listens() -> None:
    subscribers, reads = Subscribers(), 0

    def read() -> GatewayState:
        nonlocal reads
        reads += 1
        return state(model("a", busy=reads))

    task = asyncio.ensure_future(publish_changes(read, subscribers, every_s=0.001))
    await asyncio.sleep(0.02)
    assert reads == 0
    queue = subscribers.subscribe()
    first, second = await queue.get(), await queue.get()
    assert (first["event"], second["event"]) == ("state", "model")
    task.cancel()


async def test_what_happened_is_told_to_a_page_that_is_opened_later() -> None:
    subscribers = Subscribers()
    for number in range(50):
        subscribers.publish({"event": "news", "model": "a", "words": "weights"})
        subscribers.publish({"event": "loaded", "model": f"model-{number}", "seconds": 1.0})
    queue = subscribers.subscribe()
    subscribers.publish({"event": "unloaded", "model": "a", "seconds": 1.0})
    told = [queue.get_nowait() for _ in range(queue.qsize())]
    assert [event["model"] for event in told] == [*(f"model-{number}" for number in range(20, 50)), "a"]
    assert all(event["at"] > 0 for event in told)


async def test_a_page_that_was_closed_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """It may be noticed only when the next event is sent."""
    app = web.Application()
    app[STREAMS], app[IS_ENDING] = set(), asyncio.Event()
    is_open, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        async with streaming(request) as response:
            is_open.set()
            while True:
                await send_event(response, "news", "x" * 1000)
                await asyncio.sleep(0)
        ended.set()
        return response

    app.router.add_get("/events", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with asyncio.timeout(120):
        _, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        await is_open.wait()
        writer.close()
        await ended.wait()
    await runner.cleanup()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# --- files ---


def test_the_page_may_load_nothing_from_elsewhere() -> None:
    files = page_responses(read_files())
    assert {b"/", b"/page/app.js", b"/page/style.css"} <= files.keys()
    for response in files.values():
        policy = dict(response.headers)[b"Content-Security-Policy"]
        assert policy.startswith(b"default-src 'none'; script-src 'self';")
        assert b"unsafe" not in policy
        assert b"http" not in response.body.replace(b"http://www.w3.org", b"").replace(b"https the", b"")


# --- commands ---


class Commands:
    def __init__(self) -> None:
        self.ran: list[tuple[tuple[str, ...], bytes]] = []
        self.output = b'{"document": "x"}'

    async def __call__(self, arguments: Sequence[str], text: bytes) -> bytes:
        self.ran.append((tuple(arguments), text))
        return self.output


@asynccontextmanager
async def asked(commands: Commands, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    with tempfile.TemporaryDirectory(prefix="fs") as short:
        path = Path(short) / "control.sock"
        runner = await start(FakeDispatcher(Home(tmp_path)), path, commands)
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession("http://control", connector=connector) as client:
            yield client
        await runner.cleanup()


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("/api/catalog?goal=speed&context=4096", ["models", "--goal=speed", "--context=4096"]),
        ("/api/plan?model=gpt-oss-20b&users=4", ["plan", "--users=4", "--", "gpt-oss-20b"]),
        ("/api/models/coder/diagnose", ["logs", "--why", "--", "coder"]),
        ("/api/runs", ["bench", "list"]),
        ("/api/runs/20261116-1", ["bench", "show", "--", "20261116-1"]),
        ("/api/runs/last~1/plan", ["bench", "compare", "--plan", "--", "last~1"]),
        ("/api/compare?first=a&second=b", ["bench", "compare", "--", "a", "b"]),
    ],
)  # fmt: skip
async def test_a_path_runs_its_command(tmp_path: Path, path: str, arguments: list[str]) -> None:
    commands = Commands()
    async with asked(commands, tmp_path) as client, client.get(path, headers=BOSS) as answer:
        assert (answer.status, await answer.json()) == (200, {"document": "x"})
        assert commands.ran == [(("--json", *arguments), b"")]


async def test_a_text_is_checked(tmp_path: Path) -> None:
    commands = Commands()
    async with (
        asked(commands, tmp_path) as client,
        client.post("/api/check", headers=BOSS, data=b"vllm serve --x") as answer,
    ):
        assert answer.status == 200
        assert commands.ran == [(("--json", "check", "-"), b"vllm serve --x")]


@pytest.mark.parametrize(
    "path",
    [
        "/api/plan",
        "/api/plan?model=--help",
        "/api/plan?model=/etc/passwd",
        "/api/plan?model=../x",
        "/api/plan?model=x&context=-1",
        "/api/plan?model=x&context=1e9",
        "/api/catalog?goal=--fix",
        "/api/runs/-x",
        "/api/compare?first=a",
    ],
)
async def test_what_is_no_plain_value_never_becomes_an_argument(tmp_path: Path, path: str) -> None:
    commands = Commands()
    async with asked(commands, tmp_path) as client, client.get(path, headers=BOSS) as answer:
        assert answer.status == 400
        assert commands.ran == []


async def test_commands_need_an_admin_key(tmp_path: Path) -> None:
    commands = Commands()
    async with asked(commands, tmp_path) as client, client.get("/api/catalog", headers=GUEST) as answer:
        assert answer.status == 403
        assert commands.ran == []


async def test_a_command_that_prints_no_document(tmp_path: Path) -> None:
    commands = Commands()
    commands.output = b"Traceback"
    async with asked(commands, tmp_path) as client, client.get("/api/runs", headers=BOSS) as answer:
        assert answer.status == 502
        assert "printed no document" in json.loads(await answer.text())["error"]["message"]
