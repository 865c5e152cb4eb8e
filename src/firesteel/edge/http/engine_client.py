"""The asynchronous client for an engine's API: health, models, metrics, completions with their timing.

Every call is bounded in time and in bytes, and a response that breaks the protocol becomes a readable error.
Bytes that are not UTF-8 become U+FFFD, so that checks of the text see them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from firesteel.edge.http.answer import (
    Answer,
    LineSplitter,
    StreamedAnswer,
    count,
    finish_reason,
    first_choice,
    not_openai,
    raise_error,
    read_json,
    text_field,
    token_counts,
    whole_answer,
)
from firesteel.edge.http.sync_client import bearer
from firesteel.errors import FiresteelError, printable

MAX_BODY_BYTES = 16 * 2**20
_MAX_SLOWNESS = 4
"""A stream that comes steadily may take this many times the limit of its first token."""
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
    idle_s: float | None = None,
    key: str | None = None,
    limit_name: str = "max_tokens",
) -> Answer:
    """Asks at temperature 0. Without streaming there is one time, and it is `first_token_s`.

    `timeout_s` limits the whole answer. With `idle_s` it limits the time to the first token, and each further
    token may take `idle_s`: a slow engine takes its time, one that hangs is noticed. `limit_name`: what the
    server calls the limit, `max_tokens` or `max_completion_tokens`.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        limit_name: max_tokens,
        "temperature": 0,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
        **(extra or {}),
    }
    address, start = f"{url}/v1/chat/completions", time.perf_counter()
    if not stream:
        return whole_answer(await _post_json(address, body, timeout_s, key), start)
    answer = StreamedAnswer(start)
    total_s = timeout_s if idle_s is None else _MAX_SLOWNESS * timeout_s
    async with _post(address, body, total_s, key, timeout_s) as response:
        if response.content_type == "application/json":
            raise_error(read_json(await _body(response)))  # an error under HTTP 200 is not always an event
            raise not_openai("a stream was requested, but the answer is not one")
        await _read_stream(response, answer, timeout_s, idle_s or timeout_s)
    return answer.finish()


async def _read_stream(
    response: aiohttp.ClientResponse, answer: StreamedAnswer, first_s: float, idle_s: float
) -> None:
    lines, loop, last = LineSplitter(), asyncio.get_running_loop(), 0.0
    try:
        async with asyncio.timeout(first_s) as limit:
            async for piece in response.content.iter_any():
                for line in lines.feed(piece):
                    answer.add_line(line)
                if answer.last != last:
                    last = answer.last
                    limit.reschedule(loop.time() + idle_s)
            answer.add_line(lines.rest())
    except TimeoutError as error:
        if not limit.expired():
            raise
        after = f' after "{printable(answer.text or answer.reasoning, 60)}"' if last else ""
        raise TimeoutError(f"no token for {idle_s if last else first_s:.0f} s{after}") from error


async def complete(
    url: str, model: str, prompt: str, *, max_tokens: int, timeout_s: float = 120, key: str | None = None
) -> Answer:
    """Continues a raw prompt, without a chat template, at temperature 0."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    start = time.perf_counter()
    document = await _post_json(f"{url}/v1/completions", body, timeout_s, key)
    choice, took_s = first_choice(document), time.perf_counter() - start
    return Answer(
        text_field(choice, "text"), finish_reason(choice), *token_counts(document.get("usage")), took_s, 0.0
    )


async def embeddings(
    url: str, model: str, texts: list[str], *, timeout_s: float = 60, key: str | None = None
) -> list[list[float]]:
    """A vector for each text, in the order of the texts."""
    document = await _post_json(f"{url}/v1/embeddings", {"model": model, "input": texts}, timeout_s, key)
    try:
        rows = sorted(document["data"], key=lambda row: int(row["index"]))
        return [[float("nan") if x is None else float(x) for x in row["embedding"]] for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise not_openai(f"no embeddings: {error!r}") from error


async def rerank(
    url: str, model: str, query: str, documents: list[str], *, timeout_s: float = 60, key: str | None = None
) -> list[float | None]:
    """The score of each document, in the order that they were sent; None: it has none."""
    body = {"model": model, "query": query, "documents": documents}
    document = await _post_json(f"{url}/v1/rerank", body, timeout_s, key)
    scores: list[float | None] = [None] * len(documents)
    try:
        for row in document["results"]:
            score = row["relevance_score"]
            scores[int(row["index"])] = float("nan") if score is None else float(score)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise not_openai(f"no ranking: {error!r}") from error
    return scores


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
    return count(document, "count") or (len(tokens) if isinstance(tokens, list) else None)


async def metrics(url: str, *, timeout_s: float = 5, key: str | None = None) -> str | None:
    """The text of `/metrics`; None where there is none."""
    return await _get_text(f"{url}/metrics", timeout_s, key)


async def offered_models(
    url: str, *, timeout_s: float = 10, key: str | None = None
) -> tuple[dict[str, Any], ...]:
    """The models that `/v1/models` lists, as the engine describes them; empty where it lists none."""
    text = await _get_text(f"{url}/v1/models", timeout_s, key)
    rows = read_json(text).get("data") if text is not None else None
    return tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()


def offered_count(row: Mapping[str, Any], *names: str) -> int | None:
    """Of such a row: `max_model_len` (vLLM), `n_ctx` and `n_params` in `meta` (llama.cpp)."""
    meta = row.get("meta")
    fields = {**(meta if isinstance(meta, dict) else {}), **row}
    values = (fields.get(name) for name in names)
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)


async def props(url: str, *, timeout_s: float = 10, key: str | None = None) -> dict[str, Any]:
    """What a llama.cpp server says of itself. Other engines do not say."""
    text = await _get_text(f"{url}/props", timeout_s, key)
    try:
        return read_json(text) if text is not None else {}
    except FiresteelError:  # something else answers there
        return {}


def calls_tools(props: Mapping[str, Any]) -> bool:
    """Whether its chat template has tools."""
    capabilities = props.get("chat_template_caps")
    return isinstance(capabilities, dict) and capabilities.get("supports_tool_calls") is True


async def _get_text(address: str, timeout_s: float, key: str | None) -> str | None:
    try:
        async with _get(address, timeout_s, key) as response:
            return await _body(response) if response.status == 200 else None
    except _NO_RESPONSE:
        return None


# --- requests ---


async def _post_json(
    address: str, body: Mapping[str, Any], timeout_s: float, key: str | None
) -> dict[str, Any]:
    async with _post(address, body, timeout_s, key) as response:
        return read_json(await _body(response))


@asynccontextmanager
async def _post(
    address: str, body: Mapping[str, Any], timeout_s: float, key: str | None, read_s: float | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The open response to a POST that the engine accepted."""
    try:
        async with (
            _client(timeout_s, key, read_s) as client,
            client.post(address, json=body, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise EngineRefused(response.status, (await _body(response))[:300])
            yield response
    except (aiohttp.ClientResponseError, HttpProcessingError) as error:
        message = " ".join(str(error).split())
        raise FiresteelError(
            f"the engine's answer does not follow HTTP: {printable(message, 200)}", next="firesteel logs"
        ) from ValueError(message)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise FiresteelError(
            f"the engine stopped answering: {type(error).__name__} {error}".rstrip(), next="firesteel logs"
        ) from error
    except (ValueError, AttributeError, TypeError) as error:
        raise not_openai(str(error)) from error


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


def _client(timeout_s: float, key: str | None, read_s: float | None = None) -> aiohttp.ClientSession:
    # trust_env=False: a proxy from the environment must not come between us and an engine on this host.
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_read=read_s), trust_env=False, headers=bearer(key)
    )
