"""The HTTP server of a simulated engine: OpenAI's endpoints, and the engine's own for health and metrics.

Every response carries `X-Firesteel-Simulated`, and `/v1/models` says it too. It listens on loopback only.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from firesteel.sim.engine import metrics
from firesteel.sim.engine.batch import ActiveAnswer, Batch
from firesteel.sim.model import completion
from firesteel.sim.model.completion import AnswerStyle, BadRequest, Completion
from firesteel.sim.model.tokenizer import Tokenizer, blocks
from firesteel.sim.spark import SimFault

_HEADERS = {"X-Firesteel-Simulated": "nothing here was measured", "Server": "firesteel-simulated-engine"}
_OPEN = ("/health", "/metrics", "/version", "/ping")
"""Paths that an engine serves without a key."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SimServer:
    def __init__(
        self, config: Mapping[str, Any], batch: Batch, faults: Mapping[str, SimFault], key: str | None
    ) -> None:
        self.config, self.batch, self.faults, self.key = config, batch, faults, key
        self.is_ready = False
        self.requests = 0
        self.tokenizer = Tokenizer()
        self.created = int(time.time())
        batch.is_stuck = lambda: self.active_fault("hang") is not None

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._middleware], client_max_size=64 * 2**20)
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
                web.post("/v1/chat/completions", partial(self._answer, is_chat=True)),
                web.post("/v1/completions", partial(self._answer, is_chat=False)),
            ]
        )
        return app

    # --- every request ---

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = self._refusal(request) or await handler(request)
        except BadRequest as error:
            response = _error(400, str(error), "BadRequestError")
        except (ValueError, TypeError, AttributeError) as error:
            response = _error(400, f"the body is not what was expected: {error}", "BadRequestError")
        except web.HTTPException as error:
            response = _error(error.status, error.reason, "NotFoundError")
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not self.is_ready:
            return _error(503, "Loading model", "unavailable_error")
        needs_key = self.key and request.path not in _OPEN
        if needs_key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, "Unauthorized", "invalid_request_error")
        return None

    def active_fault(self, kind: str) -> SimFault | None:
        """A fault of serving, once so many requests were served."""
        fault = self.faults.get(kind)
        return fault if fault and self.requests > fault.after else None

    # --- about the engine ---

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"}) if self.config["engine"] == "llamacpp" else web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": self.config["served"], "object": "model", "created": self.created,
            "owned_by": "firesteel-simulated", "simulated": True, "root": self.config["model"],
            "max_model_len": self.batch.speed.context, "meta": {"n_ctx": self.batch.speed.context},
        }  # fmt: skip
        return web.json_response({"object": "list", "data": [model]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.config["version"], "simulated": True})

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.config["metrics"]:
            message = "This server does not support metrics endpoint. Start it with `--metrics`"
            return _error(501, message, "not_supported_error")
        return web.Response(text=metrics.text(self.config["engine"], self.config["served"], self.batch))

    async def _props(self, request: web.Request) -> web.Response:
        speed = self.batch.speed
        return web.json_response(
            {
                "simulated": True,
                "total_slots": speed.users,
                "default_generation_settings": {"n_ctx": speed.context},
                "model_path": self.config["model"],
                "build_info": f"b{self.config['version']}-simulated",
            }
        )

    async def _slots(self, request: web.Request) -> web.Response:
        speed, running = self.batch.speed, len(self.batch.running)
        slots = range(speed.users)
        return web.json_response(
            [{"id": slot, "n_ctx": speed.context, "is_processing": slot < running} for slot in slots]
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        text = body.get("prompt", body.get("content"))
        if text is None and "messages" in body:
            text = completion.chat(body, self._style()).prompt
        if not isinstance(text, str):
            raise BadRequest("prompt: Field required")
        numbers = self.tokenizer.numbers(text)
        if self.config["engine"] == "llamacpp":
            return web.json_response({"tokens": numbers})
        context = self.batch.speed.context
        body = {"count": len(numbers), "max_model_len": context, "tokens": numbers, "token_strs": None}
        return web.json_response(body)

    async def _detokenize(self, request: web.Request) -> web.Response:
        text = self.tokenizer.text([int(number) for number in (await request.json()).get("tokens", ())])
        return web.json_response({"content" if self.config["engine"] == "llamacpp" else "prompt": text})

    # --- answers ---

    def _style(self) -> AnswerStyle:
        garbage = self.active_fault("garbage")
        return AnswerStyle(
            self.config["thinks"], self.config["calls_tools"], self.batch.speed.context,
            (garbage.at or "soup") if garbage else None,
        )  # fmt: skip

    async def _answer(self, request: web.Request, *, is_chat: bool) -> web.StreamResponse:
        body = await request.json()
        if not isinstance(body, dict):
            raise BadRequest("the body must be a JSON object")
        # llama.cpp serves one model and ignores the name in a request.
        if self.config["engine"] != "llamacpp" and body.get("model") not in (None, self.config["served"]):
            return _error(404, f"The model `{body.get('model')}` does not exist.", "NotFoundError")
        if body.get("n", 1) != 1:
            raise BadRequest("n: the simulated engine gives one answer at a time")
        if body.get("logprobs"):
            raise BadRequest("logprobs: the simulated engine has no probabilities")
        self.requests += 1
        if self.active_fault("http-500"):
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            return _error(500, message, "InternalServerError")
        if is_chat:
            answer = completion.chat(body, self._style())
        else:
            answer = completion.complete(body, self._style(), self.tokenizer)
        sequence = ActiveAnswer(answer.prompt_tokens, list(answer.pieces), answer.text, blocks(answer.prompt))
        formatter = _Formatter(self, answer, sequence, is_chat)
        if answer.pieces:
            self.batch.add(sequence)
        else:
            sequence.out.put_nowait(None)
        try:
            if body.get("stream"):
                return await self._stream(request, formatter, body)
            async for _ in formatter.steps():
                pass
            return web.json_response(formatter.response())
        finally:
            sequence.is_gone = True

    async def _stream(
        self, request: web.Request, formatter: _Formatter, body: Mapping[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={**_HEADERS, "Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        stall, drop = self.active_fault("stall"), self.active_fault("drop")
        middle = len(formatter.answer.pieces) // 2
        if formatter.is_chat:
            await _send(response, formatter.chunk({"delta": {"role": "assistant", "content": ""}}))
        async for pieces in formatter.steps():
            for chunk in formatter.chunks(pieces):
                await _send(response, chunk)
            if stall and formatter.sent >= middle:
                await asyncio.sleep(stall.seconds)
                stall = None
            if drop and formatter.sent >= middle and request.transport:
                request.transport.abort()  # without the end of the chunked body, as a crash would
                return response
        await _send(response, formatter.last_chunk())
        options = body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            await _send(response, formatter.usage_chunk())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


class _Formatter:
    """One answer in the format of OpenAI's API, whole or in chunks."""

    def __init__(self, server: SimServer, answer: Completion, sequence: ActiveAnswer, is_chat: bool) -> None:
        self.server, self.answer, self.sequence, self.is_chat = server, answer, sequence, is_chat
        self.sent = 0
        self.parts = {"reasoning": "", "content": "", "call": ""}
        self.is_call_named = False
        self.id = f"{'chatcmpl' if is_chat else 'cmpl'}-simulated-{server.requests}"
        self.reasoning = "reasoning" if server.config["engine"] == "vllm" else "reasoning_content"

    async def steps(self) -> AsyncIterator[list[tuple[str, str]]]:
        """The pieces that each step of the batch gives, until the answer is complete."""
        while (pieces := await self.sequence.out.get()) is not None:
            self.sent += len(pieces)
            for channel, text in pieces:
                self.parts[channel] += text
            yield pieces

    def chunks(self, pieces: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """One per channel: a token and the accepted drafts after it come together."""
        joined: list[tuple[str, str]] = []
        for channel, text in pieces:
            if joined and joined[-1][0] == channel:
                joined[-1] = (channel, joined[-1][1] + text)
            else:
                joined.append((channel, text))
        return [self.chunk(self._choice(channel, text)) for channel, text in joined]

    def _choice(self, channel: str, text: str) -> dict[str, Any]:
        if not self.is_chat:
            return {"text": text}
        if channel == "call":
            call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
            if not self.is_call_named:
                self.is_call_named = True
                call |= {"id": f"call-{self.id}", "type": "function"}
                call["function"] = {"name": self.answer.calls[0][0], "arguments": text}
            return {"delta": {"tool_calls": [call]}}
        return {"delta": {self.reasoning if channel == "reasoning" else "content": text}}

    def last_chunk(self) -> dict[str, Any]:
        choice: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        return {**self.chunk({**choice, "finish_reason": self.answer.finish}), **self._timings()}

    def usage_chunk(self) -> dict[str, Any]:
        return {**self.chunk({}), "choices": [], "usage": self._usage()}

    def response(self) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.answer.finish, "logprobs": None}
        if self.is_chat:
            choice["message"] = self._message()
        else:
            choice["text"] = self.parts["content"]
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {
            "id": self.id, "object": kind, "created": int(time.time()), "model": self.server.config["served"],
            "choices": [choice], "usage": self._usage(), **self._timings(),
        }  # fmt: skip

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.parts["content"]}
        if self.parts["reasoning"]:
            message[self.reasoning] = self.parts["reasoning"]
        if self.answer.calls:
            message["content"] = self.parts["content"] or None
            function = {"name": self.answer.calls[0][0], "arguments": self.parts["call"]}
            message["tool_calls"] = [{"id": f"call-{self.id}", "type": "function", "function": function}]
        return message

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {
            "id": self.id, "object": kind, "created": self.server.created,
            "model": self.server.config["served"], "choices": [{"index": 0, "finish_reason": None, **choice}],
        }  # fmt: skip

    def _usage(self) -> dict[str, Any]:
        fault = self.server.active_fault("bad-usage")
        completion = round(self.sent * fault.times) if fault else self.sent
        prompt = self.answer.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.sequence.cached},
        }

    def _timings(self) -> dict[str, Any]:
        """llama.cpp sends the timing of each answer."""
        if self.server.config["engine"] != "llamacpp" or self.sequence.first is None:
            return {}
        now = asyncio.get_running_loop().time()
        prompt_s = max(1e-9, self.sequence.first - self.sequence.arrived)
        decode_s = max(1e-9, now - self.sequence.first)
        read_tokens = self.answer.prompt_tokens - self.sequence.cached
        return {
            "timings": {
                "cache_n": self.sequence.cached,
                "prompt_n": read_tokens,
                "prompt_ms": 1000 * prompt_s,
                "prompt_per_second": read_tokens / prompt_s,
                "predicted_n": self.sent,
                "predicted_ms": 1000 * decode_s,
                "predicted_per_second": max(0, self.sent - 1) / decode_s,
            }
        }


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n")


def _error(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "code": status, "param": None}
    return web.json_response({"error": error}, status=status)
