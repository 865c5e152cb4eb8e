"""A server that garbles on purpose: OpenAI's protocol over real sockets, right or wrong in one chosen way.

It answers `verify`'s own questions from a small table, word for token, so that every check can be met and
each fault can be put into an answer that is otherwise right. It is no model and says so: `garbler`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "garbler"
KEY = "right-key"
COMPUTER = (
    "A computer is a machine that can be told to carry out a list of steps, and that does so very fast. "
    "It has a processor, which does the work, and a memory, in which the steps and the data are kept. "
    "People use it to write, to draw, to count and to talk with each other. In the beginning it filled a "
    "whole room, and today there is one in every pocket. What makes it special is that the same machine can "
    "do many things, because what it does is only a matter of what it is told."
)
FRENCH = (
    "Un ordinateur est une machine qui exécute des suites d'instructions très rapidement. Il se compose d'un "
    "processeur, d'une mémoire et de périphériques. On s'en sert pour écrire, dessiner, calculer et parler "
    "avec les autres, chez soi comme au bureau."
)
CHINESE = "计算机是一种能够按照程序自动处理数据的电子设备。它由处理器、存储器以及输入输出设备组成。"
SOUP = (
    "ijuana bios erasakingisiv wisii biosaldsami typicallygs inknownensis akesdenivials umnissoliciesumni "
    "ugams wisben boakes gsresuck okesrish orumni ucksrish rishokes ensisresok ordokes umniorgs lekhivial "
    "kinsathab resknown khresh askof umnisuper Askkh kingkhial aryirk"
)
THOUGHT = "The user wants 12 times 17. Ten times 17 is 170 and two times 17 is 34, so it is 204."
MUSING = (
    "Somebody asks me something. I should check what is wanted here, then answer it in plain words, with an "
    "example where that helps, and keep it short. Let me see what people would like to know about this. "
)
FACTS = {
    "What is 2+2?": "The answer is 4.",
    "What is 12*17?": "12*17 is 204.",
    "What is the opposite of hot?": "The opposite of hot is cold.",
    "What colour is the sky on a clear day?": "The sky is blue on a clear day.",
    "Explain what a computer is.": COMPUTER,
}

FAULTS = (
    "loops", "soup", "other language", "other script", "empty", "broken bytes", "different each time",
    "ignores stop", "ignores max_tokens", "stream differs", "usage lies", "no usage", "leaks tokens",
    "thinks forever", "thoughts in the answer", "tool call as text", "bad tool arguments", "says 500",
    "stalls", "breaks off", "loses the needle", "garbage after long prompts", "wrong facts",
    "drafts nothing right", "small cache", "slow",
    "no grammar", "NaN", "open to all", "refuses settings", "not JSON", "endless", "escape codes",
)  # fmt: skip


@dataclass(slots=True)
class Garbler:
    fault: str | None = None
    parses_tools: bool = True
    parses_thoughts: bool = True
    drafts: bool = False
    key: str | None = None
    token_s: float = 0.0
    thoughts: int = 0
    """Words of thought before each answer to `verify`'s questions, on a channel of their own: `stop` does not
    look at them, `max_tokens` counts them."""
    answers: int | None = None
    """So many chats it answers; then it closes each connection, as one does that was killed."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    generated: int = 0
    tokenized: int = 0
    """How often `/tokenize` was asked in vain."""

    def words_for(self, body: dict[str, Any]) -> str:
        prompt: str = body["messages"][-1]["content"]
        if schema := body.get("response_format"):
            properties = schema["json_schema"]["schema"]["properties"]
            return json.dumps({name: one["enum"][0] for name, one in properties.items()}, ensure_ascii=False)
        if body.get("temperature", 0) > 1:
            return f"Once there were {body['seed']} lamps, and all of them were blue."
        if asked := re.search(r"What is the password of the ([\w ]+)\?", prompt):
            found = re.search(rf"password of the {asked[1]} is ([\w-]+)", prompt)
            return self.needle(found[1] if found else "not there")
        if prompt not in FACTS:
            return COMPUTER
        return self.spoil(FACTS[prompt], body)

    def needle(self, word: str) -> str:
        if self.fault == "loses the needle":
            return "The text does not say what it is."
        if self.fault == "garbage after long prompts":
            return "!" * 80
        return f"The password is {word}."

    def spoil(self, text: str, body: dict[str, Any]) -> str:
        is_long = text == COMPUTER
        spoiled = {
            "loops": "A computer is a machine. " + "It is a machine. " * 40,
            "soup": SOUP,
            "other language": FRENCH,
            "other script": CHINESE,
            "empty": "",
            "broken bytes": text.replace(" is ", " \udcff is ", 1),
            "escape codes": "\x1b[31m" + text,
            "leaks tokens": text + "<|im_end|>",
        }
        if self.fault in spoiled and (is_long or self.fault in ("empty", "leaks tokens")):
            return spoiled[self.fault]
        if self.fault == "different each time" and is_long:
            return f"Today is day {len(self.asked)}. {text}"
        if self.fault == "stream differs" and is_long and not body.get("stream"):
            return text.replace("machine that can be told", "device that may be asked", 1)
        if self.fault == "wrong facts" and not is_long:
            return f"{body['messages'][-1]['content']} I would like to answer that with the number 7."
        return text

    def cut(self, text: str, body: dict[str, Any]) -> tuple[list[str], str]:
        """Tokens are words with the space before them."""
        finish = "stop"
        if self.fault != "ignores stop":
            for stop in body.get("stop") or ():
                text = text.partition(stop)[0]
        tokens = re.findall(r"\s*\S+", text)
        limit = body["max_tokens"]
        if self.fault != "ignores max_tokens" and len(tokens) >= limit:
            tokens, finish = tokens[:limit], "length"
        return tokens, finish


