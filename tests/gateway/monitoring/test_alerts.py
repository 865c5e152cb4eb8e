"""Alerts of a gateway: what is one, and that a webhook and a command get it. Real HTTP and processes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from firesteel.facts.host.hardware import Meminfo
from firesteel.facts.host.memory import MemorySample
from firesteel.gateway.monitoring import alerts
from firesteel.gateway.monitoring.alerts import Alert, AlertKey, AlertSender, AlertWatch, conditions, deliver
from firesteel.gateway.periodic import BackgroundTasks
from firesteel.gateway.service_config import ServiceConfig
from firesteel.gateway.state import GatewayState, MemoryStatus, ModelHealth, ModelStatus
from firesteel.run.supervise.guard import GuardLimits, MemoryWatch
from firesteel.service_settings import AlertEntry
from firesteel.units import GIB

FAILED = {"coder": "it does not fit"}
ALERT = Alert("load_failed", "coder", "coder did not load: it does not fit")


def state(phase: str = "ready", why: str | None = None, ok: bool = True) -> GatewayState:
    health = ModelHealth(ok, "healthy" if ok else "its KV cache is 99 % full")
    model = ModelStatus("coder", phase, why=why, health=health)
    return GatewayState(models=(model,), memory=MemoryStatus(ceiling_bytes=1))


def test_a_model_has_one_problem_the_one_that_says_most() -> None:
    guarded = {"coder": "the memory guard stopped it: 1 GiB were left"}
    off = state("off", "it does not fit", ok=False)
    found = conditions(off, FAILED, guarded, {}, 0)
    assert found == {AlertKey("guard", "coder"): f"coder: {guarded['coder']}"}
    assert conditions(off, FAILED, {}, {}, 0) == {
        AlertKey("load_failed", "coder"): "coder did not load: it does not fit"
    }
    assert conditions(state(ok=False), FAILED, {}, {}, 0) == {
        AlertKey("unhealthy", "coder"): "coder: its KV cache is 99 % full"
    }
    assert conditions(state(), {}, {}, {}, 0) == {}
    assert conditions(state("cannot", ok=False), {}, {}, {}, 0) == {}, "it never was healthy"


def test_a_disk_that_fills() -> None:
    found = conditions(state(), {}, {}, {"/a": 30 * GIB, "/b": 19 * GIB}, 20 * GIB)
    assert list(found) == [AlertKey("disk", "/b")] and "19.0 GiB left" in found[AlertKey("disk", "/b")]


def test_a_disk_counts_once(tmp_path: Path) -> None:
    """FIRESTEEL_HOME and the Hub's cache are mostly on one disk, and the second may not be there yet."""
    home = str(tmp_path)
    assert list(alerts._free_bytes((home, str(tmp_path / "huggingface" / "hub"), "/proc"))) == [home, "/proc"]


class Gateway:
    def __init__(self, folder: Path, settings: AlertEntry) -> None:
        self.state, self.said, self.now_s = state(), list[str](), 0.0
        self.config = ServiceConfig("f", "x", 1, 1, (), alerts=settings, disk_folders=(str(folder),))
        self.watch = AlertWatch(
            lambda: self.state, lambda: self.config, self.said.append, clock=lambda: self.now_s
        )

    async def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            await self.watch.check()
            self.now_s += 5


def test_the_guard_is_recognized_by_its_own_words(tmp_path: Path) -> None:
    """What the guard really says reaches the gateway as a note."""
    collapse = MemorySample(0, Meminfo(120 * GIB, GIB, GIB))
    guard = MemoryWatch(GuardLimits(8 * GIB)).after(collapse)
    assert guard.stop
    gateway = Gateway(tmp_path, AlertEntry(disk=0))
    gateway.watch.noted("coder", f"coder: {guard.stop.why}")
    gateway.state = state("loading", ok=False)
    asyncio.run(gateway.pass_time(5))
    assert gateway.said == [f"coder: {guard.stop.why}"]
    gateway.state = state()
    asyncio.run(gateway.pass_time(120))
    assert gateway.said[1:] == ["over: coder runs again after the guard had stopped it"]


