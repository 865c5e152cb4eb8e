"""Tails of answers, from the pages and sources that define them, and from the real embedded engine."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firesteel.gateway.http.usage import HEAD_BYTES, TAIL_BYTES, RunningCount, find_usage
from firesteel.gateway.interfaces import Usage

LIE: Any = {"prompt_tokens": 999, "completion_tokens": 999, "input_tokens": 999, "output_tokens": 999}
"""What a model says of itself."""
COUNTED: Any = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
IN_AND_OUT: Any = {"input_tokens": 11, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}
CACHED: Any = {
    "input_tokens": 3,
    "cache_read_input_tokens": 8,
    "cache_creation_input_tokens": 2,
    "output_tokens": 5,
}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _event(value: dict[str, Any], name: str = "") -> bytes:
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + _json(value) + b"\n\n"


def _chat(**more: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": json.dumps({"usage": LIE})}
    return {"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": said}], **more}


DONE = b"data: [DONE]\n\n"

WHOLE: list[tuple[bytes, Usage | None]] = [
    (_json(_chat(usage=COUNTED)), Usage(11, 5)),
    (_json(_chat(usage=COUNTED, id="1")), Usage(11, 5)),
    (_json(_chat(usage=COUNTED | {"prompt_tokens_details": {"cached_tokens": 7}})), Usage(11, 5, 7)),
    (_json(_chat(usage=COUNTED | {"prompt_tokens_details": None})), Usage(11, 5)),
    (json.dumps(_chat(usage=COUNTED), indent=2).encode() + b"\n", Usage(11, 5)),
    (_json(_chat()), None),
    (_json(_chat(usage=None)), None),
    (_json(_chat(usage=[1])), None),
    (_json(_chat(usage={"prompt_tokens": -1, "completion_tokens": True})), None),
    (_json(_chat(usage={"prompt_tokens": 10**400})), None),
    (_json({"object": "list", "data": [{"embedding": [0.1] * 9}], "usage": {"prompt_tokens": 8}}), Usage(8)),
    (_json({"object": "response", "output": [], "usage": IN_AND_OUT}), Usage(11, 5, 4)),
    (_json({"type": "message", "content": [], "usage": CACHED}), Usage(13, 5, 8)),
    # A tool call's input is the model's own, and no string.
    (_json({"content": [{"type": "tool_use", "input": {"usage": LIE}}], "stop_reason": "tool_use"}), None),
    (_json({"content": [{"type": "tool_use", "input": {"usage": LIE}}], "usage": CACHED}), Usage(13, 5, 8)),
    (_json({'x"usage': LIE}), None),
    (_json({"error": {"message": "no"}}), None),
    (b"", None),
    (b"\xff\xfe\x00", None),
    (b'"usage":{"prompt_tokens":1}}', None),
]

STREAMS: list[tuple[bytes, Usage | None]] = [
    (_event(_chat(usage=None)) + _event({"choices": [], "usage": COUNTED}) + DONE, Usage(11, 5)),
    (_event(_chat(usage=LIE)) + _event({"choices": [], "usage": COUNTED}) + DONE, Usage(11, 5)),
    (_event(_chat()) + DONE, None),
    (_event(_chat(timings={"cache_n": 6, "prompt_n": 5, "predicted_n": 9})) + DONE, Usage(11, 9, 6)),
    (_event(_chat(timings={"prompt_n": 5, "predicted_n": 9}, usage=COUNTED)) + DONE, Usage(11, 5)),
    (
        _event(
            {"type": "response.completed", "response": {"output": ["x" * 9000], "usage": IN_AND_OUT}}, "a"
        ),
        Usage(11, 5, 4),
    ),
    (
        _event(
            {"type": "message_start", "message": {"usage": CACHED | {"output_tokens": 0}}}, "message_start"
        )
        + _event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}}, "message_delta")
        + _event({"type": "message_stop"}, "message_stop"),
        Usage(13, 5, 8),
    ),
    # One that broke off: what was counted last, and nothing from half an event.
    (
        _event({"choices": [], "usage": COUNTED}) + b'data: {"choices": [], "usage": {"prompt_tokens": 1',
        Usage(11, 5),
    ),
    (b'data: {"choices": [], "usage": {"prompt_tokens": 1}}', None),
    ((_event(_chat(usage=COUNTED)) + DONE).replace(b"\n", b"\r\n"), Usage(11, 5)),
]


@pytest.mark.parametrize(("answer", "usage"), WHOLE)
def test_whole_answers(answer: bytes, usage: Usage | None) -> None:
    assert find_usage(answer[-TAIL_BYTES:], is_stream=False) == usage


@pytest.mark.parametrize(("answer", "usage"), STREAMS, ids=range(len(STREAMS)))
def test_streams(answer: bytes, usage: Usage | None) -> None:
    assert find_usage(answer[-TAIL_BYTES:], is_stream=True) == usage


def test_the_first_bytes_have_what_the_last_have_not() -> None:
    """llama.cpp's embeddings say it before the data; Anthropic's streams count the prompt at the start."""
    embeddings = _json(
        {"object": "list", "usage": {"prompt_tokens": 8}, "data": [{"embedding": [0.1] * 5000}]}
    )
    assert find_usage(embeddings[-TAIL_BYTES:], False) is None
    assert find_usage(embeddings[-TAIL_BYTES:], False, embeddings[:HEAD_BYTES]) == Usage(8)
    stream = (
        _event({"type": "message_start", "message": {"usage": CACHED | {"output_tokens": 1}}})
        + _event({"type": "content_block_delta", "delta": {"text": "x" * 9000}})
        + _event({"type": "message_delta", "usage": {"output_tokens": 5}})
    )
    assert find_usage(stream[-TAIL_BYTES:], True) == Usage(None, 5)
    assert find_usage(stream[-TAIL_BYTES:], True, stream[:HEAD_BYTES]) == Usage(13, 5, 8)
    lie = _json({"content": [{"input": {"usage": LIE}}], "more": "x" * 9000})
    assert find_usage(lie[-TAIL_BYTES:], False, lie[:HEAD_BYTES]) is None


@given(st.text(), st.integers(0, 400), st.booleans())
@example('"usage":{"prompt_tokens":999}', 0, False)
@example('\\"usage": {"prompt_tokens": 999}}}', 40, False)
@example('x"usage', 30, True)
def test_nothing_that_a_model_says_counts(said: str, cut: int, is_stream: bool) -> None:
    for text in (said, json.dumps({"usage": LIE}) + said, said + '"usage":{"prompt_tokens":999}}]}' + said):
        answer = _event(_chat() | {"x": text}) if is_stream else _json(_chat() | {"x": text})
        assert find_usage(answer[cut:], is_stream) is None
        assert find_usage(answer, is_stream, answer[:HEAD_BYTES]) is None


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_get_an_answer(tail: bytes, is_stream: bool) -> None:
    find_usage(tail, is_stream, tail)
    find_usage(b'{"usage":{' + tail, is_stream)
    find_usage(b'{"usage":' + b"{" * 4000, is_stream)


# -- the real engine --

ASK = "Tell a long story about a lighthouse."
TURNS = [{"role": "user", "content": ASK}]
ON: dict[str, Any] = {"n_predict": 8, "ignore_eos": True}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 8}),
    ("/v1/responses", {"input": ASK, "max_output_tokens": 8}),
    ("/v1/messages", {"messages": TURNS, "max_tokens": 8}),
    ("/v1/completions", {"prompt": ASK, **ON}),
    ("/completion", {"prompt": ASK, **ON}),
]


def _post(port: int, path: str, body: dict[str, Any]) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(
        "POST",
        path,
        _json(body | {"model": "smollm2", "temperature": 0}),
        {"content-type": "application/json"},
    )
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    assert answer.status == 200, said
    return said


def _ends(said: bytes, is_stream: bool) -> Usage | None:
    return find_usage(said[-TAIL_BYTES:], is_stream, said[:HEAD_BYTES])


@pytest.mark.real
def test_the_embedded_engines_answers(embedded_engine: int) -> None:
    port = embedded_engine
    chat = json.loads(_post(port, "/v1/chat/completions", {"messages": TURNS, "max_tokens": 1}))["usage"]
    text = json.loads(_post(port, "/completion", {"prompt": ASK, "n_predict": 1}))["tokens_evaluated"]
    for path, body in ASKED:
        for is_stream in (False, True):
            said = _post(port, path, body | {"stream": is_stream})
            usage = _ends(said, is_stream)
            assert usage is not None, (path, is_stream, said[-600:])
            assert usage.completion_tokens == 8, (path, is_stream, usage)
            tokens = text if "prompt" in body else chat["prompt_tokens"]
            assert usage.prompt_tokens == tokens, (path, is_stream, usage)
    with_usage = {
        "messages": TURNS,
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    counted = _ends(_post(port, "/v1/chat/completions", with_usage), True)
    assert counted is not None
    assert (counted.prompt_tokens, counted.completion_tokens) == (chat["prompt_tokens"], 8)


def _deltas(count: int, **usage: int) -> bytes:
    event = b'data: {"choices":[{"delta":{"content":"x"}}]%b}\n\n'
    return b"".join(
        event
        % (
            b',"usage":{"prompt_tokens":%d,"completion_tokens":%d}' % (usage["prompt"], n + 1)
            if usage
            else b""
        )
        for n in range(count)
    )


@pytest.mark.parametrize("size", [1, 7, 60, 10_000])
@pytest.mark.parametrize("usage", [{}, {"prompt": 30}])
def test_a_stream_is_counted_while_it_arrives(size: int, usage: dict[str, int]) -> None:
    count, stream = RunningCount(20, is_response=False), _deltas(50, **usage)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    counts = [count.take(piece) for piece in pieces]
    assert counts == sorted(counts) and counts[-1] == (30 if usage else 20) + 50


@pytest.mark.parametrize(("limit", "events"), [(25, 2), (24, 1), (23, 1), (22, 1)])
def test_a_piece_that_is_too_much_is_cut_behind_an_event(limit: int, events: int) -> None:
    """One that has begun is passed on whole."""
    count, event = RunningCount(20, is_response=False), _deltas(1)
    assert count.take(3 * event + event[:5]) == 23
    rest = event[5:] + 4 * event
    assert count.take(rest) == 28
    assert count.take_back(rest, limit) == len(events * event) - 5
