"""Parameters by model: the edited body is what the rules say, and everything else stays byte for byte. Token
counts are asked of the engine, and the client sees what it would have seen without.
"""

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
from firesteel.gateway.http.body_edits import (
    AnswerSize,
    ParameterRules,
    answer_size,
    estimated_tokens,
    parameter_edits,
    request_usage,
)
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.usage import UsageFilter
from firesteel.gateway.interfaces import Counting, Endpoint, Rejection, Usage
from firesteel.gateway.service_config import ModelParameters
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

MAX_NAMES = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


def apply(body: bytes, parameters: ModelParameters, kind: str = "chat") -> bytes:
    rules = ParameterRules(parameters).of(kind)
    assert rules is not None
    edits = parameter_edits(body, rules)
    assert not isinstance(edits, Rejection), edits
    return b"".join(bytes(piece) for piece in edited(body, edits))


def applied(fields: dict[str, Any], parameters: ModelParameters, kind: str = "chat") -> Any:
    return json.loads(apply(json.dumps(fields).encode(), parameters, kind))


CHAT = {"model": "coder", "messages": [{"role": "user", "content": 'a } " { b'}]}


def test_a_default_is_for_those_who_give_none() -> None:
    parameters = ModelParameters(defaults={"temperature": 0.6, "top_p": 0.9})
    assert applied(CHAT, parameters) == CHAT | {"temperature": 0.6, "top_p": 0.9}
    assert applied(CHAT | {"temperature": 1}, parameters) == CHAT | {"temperature": 1, "top_p": 0.9}
    assert applied(CHAT | {"top_p": None}, parameters) == CHAT | {"temperature": 0.6, "top_p": 0.9}


