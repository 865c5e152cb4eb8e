"""A client of OpenAI's Responses API at a server of chat completions.

Each event of an answer's stream has a number, and each item is announced, sent in pieces, and repeated as a
whole: so the text is kept until its item ends, within a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firesteel.gateway.translate.values import (
    CHAT_API,
    ClientApi,
    Json,
    TranslationContext,
    Untranslatable,
    copied,
    count,
    field,
    first_choice,
    member,
    objects,
    reasoning,
    refuse_others,
    required,
    sse,
    text_of,
    tool_calls,
)

_KNOWN = frozenset(
    ("model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "stream", "tools",
     "tool_choice", "parallel_tool_calls", "text", "reasoning",
     "store", "metadata", "include", "user", "safety_identifier", "prompt_cache_key",
     "prompt_cache_retention", "prompt_cache_options", "service_tier", "truncation", "stream_options",
     "client_metadata")
)  # fmt: skip
_HOSTED = frozenset(("web_search", "web_search_preview"))
"""Tools that only OpenAI's own servers have. Codex sends one with every request; where the model may choose,
it does without."""
_STORED = frozenset(("previous_response_id", "conversation", "prompt"))


def chat_request(request: Json) -> Json:
    for name in _STORED:
        if request.get(name):
            why = "Nothing is stored there: send the whole conversation as `input`."
            raise Untranslatable(f"`{name}` cannot be translated to {CHAT_API}. {why}")
    refuse_others(request, _KNOWN, CHAT_API)
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
    if tools := list(_tools(request)):
        body["tools"] = [_tool(tool, namespace) for namespace, tool in tools]
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
    raise Untranslatable(f"this `text.format` cannot be translated to {CHAT_API}")


def _tools(request: Json) -> Iterator[tuple[str, Json]]:
    """Each with its namespace, which chat does not have."""
    may_choose = request.get("tool_choice") in (None, "auto", "none")
    for tool in objects(field(request, "tools", list, []), "tools"):
        if tool.get("type") == "namespace":
            namespace = required(tool, "name", str)
            for inner in objects(required(tool, "tools", list), "tools"):
                yield namespace, inner
        elif not (may_choose and tool.get("type") in _HOSTED):
            yield "", tool


def namespaced_tools(request: Json) -> dict[str, tuple[str, str]]:
    """By the name that they have in chat: namespace and name, which the client expects with a call."""
    return {
        _flat_name(namespace, str(tool.get("name"))): (namespace, str(tool.get("name")))
        for namespace, tool in _tools(request)
        if namespace
    }


def _flat_name(namespace: str, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _tool(tool: Json, namespace: str = "") -> Json:
    if tool.get("type") != "function":
        raise Untranslatable(f"the tool `{str(tool.get('type'))[:80]}` cannot be translated to {CHAT_API}")
    function = {"name": _flat_name(namespace, required(tool, "name", str))}
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
        raise Untranslatable(f"this `tool_choice` cannot be translated to {CHAT_API}")
    name = _flat_name(field(choice, "namespace", str, ""), required(choice, "name", str))
    return {"tool_choice": {"type": "function", "function": {"name": name}}}


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
                raise Untranslatable(
                    f"an item `{str(kind)[:80]}` in `input` cannot be translated to {CHAT_API}"
                )
        if thought and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thought
        thought = ""
    return messages


def _thought(item: Json) -> str:
    """What the model thought, if it can be read; other servers encrypt it."""
    parts = field(item, "content", list) or field(item, "summary", list) or []
    return "".join(text_of(part, "text") for part in parts if isinstance(part, dict))


def _add_call(messages: list[Json], item: Json) -> None:
    """Calls that follow each other, or a text, are one message."""
    name = _flat_name(field(item, "namespace", str, ""), required(item, "name", str))
    function = {"name": name, "arguments": field(item, "arguments", str, "{}")}
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
    raise Untranslatable(f"a part of type `{str(kind)[:80]}` in `content` cannot be translated to {CHAT_API}")


MAX_ANSWER_CHARS = 16 * 1024 * 1024


def response_document(response: Json, context: TranslationContext) -> Json:
    choice = first_choice(response)
    message = member(choice, "message")
    output: list[Json] = []
    if thought := reasoning(message):
        output.append(_reasoning_item(f"rs_{context.id}", thought))
    if text := text_of(message, "content", "refusal"):
        output.append(_message_item(f"msg_{context.id}", text))
    for at, (_, call_id, name, arguments) in enumerate(tool_calls(message)):
        output.append(_call_item(f"fc_{context.id}_{at}", call_id, name, arguments, context))
    return _document(context, output, choice, member(response, "usage"))


def _reasoning_item(item_id: str, text: str | None) -> Json:
    item: Json = {"id": item_id, "type": "reasoning", "summary": [], "status": "in_progress"}
    if text is None:
        return item
    return item | {"content": [{"type": "reasoning_text", "text": text}], "status": "completed"}


def _message_item(item_id: str, text: str | None) -> Json:
    item: Json = {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "content": [],
        "status": "in_progress",
    }
    return item if text is None else item | {"content": [_text_part(text)], "status": "completed"}


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(
    item_id: str, call_id: str, name: str, arguments: str | None, context: TranslationContext
) -> Json:
    status = "in_progress" if arguments is None else "completed"
    namespace, own_name = context.tools.get(name, ("", name))
    item = {
        "id": item_id, "type": "function_call", "call_id": call_id or item_id, "name": own_name,
        "arguments": arguments or "", "status": status,
    }  # fmt: skip
    return item | {"namespace": namespace} if namespace else item


def _document(context: TranslationContext, output: list[Json], choice: Json | None, usage: Json) -> Json:
    """`choice` None: it has only begun."""
    is_cut = choice is not None and choice.get("finish_reason") in ("length", "content_filter")
    document: Json = {
        "id": f"resp_{context.id}", "object": "response", "created_at": int(context.began), "error": None,
        "model": context.model, "output": output, "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [],
        "instructions": None, "metadata": {}, "temperature": None, "top_p": None, "incomplete_details": None,
        "previous_response_id": None, "status": "in_progress", "usage": None,
    }  # fmt: skip
    if choice is None:
        return document
    document |= {"status": "incomplete" if is_cut else "completed", "usage": _usage(usage)}
    if is_cut:
        reason = "max_output_tokens" if choice.get("finish_reason") == "length" else "content_filter"
        document["incomplete_details"] = {"reason": reason}
    return document


def _usage(usage: Json) -> Json:
    prompt, completion = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    details, more = member(usage, "prompt_tokens_details"), member(usage, "completion_tokens_details")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": count(details, "cached_tokens"), "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": count(more, "reasoning_tokens")},
        "total_tokens": prompt + completion,
    }


_PREFIXES = {"reasoning": "rs", "message": "msg", "call": "fc"}


class ResponseWriter:
    """One item at a time is open: thoughts, a message, or a call of a tool."""

    def __init__(self, context: TranslationContext) -> None:
        self._context = context
        self._output: list[Json] = []
        self._open: tuple[str, int] | None = None
        self._item: Json = {}
        self._pieces: list[str] = []
        self._chars = self._number = 0
        self._calls: set[int] = set()
        self._usage: Json = {}
        self._choice: Json = {}

    def take(self, chunk: Json) -> bytes:
        out = b"" if self._number else self._begin()
        self._usage = member(chunk, "usage") or self._usage
        choice = first_choice(chunk)
        delta = member(choice, "delta")
        if choice.get("finish_reason"):
            self._choice = choice
        if thought := reasoning(delta):
            out += self._add(("reasoning", 0), thought)
        if text := text_of(delta, "content") or text_of(delta, "refusal"):
            out += self._add(("message", 0), text)
        for index, call_id, name, arguments in tool_calls(delta):
            out += self._add(("call", index), arguments, (call_id, name))
        return out

    def end(self) -> bytes:
        out = (b"" if self._number else self._begin()) + self._close()
        document = _document(self._context, self._output, self._choice, self._usage)
        return out + self._event(f"response.{document['status']}", response=document)

    def _begin(self) -> bytes:
        document = _document(self._context, [], None, {})
        created = self._event("response.created", response=document)
        return created + self._event("response.in_progress", response=document)

    def _event(self, kind: str, **members: object) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **members})

    def _add(self, place: tuple[str, int], text: str, names: tuple[str, str] = ("", "")) -> bytes:
        out = b""
        if self._open != place:
            out = self._close() + self._start(place, names)
        if not text:
            return out
        self._chars += len(text)
        if self._chars > MAX_ANSWER_CHARS:
            raise Untranslatable("the engine's answer is too long to be translated")
        self._pieces.append(text)
        kinds = {"reasoning": "reasoning_text", "message": "output_text", "call": "function_call_arguments"}
        more: Json = {"logprobs": []} if place[0] == "message" else {}
        return out + self._event(f"response.{kinds[place[0]]}.delta", **self._place(), delta=text, **more)

    def _place(self) -> Json:
        place = {"item_id": self._item["id"], "output_index": len(self._output)}
        return place if self._item["type"] == "function_call" else place | {"content_index": 0}

    def _start(self, place: tuple[str, int], names: tuple[str, str]) -> bytes:
        kind, index = place
        item_id = f"{_PREFIXES[kind]}_{self._context.id}_{len(self._output)}"
        if kind == "call":
            if index in self._calls:
                raise Untranslatable("the engine sent the calls of several tools at the same time")
            self._calls.add(index)
            self._item = _call_item(item_id, *names, None, self._context)
        else:
            make = _reasoning_item if kind == "reasoning" else _message_item
            self._item = make(item_id, None)
        self._open = place
        out = self._event("response.output_item.added", output_index=len(self._output), item=self._item)
        return out + (b"" if kind == "call" else self._part_event("added", ""))

    def _part_event(self, what: str, text: str) -> bytes:
        is_message = self._item["type"] == "message"
        part = _text_part(text) if is_message else {"type": "reasoning_text", "text": text}
        return self._event(f"response.content_part.{what}", **self._place(), part=part)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        (kind, _), text, item = self._open, "".join(self._pieces), self._item
        if kind == "call":
            name = item["name"]
            out = self._event(
                "response.function_call_arguments.done", **self._place(), name=name, arguments=text
            )
            item = {**item, "arguments": text, "status": "completed"}
        elif kind == "message":
            out = self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            out += self._part_event("done", text)
            item = _message_item(item["id"], text)
        else:
            out = self._event("response.reasoning_text.done", **self._place(), text=text)
            out += self._part_event("done", text)
            item = _reasoning_item(item["id"], text)
        out += self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._open, self._pieces = None, []
        return out


RESPONSES_CLIENT = ClientApi(chat_request, response_document, ResponseWriter)
