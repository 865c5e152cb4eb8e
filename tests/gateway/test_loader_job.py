"""The loader as the gateway has it: a child process, lines of JSON, and an end to everything."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

import firesteel
from firesteel.edge.home import Home
from firesteel.edge.host.process import is_alive, port_is_free
from firesteel.gateway.loader.job import in_the_file
from firesteel.gateway.loader.process import LoaderFailed, LoaderTimeouts, LoadProgress, ProcessLoader
from firesteel.gateway.service_config import ModelConfig, Reason, ServiceConfig
from firesteel.launch import Ask
from firesteel.run.service import all_services
from firesteel.units import MIB

FILE = """\
listen: 127.0.0.1:8099
memory: {ceiling: 600MiB}
queue: {size: 9, max_wait: 30s}
models:
  one: {recipe: smollm2, context: 2048, ttl: 10m, preload: true, cancel: drain}
  two: {recipe: smollm2, context: 4096, port: 8812, pinned: true}
  big: {recipe: gpt-oss-120b}
  odd: {recipe: nonsense}
  far: {urls: ["http://127.0.0.1:9000/v1/", "http://127.0.0.1:9001"], memory: 100MiB, route: prefix, key: FAR}
never_together: [[one, two]]
"""
LOADER = [sys.executable, "-P", "-m", "firesteel.gateway.loader"]


def ran(home: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """With somebody at its stdin for as long as it lives."""
    child = subprocess.Popen(
        [*LOADER, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FIRESTEEL_HOME": str(home)},
    )
    with child:
        assert child.stdout
        lines = [json.loads(line) for line in child.stdout]
    return child.returncode, lines


async def test_a_file_comes_to_models_with_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))
    file = tmp_path / "service.yaml"
    file.write_text(FILE)
    reading = await ProcessLoader().read(str(file))
    assert isinstance(reading, ServiceConfig)
    assert (reading.listen, reading.ceiling_bytes) == ("127.0.0.1:8099", 600 * MIB)
    assert (reading.queue, reading.max_wait_s, reading.min_dwell_s) == (9, 30, 120)
    assert reading.never_together == (("one", "two"),)
    assert reading.keep_free_bytes == firesteel.host().keep_free_bytes
    one, two, big, odd, far = reading.models
    planned = firesteel.propose(Ask("smollm2", 2048, port=8000, name="one"), firesteel.host())[0]
    assert one.bytes == round(planned.plan.memory.needed.expected)
    assert (one.context, one.users, one.engine) == (2048, planned.plan.cache.users, "llamacpp")
    assert (one.urls, two.urls) == (("http://127.0.0.1:8000",), ("http://127.0.0.1:8812",))
    assert (one.ttl_s, one.preload, one.pinned, one.cancel) == (600, True, False, "drain")
    assert (two.ttl_s, two.preload, two.pinned, two.cancel) == (None, False, True, "cancel")
    assert one.identity != two.identity and one.bytes < two.bytes
    assert big.why_not and big.why_not.kind == "does not fit" and "room for 500.0 MiB" in big.why_not.what
    assert odd.why_not and "nothing called `nonsense`" in odd.why_not.what
    assert (one.why_not, two.why_not, far.why_not) == (None, None, None)
    assert far.urls == ("http://127.0.0.1:9000", "http://127.0.0.1:9001")
    assert (far.is_outside, far.bytes, far.route, far.key) == (True, 100 * MIB, "prefix", "FAR")


@pytest.mark.parametrize(
    ("job", "given", "expected"),
    [("read", "service.yaml", "service.yaml:2: "), ("load", '{"name": 1}', "no job")],
)
def test_what_fails_is_a_line_with_a_reason(job: str, given: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text("models:\n  a: {recipe: x, colour: red}\n")
    ended, lines = ran(tmp_path, job, str(tmp_path / given) if job == "read" else given)
    assert ended == 2
    assert expected in lines[-1]["failed"]["what"]
    assert lines[-1]["failed"]["next"]


async def test_what_does_not_fit_is_mended_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))
    file = tmp_path / "service.yaml"
    file.write_text("memory: {ceiling: 330MiB}\nmodels:\n  bb: {recipe: smollm2, context: 8192}\n")
    why = (await ProcessLoader().read(str(file))).models[0].why_not
    assert why and why.kind == "does not fit"
    found = re.fullmatch(r"`context: (\d+)` for `bb` in (.*)", why.next)
    assert found and found[2] == str(file)
    file.write_text(file.read_text().replace("8192", found[1]))
    assert (await ProcessLoader().read(str(file))).models[0].why_not is None, "and it helps"


@pytest.mark.parametrize("advice", ["--nodes 1", "firesteel models", "--context 5, or so", ""])
def test_other_advice_stays_as_it_is(advice: str) -> None:
    assert in_the_file(Reason("no", advice), "bb", "file.yaml") == Reason("no", advice)


def job(port: int) -> str:
    return json.dumps({"name": "one", "recipe": "smollm2", "context": 2048, "port": port})


@pytest.mark.real
def test_a_killed_gateway_leaves_nothing_half(quick_home: Home, free_port: int) -> None:
    """Its child is told by the end of its stdin, and takes back the engine that it had started."""
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen({LOADER!r} + ['load', sys.argv[1]], stdin=subprocess.PIPE)\n"
        "child.wait()"
    )
    gateway = subprocess.Popen(
        [sys.executable, "-c", code, job(free_port)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FIRESTEEL_HOME": str(quick_home.root)},
    )
    assert gateway.stdout
    for line in gateway.stdout:
        if '"phase": "warm"' in line:
            break
    assert not port_is_free(free_port)
    gateway.kill()
    gateway.wait()
    rest = list(gateway.stdout)  # until the child has closed it, too
    gateway.stdout.close()
    assert json.loads(rest[-1])["failed"]["kind"] == "cancelled"
    assert port_is_free(free_port) and not all_services(quick_home)


def script(tmp_path: Path, text: str) -> tuple[str, ...]:
    path = tmp_path / "loader.py"
    path.write_text(text)
    return (sys.executable, str(path))


MODEL = ModelConfig("one", "1", ("http://127.0.0.1:1",), ask={"name": "one"})


@pytest.mark.parametrize(
    ("text", "expected", "is_sudden"),
    [
        ("print('hello')", "invalid message", True),
        ("print('[]')", "invalid message", True),
        ("print('{}')", "invalid message", True),
        ("print('[' * 100000)", "invalid message", True),
        ("print('x' * 5_000_000)", "invalid message", True),
        ("print('{\"doing\": 5}')", "invalid message", True),
        ('print(\'{"up": {"bytes": 5}}\')', "invalid message", True),
        ("pass", "without a result (exit code 0)", True),
        ("import sys; sys.exit('it broke')", "(exit code 1): it broke", True),
        ("import os; os.kill(os.getpid(), 9)", "(exit code -9)", True),
        ("import time; time.sleep(600)", "was silent for too long (0.3 s)", True),
        (
            "import time\nwhile True:\n print('{\"doing\": {}}', flush=True)\n time.sleep(0.05)",
            "exceeded its total time",
            True,
        ),
        ('print(\'{"failed": {"what": "no room", "next": "wait"}}\')', "no room. Try: wait", False),
    ],
)
async def test_whatever_a_child_does_the_load_ends(
    text: str, expected: str, is_sudden: bool, tmp_path: Path
) -> None:
    limits = (
        LoaderTimeouts(0.3, 600)
        if "silent" in expected
        else LoaderTimeouts(30, 0.6 if "time" in expected else 60)
    )
    loader = ProcessLoader(script(tmp_path, text), lambda load_s: limits)
    with pytest.raises(LoaderFailed) as failed:
        await _all(loader.load(MODEL))
    assert expected in str(failed.value.why)
    assert failed.value.is_sudden is is_sudden


async def _all(messages: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in messages]


@pytest.mark.parametrize(("phase", "is_limited"), [("pull", False), ("launch", True)])
async def test_a_download_takes_the_time_that_it_takes(
    phase: str, is_limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = json.dumps({"doing": {"phase": phase}})
    up = json.dumps({"up": {"url": "http://127.0.0.1:1", "bytes": 5}})
    end = "sys.stdin.read()" if is_limited else f"time.sleep(0.5); print({up!r})"
    text = f"import sys, time\nfor _ in range(12): print({message!r}, flush=True)\n{end}\n"
    clock = itertools.count(step=100)  # so much later whenever it is read
    monkeypatch.setattr("firesteel.gateway.loader.process.uptime", lambda: next(clock))
    load = _all(ProcessLoader(script(tmp_path, text), lambda load_s: LoaderTimeouts(1000, 1000)).load(MODEL))
    if is_limited:
        with pytest.raises(LoaderFailed, match="exceeded its total time"):
            await load
    else:
        assert (await load)[-1].bytes == 5


def test_children_are_followed_on_uvloop_too(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    loader = ProcessLoader(script(tmp_path, "import sys; sys.exit('it broke')"))
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(LoaderFailed, match="exit code 1"),
    ):
        runner.run(_all(loader.load(MODEL)))


def loops() -> list[Any]:
    """As pytest's parameters; uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return [pytest.param(asyncio.new_event_loop, id="asyncio")]
    kinds = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return [pytest.param(kind, id=name) for name, kind in kinds.items()]


