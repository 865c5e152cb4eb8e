"""What coding agents need of the gateway: a shape that templates take, errors that they act on, counts."""

from __future__ import annotations

import json
from time import monotonic
from typing import Any

import pytest

from firesteel.values import replace
from tests.gateway.http.kit import EngineConnection, RunningGateway, answer, chunked, event, request
from tests.gateway.http.request_world import World

GUARD = b'{"error":{"code":400,"message":"Unable to generate parser for this template. %b"}}'
AT_THE_HEAD = GUARD % b"System message must be at the beginning."
NO_SYSTEM = GUARD % b"System role not supported"


def text(role: str, content: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": content}]}


REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "a"},
            {"role": "developer", "content": "b"},
            {"role": "user", "content": "u"},
        ]
    },
    "/v1/messages": {
        "max_tokens": 5,
        "system": "a",
        "messages": [{"role": "user", "content": "u"}, {"role": "system", "content": "now"}],
    },
    "/v1/responses": {
        "instructions": "a",
        "input": [text("developer", "b"), text("developer", "c"), text("user", "u")],
    },
}


def refusing(gateway: RunningGateway, *, takes_system: bool = True) -> None:
    """A server whose template wants one system message at the head, or none."""

    async def script(connection: EngineConnection) -> None:
        while True:
            asked = json.loads((await connection.receive()).body)
            items = asked.get("messages") or asked["input"]
            roles = [item["role"] for item in items]
            head = asked.get("system") or asked.get("instructions")
            count = sum(role in ("system", "developer") for role in roles) + bool(head)
            if count and not takes_system:
                await connection.send(answer(NO_SYSTEM, status=b"400 Bad Request"))
            elif count > 1 or "developer" in roles:
                await connection.send(answer(AT_THE_HEAD, status=b"400 Bad Request"))
            else:
                await connection.send(answer(b'{"ok":true}'))

    gateway.engine.script = script


@pytest.mark.parametrize("path", REQUESTS)
async def test_a_shape_that_the_template_refuses_is_sent_once(gateway: RunningGateway, path: str) -> None:
    refusing(gateway)
    raw = await gateway.client()
    body = json.dumps({"model": "m", **REQUESTS[path]}).encode()
    for sent in (2, 3):  # the second request has the right shape at once
        got = await raw.ask(body, path=path.encode())
        assert (got.status, got.body) == (200, b'{"ok":true}')
        assert len(gateway.engine.received) == sent
    assert [outcome.how for outcome in gateway.dispatcher.outcomes] == ["whole", "whole"]


@pytest.mark.parametrize("path", REQUESTS)
async def test_a_template_without_a_system_role(gateway: RunningGateway, path: str) -> None:
    refusing(gateway, takes_system=False)
    raw = await gateway.client()
    body = json.dumps({"model": "m", **REQUESTS[path]}).encode()
    for sent in (2, 3):
        assert (await raw.ask(body, path=path.encode())).status == 200
        assert len(gateway.engine.received) == sent


async def test_what_it_refuses_in_any_shape_is_the_clients(gateway: RunningGateway) -> None:
    async def script(connection: EngineConnection) -> None:
        while True:
            await connection.receive()
            await connection.send(answer(AT_THE_HEAD, b"Content-Type: text/x", status=b"400 Bad Request"))

    gateway.engine.script = script
    raw = await gateway.client()
    plain: dict[str, Any] = {"messages": [{"role": "user", "content": "u"}]}
    for body, sent in ((plain, 1), (REQUESTS["/v1/messages"], 3)):
        got = await raw.ask(json.dumps({"model": "m", **body}).encode(), path=b"/v1/messages")
        assert (got.status, got.body, got.value(b"content-type")) == (400, AT_THE_HEAD, b"text/x")
        assert len(gateway.engine.received) == sent


