"""The admin API over its own socket, with a real client and a recording dispatcher."""

from __future__ import annotations

import asyncio
import json
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

import firesteel
from firesteel.edge.home import Home
from firesteel.gateway.admin import api
from firesteel.gateway.admin.api import ADMIN, HOST, MODELS, WHO, start
from firesteel.gateway.admin.events import Subscribers
from firesteel.gateway.admin.meter import GatewayGauges, Meter, ModelGauges
from firesteel.gateway.admin.prometheus import MetricFamily
from firesteel.gateway.admin.request_log import RequestLog, log_path
from firesteel.gateway.interfaces import Rejection, RequestOutcome, Usage
from firesteel.gateway.keys import unknown_model
from firesteel.gateway.monitoring.store import CurveRange
from firesteel.gateway.state import GatewayState, MemoryStatus, ModelHealth, ModelStatus

BOSS = {WHO: "boss", ADMIN: "1", HOST: "spark:8080"}
GUEST = {WHO: "laptop", ADMIN: "0", HOST: "spark:8080"}
OPEN = {WHO: "", ADMIN: "1", HOST: "127.0.0.1:8080"}
ROUTES = ["/api/state", "/api/models/coder/logs", "/api/events", "/api/requests", "/metrics"]


class FakeDispatcher:
    """Two models; records load requests, and publishes events like the real one."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.subscribers = Subscribers(max_events=8)
        self.requested: list[tuple[str, bool]] = []
        self.pinned: list[tuple[str, bool]] = []
        self.phases = {"coder": "ready", "small": "off"}
        self.meter = Meter(self.phases)
        self.pages: Callable[[], Awaitable[Mapping[str, str]]] = self._pages

    def state(self) -> GatewayState:
        models = tuple(
            ModelStatus(
                name,
                phase,
                planned_bytes=1000,
                needed_bytes=1000,
                evicts=(),
                health=ModelHealth(True, "healthy"),
            )
            for name, phase in self.phases.items()
        )
        return GatewayState(
            firesteel.__version__, models, MemoryStatus(ceiling_bytes=2000, loaded_bytes=1000)
        )

    async def curves_document(self, resolution: CurveRange, models: frozenset[str] | None) -> str:
        return json.dumps({"range": resolution.name, "models": None if models is None else sorted(models)})

    def set_loaded(self, model: str, is_loaded: bool) -> Rejection | None:
        if model not in self.phases:
            return unknown_model(model)
        if not is_loaded and self.phases[model] == "off":
            return Rejection(409, "not_loaded", f"{model} is not loaded.")
        self.requested.append((model, is_loaded))
        self.phases[model] = "loading" if is_loaded else "unloading"
        self.subscribers.publish({"event": "model", "name": model, "phase": self.phases[model]})
        return None

    def set_pinned(self, model: str, is_pinned: bool) -> Rejection | None:
        self.pinned.append((model, is_pinned))
        return None

    def metrics(self) -> Iterable[MetricFamily]:
        return self.meter.families(GatewayGauges({"coder": ModelGauges("ready")}))

    async def _pages(self) -> Mapping[str, str]:
        return {"coder": "# TYPE vllm:x gauge\nvllm:x 5\n"}

    async def engine_metrics(self) -> Mapping[str, str]:
        return await self.pages()


@pytest.fixture
def dispatcher(tmp_path: Path) -> FakeDispatcher:
    return FakeDispatcher(Home(tmp_path / "home"))


@asynccontextmanager
async def served(dispatcher: FakeDispatcher) -> AsyncIterator[tuple[web.AppRunner, aiohttp.ClientSession]]:
    with tempfile.TemporaryDirectory(prefix="fs") as short:  # a socket's path has 107 letters at most
        runner = await start(dispatcher, Path(short) / "s" / "control.sock")
        connector = aiohttp.UnixConnector(str(Path(short) / "s" / "control.sock"))
        async with aiohttp.ClientSession("http://control", connector=connector) as client:
            yield runner, client
        await runner.cleanup()


@pytest.fixture
async def client(dispatcher: FakeDispatcher) -> AsyncIterator[aiohttp.ClientSession]:
    async with served(dispatcher) as (_, session):
        yield session


async def ask(
    client: aiohttp.ClientSession, path: str, headers: Mapping[str, str] = BOSS, method: str = "GET"
) -> tuple[int, Any]:
    async with client.request(method, path, headers=headers) as answer:
        return answer.status, json.loads(await answer.text())


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str]]:
    """Server-sent events as (event, data); a comment is (`:`, its words)."""
    found: dict[str, str] = {}
    async for raw in answer.content:
        line = raw.decode().rstrip("\n")
        name, _, value = line.partition(": ")
        if line:
            found[name] = value
        elif found:
            yield found.get("event", ":"), found.get("data", "")
            found = {}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.005)


# Who may


@pytest.mark.parametrize("path", ROUTES)
async def test_an_inference_key_opens_nothing(client: aiohttp.ClientSession, path: str) -> None:
    status, content = await ask(client, path, GUEST)
    assert (status, content["error"]["code"]) == (403, "permission_denied")


@pytest.mark.parametrize(
    ("query", "headers", "status", "models"),
    [
        ("", BOSS, 200, None),
        ("?range=30d&model=coder", BOSS, 200, ["coder"]),
        ("", GUEST, 200, ["coder", "small"]),  # not the machine, and no model that left the file
        ("", {**GUEST, MODELS: "small,other"}, 200, ["small"]),
        ("?model=small", {**GUEST, MODELS: "small"}, 200, ["small"]),
        ("?model=coder", {**GUEST, MODELS: "small"}, 404, None),
        ("?model=small&model=coder", {**GUEST, MODELS: "small"}, 404, None),
        ("?model=nobody", BOSS, 404, None),
        ("?range=1y", BOSS, 400, None),
    ],
)
async def test_a_key_sees_the_curves_of_its_own_models(
    client: aiohttp.ClientSession, query: str, headers: dict[str, str], status: int, models: list[str] | None
) -> None:
    answered, content = await ask(client, f"/api/curves{query}", headers)
    assert answered == status
    if status == 200:
        assert content["models"] == models


async def test_an_inference_key_changes_nothing(
    client: aiohttp.ClientSession, dispatcher: FakeDispatcher
) -> None:
    for what in ("load", "unload"):
        status, _ = await ask(client, f"/api/models/coder/{what}", GUEST, "POST")
        assert status == 403
    assert dispatcher.requested == []


SAID_WRONGLY: list[list[tuple[str, str]]] = [
    [],
    [(WHO, "boss"), (HOST, "spark")],
    [(ADMIN, "1"), (HOST, "spark")],
    [(WHO, "boss"), (ADMIN, "1")],
    [(WHO, "boss"), (ADMIN, "1"), (ADMIN, "0"), (HOST, "spark")],
    [(WHO, "laptop"), (WHO, "boss"), (ADMIN, "1"), (HOST, "spark")],
    [(WHO, "boss"), (ADMIN, "true"), (HOST, "spark")],
    [(WHO, "boss"), (ADMIN, ""), (HOST, "spark")],
    [(WHO, "boss"), (ADMIN, "1"), (HOST, "127.0.0.1"), (HOST, "spark")],
    [(WHO, "boss"), (ADMIN, "1"), (HOST, "spark"), (MODELS, "a"), (MODELS, "b")],
]


@pytest.mark.parametrize("lines", SAID_WRONGLY, ids=range(len(SAID_WRONGLY)))
async def test_a_caller_must_be_named_exactly_once(
    client: aiohttp.ClientSession, dispatcher: FakeDispatcher, lines: list[tuple[str, str]]
) -> None:
    async with client.post("/api/models/small/load", headers=lines) as answer:
        assert answer.status == 403
    assert dispatcher.requested == []


async def test_without_keys_this_machine_may(client: aiohttp.ClientSession) -> None:
    assert (await ask(client, "/api/state", OPEN))[0] == 200
    assert (await ask(client, "/api/models/small/load", OPEN, "POST"))[0] == 202


async def test_a_page_of_another_site_may_not(
    client: aiohttp.ClientSession, dispatcher: FakeDispatcher
) -> None:
    """As browsers send it: across origins with `Origin`; under a rebound name with that name as `Host`."""
    for who in (OPEN, BOSS):
        status, content = await ask(
            client, "/api/models/small/load", {**who, "Origin": "https://evil.example"}, "POST"
        )
        assert (status, content["error"]["code"]) == (403, "origin_not_allowed")
    rebound = {**OPEN, HOST: "evil.example:8080", "Origin": "http://evil.example:8080"}
    for method, path in (("POST", "/api/models/small/load"), ("GET", "/api/state"), ("GET", "/metrics")):
        status, content = await ask(client, path, rebound, method)
        assert (status, content["error"]["code"]) == (403, "host_not_allowed")
    assert dispatcher.requested == []
    own = {**OPEN, "Origin": "http://127.0.0.1:8080"}
    assert (await ask(client, "/api/models/small/load", own, "POST"))[0] == 202


async def test_whether_we_are_here_is_for_anyone(client: aiohttp.ClientSession) -> None:
    assert (await ask(client, "/api/health", {}))[1]["status"] == "ok"


async def test_the_socket_is_its_owners_alone(dispatcher: FakeDispatcher) -> None:
    async with served(dispatcher) as (runner, _):
        path = Path(str(runner.addresses[0]))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# What there is


async def test_state(client: aiohttp.ClientSession) -> None:
    status, found = await ask(client, "/api/state")
    assert (
        status == 200
        and found["version"] == firesteel.__version__
        and found["memory"]["ceiling_bytes"] == 2000
    )
    assert {model["name"]: model["phase"] for model in found["models"]} == {"coder": "ready", "small": "off"}


async def test_load_and_unload(client: aiohttp.ClientSession, dispatcher: FakeDispatcher) -> None:
    status, found = await ask(client, "/api/models/small/load", method="POST")
    assert (status, found["name"], found["phase"]) == (202, "small", "loading")
    assert (await ask(client, "/api/models/coder/unload", method="POST"))[0] == 202
    assert dispatcher.requested == [("small", True), ("coder", False)]
    dispatcher.phases["small"] = "off"
    status, content = await ask(client, "/api/models/small/unload", method="POST")
    assert (status, content["error"]["code"]) == (409, "not_loaded")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/api/models/nobody/load", 404),
        ("POST", "/api/models/..%2fcoder/load", 404),
        ("GET", "/api/models/..%2f..%2fetc/logs", 404),
        ("GET", "/api/models/coder/load", 405),
        ("DELETE", "/api/state", 405),
        ("GET", "/api/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/api/models/coder/logs", 404),
        ("GET", "/api/requests?limit=0", 400),
        ("GET", "/api/requests?limit=many", 400),
        ("GET", "/api/requests?limit=1001", 400),
        ("GET", "/api/requests?limit=%D9%A3", 400),
        ("GET", "/api/requests?before=" + "9" * 5000, 400),
        ("GET", "/api/models/coder/logs?lines=-1", 400),
    ],
)
async def test_errors_wear_the_envelope(
    client: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    async with client.request(method, path, headers=BOSS) as answer:
        found = json.loads(await answer.text())
        assert answer.status == status and answer.content_type == "application/json"
    assert found["error"]["message"] and found["error"]["code"]


async def test_a_fault_of_our_own_is_an_envelope_too(
    client: aiohttp.ClientSession, dispatcher: FakeDispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    del dispatcher.phases
    status, content = await ask(client, "/api/state")
    assert (status, content["error"]["code"]) == (500, "internal_error")
    assert "phases" not in content["error"]["message"] and "phases" in caplog.text


async def test_requests(client: aiohttp.ClientSession, dispatcher: FakeDispatcher) -> None:
    assert await ask(client, "/api/requests") == (200, {"requests": []})
    log = RequestLog(log_path(dispatcher.home))
    for at in range(5):
        log.add(time.time(), "laptop", "coder", "chat", RequestOutcome("whole", 200, bytes_in=at))
    log.close()
    _, found = await ask(client, "/api/requests?limit=2")
    assert [row["bytes_in"] for row in found["requests"]] == [4, 3]
    _, more = await ask(client, f"/api/requests?limit=9&before={found['requests'][-1]['id']}")
    assert [row["bytes_in"] for row in more["requests"]] == [2, 1, 0]


async def test_an_unreadable_log_is_reported(
    client: aiohttp.ClientSession, dispatcher: FakeDispatcher
) -> None:
    dispatcher.home.root.mkdir()
    log_path(dispatcher.home).write_bytes(b"no database" * 1000)
    status, content = await ask(client, "/api/requests")
    assert (status, content["error"]["code"]) == (503, "log_unreadable")


async def test_all_are_unloaded_at_once(client: aiohttp.ClientSession, dispatcher: FakeDispatcher) -> None:
    assert (await ask(client, "/api/models/unload", GUEST, "POST"))[0] == 403
    assert await ask(client, "/api/models/unload", BOSS, "POST") == (202, {"unloading": ["coder"]})
    assert dispatcher.requested == [("coder", False)], "`small` is off"
    assert await ask(client, "/api/models/unload", BOSS, "POST") == (202, {"unloading": []})


async def test_usage_is_everybodys_own(client: aiohttp.ClientSession, dispatcher: FakeDispatcher) -> None:
    log = RequestLog(log_path(dispatcher.home))
    for key in ("laptop", "other"):
        log.add(time.time(), key, "coder", "chat", RequestOutcome("whole", 200, Usage(10, 2)))
    log.close()
    status, content = await ask(client, "/api/usage?by=key", BOSS)
    assert (status, content["document"]) == (200, "firesteel.usage/1")
    assert [row["key"] for row in content["rows"]] == ["laptop", "other"]
    for query in ("", "&key=other"):
        status, content = await ask(client, f"/api/usage?by=key{query}", GUEST)
        assert status == 200 and [row["key"] for row in content["rows"]] == ["laptop"], query
    async with client.get("/api/usage?by=model&format=csv", headers=GUEST) as answer:
        assert answer.content_type == "text/csv"
        assert (await answer.text()).splitlines()[1:] == ["coder,1,10,2,0,0"]
    status, content = await ask(client, "/api/usage?since=soon", BOSS)
    assert (status, content["error"]["code"]) == (400, "bad_request")
    log_path(dispatcher.home).write_bytes(b"no database" * 1000)
    assert (await ask(client, "/api/usage", BOSS))[0] == 503


async def test_a_key_for_metrics_has_metrics_only(client: aiohttp.ClientSession) -> None:
    prometheus = {**GUEST, "X-Firesteel-Metrics": "1"}
    async with client.get("/metrics", headers=prometheus) as answer:
        assert answer.status == 200
    for path in ("/api/state", "/api/usage", "/api/curves", "/api/requests"):
        assert (await ask(client, path, prometheus))[0] == 403, path
    assert (await ask(client, "/metrics", GUEST))[0] == 403


async def test_metrics(client: aiohttp.ClientSession, dispatcher: FakeDispatcher) -> None:
    dispatcher.meter.counters("coder", "laptop").first(0.2)
    async with client.get("/metrics", headers=BOSS) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {each.name: each for each in text_string_to_metric_families(await answer.text())}
    assert families["vllm:x"].samples[0].labels == {"model": "coder"}
    assert families["firesteel_time_to_first_token_seconds"].samples


@pytest.mark.parametrize("trouble", ["hangs", "breaks"])
async def test_engines_that_do_not_answer_cost_only_their_own_figures(
    client: aiohttp.ClientSession, dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(api, "_ENGINE_PAGES_S", 0.05)

    async def pages() -> Mapping[str, str]:
        if trouble == "breaks":
            raise ConnectionRefusedError
        await asyncio.Event().wait()
        return {}

    dispatcher.pages = pages
    async with client.get("/metrics", headers=BOSS) as answer:
        text = await answer.text()
    assert "firesteel_queue_length 0" in text and "vllm" not in text
