"""The client for engines, against a server that sends exactly these bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from firesteel.edge.http.engine_client import calls_tools, chat, props
from firesteel.errors import FiresteelError

STREAM = "text/event-stream"
WORDS = "CUDA error: an illegal memory access was encountered"
ERROR = json.dumps({"error": {"message": WORDS, "type": "server_error"}})
DELTA = 'data: {"choices": [{"index": 0, "delta": {"content": " lamp"}, "finish_reason": null}]}\n\n'
SLOW: tuple[str | float, ...] = (DELTA, 0.3) * 20
END = 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@asynccontextmanager
async def serving(kind: str, *pieces: str | float) -> AsyncIterator[str]:
    """Sends the texts and waits the seconds between them, then closes the connection."""
    handlers: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
            await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode())
            for piece in pieces:
                if isinstance(piece, str):
                    writer.write(piece.encode())
                    await writer.drain()
                else:
                    await asyncio.sleep(piece)
        except ConnectionError:
            pass  # the client left
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.create_task(answer(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


@pytest.mark.parametrize(
    ("kind", "body", "stream"),
    [
        ("application/json", ERROR, False),
        ("application/json", ERROR, True),
        (STREAM, f"data: {ERROR}\n\n", True),
        ("application/json", json.dumps({"error": WORDS}), False),
    ],
    ids=["plain", "plain for a stream", "event", "a text"],
)
async def test_the_words_of_an_error_under_http_200_reach_the_user(
    kind: str, body: str, stream: bool
) -> None:
    async with serving(kind, body) as url:
        with pytest.raises(FiresteelError, match=WORDS):
            await chat(url, "m", "Hello", max_tokens=8, stream=stream)


async def test_a_slow_stream_is_waited_for_and_a_stalled_one_is_not() -> None:
    """Each token comes within the limit between tokens, all of them after the limit of the first."""
    async with serving(STREAM, *SLOW[:10], END) as url:
        answer = await chat(url, "m", "Hello", max_tokens=8, timeout_s=1, idle_s=30)
        assert answer.text == " lamp" * 5 and answer.has_done and answer.decode_s > 1
    async with serving(STREAM, DELTA, 60.0) as url:
        with pytest.raises(FiresteelError, match=r'stopped answering.* no token for 0 s after " lamp"'):
            await chat(url, "m", "Hello", max_tokens=8, timeout_s=30, idle_s=0.2)


async def test_without_a_limit_between_tokens_the_whole_answer_is_limited() -> None:
    async with serving(STREAM, *SLOW, END) as url:
        with pytest.raises(FiresteelError, match="stopped answering"):
            await chat(url, "m", "Hello", max_tokens=8, timeout_s=1)


async def test_what_a_client_needs_of_a_stream_is_recorded() -> None:
    call = {"function": {"name": "get_weather", "arguments": "{}"}}
    first = {"model": "m", "choices": [{"delta": {"role": "user", "tool_calls": [call]}}]}
    last = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    async with serving(STREAM, *(f"data: {json.dumps(chunk)}\n\n" for chunk in (first, last))) as url:
        answer = await chat(url, "m", "Hello", max_tokens=8)
    assert (answer.role, answer.model, answer.has_done) == ("user", "m", False)
    assert not answer.tool_calls[0].has_index


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ('{"chat_template_caps": {"supports_tool_calls": true}}', True),
        ('{"chat_template_caps": {"supports_tool_calls": false}}', False),
        ('{"chat_template_caps": null}', False),
        ("<html>", False),
        ("[]", False),
    ],
)
async def test_llamacpp_says_whether_it_calls_tools(body: str, calls: bool) -> None:
    async with serving("application/json", body) as url:
        assert calls_tools(await props(url)) is calls
