"""The engine over HTTP: is it there, and what does it answer, with the times at which the answer came."""

from __future__ import annotations

import json
import time
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from firesteel.edge.answer import Answer
from firesteel.errors import FiresteelError


async def is_healthy(url: str, *, timeout_s: float = 2) -> bool:
    try:
        async with _client(timeout_s) as client, client.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def chat(
    url: str,
    model: str,
    prompt: str,
    *,
    max_tokens: int,
    extra: dict[str, Any] | None = None,
    timeout_s: float = 120,
) -> Answer:
    """Asks at temperature 0, as a stream, with usage at its end."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(extra or {}),
    }
    start = time.perf_counter()
    first = last = 0.0
    text, finish = "", None
    usage: dict[str, Any] = {}
    try:
        async with (
            _client(timeout_s) as client,
            client.post(f"{url}/v1/chat/completions", json=body) as answer,
        ):
            if answer.status != 200:
                said = (await answer.text())[:300]
                raise FiresteelError(
                    f"the engine answered HTTP {answer.status}: {said}", next="firesteel logs"
                )
            async for line in answer.content:
                if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                    continue
                piece = json.loads(line[5:])
                if error := piece.get("error"):
                    raise FiresteelError(f"the engine answered with an error: {error}", next="firesteel logs")
                usage = piece.get("usage") or usage
                for choice in piece.get("choices") or ():
                    finish = choice.get("finish_reason") or finish
                    delta = choice.get("delta") or {}
                    if (
                        words := delta.get("content")
                        or delta.get("reasoning")
                        or delta.get("reasoning_content")
                    ):
                        last = time.perf_counter()
                        first = first or last
                        text += words
    except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError) as error:
        raise FiresteelError(
            f"the engine stopped answering: {type(error).__name__} {error}".rstrip(), next="firesteel logs"
        ) from error
    except (ValueError, AttributeError, TypeError) as error:
        raise FiresteelError(
            f"the engine's stream is not OpenAI's: {error}", next="firesteel logs"
        ) from error
    return Answer(
        text, finish, _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"),
        (first or time.perf_counter()) - start, last - first,
    )  # fmt: skip


def _count(usage: Any, name: str) -> int | None:
    """An engine's own count; None when it is no count."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count >= 0 else None


def _client(timeout_s: float) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s), trust_env=False)
