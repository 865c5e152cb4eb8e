"""Another replica or another model answers, as long as nothing of an answer has reached the client."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from firesteel.gateway.endpoints import RETRY_LIMIT
from firesteel.gateway.interfaces import Caller, FallbackReason, GatewayResponse
from firesteel.gateway.keys import add_key
from firesteel.gateway.service_config import ModelConfig, ModelParameters
from tests.gateway.http.kit import STREAM, Engine, EngineConnection, answer, event
from tests.gateway.test_charging import Running, running
from tests.gateway.test_loader_job import Recorder, send

TOO_LONG = (
    b'{"error":{"message":"This model\'s maximum context length is 4096 tokens.","code":400}}',
    b'{"error":{"type":"exceed_context_size_error","message":"exceeds the available context size"}}',
    b'{"object":"error","message":"The input (9 tokens) is longer than the model\'s context length (4)."}',
)
FALLBACK = b"x-firesteel-fallback"


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def always(response: bytes) -> Callable[[EngineConnection], Awaitable[None]]:
    async def script(connection: EngineConnection) -> None:
        while True:
            await connection.receive()
            await connection.send(response)

    return script


@asynccontextmanager
async def engine_with(script: Callable[[EngineConnection], Awaitable[None]]) -> AsyncIterator[Engine]:
    engine = Engine()
    engine.script = script
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def outside(name: str, *urls: str, **more: Any) -> ModelConfig:
    return ModelConfig(name, name, urls, is_outside=True, **more)


def url(engine: Engine) -> str:
    return f"http://127.0.0.1:{engine.port}"


def dead() -> str:
    return f"http://127.0.0.1:{closed_port()}"


def busy(it: Running, model: str) -> int:
    view = it.dispatcher.executor.view(model)
    assert view is not None and view.status is not None
    return view.status.busy


async def both_up(it: Running) -> None:
    """Health checks see both replicas, so that only a request finds out."""
    it.dispatcher._replica_health = lambda model: (True, True)


@pytest.mark.parametrize(
    "status", [b"502 Bad Gateway", b"503 Service Unavailable", b"429 Too Many Requests", b""]
)
async def test_another_replica_answers(tmp_path: Path, status: bytes) -> None:
    recorder = Recorder()
    async with engine_with(always(answer(b"{}", status=status))) as broken, engine_with(recorder) as good:
        pair = outside("pair", url(broken) if status else dead(), url(good))
        async with running(tmp_path, 1, pair) as it:
            await both_up(it)
            for number in range(6):
                response = await send(it, {"model": "pair", "n": number})
                assert response.status == 200 and response.value(FALLBACK) is None
            assert busy(it, "pair") == 0
    assert [body["n"] for body in recorder.bodies] == list(range(6)), "each was served once"


async def test_broken_replicas_get_no_storm(tmp_path: Path) -> None:
    """All fail: clients get the error, and retries end with their budget."""
    asked = 0

    async def fails(connection: EngineConnection) -> None:
        nonlocal asked
        while True:
            await connection.receive()
            asked += 1
            await connection.send(answer(b'{"error":"overloaded"}', status=b"503 Service Unavailable"))

    async with (
        engine_with(fails) as one,
        engine_with(fails) as two,
        running(tmp_path, 1, outside("pair", url(one), url(two))) as it,
    ):
        await both_up(it)
        began = monotonic()
        responses = await asyncio.gather(*(send(it, {"model": "pair"}) for _ in range(150)))
        seconds = monotonic() - began
    assert {response.status for response in responses} == {503}
    assert {response.body for response in responses} == {b'{"error":"overloaded"}'}, "the server's own words"
    assert 150 <= asked <= 150 + RETRY_LIMIT.count + RETRY_LIMIT.count * seconds / RETRY_LIMIT.seconds + 1


@pytest.mark.parametrize("how", ["dead", "503", "breaks"])
async def test_another_model_answers_for_one_that_is_down(tmp_path: Path, how: str) -> None:
    async def breaks(connection: EngineConnection) -> None:
        await connection.receive()
        connection.reset()

    script = breaks if how == "breaks" else always(answer(b"{}", status=b"503 Service Unavailable"))
    recorder = Recorder()
    async with engine_with(script) as broken:
        coder = outside("coder", dead() if how == "dead" else url(broken), fallbacks={"down": "small"})
        small = outside("small", parameters=ModelParameters(fixed={"seed": 3}))
        async with running(tmp_path, 1, coder, small, script=recorder) as it:
            response = await send(it, {"model": "coder", "n": 1})
            assert response.status == 200
            assert response.value(FALLBACK) == b"from=coder; to=small; reason=down"
            assert not it.dispatcher._records
            for name in ("coder", "small"):
                assert busy(it, name) == 0
    assert recorder.bodies == [{"model": "small", "n": 1, "seed": 3}], "by its own name and parameters"


@pytest.mark.parametrize("said", TOO_LONG)
async def test_a_longer_context_takes_what_is_too_long(tmp_path: Path, said: bytes) -> None:
    recorder = Recorder()
    async with engine_with(always(answer(said, status=b"400 Bad Request"))) as short:
        coder = outside("coder", url(short), fallbacks={"too_long": "big-fast"})
        big = outside(
            "big", aliases=("big-fast",), alias_parameters={"big-fast": ModelParameters(fixed={"seed": 1})}
        )
        async with running(tmp_path, 1, coder, big, script=recorder) as it:
            response = await send(it, {"model": "coder", "n": 1})
            assert response.status == 200
            assert response.value(FALLBACK) == b"from=coder; to=big-fast; reason=too_long"
    assert recorder.bodies == [{"model": "big", "n": 1, "seed": 1}], "an alias has its own parameters"


async def test_any_other_error_is_the_clients(tmp_path: Path) -> None:
    said = b'{"error":{"message":"temperature must be positive"}}'
    recorder = Recorder()
    async with engine_with(always(answer(said, status=b"400 Bad Request"))) as strict:
        coder = outside("coder", url(strict), fallbacks={"too_long": "big", "down": "big", "full": "big"})
        async with running(tmp_path, 1, coder, outside("big"), script=recorder) as it:
            for _ in range(2):
                response = await send(it, {"model": "coder"})
                assert (response.status, response.body, response.value(FALLBACK)) == (400, said, None)
    assert recorder.bodies == []


async def test_a_prompt_over_the_limit_goes_to_the_longer_one(tmp_path: Path) -> None:
    recorder = Recorder()
    coder = outside("coder", dead(), parameters=ModelParameters(context=100), fallbacks={"too_long": "big"})
    async with running(tmp_path, 1, coder, outside("big"), script=recorder) as it:
        response = await send(it, {"model": "coder", "prompt": "word " * 1000})
        assert response.status == 200 and response.value(FALLBACK) == b"from=coder; to=big; reason=too_long"


@pytest.mark.parametrize(("reason", "status"), [("down", 429), ("full", 200)])
async def test_each_reason_has_its_own(tmp_path: Path, reason: FallbackReason, status: int) -> None:
    recorder = Recorder()
    async with engine_with(always(answer(b"{}", status=b"429 Too Many Requests"))) as busy:
        coder = outside("coder", url(busy), fallbacks={reason: "small"})
        async with running(tmp_path, 1, coder, outside("small"), script=recorder) as it:
            assert (await send(it, {"model": "coder"})).status == status


async def test_what_has_begun_is_never_sent_again(tmp_path: Path) -> None:
    async def breaks_off(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + event("half"))
        connection.reset()

    recorder = Recorder()
    async with engine_with(breaks_off) as broken:
        coder = outside("coder", url(broken), dead(), fallbacks={"down": "small"})
        async with running(tmp_path, 1, coder, outside("small"), script=recorder) as it:
            it.dispatcher._replica_health = lambda model: (True, False)
            response = await send(it, {"model": "coder", "stream": True})
            assert b"half" in response.body and b"engine_broke" in response.body
    assert recorder.bodies == []


async def test_a_circle_ends_and_a_key_gets_only_its_own_models(tmp_path: Path) -> None:
    one = outside("one-way", dead(), fallbacks={"down": "other-way"})
    two = outside("other-way", dead(), fallbacks={"down": "one-way"})
    recorder = Recorder()
    coder = outside("coder", dead(), fallbacks={"down": "secret"})
    async with running(tmp_path, 1, one, two, coder, outside("secret"), script=recorder) as it:
        response = await send(it, {"model": "one-way"})
        assert response.status == 502 and json.loads(response.body)["error"]["code"] == "engine_unreachable"
        it.tokens["narrow"] = add_key(tmp_path / "keys.json", "narrow", models=("coder",))[1].encode()
        it.dispatcher._ring.refresh()
        assert (await send(it, {"model": "coder"})).status == 200
        refused = await send(it, {"model": "coder"}, key="narrow")
        assert refused.status == 502 and b"secret" not in refused.body
    assert len(recorder.bodies) == 1


async def test_a_model_is_found_by_its_encoded_name(tmp_path: Path) -> None:
    """As OpenAI's client writes `models.retrieve("org/model")`."""
    async with running(tmp_path, 1, outside("org/model")) as it:
        for path in (b"/v1/models/org%2Fmodel", b"/v1/models/org/model"):
            found = it.dispatcher.local_target(b"GET", path, Caller())
            assert isinstance(found, GatewayResponse) and json.loads(found.body)["id"] == "org/model"
