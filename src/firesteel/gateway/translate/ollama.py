"""Ollama's `/api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings`, to and from OpenAI's API.

The request is translated before its model is known to be loaded, so a mistake costs no load. An answer is a
document, or lines of JSON: tool calls are sent whole, in a line of their own before the last, which has the
counts and durations. Clients divide tokens by these: the time to the first token counts as the prompt's.

Ignored, as Ollama itself ignores what it does not know: options about loading (`num_ctx`, `num_gpu`,
`num_thread`, ...), which the service file decides, and `truncate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from firesteel.gateway.translate.values import (
    ChunkWriter,
    Json,
    ToolCallDeltas,
    ToolIds,
    TranslationContext,
    Untranslatable,
    copied,
    count,
    dump,
    dump_text,
    field,
    first_choice,
    member,
    objects,
    parse_arguments,
    reasoning,
    required,
    text_of,
    tool_calls,
)
from firesteel.values import Value

_OPTIONS: dict[str, type] = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float, "typical_p": float, "seed": int,
    "presence_penalty": float, "frequency_penalty": float, "repeat_penalty": float, "repeat_last_n": int,
    "num_predict": int, "mirostat": int, "mirostat_tau": float, "mirostat_eta": float,
}  # fmt: skip
_ENGINE_OPTIONS = ("typical_p", "repeat_last_n", "mirostat", "mirostat_tau", "mirostat_eta", "repeat_penalty")
"""llama.cpp's own names; other engines ignore them."""
_SAME = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "stop")
_IMAGE_TYPES = {"/9j/": "jpeg", "iVBOR": "png", "R0lGOD": "gif", "UklGR": "webp"}
"""By the first characters of an image in base64."""
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
FOREVER = -1.0


class OllamaRequest(Value):
    """A request, translated."""

    path: bytes
    """OpenAI's; empty: only the model is to be loaded or unloaded."""
    body: Json
    """Begins with `model`."""
    is_stream: bool
    keep_alive_s: float | None
    """None: as the service file says; `FOREVER`; 0: unload it after the answer."""
    response: Callable[[Json, TranslationContext], Json]
    writer: Callable[[TranslationContext], ChunkWriter]


def translate_request(path: bytes, request: Json) -> OllamaRequest:
    """`path` is one of the four. Raises `Untranslatable`."""
    return _PATHS[path](request)


def _chat(request: Json) -> OllamaRequest:
    body = _common(request)
    messages = objects(field(request, "messages", list, []), "messages")
    body["messages"] = _messages(messages)
    body |= copied(request, ("tools", "logprobs", "top_logprobs"))
    return _generation(request, body, b"/v1/chat/completions", chat_response, ChatWriter, bool(messages))


def _generate(request: Json) -> OllamaRequest:
    for name, instead in (
        ("suffix", "Send `raw` with the model's own tokens for filling in."),
        ("template", "The engine applies the template of the model."),
        ("context", "Use /api/chat and send the messages."),
    ):
        if request.get(name):
            raise Untranslatable(f"`{name}` is not supported. {instead}")
    prompt, system = field(request, "prompt", str, ""), field(request, "system", str, "")
    images = field(request, "images", list, [])
    body, has_prompt = _common(request), bool(prompt or images)
    if field(request, "raw", bool, False):
        return _generation(
            request,
            body | {"prompt": prompt},
            b"/v1/completions",
            generate_response,
            GenerateWriter,
            has_prompt,
        )
    body["messages"] = [{"role": "system", "content": system}] if system else []
    body["messages"] += _messages([{"role": "user", "content": prompt, "images": images}])
    return _generation(request, body, b"/v1/chat/completions", generate_response, GenerateWriter, has_prompt)


def _generation(
    request: Json,
    body: Json,
    path: bytes,
    response: Callable[[Json, TranslationContext], Json],
    writer: Callable[[TranslationContext], ChunkWriter],
    has_prompt: bool,
) -> OllamaRequest:
    is_stream = field(request, "stream", bool, True)
    body["stream"] = is_stream
    if is_stream:
        body["stream_options"] = {"include_usage": True}
    keep_alive_s = parse_keep_alive(request.get("keep_alive"))
    if not has_prompt:
        return OllamaRequest(b"", body, False, keep_alive_s, response, writer)
    return OllamaRequest(path, body, is_stream, keep_alive_s, response, writer)


def _embedding(
    request: Json, text: object, response: Callable[[Json, TranslationContext], Json]
) -> OllamaRequest:
    if not all(isinstance(part, str) for part in (text if isinstance(text, list) else [text])):
        raise Untranslatable("`input` must be a string or a list of strings")
    body = {"model": required(request, "model", str), "input": text, "encoding_format": "float"}
    body |= copied(request, ("dimensions",))
    path = b"/v1/embeddings" if text else b""
    return OllamaRequest(path, body, False, parse_keep_alive(request.get("keep_alive")), response, ChatWriter)


