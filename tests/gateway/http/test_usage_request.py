"""Token counts are asked of the engine, and the client sees what it would have seen without."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.gateway.http.body import SEARCH_BYTES, edited
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.usage_filter import UsageFilter
from firesteel.gateway.http.usage_request import request_usage
from firesteel.gateway.interfaces import Counting, Endpoint, Usage
from firesteel.values import replace
from tests.gateway.http.kit import (
    DONE,
    STREAM,
    EngineConnection,
    FakeDispatcher,
    Person,
    RunningGateway,
    answer,
    chunked,
    event,
    request,
    run_gateway,
)

BOTH = {"include_usage": True, "continuous_usage_stats": True}
LONG = "word " * SEARCH_BYTES


def _asked(body: bytes, *, is_continuous: bool = False) -> Any:
    usage = request_usage(body, "continuous" if is_continuous else "at the end")
    return json.loads(b"".join(edited(body, [usage.edit]))) if usage else None


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "m", "stream": True},
        {"stream": True, "model": "m", "messages": [{"content": LONG, "stream": False}]},
        {"messages": [{"content": LONG + '"stream": true'}], "model": "m", "stream": True, "tools": [{}]},
        {"stream": True, "stream_options": None},
        {"stream": True, "stream_options": {}, "tools": [{"stream": {"stream": False}}]},
        {"stream_options": {"include_usage": False, "x": [1]}, "stream": True},
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_asked_where_the_client_did_not(fields: dict[str, Any], indent: int | None) -> None:
    body = json.dumps(fields, indent=indent).encode()
    options = fields.get("stream_options") or {}
    assert _asked(body) == fields | {"stream_options": options | {"include_usage": True}}
    assert _asked(body, is_continuous=True) == fields | {"stream_options": options | BOTH}


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "m"},
        {"stream": False},
        {"stream": None, "messages": ['"stream": true', {"stream": True}]},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": "é"},
        {"a": LONG, "stream_options": {"include_usage": True}, "stream": True, "b": LONG},
    ],
)
def test_not_asked(fields: dict[str, Any]) -> None:
    assert _asked(json.dumps(fields).encode()) is None


def test_what_the_client_asked_for_stays() -> None:
    usage = request_usage(b'{"stream":true,"stream_options":{"include_usage":true}}', "continuous")
    assert usage is not None
    assert (usage.strips_event, usage.strips_fields) == (False, True)


@pytest.mark.parametrize("counting", ["continuous", "continuous or null"])
def test_the_counts_at_the_end_reach_a_client_that_asked_for_them(counting: Counting) -> None:
    """Only those in the other events are ours."""
    last = _event(choices=[], usage=_counts(2))
    stream = _said("a", usage=_counts(1)) + _said(None, "stop", usage=_counts(2)) + last + END
    usage_filter = UsageFilter(counting, strips_event=False, strips_fields=True)
    seen = usage_filter.take(stream) + usage_filter.end()
    assert seen.count(b'"completion_tokens"') == 1
    assert seen.endswith(last + END)


# -- streams as the engines write them --


def _event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"id": "1", **fields}, separators=(",", ":")).encode() + b"\n\n"


def _said(text: str | None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return _event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}], **more)


def _counts(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "total_tokens": 7 + tokens, "completion_tokens": tokens}


LIE = ',"usage":{"prompt_tokens":1}'
TIMINGS = {"prompt_n": 7, "predicted_n": 2}
END = b"data: [DONE]\n\n"
STREAMS: list[tuple[Counting, bytes, bytes]] = [
    (
        "at the end",
        _said("a") + _said(LIE) + _said(None, "stop") + _event(choices=[], usage=_counts(2)) + END,
        _said("a") + _said(LIE) + _said(None, "stop") + END,
    ),
    (
        "at the end",
        _said("a", "stop") + _event(choices=[], usage=_counts(1), timings=TIMINGS) + END,
        _said("a", "stop", timings=TIMINGS) + END,
    ),
    (
        "at the end",  # counts that the client gets from this server in any case
        _said("a", "stop", usage=_counts(1)) + END,
        _said("a", "stop", usage=_counts(1)) + END,
    ),
    (
        "continuous",
        _said("", usage=_counts(0))
        + _said("a", usage=_counts(1) | {"prompt_tokens_details": {"cached_tokens": 3}})
        + _said(LIE, "stop", usage=_counts(2), prompt_token_ids=[1])
        + _event(choices=[], usage=_counts(2), system_fingerprint="v")
        + END,
        _said("") + _said("a") + _said(LIE, "stop", prompt_token_ids=[1], system_fingerprint="v") + END,
    ),
    (
        "continuous or null",
        _said("a", usage=_counts(1)) + _said(None, "stop", usage=_counts(1))
        + _event(choices=[], usage=_counts(1)) + END,
        _said("a", usage=None) + _said(None, "stop", usage=None) + END,
    ),
    (
        "timings",
        _said("a", timings=TIMINGS) + _said(None, "stop", timings=TIMINGS) + END,
        _said("a") + _said(None, "stop", timings=TIMINGS) + END,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("counting", "sent", "seen"), STREAMS)
@given(data=st.data())
def test_the_client_sees_what_it_would_have_seen(
    data: st.DataObject, counting: Counting, sent: bytes, seen: bytes
) -> None:
    if data.draw(st.booleans()):
        sent, seen = sent.replace(b"\n", b"\r\n"), seen.replace(b"\n", b"\r\n")
    filtered = UsageFilter(
        counting, strips_event=counting != "timings", strips_fields=counting != "at the end"
    )
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6))), len(sent)]
    got = b"".join(filtered.take(sent[a:b]) for a, b in pairwise(cuts)) + filtered.end()
    assert got == seen


@pytest.mark.parametrize(("counting", "sent", "seen"), STREAMS)
@pytest.mark.parametrize("is_split", [False, True])
async def test_counted_and_taken_out_again(
    gateway: RunningGateway, counting: Counting, sent: bytes, seen: bytes, is_split: bool
) -> None:
    assert gateway.dispatcher.endpoint is not None
    gateway.dispatcher.endpoint = replace(gateway.dispatcher.endpoint, counting=counting)
    pieces = sent.split(b"\n\n")[:-1] if is_split else [sent[:-2]]

    async def script(connection: EngineConnection) -> None:
        while True:
            received = json.loads((await connection.receive()).body)
            assert received.get("timings_per_token", False) == (counting == "timings")
            asked = {"at the end": {"include_usage": True}, "timings": None}.get(counting, BOTH)
            assert received.get("stream_options") == asked
            await connection.send(STREAM)
            for piece in pieces:
                await connection.send(chunked(piece + b"\n\n"))
            await connection.send(b"0\r\n\r\n")

    gateway.engine.script = script
    client = await gateway.client()
    for _ in range(2):
        assert (await client.ask(b'{"model":"m","stream":true}')).body == seen
    fields = json.loads(sent.rsplit(b"data: ", 2)[1])
    last = 2 if counting == "timings" else fields["usage"]["completion_tokens"]
    assert gateway.dispatcher.outcomes[0].usage == Usage(7, last)
    assert gateway.engine.connections == 1


async def test_a_server_that_rejects_the_question_is_asked_no_more(gateway: RunningGateway) -> None:
    async def script(connection: EngineConnection) -> None:
        while True:
            if b"stream_options" in (await connection.receive()).body:
                await connection.send(answer(b'{"error":"extra field"}', status=b"422 No"))
            else:
                await connection.send(STREAM + event("a") + event("b") + DONE)

    gateway.engine.script = script
    client = await gateway.client()
    for _ in range(2):
        got = await client.ask(b'{"model":"m","stream":true}')
        assert (got.status, got.body.count(b"data: ")) == (200, 3)
    assert len(gateway.engine.received) == 3
    assert [outcome.usage for outcome in gateway.dispatcher.outcomes] == [Usage(None, 2)] * 2


async def test_a_bad_request_is_still_one(gateway: RunningGateway) -> None:
    async def script(connection: EngineConnection) -> None:
        while True:
            await connection.receive()
            await connection.send(answer(b'{"error":"context"}', status=b"400 No"))

    gateway.engine.script = script
    client = await gateway.client()
    for _ in range(2):
        got = await client.ask(b'{"model":"m","stream":true}')
        assert (got.status, got.body) == (400, b'{"error":"context"}')
    assert [outcome.usage for outcome in gateway.dispatcher.outcomes] == [None, None]


@pytest.mark.real
def test_the_embedded_engine_is_counted_also_when_it_is_cut(embedded_engine: int) -> None:
    asyncio.run(_through_the_gateway(embedded_engine))


async def _through_the_gateway(port: int) -> None:
    turns = [{"role": "user", "content": "Count from one to one hundred in words."}]
    fields = {"model": "m", "messages": turns, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    body = json.dumps(fields | {"stream": True}).encode()
    async with run_gateway(FakeDispatcher(), HttpLimits()) as gateway:
        gateway.dispatcher.endpoint = Endpoint("m", ("127.0.0.1", port), counting="timings")
        direct = Person(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))
        expected = [_shape(each) for each in (await direct.ask(body)).body.split(b"\n\n")]
        direct.close()
        client = await gateway.client()
        seen = [_shape(each) for each in (await client.ask(body)).body.split(b"\n\n")]
        assert seen == expected
        whole = gateway.dispatcher.outcomes[0].usage
        assert whole is not None and whole.prompt_tokens and whole.completion_tokens == 24
        await client.send(request(body))
        await client.head()
        read = b""
        while read.count(b"data: ") < 6:
            read += await client.chunk()
        client.close()
        await gateway.dispatcher.until(lambda: len(gateway.dispatcher.outcomes) == 2)
        cut = gateway.dispatcher.outcomes[1].usage
        assert cut is not None and cut.prompt_tokens == whole.prompt_tokens
        assert cut.completion_tokens is not None and 4 <= cut.completion_tokens <= 24
        await _ask_with_official_clients(f"http://127.0.0.1:{gateway.port}")


async def _ask_with_official_clients(url: str) -> None:
    """Messages and chat, both the engine's own."""
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12}
    cold: Any = {**asked, "extra_body": {"temperature": 0}}
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        message = await client.messages.create(**cold)
        assert message.content[0].type == "text" and message.content[0].text
        async with client.messages.stream(**cold) as stream:
            assert "".join([piece async for piece in stream.text_stream])
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as other:
        whole = await other.chat.completions.create(**asked, temperature=0)
        assert whole.choices[0].message.content
        pieces = await other.chat.completions.create(**asked, temperature=0, stream=True)
        assert "".join([piece.choices[0].delta.content or "" async for piece in pieces if piece.choices])


def _shape(event: bytes) -> object:
    """The names of its fields, in their order."""
    return list(json.loads(event[6:])) if event.startswith(b"data: {") else event
