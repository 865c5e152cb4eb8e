"""What clients are charged, over random cuts, errors and swaps: never less than they received, never more
than was generated, and the same in the metrics, the request log and the rate limits."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest
import uvloop

from firesteel.edge.home import Home
from firesteel.gateway.admin.request_log import RequestLog, recent
from firesteel.gateway.admin.usage import spent_tokens
from firesteel.gateway.dispatcher import RequestDispatcher
from firesteel.gateway.executor import Executor
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.server import HttpServer
from firesteel.gateway.interfaces import Caller, Rejection
from firesteel.gateway.key_limits import KeyLimits, RateLimit, TokenBudget
from firesteel.gateway.keys import KeyRing, add_key
from firesteel.gateway.loader.process import ExpectedRelease, LoadProgress
from firesteel.gateway.service_config import ModelConfig, RunningModel, ServiceConfig
from firesteel.units import MIB
from firesteel.values import replace
from tests.gateway.http.kit import (
    STREAM,
    Engine,
    EngineConnection,
    Person,
    answer,
    chunked,
    request,
)

EngineScript = Callable[[EngineConnection], Awaitable[None]]
PROMPT_TOKENS = 7
COUNT = 180
PER_DAY = 10_000_000
KEYS = ("finishes", "cuts", "breaks")


@dataclass
class Generated:
    """What the engine made for one request, and what the client received of it."""

    key: str = ""
    tokens: int = 0
    received: int = 0


@dataclass
class CountingEngine:
    """Streams as vLLM, llama.cpp or a server that never counts does; several tokens in an event."""

    dice: random.Random
    made: dict[int, Generated] = field(default_factory=dict)

    async def __call__(self, connection: EngineConnection) -> None:
        while True:
            body = json.loads((await connection.receive()).body)
            made = self.made[body["seed"]]
            if not body.get("stream"):
                made.tokens = 5
                content = {"choices": [{"message": {"content": "x"}}], "usage": _usage(5)}
                await connection.send(answer(json.dumps(content).encode()))
                continue
            if not await self._stream(connection, body, made):
                return

    async def _stream(self, connection: EngineConnection, body: dict[str, Any], made: Generated) -> bool:
        options = body.get("stream_options") or {}
        counts, is_continuous = body["model"] != "silent", options.get("continuous_usage_stats")
        await connection.send(STREAM)
        await connection.send(_event("", usage=_usage(0) if is_continuous else None))
        for number in range(body["n"]):
            tokens = self.dice.choice((1, 1, 3)) if is_continuous else 1
            made.tokens += tokens
            usage = _usage(made.tokens) if is_continuous else None
            await connection.send(_event("word " * tokens, usage=usage))
            if number == body.get("dies"):
                connection.reset()
                return False
            if number % 4 == 0:
                await asyncio.sleep(0)
        if counts and options.get("include_usage"):
            await connection.send(chunked(_data({"choices": [], "usage": _usage(made.tokens)})))
        await connection.send(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return True


def _usage(tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + tokens,
        "completion_tokens": tokens,
    }


def _data(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def _event(text: str, usage: dict[str, int] | None) -> bytes:
    fields: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return chunked(_data(fields | ({"usage": usage} if usage else {})))


@dataclass
class QuickLoader:
    """Loads a model by saying where the engine is."""

    url: str
    loads: int = 0

    async def load(self, model: ModelConfig) -> AsyncGenerator[LoadProgress | RunningModel, None]:
        self.loads += 1
        yield RunningModel(self.url, model.bytes)

    async def unload(self, name: str) -> AsyncGenerator[LoadProgress | ExpectedRelease, None]:
        yield ExpectedRelease(0, 0)

    async def read(self, path: str) -> ServiceConfig:
        raise AssertionError(path)


@dataclass
class Running:
    port: int
    engine: CountingEngine
    loader: QuickLoader
    dispatcher: RequestDispatcher
    tokens: dict[str, bytes]
    log: RequestLog
    path: Path
    server: HttpServer


@asynccontextmanager
async def running(
    folder: Path, seed: int, *others: ModelConfig, script: EngineScript | None = None
) -> AsyncIterator[Running]:
    """The whole gateway but for processes: two models of ours with room for one, two outside, and `others`,
    which run at the same engine if they have no URL. `script`: what the engine does instead of counting."""
    upstream = Engine()
    engine = CountingEngine(random.Random(seed))
    upstream.script = script or engine
    await upstream.start()
    url, home = f"http://127.0.0.1:{upstream.port}", Home(folder)
    limits = KeyLimits(tokens=RateLimit(PER_DAY, 86_400))
    path = folder / "keys.json"
    tokens = {name: add_key(path, name, limits=limits)[1].encode() for name in KEYS}
    log = RequestLog(folder / "requests.db")
    dispatcher = RequestDispatcher(home, KeyRing.read(path), log, lambda model, text: None)
    models = (
        ModelConfig("one", "one", (url,), 60 * MIB, 1.0, engine="vllm"),
        ModelConfig("two", "two", (url,), 60 * MIB, 1.0, engine="vllm"),
        ModelConfig("other", "other", (url,), is_outside=True),
        ModelConfig("silent", "silent", (url,), is_outside=True),
        *(model if model.urls else replace(model, urls=(url,)) for model in others),
    )
    config = ServiceConfig("", "", 100 * MIB, 0, models, queue=1000, max_wait_s=0.2, min_dwell_s=0.0)
    loader = QuickLoader(url)
    executor = Executor(config, loader, dispatcher, home, pause_s=0.0)
    dispatcher.attach(executor, lambda model: (True,))
    await executor.start()
    server = HttpServer(dispatcher, HttpLimits(sweep_s=0.05))
    try:
        port = await server.start("127.0.0.1", 0)
        yield Running(port, engine, loader, dispatcher, tokens, log, folder / "requests.db", server)
    finally:
        await server.drain(5.0)
        await executor.close(keep=False)
        await upstream.stop()


async def _ask(it: Running, key: str, number: int, dice: random.Random) -> None:
    made = it.engine.made[number] = Generated(key)
    events = dice.randrange(1, 90)
    fields: dict[str, Any] = {"model": dice.choice(("one", "two", "other", "silent")), "seed": number}
    if dice.random() < 0.8 or key != "finishes":
        fields |= {"stream": True, "n": events}
        if dice.random() < 0.5:
            fields["stream_options"] = {"include_usage": dice.random() < 0.7}
    if key == "breaks":
        fields["dies"] = dice.randrange(events)
    cut_after = dice.randrange(events) if key == "cuts" else None
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port, limit=2**20)
    client = Person(reader, writer)
    authorization = b"Authorization: Bearer " + it.tokens[key]
    await client.send(request(json.dumps(fields).encode(), authorization))
    try:
        if fields.get("stream"):
            await _read(client, made, cut_after)
        else:
            made.received = 5 if (await client.get()).status == 200 else 0
    finally:
        client.close()


async def _read(client: Person, made: Generated, cut_after: int | None) -> None:
    assert (await client.head()).status == 200
    events = 0
    while cut_after is None or events <= cut_after:
        piece = await client.chunk()
        if not piece:
            return
        made.received += piece.count(b"word ")
        events += piece.count(b"data: ")


def _totals(it: Running, key: str) -> tuple[int, int]:
    """Prompt and completion tokens of a key in the metrics."""
    sums = {"firesteel_prompt_tokens_total": 0, "firesteel_completion_tokens_total": 0}
    for family in it.dispatcher.metrics():
        if family.name in sums:
            sums[family.name] += sum(
                int(each.value) for each in family.samples if ("key", key) in each.labels
            )
    return sums["firesteel_prompt_tokens_total"], sums["firesteel_completion_tokens_total"]


async def _hour(it: Running, seed: int, count: int) -> None:
    dice = random.Random(seed)
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            await _ask(it, KEYS[number % 3], number, dice)

    async with asyncio.timeout(120):
        await asyncio.gather(*(client() for _ in range(12)))
        while it.dispatcher._records:  # those that clients have left end at the next look
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", [1])
def test_a_random_hour_is_charged_within_its_bounds(tmp_path: Path, seed: int) -> None:
    uvloop.run(_test_a_random_hour(tmp_path, seed))


async def _test_a_random_hour(folder: Path, seed: int) -> None:
    began = monotonic()
    async with running(folder, seed) as it:
        await _hour(it, seed, COUNT)
        await asyncio.to_thread(it.log.close)
        assert it.loader.loads > 4
        rows = recent(it.path, 10_000)
        assert len(rows) == COUNT
        for key in KEYS:
            made = [each for each in it.engine.made.values() if each.key == key]
            received, generated = sum(each.received for each in made), sum(each.tokens for each in made)
            prompt, completion = _totals(it, key)
            assert received <= completion <= generated, (key, received, completion, generated)
            if key == "finishes":
                assert completion == generated
            assert completion == sum(row["completion_tokens"] or 0 for row in rows if row["key"] == key)
            assert prompt == sum(row["prompt_tokens"] or 0 for row in rows if row["key"] == key)
            bucket, refilled = (
                it.dispatcher.accounting.limiter.rates._tokens[key],
                (monotonic() - began) * PER_DAY / 86_400,
            )
            charged = PER_DAY - bucket.level(monotonic())
            assert prompt + completion - refilled <= charged <= prompt + completion


async def test_cutting_streams_does_not_escape_the_limit(tmp_path: Path) -> None:
    """Six cuts of a stream were charged nothing."""
    async with running(tmp_path, 1) as it:
        it.dispatcher.accounting.limiter.rates.change(
            {"cuts": KeyLimits(tokens=RateLimit(100, 86_400))}, monotonic()
        )
        statuses = []
        for number in range(6):
            it.engine.made[number] = Generated("cuts")
            fields = {"model": "silent", "stream": True, "n": 400, "seed": number}
            client = Person(*await asyncio.open_connection("127.0.0.1", it.port))
            authorization = b"Authorization: Bearer " + it.tokens["cuts"]
            await client.send(request(json.dumps(fields).encode(), authorization))
            statuses.append((await client.head()).status)
            words = 0 if statuses[-1] == 200 else 60
            while words < 60:
                words += (await client.chunk()).count(b"word ")
            client.close()
            while it.dispatcher._records:
                await asyncio.sleep(0.01)
        assert statuses == sorted(statuses) and 1 <= statuses.count(200) <= 2


async def _get(it: Running, path: bytes, key: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port, limit=2**20)
    client = Person(reader, writer)
    try:
        await client.send(
            b"GET %b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % (path, it.tokens[key])
        )
        response = await client.get()
        return response.status, response.body
    finally:
        client.close()


class _OpenRequest:
    def __init__(self, name: str) -> None:
        self.caller = Caller(name)
        self.is_stopped = False

    def stop(self, rejection: Rejection) -> None:
        self.is_stopped = True


async def test_a_revoked_key_loses_its_open_requests_and_nobody_else_does(tmp_path: Path) -> None:
    """The first key that was added stopped all requests that had come without one."""
    async with running(tmp_path, 1) as it:
        revoked, nameless, known = (_OpenRequest(name) for name in ("gone", "", next(iter(it.tokens))))
        records = cast(Any, it.dispatcher)._records
        for request in (revoked, nameless, known):
            records[request] = None
        it.dispatcher.keys_changed()
        records.clear()
        assert (revoked.is_stopped, nameless.is_stopped, known.is_stopped) == (True, False, False)


async def test_a_budget_ends_requests_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as it:
        path = tmp_path / "keys.json"
        limits = KeyLimits(budget=TokenBudget(PROMPT_TOKENS + 5 + 1, "day"))
        it.tokens["small"] = add_key(path, "small", limits=limits)[1].encode()
        assert it.dispatcher._ring.refresh() == "added small"
        it.dispatcher.keys_changed()
        statuses = []
        for number in range(4):
            it.engine.made[number] = Generated("small")
            fields = {"model": "other", "seed": number}
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port, limit=2**20)
            client = Person(reader, writer)
            await client.send(
                request(json.dumps(fields).encode(), b"Authorization: Bearer " + it.tokens["small"])
            )
            response = await client.get()
            client.close()
            statuses.append(response.status)
        assert statuses == [200, 429, 429, 429]
        assert b"budget_exceeded" in response.body and int(response.value(b"retry-after") or 0) > 0
        assert (await _get(it, b"/v1/models", "small"))[0] == 200, "it can still look"
        await asyncio.to_thread(it.log.close)
        assert spent_tokens(it.path, "small", 0, 2e9) == PROMPT_TOKENS + 5


async def _honest(connection: EngineConnection) -> None:
    """Makes a hundred tokens, or as many as it is allowed, for each choice; slowly enough for all to meet."""
    while True:
        body = json.loads((await connection.receive()).body)
        tokens = min(body.get("max_tokens", 100), 100) * body.get("n", 1)
        usage = {"prompt_tokens": body["seed"], "completion_tokens": tokens}
        await asyncio.sleep(0.05)
        if not body.get("stream"):
            content = {"choices": [{"message": {"content": "x"}}], "usage": usage}
            await connection.send(answer(json.dumps(content).encode()))
            continue
        await connection.send(STREAM)
        for number in range(tokens):
            said = _usage(number + 1) | {"prompt_tokens": body["seed"]}
            await connection.send(_event("word", usage=said if body["model"] != "silent" else None))
            await asyncio.sleep(0)
        if body["model"] == "one":
            await connection.send(chunked(_data({"choices": [], "usage": usage})))
        await connection.send(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def _ask_once(it: Running, key: str, body: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port, limit=2**20)
    client = Person(reader, writer)
    try:
        await client.send(request(body, b"Authorization: Bearer " + it.tokens[key]))
        response = await client.get()
        return response.status, response.body
    finally:
        client.close()


def _with_key(it: Running, limits: KeyLimits) -> None:
    it.tokens["small"] = add_key(it.path.parent / "keys.json", "small", limits=limits)[1].encode()
    it.dispatcher._ring.refresh()
    it.dispatcher.keys_changed()


def _body(prompt_tokens: int, **fields: Any) -> bytes:
    """A request whose prompt is estimated exactly; its engine says so."""
    messages = [{"role": "user", "content": ""}]
    body = {"model": "one", "seed": prompt_tokens, "messages": messages, **fields}
    messages[0]["content"] = "x" * (4 * prompt_tokens - len(json.dumps(body)))
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 60},
        {"max_tokens": 20, "n": 3, "stream": True},
        {"stream": True},
        {"stream": True, "model": "silent"},
        {},
        {"model": "other"},
    ],
    ids=str,
)
async def test_forty_requests_at_once_stay_within_a_budget(tmp_path: Path, fields: dict[str, Any]) -> None:
    """They used 42 times as much as their key had: each was admitted, and charged only at its end."""
    async with running(tmp_path, 1, script=_honest) as it:
        _with_key(it, KeyLimits(budget=TokenBudget(1000, "day")))
        answers = await asyncio.gather(*(_ask_once(it, "small", _body(50, **fields)) for _ in range(40)))
        account = it.dispatcher.accounting.limiter.budgets.accounts["small"]
        served = sum(status == 200 for status, _ in answers)
        assert {status for status, _ in answers} == {200, 429} and served >= 5
        assert account.spent <= 1000 and account.reserved == 0
        if "max_tokens" in fields:
            assert (served, account.spent) == (1000 // 110, 1000 // 110 * 110)
        if fields.get("stream") and "max_tokens" not in fields:
            assert account.spent >= 990, "an answer without a limit goes on until nothing is left"
            assert any(b"budget_exceeded" in body and b"[DONE]" not in body for _, body in answers)
        await asyncio.to_thread(it.log.close)
        assert spent_tokens(it.path, "small", 0, 2e9) == account.spent


async def test_a_prompt_that_was_underestimated_is_reported(tmp_path: Path) -> None:
    async with running(tmp_path, 1, script=_honest) as it:
        said: list[str] = []
        it.dispatcher.accounting._notify = lambda model, text: said.append(text)
        _with_key(it, KeyLimits(budget=TokenBudget(200, "day")))
        body = _body(50, max_tokens=100).replace(b'"seed": 50', b'"seed": 130')
        assert (await _ask_once(it, "small", body))[0] == 200
        assert said == [
            "key `small` is 30 tokens over its budget: a prompt was estimated at 50 tokens and had 130"
        ]


async def test_a_body_that_can_be_read_in_two_ways_is_refused_to_a_key_with_limits(tmp_path: Path) -> None:
    """An engine streams what the gateway took for no stream, and its prompt was charged to nobody."""
    async with running(tmp_path, 1, script=_honest) as it:
        _with_key(it, KeyLimits(budget=TokenBudget(100_000, "day")))
        body = b'{"model":"other","seed":5,"stream":false,"str\\u0065am":true,"messages":[]}'
        status, text = await _ask_once(it, "small", body)
        assert status == 400 and b"`stream` twice" in text
        assert (await _ask_once(it, "small", _body(50, stream=True)))[0] == 200


async def test_a_stream_that_is_sent_in_another_shape_is_counted_too(tmp_path: Path) -> None:
    """Its second try at the same server was not."""

    async def strict(connection: EngineConnection) -> None:
        while True:
            body = json.loads((await connection.receive()).body)
            if any(each["role"] == "system" for each in body["messages"][1:]):
                why = b'{"error":{"message":"System message must be at the beginning."}}'
                await connection.send(answer(why, status=b"400 Bad Request"))
                continue
            await connection.send(STREAM)
            for _ in range(100):
                await connection.send(_event("word", usage=None))
                await asyncio.sleep(0)
            await connection.send(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with running(tmp_path, 1, script=strict) as it:
        _with_key(it, KeyLimits(budget=TokenBudget(100, "day")))
        body = json.loads(_body(50, model="other", stream=True))
        body["messages"] += [{"role": "system", "content": "x"}]
        status, text = await _ask_once(it, "small", json.dumps(body).encode())
        assert status == 200 and b"budget_exceeded" in text, text[:300]
        assert it.dispatcher.accounting.limiter.budgets.accounts["small"].over == 0
