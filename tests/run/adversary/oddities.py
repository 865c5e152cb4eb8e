"""Oddities: what real servers do that is unusual and harms nobody. No gate may fail on one."""

# ruff: noqa: E501 - the list is a table, one entry a line
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tests.run.adversary.change import (
    Change,
    Json,
    Modification,
    Wire,
    ask,
    choices,
    content,
    each,
    finish,
    parts,
    stream,
    text,
    tool_calls,
)


def _odd(name: str, what: str, change: Change, needs: str = "") -> Modification:
    return Modification(name, what, "", change, frozenset(needs.split()))


def _set(key: str, value: Any) -> Change:
    return each(lambda answer: answer.update({key: value}))


def _pop(key: str) -> Change:
    return each(lambda answer: answer.pop(key, None) and None)


def _deltas(edit: Callable[[Json], None]) -> Change:
    def apply(chunks: list[Json]) -> list[Json]:
        for chunk in chunks:
            for choice in chunk.get("choices", ()):
                edit(choice["delta"])
        return chunks

    return stream(apply)


def _without_usage(chunks: list[Json]) -> list[Json]:
    return [{k: v for k, v in chunk.items() if k != "usage"} for chunk in chunks if chunk.get("choices")]


def _usage_null(chunk: Json) -> None:
    chunk.setdefault("usage", None)


def _usage_in_last_choice(chunks: list[Json]) -> list[Json]:
    if chunks and not chunks[-1].get("choices") and len(chunks) > 1:
        usage = chunks.pop()["usage"]
        chunks[-1]["usage"] = usage
    return chunks


def _usage_in_all(chunks: list[Json]) -> list[Json]:
    """vLLM's continuous_usage_stats: a running count in every chunk."""
    if chunks and chunks[-1].get("usage"):
        final, said = chunks[-1]["usage"], 0
        for chunk in chunks[:-1]:
            said += len(content([chunk]))
            total = final["prompt_tokens"] + said
            chunk["usage"] = final | {"completion_tokens": said, "total_tokens": total}
    return chunks


def _empty_deltas(chunks: list[Json]) -> list[Json]:
    empty = [{"index": 0, "delta": {}, "finish_reason": None}]
    return [
        x
        for chunk in chunks
        for x in ((chunk | {"choices": empty}, chunk) if chunk.get("choices") else (chunk,))
    ]


def _pings(chunks: list[Json]) -> list[Json]:
    return [x for chunk in chunks for x in (chunk, chunk | {"choices": [], "usage": None})][:-1]


def _ids_differ(chunks: list[Json]) -> list[Json]:
    return [chunk | {"id": f"chatcmpl-{i}"} for i, chunk in enumerate(chunks)]


def _merged(n: int) -> Callable[[list[Json]], list[Json]]:
    """Several tokens a chunk, as with speculative decoding."""

    def apply(chunks: list[Json]) -> list[Json]:
        out: list[Json] = []
        run = 0
        for chunk in chunks:
            if out and run % n and content([chunk]) and content([out[-1]]):
                content([out[-1]])[0]["content"] += content([chunk])[0]["content"]
                ours, more = (one["choices"][0].get("logprobs") for one in (out[-1], chunk))
                if ours and more:
                    ours["content"] += more["content"]
            else:
                out.append(chunk)
                run = 0
            run += 1
        return out

    return apply


def _role_first_with_content(chunks: list[Json]) -> list[Json]:
    """No chunk of its own for the role."""
    speaking = content(chunks)
    if speaking and not content(chunks[:1]):
        speaking[0]["role"] = "assistant"
        return chunks[1:]
    return chunks


def _finish_with_last_text(chunks: list[Json]) -> list[Json]:
    for before, last in pairwise(chunks):
        if last.get("choices") and last["choices"][0].get("finish_reason") and content([before]):
            before["choices"][0]["finish_reason"] = last["choices"][0]["finish_reason"]
            return [chunk for chunk in chunks if chunk is not last]
    return chunks


def _null_content(delta: Json) -> None:
    delta.setdefault("content", None)