def make_app(garbler: Garbler) -> web.Application:
    app = web.Application(client_max_size=2**24)
    handlers: dict[str, Callable[[Garbler, web.Request], Any]] = {
        "GET /health": _health, "GET /v1/models": _models, "GET /metrics": _metrics,
        "POST /tokenize": _tokenize, "POST /v1/chat/completions": _chat,
    }  # fmt: skip
    for words, handler in handlers.items():
        method, path = words.split()
        app.router.add_route(method, path, _guarded(garbler, handler))
    return app


def _guarded(garbler: Garbler, handler: Callable[[Garbler, web.Request], Any]) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        if garbler.key and garbler.fault != "open to all" and request.path != "/health":
            given = request.headers.get("Authorization", "")
            if given != f"Bearer {garbler.key}":
                return web.json_response({"error": {"message": "no"}}, status=401)
        found: web.StreamResponse = await handler(garbler, request)
        return found

    return answer


async def _health(garbler: Garbler, request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")


async def _models(garbler: Garbler, request: web.Request) -> web.StreamResponse:
    return web.json_response({"data": [{"id": MODEL, "max_model_len": 8192}]})


async def _tokenize(garbler: Garbler, request: web.Request) -> web.StreamResponse:
    if garbler.fault == "no tokenizer":
        garbler.tokenized += 1
        return web.Response(status=500, text="Internal Server Error")
    tokens = re.findall(r"\s*\S+", (await request.json())["prompt"])
    return web.json_response({"count": len(tokens), "tokens": list(range(len(tokens)))})


async def _metrics(garbler: Garbler, request: web.Request) -> web.StreamResponse:
    size = 512 if garbler.fault == "small cache" else 40_000
    lines = [
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{size // 16}",engine="0"}} 1.0',
        f'vllm:generation_tokens_total{{engine="0"}} {garbler.generated}',
    ]
    if garbler.fault == "NaN":
        lines.append(f'vllm:corrupted_requests_total{{engine="0"}} {len(garbler.asked)}')
    if garbler.drafts:
        drafted = 3 * garbler.generated
        taken = 0 if garbler.fault == "drafts nothing right" else drafted // 2
        lines += [
            f'vllm:spec_decode_num_drafts_total{{engine="0"}} {garbler.generated}',
            f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}',
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {taken}',
        ]
    return web.Response(text="# HELP x y\n" + "\n".join(lines) + "\n")


async def _chat(garbler: Garbler, request: web.Request) -> web.StreamResponse:
    body = await request.json()
    garbler.asked.append(body)
    if garbler.answers is not None and len(garbler.asked) > garbler.answers:
        assert request.transport is not None
        request.transport.abort()
    if garbler.fault == "says 500":
        return web.json_response({"error": {"message": "CUDA error: illegal memory access"}}, status=500)
    if garbler.fault == "no grammar" and "response_format" in body:
        return web.json_response({"error": {"message": "EngineCore encountered an issue"}}, status=500)
    if garbler.fault == "refuses settings" and "top_k" in body:
        return web.json_response({"error": {"message": "top_k is not allowed"}}, status=400)
    if garbler.fault == "not JSON":
        return web.Response(text="<html>It works!</html>", content_type="text/html")
    if garbler.fault == "stalls":
        await asyncio.sleep(30)
    message, tokens, finish = _compose(garbler, body)
    garbler.generated += len(tokens)
    counts = {
        "prompt_tokens": sum(len(message["content"].split()) for message in body["messages"]) + 9,
        "completion_tokens": len(tokens),
    }
    if garbler.fault == "usage lies":
        counts["completion_tokens"] = max(1, len(tokens) // 3)
    usage = None if garbler.fault == "no usage" else counts
    if body.get("stream"):
        return await _stream(garbler, request, message, tokens, finish, usage)
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
    if body.get("logprobs"):
        choice["logprobs"] = {"content": [{"token": token, "logprob": -0.1} for token in tokens]}
    return web.Response(body=_bytes({"choices": [choice], "usage": usage}), content_type="application/json")


def _compose(garbler: Garbler, body: dict[str, Any]) -> tuple[dict[str, Any], list[str], str]:
    """The message, its tokens, and why it ended."""
    if body.get("tools") and garbler.parses_tools:
        return _tool_message(garbler)
    prompt = body["messages"][-1]["content"]
    if garbler.parses_thoughts and prompt == "What is 12*17?":
        return _thinking_message(garbler, body)
    if garbler.thoughts:
        return _after_thoughts(garbler, body)
    tokens, finish = garbler.cut(garbler.words_for(body), body)
    return {"role": "assistant", "content": "".join(tokens)}, tokens, finish


def _after_thoughts(garbler: Garbler, body: dict[str, Any]) -> tuple[dict[str, Any], list[str], str]:
    """As gpt-oss does: thoughts that the answer says again in other words, and then the answer."""
    limit = body["max_tokens"]
    thought = re.findall(r"\s*\S+", MUSING * (1 + garbler.thoughts // 10))[: min(garbler.thoughts, limit)]
    said, finish = garbler.cut(garbler.words_for(body), {**body, "max_tokens": limit - len(thought)})
    message = {"role": "assistant", "reasoning": "".join(thought), "content": "".join(said)}
    return message, [*thought, *said], finish


def _tool_message(garbler: Garbler) -> tuple[dict[str, Any], list[str], str]:
    arguments = '{"city": "Paris"'
    if garbler.fault != "bad tool arguments":
        arguments += "}"
    if garbler.fault == "tool call as text":
        text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
        return {"role": "assistant", "content": text}, text.split(), "stop"
    call = {
        "index": 0,
        "id": "1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": arguments},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}, ["call"] * 8, "tool_calls"


def _thinking_message(garbler: Garbler, body: dict[str, Any]) -> tuple[dict[str, Any], list[str], str]:
    thought, answer = THOUGHT, "12*17 is 204."
    if garbler.fault == "thinks forever":
        long = "Wait, but is it so? I should check it once more, from the start. " * 200
        tokens = re.findall(r"\s*\S+", long)[: body["max_tokens"]]
        return {"role": "assistant", "content": None, "reasoning": "".join(tokens)}, tokens, "length"
    if garbler.fault == "thoughts in the answer":
        text = f"<think>{thought}</think>{answer}"
        return {"role": "assistant", "content": text}, text.split(), "stop"
    message = {"role": "assistant", "reasoning": thought, "content": answer}
    return message, f"{thought} {answer}".split(), "stop"


async def _stream(
    garbler: Garbler,
    request: web.Request,
    message: dict[str, Any],
    tokens: list[str],
    finish: str,
    usage: dict[str, int] | None,
) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for number, delta in enumerate(_deltas(message)):
        if garbler.fault == "breaks off" and number > 5:
            return answer
        await answer.write(_line({"choices": [{"index": 0, "delta": delta}]}))
        await asyncio.sleep(0.01 if garbler.fault == "slow" else garbler.token_s)
    while garbler.fault == "endless":
        await answer.write(_line({"choices": [{"index": 0, "delta": {"content": " more of it" * 20_000}}]}))
    await answer.write(_line({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    await answer.write(_line({"choices": [], "usage": usage}))
    await answer.write(b"data: [DONE]\n\n")
    return answer


def _deltas(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message in pieces, as engines send them: tool calls split inside their arguments."""
    found: list[dict[str, Any]] = []
    for name in ("reasoning", "content"):
        found += [{name: piece} for piece in re.findall(r"\s*\S+", message.get(name) or "")]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        head = {"index": 0, "id": call["id"], "function": {"name": function["name"], "arguments": ""}}
        found.append({"tool_calls": [head]})
        for piece in re.findall(r".{1,5}", function["arguments"]):
            found.append({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    return found


def _line(piece: dict[str, Any]) -> bytes:
    return b"data: " + _bytes(piece) + b"\n\n"


def _bytes(value: dict[str, Any]) -> bytes:
    """What Python keeps as a lone surrogate goes out as the byte that is no UTF-8."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")


@asynccontextmanager
async def serving(garbler: Garbler) -> AsyncIterator[str]:
    """Its address, for as long as it serves."""
    runner = web.AppRunner(make_app(garbler), shutdown_timeout=0.2, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        sockets = runner.addresses
        yield f"http://127.0.0.1:{sockets[0][1]}"
    finally:
        await runner.cleanup()
