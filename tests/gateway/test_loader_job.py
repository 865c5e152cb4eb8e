"""The loader as the gateway has it: a child process, lines of JSON, and an end to everything. What it works
out: how long a load takes, parameters by model, models on other hosts.
"""

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
from firesteel.gateway.endpoints import model_endpoints
from firesteel.gateway.loader.job import LoadClock, LoadTime, in_the_file, node_turns, read
from firesteel.gateway.loader.process import LoaderFailed, LoaderTimeouts, LoadProgress, ProcessLoader
from firesteel.gateway.service_config import ModelConfig, ModelParameters, Reason, RunningModel, ServiceConfig
from firesteel.launch import Ask
from firesteel.library.plans import host
from firesteel.run.events import PhaseDone, PhaseProgress
from firesteel.run.service import all_services, forget_proof
from firesteel.run.start import StartTimes, last_verified, record_start, record_verified
from firesteel.service_file import on_nodes, read_service_file
from firesteel.units import MIB
from firesteel.workspace import Workspace
from tests.gateway.http.kit import ClientResponse, EngineConnection, Person, answer, request
from tests.gateway.test_charging import Running, running

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
    assert (one.urls, two.urls) == ((), ("http://127.0.0.1:8812",))
    assert (one.ttl_s, one.preload, one.pinned, one.cancel) == (600, True, False, "drain")
    assert (two.ttl_s, two.preload, two.pinned, two.cancel) == (None, False, True, "cancel")
    assert one.identity != two.identity and one.bytes < two.bytes
    file.write_text(FILE.replace("models:\n", "models:\n  above: {recipe: smollm2, context: 1024}\n"))
    changed = (await ProcessLoader().read(str(file))).by_name
    assert [changed[name].identity for name in ("one", "two")] == [one.identity, two.identity]
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


KNOWN = LoadTime(launch_s=30, proof_s=20, whole_s=55)


@pytest.mark.parametrize(
    ("took", "events", "left_s"),
    [
        (KNOWN, [(1, PhaseDone("check", "well"))], 55),
        (KNOWN, [(5, PhaseProgress("launch", "starting"))], 50),
        (
            KNOWN,
            [(5, PhaseProgress("launch", "starting")), (15, PhaseProgress("launch", "half way", 12.0))],
            32,
        ),
        (KNOWN, [(5, PhaseProgress("launch", "starting")), (15, PhaseProgress("launch", "half way"))], 40),
        (KNOWN, [(5, PhaseProgress("launch", "starting")), (36, PhaseProgress("launch", "late"))], None),
        (KNOWN, [(35, PhaseDone("launch", "answers"))], 20),
        (KNOWN, [(35, PhaseDone("launch", "answers")), (38, PhaseProgress("warm", "32 tokens"))], 17),
        (KNOWN, [(35, PhaseProgress("warm", "32 tokens")), (45, PhaseProgress("verify", "asks"))], 10),
        (KNOWN, [(35, PhaseProgress("warm", "32 tokens")), (56, PhaseProgress("verify", "late"))], None),
        (KNOWN, [(5, PhaseProgress("pull", "fetching"))], None),
        (LoadTime(30), [(5, PhaseProgress("launch", "half way", 12.0))], 12),
        (LoadTime(30), [(35, PhaseProgress("warm", "32 tokens"))], None),
        (LoadTime(None), [(5, PhaseProgress("launch", "starting"))], None),
    ],
)
def test_how_long_it_will_still_be(
    took: LoadTime, events: list[tuple[float, PhaseProgress | PhaseDone]], left_s: float | None
) -> None:
    clock = LoadClock(took, 0)
    said = [clock.left_s(event, now_s) for now_s, event in events]
    assert said[-1] == left_s


def test_what_was_fetched_is_no_part_of_a_load(tmp_path: Path) -> None:
    home, clock = Home(tmp_path), LoadClock(LoadTime(None), 100)
    record_start(home, "m", StartTimes("vllm", "0.32.0", {"weights": 30.0}))
    times: list[tuple[float, PhaseProgress | PhaseDone]] = [
        (102, PhaseProgress("pull", "a")),
        (700, PhaseProgress("pull", "b")),
    ]
    times += [(1000, PhaseProgress("launch", "starting")), (1040, PhaseDone("launch", "answers"))]
    for now_s, event in times:
        clock.left_s(event, now_s)
    assert clock.keep("m", home, 1055) == 57
    kept = last_verified(home, "m", "vllm", "0.32.0")
    assert kept and (kept.proof_s, kept.whole_s, kept.seconds) == (15, 57, {"weights": 30})
    record_start(home, "m", StartTimes("vllm", "0.32.0", {"weights": 31.0}))
    assert last_verified(home, "m", "vllm", "0.32.0") == kept, (
        "a start that was not proved says nothing of it"
    )
    assert last_verified(home, "m", "vllm", "0.33.0") is None


