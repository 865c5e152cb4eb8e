"""What the gateway says of an engine's cache, and what it takes out of prompts.

Through the whole gateway, with a simulated engine that caches the prompts that it has read, byte for byte.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.home import Home
from firesteel.errors import UsageError
from firesteel.gateway.admin.request_log import recent
from firesteel.gateway.admin.usage import UsageQuery, read_report
from firesteel.gateway.http.normalize import Normalizers
from firesteel.gateway.service_config import Normalizer
from firesteel.render.clients import chosen_normalizers, cures, load_client, normalizers
from firesteel.values import replace
from tests.gateway.http.kit import EngineConnection, Person, answer, request
from tests.gateway.prompt_cases import BILLING, MORE, RULES, TALK, TASK, anthropic, blocks, in_system
from tests.gateway.test_charging import Running, running

CLAUDE = b"claude-cli/2.1.197 (external, cli)"


def shared(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


class CachingEngine:
    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._prompts: list[str] = [""]

    async def __call__(self, connection: EngineConnection) -> None:
        while True:
            body = json.loads((await connection.receive()).body)
            self.bodies.append(body)
            prompt = json.dumps([body["system"], body["tools"], body["messages"]])[:-2]
            cached = max(shared(prompt, before) for before in self._prompts)
            self._prompts.append(prompt)
            usage = {
                "input_tokens": (len(prompt) - cached) // 4,
                "cache_read_input_tokens": cached // 4,
                "output_tokens": 3,
            }
            await connection.send(answer(json.dumps({"content": [], "usage": usage}).encode()))


async def ask(it: Running, body: Any, agent: bytes = CLAUDE, *lines: bytes) -> int:
    client = Person(*await asyncio.open_connection("127.0.0.1", it.port, limit=2**20))
    try:
        heads = (b"Authorization: Bearer " + it.tokens["finishes"], b"User-Agent: " + agent, *lines)
        text = json.dumps({**body, "model": "other", "stream": False}, separators=(",", ":")).encode()
        await client.send(request(text, *heads, path=b"/v1/messages"))
        return (await client.get()).status
    finally:
        client.close()


def known_normalizers() -> tuple[Normalizer, ...]:
    return tuple(
        Normalizer(client, n.name, agents, n.since, n.until, n.kind, n.pattern, n.replacement, n.never)
        for client, agents, n in normalizers()
    )


async def test_a_session_that_reads_its_prompt_again_is_explained_everywhere(tmp_path: Path) -> None:
    async with running(tmp_path, 1, script=CachingEngine()) as it:
        it.dispatcher.executor.config = replace(it.dispatcher.executor.config, cures=cures())
        for mark, task in (("197.a1b", TASK), ("197.c3d", "Something else.")):
            assert await ask(it, anthropic([BILLING.format(mark, ""), RULES], [blocks(task)])) == 200
        families = {family.name: list(family.samples) for family in it.dispatcher.metrics()}
        await asyncio.to_thread(it.log.close)
    last, first = recent(it.path, 10)
    assert (first["cache"], first["reread_tokens"]) == ("", 0)
    assert last["cache_cause"] == "attribution"
    assert "This new conversation read" in last["cache"] and "the attribution line changed" in last["cache"]
    assert "firesteel client claude-code --write" in last["cache"]
    assert 0.8 < last["reread_tokens"] / last["prompt_tokens"] <= 1
    (sample,) = families["firesteel_reread_tokens_total"]
    assert ("cause", "attribution") in sample.labels and sample.value == last["reread_tokens"]
    assert read_report(Home(tmp_path), UsageQuery(), last["at"]).total.reread_tokens == last["reread_tokens"]


async def test_a_conversation_that_goes_on_is_not_mentioned(tmp_path: Path) -> None:
    async with running(tmp_path, 1, script=CachingEngine()) as it:
        for messages in (TALK[:1], TALK, [*TALK, *MORE], [*TALK, *MORE]):
            assert await ask(it, anthropic([RULES], messages)) == 200
        await asyncio.to_thread(it.log.close)
    assert [row["cache"] for row in recent(it.path, 10)] == [""] * 4


async def test_no_text_of_a_prompt_reaches_the_log(tmp_path: Path) -> None:
    secret = "kept-to-ourselves"
    async with running(tmp_path, 1, script=CachingEngine()) as it:
        for day in ("18", "19"):
            system = in_system(f"Today is 2026-11-{day} {secret}") + secret
            assert await ask(it, anthropic([system], [blocks(TASK)])) == 200
        await asyncio.to_thread(it.log.close)
    row = recent(it.path, 1)[0]
    assert row["cache_cause"] == "date"
    assert secret not in str(row)


@pytest.mark.parametrize("way", ["file", "header"])
async def test_a_normalizer_takes_out_the_line_where_it_is_switched_on(tmp_path: Path, way: str) -> None:
    engine = CachingEngine()
    on, lines = (("claude-code",), ()) if way == "file" else ((), (b"X-Firesteel-Normalize: on",))
    async with running(tmp_path, 1, script=engine) as it:
        it.server.pool.normalizers = Normalizers(known_normalizers(), on)
        for mark, task in (("197.a1b", TASK), ("197.c3d", "Something else.")):
            assert (
                await ask(it, anthropic([BILLING.format(mark, ""), RULES], [blocks(task)]), CLAUDE, *lines)
                == 200
            )
        await asyncio.to_thread(it.log.close)
    assert [body["system"] for body in engine.bodies] == [[{"type": "text", "text": RULES}]] * 2
    last, first = recent(it.path, 10)
    assert first["normalized"] == last["normalized"] == "Normalized: claude-code billing-line"
    assert last["cache"] == "" and last["cached_tokens"] > 1000


UNTOUCHED = {
    "off": (CLAUDE, (), "other", ""),
    "an unknown version": (
        b"claude-cli/2.1.999",
        ("claude-code",),
        "other",
        "Not normalized: claude-cli 2.1.999 is not a known version",
    ),
    "another client": (b"curl/8.5", ("claude-code",), "other", ""),
}


@pytest.mark.parametrize("case", UNTOUCHED)
async def test_what_is_not_known_is_left_alone(tmp_path: Path, case: str) -> None:
    agent, on, _, says = UNTOUCHED[case]
    engine = CachingEngine()
    async with running(tmp_path, 1, script=engine) as it:
        it.server.pool.normalizers = Normalizers(known_normalizers(), on)
        body = anthropic([BILLING.format("197.a1b", ""), RULES], [blocks(TASK)])
        assert await ask(it, body, agent) == 200
        await asyncio.to_thread(it.log.close)
    assert engine.bodies[0]["system"] == body["system"]
    assert recent(it.path, 1)[0]["normalized"] == says


def test_a_vendors_own_api_gets_what_its_client_sent() -> None:
    from firesteel.gateway.http.head import RequestHead
    from firesteel.gateway.interfaces import Endpoint

    head = RequestHead.__new__(RequestHead)
    head.lines, head.asks_normalized = b"User-Agent: claude-cli/2.1.197\r\n", True
    body = json.dumps(anthropic([BILLING.format("197.a1b", ""), RULES], [])).encode()
    known = Normalizers(known_normalizers(), ("claude-code",))
    vendor = Endpoint("claude", ("api.anthropic.com", 443), authority=b"api.anthropic.com")
    found = known.apply(head, "message", vendor, body)
    assert not found.edits and "vendor" in found.says
    assert known.apply(head, "message", Endpoint("m", ("127.0.0.1", 8000)), body).edits


@pytest.mark.parametrize("client, agents, each", list(normalizers()), ids=lambda value: str(value)[:20])
def test_the_examples_of_a_normalizer(client: str, agents: tuple[str, ...], each: Any) -> None:
    from firesteel.gateway.http.head import RequestHead
    from firesteel.gateway.interfaces import Endpoint

    assert agents and each.hits and each.misses and load_client(client).sources
    head = RequestHead.__new__(RequestHead)
    head.lines, head.asks_normalized = f"User-Agent: {agents[0]}/{each.until}\r\n".encode(), False
    known = Normalizers(known_normalizers(), chosen_normalizers(["all"]))
    endpoint = Endpoint("m", ("127.0.0.1", 8000))
    for hit in each.hits:
        (start, end, new) = known.apply(head, each.kind, endpoint, hit.before.encode()).edits[0]
        after = hit.before.encode()[:start] + new + hit.before.encode()[end:]
        assert json.loads(after) == json.loads(hit.after) and after == hit.after.encode()
    for miss in each.misses:
        json.loads(miss)
        assert not known.apply(head, each.kind, endpoint, miss.encode()).edits


def test_a_client_without_normalizers_is_a_mistake_of_the_service_file() -> None:
    with pytest.raises(UsageError, match="names no client") as error:
        chosen_normalizers(["claude"])
    assert error.value.next == "normalize: [claude-code]"
