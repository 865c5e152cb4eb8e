"""Models that are a command of the user's own: started on demand, watched, swapped and stopped like ours, and
gone with all that they started. Real processes: a small HTTP server with a child of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from firesteel.edge.home import Home
from firesteel.gateway.serve import ServeEvent, ServeOptions, serve_file
from firesteel.run.endpoints import free_port
from firesteel.run.service import load
from tests.conftest import know_bandwidth, run_firesteel

SERVER = """
import http.server, json, os, subprocess, sys
port, record = int(sys.argv[1]), sys.argv[2]
sleeps = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(time.sleep(%s))); time.sleep(3600)"
child = subprocess.Popen([sys.executable, "-c", sleeps % os.environ.get("LINGER", 0)], start_new_session=True)
with open(record, "a") as file:
    file.write(json.dumps([os.getpid(), child.pid, os.environ.get("VOICE")]) + "\\n")

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer(200 if self.path == "/ready" else 404, {})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("dies"):
            os._exit(3)
        if self.path in ("/v1/messages", "/v1/responses"):
            self.answer(404, {})
        elif self.path == "/v1/chat/completions":
            message = {"role": "assistant", "content": body["messages"][0]["content"] if body else ""}
            self.answer(200, {"choices": [{"message": message, "finish_reason": "stop"}]})
        else:
            self.answer(200, {"heard": body, "path": self.path})
    def answer(self, status, fields):
        text = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *arguments):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
PATIENCE_S = 90


@dataclass
class Served:
    url: str
    events: list[ServeEvent]
    record: Path
    file: Path

    def processes(self) -> list[list[Any]]:
        """Of each start: the server, its child, and its variable."""
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    async def ask(self, model: str, path: str = "/v1/audio/speech", **fields: Any) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{self.url}{path}",
                json={"model": model, **fields},
                timeout=aiohttp.ClientTimeout(PATIENCE_S),
            ) as response,
        ):
            return response.status, await response.json()

    async def state(self, model: str) -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/v1/models/{model}") as response,
        ):
            return str((await response.json())["state"])


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(is_so: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def served(folder: Path, models: str, *, keeps: bool = False) -> AsyncIterator[Served]:
    script, record, file = folder / "server.py", folder / "record", folder / "service.yaml"
    script.write_text(SERVER)
    record.write_text("")
    command = f"[{sys.executable}, {script}, '${{PORT}}', {record}]"
    file.write_text(
        f"memory: {{ceiling: 100MiB}}\nqueue: {{min_dwell: 1s}}\nmodels:\n{models}".replace("CMD", command)
    )
    home, ends, listens = Home(folder / "home"), asyncio.Event(), asyncio.Event()
    know_bandwidth(home)
    events: list[ServeEvent] = []
    options = ServeOptions(file, listen="127.0.0.1:0", keep_models=keeps)

    async def follow() -> None:
        async for event in serve_file(options, home, ends):
            events.append(event)
            if event.kind == "listening":
                listens.set()

    task = asyncio.ensure_future(follow())
    try:
        async with asyncio.timeout(PATIENCE_S):
            waiting = asyncio.ensure_future(listens.wait())
            await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if task.done():
            task.result()
        yield Served(next(each.url for each in events if each.url), events, record, file)
    finally:
        ends.set()
        await asyncio.wait_for(task, PATIENCE_S)
        if not keeps:
            run_firesteel(home.root, "down", "--all")


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loader's child process reads it."""
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))


def ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


async def test_two_commands_take_turns_and_leave_nothing(tmp_path: Path) -> None:
    one, two = ports(2)
    text = (
        f"  voice: {{cmd: CMD, health: /ready, memory: 60MiB, env: {{VOICE: 'p${{PORT}}'}}, port: {one}}}\n"
        f"  whisper: {{cmd: CMD, health: /ready, memory: 60MiB, port: {two}, model: large,"
        " upstream: true}\n"
    )
    async with served(tmp_path, text) as it:
        status, answer = await it.ask("voice", input="hello")
        assert (status, answer) == (
            200, {"heard": {"model": "voice", "input": "hello"}, "path": "/v1/audio/speech"},
        )  # fmt: skip
        (server, child, variable), *more = it.processes()
        assert variable == f"p{one}" and not more
        assert exists(server) and exists(child) and await it.state("voice") == "ready"

        hello = [{"role": "user", "content": "hello"}]
        status, answer = await it.ask("voice", "/v1/messages", messages=hello, max_tokens=9)
        assert status == 200 and answer["content"] == [{"type": "text", "text": "hello"}], (
            "it has no Messages, which was found out at its start, so the request was translated"
        )

        status, answer = await it.ask("whisper", input="a sound")
        assert status == 200 and answer["heard"]["model"] == "large", "by the server's own name"
        status, answer = await it.ask("whisper", "/upstream/whisper/prompt?x=1", n=1)
        assert (status, answer["path"]) == (200, "/prompt?x=1") and answer["heard"]["model"] == "whisper"
        status, answer = await it.ask("voice", "/upstream/voice/prompt")
        assert status == 404 and "upstream: true" in answer["error"]["message"]
        assert (await it.ask("x", "/upstream/nobody/prompt"))[0] == 404
        assert not exists(server) and not exists(child), "its tree has gone before the other started"
        second = it.processes()[1]
        assert await it.state("voice") == "off"
    await until(lambda: not any(exists(pid) for pid in second[:2]))


