"""A server that fails on purpose: the OpenAI protocol over real sockets, one word per token, with one fault
or none.

There is no model behind it. A token comes every `token_s`, at absolute times, so its true speed is known.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "faulty"
TEMPLATE = 7
"""Tokens that its chat template adds."""


def tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


@dataclass(slots=True)
class FaultyServer:
    fault: str | None = None
    every: int = 1
    """The fault appears in every so many streams."""
    token_s: float = 0.002
    first_s: float = 0.01
    tokens_a_chunk: int = 1
    has_tokenizer: bool = True
    obeys: bool = True
    """Whether it obeys `ignore_eos`."""
    streams: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    counted: int = 0


def make_app(server: FaultyServer) -> web.Application:
    app = web.Application(client_max_size=2**24)

    async def models(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": MODEL, "max_model_len": 8192}]})

    async def tokenize(request: web.Request) -> web.StreamResponse:
        if not server.has_tokenizer:
            return web.Response(status=404)
        server.counted += 1
        return web.json_response({"count": len(tokens((await request.json())["prompt"]))})

    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if server.fault == "refuses ignore_eos" and "ignore_eos" in body:
            return web.json_response({"error": "unknown field ignore_eos"}, status=400)
        return await _stream(server, request, body) if body.get("stream") else _whole(server, body)

    app.router.add_get("/v1/models", models)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/v1/chat/completions", chat)
    return app


def _made(server: FaultyServer, body: dict[str, Any]) -> int:
    goes_on = server.obeys and body.get("ignore_eos")
    return int(body["max_tokens"]) if goes_on else min(5, int(body["max_tokens"]))


def _usage(body: dict[str, Any], made: int) -> dict[str, Any]:
    said = sum(len(tokens(each["content"])) for each in body["messages"])
    return {"prompt_tokens": said + TEMPLATE * len(body["messages"]), "completion_tokens": made}


def _whole(server: FaultyServer, body: dict[str, Any]) -> web.StreamResponse:
    if server.fault == "500":
        return web.json_response({"error": "CUDA error"}, status=500)
    made = _made(server, body)
    message = {"role": "assistant", "content": " word" * made}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return web.json_response({"choices": [choice], "usage": _usage(body, made)})


async def _stream(server: FaultyServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    server.asked.append(body)
    server.streams += 1
    fault = server.fault if server.streams % server.every == 0 else None
    if fault == "500":
        return web.json_response({"error": "CUDA error"}, status=500)
    if fault == "page":
        return web.Response(text="<html>It works!</html>", content_type="text/html")
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    made = _made(server, body)
    if fault == "short":
        made //= 2
    said = made // 2 if fault == "says more than it wrote" else made
    await _words(server, fault, request, answer, said)
    if fault in ("breaks off", "hangs up", "error", "garbage"):
        return answer
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    usage: dict[str, Any] = {"choices": [], "usage": _lied(fault, _usage(body, made))}
    await answer.write(_line(finish) + _line(usage) + b"data: [DONE]\n\n")
    return answer


async def _words(
    server: FaultyServer, fault: str | None, request: web.Request, answer: web.StreamResponse, said: int
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time() + server.first_s
    middle, gathered = said // 2, b""
    for at in range(0, said, server.tokens_a_chunk):
        await asyncio.sleep(max(0.0, began + at * server.token_s - loop.time()))
        many = min(server.tokens_a_chunk, said - at)
        line = _line({"choices": [{"index": 0, "delta": {"content": " word" * many}}]})
        if fault == "one piece":
            gathered += line
            continue
        await answer.write(line)
        if at < middle:
            continue
        if fault == "breaks off":
            return
        if fault == "hangs up" and request.transport:
            request.transport.abort()
            return
        if fault == "error":
            await answer.write(_line({"error": {"message": "EngineCore died", "code": 500}}))
            return
        if fault == "garbage":
            await answer.write(b"data: {this is no JSON\n\ndata: [DONE]\n\n")
            return
        if fault in ("stalls", "pauses") and at == middle:
            pause = 30.0 if fault == "stalls" else 1.2
            began += pause
            await asyncio.sleep(pause)
    await answer.write(gathered)
    if fault == "endless":
        for _ in range(100_000):
            await answer.write(_line({"choices": [{"index": 0, "delta": {"content": " more" * 5000}}]}))


def _lied(fault: str | None, usage: dict[str, Any]) -> dict[str, Any] | None:
    if fault == "no usage":
        return None
    made = usage["completion_tokens"]
    faults: dict[str, dict[str, Any]] = {
        "half the tokens": {"completion_tokens": made // 2},
        "twice the tokens": {"completion_tokens": made * 2},
        "another prompt": {"prompt_tokens": usage["prompt_tokens"] // 2},
        "all from a cache": {"prompt_tokens_details": {"cached_tokens": 10**6}},
        "not a number": {"completion_tokens": "many"},
    }
    return {**usage, **faults.get(fault or "", {})}


def _line(piece: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(piece).encode() + b"\n\n"


@asynccontextmanager
async def serving(server: FaultyServer) -> AsyncIterator[str]:
    """Its address, for as long as it serves."""
    runner = web.AppRunner(make_app(server), shutdown_timeout=0.2, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def speaking(data: bytes) -> AsyncIterator[str]:
    """A server that says these bytes to whoever connects, HTTP or not."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(2**16)
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
