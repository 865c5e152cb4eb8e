"""The HTTP server of a simulated engine: OpenAI's endpoints, and the engine's own for health and metrics.

Every response carries `X-Firesteel-Simulated`, and `/v1/models` says it too. It listens on loopback only.
`/metrics` has each engine's own names, as of vLLM 0.11 to 0.32, SGLang 0.5.23, llama-server b11549:
https://docs.vllm.ai/en/latest/usage/metrics/ and the engines' own sources, seen 2026-11-15.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from firesteel.edge.sim import completion
from firesteel.edge.sim.batch import ActiveAnswer, Batch
from firesteel.edge.sim.completion import AnswerStyle, BadRequest, Completion
from firesteel.edge.sim.spark import SimFault
from firesteel.edge.sim.tokenizer import Tokenizer, blocks

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
        """A fault of serving, once this many requests were served."""
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
        lines = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp}[self.config["engine"]]
        return web.Response(text="\n".join(lines(self.config["served"], self.batch)) + "\n")

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


_TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0,
)  # fmt: skip


def _vllm(served: str, batch: Batch) -> Iterable[str]:
    labels, speed, counters = f'engine="0",model_name="{served}"', batch.speed, batch.counters
    yield "# firesteel's simulated Spark: nothing here was measured on a GPU"
    gauges = {
        "vllm:num_requests_running": len(batch.running),
        "vllm:num_requests_waiting": len(batch.waiting),
        "vllm:kv_cache_usage_perc": batch.pool_share,
    }
    yield from _metrics("gauge", labels, gauges)
    totals = {
        "vllm:prompt_tokens_total": counters.prompt_tokens,
        "vllm:prompt_tokens_cached_total": counters.cached_tokens,
        "vllm:generation_tokens_total": counters.generated,
        "vllm:prefix_cache_queries_total": counters.prompt_tokens,
        "vllm:prefix_cache_hits_total": counters.cached_tokens,
        "vllm:num_preemptions_total": 0,
    }
    yield from _metrics("counter", labels, totals)
    stopped = f'engine="0",finished_reason="stop",model_name="{served}"'
    yield from _metrics("counter", stopped, {"vllm:request_success_total": counters.finished})
    config = {
        "block_size": "16", "cache_dtype": "auto", "enable_prefix_caching": str(speed.caches_prefixes),
        "engine": "0", "num_gpu_blocks": str(speed.pool_blocks),
        "kv_cache_size_tokens": str(speed.pool_tokens),
        "kv_cache_max_concurrency": f"{speed.concurrency:.6f}",
    }  # fmt: skip
    config_labels = ",".join(f'{name}="{value}"' for name, value in config.items())
    yield from _metrics("gauge", config_labels, {"vllm:cache_config_info": 1.0})
    yield from _histogram("vllm:time_to_first_token_seconds", labels, counters.first_token_s)
    if speed.drafts:
        drafts = {
            "vllm:spec_decode_num_drafts_total": counters.drafts,
            "vllm:spec_decode_num_draft_tokens_total": counters.drafted,
            "vllm:spec_decode_num_accepted_tokens_total": counters.accepted,
        }
        yield from _metrics("counter", labels, drafts)
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        yield f"# TYPE {name} counter"
        for position, count in enumerate(counters.by_position):
            yield f'{name}{{{labels},position="{position}"}} {float(count)}'


def _sglang(served: str, batch: Batch) -> Iterable[str]:
    labels, counters = f'model_name="{served}"', batch.counters
    gauges = {
        "sglang:num_running_reqs": len(batch.running),
        "sglang:num_queue_reqs": len(batch.waiting),
        "sglang:token_usage": batch.pool_share,
        "sglang:cache_hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
    }
    if batch.speed.drafts:
        gauges["sglang:spec_accept_length"] = 1 + counters.accepted / max(1, counters.drafts)
        gauges["sglang:spec_accept_rate"] = counters.accepted / max(1, counters.drafted)
    yield from _metrics("gauge", labels, gauges)
    yield from _metrics("counter", labels, {"sglang:prompt_tokens_total": counters.prompt_tokens})
    yield from _metrics("counter", labels, {"sglang:generation_tokens_total": counters.generated})


def _llamacpp(served: str, batch: Batch) -> Iterable[str]:
    counters = batch.counters
    totals = {
        "llamacpp:prompt_tokens_total": counters.prompt_tokens - counters.cached_tokens,
        "llamacpp:prompt_tokens_cached_total": counters.cached_tokens,
        "llamacpp:prompt_seconds_total": counters.prompt_s,
        "llamacpp:tokens_predicted_total": counters.generated,
        "llamacpp:tokens_predicted_seconds_total": counters.decode_s,
    }
    yield from _metrics("counter", "", totals)
    prompt_s, decode_s = counters.prompt_s or 1.0, counters.decode_s or 1.0
    gauges = {
        "llamacpp:prompt_tokens_seconds": (counters.prompt_tokens - counters.cached_tokens) / prompt_s,
        "llamacpp:predicted_tokens_seconds": counters.generated / decode_s,
        "llamacpp:requests_processing": len(batch.running),
        "llamacpp:requests_deferred": len(batch.waiting),
    }
    yield from _metrics("gauge", "", gauges)


def _metrics(kind: str, labels: str, values: Mapping[str, float]) -> Iterable[str]:
    for name, value in values.items():
        yield f"# TYPE {name} {kind}"
        yield f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {float(value)}"


def _histogram(name: str, labels: str, values: list[float]) -> Iterable[str]:
    yield f"# TYPE {name} histogram"
    for bound in _TTFT_BUCKETS_S:
        count = sum(1 for value in values if value <= bound)
        yield f'{name}_bucket{{{labels},le="{bound}"}} {float(count)}'
    yield f'{name}_bucket{{{labels},le="+Inf"}} {float(len(values))}'
    yield f"{name}_sum{{{labels}}} {sum(values)}"
    yield f"{name}_count{{{labels}}} {float(len(values))}"