async def test_loads_that_fail_until_one_succeeds(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, AlertEntry(disk=0))
    gateway.watch.job_finished("coder", "failed")
    gateway.state = state("off", "it does not fit", ok=False)
    await gateway.pass_time(600)
    gateway.state = state("loading")  # again, and for minutes: nothing is over yet
    await gateway.pass_time(600)
    assert gateway.said == ["coder did not load: it does not fit"]
    gateway.watch.job_finished("coder", "loaded")
    gateway.state = state()
    await gateway.pass_time(600)
    assert gateway.said == ["coder did not load: it does not fit", "over: coder no longer fails to load"]


async def test_a_full_disk_is_read_from_the_disk(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, AlertEntry(disk=2**62))
    await gateway.pass_time(100)
    assert len(gateway.said) == 1 and str(tmp_path) in gateway.said[0]


@asynccontextmanager
async def webhook(statuses: list[int]) -> AsyncIterator[tuple[str, list[Any]]]:
    """Answers with these statuses, the last one for ever."""
    got: list[Any] = []

    async def hook(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.Response(status=statuses.pop(0) if len(statuses) > 1 else statuses[0])

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]  # a server of asyncio
    try:
        yield f"http://127.0.0.1:{port}/hook", got
    finally:
        await runner.cleanup()


async def test_a_webhook_gets_the_alert_and_its_end() -> None:
    async with webhook([200]) as (url, got):
        assert await deliver(ALERT, AlertEntry(webhook=url)) == []
        assert await deliver(Alert("load_failed", "coder", "fine", True), AlertEntry(webhook=url)) == []
    assert [each["state"] for each in got] == ["firing", "resolved"]
    first = got[0]
    assert first["document"] == "firesteel.alert/1"
    assert (first["kind"], first["subject"]) == ("load_failed", "coder")
    assert first["text"] == first["content"] and first["text"].endswith(ALERT.text)


async def test_a_webhook_that_fails_is_tried_again() -> None:
    async with webhook([500, 502, 204]) as (url, got):
        assert await deliver(ALERT, AlertEntry(webhook=url), pause_s=0) == []
    assert len(got) == 3
    async with webhook([404]) as (url, got):
        assert await deliver(ALERT, AlertEntry(webhook=url), pause_s=0) == [
            "the alert webhook failed: it answered HTTP 404"
        ]


async def test_the_address_of_a_webhook_may_be_in_a_variable_and_is_never_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with webhook([200]) as (url, got):
        monkeypatch.setenv("ALERT_URL", url)
        assert await deliver(ALERT, AlertEntry(webhook="ALERT_URL")) == [] and len(got) == 1
    (problem,) = await deliver(ALERT, AlertEntry(webhook="ALERT_URL"), pause_s=0)
    assert "no answer" in problem and url not in problem
    monkeypatch.delenv("ALERT_URL")
    (problem,) = await deliver(ALERT, AlertEntry(webhook="ALERT_URL"), pause_s=0)
    assert "its variable is not set" in problem


async def test_a_command_gets_it_on_its_input_and_in_variables(tmp_path: Path) -> None:
    program = "import os, sys; kind = os.environ['FIRESTEEL_ALERT_KIND']; open(sys.argv[1], 'w').write("
    program += "kind + sys.stdin.read())"
    command = (sys.executable, "-c", program, str(tmp_path / "got; rm -rf"))
    assert await deliver(ALERT, AlertEntry(command=command)) == []
    got = (tmp_path / "got; rm -rf").read_text()
    assert (
        got.startswith("load_failed{") and json.loads(got.removeprefix("load_failed"))["subject"] == "coder"
    )


async def test_a_command_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('no route')")
    (problem,) = await deliver(ALERT, AlertEntry(command=command), pause_s=0)
    assert "exit code 1: no route" in problem
    (problem,) = await deliver(ALERT, AlertEntry(command=("/no/such",)), pause_s=0)
    assert "No such file" in problem
    monkeypatch.setattr("firesteel.gateway.monitoring.alerts._COMMAND_S", 0.2)
    (problem,) = await deliver(ALERT, AlertEntry(command=("sleep", "600")), pause_s=0)
    assert "was ended" in problem


async def test_a_receiver_that_hangs_holds_up_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    sender = AlertSender(lambda: AlertEntry(command=("sleep", "600")), said.append)
    tasks = BackgroundTasks()
    tasks.start(sender.run())
    for _ in range(150):
        sender.put(ALERT)
    assert said and "was dropped" in said[0]
    await tasks.close()
