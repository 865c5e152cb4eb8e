"""Parameters by model: the edited body is what the rules say, and everything else stays byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.gateway.http.body import edited
from firesteel.gateway.http.parameters import ParameterRules, estimated_tokens, parameter_edits
from firesteel.gateway.interfaces import Rejection
from firesteel.gateway.service_config import ModelParameters

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


NAMES = ("model", "user", "temperature", "seed", "n", "max_tokens", "n_predict", 'é"\\', "tools")
SCALARS = st.none() | st.booleans() | st.integers(-5, 200) | st.floats(-2, 2) | st.text(max_size=8)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=9),
    st.dictionaries(st.sampled_from(("temperature", "seed")), SCALARS, max_size=2),
    st.dictionaries(st.sampled_from(("temperature", "n")), SCALARS, max_size=2),
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
