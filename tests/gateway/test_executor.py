"""The executor over loaders that misbehave, and over the real engine."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from firesteel.edge.home import Home
from firesteel.facts.host.hardware import Meminfo
from firesteel.gateway import executor
from firesteel.gateway.executor import Executor
from firesteel.gateway.health import Health
from firesteel.gateway.interfaces import WaitStatus
from firesteel.gateway.loader.process import LoaderTimeouts, ProcessLoader
from firesteel.gateway.scheduler.events import (
    LoadRequested,
    RejectRequest,
    RequestAbandoned,
    RequestArrived,
    RequestFinished,
    ScheduledModel,
)
from firesteel.gateway.scheduler.model_state import ModelState
from firesteel.gateway.serve import ServiceFileWatch
from firesteel.gateway.service_config import ModelConfig, Reason, ServiceConfig
from firesteel.run.service import all_services
from firesteel.units import MIB
from firesteel.values import replace

FAKE_LOADER = """\
import json, pathlib, sys, time
job, given = sys.argv[1:]
name = json.loads(given)["name"] if job == "load" else given
folder = pathlib.Path(sys.argv[0]).parent
with (folder / "calls").open("a") as calls:
    calls.write(f"{job} {name}\\n")
manner = folder / f"{job} {name}"
if manner.exists():
    exec(manner.read_text())
if job == "load":
    print(json.dumps({"doing": {"phase": "launch", "words": "half way", "eta_s": 7}}), flush=True)
    print(json.dumps({"up": {"url": "http://127.0.0.1:1", "bytes": 100 * 2**20, "bytes_are": "host"}}))
else:
    print(json.dumps({"gone": {"available_bytes": 0, "held_bytes": 0}}))
