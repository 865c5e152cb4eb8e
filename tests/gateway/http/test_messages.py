"""The real `openai` and `anthropic` clients are the oracle: what they raise for what we say, and skip."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseErrorEvent

from firesteel.gateway.http.messages import error_body, error_event, wait_comment
from firesteel.gateway.http.routes import Route, find_route
from firesteel.gateway.interfaces import Rejection, WaitStatus
from tests.http_thread import QuietHandler, serving_http

BROKE = Rejection(502, "engine_died", "the engine of `coder` went away.\nAsk again.", src="engine:coder")
NEWS = b"".join(
    wait_comment(WaitStatus(f"loading coder: weights {done} %", 90 - done)) for done in (10, 43, 99)
)


@contextmanager
def saying(status: int, content_type: str, body: bytes) -> Iterator[str]:
    """A server with one answer for everything; its address."""

    class Says(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send(body, status, content_type=content_type)

    with serving_http(Says) as url:
        yield url


@contextmanager
def as_openai(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@contextmanager
def as_anthropic(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def _route(path: bytes) -> Route:
    route = find_route(b"POST", path)
    assert isinstance(route, Route)
    return route


TURNS: Any = [{"role": "user", "content": "hi"}]

REFUSALS = [
    (Rejection(400, "missing_model", "The body names no model."), "BadRequestError", "invalid_request_error"),
    (Rejection(401, "invalid_api_key", "Who are you?"), "AuthenticationError", "authentication_error"),
    (Rejection(403, "not_admin", "Not with this key."), "PermissionDeniedError", "permission_error"),
    (Rejection(404, "unknown_model", "No such model: `é\u2028\ud800`."), "NotFoundError", "not_found_error"),
    (Rejection(413, "too_large", "Too long."), "APIStatusError", "request_too_large"),
    (Rejection(429, "rate_limit_exceeded", "Slower."), "RateLimitError", "rate_limit_error"),
    (BROKE, "InternalServerError", "api_error"),
    (Rejection(503, "queue_full", "512 wait already."), "InternalServerError", "overloaded_error"),
    (Rejection(504, "load_timeout", "It took too long."), "InternalServerError", "timeout_error"),
]
"""What is refused, the class that both clients raise, and the kind that Anthropic's has."""


@pytest.mark.parametrize(("rejection", "name", "_"), REFUSALS)
def test_the_openai_client_raises_its_own(rejection: Rejection, name: str, _: str) -> None:
    error: type[openai.APIStatusError] = getattr(openai, name)
    kind = "server_error" if rejection.status >= 500 else "invalid_request_error"
    with (
        saying(rejection.status, "application/json", error_body(rejection, "openai")) as url,
        as_openai(url) as client,
        pytest.raises(error) as raised,
    ):
        client.chat.completions.create(model="coder", messages=TURNS)
    assert raised.value.body["message"] == rejection.why  # type: ignore[index]
    assert raised.value.type == ("rate_limit_error" if rejection.status == 429 else kind)
    assert raised.value.code == ("model_not_found" if rejection.kind == "unknown_model" else rejection.kind)
    assert raised.value.param == ("model" if "model" in rejection.kind else None)
    assert raised.value.body["src"] == rejection.src  # type: ignore[index]


@pytest.mark.parametrize(("rejection", "name", "kind"), REFUSALS)
def test_the_anthropic_client_raises_its_own(rejection: Rejection, name: str, kind: str) -> None:
    error: type[anthropic.APIStatusError] = getattr(anthropic, name)
    with (
        saying(rejection.status, "application/json", error_body(rejection, "anthropic")) as url,
        as_anthropic(url) as client,
        pytest.raises(error) as raised,
    ):
        client.messages.create(model="coder", messages=TURNS, max_tokens=5)
    body: Any = raised.value.body
    assert body == {"type": "error", "error": {"type": kind, "message": rejection.why}, "src": rejection.src}
    assert raised.value.type == kind


# -- streams: news first, then half an answer, then an error --


