"""A client of OpenAI's Responses API at a server of chat completions: the request."""

from __future__ import annotations

from typing import Any

from firesteel.gateway.translate.responses_answer import ResponseWriter, response_document
from firesteel.gateway.translate.values import (
    ClientApi,
    Json,
    Untranslatable,
    copied,
    field,
    objects,
    refuse_others,
    required,
    text_of,
)

_TO = "OpenAI's chat API, the only one that this model's server speaks"
_KNOWN = frozenset(
    ("model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "stream", "tools",
     "tool_choice", "parallel_tool_calls", "text", "reasoning",
     "store", "metadata", "include", "user", "safety_identifier", "prompt_cache_key",
     "prompt_cache_retention", "prompt_cache_options", "service_tier", "truncation", "stream_options",
     "client_metadata")
)  # fmt: skip
_STORED = frozenset(("previous_response_id", "conversation", "prompt"))


def chat_request(request: Json) -> Json:
    for name in _STORED:
        if request.get(name):
            why = "Nothing is stored there: send the whole conversation as `input`."
            raise Untranslatable(f"`{name}` cannot be translated to {_TO}. {why}")
    refuse_others(request, _KNOWN, _TO)
    instructions = field(request, "instructions", str, "")
    messages = [{"role": "system", "content": instructions}] if instructions else []
    body: Json = {"model": request.get("model"), "messages": messages + _messages(request.get("input"))}
    body |= copied(request, ("temperature", "top_p", "parallel_tool_calls"))
    if request.get("max_output_tokens") is not None:
        body["max_tokens"] = request["max_output_tokens"]
    if field(request, "stream", bool, False):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if effort := field(request, "reasoning", dict, {}).get("effort"):
        body["reasoning_effort"] = effort
    if tools := objects(field(request, "tools", list, []), "tools"):
        body["tools"] = [_tool(tool) for tool in tools]
        body |= _tool_choice(request.get("tool_choice"))
    return body | _format(field(request, "text", dict, {}))


def _format(text: Json) -> Json:
    body: Json = {"verbosity": text["verbosity"]} if text.get("verbosity") else {}
    answer_format = field(text, "format", dict, {})
    match answer_format.get("type", "text"):
        case "text":
            return body
        case "json_object":
            return body | {"response_format": {"type": "json_object"}}
        case "json_schema":
            schema = copied(answer_format, ("name", "schema", "strict", "description"))
            return body | {"response_format": {"type": "json_schema", "json_schema": schema}}
    raise Untranslatable(f"this `text.format` cannot be translated to {_TO}")


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        raise Untranslatable(f"the tool `{str(tool.get('type'))[:80]}` cannot be translated to {_TO}")
    function = {"name": required(tool, "name", str)}
    return {
        "type": "function",
        "function": function | copied(tool, ("description", "parameters", "strict")),
    }


def _tool_choice(choice: object) -> Json:
    if choice is None:
        return {}
    if choice in ("auto", "none", "required"):
        return {"tool_choice": choice}
    if not isinstance(choice, dict) or choice.get("type") != "function":
        raise Untranslatable(f"this `tool_choice` cannot be translated to {_TO}")
    return {"tool_choice": {"type": "function", "function": {"name": required(choice, "name", str)}}}


def _messages(given: object) -> list[Json]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise Untranslatable("`input` must be a string or a list of items")
    messages: list[Json] = []
    thought = ""
    for item in objects(given, "input"):
        match item.get("type", "message"):
            case "reasoning":
                thought += _thought(item)
                continue
            case "message":
                messages.append(
                    {"role": required(item, "role", str), "content": _content(item.get("content"))}
                )
            case "function_call":
                _add_call(messages, item)
            case "function_call_output":
                call_id = required(item, "call_id", str)
                content = _content(item.get("output"))
                messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case kind:
                raise Untranslatable(f"an item `{str(kind)[:80]}` in `input` cannot be translated to {_TO}")
        if thought and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thought
        thought = ""
    return messages


def _thought(item: Json) -> str:
    """What the model thought, if it can be read; other servers encrypt it."""
    parts = item.get("content") or item.get("summary") or []
    return "".join(text_of(part, "text") for part in parts if isinstance(part, dict))


def _add_call(messages: list[Json], item: Json) -> None:
    """Calls that follow each other, or a text, are one message."""
    function = {"name": required(item, "name", str), "arguments": field(item, "arguments", str, "{}")}
    call = {"id": required(item, "call_id", str), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(content: object) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Untranslatable("`content` must be a string or a list of parts")
    parts = [_part(part) for part in objects(content, "content")]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Json) -> Json:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": required(part, "text", str)}
    if kind == "refusal":
        return {"type": "text", "text": required(part, "refusal", str)}
    if kind == "input_image" and part.get("image_url"):
        image = {"url": required(part, "image_url", str)} | copied(part, ("detail",))
        return {"type": "image_url", "image_url": image}
    raise Untranslatable(f"a part of type `{str(kind)[:80]}` in `content` cannot be translated to {_TO}")


RESPONSES_CLIENT = ClientApi(chat_request, response_document, ResponseWriter)