async def test_a_server_that_moves_system_messages_gets_none(gateway: RunningGateway) -> None:
    """vLLM and SGLang would move a reminder to the head, and read the whole conversation again."""
    assert gateway.dispatcher.endpoint
    gateway.dispatcher.endpoint = replace(gateway.dispatcher.endpoint, moves_system=True)
    raw = await gateway.client()
    await raw.ask(json.dumps({"model": "m", **REQUESTS["/v1/messages"]}).encode(), path=b"/v1/messages")
    (received,) = gateway.engine.received
    sent = json.loads(received.body)
    assert sent["system"] == "a" and [each["role"] for each in sent["messages"]] == ["user"]
    assert "<system-reminder>\nnow" in sent["messages"][0]["content"]
    body = b'{"model":"m",  "max_tokens":5, "messages": [{"role":"user","content":"u"}]}'
    await raw.ask(body, path=b"/v1/messages")
    assert gateway.engine.received[1].body == body, "any other request is forwarded as it is"


TOO_LONG = {
    "llama.cpp": (
        '{"error":{"code":400,"message":"request (4554 tokens) exceeds the available context size'
        ' (4096 tokens), try increasing it","type":"exceed_context_size_error"}}',
        "prompt is too long: 4554 tokens > 4096 maximum",
    ),
    "vLLM": (
        '{"error":{"message":"This model\'s maximum context length is 4096 tokens. However, you requested'
        ' 5200 tokens (5000 in the messages, 200 in the completion). Please reduce the length."}}',
        "prompt is too long: 5000 tokens > 4096 maximum",
    ),
    "vLLM, the answer": (
        '{"error":{"message":"This model\'s maximum context length is 4096 tokens. However, you requested'
        ' 5000 tokens (3000 in the messages, 2000 in the completion). Please reduce the length."}}',
        "input length and `max_tokens` exceed context limit: 3000 + 2000 > 4096",
    ),
    "vLLM, newer": (
        '{"error":{"message":"You passed 5001 input tokens and requested 100 output tokens. However, the'
        " model's context length is only 4096 tokens, resulting in a maximum input length of 3996.\"}}",
        "prompt is too long: 5001 tokens > 4096 maximum",
    ),
    "SGLang": (
        '{"message":"The input (4554 tokens) is longer than the model\'s context length (4096 tokens)."}',
        "prompt is too long: 4554 tokens > 4096 maximum",
    ),
    "SGLang, the answer": (
        '{"message":"Requested token count exceeds the model\'s maximum context length of 4096 tokens. You'
        " requested a total of 5000 tokens: 3000 tokens from the input messages and 2000 tokens for the"
        ' completion."}',
        "input length and `max_tokens` exceed context limit: 3000 + 2000 > 4096",
    ),
    "no numbers": ('{"error":{"message":"maximum context length exceeded"}}', "prompt is too long. "),
}


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("engine", TOO_LONG)
@pytest.mark.parametrize("speaks", [(), ("chat",)], ids=["forwarded", "translated"])
async def test_a_prompt_that_is_too_long(
    gateway: RunningGateway, path: str, engine: str, speaks: Any
) -> None:
    """In the words by which Claude Code compacts, and with the code by which Codex says that it is full."""
    said, why = TOO_LONG[engine]

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(answer(said.encode(), status=b"400 Bad Request"))

    gateway.engine.script = script
    assert gateway.dispatcher.endpoint
    gateway.dispatcher.endpoint = replace(gateway.dispatcher.endpoint, speaks=speaks)
    raw = await gateway.client()
    got = await raw.ask(json.dumps({"model": "m", **REQUESTS[path]}).encode(), path=path.encode())
    error = json.loads(got.body)["error"]
    assert got.status == 400 and error["message"].startswith(why), error
    if path == "/v1/messages":
        assert error["type"] == "invalid_request_error" and json.loads(got.body)["type"] == "error"
    else:
        assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", [b"/v1/messages/count_tokens", b"/v1/responses/input_tokens"])