def test_a_brief_proof_says_nothing_about_a_full_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for proof_s, is_brief in ((20.0, False), (0.5, True)):
        record_start(home, "m", StartTimes("vllm", "0.32.0", {"weights": 30.0}))
        record_verified(home, "m", proof_s, 30 + proof_s, is_brief=is_brief)
    brief = last_verified(home, "m", "vllm", "0.32.0", is_brief=True)
    full = last_verified(home, "m", "vllm", "0.32.0")
    assert brief and full and (brief.proof_s, full.proof_s) == (0.5, 20.0)


@pytest.mark.real
async def test_a_second_load_says_how_long_the_whole_takes(
    quick_home: Home, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(quick_home.root))
    file = tmp_path / "service.yaml"
    file.write_text(f"models:\n  one: {{recipe: smollm2, context: 1024, port: {free_port}}}\n")
    hands = ProcessLoader()

    async def loaded() -> tuple[list[LoadProgress], RunningModel]:
        model = (await hands.read(str(file))).models[0]
        said = [each async for each in hands.load(model)]
        assert isinstance(said[-1], RunningModel)
        return [each for each in said if isinstance(each, LoadProgress)], said[-1]

    _, first = await loaded()
    assert first.load_s
    assert [each async for each in hands.unload("one")]
    forget_proof(quick_home, "one")  # so that the second is proved in full, too
    assert (await hands.read(str(file))).models[0].load_s == pytest.approx(first.load_s, abs=0.1)
    said, second = await loaded()
    assert second.load_s
    kept = json.loads((quick_home.root / "starts" / "one.json").read_text())[0]
    launch = [each.eta_s for each in said if each.phase == "launch" and each.eta_s is not None]
    assert launch and max(launch) >= kept["proof_s"], "the proof is part of what is left"
    assert next(each.eta_s for each in said if each.phase == "warm"), "and has its own time"


OWN = ModelParameters(
    defaults={"temperature": 0.6}, fixed={"seed": 7}, strip=("user",), max_tokens=100, context=2000
)
FAST = OWN.overridden(
    ModelParameters(fixed={"chat_template_kwargs": {"enable_thinking": False}}, max_tokens=10)
)
CODER = ModelConfig(
    "coder", "coder", (), is_outside=True, model="org/Coder", aliases=("coder-fast", "plain"),
    parameters=OWN, alias_parameters={"coder-fast": FAST},
)  # fmt: skip