"""
"""Prints the messages of the real loader, and starts nothing."""


@dataclass
class Recorder:
    """A listener that records its calls."""

    granted_: list[tuple[Hashable, str]] = field(default_factory=list)
    rejected_: list[RejectRequest] = field(default_factory=list)
    progress: list[tuple[str, WaitStatus]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    finished_jobs: list[tuple[str, str, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def granted(self, request: Hashable, model: str) -> None:
        self.changed.set()
        if request == "bad":
            raise RuntimeError("a mistake at the front")
        self.granted_.append((request, model))

    def rejected(self, rejection: RejectRequest) -> None:
        self.rejected_.append(rejection)
        self.changed.set()

    def load_progressed(self, model: str, progress: WaitStatus) -> None:
        self.progress.append((model, progress))
        self.changed.set()

    def job_finished(self, model: str, what: str, seconds: float, why: str) -> None:
        self.finished_jobs.append((model, what, why))

    def noted(self, model: str, text: str) -> None:
        self.notes.append((model, text))
        self.changed.set()

    async def until(self, is_so: Any, limit_s: float = 300) -> None:
        async with asyncio.timeout(limit_s):
            while not is_so():
                self.changed.clear()
                try:
                    await asyncio.wait_for(self.changed.wait(), 0.1)
                except TimeoutError:
                    continue


def model_config(name: str, **more: Any) -> ModelConfig:
    size = more.pop("bytes", 60 * MIB)
    return ModelConfig(
        name, name, ("http://127.0.0.1:1",), size, ask={"name": name}, **{"load_s": 1.0, **more}
    )


CONFIG = ServiceConfig(
    "file.yaml", "127.0.0.1:1", 150 * MIB, 0, (model_config("one"), model_config("two")), min_dwell_s=0
)


@dataclass
class Bench:
    folder: Path
    listener: Recorder
    executor: Executor

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def behave(self, call: str, text: str) -> None:
        (self.folder / call).write_text(text)


def bench(folder: Path, config: ServiceConfig = CONFIG) -> Bench:
    script = folder / "fake_loader.py"
    script.write_text(FAKE_LOADER)
    loader = ProcessLoader((sys.executable, str(script)), lambda load_s: LoaderTimeouts(300, 300))
    listener = Recorder()
    return Bench(folder, listener, Executor(config, loader, listener, Home(folder / "home"), pause_s=0.01))


async def test_two_models_take_turns_where_one_fits(tmp_path: Path) -> None:
    """Planned, both would fit; what the first was measured to take leaves no room for the second."""
    it = bench(tmp_path)
    await it.executor.start()
    it.executor.handle(RequestArrived("a", "one"))
    it.executor.handle(RequestArrived("b", "two"))
    await it.listener.until(lambda: it.listener.granted_)
    assert it.listener.granted_ == [("a", "one")]
    assert ("one", WaitStatus("loading one: half way", 7)) in it.listener.progress
    up = it.executor.running("one")
    assert up and (up.url, up.bytes, up.bytes_are) == ("http://127.0.0.1:1", 100 * MIB, "host")
    assert it.calls == ["load one"], "busy is never unloaded"
    it.executor.handle(RequestFinished("a"))
    await it.listener.until(lambda: len(it.listener.granted_) == 2)
    assert it.listener.granted_[1] == ("b", "two")
    assert it.calls == ["load one", "unload one", "load two"]
    assert it.executor.running("one") is None and it.executor.phase("two") == "ready"
    await it.executor.close(keep=False)
    assert it.calls[-1] == "unload two"


async def test_a_ready_model_is_granted_before_tell_returns(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.executor.handle(RequestArrived(1, "one"))
    await it.listener.until(lambda: it.listener.granted_)
    it.executor.handle(RequestArrived(2, "one"))
    assert it.listener.granted_ == [(1, "one"), (2, "one")]
    await it.executor.close(keep=True)
    assert it.calls == ["load one"], "left running"


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        ('print(\'{"failed": {"what": "no room"}}\'); sys.exit(4)', "no room"),
        ("sys.exit(1)", "without a result"),
        ("print('nonsense')", "invalid message"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
async def test_a_load_that_fails_is_reported_once_and_does_not_loop(
    behaviour: str, expected: str, tmp_path: Path
) -> None:
    it = bench(tmp_path)
    it.behave("load one", behaviour)
    it.executor.handle(RequestArrived(1, "one"))
    it.executor.handle(RequestArrived(2, "one"))
    await it.listener.until(lambda: len(it.listener.rejected_) == 2)
    assert all(expected in each.why and each.kind == "failed" for each in it.listener.rejected_)
    it.executor.handle(RequestArrived(3, "one"))
    assert it.listener.rejected_[-1].request == 3 and it.listener.rejected_[-1].retry_after_s
    it.executor.handle(RequestArrived(4, "two"))
    await it.listener.until(lambda: it.listener.granted_)
    assert it.calls == ["load one", "load two"]
    await it.executor.close(keep=True)


async def test_a_stop_that_fails_is_tried_again_and_ends(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.behave("unload one", "sys.exit('it does not go')")
    it.executor.handle(RequestArrived(1, "one"))
    await it.listener.until(lambda: it.listener.granted_)
    it.executor.handle(RequestFinished(1))
    it.executor.handle(RequestArrived(2, "two"))
    await it.listener.until(lambda: len(it.listener.granted_) == 2)
    assert it.calls == ["load one", *["unload one"] * 3, "load two"]
    assert sum("does not stop" in text for _, text in it.listener.notes) == 3
    await it.executor.close(keep=True)


async def test_a_mistake_in_the_listener_costs_one_request(tmp_path: Path) -> None:
    it = bench(tmp_path)
    seen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, what: seen.append(what["message"]))
    for request in ("a", "bad", "c"):
        it.executor.handle(RequestArrived(request, "one"))
    await it.listener.until(lambda: len(it.listener.granted_) == 2)
    assert it.listener.granted_ == [("a", "one"), ("c", "one")]
    assert len(seen) == 1
    await it.executor.close(keep=True)


async def test_what_cannot_be_served_says_why(tmp_path: Path) -> None:
    odd = model_config("odd", why_not=Reason("there is no recipe `x`", "firesteel models"))
    it = bench(tmp_path, replace(CONFIG, models=(*CONFIG.models, odd)))
    it.executor.handle(RequestArrived(1, "odd"))
    it.executor.handle(RequestArrived(2, "none"))
    assert it.listener.rejected_[0].why == "there is no recipe `x`. Try: firesteel models"
    assert it.listener.rejected_[1].kind == "unknown"
    assert [each.status is None for each in it.executor.views()] == [False, False, True]
    await it.executor.close(keep=True)


async def test_what_is_preloaded_and_pinned_needs_no_request(tmp_path: Path) -> None:
    small = {"bytes": MIB}
    models = (model_config("one", preload=True, **small), model_config("two", pinned=True, **small))
    it = bench(tmp_path, replace(CONFIG, models=models, ceiling_bytes=1000 * MIB))
    await it.executor.start()
    await it.listener.until(lambda: it.executor.running("one") and it.executor.running("two"))
    assert sorted(it.calls) == ["load one", "load two"]
    await it.executor.close(keep=True)


async def test_closing_takes_back_a_load_that_is_under_way(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.behave("load one", 'print(\'{"doing": {"phase": "launch"}}\', flush=True); time.sleep(600)')
    it.executor.handle(RequestArrived(1, "one"))
    await it.listener.until(lambda: len(it.listener.progress) > 1)
    it.executor.handle(RequestAbandoned(1))
    async with asyncio.timeout(120):
        await it.executor.close(keep=False)
    assert it.calls == ["load one"] and not it.listener.granted_


async def test_a_changed_file_touches_only_what_is_different(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.executor.handle(RequestArrived(1, "one"))
    await it.listener.until(lambda: it.listener.granted_)
    other = replace(model_config("two"), identity="another", context=5)
    it.executor.change(replace(CONFIG, models=(model_config("one"), other, model_config("three"))))
    assert it.executor.phase("one") == "ready"
    assert [each.config.name for each in it.executor.views()] == ["one", "two", "three"]
    it.executor.change(replace(CONFIG, models=(replace(model_config("one"), identity="new"), other)))
    assert it.calls == ["load one"], "stale, and busy"
    it.executor.handle(RequestFinished(1))
    it.executor.handle(RequestArrived(2, "one"))
    await it.listener.until(lambda: len(it.listener.granted_) == 2)
    assert it.calls == ["load one", "unload one", "load one"]
    await it.executor.close(keep=True)


async def test_a_waiting_request_looks_at_two_models_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of thousands behind a hundred models: what one of them waits for is told without a list."""
    models = tuple(model_config(f"m{number}") for number in range(50))
    it = bench(tmp_path, replace(CONFIG, models=models))
    looked_at: list[str] = []
    status = ModelState.status

    def record(state: ModelState, now_s: float) -> ScheduledModel:
        looked_at.append(state.name)
        return status(state, now_s)

    monkeypatch.setattr(ModelState, "status", record)
    it.behave("load m0", "time.sleep(60)")
    await it.executor.start()
    it.executor.handle(RequestArrived(1, "m0"))
    looked_at.clear()
    own, loading = it.executor.view("m7"), it.executor.loading()
    assert own and loading and (own.config.name, loading.config.name) == ("m7", "m0")
    assert loading.status and loading.status.phase == "loading"
    assert set(looked_at) <= {"m0", "m7"}
    assert it.executor.view("unknown") is None
    await it.executor.close(keep=True)


