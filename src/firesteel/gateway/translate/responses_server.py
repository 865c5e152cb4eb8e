"""A client of chat completions at a server of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from firesteel.gateway.translate.values import (
    Json,
    ServerApi,
    Untranslatable,
    copied,
    count,
    field,
    member,
    objects,
    refuse_others,
    required,
    text_of,
    without_defaults,
)

_TO = "OpenAI's Responses API, the only one that this model's server speaks"
_KNOWN = frozenset(
    ("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stream", "tools",
     "tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity", "response_format",
     "stream_options", "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
     "prompt_cache_retention", "prompt_cache_options")
)  # fmt: skip


# --- the request ---


def responses_request(chat: Json) -> Json:
    given = without_defaults(chat)
    refuse_others(given, _KNOWN, _TO)
    body: Json = {"model": given.get("model"), "input": [], "store": False}
    for message in objects(required(given, "messages", list), "messages"):
        body["input"] += _items(message)
    body |= copied(given, ("temperature", "top_p", "stream", "parallel_tool_calls"))
    if limit := given.get("max_completion_tokens") or given.get("max_tokens"):
        body["max_output_tokens"] = limit
    if given.get("reasoning_effort"):
        body["reasoning"] = {"effort": given["reasoning_effort"]}
    if text := _text(given):
        body["text"] = text
    if tools := objects(field(given, "tools", list, []), "tools"):
        body["tools"] = [_tool(tool) for tool in tools]
        choice = given.get("tool_choice")
        if isinstance(choice, dict):
            name = required(required(choice, "function", dict), "name", str)
            body["tool_choice"] = {"type": "function", "name": name}
        elif choice is not None:
            body["tool_choice"] = choice
    return body


def _text(given: Json) -> Json:
    text = copied(given, ("verbosity",))
    answer_format = field(given, "response_format", dict, {})
    if answer_format.get("type") == "json_schema":
        schema = required(answer_format, "json_schema", dict)
        return text | {"format": {"type": "json_schema", **schema}}
    return text | {"format": answer_format} if answer_format else text


def _items(message: Json) -> list[Json]:
    role = required(message, "role", str)
    content = message.get("content")
    if role == "tool":
        output = _parts(content, "input")
        text = "".join(part["text"] for part in output if part["type"] == "input_text")
        call_id = required(message, "tool_call_id", str)
        return [{"type": "function_call_output", "call_id": call_id, "output": text}]
    if role not in ("system", "developer", "user", "assistant"):
        raise Untranslatable(f"the `role` `{role[:40]}` cannot be translated to {_TO}")
    items: list[Json] = []
    if parts := _parts(content, "output" if role == "assistant" else "input"):
        items.append({"type": "message", "role": role, "content": parts})
    for call in objects(field(message, "tool_calls", list, []), "tool_calls"):
        function = required(call, "function", dict)
        item = {"type": "function_call", "call_id": required(call, "id", str)}
        item |= {"name": required(function, "name", str), "arguments": text_of(function, "arguments")}
        items.append(item)
    return items


def _parts(content: object, side: str) -> list[Json]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": f"{side}_text", "text": content}]
    if not isinstance(content, list):
        raise Untranslatable("`content` must be a string or a list of parts")
    return [_part(part, side) for part in objects(content, "content")]


def _part(part: Json, side: str) -> Json:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return {"type": f"{side}_text", "text": required(part, str(kind), str)}
    if kind != "image_url":
        raise Untranslatable(f"a part of type `{str(kind)[:80]}` in `content` cannot be translated to {_TO}")
    image = required(part, "image_url", dict)
    return {"type": "input_image", "image_url": required(image, "url", str), **copied(image, ("detail",))}


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        raise Untranslatable(f"the tool `{str(tool.get('type'))[:80]}` cannot be translated to {_TO}")
    function = required(tool, "function", dict)
    named = {"type": "function", "name": required(function, "name", str)}
    return named | copied(function, ("description", "parameters", "strict"))


# --- the response ---


def chat_response(response: Json) -> Json:
    texts, thoughts, calls = [], [], []
    output = response.get("output")
    for item in output if isinstance(output, list) else ():
        match item.get("type") if isinstance(item, dict) else None:
            case "message":
                texts.append(_joined(item.get("content")))
            case "reasoning":
                thoughts.append(_joined(item.get("content")) or _joined(item.get("summary")))
            case "function_call":
                calls.append(_call(item))
    message: Json = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": _finish(response, bool(calls))}
    return {
        "id": text_of(response, "id"), "object": "chat.completion", "created": count(response, "created_at"),
        "model": text_of(response, "model"), "choices": [choice], "usage": _usage(member(response, "usage")),
    }  # fmt: skip


def _joined(parts: object) -> str:
    rows = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "".join(text_of(part, "text", "refusal") for part in rows)


def _call(item: Json) -> Json:
    function = {"name": text_of(item, "name"), "arguments": text_of(item, "arguments")}
    return {"id": text_of(item, "call_id", "id"), "type": "function", "function": function}


def _finish(response: Json, has_calls: bool) -> str:
    reason = member(response, "incomplete_details").get("reason")
    if reason:
        return "content_filter" if reason == "content_filter" else "length"
    return "tool_calls" if has_calls else "stop"


def _usage(usage: Json) -> Json:
    prompt, completion = count(usage, "input_tokens"), count(usage, "output_tokens")
    cached = count(member(usage, "input_tokens_details"), "cached_tokens")
    thought = count(member(usage, "output_tokens_details"), "reasoning_tokens")
    return {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }  # fmt: skip


_TEXT_DELTAS = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "content",
    "response.reasoning_text.delta": "reasoning_content",
    "response.reasoning_summary_text.delta": "reasoning_content",
}


class ResponseReader:
    def __init__(self) -> None:
        self._base: Json = {"id": "", "object": "chat.completion.chunk", "created": 0, "model": ""}
        self._calls: dict[str, int] = {}
        """Id of an item -> index of a tool call."""

    def take(self, event: Json) -> Iterable[Json]:
        kind = text_of(event, "type")
        if name := _TEXT_DELTAS.get(kind):
            yield self._chunk({name: text_of(event, "delta")})
            return
        match kind:
            case "response.created":
                response = member(event, "response")
                self._base |= {"id": text_of(response, "id"), "model": text_of(response, "model")}
                yield self._chunk({"role": "assistant", "content": ""})
            case "response.output_item.added":
                yield from self._start(member(event, "item"))
            case "response.function_call_arguments.delta":
                index = self._calls.get(text_of(event, "item_id"), 0)
                function = {"arguments": text_of(event, "delta")}
                yield self._chunk({"tool_calls": [{"index": index, "function": function}]})
            case "response.completed" | "response.incomplete":
                response = member(event, "response")
                yield self._chunk({}, _finish(response, bool(self._calls)))
                yield self._base | {"choices": [], "usage": _usage(member(response, "usage"))}
            case "response.failed":
                error = member(member(event, "response"), "error")
                raise Untranslatable(text_of(error, "message") or "the engine's response failed")

    def _start(self, item: Json) -> Iterable[Json]:
        if item.get("type") == "function_call":
            index = self._calls.setdefault(text_of(item, "id"), len(self._calls))
            call = _call(item)
            call["function"]["arguments"] = ""
            yield self._chunk({"tool_calls": [{"index": index, **call}]})

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        return self._base | {"choices": [choice]}


RESPONSES_SERVER = ServerApi(b"/v1/responses", responses_request, chat_response, ResponseReader)
