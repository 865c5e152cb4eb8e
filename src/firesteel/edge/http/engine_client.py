"""The asynchronous client for an engine's API: health, models, metrics, completions with their timing.

Every call is bounded in time and in bytes, and a response that breaks the protocol becomes a readable error.
Bytes that are not UTF-8 become U+FFFD, so that checks of the text see them.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from firesteel.edge.http.answer import Answer, ToolCall
from firesteel.edge.http.sse import DONE, LineSplitter, event_data
from firesteel.edge.http.sync_client import bearer
from firesteel.errors import FiresteelError
from firesteel.printable import printable

MAX_BODY_BYTES = 16 * 2**20
MAX_TEXT_CHARS = 4 * 2**20
"""Of one answer; more than any model writes."""
_NO_RESPONSE = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError)


class EngineRefused(FiresteelError):
    """The engine answered with a status other than 200."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"the engine answered HTTP {status}: {printable(body)}", next="firesteel logs")
        self.status = status


async def is_healthy(url: str, *, timeout_s: float = 2, key: str | None = None) -> bool:
    return await status(f"{url}/health", timeout_s=timeout_s, key=key) == 200


async def status(address: str, *, timeout_s: float = 2, key: str | None = None) -> int | None:
    """The HTTP status of a GET; None when nothing answers."""
    try:
        async with _get(address, timeout_s, key) as response:
            return response.status
    except _NO_RESPONSE:
        return None


async def chat(
    url: str,
    model: str,
    prompt: str,
    *,
    max_tokens: int,
    stream: bool = True,
    extra: Mapping[str, Any] | None = None,
    timeout_s: float = 120,
    key: str | None = None,
) -> Answer:
    """Asks at temperature 0. Without streaming there is one time, and it is `first_token_s`."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
        **(extra or {}),
    }
    address, start = f"{url}/v1/chat/completions", time.perf_counter()
    if not stream:
        return _whole_answer(await _post_json(address, body, timeout_s, key), start)
    answer, lines = _StreamedAnswer(start), LineSplitter()
    async with _post(address, body, timeout_s, key) as response:
        async for piece in response.content.iter_any():
            for line in lines.feed(piece):
                answer.add_line(line)
        answer.add_line(lines.rest())
    return answer.finish()


def _whole_answer(document: dict[str, Any], start: float) -> Answer:
    choice, timings = _first_choice(document), document.get("timings")
    message = _map(choice.get("message"))
    return Answer(
        _text(message, "content"), _finish_reason(choice), *_counts(document.get("usage")),
        time.perf_counter() - start, 0.0,
        reasoning=_reasoning(message), tool_calls=_tool_calls(message),
        draft_tokens=_count(timings, "draft_n"), accepted_tokens=_count(timings, "draft_n_accepted"),
    )  # fmt: skip


async def complete(
    url: str, model: str, prompt: str, *, max_tokens: int, timeout_s: float = 120, key: str | None = None
) -> Answer:
    """Continues a raw prompt, without a chat template, at temperature 0."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    start = time.perf_counter()
    document = await _post_json(f"{url}/v1/completions", body, timeout_s, key)
    choice, took_s = _first_choice(document), time.perf_counter() - start
    return Answer(_text(choice, "text"), _finish_reason(choice), *_counts(document.get("usage")), took_s, 0.0)


async def count_tokens(
    url: str, model: str, text: str, *, timeout_s: float = 10, key: str | None = None
) -> int | None:
    """Counts tokens with the engine's own tokenizer; None where it has no `/tokenize`.

    vLLM reads `prompt` and answers `count`; llama.cpp reads `content` and answers `tokens`.
    """
    body = {"model": model, "prompt": text, "content": text, "add_special_tokens": False}
    try:
        document = await _post_json(f"{url}/tokenize", body, timeout_s, key)
    except FiresteelError:
        return None
    tokens = document.get("tokens")
    return _count(document, "count") or (len(tokens) if isinstance(tokens, list) else None)


async def metrics(url: str, *, timeout_s: float = 5, key: str | None = None) -> str | None:
    """The text of `/metrics`; None where there is none."""
    return await _get_text(f"{url}/metrics", timeout_s, key)


async def offered_models(
    url: str, *, timeout_s: float = 10, key: str | None = None
) -> tuple[dict[str, Any], ...]:
    """The models that `/v1/models` lists, as the engine describes them; empty where it lists none."""
    text = await _get_text(f"{url}/v1/models", timeout_s, key)
    rows = _json(text).get("data") if text is not None else None
    return tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()


async def _get_text(address: str, timeout_s: float, key: str | None) -> str | None:
    try:
        async with _get(address, timeout_s, key) as response:
            return await _body(response) if response.status == 200 else None
    except _NO_RESPONSE:
        return None


