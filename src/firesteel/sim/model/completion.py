"""A request -> the pieces that its answer will be made of, each with the channel that it goes out on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from firesteel.sim.model import answers, prose, schemas, tokenizer
from firesteel.sim.model.answers import SimReply

Channel = Literal["reasoning", "content", "call"]
Piece = tuple[Channel, str]
_FOREVER = 100_000
"""Tokens, of an answer that was told not to end and not how long to be."""


class BadRequest(Exception):
    """What the engine says with HTTP 400."""


@dataclass(frozen=True, slots=True)
class Completion:
    prompt: str
    pieces: tuple[Piece, ...]
    text: str
    finish: Literal["stop", "length", "tool_calls"]
    calls: tuple[tuple[str, str], ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return max(1, tokenizer.count(self.prompt))


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """What of an engine's launch decides how it answers."""

    thinks: bool
    calls_tools: bool
    context: int
    garbles: str | None = None
    """How: soup, loop or foreign; None: not at all."""


def chat(body: Mapping[str, Any], manner: AnswerStyle) -> Completion:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: Field required")
    said = [(str(each.get("role", "user")), _content(each)) for each in messages if isinstance(each, dict)]
    tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict)]
    prompt = "".join(f"<|{role}|>{text}<|end|>" for role, text in said) + "<|assistant|>"
    prompt += json.dumps(tools) if tools else ""
    role, question = said[-1] if said else ("user", "")
    before = "\n".join(text for _, text in said[:-1])
    if role == "tool":
        reply = SimReply(f"The tool says: {question}", "conversation")
    else:
        reply = _called(body, tools, question, manner) or _reply(body, question, before)
    thinks = manner.thinks and _thinking(body) and not manner.garbles
    return _cut(body, prompt, reply, question, manner, thinks)


def complete(body: Mapping[str, Any], manner: AnswerStyle, tokenizer: tokenizer.Tokenizer) -> Completion:
    given = body.get("prompt", "")
    if isinstance(given, list) and given and all(isinstance(each, int) for each in given):
        given = tokenizer.text(given)
    elif isinstance(given, list) and len(given) == 1:
        given = given[0]
    if not isinstance(given, str):
        raise BadRequest("prompt: the pretend engine takes one prompt at a time")
    reply = answers.reply(given)
    tail = given.rstrip()
    if not tail.endswith(("?", ".", "!")):
        value = reply.content.rstrip(".").rpartition(" is " if " is " in reply.content else "= ")[2]
        reply = SimReply(f" {value}." if len(value) < 40 else f" {reply.content}", reply.text)
    return _cut(body, given, reply, given, manner, thinks=False)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _thinking(body: Mapping[str, Any]) -> bool:
    told = body.get("chat_template_kwargs")
    return not (isinstance(told, dict) and False in (told.get("enable_thinking"), told.get("thinking")))


def _called(
    body: Mapping[str, Any], tools: list[dict[str, Any]], question: str, manner: AnswerStyle
) -> SimReply | None:
    choice = body.get("tool_choice", "auto" if tools else "none")
    if not tools or choice == "none":
        return None
    named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    if not manner.calls_tools and named is None:
        raise BadRequest(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    first = tools[0].get("function", tools[0]).get("name") if choice == "required" else None
    call = schemas.call_tool(tools, question, named) or schemas.call_tool(tools, question, first)
    return SimReply("", "structured", (call,)) if call else None


def _reply(body: Mapping[str, Any], question: str, before: str) -> SimReply:
    shape = body.get("response_format") or {}
    if isinstance(shape, dict) and shape.get("type") == "json_schema":
        schema = (shape.get("json_schema") or {}).get("schema") or {}
        return SimReply(json.dumps(schemas.instance(schema, question)), "structured")
    return answers.reply(
        question, before, wants_json=isinstance(shape, dict) and shape.get("type") == "json_object"
    )


def _cut(
    body: Mapping[str, Any], prompt: str, reply: SimReply, question: str, manner: AnswerStyle, thinks: bool
) -> Completion:
    """As long as the request lets it be."""
    room = manner.context - max(1, tokenizer.count(prompt))
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if room < 1 or (isinstance(limit, int) and limit > room):
        raise BadRequest(
            f"This model's maximum context length is {manner.context} tokens. However, you requested "
            f"{limit or 1} output tokens and your prompt contains {manner.context - room} input tokens."
        )
    most = min(limit if isinstance(limit, int) and limit > 0 else room, room)
    content = _ending(body, reply, question, most, manner)
    content, is_stopped = _stopped(content, body.get("stop"))
    pieces: list[Piece] = (
        [("reasoning", piece) for piece in tokenizer.pieces(prose.data()["thought"])] if thinks else []
    )
    pieces += [("content", piece) for piece in tokenizer.pieces(content)]
    for _, arguments in reply.calls:
        pieces += [("call", piece) for piece in tokenizer.pieces(arguments)]
    is_long = len(pieces) > most
    finish: Literal["stop", "length", "tool_calls"] = "tool_calls" if reply.calls else "stop"
    if is_long and not (is_stopped and len(pieces) <= most):
        finish = "length"
    return Completion(prompt, tuple(pieces[:most]), reply.text, finish, reply.calls)


def _ending(body: Mapping[str, Any], reply: SimReply, question: str, most: int, manner: AnswerStyle) -> str:
    content = reply.content
    if manner.garbles:
        return prose.garbage(manner.garbles, question, min(most, 400))
    least = body.get("min_tokens") if isinstance(body.get("min_tokens"), int) else 0
    wanted = min(most, _FOREVER) if body.get("ignore_eos") is True else min(most, int(least or 0))
    rounds = 0
    while wanted and tokenizer.count(content) < wanted + 1 and rounds < 1000:
        rounds += 1
        content += prose.more(question, reply.text, rounds)
    return content


def _stopped(content: str, stop: Any) -> tuple[str, bool]:
    words = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    found = [at for word in words if isinstance(word, str) and word and (at := content.find(word)) >= 0]
    return (content[: min(found)], True) if found else (content, False)