@pytest.mark.parametrize("how", ["chat only", "404"])
async def test_a_count_that_the_server_does_not_offer_is_estimated(
    gateway: RunningGateway, path: bytes, how: str
) -> None:
    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(answer(b'{"detail":"Not Found"}', status=b"404 Not Found"))

    gateway.engine.script = script
    assert gateway.dispatcher.endpoint
    if how == "chat only":
        gateway.dispatcher.endpoint = replace(gateway.dispatcher.endpoint, speaks=("chat",))
    raw = await gateway.client()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 400}]}).encode()
    got = await raw.ask(body, path=path)
    count = json.loads(got.body)
    assert got.status == 200 and 400 < count["input_tokens"] < 700
    assert count["is_estimate"] is True and got.value(b"x-firesteel-estimate") == b"input_tokens"


async def test_a_count_of_the_engine_is_passed_on(gateway: RunningGateway) -> None:
    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(answer(b'{"input_tokens":7}'))

    gateway.engine.script = script
    raw = await gateway.client()
    got = await raw.ask(b'{"model":"m","messages":[]}', path=b"/v1/messages/count_tokens")
    assert got.body == b'{"input_tokens":7}' and got.value(b"x-firesteel-estimate") is None


WAITING = b'{"model":"m","stream":true,"input":"x"}'
KNOWN = b"User-Agent: codex_exec/0.169.0 (Debian; x86_64) dumb"


@pytest.mark.parametrize(
    ("agent", "path", "is_kept"),
    [
        (KNOWN, b"/v1/responses", True),
        (KNOWN, b"/v1/chat/completions", False),
        (b"user-agent: codex_exec/0.170.0", b"/v1/responses", False),
        (b"X-Agent: codex_exec/0.169.0", b"/v1/responses", False),
    ],
    ids=["known", "another API", "a version that was not seen", "not its name"],
)
async def test_an_event_only_for_versions_that_were_seen_to_accept_it(
    agent: bytes, path: bytes, is_kept: bool
) -> None:
    """330 s and 900 s of loading: something every five seconds."""
    world = World()
    world.server.keepalives = {"codex_exec/0.169.0": "keepalive"}
    world.send(request(WAITING, agent, path=path))
    began, sizes = monotonic(), []
    for seconds in range(2, 900, 5):
        world.request.tick(began + seconds)
        sizes.append(len(world.transport.written))
    written = world.transport.written
    assert sizes == sorted(set(sizes)), "each tick wrote something"
    assert written.count(b": ") >= len(sizes)
    events = written.count(b'event: keepalive\ndata: {"type":"keepalive"}\n\n')
    assert events == (len(sizes) if is_kept else 0)
    world.client_leaves()
    world.end()


