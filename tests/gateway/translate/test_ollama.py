"""Ollama's requests as OpenAI's, and the answers back; `http/test_ollama_api.py` has the real client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.gateway.translate.ollama import (
    FOREVER,
    ChatWriter,
    GenerateWriter,
    chat_response,
    embed_response,
    embeddings_response,
    generate_response,
    loaded_response,
    parse_keep_alive,
    translate_request,
)
from firesteel.gateway.translate.values import Json, TranslationContext, Untranslatable, parse_object

RECORDED = json.loads((Path(__file__).parent / "recorded" / "litellm-1.106.2.json").read_text())
HI = [{"role": "user", "content": "hi"}]


def chat(**more: Any) -> Json:
    return translate_request(b"/api/chat", {"model": "m", "messages": HI, **more}).body


class Clock:
    """A second passes at each look."""

    def __init__(self) -> None:
        self.seconds = 1_000_000_000.0

    def __call__(self) -> float:
        self.seconds += 1
        return self.seconds


def context() -> TranslationContext:
    return TranslationContext("m", Clock(), 1_000_000_000.0)


def test_a_stream_is_the_default() -> None:
    assert chat() == {
        "model": "m", "messages": HI, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert chat(stream=False) == {"model": "m", "messages": HI, "stream": False}


def test_options() -> None:
    given = {
        "temperature": 0, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7, "stop": ["END"],
        "num_predict": 9,
        "presence_penalty": 0.5, "frequency_penalty": 1, "repeat_penalty": 1.1, "repeat_last_n": 64,
        "num_ctx": 8192, "num_gpu": 99, "num_thread": 4, "use_mmap": True, "unheard_of": "x",
    }  # fmt: skip
    body = chat(options=given, stream=False)
    assert {name: body[name] for name in body if name not in ("model", "messages", "stream")} == {
        "temperature": 0, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7, "stop": ["END"],
        "max_tokens": 9,
        "presence_penalty": 0.5, "frequency_penalty": 1, "repeat_penalty": 1.1, "repetition_penalty": 1.1,
        "repeat_last_n": 64,
    }  # fmt: skip
    assert "max_tokens" not in chat(options={"num_predict": -1})


def test_formats_and_thinking() -> None:
    assert chat(format="json")["response_format"] == {"type": "json_object"}
    schema = {"type": "object"}
    assert chat(format=schema)["response_format"]["json_schema"]["schema"] == schema
    assert chat(think=False)["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat(think="high")["reasoning_effort"] == "high"


def test_images_and_tools() -> None:
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("one", "two")]
    messages = [
        {
            "role": "user",
            "content": "look",
            "images": ["iVBORw0KGgo=", "/9j/4AAQ", "UklGRg", "R0lGODlh", "abcd"],
        },
        {"role": "assistant", "content": "", "tool_calls": calls, "thinking": "hm"},
        {"role": "tool", "content": "2", "tool_name": "two"},
        {"role": "tool", "content": "1", "tool_call_id": "unknown"},
    ]
    body = chat(messages=messages, tools=[{"type": "function"}])
    kinds = [part["image_url"]["url"][:16] for part in body["messages"][0]["content"][1:]]
    assert kinds == [f"data:image/{kind};base64,"[:16] for kind in ("png", "jpeg", "webp", "gif", "png")]
    one, two = body["messages"][1]["tool_calls"]
    assert one["function"] == {"name": "one", "arguments": '{"a":1}'} and one["type"] == "function"
    assert body["messages"][1]["reasoning_content"] == "hm"
    assert [each["tool_call_id"] for each in body["messages"][2:]] == [two["id"], one["id"]]
    assert body["tools"] == [{"type": "function"}]


def test_generate() -> None:
    request = translate_request(
        b"/api/generate", {"model": "m", "prompt": "p", "system": "s", "stream": False}
    )
    assert request.path == b"/v1/chat/completions"
    assert [each["content"] for each in request.body["messages"]] == ["s", "p"]
    raw = translate_request(b"/api/generate", {"model": "m", "prompt": "<fim>", "raw": True, "stream": False})
    assert (raw.path, raw.body) == (b"/v1/completions", {"model": "m", "prompt": "<fim>", "stream": False})


def test_without_a_prompt_only_the_model_is_loaded() -> None:
    for path, empty in (
        (b"/api/chat", {"messages": []}),
        (b"/api/generate", {}),
        (b"/api/generate", {"prompt": ""}),
    ):
        request = translate_request(path, {"model": "m", "keep_alive": 0, **empty})
        assert request.path == b"" and not request.is_stream
        answer = loaded_response(path, request, context())
        assert answer["done"] is True and answer["done_reason"] == "unload"
    assert translate_request(b"/api/embed", {"model": "m", "input": []}).path == b""


def test_embeddings() -> None:
    body = {"model": "m", "input": ["a", "b"], "encoding_format": "float"}
    assert (
        translate_request(b"/api/embed", {"model": "m", "input": ["a", "b"], "truncate": True}).body == body
    )
    assert translate_request(b"/api/embeddings", {"model": "m", "prompt": "a"}).body["input"] == "a"
    answer = {
        "data": [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}],
        "usage": {"prompt_tokens": 3},
    }
    embedded = embed_response(answer, context())
    assert embedded["embeddings"] == [[1.0], [2.0]] and embedded["prompt_eval_count"] == 3
    assert embeddings_response(answer, context()) == {"embedding": [1.0]}


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("", None), (0, 0.0), ("0", 0.0), (-1, FOREVER), ("-1", FOREVER), ("-1m", FOREVER),
     (300, 300.0),
     ("5m", 300.0), ("1h30m", 5400.0), ("24h", 86400.0), ("500ms", 0.5), ("1.5s", 1.5), (1.5, 1.5)],
)  # fmt: skip
def test_keep_alive(value: object, seconds: float | None) -> None:
    assert parse_keep_alive(value) == seconds


@pytest.mark.parametrize(
    "value", ["x", "5 m", "5", True, [], {}, "5m5", "m", ".s", "1..2s", "9" * 30, float("nan")]
)
def test_what_is_no_time(value: object) -> None:
    if value == "5":
        assert parse_keep_alive(value) == 5.0
        return
    with pytest.raises(Untranslatable, match="keep_alive"):
        parse_keep_alive(value)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("chat", {"messages": HI}, "model"),
        ("chat", {"model": 5}, "model"),
        ("chat", {"model": "m", "messages": {}}, "messages"),
        ("chat", {"model": "m", "messages": ["hi"]}, "messages"),
        ("chat", {"model": "m", "messages": [{}]}, "role"),
        ("chat", {"model": "m", "messages": [{"role": "x"}]}, "role"),
        ("chat", {"model": "m", "messages": [{"role": "user", "content": []}]}, "content"),
        ("chat", {"model": "m", "messages": [{"role": "user", "images": [5]}]}, "images"),
        ("chat", {"model": "m", "messages": [{"role": "user", "tool_calls": [{}]}]}, "function"),
        ("chat", {"model": "m", "options": []}, "options"),
        ("chat", {"model": "m", "options": {"temperature": "hot"}}, "temperature"),
        ("chat", {"model": "m", "options": {"top_k": True}}, "top_k"),
        ("chat", {"model": "m", "options": {"stop": 5}}, "stop"),
        ("chat", {"model": "m", "stream": "yes"}, "stream"),
        ("chat", {"model": "m", "format": 5}, "format"),
        ("chat", {"model": "m", "think": "much"}, "think"),
        ("chat", {"model": "m", "keep_alive": "soon"}, "keep_alive"),
        ("generate", {"model": "m", "prompt": 5}, "prompt"),
        ("generate", {"model": "m", "prompt": "a", "suffix": "b"}, "suffix"),
        ("generate", {"model": "m", "prompt": "a", "template": "b"}, "template"),
        ("generate", {"model": "m", "prompt": "a", "context": [1]}, "context"),
        ("embed", {"model": "m", "input": 5}, "input"),
        ("embed", {"model": "m", "input": [5]}, "input"),
        ("embed", {"input": "a"}, "model"),
    ],
)
def test_what_is_wrong_is_named(path: str, body: Json, name: str) -> None:
    with pytest.raises(Untranslatable, match=f"`{name}`"):
        translate_request(f"/api/{path}".encode(), body)


@pytest.mark.parametrize(
    "request_", RECORDED["requests"], ids=lambda each: f"{each['client']} {each['case']}"
)
def test_what_litellm_sends(request_: Json) -> None:
    sent = request_["body"]
    made = translate_request(request_["path"].encode(), sent)
    assert made.is_stream is sent["stream"] and made.body["max_tokens"] == 8
    messages = made.body["messages"]
    if request_["client"] == "ollama":
        assert messages[-1]["role"] == "user" and len(messages) == 1
    else:
        assert [each["role"] for each in messages] == [each["role"] for each in sent["messages"]]
    if request_["case"] == "tool result":
        assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]
    if request_["case"] == "image":
        assert messages[-1]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    if "tools" in sent:
        assert made.body["tools"] == sent["tools"]


ANSWER = {
    "choices": [
        {
            "finish_reason": "tool_calls",
            "message": {
                "content": "so",
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": '{"a":1}'}}],
            },
        }
    ],
    "usage": {"prompt_tokens": 11, "completion_tokens": 5},
}


def test_a_whole_answer() -> None:
    answer = chat_response(ANSWER, context())
    call = {"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}
    assert answer["message"] == {"role": "assistant", "content": "so", "thinking": "hm", "tool_calls": [call]}
    assert answer["created_at"] == "2001-09-09T01:46:41.000000Z"
    assert (answer["done"], answer["done_reason"]) == (True, "stop")
    assert (answer["prompt_eval_count"], answer["eval_count"]) == (11, 5)
    assert answer["total_duration"] >= answer["eval_duration"] > 0
    assert (
        generate_response({"choices": [{"text": "t", "finish_reason": "length"}]}, context())["response"]
        == "t"
    )


@pytest.mark.parametrize(
    "answer",
    [{}, {"choices": []}, {"choices": 5}, {"choices": [5]}, {"choices": [{"message": 5}]},
     {"choices": [{"message": {"content": None, "tool_calls": [{"function": {"arguments": "{"}}]}}],
      "usage": 5}],
)  # fmt: skip
def test_an_odd_answer_breaks_nothing(answer: Json) -> None:
    for function in (chat_response, generate_response, embed_response, embeddings_response):
        assert isinstance(function(answer, context()), dict)


def chunk(delta: Json | None = None, finish: str | None = None, **more: Any) -> Json:
    return {"choices": [{"delta": delta or {}, "finish_reason": finish}], **more}


def lines(writer: ChatWriter | GenerateWriter, *chunks: Json) -> list[Json]:
    out = b"".join(writer.take(each) for each in chunks) + writer.end()
    return [json.loads(line) for line in out.splitlines()]


def test_a_stream_with_thinking_and_tools() -> None:
    piece = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a"'}}
    got = lines(
        ChatWriter(context()),
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "hm"}),
        chunk({"content": "so\n"}),
        chunk({"tool_calls": [piece]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}, "tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    )
    assert [each["done"] for each in got] == [False, False, False, True]
    assert got[0]["message"]["thinking"] == "hm" and got[1]["message"]["content"] == "so\n"
    assert got[2]["message"]["tool_calls"] == [{"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}]
    assert (got[3]["prompt_eval_count"], got[3]["eval_count"]) == (3, 4)
    assert got[3]["total_duration"] >= got[3]["prompt_eval_duration"] + got[3]["eval_duration"] > 0


def test_a_generated_stream() -> None:
    got = lines(
        GenerateWriter(context()),
        {"choices": [{"text": "a"}]},
        {"choices": [{"text": "", "finish_reason": "length"}]},
    )
    assert [each["response"] for each in got] == ["a", ""] and got[1]["done_reason"] == "length"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'"a"',
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\xff",
        b"{'a':1}",
    ],
)
def test_what_is_no_object(body: bytes) -> None:
    with pytest.raises(Untranslatable, match=r"JSON|too large"):
        parse_object(body)


def test_a_body_that_would_fill_the_memory_is_not_parsed() -> None:
    for body in (b'{"a":[' + b"{}," * 1_000_000 + b"{}]}", b'{"a":"' + b"x" * (33 * 2**20) + b'"}'):
        with pytest.raises(Untranslatable, match="too large") as refused:
            parse_object(body)
        assert refused.value.status == 413
    assert len(parse_object(b'{"a":"' + b"x, " * 200_000 + b'"}')["a"]) == 600_000
