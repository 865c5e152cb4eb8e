"""The adversary of `verify` itself: each entry changes what is sent, and unchanged it is an honest server.

The answers to the probes are those of the embedded engine, recorded. After a change to the probes or to an
entry, record them again from a running smollm2: `ADVERSARY_URL=http://127.0.0.1:8000 pytest
tests/run/test_adversary.py`. Behind the faults that `verify` is tested with stands a speaker, which answers
whatever `verify` asks.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.run.adversary.change import Change, Modification
from tests.run.adversary.faults import FAULTS
from tests.run.adversary.honest import REASONING, RECORDED, Honest
from tests.run.adversary.judge import HONEST, fits, judge
from tests.run.adversary.oddities import ODDITIES
from tests.run.adversary.server import Adversary, serving
from tests.run.adversary.speaker import Speaker

from firesteel.run.verify.verify import VerifyBudget

FUNCTION = {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}
TOOLS = [{"type": "function", "function": FUNCTION}]
WEATHER = "What is the weather in Paris for 3 days?"
REPEAT = "Repeat: café 東京"
WORD = "café \u2013 東京"
UNICODE = {"type": "object", "properties": {"word": {"enum": [WORD]}}, "required": ["word"]}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
DOCUMENT = (
    "The gate code is 4711. " + "The lighthouse stands on a rock in the sea. " * 20 + "What is the gate code?"
)


def _ask(*turns: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 90} | more


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


COMPUTER = "What is a computer? Answer in a few sentences."
PROBES = (
    _ask(COMPUTER),
    _ask(COMPUTER, **STREAM),
    _ask("What is 2+2?"),
    _ask(COMPUTER, stop=["electronic"]),
    _ask("What is 2+2?", max_tokens=4),
    _ask("My name is Ada.", "Hello Ada.", "What is my name?", max_tokens=20),
    {
        **_ask("Who are you?", max_tokens=20),
        "messages": [
            {"role": "system", "content": "You are a pirate."},
            {"role": "user", "content": "Who are you?"},
        ],
    },
    _ask(DOCUMENT, max_tokens=20),
    _ask(REPEAT, **_json(UNICODE)),
    _ask(REPEAT, **_json(UNICODE), **STREAM),
    _ask(WEATHER, tools=TOOLS),
    _ask(WEATHER, tools=TOOLS, **STREAM),
    _ask("What is 2+2?", max_tokens=6, logprobs=True, top_logprobs=1),
    _ask("Name a colour.", max_tokens=8, temperature=1.5, seed=5),
    _ask("Name a colour.", max_tokens=8, temperature=1.5, seed=6),
)
TOGETHER = (_ask("What is 2+2?"), _ask(COMPUTER))


@pytest.fixture(scope="module")
def honest() -> Iterator[Honest]:
    url = os.environ.get("ADVERSARY_URL")
    one = Honest(url, None if url else RECORDED)
    yield one
    if url:
        one.save(RECORDED)


async def _post(url: str, request: dict[str, Any]) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(request).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return answer


async def _sent(honest: Honest, change: Change, reasoning: bool) -> list[Any]:
    """Everything that the probes make the server send, and its pauses."""
    honest.restart()
    adversary = Adversary(honest, change, reasoning=reasoning, time_scale=0)
    async with serving(adversary) as url:
        for probe in PROBES:
            await _post(url, probe)
        alone = list(adversary.sent)
        return [alone, *await asyncio.gather(*(_post(url, probe) for probe in TOGETHER))]


def test_there_are_enough_of_them() -> None:
    names = [one.name for one in (*FAULTS, *ODDITIES)]
    assert len(set(names)) == len(names)
    assert len(FAULTS) >= 60
    assert len(ODDITIES) >= 25
    assert all(one.gate for one in FAULTS)


@pytest.fixture(scope="module")
def unchanged(honest: Honest) -> dict[bool, list[Any]]:
    """With and without reasoning; the recorded answers make it the same every time."""
    return {reasoning: asyncio.run(_sent(honest, Change(), reasoning)) for reasoning in (False, True)}


def test_without_a_change_the_same_is_sent(honest: Honest, unchanged: dict[bool, list[Any]]) -> None:
    for reasoning, sent in unchanged.items():
        assert asyncio.run(_sent(honest, Change(), reasoning)) == sent


@pytest.mark.parametrize("one", [*FAULTS, *ODDITIES], ids=lambda one: one.name)
async def test_each_changes_what_is_sent(
    one: Modification, honest: Honest, unchanged: dict[bool, list[Any]]
) -> None:
    reasoning = "reasoning" in one.needs
    assert await _sent(honest, one.change, reasoning) != unchanged[reasoning]


@pytest.mark.parametrize("one", [HONEST, *FAULTS, *ODDITIES], ids=lambda one: one.name)
async def test_verify_names_each_fault_and_no_oddity(one: Modification) -> None:
    """Pauses are 500 times shorter: `python -m tests.run.adversary` has them in full."""
    verdict = await judge(one, Speaker("llamacpp"), time_scale=0.002, budget=VerifyBudget(60, 3))
    assert fits(one, verdict), verdict


def _client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def test_unchanged_it_is_an_honest_server(honest: Honest) -> None:
    """Read by OpenAI's own client: plain and streamed answers are equal, tool calls and JSON parse."""
    async with serving(Adversary(honest, reasoning=True)) as url, _client(url) as client:
        create = client.chat.completions.create
        plain = await create(**_ask(COMPUTER))
        assert plain.choices[0].message.content
        assert plain.choices[0].message.model_extra == {"reasoning_content": REASONING}
        usage = plain.usage
        assert usage and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        chunks = [chunk async for chunk in await create(**_ask(COMPUTER, **STREAM))]
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said == plain.choices[0].message.content
        assert chunks[-1].usage and chunks[-1].usage.completion_tokens == usage.completion_tokens
        tool = _ask(WEATHER, tools=TOOLS)
        called = (await create(**tool)).choices[0].message.tool_calls
        assert called and set(json.loads(called[0].function.arguments)) == {"city", "days"}
        async with client.chat.completions.stream(**tool) as streamed:
            final = (await streamed.get_final_completion()).choices[0].message.tool_calls
        assert final and final[0].function.arguments == called[0].function.arguments
        word = (await create(**_ask(REPEAT, **_json(UNICODE)))).choices[0].message.content
        assert json.loads(word or "") == {"word": WORD}
