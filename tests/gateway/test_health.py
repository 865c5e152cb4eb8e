"""What really runs: engines that come, go and come back without the gateway, and servers at a URL."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.edge.measured_memory import save_measured_memory
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.gateway.discovery import (
    OwnServices,
    find_apis,
    find_context,
    identity,
    is_answering,
    is_identity_of,
    measured,
)
from firesteel.gateway.endpoints import model_endpoints
from firesteel.gateway.health import Health, ServiceObservation, Verdict, judge, observe
from firesteel.gateway.loader.process import ProcessLoader
from firesteel.gateway.scheduler.events import (
    LoadFailed,
    LoadRequested,
    ModelCrashed,
    ModelLoaded,
    ModelUnloaded,
    RequestArrived,
)
from firesteel.gateway.service_config import ModelConfig, ModelParameters, ServiceConfig
from firesteel.run.service import Service, ServiceSpec, ServiceState, folder_of, load, write_spec
from firesteel.run.start import start_supervisor
from firesteel.units import MIB
from firesteel.values import replace
from tests.conftest import run_firesteel
from tests.gateway.test_executor import CONFIG, Bench, bench

OURS = ServiceObservation("ready", is_ours=True, url="http://127.0.0.1:1")
OTHER = ServiceObservation("ready", url="http://127.0.0.1:2")
GONE = ServiceObservation(None)


@pytest.mark.parametrize(
    ("believed", "seen", "event"),
    [
        ("off", GONE, None),
        ("off", OURS, ModelLoaded("m")),
        ("off", replace(OURS, phase="unkept"), ModelLoaded("m")),
        ("off", OTHER, None),
        ("off", replace(OURS, phase="starting"), None),
        ("off", replace(OURS, phase="dead"), None),
        ("ready", OURS, None),
        ("ready", replace(OURS, phase="unkept"), None),
        ("ready", GONE, ModelUnloaded("m")),
        ("ready", OTHER, ModelUnloaded("m")),
        (
            "ready",
            replace(OURS, phase="stopping", was_stop_requested=True),
            ModelCrashed("m", "it was stopped by hand"),
        ),
        ("ready", replace(OURS, phase="stopping", why="stuck"), ModelCrashed("m", "stuck", True)),
        (
            "ready",
            replace(OURS, phase="stopping", why="no memory", is_ending=True),
            ModelCrashed("m", "no memory"),
        ),
        ("ready", replace(OURS, phase="starting", why="died"), ModelCrashed("m", "died", True)),
        ("ready", replace(OURS, phase="dead", why="no memory"), ModelCrashed("m", "no memory")),
        ("loading", replace(OURS, phase="starting"), None),
        ("loading", OURS, ModelLoaded("m")),
        ("loading", OTHER, LoadFailed("m", "something else runs under its name now")),
        ("loading", replace(OURS, phase="dead", why="gave up"), ModelCrashed("m", "gave up")),
        (
            "loading",
            replace(OURS, phase="dead", was_stop_requested=True),
            ModelCrashed("m", "it was stopped by hand"),
        ),
        (
            "loading",
            replace(OURS, phase="stopping", is_ending=True, was_stop_requested=True),
            ModelCrashed("m", "it was stopped by hand"),
        ),
        (
            "loading",
            replace(OURS, phase="stopping", why="wrong answers", is_ending=True),
            ModelCrashed("m", "wrong answers"),
        ),
        ("loading", GONE, LoadFailed("m", "it was stopped by hand")),
        ("unloading", OURS, None),
        ("unloading", GONE, None),
    ],
)
def test_what_a_look_means(believed: str, seen: ServiceObservation, event: object) -> None:
    assert judge("m", believed, seen).event == event


def test_what_needs_no_event_may_need_a_note() -> None:
    assert "differs from the file" in judge("m", "off", OTHER).note
    assert judge("m", "ready", OURS) == Verdict()


def test_what_comes_back_and_what_an_earlier_gateway_left_have_their_own_notes() -> None:
    assert judge("m", "loading", OURS).note == "m answers again"
    assert judge("m", "off", OURS).note == "it was started outside the gateway"
    earlier = "m was already running, started by an earlier gateway"
    assert judge("m", "off", OURS, is_mine=True).note == earlier


def test_an_engine_that_died_is_not_ending_because_its_supervisor_ended_after_the_look(
    tmp_path: Path,
) -> None:
    """The next look sees how the supervisor ended: it writes that before it lets go of its lock."""
    gone = process.Pid(2**22 + 1, 0)
    state = ServiceState(gone, gone, 0, why="the engine was killed by signal 9")
    service = Service("m", tmp_path, ServiceSpec("m", URL, "m", SLEEPS), state, "stopping", None)
    assert not observe(service, "", was_supervised=True).is_ending
    assert observe(service, "", was_supervised=False).is_ending


SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
URL = "http://127.0.0.1:1"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Service]]:
    """Keepers of a process that stands in for an engine; ended after."""
    home, supervisors = Home(tmp_path / "home"), []

    def start(launch: str) -> Service:
        folder = folder_of(home, "one")
        write_spec(folder, ServiceSpec("one", URL, "one", SLEEPS, launch=launch, expected_bytes=70 * MIB))
        (folder / "report.json").write_text('{"stands": "in"}')
        start_supervisor(folder)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            found = load(home, "one")
            if found and found.phase == "ready" and found.state:
                supervisors.append(found.state.supervisor)
                return found
            time.sleep(0.05)
        raise AssertionError("it is not ready")

    yield start
    for keeper in supervisors:
        process.send(keeper, signal.SIGTERM)


def watched(tmp_path: Path, launch: str = "as the file says") -> tuple[Bench, Health]:
    one = replace(CONFIG.models[0], identity=identity(launch, URL, False))
    it = bench(tmp_path, replace(CONFIG, models=(one, CONFIG.models[1])))
    return it, Health(it.executor, ProcessLoader(), Home(tmp_path / "home"))


async def until(health: Health, is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not is_so():
            await health.check_services()
            await asyncio.sleep(0.05)


async def test_what_runs_already_is_found(serve: Callable[[str], Service], tmp_path: Path) -> None:
    serve("as the file says")
    it, health = watched(tmp_path)
    await health.check_services()
    assert it.executor.phase("one") == "ready"
    up = it.executor.running("one")
    assert up and (up.url, up.bytes, up.bytes_are) == (URL, 70 * MIB, "planned")
    it.executor.handle(RequestArrived(1, "one"))
    assert it.listener.granted_ == [(1, "one")]
    await it.executor.close(keep=False)
    assert it.calls == [], "who did not start it does not stop it"


@pytest.mark.parametrize(
    ("launch", "text"),
    [
        ("as the file says", "one was already running, started by an earlier gateway"),
        ("otherwise", "it was started outside the gateway"),
    ],
)
async def test_a_restarted_gateway_recognizes_its_models(
    launch: str, text: str, serve: Callable[[str], Service], tmp_path: Path
) -> None:
    OwnServices(Home(tmp_path / "home")).add("one", identity(launch, URL, False))
    serve("as the file says")
    it, health = watched(tmp_path)
    await health.check_services()
    assert it.listener.notes == [("one", text)]
    await it.executor.close(keep=True)


async def test_an_engine_that_dies_restarts_by_itself_or_fails(
    serve: Callable[[str], Service], tmp_path: Path
) -> None:
    service = serve("as the file says")
    it, health = watched(tmp_path)
    await health.check_services()
    assert service.state and service.state.engine
    process.send(service.state.engine, signal.SIGKILL)
    await until(health, lambda: it.executor.phase("one") == "loading")
    assert it.executor.running("one") is None
    assert any("restarting by itself" in text for _, text in it.listener.notes)
    it.executor.handle(RequestArrived(1, "one"))
    assert not it.listener.granted_ and not it.listener.rejected_, "who asks meanwhile waits"
    process.send(service.state.supervisor, signal.SIGTERM)
    await until(health, lambda: bool(it.listener.rejected_))
    assert "stopped by hand" in it.listener.rejected_[0].why
    await it.listener.until(lambda: it.executor.phase("one") == "off")
    assert it.calls == ["unload one"], "which waits for its memory, however far it had come when it was seen"
    await it.executor.close(keep=False)


async def test_down_typed_by_hand_is_respected(serve: Callable[[str], Service], tmp_path: Path) -> None:
    serve("as the file says")
    it, health = watched(tmp_path)
    await health.check_services()
    down = await asyncio.to_thread(run_firesteel, tmp_path / "home", "down", "one")
    assert down.code == 0, down.err
    await until(health, lambda: it.executor.phase("one") == "off")
    for _ in range(3):
        await health.check_services()
    assert "load one" not in it.calls, "nobody asked for it"
    await it.executor.close(keep=False)


async def test_another_under_the_name_is_shown_and_stopped_before_ours_is_loaded(
    serve: Callable[[str], Service], tmp_path: Path
) -> None:
    service = serve("otherwise")
    it, health = watched(tmp_path)
    await health.check_services()
    assert it.executor.phase("one") == "off"
    assert "differs from the file" in it.executor.views()[0].note
    assert service.phase == "ready" and it.calls == [], "left alone until its place is needed"
    it.executor.handle(RequestArrived(1, "one"))
    await it.listener.until(lambda: it.listener.granted_)
    assert it.calls == ["unload one", "load one"]
    await it.executor.close(keep=True)


async def test_a_child_that_breaks_leaves_nothing_half(
    serve: Callable[[str], Service], tmp_path: Path
) -> None:
    """As if the loader had started it, and died before it was proved."""
    serve("as the file says")
    it, _ = watched(tmp_path)
    it.behave("load one", "sys.exit(1)")
    it.executor.handle(RequestArrived(1, "one"))
    await it.listener.until(lambda: it.listener.rejected_)
    assert it.calls == ["load one", "unload one"]
    await it.executor.close(keep=True)


async def test_what_somebody_put_in_our_place_is_not_ours_to_stop(
    serve: Callable[[str], Service], tmp_path: Path
) -> None:
    service = serve("as the file says")
    it, health = watched(tmp_path)
    await health.check_services()
    write_spec(service.folder, replace(service.spec, launch="otherwise"))
    it.executor.handle(LoadRequested("one", False))
    await it.listener.until(lambda: it.executor.phase("one") == "off")
    assert it.calls == []
    await it.executor.close(keep=True)


async def test_a_look_from_before_a_load_counts_for_nothing(tmp_path: Path) -> None:
    it, health = watched(tmp_path)
    looking = asyncio.ensure_future(health.check_services())
    await asyncio.sleep(0)  # it has asked, and has no answer yet
    it.executor.handle(RequestArrived(1, "one"))
    await looking
    await it.listener.until(lambda: it.listener.granted_ or it.listener.rejected_)
    assert it.listener.granted_ == [(1, "one")]
    await it.executor.close(keep=True)


async def test_what_a_start_took_is_read_without_the_planner(
    serve: Callable[[str], Service], tmp_path: Path
) -> None:
    service = serve("0" * 32)
    home = Home(tmp_path / "home")
    for key, size in (("1" * 32, 1), ("0" * 32, 5 * MIB)):
        save_measured_memory(home, MeasuredMemory(key, "vllm", None, size, "2026-11-15"))
    assert measured(home, service) == (5 * MIB, "process")
    boxed = replace(service, spec=replace(service.spec, stop=("docker", "stop", "one")))
    assert measured(home, boxed) == (5 * MIB, "host")
    for broken in (
        "",
        "[]",
        "{}",
        "[5]",
        "[" * 100_000,
        '[{"key": "%s", "process_bytes": "x"}]' % ("0" * 32),
        '[{"key": "%s", "process_bytes": 5}]' % ("0" * 32),
    ):
        (home.root / "measured_memory.json").write_text(broken)
        assert measured(home, service) == (70 * MIB, "planned")
    assert is_identity_of(identity("0" * 32, URL, False), service.spec)
    assert is_identity_of(identity("0" * 32, "", False), service.spec), "any port will do"
    assert not is_identity_of(identity("0" * 32, "http://127.0.0.1:2", False), service.spec)


# --- servers at a URL ---


class Server:
    """A real one, that answers with the status that it is told."""

    def __init__(self, statuses: dict[str, str]) -> None:
        self.statuses, self.asked = statuses, list[str]()
        self.url = ""

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        self.asked.append(path)
        writer.write(self.statuses.get(path, "HTTP/1.1 404 Not Found\r\n\r\n").encode())
        writer.close()


OK = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("statuses", "is_good"),
    [
        ({"/health": OK}, True),
        ({"/v1/models": OK}, True),
        ({"/v1/models": "HTTP/1.1 401 Who?\r\n\r\n"}, True),
        ({"/health": "HTTP/1.1 503 Loading\r\n\r\n", "/v1/models": OK}, False),
        ({}, False),
        ({"/health": "SSH-2.0\r\n"}, False),
        ({"/health": "HTTP/1.1 nonsense\r\n\r\n"}, False),
        ({"/health": "x" * 100_000}, False),
        ({"/health": ""}, False),
    ],
)
async def test_who_answers(statuses: dict[str, str], is_good: bool) -> None:
    async with Server(statuses) as server:
        assert await is_answering(server.url) is is_good
    assert not await is_answering(server.url), "nobody is there any more"


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BAD = "HTTP/1.1 400 Bad Request\r\n\r\n"


@pytest.mark.parametrize(
    ("statuses", "apis"),
    [
        ({CHAT: BAD}, ("chat",)),
        ({CHAT: BAD, RESPONSES: "HTTP/1.1 422 No\r\n\r\n"}, ("chat", "responses")),
        ({MESSAGES: BAD, CHAT: "HTTP/1.1 405 Not That\r\n\r\n"}, ("messages",)),
        ({CHAT: BAD, MESSAGES: BAD, RESPONSES: BAD}, ()),
        ({}, ()),
        ({CHAT: BAD, MESSAGES: "HTTP/1.1 401 Who?\r\n\r\n"}, ()),
        ({CHAT: BAD, MESSAGES: "HTTP/1.1 503 Loading\r\n\r\n"}, ()),
        ({CHAT: BAD, MESSAGES: ""}, ()),
    ],
)
async def test_what_a_server_speaks(statuses: dict[str, str], apis: tuple[str, ...]) -> None:
    async with Server(statuses) as server:
        assert await find_apis(server.url, b"Authorization: Bearer k\r\n") == apis
        assert sorted(server.asked) == sorted((CHAT, MESSAGES, RESPONSES))


def json_of(value: object) -> str:
    text = json.dumps(value)
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}"


@pytest.mark.parametrize(
    ("statuses", "context"),
    [
        ({"/v1/models": json_of({"data": [{"id": "x"}, {"id": "m", "max_model_len": 131072}]})}, 131072),
        ({"/v1/models": json_of({"data": [{"id": "file.gguf", "context_length": 4096}]})}, 4096),
        ({"/v1/models": json_of({"data": [{"id": "m", "meta": {"n_ctx": 8192, "n_ctx_train": 1}}]})}, 8192),
        ({"/props": json_of({"default_generation_settings": {"n_ctx": 2048}})}, 2048),
        ({"/v1/models": json_of({"data": [{"id": "x", "max_model_len": 1}, {"id": "y"}]})}, None),
        ({"/v1/models": json_of({"data": [{"id": "m", "max_model_len": "many"}]})}, None),
        ({"/v1/models": json_of([]), "/props": "HTTP/1.1 200 OK\r\n\r\n{"}, None),
        ({}, None),
    ],
)
async def test_the_context_that_a_server_says(statuses: dict[str, str], context: int | None) -> None:
    async with Server(statuses) as server:
        assert await find_context(server.url, "m") == context
    assert await find_context(server.url, "m") is None, "nobody is there any more"


async def test_the_context_of_an_outside_model_is_shown(tmp_path: Path) -> None:
    said = json_of({"data": [{"id": "m", "max_model_len": 131072}]})
    async with Server({"/health": OK, "/v1/models": said, CHAT: BAD}) as server:
        for limit, shown in ((None, 131072), (65536, 65536)):
            config = outside(server.url)
            model = replace(config.models[0], parameters=ModelParameters(context=limit))
            it = bench(tmp_path, replace(config, models=(model,)))
            health = Health(it.executor, ProcessLoader(), Home(tmp_path / "home"))
            for _ in range(3):
                await health.check_outside()
            (view,) = it.executor.views()
            assert view.config.context == shown
        assert server.asked.count("/v1/models") == 2, "once each time that it comes up"


async def test_what_an_outside_server_speaks_is_asked_once_each_time_that_it_comes_up(tmp_path: Path) -> None:
    async with Server({"/health": OK, CHAT: BAD}) as server:
        it = bench(tmp_path, outside(server.url))
        health = Health(it.executor, ProcessLoader(), Home(tmp_path / "home"))
        for _ in range(3):
            await health.check_outside()
        assert server.asked.count(CHAT) == 1 and it.executor.apis == {server.url: ("chat",)}
        model = it.executor.config.models[0]
        (endpoint,) = model_endpoints(model, None, it.executor.apis).endpoints
        assert endpoint.speaks == ("chat",)
        (stated,) = model_endpoints(replace(model, speaks=("messages",)), None, it.executor.apis).endpoints
        assert stated.speaks == ("messages",), "what the file says goes first"
        answers = dict(server.statuses)
        server.statuses.clear()
        for _ in range(2):
            await health.check_outside()
        server.statuses |= answers
        await health.check_outside()
        assert server.asked.count(CHAT) == 2, "it may be another program now"
    await it.executor.close(keep=True)


def outside(*urls: str) -> ServiceConfig:
    return replace(CONFIG, models=(ModelConfig("far", "1", urls, 0, is_outside=True, start="start it"),))


async def test_a_server_that_goes_and_comes_back(tmp_path: Path) -> None:
    def ask(it: Bench, request: Any) -> str:
        it.executor.handle(RequestArrived(request, "far"))
        return "granted" if (request, "far") in it.listener.granted_ else it.listener.rejected_[-1].why

    async with Server({"/health": OK}) as first, Server({"/health": OK}) as second:
        it = bench(tmp_path, outside(first.url, second.url))
        health = Health(it.executor, ProcessLoader(), Home(tmp_path / "home"))
        await health.check_outside()
        assert ask(it, 1) == "granted" and health.replica_health("far") == (True, True)
        first.statuses.clear()
        await health.check_outside()
        assert health.replica_health("far") == (True, True), "one miss is none"
        await health.check_outside()
        assert health.replica_health("far") == (False, True) and ask(it, 2) == "granted"
        second.statuses.clear()
        for _ in range(2):
            await health.check_outside()
        assert "does not answer" in ask(it, 3) and first.url in it.listener.rejected_[-1].why
        assert it.listener.rejected_[-1].why.endswith("; start it")
        second.statuses["/health"] = OK
        await health.check_outside()
        assert ask(it, 4) == "granted" and health.replica_health("far") == (False, True)
    await it.executor.close(keep=True)


async def test_a_server_that_was_never_there(tmp_path: Path, free_port: int) -> None:
    it = bench(tmp_path, outside(f"http://127.0.0.1:{free_port}"))
    health = Health(it.executor, ProcessLoader(), Home(tmp_path / "home"))
    await health.start()
    it.executor.handle(RequestArrived(1, "far"))
    assert "does not answer" in it.listener.rejected_[0].why
    await health.close()
    await it.executor.close(keep=True)