NAMESPACE = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "tools": [{"type": "function", "name": "spawn_agent", "parameters": {"type": "object"}}],
}
CALLED = {"name": "multi_agent_v1__spawn_agent", "arguments": "{}"}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tools_that_codex_sends_by_default(gateway: RunningGateway, stream: bool) -> None:
    """0.169.0: `namespace` has functions, `web_search` is OpenAI's own. Calls get their namespace back."""
    call = {"id": "c1", "type": "function", "function": CALLED}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    delta = {"tool_calls": [{"index": 0, **call}]}
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]}]

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        if stream:
            events = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in chunks)
            await connection.send(answer(events + b"data: [DONE]\n\n", b"Content-Type: text/event-stream"))
        else:
            await connection.send(answer(json.dumps(whole).encode()))

    gateway.engine.script = script
    assert gateway.dispatcher.endpoint
    gateway.dispatcher.endpoint = replace(gateway.dispatcher.endpoint, speaks=("chat",))
    before = {"type": "function_call", "call_id": "c0", "namespace": "multi_agent_v1", "name": "spawn_agent"}
    asked = {
        "model": "m",
        "stream": stream,
        "tool_choice": "auto",
        "input": [
            text("user", "u"),
            before,
            {"type": "function_call_output", "call_id": "c0", "output": "ok"},
        ],
        "tools": [{"type": "function", "name": "get_goal"}, NAMESPACE, {"type": "web_search"}],
    }
    raw = await gateway.client()
    got = await raw.ask(json.dumps(asked).encode(), path=b"/v1/responses")
    assert got.status == 200, got.body
    (received,) = gateway.engine.received
    sent = json.loads(received.body)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["get_goal", "multi_agent_v1__spawn_agent"]
    assert sent["messages"][1]["tool_calls"][0]["function"]["name"] == "multi_agent_v1__spawn_agent"
    if stream:
        events = [json.loads(line[6:]) for line in got.body.splitlines() if line.startswith(b"data: ")]
        items = [each["item"] for each in events if each["type"].startswith("response.output_item")]
        assert [each["status"] for each in items] == ["in_progress", "completed"]
    else:
        items = json.loads(got.body)["output"]
    assert all((each["namespace"], each["name"]) == ("multi_agent_v1", "spawn_agent") for each in items)
    assert items[-1]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("last", "how"),
    [
        (b"data: [DONE]\n\n", "whole"),
        (b"event: response.completed\ndata: {}\n\n", "whole"),
        (b"event: message_stop\ndata: {}\n\n", "whole"),
        (b'data: {"text":"data: [DONE]"}\n\n', "left"),
    ],
)
async def test_a_client_that_leaves_after_the_last_event_has_its_answer(last: bytes, how: str) -> None:
    """Codex closes the connection at `response.completed`, before the end of the stream."""
    world = World()
    world.send(request(b'{"model":"m","stream":true}'))
    world.grant(pooled=True)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    world.engine_sends(head + chunked(event("a")) + chunked(last))
    world.client_leaves()
    assert [outcome.how for outcome in world.outcomes] == [how]
    world.end()


async def test_tools_that_are_loaded_when_they_are_looked_for(gateway: RunningGateway) -> None:
    """Claude Code 2.1.328: `ToolSearch` finds tools, and its result refers to them. They come last, so that
    the prompt keeps its beginning, in the order in which they were found; the others are left out."""

    async def script(connection: EngineConnection) -> None:
        while True:
            await connection.receive()
            await connection.send(
                answer(b'{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}]}')
            )

    gateway.engine.script = script
    assert gateway.dispatcher.endpoint
    gateway.dispatcher.endpoint = replace(gateway.dispatcher.endpoint, speaks=("chat",))
    names = ("Bash", "CronList", "Monitor", "Placeholder", "ToolSearch")
    late = {"CronList", "Monitor", "Placeholder"}
    tools = [
        {"name": name, "input_schema": {}, **({"defer_loading": True} if name in late else {})}
        for name in names
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "u"}]
    raw = await gateway.client()
    shown = []
    for found in ((), ("Monitor",), ("CronList", "Monitor")):
        if found:
            search: dict[str, Any] = {"type": "tool_use", "id": found[0], "name": "ToolSearch", "input": {}}
            references = [{"type": "tool_reference", "tool_name": name} for name in found]
            result = {"type": "tool_result", "tool_use_id": found[0], "content": references}
            messages += [{"role": "assistant", "content": [search]}, {"role": "user", "content": [result]}]
        asked = {"model": "m", "max_tokens": 5, "tools": tools, "messages": messages}
        got = await raw.ask(json.dumps(asked).encode(), path=b"/v1/messages")
        assert got.status == 200, got.body
        sent = json.loads(gateway.engine.received[-1].body)
        shown.append([tool["function"]["name"] for tool in sent["tools"]])
    first = ["Bash", "ToolSearch"]
    assert shown == [first, [*first, "Monitor"], [*first, "Monitor", "CronList"]]
    assert sent["messages"][-1] == {
        "role": "tool",
        "tool_call_id": "CronList",
        "content": "The tool `CronList` can be called now.\n\nThe tool `Monitor` can be called now.",
    }