async def test_a_load_by_name_begins_when_another_program_frees_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a stop by the guard. No request waits, and no job ends."""
    free = [10 * MIB]
    monkeypatch.setattr(executor, "meminfo", lambda: Meminfo(1024 * MIB, free[0], free[0]))
    monkeypatch.setattr(executor, "_MEMORY_READING_S", 0.01)
    it = bench(tmp_path)
    await it.executor.start()
    it.executor.handle(LoadRequested("one", True))
    assert it.executor.phase("one") == "off"
    free[0] = 1000 * MIB
    await it.listener.until(lambda: it.executor.running("one"), limit_s=60)
    await it.executor.close(keep=True)


async def test_by_name(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.executor.handle(LoadRequested("one", True))
    await it.listener.until(lambda: it.executor.running("one"))
    it.executor.handle(LoadRequested("one", False))
    await it.listener.until(lambda: it.executor.phase("one") == "off")
    assert it.calls == ["load one", "unload one"]
    await it.executor.close(keep=True)


def test_the_process_that_carries_bytes_stays_light() -> None:
    code = (
        "import sys, json\n"
        "from firesteel.gateway import discovery, dispatcher, executor, health, jobs, serve\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = ("pydantic", "yaml", "rich", "aiohttp", "huggingface_hub", "click", "packaging")
    packages = ("planner", "catalog", "rules", "reads", "render", "service_file")
    forbidden = {*heavy, *(f"firesteel.{package}" for package in packages)}
    loaded = set(json.loads(out))
    assert not forbidden & loaded
    of_engines = {name for name in loaded if name.startswith("firesteel.engines.")}
    # The parser of metrics, and what it reads for the curves: neither imports anything else of the package.
    assert of_engines == {"firesteel.engines.metrics"}


FILE = """\
memory: {{ceiling: 500MiB}}
queue: {{min_dwell: 1s, max_wait: 20s}}
models:
  one: {{recipe: smollm2, context: 2048, port: {}}}
  two: {{recipe: smollm2, context: {}, port: {}}}
