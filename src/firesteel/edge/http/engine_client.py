"""The engine over HTTP: is it there, and what does it answer, with the times at which the answer came.

Every call is bounded in time and in bytes, and an answer that is not what the protocol says becomes a
sentence. Bytes that are not UTF-8 become U+FFFD, so that whoever judges the text sees them.
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
from firesteel.errors import FiresteelError

MAX_BODY_BYTES = 16 * 2**20
MAX_TEXT_CHARS = 4 * 2**20
"""Of one answer; longer than any model's longest."""


class EngineRefused(FiresteelError):
    """The engine answered, and not with 200."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"the engine answered HTTP {status}: {said}", next="firesteel logs")
        self.status = status


async def is_healthy(url: str, *, timeout_s: float = 2, key: str | None = None) -> bool:
    return await status(f"{url}/health", timeout_s=timeout_s, key=key) == 200


async def status(address: str, *, timeout_s: float = 2, key: str | None = None) -> int | None:
    """The HTTP status of a GET; None when nothing answers."""
    try:
        async with _client(timeout_s, key) as client, client.get(address, allow_redirects=False) as answer:
            return answer.status
    except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError):
        return None


async def chat(
    url: str,
    model: str,
    prompt: str,
    *,
    max_tokens: int,
    extra: Mapping[str, Any] | None = None,
    timeout_s: float = 120,
    key: str | None = None,
) -> Answer:
    """Asks at temperature 0, as a stream, with usage at its end."""
    body = {
        **_chat_body(model, prompt, max_tokens),
        "stream": True,
        "stream_options": {"include_usage": True},
        **(extra or {}),
    }
    heard = _Heard(time.perf_counter())
    async with _post(f"{url}/v1/chat/completions", body, timeout_s, key) as answer:
        async for line in answer.content:
            heard.take_line(line)
    return heard.answer()


async def chat_unstreamed(
    url: str,
    model: str,
    prompt: str,
    *,
    max_tokens: int,
    extra: Mapping[str, Any] | None = None,
    timeout_s: float = 120,
    key: str | None = None,
) -> Answer:
    """The same at once, not as a stream: there is one time, and it is `first_token_s`."""
    body = {**_chat_body(model, prompt, max_tokens), "stream": False, **(extra or {})}
    start = time.perf_counter()
    async with _post(f"{url}/v1/chat/completions", body, timeout_s, key) as answer:
        found = _json(await _body(answer))
    choice = _first_choice(found)
    message = _map(choice.get("message"))
    took = time.perf_counter() - start
    return Answer(
        _text(message, "content"), _finish(choice), *_counts(found.get("usage")), took, 0.0,
        reasoning=_reasoning(message), tool_calls=_whole_calls(message),
        draft_tokens=_drafted(found, "draft_n"), accepted_tokens=_drafted(found, "draft_n_accepted"),
    )  # fmt: skip


async def complete(
    url: str, model: str, prompt: str, *, max_tokens: int, timeout_s: float = 120, key: str | None = None
) -> Answer:
    """A raw continuation of the prompt, with no chat template, at temperature 0."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    start = time.perf_counter()
    async with _post(f"{url}/v1/completions", body, timeout_s, key) as answer:
        found = _json(await _body(answer))
    choice = _first_choice(found)
    return Answer(
        _text(choice, "text"), _finish(choice), *_counts(found.get("usage")), time.perf_counter() - start, 0.0
    )


async def count_tokens(
    url: str, model: str, text: str, *, timeout_s: float = 10, key: str | None = None
) -> int | None:
    """How many tokens the engine's own tokenizer makes of a text; None where it has no `/tokenize`.

    vLLM reads `prompt` and answers `count`; llama.cpp reads `content` and answers `tokens`.
    """
    body = {"model": model, "prompt": text, "content": text, "add_special_tokens": False}
    try:
        async with _post(f"{url}/tokenize", body, timeout_s, key) as answer:
            found = _json(await _body(answer))
    except FiresteelError:
        return None
    tokens = found.get("tokens")
    return _count(found, "count") or (len(tokens) if isinstance(tokens, list) else None)


async def metrics(url: str, *, timeout_s: float = 5, key: str | None = None) -> str | None:
    """What `/metrics` shows; None where there is none."""
    return await _fetch(f"{url}/metrics", timeout_s, key)


async def offered_models(
    url: str, *, timeout_s: float = 10, key: str | None = None
) -> tuple[dict[str, Any], ...]:
    """The models that `/v1/models` lists, as the engine describes them; empty where it lists none."""
    text = await _fetch(f"{url}/v1/models", timeout_s, key)
    rows = _json(text).get("data") if text is not None else None
    return tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()


async def _fetch(address: str, timeout_s: float, key: str | None) -> str | None:
    try:
        async with _client(timeout_s, key) as client, client.get(address, allow_redirects=False) as answer:
            return await _body(answer) if answer.status == 200 else None
    except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError):
        return None


