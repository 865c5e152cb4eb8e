"""Honest answers: those of a real engine, asked once each and recorded.

The small model calls no tools, so tool calls are made here, from JSON that it writes to the schema of the
tool's parameters. With `reasoning`, each answer also has a line of reasoning in its own field.
"""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from tests.run.adversary.change import Json

REASONING = "The user wants an answer. I know it, so I will say it plainly."
_MADE_UP, _WORD = re.compile(r"\b[a-z]+-\d{4}\b"), "mango-6112"
_LONG_CHARS = 1000
RECORDED = Path(__file__).with_name("recorded.json")


class Honest:
    def __init__(self, url: str | None = None, recorded: Path | None = None, shorten: bool = False) -> None:
        """Asks the server at `url` (http://host:port) what is not recorded; without one that is an error.

        With `shorten`, only those sentences of a long prompt are asked that its question is about: `verify`
        makes a new text each time, and reading it takes this machine longer than all the rest. Long texts
        have a token for every four characters then, for the tokenizer as in `usage`. A plain answer is the
        streamed one in one piece: the engine's own waver with the state of its cache.
        """
        self.url = url
        self.shorten = shorten
        self.recorded: dict[str, Any] = _read(recorded) if recorded else {}
        self._counts: dict[str, int] = {}
        self._lock = Lock()

    def save(self, path: Path) -> None:
        text = json.dumps(self.recorded, indent=0, sort_keys=True, ensure_ascii=False) + "\n"
        path.write_text(text, "utf-8")

    def restart(self) -> None:
        """Sampled answers come again from the first one on."""
        self._counts.clear()

    def fresh(self) -> Honest:
        """The same records, with sampled answers from the first one on."""
        other = Honest(self.url, shorten=self.shorten)
        other.recorded, other._lock = self.recorded, self._lock
        return other

    def get(self, path: str) -> tuple[int, Any]:
        status, body = self._ask("GET", path, None)
        if path.endswith("/models") and status == 200:
            for model in body.get("models", ()):  # llama.cpp names here what a model can
                model["capabilities"] = ["completion", "tools"]
        if path.endswith("/props") and status == 200:
            caps = body.get("chat_template_caps", {})
            caps.update({key: True for key in caps if key.startswith("supports_tool")})
        return status, body

    def post(self, path: str, request: Json, reasoning: bool = False) -> tuple[int, Any]:
        """A plain answer is a dict, a stream the list of its chunks."""
        if request.get("tools") and request.get("tool_choice") != "none":
            if request["messages"][-1]["role"] == "user":
                return self._tool_call(path, request)
            request = _without_tools(request)
        status, answer = self._ask("POST", path, request)
        if reasoning and status == 200 and path.endswith("/chat/completions"):
            add_reasoning(answer)
        return status, answer

    def _tool_call(self, path: str, request: Json) -> tuple[int, Any]:
        prompt = str(request["messages"][-1]["content"]).lower()
        tools = [tool["function"] for tool in request["tools"]]
        words = [
            set((f["name"].replace("_", " ") + " " + f.get("description", "")).lower().split()) for f in tools
        ]
        tool = max(zip(tools, words, strict=True), key=lambda one: sum(word in prompt for word in one[1]))[0]
        schema = {"name": tool["name"], "schema": tool.get("parameters") or {"type": "object"}}
        plain = _without_tools(request) | {"response_format": {"type": "json_schema", "json_schema": schema}}
        for key in ("stream", "stream_options", "stop"):
            plain.pop(key, None)
        status, body = self._ask("POST", path, plain)
        if status != 200:
            return status, body
        choice = body["choices"][0]
        arguments = choice["message"]["content"]
        call = {
            "id": "call_0",
            "type": "function",
            "function": {"name": tool["name"], "arguments": arguments},
        }
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice["finish_reason"] = "tool_calls"
        return status, streamed_call(body, call, request) if request.get("stream") else body

    def _tokens(self, messages: list[Json]) -> int:
        text = "\n".join(message["content"] or "" for message in messages)
        _, answer = self._ask("POST", "/tokenize", {"content": text})
        return len(answer["tokens"])

    def _ask(self, method: str, path: str, request: Json | None) -> tuple[int, Any]:
        """A made-up word such as mango-6112 is asked for by one name: one recorded answer serves all."""
        if self.shorten and request:
            messages = request.get("messages", [])
            short = [_shortened(message) for message in messages]
            if short != messages:
                left_out = self._tokens(messages) - self._tokens(short)
                status, answer = self._ask(method, path, request | {"messages": short})
                _add_prompt_tokens(answer, left_out)
                return status, answer
            if path == "/tokenize" and len(text := request["content"]) >= _LONG_CHARS:
                return 200, {"tokens": list(range(len(text) // 4))}
            if messages and not request.get("stream") and not request.get("logprobs"):
                streamed = request | {"stream": True, "stream_options": {"include_usage": True}}
                status, answer = self._ask(method, path, streamed)
                return status, _joined(answer) if isinstance(answer, list) else answer
        key = json.dumps([method, path, request], sort_keys=True)
        made_up = _MADE_UP.search(key) if request and not request.get("stream") else None
        if made_up:
            key = key.replace(made_up[0], _WORD)
            request = json.loads(key)[2]
        with self._lock:
            if request and request.get("temperature") != 0:  # may differ each time
                self._counts[key] = self._counts.get(key, 0) + 1
                key = f"{key}#{self._counts[key]}"
            found = self.recorded.get(key)
        if found is None:
            if self.url is None:
                raise LookupError(f"not recorded: {key}")
            found = self.recorded[key] = _fetch(self.url, method, path, request)
        text = json.dumps(found)
        status, answer = json.loads(text.replace(_WORD, made_up[0]) if made_up else text)
        return status, answer


def _read(path: Path) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return recorded


def _joined(chunks: list[Json]) -> Json:
    """A stream as a plain answer."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    message = {"role": "assistant", "content": text}
    finish = next(choice["finish_reason"] for choice in reversed(choices) if choice["finish_reason"])
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return chunks[-1] | {"object": "chat.completion", "choices": [choice]}


def _add_prompt_tokens(answer: Any, tokens: int) -> None:
    for part in answer if isinstance(answer, list) else [answer]:
        if usage := part.get("usage"):
            usage["prompt_tokens"] += tokens
            usage["total_tokens"] += tokens


def _fetch(url: str, method: str, path: str, request: Json | None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
    try:
        body = json.dumps(request) if request is not None else None
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read().decode()
    finally:
        connection.close()
    if "event-stream" in (response.getheader("Content-Type") or ""):
        lines = [line[6:] for line in raw.splitlines() if line.startswith("data: ")]
        return response.status, [json.loads(line) for line in lines if line != "[DONE]"]
    try:
        return response.status, json.loads(raw)
    except ValueError:
        return response.status, raw


def _shortened(message: Json) -> Json:
    text = message.get("content")
    if message.get("role") != "user" or not isinstance(text, str) or len(text) < _LONG_CHARS:
        return message
    *_, question = text.split("\n")
    wanted = {word for word in re.findall(r"\w+", question.lower()) if len(word) > 5}
    sentences = re.split(r"(?<=\.) ", text[: -len(question)])
    found = [one for one in sentences if len(wanted & set(re.findall(r"\w+", one.lower()))) > 1]
    return message | {"content": "\n".join([*found, question])}


def _without_tools(request: Json) -> Json:
    plain = {
        key: value
        for key, value in request.items()
        if key not in ("tools", "tool_choice", "parallel_tool_calls")
    }
    plain["messages"] = [_as_text(message) for message in request["messages"]]
    return plain


def _as_text(message: Json) -> Json:
    if message["role"] == "tool":
        return {"role": "user", "content": f"The tool's result: {message['content']}"}
    if message.get("tool_calls"):
        return {
            "role": "assistant",
            "content": json.dumps([call["function"] for call in message["tool_calls"]]),
        }
    return message


def streamed_call(body: Json, call: Json, request: Json) -> list[Json]:
    base: Json = {key: body[key] for key in ("id", "created", "model", "system_fingerprint") if key in body}
    base["object"] = "chat.completion.chunk"
    arguments = call["function"]["arguments"]
    head = {"index": 0} | call | {"function": {"name": call["function"]["name"], "arguments": ""}}
    deltas: list[Json] = [{"role": "assistant", "content": None}, {"tool_calls": [head]}]
    for start in range(0, len(arguments), 6):
        piece = {"index": 0, "function": {"arguments": arguments[start : start + 6]}}
        deltas.append({"tool_calls": [piece]})
    chunks = [base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    if (request.get("stream_options") or {}).get("include_usage"):
        chunks.append(base | {"choices": [], "usage": body["usage"]})
    return chunks


def add_reasoning(answer: Any) -> None:
    if isinstance(answer, dict):
        for choice in answer["choices"]:
            choice["message"]["reasoning_content"] = REASONING
        return
    first = next((i for i, chunk in enumerate(answer) if chunk["choices"]), None)
    if first is not None:
        for word in reversed(re.findall(r"\s*\S+", REASONING)):
            piece = {"index": 0, "delta": {"reasoning_content": word}, "finish_reason": None}
            answer.insert(first + 1, answer[first] | {"choices": [piece]})