def _data(value: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _chunk(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return _data(
        {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    )


def _event(kind: str, **more: object) -> bytes:
    return b"event: " + kind.encode() + b"\n" + _data({"type": kind} | more)


def test_a_chat_stream_that_breaks() -> None:
    body = NEWS + _chunk("Hel") + NEWS + _chunk("lo") + error_event(BROKE, _route(b"/v1/chat/completions"))
    said = ""
    with saying(200, "text/event-stream", body) as url, as_openai(url) as client:
        stream = client.chat.completions.create(model="coder", messages=TURNS, stream=True)
        with pytest.raises(openai.APIError) as raised:
            for chunk in stream:
                said += chunk.choices[0].delta.content or ""
    assert said == "Hello"
    assert (raised.value.message, raised.value.code) == (BROKE.why, "engine_died")


def test_a_responses_stream_that_breaks() -> None:
    delta = {"item_id": "1", "output_index": 0, "content_index": 0, "logprobs": []}
    body = (
        NEWS
        + _event("response.output_text.delta", delta="Hello", sequence_number=1, **delta)
        + error_event(BROKE, _route(b"/v1/responses"))
    )
    said = ""
    with saying(200, "text/event-stream", body) as url, as_openai(url) as client:
        stream = client.responses.create(model="coder", input="hi", stream=True)
        with pytest.raises(openai.APIError) as raised:
            for event in stream:
                said += getattr(event, "delta", "")
    assert said == "Hello"
    assert (raised.value.message, raised.value.code) == (BROKE.why, "engine_died")


def test_the_responses_event_is_the_apis_own() -> None:
    kind, data, *rest = error_event(BROKE, _route(b"/v1/responses")).split(b"\n")
    event = ResponseErrorEvent.model_validate_json(data.removeprefix(b"data: "), strict=True)
    assert (kind, event.type, event.message, event.code) == (
        b"event: error",
        "error",
        BROKE.why,
        "engine_died",
    )
    assert rest == [b"", b""]


def test_a_message_stream_that_breaks() -> None:
    block = {"type": "text", "text": ""}
    body = (
        NEWS
        + _event("content_block_start", index=0, content_block=block)
        + NEWS
        + _event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hello"})
        + error_event(BROKE, _route(b"/v1/messages"))
    )
    said = ""
    with saying(200, "text/event-stream", body) as url, as_anthropic(url) as client:
        stream = client.messages.create(model="coder", messages=TURNS, max_tokens=5, stream=True)
        with pytest.raises(anthropic.APIStatusError) as raised:
            for event in stream:
                if event.type == "content_block_delta" and event.delta.type == "text_delta":
                    said += event.delta.text
    assert said == "Hello"
    error: Any = raised.value.body
    assert error["error"] == {"type": "api_error", "message": BROKE.why}


def test_news_and_then_a_whole_answer() -> None:
    body = NEWS + _chunk("Hello") + b"data: [DONE]\n\n"
    with saying(200, "text/event-stream", body) as url, as_openai(url) as client:
        stream = client.chat.completions.create(model="coder", messages=TURNS, stream=True)
        assert [chunk.choices[0].delta.content for chunk in stream] == ["Hello"]


# -- framing --


@pytest.mark.parametrize(
    ("wait_status", "line"),
    [
        (WaitStatus("loading coder: weights 43 %", 80.2), ": loading coder: weights 43 %, about 80 s left"),
        (WaitStatus("3 requests before yours"), ": 3 requests before yours"),
        (WaitStatus("compiling", 0.1), ": compiling, about 1 s left"),
        (WaitStatus("downloading", 600), ": downloading, about 10 min left"),
        (WaitStatus("a\r\n\r\ndata: [DONE]\n\n"), ": a data: [DONE]"),
        (WaitStatus("\x00\x1b[31mred\u2028line"), ": ??[31mred line"),
        (WaitStatus(""), ": "),
    ],
)
def test_news_are_one_line(wait_status: WaitStatus, line: str) -> None:
    assert wait_comment(wait_status).decode() == line + "\n\n"


@given(st.text(), st.none() | st.floats(0, 1e9))
def test_no_news_break_the_framing(words: str, eta_s: float | None) -> None:
    comment = wait_comment(WaitStatus(words, eta_s))
    assert comment.startswith(b": ")
    assert comment.endswith(b"\n\n")
    assert len(comment.decode().splitlines()) == 2
    assert len(comment) < 1300


@given(st.text(), st.text(), st.sampled_from([b"/v1/messages", b"/v1/responses", b"/v1/chat/completions"]))
def test_no_error_breaks_the_framing(why: str, kind: str, path: bytes) -> None:
    lines = error_event(Rejection(502, kind, why), _route(path)).decode().splitlines()
    assert [line.partition(":")[0] for line in lines if line] in (["data"], ["event", "data"])
    said = json.loads(lines[-2].removeprefix("data: "))
    assert said["error"]["message"] == why
