"""`json.loads` is the oracle: what `find_model` says of any JSON body is what a parser says of it."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firesteel.gateway.http.body import (
    MAX_KEYS,
    MAX_NAME_BYTES,
    MAX_PARTS,
    MAX_WALK_BYTES,
    ModelField,
    edited,
    find_model,
    model_edit,
    net_closing_brackets,
    prompt_prefix,
    wants_stream,
)
from firesteel.gateway.interfaces import Rejection

JSON = b"application/json"


def replace_model(body: bytes, field: ModelField, name: bytes) -> bytes:
    edit = model_edit(field, name)
    return b"".join(edited(body, [edit] if edit else []))


# -- JSON of every kind: objects are lists of pairs, so that a key can come twice --

NASTY = [
    '"model"',
    '"model":"x"',
    'model":',
    "\\",
    '\\"',
    '{"model":"a"}',
    "]}",
    "[{",
    "\\u006dodel",
    "é\u2028😀",
    "",
]
TEXTS = st.one_of(st.sampled_from(NASTY), st.text(max_size=8))
KEYS = st.one_of(
    st.sampled_from(["model", "stream", "Model", "models", '"model', 'model"', "messages"]), TEXTS
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, width=32), TEXTS)
SPACES = st.sampled_from(["", "", "", " ", "\n\t", "\r\n  "])


class Pairs(list[tuple[str, Any]]):
    """An object, its members in order."""


def _objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Pairs]:
    return st.lists(st.tuples(KEYS, values), max_size=5).map(Pairs)


VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), _objects(inner)), max_leaves=12
)
DOCUMENTS = st.builds(
    lambda before, model, after: Pairs([*before, *model, *after]),
    _objects(VALUES),
    st.lists(st.tuples(st.just("model"), SCALARS), max_size=2),
    _objects(VALUES),
)


@st.composite
def spelled(draw: st.DrawFn, documents: st.SearchStrategy[Pairs] = DOCUMENTS) -> bytes:
    """A document as bytes: with white space anywhere, and letters written as escapes."""

    def text(value: str) -> str:
        plain = json.dumps(value, ensure_ascii=draw(st.booleans()))
        if value.isascii() and value.isalpha() and draw(st.integers(0, 5)) == 0:
            at = draw(st.integers(0, len(value) - 1))
            hexes = f"{ord(value[at]):04x}"
            return f'"{value[:at]}\\u{hexes.upper() if draw(st.booleans()) else hexes}{value[at + 1 :]}"'
        return plain.replace("/", "\\/") if draw(st.booleans()) else plain

    def write(value: Any) -> str:
        space = draw(SPACES)
        if isinstance(value, Pairs):
            members = [
                f"{space}{text(key)}{draw(SPACES)}:{space}{write(one)}{draw(SPACES)}" for key, one in value
            ]
            return "{" + ",".join(members) + draw(SPACES) + "}"
        if isinstance(value, list):
            return f"[{space}" + ",".join(write(one) for one in value) + f"{draw(SPACES)}]"
        return text(value) if isinstance(value, str) else json.dumps(value)

    return (draw(SPACES) + write(draw(documents)) + draw(SPACES)).encode("utf-8", "surrogatepass")


def _loads(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:  # half a surrogate pair, as bytes
        return None


@given(spelled())
@example(b'{"model":"a","\\u006dodel":"b"}')
@example(b'{"messages":["\\"model"],"model":"a"}')
@example(b'{"a":{"model":"nested"}}')
@example(b'{"x":"\\\\","model":"a","y":"\\\\\\""}')
@example(b'{"model" : "a", "tools": [{"model": {"type": "string"}}]}')
def test_says_what_a_parser_says(body: bytes) -> None:
    found, parsed = find_model(body, JSON), _loads(body)
    if parsed is None:
        return
    if isinstance(found, ModelField):
        assert found.model == parsed["model"]
        spelled = json.loads(b'"' + body[found.start : found.end] + b'"')
        assert spelled == found.model
    elif found.kind == "missing_model":
        assert parsed.get("model", "") == ""
    elif found.kind == "bad_body":
        assert not isinstance(parsed["model"], str) or not _is_utf8(parsed["model"])
    else:
        assert found.kind == "ambiguous_body"
        assert _top_level_keys(body).count("model") > 1


@settings(max_examples=60)
@given(spelled(), st.text(min_size=1, max_size=12).filter(lambda name: _is_utf8(name)))
def test_a_spliced_name_changes_nothing_else(body: bytes, name: str) -> None:
    found = find_model(body, JSON)
    if _loads(body) is None or isinstance(found, Rejection):
        return
    pairs = json.loads(body, object_pairs_hook=list)
    last = max(index for index, (key, _) in enumerate(pairs) if key == "model")
    pairs[last] = ("model", name)
    assert json.loads(replace_model(body, found, name.encode()), object_pairs_hook=list) == pairs


@given(spelled())
@example(b'{"stream":true}')
@example(b'{"a":{"stream":true},"stream":false}')
@example(b'{"\\u0073tream":true}')
def test_a_stream_is_wanted_where_a_parser_says_so(body: bytes) -> None:
    parsed = _loads(body)
    if parsed is not None and _top_level_keys(body).count("stream") < 2:
        assert wants_stream(body) is (parsed.get("stream") is True)


@settings(max_examples=50)
@given(spelled())
def test_brackets_in_strings_do_not_count(body: bytes) -> None:
    if _loads(body) is not None:
        assert net_closing_brackets(body) == 0
        assert net_closing_brackets(body[body.index(b"{") + 1 :]) == 1


@given(
    st.binary(max_size=200), st.sampled_from([JSON, b"", b"multipart/form-data; boundary=x", b"text/plain"])
)
def test_any_bytes_get_an_answer(body: bytes, content_type: bytes) -> None:
    assert isinstance(find_model(body, content_type), ModelField | Rejection)
    assert isinstance(wants_stream(body), bool)
    assert isinstance(prompt_prefix(body), int)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _top_level_keys(body: bytes) -> list[str]:
    return [key for key, _ in json.loads(body, object_pairs_hook=list)]


# -- what clients really send --

CODE = 'def main():\n\tprint("hello \\"world\\"")  # {"model": "not me", "stream": true}\n' * 400
TURNS: list[Any] = [{"role": "user", "content": CODE}]
NESTED_TOOL: Any = {
    "type": "function",
    "function": {"name": "task", "parameters": {"properties": {"model": {"type": "string"}}}},
}


def _sent(ask: Callable[[httpx2.Client], object]) -> tuple[bytes, bytes]:
    """The body and its type that a client sends, caught before it leaves."""
    seen: list[httpx2.Request] = []

    def catch(request: httpx2.Request) -> httpx2.Response:
        request.read()
        seen.append(request)
        return httpx2.Response(418, json={})

    with (
        httpx2.Client(transport=httpx2.MockTransport(catch)) as http,
        suppress(openai.APIError, anthropic.APIError),
    ):
        ask(http)
    return seen[0].content, seen[0].headers["content-type"].encode()


def _openai(http: httpx2.Client) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url="http://127.0.0.1:1/v1", http_client=http, max_retries=0)


def test_the_openai_clients_chat() -> None:
    body, kind = _sent(
        lambda http: _openai(http).chat.completions.create(
            model="coder", messages=TURNS, stream=True, tools=[NESTED_TOOL]
        )
    )
    found = find_model(body, kind)
    assert isinstance(found, ModelField)
    assert (found.model, body[found.start : found.end]) == ("coder", b"coder")
    assert wants_stream(body)
    assert json.loads(replace_model(body, found, b"other")) == json.loads(body) | {"model": "other"}


def test_the_anthropic_clients_messages() -> None:
    used: Any = {"type": "tool_use", "id": "a", "name": "task", "input": {"model": "haiku", "stream": True}}
    turns = [*TURNS, {"role": "assistant", "content": [used]}]

    def ask(http: httpx2.Client) -> object:
        client = anthropic.Anthropic(
            api_key="none", base_url="http://127.0.0.1:1", http_client=http, max_retries=0
        )
        return client.messages.create(model="coder", max_tokens=5, messages=turns)

    body, kind = _sent(ask)
    found = find_model(body, kind)
    assert isinstance(found, ModelField)
    assert found.model == "coder"
    assert not wants_stream(body)


@pytest.mark.parametrize("where", ["first", "last"])
def test_the_openai_clients_forms(where: str) -> None:
    audio = b"\r\n--x\r\nContent-Disposition: form-data; name=model\r\n\r\nnot me" * 100
    body, kind = _sent(
        lambda http: _openai(http).audio.transcriptions.create(model="whisper", file=("a.wav", audio))
    )
    if where == "last":
        boundary = b"--" + kind.partition(b"boundary=")[2]
        parts = body.split(boundary)
        body = boundary.join([parts[0], *reversed(parts[1:-1]), parts[-1]])
    found = find_model(body, kind)
    assert isinstance(found, ModelField)
    assert (found.model, body[found.start : found.end]) == ("whisper", b"whisper")
    assert b'name="model"\r\n\r\nother\r\n' in replace_model(body, found, b"other")


def test_a_name_from_the_query_is_not_put_into_the_body() -> None:
    assert replace_model(b"", ModelField("coder", 0, 0), b"other") == b""
    assert replace_model(b'{"a":1}', ModelField("coder", 0, 0), b"other") == b'{"a":1}'


# -- forms --

FORM = b"multipart/form-data; boundary=x"


def _form(*parts: bytes, end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + end


def _field(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return b'Content-Disposition: form-data; name="' + name + b'"' + more + b"\r\n\r\n" + value


GOOD_FORMS: list[tuple[bytes, bytes]] = [
    (FORM, _form(_field(b"model", b"coder"))),
    (b'Multipart/Form-Data; boundary="x"', _form(_field(b"model", b"coder"))),
    (b"multipart/form-data; boundary=x; charset=utf-8", _form(_field(b"model", b"coder"))),
    (FORM, _form(_field(b"file", b"\x00\xff--x\r\n", b'; filename="model"'), _field(b"model", b"coder"))),
    (FORM, _form(_field(b"a", b""), _field(b"model", b"coder"))),
    (FORM, _form(b"Content-Type: text/plain\r\n" + _field(b"model", b"coder"))),
    (FORM, _form(b"content-disposition:form-data;name=model\r\n\r\ncoder")),
    (FORM, _form(_field(b"f", b"", b'; filename="; name=\\"model\\""'), _field(b"model", b"coder"))),
]

BAD_FORMS: list[tuple[bytes, bytes, str]] = [
    (FORM, _form(_field(b"prompt", b"model")), "missing_model"),
    (FORM, _form(_field(b"model", b"")), "missing_model"),
    (FORM, _form(_field(b"model", b"a"), _field(b"model", b"b")), "ambiguous_body"),
    (FORM, _form(_field(b"model", b"a", b'; filename="a"')), "ambiguous_body"),
    (FORM, _form(_field(b"model", b"a", b"; filename*=utf-8''a")), "ambiguous_body"),
    (FORM, _form(_field(b"model", b"\xff")), "bad_body"),
    (FORM, _form(_field(b"model", b"a" * (MAX_NAME_BYTES + 1))), "bad_body"),
    (FORM, _form(_field(b"model", b"a"), end=b""), "bad_body"),
    (FORM, b"preamble\r\n" + _form(_field(b"model", b"a")), "bad_body"),
    (FORM, b"", "bad_body"),
    (FORM, b"--x", "bad_body"),
    (FORM, b"--xy\r\n" + _field(b"model", b"a") + b"\r\n--xy--", "bad_body"),
    (FORM, _form(b"\r\na"), "bad_body"),
    (FORM, _form(b"Content-Disposition: form-data\r\n\r\na"), "bad_body"),
    (FORM, _form(b"Content-Disposition: attachment; name=model\r\n\r\na"), "bad_body"),
    (FORM, _form(b"Content-Disposition: form-data; name*=utf-8''model\r\n\r\na"), "bad_body"),
    (FORM, _form(b"Content-Disposition: form-data; name=a\r\n" + _field(b"model", b"a")), "bad_body"),
    (FORM, _form(b"Content-Disposition: form-data; name=a; name=model\r\n\r\na"), "bad_body"),
    (FORM, _form(b"X: " + b"a" * 5000 + b"\r\n" + _field(b"model", b"a")), "bad_body"),
    (FORM, _form(*[_field(b"a", b"")] * (MAX_PARTS + 1)), "bad_body"),
    (b"multipart/form-data", _form(_field(b"model", b"a")), "bad_body"),
    (b"multipart/form-data; boundary=", _form(_field(b"model", b"a")), "bad_body"),
    (b"multipart/form-data; boundary=x; boundary=y", _form(_field(b"model", b"a")), "bad_body"),
    (b"multipart/form-data; boundary=" + b"x" * 71, _form(_field(b"model", b"a")), "bad_body"),
    (b'multipart/form-data; boundary="x\r\n"', _form(_field(b"model", b"a")), "bad_body"),
    (b"multipart/mixed; boundary=x", _form(_field(b"model", b"a")), "bad_body"),
]


@pytest.mark.parametrize(("content_type", "body"), GOOD_FORMS, ids=range(len(GOOD_FORMS)))
def test_a_form_names_its_model(content_type: bytes, body: bytes) -> None:
    found = find_model(body, content_type)
    assert isinstance(found, ModelField)
    assert (found.model, body[found.start : found.end], found.is_json) == ("coder", b"coder", False)
    parsed = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + content_type + b"\r\n\r\n" + body)
    named = [
        part
        for part in parsed.iter_parts()
        if part.get_param("name", header="content-disposition") == "model"
    ]
    assert [part.get_payload() for part in named] == ["coder"]


@pytest.mark.parametrize(("content_type", "body", "kind"), BAD_FORMS, ids=range(len(BAD_FORMS)))
def test_an_odd_form_is_rejected(content_type: bytes, body: bytes, kind: str) -> None:
    found = find_model(body, content_type)
    assert isinstance(found, Rejection)
    assert (found.status, found.kind) == (400, kind)


# -- refusals and bounds --


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "bad_body"),
        (b"[]", "bad_body"),
        (b"model=coder&prompt=x", "bad_body"),
        (b'\xef\xbb\xbf{"model":"a"}', "bad_body"),
        ('{"model":"a"}'.encode("utf-16"), "bad_body"),
        (b'{"prompt":"x"}', "missing_model"),
        (b'{"model":""}', "missing_model"),
        (b'{"model":null}', "bad_body"),
        (b'{"model":["a"]}', "bad_body"),
        (b'{"model":"a', "bad_body"),
        (b'{"model":"\xff"}', "bad_body"),
        (b'{"model":"\\ud800"}', "bad_body"),
        (b'{"model":"a\nb"}', "bad_body"),
        (b'{"model":"' + b"a" * MAX_NAME_BYTES + b'"}', "bad_body"),
        (b'{"model":"a","model":"b"}', "ambiguous_body"),
        (b'{"model":"a","messages":[{}],"model":"b"}', "ambiguous_body"),
        (b'{"model":"a","x":1,"mod\\u0065l":"b"}', "ambiguous_body"),
    ],
)
def test_an_odd_body_is_rejected(body: bytes, kind: str) -> None:
    found = find_model(body, JSON)
    assert isinstance(found, Rejection)
    assert (found.status, found.kind) == (400, kind)


MIB = 1024 * 1024
HOSTILE: list[tuple[bytes, bytes]] = [
    (JSON, b'{"x":[' + b'{"model":1},' * 400_000 + b"{}]}"),
    (JSON, b'{"x":' + b"[" * (8 * MIB)),
    (JSON, b'{"x":[],"y":' + b'["[",' * MIB + b'"model":"a"'),
    (JSON, b'{"a":[],"model":"b","x":[' + b'"[",' * MIB + b"1]}"),
    (JSON, b'{"x":[],"model":"b","x":"' + b"\\n" * (4 * MIB) + b'"}'),
    (JSON, b'{"x":[],"' + b"\\u006d" * MIB + b'":1}'),
    (JSON, b'{"' + b"model" * MIB + b'":1}'),
    (JSON, b'{"model":"' + b"\\" * (8 * MIB)),
    (JSON, b"{" + b'"a":1,' * MIB + b'"model":"a"}'),
    (JSON, b" " * (8 * MIB)),
    (FORM, _form(*[_field(b"a", b"")] * 10_000)),
    (FORM, b"--x\r\n" + b"\r\n--" * (2 * MIB)),
    (FORM, _form(_field(b"f", b"\r\n--" * (2 * MIB)), _field(b"model", b"a"))),
    (b"multipart/form-data; boundary=" + b"-" * 70, b"-" * (8 * MIB)),
]


@pytest.mark.parametrize(("content_type", "body"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bodies_take_little(content_type: bytes, body: bytes) -> None:
    """They take the memory of a few copies of what is looked at; a time that is quadratic would be hours."""
    tracemalloc.start()
    find_model(body, content_type)
    wants_stream(body)
    prompt_prefix(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MAX_WALK_BYTES + 24 * MIB


def test_too_many_keys_are_not_counted_out() -> None:
    many = b'{"x":[' + b'{"model":1},' * (MAX_KEYS + 1) + b"{}]"
    assert isinstance(found := find_model(many + b"}", JSON), Rejection)
    assert "Put `model` last" in found.why
    assert isinstance(find_model(many + b',"model":"a"}', JSON), ModelField)


@pytest.mark.parametrize("where", ["near the start", "near the end"])
def test_a_long_prompt_is_walked_on_its_short_side(where: str) -> None:
    long = b'"prompt":"' + b"x" * (MAX_WALK_BYTES + 1) + b'"'
    members = [b'"a":[1]', b'"model":"coder"', b'"b":{"c":[2]}']
    members.insert(3 if where == "near the start" else 0, long)
    found = find_model(b"{" + b",".join(members) + b"}", JSON)
    assert isinstance(found, ModelField)
    assert found.model == "coder"


# -- the beginning of a prompt --


def _turns(system: str, *texts: str) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(texts)
    said = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return [{"role": "system", "content": system}, *said]


def _chat(*texts: str, system: str = "You write code. " * 500, **more: Any) -> bytes:
    return json.dumps({"messages": _turns(system, *texts), "model": "m"} | more).encode()


def test_a_conversation_keeps_its_number_while_it_grows() -> None:
    first = prompt_prefix(_chat("fix the bug"))
    assert first == prompt_prefix(_chat("fix the bug", "done", "thanks", stream=True)) != 0
    assert first != prompt_prefix(_chat("write a test"))
    assert first != prompt_prefix(_chat("fix the bug", system="You are a pirate."))


def test_so_does_one_of_parts() -> None:
    def ask(*texts: str, cached: int) -> bytes:
        parts = [{"role": "user", "content": [{"type": "text", "text": text}]} for text in texts]
        parts[cached]["content"][0]["cache_control"] = {"type": "ephemeral"}  # type: ignore[index]
        return json.dumps({"model": "m", "messages": parts}).encode()

    assert (
        prompt_prefix(ask("a", cached=0))
        == prompt_prefix(ask("a", "b", cached=1))
        != prompt_prefix(ask("b", cached=0))
    )


@pytest.mark.parametrize("key", ["prompt", "input"])
def test_so_does_plain_text(key: str) -> None:
    long = "x" * 3000
    ask = [json.dumps({"model": "m", key: text}).encode() for text in (long, long + "y", "y" + long)]
    numbers = [prompt_prefix(one) for one in ask]
    assert numbers[0] == numbers[1] != numbers[2]
    assert 0 not in numbers


def test_what_has_no_text_has_no_number() -> None:
    assert prompt_prefix(b'{"model":"m","prompt":[1,2,3]}') == 0
