"""The real `ollama` package against the HTTP server; the engine behind it speaks OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import ollama
import pytest
import pytest_asyncio

from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.translation import OllamaCall, read_ollama
from firesteel.gateway.interfaces import Caller, GatewayResponse, Rejection, WaitStatus
from firesteel.values import replace
from tests.gateway.http.kit import (
    STREAM,
    ClientResponse,
    EngineConnection,
    FakeDispatcher,
    RunningGateway,
    answer,
    chunked,
    request,
    run_gateway,
)

HI: Any = [{"role": "user", "content": "hi"}]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
WHOLE = json.dumps(
    {
        "choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
).encode()


_OPEN: list[ollama.AsyncClient] = []


def client(gateway: RunningGateway, **headers: str) -> ollama.AsyncClient:
    _OPEN.append(ollama.AsyncClient(host=f"http://127.0.0.1:{gateway.port}", headers=headers))
    return _OPEN[-1]


@pytest_asyncio.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    yield
    while _OPEN:
        await _OPEN.pop()._client.aclose()


def data(value: object) -> bytes:
    return chunked(b"data: " + json.dumps(value).encode() + b"\n\n")


def delta(text: str, finish: str | None = None) -> bytes:
    return data({"choices": [{"delta": {"content": text}, "finish_reason": finish}]})


END = data({"choices": [], "usage": USAGE}) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def answering(*pieces: bytes) -> Any:
    async def script(connection: EngineConnection) -> None:
        while True:
            await connection.receive()
            for piece in pieces:
                await connection.send(piece)

    return script


async def test_an_answer(gateway: RunningGateway) -> None:
    gateway.engine.script = answering(answer(WHOLE, b"Content-Type: application/json"))
    got = await client(gateway, Authorization="Bearer secret").chat(
        "m:latest", HI, options={"num_predict": 5}
    )
    assert got.message.content == "hello" and got.done and got.done_reason == "stop"
    assert (got.prompt_eval_count, got.eval_count) == (3, 2)
    (sent,) = gateway.engine.received
    assert sent.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert sent.value(b"authorization") is None and sent.value(b"accept-encoding") is None
    body = json.loads(sent.body)
    assert (body["max_tokens"], body["stream"]) == (5, False)
    (outcome,) = gateway.dispatcher.outcomes
    assert outcome.how == "whole" and outcome.status == 200
    assert outcome.usage and outcome.usage.completion_tokens == 2
    assert gateway.dispatcher.tokens == [b"secret"]


async def test_a_stream(gateway: RunningGateway) -> None:
    gateway.engine.script = answering(STREAM + delta("one"), delta(" two"), delta("", "length"), END)
    parts = [part async for part in await client(gateway).chat("m", HI, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == "one two"
    assert [part.done for part in parts] == [False, False, True] and parts[-1].done_reason == "length"
    raw = await gateway.client()
    got = await raw.ask(b'{"model":"m","prompt":"p"}', path=b"/api/generate")
    assert got.value(b"content-type") == b"application/x-ndjson"
    assert [json.loads(line)["response"] for line in got.body.splitlines()] == ["one", " two", ""]
    assert [each.is_stream for each in gateway.dispatcher.outcomes] == [True, True]
    assert gateway.dispatcher.outcomes[0].usage and gateway.dispatcher.outcomes[0].usage.prompt_tokens == 3


async def test_a_load_that_takes_long_ends_with_its_answer() -> None:
    """`ollama run` first asks without a prompt, and without `"stream": false`; it then got an error, because
    the gateway had begun a stream of lines."""
    limits = HttpLimits(hold_after_s=0.05, comment_every_s=0.05, sweep_s=0.01)
    async with run_gateway(FakeDispatcher(), limits) as gateway:
        gateway.dispatcher.holds_requests = True
        raw = await gateway.client()
        await raw.send(request(b'{"model":"m"}', path=b"/api/generate"))
        await gateway.dispatcher.until(lambda: gateway.dispatcher.waiting)
        await asyncio.sleep(0.2)  # several lines would have come
        gateway.dispatcher.grant(gateway.dispatcher.waiting[0])
        got = await raw.get()
        loaded = json.loads(got.body)
        assert got.status == 200 and loaded["done"] is True and "error" not in loaded
        assert not gateway.engine.connections
    assert gateway.dispatcher.outcomes[0].how == "whole"


def test_a_request_that_waits_is_kept_as_bytes_only() -> None:
    """Parsed, a body takes many times its size; hundreds may wait."""
    call = read_ollama(b"/api/chat", b'{"messages":[{"role":"user","content":"hi"}],"model":"m"}')
    assert isinstance(call, OllamaCall)
    assert call.request.body == {} and json.loads(call.body)["messages"] == HI
    assert call.body.startswith(b'{"model":"m",')


async def test_the_engines_name_of_the_model(gateway: RunningGateway) -> None:
    assert gateway.dispatcher.endpoint
    gateway.dispatcher.endpoint = replace(gateway.dispatcher.endpoint, served_name=b"org/M", path=b"/base")
    gateway.engine.script = answering(answer(b'{"data":[{"index":0,"embedding":[0.5]}]}'))
    got = await client(gateway).embed("m", "text")
    assert got.model == "m" and got.embeddings == [[0.5]]
    sent = gateway.engine.received[0]
    assert sent.head.startswith(b"POST /base/v1/embeddings ") and json.loads(sent.body)["model"] == "org/M"


async def test_a_client_that_waits_gets_lines_without_text(gateway: RunningGateway) -> None:
    gateway.dispatcher.holds_requests = True
    gateway.engine.script = answering(STREAM + delta("now", "stop"), END)

    async def ask() -> list[ollama.ChatResponse]:
        return [part async for part in await client(gateway).chat("m", HI, stream=True)]

    asking = asyncio.ensure_future(ask())
    await gateway.dispatcher.until(lambda: gateway.dispatcher.waiting)
    (waiting,) = gateway.dispatcher.waiting
    raw = await gateway.client()
    await raw.send(request(b'{"model":"m","messages":[{"role":"user","content":"a"}]}', path=b"/api/chat"))
    head = await raw.head()
    assert head.status == 200 and head.value(b"content-type") == b"application/x-ndjson"
    assert json.loads(await raw.chunk())["message"]["content"] == ""
    waiting.update_wait_status(WaitStatus("loading m"))
    gateway.dispatcher.grant(waiting)
    parts = await asking
    assert "".join(part.message.content or "" for part in parts) == "now" and parts[-1].done
    second = gateway.dispatcher.waiting[1]
    second.rejected(Rejection(503, "load_failed", "m did not load"))
    while not (line := json.loads(await raw.chunk())).get("error"):
        assert line["done"] is False
    assert line == {"error": "m did not load"}
    assert await raw.chunk() == b""


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_the_gateway_and_of_the_engine(gateway: RunningGateway, stream: bool) -> None:
    async def ask() -> ollama.ResponseError:
        with pytest.raises(ollama.ResponseError) as failed:
            connected: Any = client(gateway)
            got = await connected.chat("m", HI, stream=stream)
            if stream:
                [part async for part in got]
        return failed.value

    gateway.dispatcher.rejection = Rejection(404, "unknown_model", "there is no model `m` here")
    error = await ask()
    assert (error.status_code, error.error) == (404, "there is no model `m` here")
    gateway.dispatcher.rejection = None
    close = b"Connection: close"
    too_long = b'{"error":{"message":"too long"}}'
    gateway.engine.script = answering(answer(too_long, close, status=b"400 Bad Request"))
    error = await ask()
    assert (error.status_code, error.error) == (400, "too long")
    gateway.engine.script = answering(answer(b"<html>", status=b"500 Oops"))
    assert "HTTP 500: <html>" in (await ask()).error
    gateway.dispatcher.keys = {}
    assert (await ask()).status_code == 401


@pytest.mark.parametrize(
    "pieces",
    [
        (STREAM + delta("one"), data({"error": {"message": "out of memory"}}) + b"0\r\n\r\n"),
        (STREAM + delta("one"), b"0\r\n\r\n"),
        (STREAM + delta("one"), chunked(b"data: {broken\n\n") + b"0\r\n\r\n"),
    ],
)
async def test_a_broken_stream_is_an_error(gateway: RunningGateway, pieces: tuple[bytes, ...]) -> None:
    gateway.engine.script = answering(*pieces)
    parts = []
    with pytest.raises(ollama.ResponseError):
        async for part in await client(gateway).chat("m", HI, stream=True):
            parts.append(part.message.content)
    assert parts == ["one"]


async def test_an_engine_that_goes_away(gateway: RunningGateway) -> None:
    async def cut(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + delta("one"))
        connection.reset()

    gateway.engine.script = cut
    raw = await gateway.client()
    got = await raw.ask(b'{"model":"m","prompt":"p"}', path=b"/api/generate")
    first, last = (json.loads(line) for line in got.body.splitlines())
    assert first["response"] == "one" and "closed the connection" in last["error"]


async def test_a_client_that_goes_away_cancels(gateway: RunningGateway) -> None:
    async def stall(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + delta("one"))
        await connection.closed()
        closed.set()

    closed = asyncio.Event()
    gateway.engine.script = stall
    raw = await gateway.client()
    await raw.send(request(b'{"model":"m","prompt":"p"}', path=b"/api/generate"))
    await raw.head()
    await raw.chunk()
    raw.close()
    async with asyncio.timeout(30):
        await closed.wait()
    await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
    assert gateway.dispatcher.outcomes[0].how == "left"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"[]", 400, "object"),
        (b"[" * 100_000, 400, "JSON"),
        (b'{"model":5}', 400, "`model`"),
        (b'{"model":"m","messages":5}', 400, "`messages`"),
        (b'{"model":"m","messages":[' + b"{}," * 1_000_000 + b"{}]}", 413, "too large"),
        (b'{"model":"m","options":{"temperature":"x"}}', 400, "`temperature`"),
        (b'{"model":"","messages":[{"role":"user","content":"x"}]}', 400, "model"),
    ],
)
async def test_hostile_bodies(gateway: RunningGateway, body: bytes, status: int, says: str) -> None:
    raw = await gateway.client()
    got = await raw.ask(body, path=b"/api/chat")
    assert got.status == status, got.body
    assert says in json.loads(got.body)["error"]
    assert not gateway.dispatcher.submitted


async def test_without_a_prompt_the_model_is_loaded_or_unloaded(gateway: RunningGateway) -> None:
    ollama_client = client(gateway)
    gateway.dispatcher.holds_requests = True
    asking = asyncio.ensure_future(ollama_client.generate("m", keep_alive="10m"))
    await gateway.dispatcher.until(lambda: gateway.dispatcher.waiting)
    gateway.dispatcher.grant(gateway.dispatcher.waiting[0])
    got = await asking
    assert got.done and got.done_reason == "load" and got.response == ""
    assert gateway.dispatcher.kept_alive == [("m", 600.0)]
    got = await ollama_client.generate("m", keep_alive=0)
    assert got.done_reason == "unload" and len(gateway.dispatcher.submitted) == 1
    assert gateway.dispatcher.kept_alive[1:] == [("m", 0.0)]
    assert gateway.engine.received == []


async def test_keep_alive_holds_after_the_answer(gateway: RunningGateway) -> None:
    gateway.engine.script = answering(answer(WHOLE))
    await client(gateway).chat("m", HI, keep_alive=0)
    assert gateway.dispatcher.kept_alive == [("m", 0.0)] and len(gateway.dispatcher.outcomes) == 1


@pytest.mark.parametrize("path", [b"/api/tags", b"/api/show", b"/api/chat", b"/api/embed", b"/api/pull"])
async def test_a_wrong_key_is_told_in_ollamas_format(gateway: RunningGateway, path: bytes) -> None:
    gateway.dispatcher.keys = {}
    raw = await gateway.client()
    got: ClientResponse = await raw.ask(b"{}", path=path)
    assert got.status == 401 and isinstance(json.loads(got.body)["error"], str)


async def test_a_wrong_method(gateway: RunningGateway) -> None:
    raw = await gateway.client()
    await raw.send(request(b"", path=b"/api/chat", method=b"GET"))
    got = await raw.get()
    assert got.status == 405 and "POST" in json.loads(got.body)["error"]


async def test_a_page_may_use_it(gateway: RunningGateway) -> None:
    gateway.server.origins = ("loopback",)
    gateway.dispatcher.keys = {None: Caller()}
    gateway.dispatcher.local_targets[b"/api/tags"] = GatewayResponse(200, b"{}")
    raw = await gateway.client()
    page = b"Origin: http://localhost:3000"
    await raw.send(request(b"", page, path=b"/api/tags", method=b"GET").replace(b": gateway", b": 127.0.0.1"))
    assert (await raw.get()).value(b"access-control-allow-origin") == b"http://localhost:3000"
    gateway.engine.script = answering(STREAM + delta("one", "stop"), END)
    await raw.send(
        request(b'{"model":"m","prompt":"p"}', page, path=b"/api/generate").replace(
            b": gateway", b": 127.0.0.1"
        )
    )
    assert (await raw.get()).value(b"access-control-allow-origin") == b"http://localhost:3000"


# What the Continue plugin (VS Code, JetBrains) sends, field by field; the texts are our own. Source:
# https://github.com/continuedev/continue/blob/0108be5ef93e6fe3f511f49306f9bff414ef7efc/core/llm/llms/Ollama.ts,
# seen 2026-11-16. `undefined` is left out by JSON.stringify; 1800 is its default for `keep_alive`.
CONTINUE_OPTIONS = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 40, "num_predict": 64, "stop": ["END"], "num_ctx": 8192,
    "mirostat": 0, "num_thread": 4, "use_mmap": True, "min_p": 0.05,
}  # fmt: skip
CONTINUE_TOOL = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read a file", "parameters": {"type": "object"}},
}


async def post(gateway: RunningGateway, path: bytes, fields: Any) -> ClientResponse:
    raw = await gateway.client()
    return await raw.ask(json.dumps(fields).encode(), b"Authorization: Bearer secret", path=path)


def sent_body(gateway: RunningGateway) -> Any:
    return json.loads(gateway.engine.received[-1].body)


async def test_a_chat_of_the_continue_plugin(gateway: RunningGateway) -> None:
    gateway.engine.script = answering(STREAM + delta("one"), delta(" two", "stop"), END)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is this?", "images": ["iVBORw0KGgo="]},
        {"role": "assistant", "content": "A picture."},
        {"role": "user", "content": "Of what?"},
    ]
    chat = {
        "model": "m", "messages": messages, "options": CONTINUE_OPTIONS, "keep_alive": 1800, "stream": True,
    }  # fmt: skip
    got = await post(gateway, b"/api/chat", chat)
    lines = [json.loads(line) for line in got.body.splitlines()]
    assert all(line["message"]["role"] == "assistant" and "error" not in line for line in lines)
    assert "".join(line["message"]["content"] for line in lines) == "one two" and lines[-1]["done"]
    body = sent_body(gateway)
    assert (body["temperature"], body["top_k"], body["min_p"]) == (0.5, 40, 0.05)
    assert (body["max_tokens"], body["stop"]) == (64, ["END"])
    assert not {"num_ctx", "num_thread", "use_mmap", "options", "keep_alive"} & set(body)
    assert body["messages"][1]["content"][1]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
    assert gateway.dispatcher.kept_alive == [("m", 1800.0)]


async def test_a_tool_of_the_continue_plugin(gateway: RunningGateway) -> None:
    """It streams no request with tools, and takes the arguments as an object."""
    call = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE})
    gateway.engine.script = answering(answer(whole.encode(), b"Content-Type: application/json"))
    chat = {
        "model": "m", "messages": HI, "options": CONTINUE_OPTIONS, "keep_alive": 1800, "stream": False,
        "tools": [CONTINUE_TOOL],
    }  # fmt: skip
    got = json.loads((await post(gateway, b"/api/chat", chat)).body)
    assert got["message"]["tool_calls"][0]["function"] == {"name": "read_file", "arguments": {"path": "a"}}
    assert got["message"]["content"] == "" and sent_body(gateway)["tools"] == [CONTINUE_TOOL]


async def test_an_autocompletion_of_the_continue_plugin(gateway: RunningGateway) -> None:
    gateway.engine.script = answering(
        STREAM + data({"choices": [{"text": "return 1", "finish_reason": "stop"}]}), END
    )
    generate = {
        "model": "m", "prompt": "<PRE>def f():<SUF><MID>", "raw": True, "options": CONTINUE_OPTIONS,
        "keep_alive": 1800, "stream": True,
    }  # fmt: skip
    got = await post(gateway, b"/api/generate", generate)
    assert "".join(json.loads(line)["response"] for line in got.body.splitlines()) == "return 1"
    assert gateway.engine.received[-1].head.startswith(b"POST /v1/completions")
    assert sent_body(gateway)["prompt"] == "<PRE>def f():<SUF><MID>"


async def test_embeddings_of_the_continue_plugin(gateway: RunningGateway) -> None:
    rows = [{"index": index, "embedding": [0.5, float(index)]} for index in range(2)]
    whole = json.dumps({"data": rows, "usage": {"prompt_tokens": 4}}).encode()
    gateway.engine.script = answering(answer(whole, b"Content-Type: application/json"))
    got = await post(gateway, b"/api/embed", {"model": "m", "input": ["a", "b"]})
    assert json.loads(got.body)["embeddings"] == [[0.5, 0.0], [0.5, 1.0]]
    assert sent_body(gateway)["input"] == ["a", "b"]
