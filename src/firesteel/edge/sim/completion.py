"""A request -> the pieces of its answer, each with the channel that it is sent on.

A tool call or JSON has values that its schema allows, taken from the question where possible. Of a picture
the model sees the colour of the first pixel; in a sound it hears words that it knows.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from firesteel.edge.sim import answers, tokenizer
from firesteel.edge.sim.answers import SimReply, first_sum
from firesteel.shipped_data import DATA
from firesteel.values import Value, replace

Channel = Literal["reasoning", "content", "call"]
Piece = tuple[Channel, str]
_MAX_ENDLESS_TOKENS = 100_000
"""Of an answer with `ignore_eos` and no limit."""


class BadRequest(Exception):
    """The engine's message with HTTP 400."""


class Completion(Value):
    prompt: str
    pieces: tuple[Piece, ...]
    text: str
    finish: Literal["stop", "length", "tool_calls"]
    calls: tuple[tuple[str, str], ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return max(1, tokenizer.count(self.prompt))


class AnswerStyle(Value):
    """The parts of a launch that decide how the engine answers."""

    thinks: bool
    calls_tools: bool
    context: int
    garbage: str | None = None
    """The kind of garbage that it answers: soup, loop or foreign; None: right answers."""


def chat(body: Mapping[str, Any], style: AnswerStyle) -> Completion:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: Field required")
    turns = [
        (str(message.get("role", "user")), _content(message))
        for message in messages
        if isinstance(message, dict)
    ]
    tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict)]
    prompt = "".join(f"<|{role}|>{text}<|end|>" for role, text in turns) + "<|assistant|>"
    prompt += json.dumps(tools) if tools else ""
    role, question = turns[-1] if turns else ("user", "")
    before = "\n".join(text for _, text in turns[:-1])
    content = messages[-1].get("content") if isinstance(messages[-1], dict) else None
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    if shown := next((answer for part in parts if (answer := seen(part))), None):
        reply = SimReply(shown, "conversation")
    elif role == "tool":
        reply = SimReply(f"The tool says: {question}", "conversation")
    else:
        reply = _tool_call(body, tools, question, style) or _reply(body, question, before)
    thinks = style.thinks and _wants_thinking(body) and not style.garbage
    return _limited(body, prompt, reply, question, style, thinks)


def complete(body: Mapping[str, Any], style: AnswerStyle, tokenizer: tokenizer.Tokenizer) -> Completion:
    prompt = body.get("prompt", "")
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        prompt = tokenizer.text(prompt)
    elif isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest("prompt: the simulated engine takes one prompt at a time")
    reply = answers.reply(prompt)
    if not prompt.rstrip().endswith(("?", ".", "!")):  # an unfinished sentence is continued
        value = reply.content.rstrip(".").rpartition(" is " if " is " in reply.content else "= ")[2]
        reply = SimReply(f" {value}." if len(value) < 40 else f" {reply.content}", reply.text)
    return _limited(body, prompt, reply, prompt, style, thinks=False)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        return "\n".join(
            " image" * TOKENS_OF_MEDIA if seen(part) else str(part.get("text", "")) for part in parts
        )
    return content if isinstance(content, str) else ""


def _wants_thinking(body: Mapping[str, Any]) -> bool:
    options = body.get("chat_template_kwargs")
    if not isinstance(options, dict):
        return True
    return False not in (options.get("enable_thinking"), options.get("thinking"))