"""


async def _stream(url: str, began: asyncio.Event) -> bytes:
    """A real answer of some length, byte by byte as it comes."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answer = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 400, "stream": True}
    body = json.dumps({**answer, "ignore_eos": True}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + body)
    found = b""
    while part := await reader.read(65536):
        found += part
        if b"data: " in found:
            began.set()
    writer.close()
    return found


async def _running(home: Home, seen: set[tuple[str, ...]]) -> None:
    while True:
        alive = [each.name for each in all_services(home) if each.phase != "dead"]
        seen.add(tuple(alive))
        await asyncio.sleep(0.1)


async def test_a_load_reports_its_duration_and_clears_the_note(tmp_path: Path) -> None:
    it = bench(tmp_path)
    up = {"up": {"url": "http://127.0.0.1:1", "bytes": 5, "load_s": 12.5}}
    it.behave("load one", f"print({json.dumps(json.dumps(up))}); time.sleep(0.2); sys.exit()")
    it.executor.note("one", "it was stopped by hand")
    it.executor.handle(RequestArrived("a", "one"))
    await asyncio.sleep(0)
    assert it.executor.views()[0].note == ""
    await it.listener.until(lambda: it.listener.granted_)
    assert [each.config.load_s for each in it.executor.views()] == [12.5, 1.0]
    await it.executor.close(keep=True)