@dataclass(slots=True)
class _StreamedAnswer:
    """A streamed answer as it comes in."""

    start: float
    first: float = 0.0
    last: float = 0.0
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Any = None
    timings: dict[str, Any] = field(default_factory=dict)
    calls: dict[int, list[str]] = field(default_factory=dict)
    """By index: name and arguments so far."""
    is_done: bool = False

    def add_line(self, line: bytes) -> None:
        data = event_data(line)
        if data == DONE:
            self.is_done = True
        elif data is not None:
            self._add_chunk(_json(data))

    def _add_chunk(self, chunk: dict[str, Any]) -> None:
        if error := chunk.get("error"):
            raise FiresteelError(f"the engine answered with an error: {error}", next="firesteel logs")
        self.usage = chunk.get("usage") or self.usage
        self.timings = _map(chunk.get("timings")) or self.timings
        for choice in chunk.get("choices") or ():
            self.finish_reason = _finish_reason(choice) or self.finish_reason
            self._add_delta(_map(choice.get("delta")))

    def _add_delta(self, delta: dict[str, Any]) -> None:
        text, reasoning, calls = _text(delta, "content"), _reasoning(delta), delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._add_call(_map(call))
        # The first chunk often has a role and no text: it is not the first token.
        if text or reasoning or calls:
            self.last = time.perf_counter()
            self.first = self.first or self.last
        self.text += text
        self.reasoning += reasoning
        if len(self.text) + len(self.reasoning) > MAX_TEXT_CHARS:
            raise FiresteelError(
                f"the engine's answer passed {MAX_TEXT_CHARS:,} characters and went on", next="firesteel logs"
            )

    def _add_call(self, call: dict[str, Any]) -> None:
        """Name and arguments come in pieces; the index says to which call a piece belongs."""
        function, index = _map(call.get("function")), call.get("index")
        known = self.calls.setdefault(index if isinstance(index, int) else 0, ["", ""])
        known[0] += _text(function, "name")
        known[1] += _text(function, "arguments")

    def finish(self) -> Answer:
        return Answer(
            self.text, self.finish_reason, *_counts(self.usage),
            (self.first or time.perf_counter()) - self.start, self.last - self.first,
            reasoning=self.reasoning,
            tool_calls=tuple(ToolCall(*self.calls[index]) for index in sorted(self.calls)),
            is_whole=self.is_done or self.finish_reason is not None,
            draft_tokens=_count(self.timings, "draft_n"),
            accepted_tokens=_count(self.timings, "draft_n_accepted"),
        )  # fmt: skip


# --- reading JSON that may hold anything ---


def _tool_calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    functions = [_map(_map(call).get("function")) for call in (calls if isinstance(calls, list) else ())]
    return tuple(ToolCall(_text(function, "name"), _text(function, "arguments")) for function in functions)


def _reasoning(message: dict[str, Any]) -> str:
    """vLLM renamed `reasoning_content` to `reasoning`; some releases send both, with the same text."""
    return _text(message, "reasoning") or _text(message, "reasoning_content")


def _first_choice(document: dict[str, Any]) -> dict[str, Any]:
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _not_openai("no `choices`")
    return _map(choices[0])


def _finish_reason(choice: Any) -> str | None:
    return _text(_map(choice), "finish_reason") or None


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(document: dict[str, Any], name: str) -> str:
    text = document.get(name)
    return text if isinstance(text, str) else ""


def _counts(usage: Any) -> tuple[int | None, int | None]:
    return _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")


def _count(document: Any, name: str) -> int | None:
    """The engine's own count; None when the value is not a count."""
    count = _map(document).get(name)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_openai(str(error)) from error
    if not isinstance(document, dict):
        raise _not_openai("not an object")
    return document


def _not_openai(reason: str) -> FiresteelError:
    return FiresteelError(
        f"the engine's answer does not follow the OpenAI API: {reason}", next="firesteel logs"
    )


# --- requests ---


async def _post_json(
    address: str, body: Mapping[str, Any], timeout_s: float, key: str | None
) -> dict[str, Any]:
    async with _post(address, body, timeout_s, key) as response:
        return _json(await _body(response))


@asynccontextmanager
async def _post(
    address: str, body: Mapping[str, Any], timeout_s: float, key: str | None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The open response to a POST that the engine accepted."""
    try:
        async with (
            _client(timeout_s, key) as client,
            client.post(address, json=body, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise EngineRefused(response.status, (await _body(response))[:300])
            yield response
    except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError) as error:
        raise FiresteelError(
            f"the engine stopped answering: {type(error).__name__} {error}".rstrip(), next="firesteel logs"
        ) from error
    except (ValueError, AttributeError, TypeError) as error:
        raise _not_openai(str(error)) from error


@asynccontextmanager
async def _get(address: str, timeout_s: float, key: str | None) -> AsyncIterator[aiohttp.ClientResponse]:
    async with _client(timeout_s, key) as client, client.get(address, allow_redirects=False) as response:
        yield response


async def _body(response: aiohttp.ClientResponse) -> str:
    data = bytearray()
    async for chunk in response.content.iter_chunked(2**16):
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise FiresteelError(
                f"the engine's answer is longer than {MAX_BODY_BYTES:,} bytes", next="firesteel logs"
            )
    return data.decode("utf-8", "replace")


def _client(timeout_s: float, key: str | None) -> aiohttp.ClientSession:
    # trust_env=False: a proxy from the environment must not come between us and an engine on this host.
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout_s), trust_env=False, headers=bearer(key)
    )
