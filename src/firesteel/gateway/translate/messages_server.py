"""A client of chat completions at a server of Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from firesteel.gateway.translate.values import (
    Json,
    ServerApi,
    Untranslatable,
    copied,
    count,
    dump_text,
    field,
    member,
    objects,
    refuse_others,
    required,
    text_of,
    without_defaults,
)

_TO = "Anthropic's Messages API, the only one that this model's server speaks"
_KNOWN = frozenset(
    ("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop",
     "stream", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs",
     "stream_options", "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
     "prompt_cache_retention", "prompt_cache_options")
)  # fmt: skip
DEFAULT_MAX_TOKENS = 8192
"""Chat has no limit by default; Messages requires one."""
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 24576, "xhigh": 32768}
"""Tokens of thinking for a `reasoning_effort`."""
_FINISH = {"max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}
_FINISH["model_context_window_exceeded"] = "length"


# --- the request ---


def messages_request(chat: Json) -> Json:
    given = without_defaults(chat)
    if member(given, "response_format").get("type") == "text":
        del given["response_format"]
    refuse_others(given, _KNOWN, _TO)
    system, messages = _messages(objects(required(given, "messages", list), "messages"))
    max_tokens = field(given, "max_completion_tokens", int) or field(given, "max_tokens", int)
    max_tokens = max_tokens or DEFAULT_MAX_TOKENS
    body: Json = {"model": given.get("model"), "max_tokens": max_tokens, "messages": messages}
    body |= copied(given, ("temperature", "top_p", "top_k", "stream"))
    if system:
        body["system"] = "\n\n".join(system)
    if stop := given.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if tools := objects(field(given, "tools", list, []), "tools"):
        body["tools"] = [_tool(tool) for tool in tools]
        body |= _tool_choice(given)
    return body | _thinking(given, max_tokens)


def _thinking(given: Json, max_tokens: int) -> Json:
    effort = given.get("reasoning_effort")
    enabled = member(given, "chat_template_kwargs").get("enable_thinking")
    if effort == "none" or enabled is False:
        return {"thinking": {"type": "disabled"}}
    budget = _BUDGETS.get(str(effort), _BUDGETS["medium"] if enabled else 0)
    budget = min(budget, max_tokens - 1)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget >= 1024 else {}


def _messages(chat: list[Json]) -> tuple[list[str], list[Json]]:
    """Texts of the system, and turns. Turns of one side that follow each other are one."""
    system: list[str] = []
    turns: list[Json] = []
    for message in chat:
        role = required(message, "role", str)
        if role in ("system", "developer"):
            system += [part["text"] for part in _parts(message.get("content"))]
            continue
        if role not in ("user", "assistant", "tool"):
            raise Untranslatable(f"the `role` `{role[:40]}` cannot be translated to {_TO}")
        side = "assistant" if role == "assistant" else "user"
        blocks = _result(message) if role == "tool" else _parts(message.get("content"))
        blocks += [_call(call) for call in objects(field(message, "tool_calls", list, []), "tool_calls")]
        if turns and turns[-1]["role"] == side:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": side, "content": blocks})
    return system, turns


def _parts(content: object) -> list[Json]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise Untranslatable("`content` must be a string or a list of parts")
    return [_part(part) for part in objects(content, "content")]


def _part(part: Json) -> Json:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return {"type": "text", "text": required(part, str(kind), str)}
    if kind != "image_url":
        raise Untranslatable(f"a part of type `{str(kind)[:80]}` in `content` cannot be translated to {_TO}")
    image = part.get("image_url")
    url = image if isinstance(image, str) else required(required(part, "image_url", dict), "url", str)
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    media_type, comma, data = url[5:].partition(";base64,")
    if not comma:
        raise Untranslatable("an `image_url` with data must be in base64")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def _result(message: Json) -> list[Json]:
    call_id = required(message, "tool_call_id", str)
    return [{"type": "tool_result", "tool_use_id": call_id, "content": _parts(message.get("content"))}]


def _call(call: Json) -> Json:
    function = required(call, "function", dict)
    try:
        arguments = json.loads(text_of(function, "arguments") or "{}")
    except (ValueError, RecursionError):
        raise Untranslatable("`arguments` of a tool call are not valid JSON") from None
    name = required(function, "name", str)
    return {"type": "tool_use", "id": required(call, "id", str), "name": name, "input": arguments}


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        raise Untranslatable(f"the tool `{str(tool.get('type'))[:80]}` cannot be translated to {_TO}")
    function = required(tool, "function", dict)
    schema = field(function, "parameters", dict, {"type": "object", "properties": {}})
    named = {"name": required(function, "name", str), "input_schema": schema}
    return named | copied(function, ("description",))


def _tool_choice(given: Json) -> Json:
    choice = given.get("tool_choice")
    simple = {"auto": "auto", "required": "any", "none": "none"}
    body: Json = {}
    if isinstance(choice, dict):
        body = {"type": "tool", "name": required(required(choice, "function", dict), "name", str)}
    elif choice is not None:
        if not isinstance(choice, str) or choice not in simple:
            raise Untranslatable("`tool_choice` must be auto, none, required or a function")
        body = {"type": simple[choice]}
    if given.get("parallel_tool_calls") is False and body.get("type") != "none":
        body = {"type": "auto"} | body | {"disable_parallel_tool_use": True}
    return {"tool_choice": body} if body else {}


# --- the response ---


def chat_response(response: Json) -> Json:
    texts, thoughts, calls = [], [], []
    content = response.get("content")
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        texts.append(text_of(block, "text"))
        thoughts.append(text_of(block, "thinking"))
        if block.get("type") == "tool_use":
            arguments = dump_text(block.get("input") or {})
            function = {"name": text_of(block, "name"), "arguments": arguments}
            calls.append({"id": text_of(block, "id"), "type": "function", "function": function})
    message: Json = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": _finish(response.get("stop_reason"))}
    return {
        "id": text_of(response, "id"), "object": "chat.completion", "created": 0,
        "model": text_of(response, "model"), "choices": [choice], "usage": _usage(member(response, "usage")),
    }  # fmt: skip


def _finish(reason: object) -> str:
    return _FINISH.get(str(reason), "stop")


def _usage(usage: Json) -> Json:
    cached = count(usage, "cache_read_input_tokens")
    prompt = count(usage, "input_tokens") + cached + count(usage, "cache_creation_input_tokens")
    completion = count(usage, "output_tokens")
    return {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip


class MessageReader:
    def __init__(self) -> None:
        self._base: Json = {"id": "", "object": "chat.completion.chunk", "created": 0, "model": ""}
        self._usage: Json = {}
        self._calls: dict[int, int] = {}
        """Index of a block -> of a tool call."""

    def take(self, event: Json) -> Iterable[Json]:
        match event.get("type"):
            case "message_start":
                message = member(event, "message")
                self._base |= {"id": text_of(message, "id"), "model": text_of(message, "model")}
                self._usage = member(message, "usage")
                yield self._chunk({"role": "assistant", "content": ""})
            case "content_block_start":
                yield from self._start(event, member(event, "content_block"))
            case "content_block_delta":
                yield from self._delta(event, member(event, "delta"))
            case "message_delta":
                self._usage = self._usage | member(event, "usage")
                yield self._chunk({}, _finish(member(event, "delta").get("stop_reason")))
            case "message_stop":
                yield self._base | {"choices": [], "usage": _usage(self._usage)}

    def _start(self, event: Json, block: Json) -> Iterable[Json]:
        if block.get("type") == "tool_use":
            index = self._calls.setdefault(count(event, "index"), len(self._calls))
            function = {"name": text_of(block, "name"), "arguments": ""}
            call = {"index": index, "id": text_of(block, "id"), "type": "function", "function": function}
            yield self._chunk({"tool_calls": [call]})
        elif text := text_of(block, "text"):
            yield self._chunk({"content": text})

    def _delta(self, event: Json, delta: Json) -> Iterable[Json]:
        match delta.get("type"):
            case "text_delta":
                yield self._chunk({"content": text_of(delta, "text")})
            case "thinking_delta":
                yield self._chunk({"reasoning_content": text_of(delta, "thinking")})
            case "input_json_delta":
                index = self._calls.get(count(event, "index"), 0)
                function = {"arguments": text_of(delta, "partial_json")}
                yield self._chunk({"tool_calls": [{"index": index, "function": function}]})

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        return self._base | {"choices": [choice]}


MESSAGES_SERVER = ServerApi(b"/v1/messages", messages_request, chat_response, MessageReader)