def test_a_fixed_value_is_for_everybody() -> None:
    parameters = ModelParameters(fixed={"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}})
    for fields in ({}, {"temperature": 2}, {"chat_template_kwargs": {"enable_thinking": True, "x": [1]}}):
        assert applied(CHAT | fields, parameters) == CHAT | dict(parameters.fixed)


def test_stripped_fields_are_gone_wherever_they_stand() -> None:
    parameters = ModelParameters(strip=("user", "logit_bias"))
    assert applied({"user": "a", **CHAT, "logit_bias": {"1": 2}}, parameters) == CHAT
    assert applied(CHAT | {"user": "a", "logit_bias": {}, "n": 1}, parameters) == CHAT | {"n": 1}
    assert apply(b'{"user":1}', parameters) == b"{}"
    assert apply(b'{"user":1,"user":2, "user" : 3 }', parameters) == b"{ }"


@pytest.mark.parametrize(
    ("value", "limited"),
    [
        ("5", 5), ("100", 100), ("101", 100), ("-1", 100), ("1e9", 100), ("99.5", 100), ('"9999"', 100),
        ("null", 100), ("true", 100), ("[7]", 100), ("9" * 400, 100), ("0", 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", MAX_NAMES)
def test_no_spelling_of_a_number_escapes_the_limit(name: str, value: str, limited: int) -> None:
    body = b'{"model":"coder","%b":%b,"n":1}' % (name.encode(), value.encode())
    fields = json.loads(apply(body, ModelParameters(max_tokens=100)))
    assert [fields[each] for each in MAX_NAMES if each in fields] == [limited]
    assert fields["n"] == 1


def test_the_limit_is_given_to_those_who_ask_for_none_by_the_name_that_their_api_has() -> None:
    parameters = ModelParameters(max_tokens=100)
    assert applied(CHAT, parameters) == CHAT | {"max_tokens": 100}
    assert applied(CHAT, parameters, "message")["max_tokens"] == 100
    assert applied(CHAT, parameters, "response")["max_output_tokens"] == 100
    default = ModelParameters(defaults={"max_tokens": 50}, max_tokens=100)
    assert applied(CHAT, default) == CHAT | {"max_tokens": 50}
    assert applied(CHAT | {"max_completion_tokens": 70}, default) == CHAT | {"max_completion_tokens": 70}
    assert applied(CHAT, default, "response") == CHAT | {"max_output_tokens": 50}
    above = ModelParameters(defaults={"max_tokens": 500}, max_tokens=100)
    assert applied(CHAT, above) == CHAT | {"max_tokens": 100}


def test_a_key_twice_counts_as_for_an_engine_the_last_one() -> None:
    parameters = ModelParameters(max_tokens=100, fixed={"seed": 1})
    body = b'{"max_tokens":5,"seed":2,"model":"m","seed":3,"max_tokens":99999}'
    pairs = json.loads(apply(body, parameters), object_pairs_hook=list)
    assert sorted(map(tuple, pairs)) == [("max_tokens", 100), ("model", "m"), ("seed", 1)]


def test_a_key_with_escapes_is_the_same_key() -> None:
    body = rb'{"model":"m","max\u005ftokens":99999,"\u0075ser":"x"}'
    assert json.loads(apply(body, ModelParameters(max_tokens=100, strip=("user",)))) == {
        "model": "m",
        "max_tokens": 100,
    }


def test_what_is_nested_is_not_touched() -> None:
    inner = {"max_tokens": 9999, "user": "x", "temperature": 5}
    fields = CHAT | {"metadata": inner, "tools": [inner], "temperature": 1}
    parameters = ModelParameters(max_tokens=100, strip=("user",), fixed={"temperature": 0})
    assert applied(fields, parameters) == fields | {"temperature": 0, "max_tokens": 100}


def test_a_recipe_is_below_the_file_and_the_file_can_take_it_away() -> None:
    recipe = {"temperature": 1.0, "top_k": 40, "min_p": 0.01}
    parameters = ModelParameters(recipe=recipe, defaults={"temperature": 0.2, "min_p": None})
    assert applied(CHAT, parameters) == CHAT | {"temperature": 0.2, "top_k": 40}
    assert applied(CHAT, ModelParameters(recipe=recipe), "message") == CHAT | {
        "temperature": 1.0,
        "top_k": 40,
    }
    assert applied(CHAT, ModelParameters(recipe=recipe), "response") == CHAT | {"temperature": 1.0}


def test_requests_with_tools_have_their_own_sampling() -> None:
    parameters = ModelParameters(
        recipe={"temperature": 1.0, "top_p": 0.95}, recipe_for_tools={"temperature": 0.7, "top_p": 1.0}
    )
    tools = [{"type": "function"}]
    assert applied(CHAT | {"tools": tools}, parameters)["temperature"] == 0.7
    assert applied(CHAT | {"tools": []}, parameters)["temperature"] == 1.0
    assert applied(CHAT | {"tools": None}, parameters)["temperature"] == 1.0
    own = ModelParameters(
        defaults={"temperature": 0.1}, recipe={"temperature": 1.0}, recipe_for_tools={"temperature": 0.7}
    )
    assert applied(CHAT | {"tools": tools}, own)["temperature"] == 0.1


def test_embeddings_have_no_parameters() -> None:
    assert ParameterRules(ModelParameters(fixed={"temperature": 0})).of("embedding") is None


NAMES = ("model", "user", "temperature", "seed", "top_p", "max_tokens", "n_predict", 'é"\\', "tools")
SCALARS = st.none() | st.booleans() | st.integers(-5, 200) | st.floats(-2, 2) | st.text(max_size=8)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=9),
    st.dictionaries(st.sampled_from(("temperature", "seed")), SCALARS, max_size=2),
    st.dictionaries(st.sampled_from(("temperature", "top_p")), SCALARS, max_size=2),
    st.sets(st.sampled_from(("user", 'é"\\'))),
    st.none() | st.integers(1, 100),
    st.sampled_from((None, 2)),
    st.booleans(),
)
def test_any_body_and_any_rules(
    fields: dict[str, Any],
    defaults: dict[str, Any],
    fixed: dict[str, Any],
    strip: set[str],
    max_tokens: int | None,
    indent: int | None,
    ascii_only: bool,
) -> None:
    """The same as rules applied to the parsed body."""
    parameters = ModelParameters(defaults, fixed, tuple(strip), max_tokens)
    body = json.dumps(fields, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found = json.loads(apply(body, parameters))
    wanted = {name: value for name, value in fields.items() if name not in strip}
    ruled = {*defaults, *fixed, *MAX_NAMES} - {name for name, value in defaults.items() if value is None}
    wanted = {name: value for name, value in wanted.items() if value is not None or name not in ruled}
    wanted |= fixed
    for name, value in defaults.items():
        if value is not None:
            wanted.setdefault(name, value)
    if max_tokens is not None:
        names = [name for name in MAX_NAMES if name in wanted]
        for name in names:
            value = wanted[name]
            is_within = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= max_tokens
            wanted[name] = value if is_within else max_tokens
        if not names:
            wanted["max_tokens"] = max_tokens
    assert found == wanted


HOSTILE = [
    b"", b"[]", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b'{"a":1}x', b'{"a":1}{"b":2}',
    b'{"a":[}', b'{"a" 1}', b"{a:1}", b'{"a":}', b'{"a":"', b'{"a":[1,2', b'{"\\ud8":1}', b'{"\xff":1}',
    b'{"a":' + b"[" * 200_000, b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    b"{" + b",".join(b'"k%d":1' % n for n in range(2000)) + b"}",
]  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE)
def test_a_body_that_is_no_object_is_refused_by_name(body: bytes) -> None:
    rules = ParameterRules(ModelParameters(max_tokens=5)).of("chat")
    assert rules is not None
    refused = parameter_edits(body, rules)
    assert isinstance(refused, Rejection) and (refused.status, refused.kind) == (400, "bad_body")


@given(st.binary(max_size=60))
def test_no_bytes_break_it(body: bytes) -> None:
    rules = ParameterRules(ModelParameters(max_tokens=5, strip=("a",))).of("chat")
    assert rules is not None
    for text in (body, b"{" + body + b"}", b'{"a":' + body + b"}"):
        parameter_edits(text, rules)


def test_an_estimate_counts_text_and_no_images() -> None:
    text = json.dumps(CHAT | {"messages": [{"role": "user", "content": "word " * 8000}]}).encode()
    assert 9_000 < estimated_tokens(text) < 11_000
    image = b'{"image_url":{"url":"data:image/png;base64,' + b"A" * 4_000_000 + b'"}}'
    assert estimated_tokens(text + image) < 11_000
    assert estimated_tokens(b'{"data":"' + b"A" * 4_000_000 + b'"}') < 100


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


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"max_tokens": 50, "n": 2}, {"max_tokens": 5, "n": 2}),
        ({"n": 5}, {"max_tokens": 2, "n": 5}),
        ({"max_tokens": 2, "n": 5}, {"max_tokens": 2, "n": 5}),
        ({"best_of": 3, "max_tokens": 9}, {"best_of": 3, "max_tokens": 3}),
        ({"prompt": ["a", "b"], "max_tokens": 9}, {"prompt": ["a", "b"], "max_tokens": 5}),
        ({"prompt": [1, 2, 3], "max_tokens": 9}, {"prompt": [1, 2, 3], "max_tokens": 9}),
        ({"n": 1e1}, {"n": 1e1, "max_tokens": 1}),
        ({"n": None}, {"n": None, "max_tokens": 10}),
    ],
)
def test_a_limit_is_for_all_answers_together(asked: dict[str, Any], sent: dict[str, Any]) -> None:
    """`limits.max_tokens: 10` gave 500 tokens with `n: 50`."""
    rules = ParameterRules(ModelParameters(max_tokens=10)).of("completion")
    assert rules is not None
    body = json.dumps(asked).encode()
    edits = parameter_edits(body, rules)
    assert not isinstance(edits, Rejection)
    assert json.loads(b"".join(edited(body, edits))) == sent