async def test_one_that_crashes_comes_back_and_its_child_is_gone(tmp_path: Path) -> None:
    # The child takes a while to end, as an engine's worker may: longer than the pause between health checks.
    options = f"env: {{LINGER: '2'}}, port: {ports(1)[0]}"
    text = f"  voice: {{cmd: CMD, health: /ready, memory: 60MiB, {options}}}\n"
    async with served(tmp_path, text) as it:
        assert (await it.ask("voice"))[0] == 200
        (server, child, _) = it.processes()[0]
        os.kill(server, signal.SIGKILL)
        # Its reaper still waits for the child, so it is still called ready, and nobody listens any more.
        status, answer = await it.ask("voice", n=2)
        assert status == 200, f"the request waits for it: {answer}"
        assert len(it.processes()) == 2 and not exists(child)


async def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    text = f"  voice: {{cmd: '/no/such/program ${{PORT}}', memory: 60MiB, port: {ports(1)[0]}}}\n"
    async with served(tmp_path, text) as it:
        status, answer = await it.ask("voice")
        assert status in (422, 503) and "exited with code 127" in answer["error"]["message"], answer
        assert await it.state("voice") == "off"


VOICE = "  voice: {cmd: CMD, health: /ready, memory: 60MiB, env: {VOICE: 'p${PORT}'}}\n"
WHISPER = "  whisper: {cmd: CMD, health: /ready, memory: 60MiB}\n"


async def test_a_port_is_taken_when_a_model_loads(tmp_path: Path) -> None:
    """Ports went by the place in the file: one that another program had made the model fail."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken = free_port(Home(tmp_path / "home"))
        other.bind(("127.0.0.1", taken))
        other.listen()
        async with served(tmp_path, VOICE) as it:
            status, answer = await it.ask("voice")
            assert status == 200, answer
            assert int(it.processes()[0][2][1:]) != taken


async def test_an_edit_above_a_model_does_not_reload_it_and_an_adopted_one_is_found(tmp_path: Path) -> None:
    """Every model below a new one was stopped and loaded again, also when it was pinned."""
    async with served(tmp_path, VOICE, keeps=True) as it:
        assert (await it.ask("voice"))[0] == 200
        text = it.file.read_text()
        it.file.write_text(text.replace("models:\n", "models:\n  above: {cmd: 'x ${PORT}', memory: 9MiB}\n"))
        await until(lambda: any(event.kind == "file" for event in it.events))
        assert (await it.ask("voice"))[0] == 200 and len(it.processes()) == 1
        (server, _, _) = it.processes()[0]
    async with served(tmp_path, WHISPER + VOICE) as it:
        assert exists(server) and await it.state("voice") == "ready"
        assert (await it.ask("voice"))[0] == 200 and not it.processes()


async def test_a_load_is_cancelled_while_its_engine_starts(tmp_path: Path) -> None:
    """Unload was grey, and the API finished the load first; everything waited behind it."""
    program = "'import time; time.sleep(600)'"
    slow = f"  slow: {{cmd: [{sys.executable}, -c, {program}, '${{PORT}}'], memory: 60MiB}}\n"
    async with served(tmp_path, slow + VOICE) as it:
        home = Home(tmp_path / "home")
        waiting = asyncio.ensure_future(it.ask("slow"))
        await until(lambda: (service := load(home, "slow")) and service.state and service.state.engine)
        other = asyncio.ensure_future(it.ask("voice"))
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{it.url}/api/models/slow/unload") as response,
        ):
            assert response.status == 202
        status, answer = await waiting
        assert status == 422 and answer["error"]["code"] == "load_cancelled", answer
        assert (await other)[0] == 200, "there was no room for both"
        service = load(home, "slow")
        assert service is None or service.phase == "dead"
        assert await it.state("slow") == "off"