@pytest.mark.parametrize("new_loop", loops())
def test_a_killed_child_is_not_waited_for_while_something_holds_its_pipes(
    new_loop: Any, tmp_path: Path
) -> None:
    text = (
        "import os, subprocess, sys\n"
        "held = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(7200)'])\n"
        'print(\'{"doing": {"phase": "launch", "words": "%d"}}\' % held.pid, flush=True)\n'
        "os.kill(os.getpid(), 9)"
    )
    messages: list[Any] = []

    async def follow() -> None:
        with pytest.raises(LoaderFailed, match="exit code -9"):
            async for each in ProcessLoader(script(tmp_path, text)).load(MODEL):
                messages.append(each)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        try:
            runner.run(follow())
        finally:
            os.kill(int(messages[0].text), signal.SIGKILL)  # it held them until now


@pytest.mark.real
@pytest.mark.parametrize("new_loop", loops())
def test_a_killed_loader_is_a_failed_load_at_once(
    new_loop: Any, quick_home: Home, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keeper runs on, and holds nothing that the gateway waits for."""
    monkeypatch.setenv("FIRESTEEL_HOME", str(quick_home.root))
    model = ModelConfig("one", "", ("http://127.0.0.1:1",), ask=json.loads(job(free_port)))
    killed: list[int] = []

    async def follow() -> None:
        with pytest.raises(LoaderFailed, match="exit code -9"):
            async for messages in ProcessLoader().load(model):
                if isinstance(messages, LoadProgress) and messages.phase == "warm" and not killed:
                    killed.append(_the_loader())
                    os.kill(killed[0], signal.SIGKILL)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(follow())
    service = all_services(quick_home)[0]
    assert service.state and is_alive(service.state.supervisor)
    held = [str(each.readlink()) for each in Path(f"/proc/{service.state.supervisor.number}/fd").iterdir()]
    assert not [each for each in held if each.startswith(("socket:", "pipe:"))], held


def _the_loader() -> int:
    """By what it was started with, among our own children."""
    for task in Path("/proc/self/task").iterdir():
        for number in (task / "children").read_text().split():
            if b"firesteel.gateway.loader" in Path(f"/proc/{number}/cmdline").read_bytes():
                return int(number)
    raise AssertionError("no loader runs")


async def test_a_loader_that_is_not_there() -> None:
    with pytest.raises(LoaderFailed, match="cannot be started"):
        await _all(ProcessLoader(("/nowhere/python",)).load(MODEL))


async def test_a_cancelled_load_waits_until_its_child_has_taken_back(tmp_path: Path) -> None:
    text = (
        "import pathlib, signal, sys, time\n"
        "def back(*_):\n"
        "    time.sleep(0.3); pathlib.Path(sys.argv[0]).with_name('back').touch(); sys.exit()\n"
        "signal.signal(signal.SIGTERM, back)\n"
        "print('{\"doing\": {}}', flush=True)\n"
        "time.sleep(60)"
    )
    loader = ProcessLoader(script(tmp_path, text))
    began = asyncio.Event()

    async def follow() -> None:
        async for _ in loader.load(MODEL):
            began.set()

    task = asyncio.ensure_future(follow())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tmp_path / "back").exists()


@pytest.mark.parametrize("new_loop", loops())
@pytest.mark.parametrize("turns", range(12))
def test_a_job_ends_when_everything_on_its_loop_is_cancelled(
    turns: int, new_loop: Any, tmp_path: Path
) -> None:
    """As at the end of `asyncio.run`, however far the start of its child has come: after that many turns of
    the loop. asyncio's own subprocess waited for ever after some of them."""
    loader = ProcessLoader(script(tmp_path, "import sys; sys.stdin.read()"))
    with asyncio.Runner(loop_factory=new_loop) as runner:
        job = runner.run(_begin(_all(loader.unload("one")), turns))
        for task in asyncio.all_tasks(runner.get_loop()):
            task.cancel()
        runner.run(asyncio.wait([job], timeout=60))
        assert job.cancelled()


async def _begin(job: Coroutine[Any, Any, Any], turns: int) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(job)
    for _ in range(turns):
        await asyncio.sleep(0)
    return task


async def test_a_cancellation_in_the_moment_of_a_message_is_not_lost(tmp_path: Path) -> None:
    """`asyncio.wait_for` of Python 3.11 returns the message instead, and the load goes on to its end."""
    text = "import sys; print('{\"doing\": {}}\\n' * 2, end='', flush=True); sys.stdin.read()"
    load = ProcessLoader(script(tmp_path, text)).load(MODEL)

    async def follow() -> None:
        async for _ in load:
            if not task.cancelling():
                asyncio.get_running_loop().call_soon(task.cancel)  # while the second message is being taken

    task = asyncio.ensure_future(follow())
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
