"""Parameters by model, through the whole gateway: what reaches the engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.gateway.service_config import ModelConfig, ModelParameters
from tests.gateway.http.kit import ClientResponse, EngineConnection, Person, answer, request
from tests.gateway.test_charging import Running, running

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
            assert "2,000" in error["message"] and "estimated" in error["message"]
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