def _tool_call(
    body: Mapping[str, Any], tools: list[dict[str, Any]], question: str, style: AnswerStyle
) -> SimReply | None:
    choice = body.get("tool_choice", "auto" if tools else "none")
    if not tools or choice == "none":
        return None
    named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    if not style.calls_tools and named is None:
        raise BadRequest(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    first = tools[0].get("function", tools[0]).get("name") if choice == "required" else None
    call = call_tool(tools, question, named) or call_tool(tools, question, first)
    return SimReply("", "structured", (call,)) if call else None


def _reply(body: Mapping[str, Any], question: str, before: str) -> SimReply:
    format = body.get("response_format")
    kind = format.get("type") if isinstance(format, dict) else None
    if isinstance(format, dict) and kind == "json_schema":
        schema = (format.get("json_schema") or {}).get("schema") or {}
        return SimReply(json.dumps(instance(schema, question)), "structured")
    reply = answers.reply(question, before, wants_json=kind == "json_object")
    temperature, seed = body.get("temperature"), body.get("seed")
    if isinstance(temperature, int | float) and temperature > 1 and isinstance(seed, int):
        # At such a temperature other sentences come with every seed.
        return replace(reply, content=answers.more(question, reply.text, seed).strip())
    return reply


def _limited(
    body: Mapping[str, Any], prompt: str, reply: SimReply, question: str, style: AnswerStyle, thinks: bool
) -> Completion:
    """The answer, cut to what the request and the context allow."""
    available = style.context - max(1, tokenizer.count(prompt))
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if available < 1 or (isinstance(limit, int) and limit > available):
        raise BadRequest(
            f"This model's maximum context length is {style.context} tokens. However, you requested "
            f"{limit or 1} output tokens and your prompt contains {style.context - available} input tokens."
        )
    max_tokens = min(limit if isinstance(limit, int) and limit > 0 else available, available)
    content = _lengthened(body, reply, question, max_tokens, style)
    content = _before_stop(content, body.get("stop"))
    pieces: list[Piece] = (
        [("reasoning", piece) for piece in tokenizer.pieces(answers.known_answers()["thought"])]
        if thinks
        else []
    )
    pieces += [("content", piece) for piece in tokenizer.pieces(content)]
    for _, arguments in reply.calls:
        pieces += [("call", piece) for piece in tokenizer.pieces(arguments)]
    finish: Literal["stop", "length", "tool_calls"] = "tool_calls" if reply.calls else "stop"
    if len(pieces) > max_tokens:
        finish = "length"
    return Completion(prompt, tuple(pieces[:max_tokens]), reply.text, finish, reply.calls)


def _lengthened(
    body: Mapping[str, Any], reply: SimReply, question: str, max_tokens: int, style: AnswerStyle
) -> str:
    """The content, continued to `min_tokens`, or to the limit with `ignore_eos`."""
    content = reply.content
    if style.garbage:
        return answers.garbage(style.garbage, question, min(max_tokens, 400))
    min_tokens = body.get("min_tokens")
    needed = min(max_tokens, min_tokens if isinstance(min_tokens, int) else 0)
    if body.get("ignore_eos") is True:
        needed = min(max_tokens, _MAX_ENDLESS_TOKENS)
    rounds = 0
    while needed and tokenizer.count(content) < needed + 1 and rounds < 1000:
        rounds += 1
        content += answers.more(question, reply.text, rounds)
    return content


def _before_stop(content: str, stop: Any) -> str:
    """The content up to the first stop sequence."""
    sequences = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    for sequence in sequences:
        if isinstance(sequence, str) and sequence:
            content = content.partition(sequence)[0]
    return content


TOKENS_OF_MEDIA = 64
"""How much longer a prompt is for a picture or a sound."""
_CHANNELS = ("red", "green", "blue")


def seen(part: Mapping[str, Any]) -> str | None:
    """The answer to a question about this part of a message; None: it is text."""
    image, sound = part.get("image_url"), part.get("input_audio")
    try:
        if isinstance(image, Mapping):
            return f"It is {_colour(base64.b64decode(str(image['url']).partition(',')[2]))}."
        if isinstance(sound, Mapping):
            data = base64.b64decode(str(sound["data"]))
            words = (path.stem for path in (DATA / "verify").glob("*.wav") if path.read_bytes() == data)
            return next(words, "I cannot make out a word.")
    except (ValueError, KeyError, zlib.error, struct.error):
        return "I cannot make out what this is."
    return None


def _colour(png: bytes) -> str:
    at = png.index(b"IDAT")
    (length,) = struct.unpack(">I", png[at - 4 : at])
    pixel = zlib.decompressobj().decompress(png[at + 4 : at + 4 + length], 4)[1:4]
    return _CHANNELS[max(range(3), key=lambda index: pixel[index])]


_MAX_DEPTH = 8
_PLACE = re.compile(r"\b(?:in|for|of|at|to|about) ((?:[A-Z][\w-]+)(?: [A-Z][\w-]+)*)")
_NAMES = re.compile(r"(?<!^)(?<![.?!] )\b[A-Z][a-z]+\b")
_QUOTED = re.compile(r"[\"“`]([^\"”`]+)[\"”`]")


def call_tool(
    tools: Sequence[Mapping[str, Any]], question: str, chosen: str | None
) -> tuple[str, str] | None:
    """The tool to call and its arguments; None when no tool is meant."""
    functions = [tool.get("function", tool) for tool in tools]
    named = [function for function in functions if function.get("name") == chosen] if chosen else []
    matching = named or [function for function in functions if _is_meant(function, question)]
    if not matching:
        return None
    schema = matching[0].get("parameters") or {}
    return str(matching[0].get("name")), json.dumps(instance(schema, question))


def _is_meant(function: Mapping[str, Any], question: str) -> bool:
    """A word of its name or its description is in the question."""
    about = f"{function.get('name', '')} {function.get('description', '')}".lower()
    return bool(set(re.findall(r"[a-z]{4,}", about)) & set(re.findall(r"[a-z]{4,}", question.lower())))


def instance(schema: Mapping[str, Any], question: str, name: str = "", depth: int = 0) -> Any:
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if "const" in schema or depth > _MAX_DEPTH:
        return schema.get("const")
    if options := schema.get("enum"):
        return next((value for value in options if str(value).lower() in question.lower()), options[0])
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        required = schema.get("required") or list(properties)
        return {key: instance(properties.get(key) or {}, question, key, depth + 1) for key in required}
    if kind == "array":
        return [instance(schema.get("items") or {}, question, name, depth + 1)]
    if kind in ("integer", "number"):
        return _number(question, whole=kind == "integer")
    return True if kind == "boolean" else None if kind == "null" else _noun(question, name)


def _number(question: str, *, whole: bool) -> int | float:
    number = re.search(r"-?\d+(?:\.\d+)?", question)
    value = float(number[0]) if number else 1.0
    return int(value) if whole or value.is_integer() else value


def _noun(question: str, name: str) -> str:
    """A sum for an expression, else a quoted text, a place, the last name, or the whole question."""
    if re.search(r"expr|formula|calc", name, re.I) and (result := first_sum(question)):
        return result[0]
    if match := _QUOTED.search(question) or _PLACE.search(question):
        return match[1]
    names = _NAMES.findall(question)
    return names[-1] if names else question.strip()[:100]
