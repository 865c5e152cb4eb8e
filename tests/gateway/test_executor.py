"""Carrying out what the schedule says: over children that misbehave, and over the real engine."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from firesteel.edge.files.home import Home
from firesteel.gateway.executor import Executor
from firesteel.gateway.file_watch import ServiceFileWatch
from firesteel.gateway.health import Health
from firesteel.gateway.interfaces import WaitStatus
from firesteel.gateway.loader.process import LoaderTimeouts, ProcessLoader
from firesteel.gateway.scheduler.events import (
    LoadRequested,
    RefuseRequest,
    RequestAbandoned,
    RequestArrived,
    RequestFinished,
)
from firesteel.gateway.service_config import ModelConfig, Reason, ServiceConfig
from firesteel.run import all_services
from firesteel.units import MIB

PRETEND_LOADER = """\
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
"""Says what the real one says, and starts nothing."""


@dataclass
class Recorder:
    """A front that writes down what it is told."""

    granted_: list[tuple[Hashable, str]] = field(default_factory=list)
    refused_: list[RefuseRequest] = field(default_factory=list)
    news: list[tuple[str, WaitStatus]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    swaps: list[tuple[str, str, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def granted(self, request: Hashable, model: str) -> None:
        self.changed.set()
        if request == "bad":
            raise RuntimeError("a mistake at the front")
        self.granted_.append((request, model))

    def refused(self, refusal: RefuseRequest) -> None:
        self.refused_.append(refusal)
        self.changed.set()

    def told(self, model: str, news: WaitStatus) -> None:
        self.news.append((model, news))
        self.changed.set()

    def swapped(self, model: str, what: str, seconds: float, why: str) -> None:
        self.swaps.append((model, what, why))

    def noted(self, model: str, words: str) -> None:
        self.notes.append((model, words))
        self.changed.set()

    async def until(self, is_so: Any, limit_s: float = 20) -> None:
        async with asyncio.timeout(limit_s):
            while not is_so():
                self.changed.clear()
                try:
                    await asyncio.wait_for(self.changed.wait(), 0.1)
                except TimeoutError:
                    continue


def served(name: str, **more: Any) -> ModelConfig:
    size = more.pop("bytes", 60 * MIB)
    return ModelConfig(name, name, ("http://127.0.0.1:1",), size, 1.0, ask={"name": name}, **more)


READING = ServiceConfig(
    "file.yaml", "127.0.0.1:1", 150 * MIB, 0, (served("one"), served("two")), min_dwell_s=0
)


@dataclass
class Bench:
    folder: Path
    front: Recorder
    swap: Executor

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def behave(self, call: str, text: str) -> None:
        (self.folder / call).write_text(text)


def bench(folder: Path, reading: ServiceConfig = READING) -> Bench:
    script = folder / "pretend_loader.py"
    script.write_text(PRETEND_LOADER)
    hands = ProcessLoader((sys.executable, str(script)), lambda load_s: LoaderTimeouts(20, 20))
    front = Recorder()
    return Bench(folder, front, Executor(reading, hands, front, Home(folder / "home"), pause_s=0.01))


async def test_two_models_take_turns_where_one_fits(tmp_path: Path) -> None:
    """Planned, both would fit; what the first was measured to take leaves no room for the second."""
    it = bench(tmp_path)
    await it.swap.start()
    it.swap.tell(RequestArrived("a", "one"))
    it.swap.tell(RequestArrived("b", "two"))
    await it.front.until(lambda: it.front.granted_)
    assert it.front.granted_ == [("a", "one")]
    assert ("one", WaitStatus("loading one: half way", 7)) in it.front.news
    up = it.swap.up("one")
    assert up and (up.url, up.bytes, up.bytes_are) == ("http://127.0.0.1:1", 100 * MIB, "host")
    assert it.calls == ["load one"], "busy is never unloaded"
    it.swap.tell(RequestFinished("a"))
    await it.front.until(lambda: len(it.front.granted_) == 2)
    assert it.front.granted_[1] == ("b", "two")
    assert it.calls == ["load one", "unload one", "load two"]
    assert it.swap.up("one") is None and it.swap.phase("two") == "ready"
    await it.swap.close(keep=False)
    assert it.calls[-1] == "unload two"


async def test_a_ready_model_is_granted_before_tell_returns(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.swap.tell(RequestArrived(1, "one"))
    await it.front.until(lambda: it.front.granted_)
    it.swap.tell(RequestArrived(2, "one"))
    assert it.front.granted_ == [(1, "one"), (2, "one")]
    await it.swap.close(keep=True)
    assert it.calls == ["load one"], "left running"


@pytest.mark.parametrize(
    ("manner", "says"),
    [
        ('print(\'{"failed": {"what": "no room"}}\'); sys.exit(4)', "no room"),
        ("sys.exit(1)", "without a result"),
        ("print('nonsense')", "never says"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
async def test_a_load_that_fails_is_told_once_and_does_not_loop(
    manner: str, says: str, tmp_path: Path
) -> None:
    it = bench(tmp_path)
    it.behave("load one", manner)
    it.swap.tell(RequestArrived(1, "one"))
    it.swap.tell(RequestArrived(2, "one"))
    await it.front.until(lambda: len(it.front.refused_) == 2)
    assert all(says in each.why and each.kind == "failed" for each in it.front.refused_)
    it.swap.tell(RequestArrived(3, "one"))
    assert it.front.refused_[-1].request == 3 and it.front.refused_[-1].retry_after_s
    it.swap.tell(RequestArrived(4, "two"))
    await it.front.until(lambda: it.front.granted_)
    assert it.calls == ["load one", "load two"]
    await it.swap.close(keep=True)


async def test_a_stop_that_fails_is_tried_again_and_ends(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.behave("unload one", "sys.exit('it does not go')")
    it.swap.tell(RequestArrived(1, "one"))
    await it.front.until(lambda: it.front.granted_)
    it.swap.tell(RequestFinished(1))
    it.swap.tell(RequestArrived(2, "two"))
    await it.front.until(lambda: len(it.front.granted_) == 2)
    assert it.calls == ["load one", *["unload one"] * 3, "load two"]
    assert sum("does not stop" in words for _, words in it.front.notes) == 3
    await it.swap.close(keep=True)


async def test_a_mistake_at_the_front_costs_one_request(tmp_path: Path) -> None:
    it = bench(tmp_path)
    seen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, what: seen.append(what["message"]))
    for request in ("a", "bad", "c"):
        it.swap.tell(RequestArrived(request, "one"))
    await it.front.until(lambda: len(it.front.granted_) == 2)
    assert it.front.granted_ == [("a", "one"), ("c", "one")]
    assert len(seen) == 1
    await it.swap.close(keep=True)


async def test_what_cannot_be_served_says_why(tmp_path: Path) -> None:
    odd = served("odd", why_not=Reason("there is no recipe `x`", "firesteel models"))
    it = bench(tmp_path, replace(READING, models=(*READING.models, odd)))
    it.swap.tell(RequestArrived(1, "odd"))
    it.swap.tell(RequestArrived(2, "none"))
    assert it.front.refused_[0].why == "there is no recipe `x`. To try: firesteel models"
    assert it.front.refused_[1].kind == "unknown"
    assert [each.standing is None for each in it.swap.shown()] == [False, False, True]
    await it.swap.close(keep=True)


async def test_what_is_preloaded_and_pinned_needs_nobody(tmp_path: Path) -> None:
    small = {"bytes": MIB}
    models = (served("one", preload=True, **small), served("two", pinned=True, **small))
    it = bench(tmp_path, replace(READING, models=models, ceiling_bytes=1000 * MIB))
    await it.swap.start()
    await it.front.until(lambda: it.swap.up("one") and it.swap.up("two"))
    assert sorted(it.calls) == ["load one", "load two"]
    await it.swap.close(keep=True)


async def test_closing_takes_back_a_load_that_is_under_way(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.behave("load one", 'print(\'{"doing": {"phase": "launch"}}\', flush=True); time.sleep(600)')
    it.swap.tell(RequestArrived(1, "one"))
    await it.front.until(lambda: len(it.front.news) > 1)
    it.swap.tell(RequestAbandoned(1))
    async with asyncio.timeout(10):
        await it.swap.close(keep=False)
    assert it.calls == ["load one"] and not it.front.granted_


async def test_a_changed_file_touches_only_what_is_different(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.swap.tell(RequestArrived(1, "one"))
    await it.front.until(lambda: it.front.granted_)
    other = replace(served("two"), identity="another", context=5)
    it.swap.change(replace(READING, models=(served("one"), other, served("three"))))
    assert it.swap.phase("one") == "ready"
    assert [each.served.name for each in it.swap.shown()] == ["one", "two", "three"]
    it.swap.change(replace(READING, models=(replace(served("one"), identity="new"), other)))
    assert it.calls == ["load one"], "stale, and busy"
    it.swap.tell(RequestFinished(1))
    it.swap.tell(RequestArrived(2, "one"))
    await it.front.until(lambda: len(it.front.granted_) == 2)
    assert it.calls == ["load one", "unload one", "load one"]
    await it.swap.close(keep=True)


async def test_by_name(tmp_path: Path) -> None:
    it = bench(tmp_path)
    it.swap.tell(LoadRequested("one", True))
    await it.front.until(lambda: it.swap.up("one"))
    it.swap.tell(LoadRequested("one", False))
    await it.front.until(lambda: it.swap.phase("one") == "off")
    assert it.calls == ["load one", "unload one"]
    await it.swap.close(keep=True)


def test_the_process_that_carries_bytes_stays_light() -> None:
    code = (
        "import sys, json\n"
        "from firesteel.gateway import children, found, health, reading, settle, swap, watch\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = ("pydantic", "yaml", "rich", "aiohttp", "huggingface_hub", "click", "packaging")
    rooms = ("planner", "catalog", "rules", "engines", "reads", "render", "sheets", "service_file")
    unwanted = {*heavy, *(f"firesteel.{room}" for room in rooms)}
    assert not unwanted & set(json.loads(out))


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
    said = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 400, "stream": True}
    body = json.dumps({**said, "ignore_eos": True}).encode()
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


async def test_a_load_says_what_it_took_and_forgets_what_was_said_before(tmp_path: Path) -> None:
    it = bench(tmp_path)
    up = {"up": {"url": "http://127.0.0.1:1", "bytes": 5, "load_s": 12.5}}
    it.behave("load one", f"print({json.dumps(json.dumps(up))}); time.sleep(0.2); sys.exit()")
    it.swap.note("one", "it was stopped by hand")
    it.swap.tell(RequestArrived("a", "one"))
    await asyncio.sleep(0)
    assert it.swap.shown()[0].note == ""
    await it.front.until(lambda: it.front.granted_)
    assert [each.served.load_s for each in it.swap.shown()] == [12.5, 1.0]
    await it.swap.close(keep=True)


@pytest.mark.slow  # tests/gateway/test_two_models.py has the same through the whole gateway
@pytest.mark.real
async def test_two_real_engines_take_turns_and_a_stream_outlives_a_change(
    engine_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(engine_home.root))
    ports = _free_ports(2)
    path = tmp_path / "service.yaml"
    path.write_text(FILE.format(ports[0], 4096, ports[1]))
    hands, front = ProcessLoader(), Recorder()
    swap = Executor(await hands.read(str(path)), hands, front, engine_home)
    health = Health(swap, hands, engine_home)
    watch = ServiceFileWatch(str(path), hands, swap.change, lambda why: pytest.fail(str(why)))
    seen: set[tuple[str, ...]] = set()
    looking = asyncio.ensure_future(_running(engine_home, seen))
    await health.start()
    await swap.start()
    watch.start()

    swap.tell(RequestArrived(1, "one"))
    await front.until(lambda: front.granted_, 120)
    up = swap.up("one")
    assert up and up.url == f"http://127.0.0.1:{ports[0]}" and up.bytes_are == "process"
    planned = swap.reading.named["one"].bytes
    assert up.bytes and 0.7 * planned < up.bytes < 1.3 * planned
    told = " ".join(news.words for _, news in front.news)
    assert "loading one: " in told and "proving one: " in told

    began = asyncio.Event()
    stream = asyncio.ensure_future(_stream(up.url, began))
    await began.wait()
    path.write_text(FILE.format(ports[0], 3072, ports[1]))
    swap.tell(RequestArrived(2, "two"))
    await front.until(lambda: swap.reading.named["two"].context == 3072, 60)
    assert swap.phase("one") == "ready", "untouched, and busy"
    assert b"data: [DONE]" in await stream
    swap.tell(RequestFinished(1))
    await front.until(lambda: len(front.granted_) == 2, 120)
    assert front.granted_ == [(1, "one"), (2, "two")]
    assert swap.phase("one") == "off" and swap.up("one") is None
    assert seen <= {(), ("one",), ("two",)}, "never both"

    await watch.close()
    await health.close()
    await swap.close(keep=True)
    looking.cancel()
    again = Executor(await hands.read(str(path)), hands, front, engine_home)
    await Health(again, hands, engine_home).look_around()
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