def _vllm_nulls(answer: Json) -> None:
    for message in parts(answer):
        for key in ("refusal", "annotations", "audio", "function_call", "reasoning_content"):
            message.setdefault(key, None)
        message.setdefault("tool_calls", [])


def _reasoning_field(answer: Json) -> None:
    for part in parts(answer):
        if "reasoning_content" in part:
            part["reasoning"] = part.pop("reasoning_content")


def _reasoning_both(answer: Json) -> None:
    for part in parts(answer):
        if "reasoning_content" in part:
            part["reasoning"] = part["reasoning_content"]


def _no_call_id(call: Json) -> None:
    call.pop("id", None)
    call.pop("type", None)


def _unknown_fields(answer: Json) -> None:
    answer |= {
        "x_trace": {"host": "a"},
        "service_tier": None,
        "prompt_logprobs": None,
        "kv_transfer_params": None,
    }
    for choice in answer.get("choices", ()):
        choice |= {"stop_reason": None, "token_ids": None, "matched_stop": 2}


def _integer_finish(choice: Json) -> None:
    choice["stop_reason"] = 2


def _logprobs_null(choice: Json) -> None:
    choice.setdefault("logprobs", None)


def _legacy_finish(choice: Json) -> None:
    choice.setdefault("finish_reason", None)
    choice["finish_details"] = {"type": choice["finish_reason"]}


