"""The HTTP face of a pretend engine: OpenAI's endpoints, and the engine's own for health, tokens and metrics.

Every answer carries `X-Firesteel-Pretend`, and `/v1/models` says it too. It listens on loopback only.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from firesteel.sim.engine import metrics
from firesteel.sim.engine.batch import ActiveAnswer, Batch
from firesteel.sim.model import completion
from firesteel.sim.model.completion import AnswerStyle, BadRequest, Completion
from firesteel.sim.model.tokenizer import Tokenizer, blocks
from firesteel.sim.spark import SimFault

PRETEND = {"X-Firesteel-Pretend": "nothing here was measured", "Server": "firesteel-pretend-engine"}
_OPEN = ("/health", "/metrics", "/version", "/ping")
"""What an engine shows without a key."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SimServer:
    def __init__(
        self, order: Mapping[str, Any], batch: Batch, faults: Mapping[str, SimFault], key: str | None
    ) -> None:
        self.order, self.batch, self.faults, self.key = order, batch, faults, key
        self.is_ready = False
        self.requests = 0
        self.tokenizer = Tokenizer()
        self.created = int(time.time())
        batch.is_stuck = self._hangs

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._around], client_max_size=64 * 2**20)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/models", self._models),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.get("/props", self._props),
                web.get("/slots", self._slots),
                web.get("/server_info", self._props),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._complete),
            ]
        )
        return app

    # --- around every request ---

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            answer = self._refusal(request) or await handler(request)
        except BadRequest as error:
            answer = _error(400, str(error), "BadRequestError")
        except (ValueError, TypeError, AttributeError) as error:
            answer = _error(400, f"the body is not what was expected: {error}", "BadRequestError")
        except web.HTTPException as error:
            answer = _error(error.status, error.reason, "NotFoundError")
        if not answer.prepared:
            answer.headers.update(PRETEND)
        return answer

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not self.is_ready:
            return _error(503, "Loading model", "unavailable_error")
        if (
            self.key
            and request.path not in _OPEN
            and request.headers.get("Authorization") != f"Bearer {self.key}"
        ):
            return _error(401, "Unauthorized", "invalid_request_error")
        return None

    def _shows(self, kind: str) -> SimFault | None:
        """A fault of serving, once so many requests were served."""
        fault = self.faults.get(kind)
        return fault if fault and self.requests > fault.after else None

    def _hangs(self) -> bool:
        return self._shows("hang") is not None

    # --- what it tells of itself ---

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"}) if self.order["engine"] == "llamacpp" else web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        about = {
            "id": self.order["served"], "object": "model", "created": self.created,
            "owned_by": "firesteel-pretend", "pretend": True, "root": self.order["model"],
            "max_model_len": self.batch.pace.context, "meta": {"n_ctx": self.batch.pace.context},
        }  # fmt: skip
        return web.json_response({"object": "list", "data": [about]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.order["version"], "pretend": True})

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.order["metrics"]:
            return _error(
                501,
                "This server does not support metrics endpoint. Start it with `--metrics`",
                "not_supported_error",
            )
        return web.Response(text=metrics.text(self.order["engine"], self.order["served"], self.batch))

    async def _props(self, request: web.Request) -> web.Response:
        pace = self.batch.pace
        return web.json_response(
            {
                "pretend": True,
                "total_slots": pace.users,
                "default_generation_settings": {"n_ctx": pace.context},
                "model_path": self.order["model"],
                "build_info": f"b{self.order['version']}-pretend",
            }
        )

    async def _slots(self, request: web.Request) -> web.Response:
        pace, running = self.batch.pace, len(self.batch.running)
        return web.json_response(
            [
                {"id": slot, "n_ctx": pace.context, "is_processing": slot < running}
                for slot in range(pace.users)
            ]
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        text = body.get("prompt", body.get("content"))
        if text is None and "messages" in body:
            text = completion.chat(body, self._manner()).prompt
        if not isinstance(text, str):
            raise BadRequest("prompt: Field required")
        numbers = self.tokenizer.numbers(text)
        if self.order["engine"] == "llamacpp":
            return web.json_response({"tokens": numbers})
        return web.json_response(
            {
                "count": len(numbers),
                "max_model_len": self.batch.pace.context,
                "tokens": numbers,
                "token_strs": None,
            }
        )

    async def _detokenize(self, request: web.Request) -> web.Response:
        text = self.tokenizer.text([int(each) for each in (await request.json()).get("tokens", ())])
        return web.json_response({"content" if self.order["engine"] == "llamacpp" else "prompt": text})

    # --- answers ---

    def _manner(self) -> AnswerStyle:
        garbles = self._shows("garbage")
        return AnswerStyle(
            self.order["thinks"], self.order["calls_tools"], self.batch.pace.context,
            (garbles.at or "soup") if garbles else None,
        )  # fmt: skip

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, is_chat=True)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, is_chat=False)

    async def _answer(self, request: web.Request, *, is_chat: bool) -> web.StreamResponse:
        body = await request.json()
        if not isinstance(body, dict):
            raise BadRequest("the body must be a JSON object")
        if self.order["engine"] != "llamacpp" and body.get("model") not in (None, self.order["served"]):
            return _error(404, f"The model `{body.get('model')}` does not exist.", "NotFoundError")
        if body.get("n", 1) != 1:
            raise BadRequest("n: the pretend engine gives one answer at a time")
        self.requests += 1
        if self._shows("http-500"):
            return _error(
                500,
                "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "InternalServerError",
            )
        asked = (
            completion.chat(body, self._manner())
            if is_chat
            else completion.complete(body, self._manner(), self.tokenizer)
        )
        sequence = ActiveAnswer(asked.prompt_tokens, list(asked.pieces), asked.text, blocks(asked.prompt))
        speaker = _Speaker(self, asked, sequence, is_chat)
        if not asked.pieces:
            sequence.out.put_nowait(None)
        else:
            self.batch.add(sequence)
        try:
            if body.get("stream"):
                return await self._stream(request, speaker, body)
            async for _ in speaker.heard():
                pass
            return web.json_response(speaker.whole())
        finally:
            sequence.is_gone = True

    async def _stream(
        self, request: web.Request, speaker: _Speaker, body: Mapping[str, Any]
    ) -> web.StreamResponse:
        answer = web.StreamResponse(
            headers={**PRETEND, "Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await answer.prepare(request)
        stall, drop = self._shows("stall"), self._shows("drop")
        middle = len(speaker.asked.pieces) // 2
        if first := speaker.opening():
            await _send(answer, first)
        async for pieces in speaker.heard():
            for chunk in speaker.chunks(pieces):
                await _send(answer, chunk)
            if stall and speaker.sent >= middle:
                await asyncio.sleep(stall.seconds)
                stall = None
            if drop and speaker.sent >= middle and request.transport:
                request.transport.abort()
                return answer
        await _send(answer, speaker.last())
        options = body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            await _send(answer, speaker.usage_chunk())
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer


class _Speaker:
    """One answer in OpenAI's words."""

    def __init__(self, server: SimServer, asked: Completion, sequence: ActiveAnswer, is_chat: bool) -> None:
        self.server, self.asked, self.sequence, self.is_chat = server, asked, sequence, is_chat
        self.sent = 0
        self.parts = {"reasoning": "", "content": "", "call": ""}
        self.is_call_named = False
        self.id = f"{'chatcmpl' if is_chat else 'cmpl'}-pretend-{server.requests}"
        self.reasoning = "reasoning" if server.order["engine"] == "vllm" else "reasoning_content"

    async def heard(self) -> AsyncIterator[list[tuple[str, str]]]:
        while (pieces := await self.sequence.out.get()) is not None:
            self.sent += len(pieces)
            for channel, text in pieces:
                self.parts[channel] += text
            yield pieces

    def opening(self) -> dict[str, Any] | None:
        return self._chunk({"delta": {"role": "assistant", "content": ""}}) if self.is_chat else None

    def chunks(self, pieces: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """One for each channel: tokens that were drafted and held come together."""
        joined: list[tuple[str, str]] = []
        for channel, text in pieces:
            if joined and joined[-1][0] == channel:
                joined[-1] = (channel, joined[-1][1] + text)
            else:
                joined.append((channel, text))
        return [self._chunk(self._said(channel, text)) for channel, text in joined]

    def _said(self, channel: str, text: str) -> dict[str, Any]:
        if not self.is_chat:
            return {"text": text}
        if channel == "call":
            call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
            if not self.is_call_named:
                self.is_call_named = True
                call |= {"id": f"call-{self.id}", "type": "function"}
                call["function"] = {"name": self.asked.calls[0][0], "arguments": text}
            return {"delta": {"tool_calls": [call]}}
        return {"delta": {self.reasoning if channel == "reasoning" else "content": text}}

    def last(self) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        return {**self._chunk({**said, "finish_reason": self.asked.finish}), **self._timings()}

    def usage_chunk(self) -> dict[str, Any]:
        return {**self._chunk({}), "choices": [], "usage": self._usage()}

    def whole(self) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.asked.finish, "logprobs": None}
        if self.is_chat:
            choice["message"] = self._message()
        else:
            choice["text"] = self.parts["content"]
        kind = "chat.completion" if self.is_chat else "text_completion"
        head = {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.server.order["served"],
        }
        return {**head, "choices": [choice], "usage": self._usage(), **self._timings()}

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.parts["content"]}
        if self.parts["reasoning"]:
            message[self.reasoning] = self.parts["reasoning"]
        if self.asked.calls:
            message["content"] = self.parts["content"] or None
            function = {"name": self.asked.calls[0][0], "arguments": self.parts["call"]}
            message["tool_calls"] = [{"id": f"call-{self.id}", "type": "function", "function": function}]
        return message

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {
            "id": self.id, "object": kind, "created": self.server.created,
            "model": self.server.order["served"], "choices": [{"index": 0, "finish_reason": None, **choice}],
        }  # fmt: skip

    def _usage(self) -> dict[str, Any]:
        lies = self.server._shows("bad-usage")
        completion = round(self.sent * lies.times) if lies else self.sent
        prompt = self.asked.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.sequence.cached},
        }

    def _timings(self) -> dict[str, Any]:
        """llama.cpp tells with each answer how long it took."""
        if self.server.order["engine"] != "llamacpp" or self.sequence.first is None:
            return {}
        now = asyncio.get_running_loop().time()
        read = max(1e-9, self.sequence.first - self.sequence.arrived)
        wrote = max(1e-9, now - self.sequence.first)
        new = self.asked.prompt_tokens - self.sequence.cached
        return {
            "timings": {
                "cache_n": self.sequence.cached,
                "prompt_n": new,
                "prompt_ms": 1000 * read,
                "prompt_per_second": new / read,
                "predicted_n": self.sent,
                "predicted_ms": 1000 * wrote,
                "predicted_per_second": max(0, self.sent - 1) / wrote,
            }
        }


async def _send(answer: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await answer.write(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n")


def _error(status: int, message: str, kind: str) -> web.Response:
    about = {"message": message, "type": kind, "code": status, "param": None}
    return web.json_response({"error": about}, status=status)
