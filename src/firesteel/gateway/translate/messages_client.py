"""A client of Anthropic's Messages API at a server of chat completions."""

from __future__ import annotations

from typing import Any

from firesteel.gateway.translate.values import (
    CHAT_API,
    ClientApi,
    Json,
    TranslationContext,
    Untranslatable,
    copied,
    count,
    dump_text,
    field,
    first_choice,
    member,
    objects,
    parse_arguments,
    reasoning,
    refuse_others,
    required,
    sse,
    text_of,
    tool_calls,
)

_KNOWN = frozenset(
    ("model", "messages", "system", "max_tokens", "stop_sequences", "stream", "temperature", "top_p", "top_k",
     "tools", "tool_choice", "thinking", "output_format", "output_config",
     "metadata", "service_tier", "cache_control", "betas", "context_management", "inference_geo",
     "diagnostics", "user_profile_id", "workspace_id")
)  # fmt: skip
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


# --- the request ---


def chat_request(request: Json) -> Json:
    refuse_others(request, _KNOWN, CHAT_API)
    system = _text(request["system"], "system") if request.get("system") else ""
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    given = objects(required(request, "messages", list), "messages")
    for message in given:
        messages += _message(message)
    body: Json = {"model": request.get("model"), "messages": messages}
    body |= copied(request, ("max_tokens", "temperature", "top_p", "top_k"))
    if stop := field(request, "stop_sequences", list, []):
        body["stop"] = stop
    if field(request, "stream", bool, False):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if tools := _loaded_tools(objects(field(request, "tools", list, []), "tools"), given):
        body["tools"] = [_tool(tool) for tool in tools]
    return body | _tool_choice(field(request, "tool_choice", dict, {})) | _thinking_and_format(request)