def test_more_answers_than_tokens_are_refused() -> None:
    rules = ParameterRules(ModelParameters(max_tokens=10)).of("chat")
    assert rules is not None
    refused = parameter_edits(b'{"n": 50}', rules)
    assert isinstance(refused, Rejection) and refused.status == 400 and "50 answers" in refused.why


@pytest.mark.parametrize(
    ("body", "parameters", "size"),
    [
        ({"max_tokens": 7, "n": 3}, {}, AnswerSize(21)),
        ({"max_tokens": 7, "max_completion_tokens": 9}, {}, AnswerSize(9)),
        ({"stream": True}, {}, AnswerSize(None, True)),
        ({"max_tokens": None}, {"defaults": {"max_tokens": 5}}, AnswerSize(5)),
        ({"max_tokens": 50}, {"max_tokens": 8}, AnswerSize(8)),
        ({"n": 2}, {"max_tokens": 8}, AnswerSize(8)),
        ({"max_tokens": 50}, {"fixed": {"max_tokens": 3}}, AnswerSize(3)),
        ({"max_tokens": 50}, {"strip": ("max_tokens",)}, AnswerSize(None)),
        ({"n_predict": -1}, {}, AnswerSize(None)),
    ],
    ids=str,
)
def test_how_long_answers_may_become(
    body: dict[str, Any], parameters: dict[str, Any], size: AnswerSize
) -> None:
    rules = ParameterRules(ModelParameters(**parameters)).of("chat")
    assert rules is not None
    assert answer_size(json.dumps(body).encode(), rules) == size