class Recorder:
    """Answers everything, and keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, connection: EngineConnection) -> None:
        while True:
            self.bodies.append(json.loads((await connection.receive()).body))
            await connection.send(answer(b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}'))


async def send(
    it: Running, fields: dict[str, Any] | bytes, key: str = "finishes", path: bytes = b""
) -> ClientResponse:
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port, limit=2**20)
    client = Person(reader, writer)
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    text = request(body, b"Authorization: Bearer " + it.tokens[key])
    await client.send(text.replace(b"/v1/chat/completions", path) if path else text)
    try:
        async with asyncio.timeout(60):
            return await client.get()
    finally:
        client.close()


async def test_a_model_and_its_aliases_have_their_parameters(tmp_path: Path) -> None:
    engine = Recorder()
    asked = {"messages": [{"role": "user", "content": "x"}], "user": "me", "max_tokens": 5000, "seed": 1}
    async with running(tmp_path, 1, CODER, script=engine) as it:
        for model in ("coder", "coder-fast", "plain", "other"):
            assert (await send(it, {"model": model, **asked})).status == 200
        assert (await send(it, {"model": "coder", "input": "x"}, path=b"/v1/responses")).status == 200
        assert (await send(it, {"model": "coder", "input": "x"}, path=b"/v1/embeddings")).status == 200
    common = {"messages": asked["messages"], "temperature": 0.6, "seed": 7, "model": "org/Coder"}
    coder, fast, plain, other, response, embedding = engine.bodies
    assert coder == plain == common | {"max_tokens": 100}
    assert fast == common | {"max_tokens": 10, "chat_template_kwargs": {"enable_thinking": False}}
    assert other == {"model": "other", **asked}, "byte for byte"
    assert response == {
        "model": "org/Coder", "input": "x", "temperature": 0.6, "seed": 7, "max_output_tokens": 100,
    }  # fmt: skip
    assert embedding == {"model": "org/Coder", "input": "x"}


async def test_a_prompt_beyond_the_limit_is_refused_and_never_sent(tmp_path: Path) -> None:
    engine = Recorder()
    long = {"messages": [{"role": "user", "content": "word " * 4000}]}
    async with running(tmp_path, 1, CODER, script=engine) as it:
        for model in ("coder", "coder-fast"):
            refused = await send(it, {"model": model, **long})
            error = json.loads(refused.body)["error"]
            assert (refused.status, error["code"]) == (400, "context_length_exceeded")
            assert "tokens > 2000 maximum" in error["message"] and "estimated" in error["message"]
        assert (await send(it, {"model": "other", **long})).status == 200
    assert len(engine.bodies) == 1


@pytest.mark.parametrize("rest", [b"} trailing", b',"a":[}', b',"a"}'])
async def test_a_body_that_cannot_be_edited_is_refused(tmp_path: Path, rest: bytes) -> None:
    engine = Recorder()
    async with running(tmp_path, 1, CODER, script=engine) as it:
        refused = await send(it, b'{"model":"coder"' + rest)
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (400, "bad_body")
        assert (await send(it, {"model": "coder"})).status == 200, "and the gateway goes on"
    assert len(engine.bodies) == 1


async def test_parameters_hold_for_translated_requests_too(tmp_path: Path) -> None:
    """Ollama's clients, and servers that speak one API only."""
    engine = Recorder()
    chat_only = ModelConfig("talker", "talker", (), is_outside=True, parameters=OWN, speaks=("chat",))
    message = {"role": "user", "content": "x"}
    async with running(tmp_path, 1, CODER, chat_only, script=engine) as it:
        fields = {"model": "talker", "messages": [message], "max_tokens": 5000}
        await send(it, fields, path=b"/v1/messages")
        await send(it, {"model": "coder", "messages": [message], "stream": False}, path=b"/api/chat")
    assert [(body["max_tokens"], body["seed"], body["temperature"]) for body in engine.bodies] == [
        (100, 7, 0.6),
        (100, 7, 0.6),
    ]


HOSTS = "hosts: {spark1: 127.0.0.1, spark2: 192.168.100.11, spark3: 192.168.100.12}\nmodels:\n"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("gpt-oss-120b, node: spark2", "gpt-oss-120b, node: spark2", (("a", "b"),)),
        ("gpt-oss-120b, node: spark2", "gpt-oss-120b, node: spark3", ()),
        ("smollm2, node: spark2", "smollm2, node: spark2", ()),
    ],
)
def test_models_that_do_not_fit_on_their_node_take_turns(
    tmp_path: Path, one: str, other: str, expected: tuple[tuple[str, ...], ...]
) -> None:
    file = read_service_file("f", f"{HOSTS}  a: {{recipe: {one}}}\n  b: {{recipe: {other}}}\n")
    assert node_turns(on_nodes(file), Workspace(Home(tmp_path)), host("gb10")) == expected


def test_a_model_on_nodes_is_loaded_and_has_as_many_endpoints(tmp_path: Path) -> None:
    path = tmp_path / "firesteel.yaml"
    path.write_text(
        f"{HOSTS}  far: {{recipe: smollm2, node: [spark2, spark3], route: prefix, ttl: 5m}}\n"
        "  pair: {recipe: smollm2, node: [spark1, spark2]}\n"
    )
    far, pair = read(str(path), Home(tmp_path)).models
    assert pair.is_outside and pair.start == f"firesteel up -f {path} starts it", "this host is one of them"
    assert not far.is_outside and far.ttl_s == 300 and far.bytes == 0
    assert far.ask["cmd"][-2] == str(tmp_path / "services/far")
    running = RunningModel("http://192.168.100.11:8000", 0, key="k")
    endpoints = model_endpoints(far, running).endpoints
    assert [endpoint.address for endpoint in endpoints] == [
        ("192.168.100.11", far.ask["port"]),
        ("192.168.100.12", far.ask["port"]),
    ]
    assert all(b"Bearer k" in endpoint.headers for endpoint in endpoints)