def _thinking_and_format(request: Json) -> Json:
    body: Json = {}
    kind = field(request, "thinking", dict, {}).get("type")
    if kind in ("enabled", "disabled"):
        body["chat_template_kwargs"] = {"enable_thinking": kind == "enabled"}
    config = field(request, "output_config", dict, {})
    if config.get("effort"):
        body["reasoning_effort"] = "high" if config["effort"] in ("xhigh", "max") else config["effort"]
    answer_format = request.get("output_format") or config.get("format")
    if isinstance(answer_format, dict) and answer_format.get("type") == "json_schema":
        schema = {"name": "answer", "schema": answer_format.get("schema"), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif answer_format:
        raise Untranslatable(f"`output_format` of this kind cannot be translated to {CHAT_API}")
    return body


def _text(blocks: object, name: str) -> str:
    """Of blocks that must all be text."""
    if isinstance(blocks, str):
        return blocks
    if not isinstance(blocks, list):
        raise Untranslatable(f"`{name}` must be a string or a list of blocks")
    parts = []
    for block in objects(blocks, name):
        if block.get("type") != "text":
            raise _unknown_block(block, name)
        parts.append(required(block, "text", str))
    return "\n\n".join(parts)


def _unknown_block(block: Json, where: str) -> Untranslatable:
    kind = str(block.get("type"))[:80]
    return Untranslatable(f"a block of type `{kind}` in `{where}` cannot be translated to {CHAT_API}")


def _message(message: Json) -> list[Json]:
    role, content = required(message, "role", str), message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = objects(required(message, "content", list), "content")
    if role == "assistant":
        return [_assistant(blocks)]
    if role != "user":
        return [{"role": role, "content": _text(content, "content")}]
    return _user(blocks)


def _assistant(blocks: list[Json]) -> Json:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(required(block, "text", str))
            case "thinking":
                thoughts.append(field(block, "thinking", str, ""))
            case "redacted_thinking":
                pass  # only its author can read it
            case "tool_use":
                calls.append(_call(block))
            case _:
                raise _unknown_block(block, "content")
    message: Json = {"role": "assistant", "content": "".join(texts) or None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return message


def _call(block: Json) -> Json:
    arguments = dump_text(field(block, "input", dict, {}))
    function = {"name": required(block, "name", str), "arguments": arguments}
    return {"id": required(block, "id", str), "type": "function", "function": function}


def _user(blocks: list[Json]) -> list[Json]:
    """Results of tools are messages of their own, and come first. Their images follow with the user's."""
    results: list[Json] = []
    parts: list[Json] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            texts, images = _result(block)
            call_id = required(block, "tool_use_id", str)
            results.append({"role": "tool", "tool_call_id": call_id, "content": texts})
            parts += images
        else:
            parts.append(_part(block))
    if not parts:
        return results
    is_text = all(part["type"] == "text" for part in parts)
    content: Any = "\n\n".join(part["text"] for part in parts) if is_text else parts
    return [*results, {"role": "user", "content": content}]


def _result(block: Json) -> tuple[str, list[Json]]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or "", []
    parts = [_part(each) for each in objects(required(block, "content", list), "content")]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n\n".join(texts), [part for part in parts if part["type"] != "text"]


def _part(block: Json) -> Json:
    if block.get("type") == "text":
        return {"type": "text", "text": required(block, "text", str)}
    if block.get("type") == "tool_reference":
        return {"type": "text", "text": f"The tool `{required(block, 'tool_name', str)}` can be called now."}
    if block.get("type") != "image":
        raise _unknown_block(block, "content")
    source = required(block, "source", dict)
    if source.get("type") == "url":
        url = required(source, "url", str)
    elif source.get("type") == "base64":
        url = f"data:{required(source, 'media_type', str)};base64,{required(source, 'data', str)}"
    else:
        raise Untranslatable(
            f"an image whose `source` is neither `base64` nor `url` cannot be translated to {CHAT_API}"
        )
    return {"type": "image_url", "image_url": {"url": url}}


def _loaded_tools(tools: list[Json], messages: list[Json]) -> list[Json]:
    """What a client loads later comes once a result refers to it, and last: the prompt keeps its head."""
    blocks = (block for message in messages for block in _objects_in(message.get("content")))
    results = (each for block in blocks for each in _objects_in(block.get("content")))
    found = dict.fromkeys(
        str(each.get("tool_name")) for each in results if each.get("type") == "tool_reference"
    )
    later = {str(tool.get("name")): tool for tool in tools if tool.get("defer_loading")}
    return [
        *(tool for tool in tools if not tool.get("defer_loading")),
        *(later[name] for name in found if name in later),
    ]


def _objects_in(content: object) -> list[Json]:
    return [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []


def _tool(tool: Json) -> Json:
    if tool.get("type") not in (None, "custom"):
        raise Untranslatable(f"the tool `{str(tool['type'])[:80]}` cannot be translated to {CHAT_API}")
    function = {"name": required(tool, "name", str), "parameters": required(tool, "input_schema", dict)}
    return {"type": "function", "function": function | copied(tool, ("description", "strict"))}


def _tool_choice(choice: Json) -> Json:
    if not choice:
        return {}
    body: Json = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    kind = required(choice, "type", str)
    simple = {"auto": "auto", "any": "required", "none": "none"}
    if kind in simple:
        return body | {"tool_choice": simple[kind]}
    if kind != "tool":
        raise Untranslatable("`tool_choice` must be auto, any, none or tool")
    return body | {"tool_choice": {"type": "function", "function": {"name": required(choice, "name", str)}}}


# --- the response ---


def message_response(response: Json, context: TranslationContext) -> Json:
    choice = first_choice(response)
    message = member(choice, "message")
    content: list[Json] = []
    if thought := reasoning(message):
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if text := text_of(message, "content", "refusal"):
        content.append({"type": "text", "text": text})
    for _, call_id, name, arguments in tool_calls(message):
        block = {"type": "tool_use", "id": call_id, "name": name, "input": parse_arguments(arguments)}
        content.append(block)
    usage = _usage(member(response, "usage"))
    return _empty(context) | {"content": content, "usage": usage} | _stop(choice)


def _empty(context: TranslationContext) -> Json:
    return {
        "id": f"msg_{context.id}", "type": "message", "role": "assistant", "model": context.model,
        "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": _usage({}),
    }  # fmt: skip


def _stop(choice: Json) -> Json:
    reason, matched = choice.get("finish_reason"), choice.get("stop_reason")
    if reason == "stop" and isinstance(matched, str):  # vLLM says which
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": _STOP_REASONS.get(str(reason), "end_turn"), "stop_sequence": None}


def _usage(usage: Json) -> Json:
    cached = count(member(usage, "prompt_tokens_details"), "cached_tokens")
    return {
        "input_tokens": max(0, count(usage, "prompt_tokens") - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": count(usage, "completion_tokens"),
    }


class MessageWriter:
    """One block at a time is open: thinking, text, or a call of a tool."""

    def __init__(self, context: TranslationContext) -> None:
        self._context = context
        self._blocks = 0
        self._open: tuple[str, int] | None = None
        """Kind, and the index of a tool call."""
        self._calls: set[int] = set()
        self._usage: Json = {}
        self._choice: Json = {}
        self._has_begun = False

    def take(self, chunk: Json) -> bytes:
        out = b"" if self._has_begun else self._begin()
        self._usage = member(chunk, "usage") or self._usage
        choice = first_choice(chunk)
        delta = member(choice, "delta")
        if choice.get("finish_reason"):
            self._choice = choice
        if thought := reasoning(delta):
            start = {"type": "thinking", "thinking": "", "signature": ""}
            out += self._block(("thinking", 0), start) + self._delta("thinking", thought)
        if text := text_of(delta, "content") or text_of(delta, "refusal"):
            out += self._block(("text", 0), {"type": "text", "text": ""}) + self._delta("text", text)
        for call in tool_calls(delta):
            out += self._call(*call)
        return out

    def end(self) -> bytes:
        out = (b"" if self._has_begun else self._begin()) + self._close()
        last = {"type": "message_delta", "delta": _stop(self._choice), "usage": _usage(self._usage)}
        return out + sse(last) + sse({"type": "message_stop"})

    def _begin(self) -> bytes:
        self._has_begun = True
        return sse({"type": "message_start", "message": _empty(self._context)})

    def _call(self, index: int, call_id: str, name: str, arguments: str) -> bytes:
        out = b""
        if self._open != ("tool", index):
            if index in self._calls:
                raise Untranslatable("the engine sent the calls of several tools at the same time")
            self._calls.add(index)
            start = {"type": "tool_use", "id": call_id or f"call_{index}", "name": name, "input": {}}
            out = self._block(("tool", index), start)
        return out + (self._delta("input_json", arguments) if arguments else b"")

    def _block(self, block: tuple[str, int], start: Json) -> bytes:
        if self._open == block:
            return b""
        out = self._close()
        self._open = block
        return out + sse({"type": "content_block_start", "index": self._blocks, "content_block": start})

    def _delta(self, kind: str, text: str) -> bytes:
        name = "partial_json" if kind == "input_json" else kind
        delta = {"type": f"{kind}_delta", name: text}
        return sse({"type": "content_block_delta", "index": self._blocks, "delta": delta})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._blocks += 1
        return sse({"type": "content_block_stop", "index": self._blocks - 1})


MESSAGES_CLIENT = ClientApi(chat_request, message_response, MessageWriter)