@pytest.mark.slow  # tests/gateway/test_two_models.py has the same through the whole gateway
@pytest.mark.real
async def test_two_real_engines_take_turns_and_a_stream_outlives_a_change(
    engine_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(engine_home.root))
    ports = _free_ports(2)
    path = tmp_path / "service.yaml"
    path.write_text(FILE.format(ports[0], 4096, ports[1]))
    loader, listener = ProcessLoader(), Recorder()
    executor = Executor(await loader.read(str(path)), loader, listener, engine_home)
    health = Health(executor, loader, engine_home)
    watch = ServiceFileWatch(str(path), loader, executor.change, lambda why: pytest.fail(str(why)))
    seen: set[tuple[str, ...]] = set()
    looking = asyncio.ensure_future(_running(engine_home, seen))
    await health.start()
    await executor.start()
    watch.start()

    executor.handle(RequestArrived(1, "one"))
    await listener.until(lambda: listener.granted_, 120)
    up = executor.running("one")
    assert up and up.url == f"http://127.0.0.1:{ports[0]}" and up.bytes_are == "process"
    planned = executor.config.by_name["one"].bytes
    assert up.bytes and 0.7 * planned < up.bytes < 1.3 * planned
    load_progressed = " ".join(progress.text for _, progress in listener.progress)
    assert "loading one: " in load_progressed and "proving one: " in load_progressed

    began = asyncio.Event()
    stream = asyncio.ensure_future(_stream(up.url, began))
    await began.wait()
    path.write_text(FILE.format(ports[0], 3072, ports[1]))
    executor.handle(RequestArrived(2, "two"))
    await listener.until(lambda: executor.config.by_name["two"].context == 3072, 60)
    assert executor.phase("one") == "ready", "untouched, and busy"
    assert b"data: [DONE]" in await stream
    executor.handle(RequestFinished(1))
    await listener.until(lambda: len(listener.granted_) == 2, 120)
    assert listener.granted_ == [(1, "one"), (2, "two")]
    assert executor.phase("one") == "off" and executor.running("one") is None
    assert seen <= {(), ("one",), ("two",)}, "never both"

    await watch.close()
    await health.close()
    await executor.close(keep=True)
    looking.cancel()
    again = Executor(await loader.read(str(path)), loader, listener, engine_home)
    await Health(again, loader, engine_home).check_services()
    assert (again.phase("one"), again.phase("two")) == ("off", "ready"), "what was left running is found"
    await again.close(keep=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


async def test_a_load_is_cancelled_while_it_runs_and_the_next_one_begins(tmp_path: Path) -> None:
    """The API answered 202 and finished the load first."""
    it = bench(tmp_path, replace(CONFIG, ceiling_bytes=100 * MIB))
    it.behave(
        "load one",
        "print(json.dumps({'doing': {'phase': 'launch', 'words': 'x', 'eta_s': 1}}), flush=True)\n"
        "sys.stdin.read()\n(folder / 'taken back').touch()\nsys.exit(130)",
    )
    await it.executor.start()
    it.executor.handle(RequestArrived("a", "one"))
    it.executor.handle(RequestArrived("b", "two"))
    await it.listener.until(lambda: it.listener.progress)
    it.executor.handle(LoadRequested("one", False, cancels=True))
    assert [each.kind for each in it.listener.rejected_] == ["cancelled"]
    await it.listener.until(lambda: it.listener.granted_)
    assert it.listener.granted_ == [("b", "two")] and (tmp_path / "taken back").exists()
    assert it.calls == ["load one", "unload one", "load two"]
    assert [job[:2] for job in it.listener.finished_jobs] == [("one", "unloaded"), ("two", "loaded")]
    assert it.executor.phase("one") == "off" and it.executor.generation("one") is not None
    await it.executor.close(keep=True)


async def test_a_save_keeps_how_long_a_command_took_to_load(tmp_path: Path) -> None:
    """It was 60 s again after each."""
    command = replace(model_config("one", load_s=60.0), ask={"name": "one", "cmd": ("x",)})
    config = replace(CONFIG, models=(command,))
    it = bench(tmp_path, config)
    text = "print(json.dumps({'up': {'url': 'http://127.0.0.1:1', 'bytes': 9, 'load_s': 3.5}}))\nsys.exit()"
    it.behave("load one", text)
    await it.executor.start()
    it.executor.handle(RequestArrived(1, "one"))
    await it.listener.until(lambda: it.listener.granted_)
    it.executor.change(config)
    assert it.executor.config.by_name["one"].load_s == 3.5
    it.executor.change(replace(config, models=(replace(command, identity="other"),)))
    assert it.executor.config.by_name["one"].load_s == 60.0
    await it.executor.close(keep=True)