def _usage_bare(answer: Json) -> None:
    if usage := answer.get("usage"):
        answer["usage"] = {k: usage[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")}


def _usage_details_null(answer: Json) -> None:
    if usage := answer.get("usage"):
        usage |= {"prompt_tokens_details": None, "completion_tokens_details": None}


def _unseeded(request: Json) -> None:
    request.pop("seed", None)


def _stop_to(name: str) -> Change:
    return finish(lambda reason: name if reason == "stop" else reason)


ODDITIES: tuple[Modification, ...] = (
    # Usage
    _odd("stream-no-usage", "older llama.cpp, many proxies", stream(_without_usage), "stream"),
    _odd("stream-usage-null", "OpenAI: null in every chunk but the last", each(_usage_null, plain=False), "stream"),
    _odd("stream-usage-in-last-choice", "llama.cpp before 2025, Mistral", stream(_usage_in_last_choice), "stream"),
    _odd("stream-usage-in-all", "vLLM continuous_usage_stats", stream(_usage_in_all), "stream"),
    _odd("usage-bare", "no details of usage", each(_usage_bare)),
    _odd("usage-details-null", "vLLM without prefix caching", each(_usage_details_null)),
    # Finish reasons
    _odd("finish-eos", "TGI: eos", _stop_to("eos")),
    _odd("finish-eos-token", "TGI: eos_token", _stop_to("eos_token")),
    _odd("finish-stop-sequence", "TGI, Anthropic: stop_sequence", _stop_to("stop_sequence")),
    _odd("finish-end-turn", "Anthropic-like proxies: end_turn", _stop_to("end_turn")),
    _odd("finish-max-tokens", "Anthropic-like proxies: max_tokens", finish(lambda r: "max_tokens" if r == "length" else r)),
    _odd("finish-with-last-text", "the last text and the reason in one chunk", stream(_finish_with_last_text), "stream"),
    _odd("finish-details", "extra finish fields", choices(_legacy_finish)),
    # Event lines
    _odd("crlf", "CRLF line ends", Change(wire=Wire(newline="\r\n")), "stream"),
    _odd("sse-comments", "keep-alive comments", Change(wire=Wire(before=": keep-alive\n\n")), "stream"),
    _odd("sse-openrouter-comments", "comments right before data", Change(wire=Wire(before=": PROCESSING\n")), "stream"),
    _odd("sse-no-space", "data: without a space", Change(wire=Wire(prefix="data:")), "stream"),
    _odd("sse-event-lines", "Anthropic-like event: lines", Change(wire=Wire(before="event: message\n")), "stream"),
    _odd("sse-id-and-retry", "id: and retry: lines", Change(wire=Wire(before="id: 7\nretry: 3000\n")), "stream"),
    _odd("sse-blank-lines", "more blank lines than needed", Change(wire=Wire(before="\n\n")), "stream"),
    # Deltas
    _odd("role-in-every-delta", "SGLang, TGI", _deltas(lambda d: d.update(role="assistant")), "stream"),
    _odd("role-never", "some proxies", _deltas(lambda d: d.pop("role", None) and None), "stream"),
    _odd("role-with-first-text", "no chunk of its own for the role", stream(_role_first_with_content), "stream"),
    _odd("empty-deltas", "empty deltas between", stream(_empty_deltas), "stream"),
    _odd("content-null", "content null where there is none", _deltas(_null_content), "stream"),
    _odd("content-empty", "content empty where there is none", _deltas(lambda d: d.update(content=d.get("content") or "")), "stream"),
    _odd("ping-chunks", "chunks without choices between", stream(_pings), "stream"),
    _odd("three-tokens-a-chunk", "speculative decoding", stream(_merged(3)), "stream"),
    _odd("all-tokens-in-one-chunk", "a proxy that buffers", stream(_merged(100000)), "stream"),
    # Fields
    _odd("ids-differ", "another id in every chunk", stream(_ids_differ), "stream"),
    _odd("id-empty", "no id", _set("id", "")),
    _odd("created-float", "created as a float", _set("created", 1794776663.25)),
    _odd("created-missing", "no created", _pop("created")),
    _odd("fingerprint-missing", "vLLM: no system_fingerprint", _pop("system_fingerprint")),
    _odd("fingerprint-null", "null system_fingerprint", _set("system_fingerprint", None)),
    _odd("timings-missing", "no llama.cpp timings", _pop("timings")),
    _odd("object-missing", "no object", _pop("object")),
    _odd("unknown-fields", "fields of vLLM and SGLang", each(_unknown_fields)),
    _odd("stop-reason-integer", "vLLM: stop_reason is a token id", choices(_integer_finish)),
    _odd("logprobs-null", "logprobs null where not asked", choices(_logprobs_null)),
    _odd("message-nulls", "vLLM: every field of a message, null", each(_vllm_nulls)),
    _odd("no-seed", "seeds are ignored", ask(_unseeded)),
    # Text
    _odd("newline-first", "a newline before the answer", text(lambda t: "\n\n" + t)),
    _odd("space-first", "a space before the answer", text(lambda t: " " + t)),
    _odd("newline-last", "a newline after the answer", text(lambda t: t + "\n")),
    # Tools and reasoning
    _odd("tool-call-id-missing", "calls without id and type", tool_calls(_no_call_id), "tools"),
    _odd("reasoning-both", "reasoning and reasoning_content", each(_reasoning_both), "reasoning"),
    _odd("reasoning", "vLLM, OpenRouter: reasoning", each(_reasoning_field), "reasoning"),
    # HTTP
    _odd("slow-but-steady", "1.5 s a token", Change(wire=Wire(pause_s=1.5)), "stream"),
    _odd("slow-first-token", "20 s of prefill", Change(wire=Wire(first_pause_s=20))),
    _odd("one-byte-segments", "a byte at a time", Change(wire=Wire(slice_bytes=1))),
    _odd("seven-byte-segments", "events cut anywhere", Change(wire=Wire(slice_bytes=7))),
    _odd("one-segment", "a stream in one write", Change(wire=Wire(slice_bytes=0)), "stream"),
    _odd("content-length", "a stream with its length", Change(wire=Wire(framing="length")), "stream"),
    _odd("connection-close", "the body ends with the connection", Change(wire=Wire(framing="close"))),
    _odd("http-1.0", "an old proxy", Change(wire=Wire(framing="close", version="HTTP/1.0"))),
    _odd("headers-lower", "lower-case headers", Change(wire=Wire(header=str.lower))),
    _odd("headers-upper", "upper-case headers", Change(wire=Wire(header=str.upper))),
)  # fmt: skip