_PATHS: dict[bytes, Callable[[Json], OllamaRequest]] = {
    b"/api/chat": _chat,
    b"/api/generate": _generate,
    b"/api/embed": lambda request: _embedding(request, request.get("input"), embed_response),
    b"/api/embeddings": lambda r: _embedding(r, field(r, "prompt", str, ""), embeddings_response),
}


def _common(request: Json) -> Json:
    body: Json = {"model": required(request, "model", str)}
    body |= _options(field(request, "options", dict, {}))
    answer_format = request.get("format")
    if answer_format == "json":
        body["response_format"] = {"type": "json_object"}
    elif isinstance(answer_format, dict):
        schema = {"name": "answer", "schema": answer_format, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif answer_format not in (None, ""):
        raise Untranslatable("`format` must be `json` or a JSON schema")
    think = request.get("think")
    if isinstance(think, bool):
        body["chat_template_kwargs"] = {"enable_thinking": think}
    elif think in ("low", "medium", "high", "max"):
        body["reasoning_effort"] = "high" if think == "max" else think
    elif think is not None:
        raise Untranslatable("`think` must be true, false, `low`, `medium` or `high`")
    return body


def _options(options: Json) -> Json:
    for name, kind in _OPTIONS.items():
        field(options, name, kind)
    stop = options.get("stop")
    if not (stop is None or isinstance(stop, (str, list))):
        raise Untranslatable("`stop` must be a list of strings")
    body = copied(options, (*_SAME, *_ENGINE_OPTIONS))
    if "repeat_penalty" in body:
        body["repetition_penalty"] = body["repeat_penalty"]  # vLLM's and SGLang's name
    if field(options, "num_predict", int, -1) >= 0:
        body["max_tokens"] = options["num_predict"]
    return body


def _messages(messages: list[Json]) -> list[Json]:
    ids = ToolIds()
    return [_message(message, ids) for message in messages]


def _message(message: Json, ids: ToolIds) -> Json:
    role, content = required(message, "role", str), field(message, "content", str, "")
    if role not in ("system", "user", "assistant", "tool", "developer"):
        raise Untranslatable(f"`role` is `{role[:40]}`: use system, user, assistant or tool")
    translated: Json = {"role": role, "content": content}
    if images := field(message, "images", list, []):
        parts = [{"type": "text", "text": content}] if content else []
        translated["content"] = parts + [_image(image) for image in images]
    if calls := objects(field(message, "tool_calls", list, []), "tool_calls"):
        translated["tool_calls"] = [_tool_call(call, ids) for call in calls]
    if thinking := field(message, "thinking", str, ""):
        translated["reasoning_content"] = thinking
    if role == "tool":
        name = text_of(message, "tool_name", "name")
        translated["tool_call_id"] = ids.result(name, message.get("tool_call_id"))
    return translated


def _image(image: object) -> Json:
    if not isinstance(image, str):
        raise Untranslatable("`images` must be a list of strings in base64")
    if not image.startswith("data:"):
        kinds = (kind for start, kind in _IMAGE_TYPES.items() if image.startswith(start))
        image = f"data:image/{next(kinds, 'png')};base64,{image}"
    return {"type": "image_url", "image_url": {"url": image}}


def _tool_call(call: Json, ids: ToolIds) -> Json:
    function = required(call, "function", dict)
    name = required(function, "name", str)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else dump_text(arguments or {})
    call_id = ids.call(name, call.get("id"))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def parse_keep_alive(value: object) -> float | None:
    """Seconds, or Go's notation: `5m`, `1h30m`, `-1`."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = _duration_s(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
        raise Untranslatable("`keep_alive` must be a time like `10m`, or seconds")
    return FOREVER if value < 0 else float(value)


def _duration_s(text: str) -> float | None:
    rest, sign, seconds = text.removeprefix("-"), (-1 if text.startswith("-") else 1), 0.0
    if rest.replace(".", "", 1).isdigit() and rest.isascii() and len(rest) < 20:
        return sign * float(rest)
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        unit = next((each for each in _UNITS if rest.startswith(each, digits)), None)
        if unit is None or not 0 < digits < 20 or rest.count(".", 0, digits) > 1 or rest[:digits] == ".":
            return None
        seconds += float(rest[:digits]) * _UNITS[unit]
        rest = rest[digits + len(unit) :]
    return sign * seconds if text else None


def loaded_response(path: bytes, request: OllamaRequest, context: TranslationContext) -> Json:
    """For a request without a prompt: its model is loaded, or will be unloaded."""
    if path in (b"/api/embed", b"/api/embeddings"):
        return request.response({}, context)
    empty: Json = (
        {"message": {"role": "assistant", "content": ""}} if path == b"/api/chat" else {"response": ""}
    )
    reason = "unload" if request.keep_alive_s == 0 else "load"
    return base(context) | empty | {"done": True, "done_reason": reason}


def chat_response(response: Json, context: TranslationContext) -> Json:
    choice = first_choice(response)
    return base(context) | {"message": _ollama_message(choice)} | _end(response, choice, context, None)


def generate_response(response: Json, context: TranslationContext) -> Json:
    choice = first_choice(response)
    message = member(choice, "message")
    answer = {"response": text_of(message, "content") or text_of(choice, "text")}
    if thinking := reasoning(message):
        answer["thinking"] = thinking
    return base(context) | answer | _end(response, choice, context, None)


def _ollama_message(choice: Json) -> Json:
    message = member(choice, "message")
    answer: Json = {"role": "assistant", "content": text_of(message, "content")}
    if thinking := reasoning(message):
        answer["thinking"] = thinking
    if calls := [_ollama_call(*call) for _, *call in tool_calls(message)]:
        answer["tool_calls"] = calls
    return answer


def _ollama_call(call_id: str, name: str, arguments: str) -> Json:
    call: Json = {"function": {"name": name, "arguments": parse_arguments(arguments)}}
    return {"id": call_id, **call} if call_id else call


def embed_response(response: Json, context: TranslationContext) -> Json:
    duration = _ns(context.now() - context.began)
    counts = {"total_duration": duration, "load_duration": 0}
    counts["prompt_eval_count"] = count(member(response, "usage"), "prompt_tokens")
    return {"model": context.model, "embeddings": _vectors(response)} | counts


def embeddings_response(response: Json, context: TranslationContext) -> Json:
    return {"embedding": next(iter(_vectors(response)), [])}


def _vectors(response: Json) -> list[Any]:
    data = response.get("data")
    rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    return [row.get("embedding", []) for row in sorted(rows, key=lambda row: count(row, "index"))]


def base(context: TranslationContext) -> Json:
    return {"model": context.model, "created_at": timestamp(context.now())}


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _end(response: Json, choice: Json, context: TranslationContext, first_at: float | None) -> Json:
    """`first_at`: when the first token arrived, if that is known."""
    usage, timings = member(response, "usage"), member(response, "timings")
    total_s = max(0.0, context.now() - context.began)
    prompt_s = max(0.0, first_at - context.began) if first_at is not None else 0.0
    answer_s = total_s - prompt_s
    if isinstance(timings.get("prompt_ms"), (int, float)) and isinstance(
        timings.get("predicted_ms"), (int, float)
    ):
        prompt_s, answer_s = timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000
    end: Json = {
        "done": True,
        "done_reason": "length" if choice.get("finish_reason") == "length" else "stop",
        "total_duration": _ns(total_s),
        "load_duration": 0,
        "prompt_eval_count": count(usage, "prompt_tokens"),
        "prompt_eval_duration": _ns(prompt_s),
        "eval_count": count(usage, "completion_tokens"),
        "eval_duration": _ns(answer_s),
    }
    if isinstance(content := member(choice, "logprobs").get("content"), list):
        end["logprobs"] = content
    return end


def _ns(seconds: float) -> int:
    return max(1, round(seconds * 1e9))


class _LineWriter(ABC):
    """A stream as lines; what a line carries is the API's."""

    def __init__(self, context: TranslationContext) -> None:
        self._context = context
        self._calls = ToolCallDeltas()
        self._end: Json = {}
        self._choice: Json = {}
        self._first_at: float | None = None

    def take(self, chunk: Json) -> bytes:
        self._end |= {name: chunk[name] for name in ("usage", "timings") if isinstance(chunk.get(name), dict)}
        choice = first_choice(chunk)
        delta = member(choice, "delta")
        self._calls.take(delta)
        if choice.get("finish_reason"):
            self._choice = {"finish_reason": choice["finish_reason"]}
        text, thinking = text_of(delta, "content") or text_of(choice, "text"), reasoning(delta)
        if not text and not thinking:
            return b""
        if self._first_at is None:
            self._first_at = self._context.now()
        line = self._line(text, thinking)
        if isinstance(content := member(choice, "logprobs").get("content"), list):
            line["logprobs"] = content
        return dump(line) + b"\n"

    def end(self) -> bytes:
        out, line = b"", self._line("", "")
        calls = [_ollama_call(*call) for call in self._calls.whole()]
        if calls and "message" in line:  # an answer of `generate` has no place for calls
            line["message"]["tool_calls"] = calls
            out = dump(line) + b"\n"
        last = self._line("", "") | _end(self._end, self._choice, self._context, self._first_at)
        return out + dump(last) + b"\n"

    @abstractmethod
    def _line(self, text: str, thinking: str) -> Json: ...


class ChatWriter(_LineWriter):
    def _line(self, text: str, thinking: str) -> Json:
        message = {"role": "assistant", "content": text} | ({"thinking": thinking} if thinking else {})
        return base(self._context) | {"message": message, "done": False}


class GenerateWriter(_LineWriter):
    def _line(self, text: str, thinking: str) -> Json:
        answer = {"response": text} | ({"thinking": thinking} if thinking else {})
        return base(self._context) | answer | {"done": False}


def waiting_line(path: bytes, context: TranslationContext) -> bytes:
    """A line without text, for a client that waits for its model: clients know nothing like a comment."""
    writer = ChatWriter(context) if path == b"/api/chat" else GenerateWriter(context)
    return dump(writer._line("", "")) + b"\n"
