"""A simulated engine whose true speed is arithmetic: it reads one prompt at a time, `prefill_s` each, while
nobody decodes; then all active requests decode one token per step, `step_s` each. Requests without a slot
queue.

With N users who ask again at once, every request takes N prefills and its own steps, so the steady state can
be computed without running anything.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from tests.bench.faulty_server import MODEL, TEMPLATE, tokens


@dataclass(slots=True)
class _Stream:
    wanted: int
    made: int = 0
    out: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)


@dataclass(slots=True)
class PacedServer:
    prefill_s: float = 0.03
    step_s: float = 0.008
    slots: int = 64
    held: int = 1
    """Tokens that its first chunk holds back."""
    per_piece: int = 1
    """Tokens that it collects before it sends them."""
    collects: Literal["tokens", "events"] = "tokens"
    """Into one chunk, or as one chunk each that are sent together."""
    shows_held: bool = True
    """False: what was held back counts as reasoning, and is never shown."""
    tells_held: bool = True
    has_tokenizer: bool = True
    line: deque[_Stream] = field(default_factory=deque)
    inside: list[_Stream] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while True:
            if not self.line and not self.inside:
                self.woken.clear()
                await self.woken.wait()
                now = loop.time()
            if self.line and len(self.inside) < self.slots:
                new = self.line.popleft()
                now += self.prefill_s
                await asyncio.sleep(max(0.0, now - loop.time()))
                self.inside.append(new)
                self._give([new])
                continue
            now += self.step_s
            await asyncio.sleep(max(0.0, now - loop.time()))
            self._give(list(self.inside))

    def _give(self, those: list[_Stream]) -> None:
        for each in those:
            each.made += 1
            each.out.put_nowait(each.made)
            if each.made >= each.wanted:
                each.out.put_nowait(None)
                self.inside.remove(each)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        wanted = int(body["max_tokens"])
        if not body.get("stream"):
            message = {"role": "assistant", "content": " word" * wanted}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            return web.json_response({"choices": [choice], "usage": _usage(body, wanted, 0)})
        stream = _Stream(wanted)
        self.line.append(stream)
        self.woken.set()
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        waiting: list[str] = []
        while (at := await stream.out.get()) is not None:
            if at < self.held or (at == self.held and not self.shows_held):
                continue
            words = " word" * (self.held if at == self.held else 1)
            waiting.append(words)
            if len(waiting) == self.per_piece or at == wanted:
                texts = ["".join(waiting)] if self.collects == "tokens" else waiting
                await answer.write(b"".join(_line(_delta(text)) for text in texts))
                waiting = []
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        usage = _usage(body, wanted, 0 if self.shows_held or not self.tells_held else self.held)
        await answer.write(_line(end) + _line({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return answer


def _usage(body: dict[str, Any], made: int, thought: int) -> dict[str, Any]:
    said = sum(len(tokens(each["content"])) for each in body["messages"])
    found: dict[str, Any] = {"prompt_tokens": said + TEMPLATE, "completion_tokens": made}
    return {**found, "completion_tokens_details": {"reasoning_tokens": thought}} if thought else found


def _delta(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def _line(piece: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(piece).encode() + b"\n\n"


@asynccontextmanager
async def serving_paced(engine: PacedServer) -> AsyncIterator[str]:
    """Its address, for as long as it serves."""

    async def models(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": MODEL, "max_model_len": 8192}]})

    async def tokenize(request: web.Request) -> web.StreamResponse:
        if not engine.has_tokenizer:
            return web.Response(status=404)
        return web.json_response({"count": len(tokens((await request.json())["prompt"]))})

    app = web.Application(client_max_size=2**24)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/v1/chat/completions", engine.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.2, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    work = asyncio.create_task(engine.work())
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        work.cancel()
        await runner.cleanup()