def _chat_body(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


@dataclass(slots=True)
class _Heard:
    """A stream as it comes in."""

    start: float
    first: float = 0.0
    last: float = 0.0
    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    usage: Any = None
    timings: dict[str, Any] = field(default_factory=dict)
    calls: dict[int, list[str]] = field(default_factory=dict)
    is_done: bool = False

    def take_line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        if line.strip() == b"data: [DONE]":
            self.is_done = True
            return
        self.take(_json(line[5:].decode("utf-8", "replace")))

    def take(self, piece: dict[str, Any]) -> None:
        if error := piece.get("error"):
            raise FiresteelError(f"the engine answered with an error: {error}", next="firesteel logs")
        self.usage = piece.get("usage") or self.usage
        self.timings = _map(piece.get("timings")) or self.timings
        for choice in piece.get("choices") or ():
            self.finish = _finish(choice) or self.finish
            self._take_delta(_map(choice.get("delta")))

    def _take_delta(self, delta: dict[str, Any]) -> None:
        words, thought, calls = _text(delta, "content"), _reasoning(delta), delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._take_call(_map(call))
        if words or thought or calls:
            self.last = time.perf_counter()
            self.first = self.first or self.last
        self.text += words
        self.reasoning += thought
        if len(self.text) + len(self.reasoning) > MAX_TEXT_CHARS:
            raise FiresteelError(
                f"the engine's answer passed {MAX_TEXT_CHARS:,} characters and went on", next="firesteel logs"
            )

    def _take_call(self, call: dict[str, Any]) -> None:
        """Name and arguments come in pieces, told apart by their index."""
        function = _map(call.get("function"))
        at = call.get("index")
        known = self.calls.setdefault(at if isinstance(at, int) else 0, ["", ""])
        known[0] += _text(function, "name")
        known[1] += _text(function, "arguments")

    def answer(self) -> Answer:
        return Answer(
            self.text, self.finish, *_counts(self.usage),
            (self.first or time.perf_counter()) - self.start, self.last - self.first,
            reasoning=self.reasoning,
            tool_calls=tuple(ToolCall(*self.calls[at]) for at in sorted(self.calls)),
            is_whole=self.is_done or self.finish is not None,
            draft_tokens=_count(self.timings, "draft_n"),
            accepted_tokens=_count(self.timings, "draft_n_accepted"),
        )  # fmt: skip


def _whole_calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    found = [_map(_map(call).get("function")) for call in (calls if isinstance(calls, list) else ())]
    return tuple(ToolCall(_text(each, "name"), _text(each, "arguments")) for each in found)


def _reasoning(message: dict[str, Any]) -> str:
    """vLLM renamed `reasoning_content` to `reasoning`; some releases send both, with the same words."""
    return _text(message, "reasoning") or _text(message, "reasoning_content")


def _drafted(found: dict[str, Any], name: str) -> int | None:
    """llama.cpp tells with each answer how many tokens it drafted."""
    return _count(found.get("timings"), name)


def _first_choice(found: dict[str, Any]) -> dict[str, Any]:
    choices = found.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _not_openai("no `choices`")
    return _map(choices[0])


def _finish(choice: Any) -> str | None:
    found = choice.get("finish_reason") if isinstance(choice, dict) else None
    return found if isinstance(found, str) else None


def _map(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _text(found: dict[str, Any], name: str) -> str:
    text = found.get(name)
    return text if isinstance(text, str) else ""


def _counts(usage: Any) -> tuple[int | None, int | None]:
    return _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")


def _count(usage: Any, name: str) -> int | None:
    """An engine's own count; None when it is no count."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_openai(str(error)) from error
    if not isinstance(found, dict):
        raise _not_openai("not an object")
    return found


def _not_openai(why: str) -> FiresteelError:
    return FiresteelError(f"the engine's answer is not OpenAI's: {why}", next="firesteel logs")


@asynccontextmanager
async def _post(
    address: str, body: Mapping[str, Any], timeout_s: float, key: str | None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The open answer of a POST that the engine took."""
    try:
        async with (
            _client(timeout_s, key) as client,
            client.post(address, json=body, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise EngineRefused(answer.status, (await _body(answer))[:300])
            yield answer
    except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError) as error:
        raise FiresteelError(
            f"the engine stopped answering: {type(error).__name__} {error}".rstrip(), next="firesteel logs"
        ) from error
    except (ValueError, AttributeError, TypeError) as error:
        raise _not_openai(str(error)) from error


async def _body(answer: aiohttp.ClientResponse) -> str:
    data = bytearray()
    async for chunk in answer.content.iter_chunked(2**16):
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise FiresteelError(
                f"the engine's answer is longer than {MAX_BODY_BYTES:,} bytes", next="firesteel logs"
            )
    return data.decode("utf-8", "replace")


def _client(timeout_s: float, key: str | None = None) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {key}"} if key else None
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout_s), trust_env=False, headers=headers
    )
