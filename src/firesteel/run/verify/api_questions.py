"""Questions about the API, by step: conversations, parallel requests, logprobs, JSON, tools, sampling.

Their answers are right or wrong for a model of any size, see `api_checks`. What a server does not offer it
refuses, and that is no failure.
"""

from __future__ import annotations

import asyncio
from typing import Any

from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer
from firesteel.engines.engine import adapter_request
from firesteel.run.verify import api_checks, checks
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.questions import (
    FACTS,
    FEW_TOKENS,
    SUM_PROMPT,
    TEXT_PROMPT,
    TOOL_PROMPT,
    WEATHER_TOOL,
    repeated,
)
from firesteel.run.verify.session import VerifySession

EXACT = {"text": "7 lamps, 18 naïve café in 東京"}
"""Words, digits, accents and characters of several bytes."""
_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "enum": [EXACT["text"]]}},
    "required": ["text"],
    "additionalProperties": False,
}
_ROLES = (
    "You are a poet.",
    "You are an old sailor who has seen many harbours and tells about all of them. You answer in one short "
    "sentence, you never use a number, and you always end with a word about the wind, the waves or a star.",
)
_FOREIGN = "Ist das naïve Café in 東京都 oder in Москва? Ελληνικά: καλημέρα, 日本語: 今日は晴れ、明日は雨。"
_SAMPLE_PROMPT = "Tell me something."
_OTHERS_TOKENS = 16
_LOGPROB_TOKENS = 24
_PARALLEL_TOKENS = 32
"""Enough words to tell text from garbage."""


async def conversation(session: VerifySession) -> list[CheckResult]:
    """The long answer and another question as the next turn. The engine has read most of it already."""
    first = session.texts[0]
    if not first.text.strip():
        return [CheckResult("conversation", True, "thoughts only, and no answer to give back", "note")]
    messages = [
        {"role": "user", "content": TEXT_PROMPT},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": SUM_PROMPT},
    ]
    answer = await session.ask(SUM_PROMPT, _OTHERS_TOKENS, {"messages": messages})
    counted = await session.count_tokens(TEXT_PROMPT + first.text)
    return [api_checks.conversation(session.answers[0], first, answer, counted, session.api_level)]


async def parallel(session: VerifySession) -> list[CheckResult]:
    prompts = (SUM_PROMPT, TEXT_PROMPT)

    async def together() -> list[Answer]:
        return await asyncio.gather(*(session.ask(prompt, _PARALLEL_TOKENS) for prompt in prompts))

    name = "parallel requests"
    differs = await repeated(session, name, prompts, await together(), together)
    return differs or [CheckResult(name, True, f"{len(prompts)} at once, each with its own answer")]


async def logprobs(session: VerifySession) -> list[CheckResult]:
    extra = {"logprobs": True, "top_logprobs": 1}

    async def scored() -> list[Answer]:
        return [await session.ask(TEXT_PROMPT, _LOGPROB_TOKENS, extra, stream=False)]

    answer = await _ask_if_offered(session, TEXT_PROMPT, _LOGPROB_TOKENS, extra)
    if isinstance(answer, str):
        return [_not_offered("logprobs", answer)]
    few = next(e.answer for e in session.exchanges if e.max_tokens == FEW_TOKENS)
    length = api_checks.length(few, FEW_TOKENS, answer, _LOGPROB_TOKENS, session.firsts[TEXT_PROMPT])
    return [
        api_checks.logprobs(answer, session.api_level),
        *([length] if length else []),
        *await repeated(session, "same twice", [TEXT_PROMPT], [answer], scored),
    ]


async def exact_json(session: VerifySession) -> list[CheckResult]:
    """A schema that allows one text: whatever the model would say, it can only say that."""
    schema = {"name": "answer", "schema": _SCHEMA, "strict": True}
    extra = {"response_format": {"type": "json_schema", "json_schema": schema}}
    prompt, tokens = f"Repeat: {EXACT['text']}", 512 if session.thinks else 64
    results = []
    for is_streamed in (False, True):
        answer = await _ask_if_offered(session, prompt, tokens, extra, stream=is_streamed)
        if isinstance(answer, str):
            return [_not_offered("JSON", answer)]
        results.append(api_checks.exact_json(answer, EXACT, session.api_level))
    return [next((result for result in results if not result.passed), results[0])]


async def prompt_parts(session: VerifySession) -> list[CheckResult]:
    """Whether the system prompt and foreign letters reach the model: its engine counts what it reads."""
    asked = {"role": "user", "content": SUM_PROMPT}
    chats = [{"messages": [{"role": "system", "content": role}, asked]} for role in _ROLES]
    short, long = [await _ask_if_offered(session, SUM_PROMPT, 1, chat) for chat in chats]
    if isinstance(long, str) or isinstance(short, str):
        results = [_not_offered("system prompt", str(long))]
    else:
        grown = await _difference(session, *_ROLES)
        chars = len(_ROLES[1]) - len(_ROLES[0])
        level = session.api_level
        results = [api_checks.prompt_growth("system prompt", short, long, grown, level, chars)]
    foreign = await session.ask(_FOREIGN, 1)
    grown = await _difference(session, SUM_PROMPT, _FOREIGN)
    first = session.answers[0]
    return [*results, api_checks.prompt_growth("Unicode", first, foreign, grown, session.api_level)]


async def _difference(session: VerifySession, short: str, long: str) -> int | None:
    counted = [await session.count_tokens(text) for text in (short, long)]
    return counted[1] - counted[0] if counted[0] is not None and counted[1] is not None else None


async def samples(session: VerifySession) -> list[CheckResult]:
    """Two samples; a third only if they are equal."""
    found: list[Answer] = []
    for number in range(3):
        extra = {"temperature": 1.5, "seed": session.seed + number}
        answer = await _ask_if_offered(session, _SAMPLE_PROMPT, _OTHERS_TOKENS, extra, stream=True)
        if isinstance(answer, str):
            return [_not_offered("samples differ", answer)]
        found.append(answer)
        if len(found) > 1 and api_checks.samples_differ(found).passed:
            break
    return [api_checks.samples_differ(found)]


async def demanded_tool_call(session: VerifySession) -> list[CheckResult]:
    """A call that the request demands, with and without streaming. Only a server that says that it can call
    tools fails by not calling one."""
    extra = {"tools": [WEATHER_TOOL], "tool_choice": "required"}
    tokens = 512 if session.thinks else 128
    results: list[CheckResult] = []
    for is_streamed in (False, True):
        answer = await _ask_if_offered(session, TOOL_PROMPT, tokens, extra, stream=is_streamed)
        if isinstance(answer, str):
            return [_not_offered("tool call", answer)]
        if not answer.tool_calls and not session.expected.tool_parser:
            return [CheckResult("tool call", True, "the server does not say that it calls tools", "note")]
        results.append(checks.tool_call(answer, session.expected.size, must_call=True))
    return [next((result for result in results if not result.passed), results[0])]


async def all_answers(session: VerifySession) -> list[CheckResult]:
    """What all answers so far have in common."""
    plain = {SUM_PROMPT, TEXT_PROMPT, *FACTS, _SAMPLE_PROMPT}
    by_prompt = {e.prompt: e.answer for e in reversed(session.exchanges) if e.prompt in plain}
    return [
        api_checks.thoughts_apart(by_prompt),
        api_checks.answers_differ(by_prompt),
        api_checks.protocol(
            [(e.answer, e.max_tokens) for e in session.exchanges], await _names(session), session.api_level
        ),
    ]


async def _names(session: VerifySession) -> set[str]:
    """What the model may be called: its aliases too, where an answer has another name."""
    names = {session.model, *session.expected.adapters}
    seen = {answer.model or session.model for answer in session.answers}
    if all(api_checks.is_same_model(name, session.model) for name in seen):
        return names
    rows = await engine_client.offered_models(session.url, key=session.key)
    for row in rows:
        if row.get("id") == session.model:
            aliases = row.get("aliases")
            names |= {str(row.get("root") or session.model)}
            names |= set(map(str, aliases)) if isinstance(aliases, list) else set()
    return names


async def _ask_if_offered(
    session: VerifySession, prompt: str, max_tokens: int, extra: dict[str, Any], *, stream: bool = False
) -> Answer | str:
    """The answer, or the words with which the server refused the request."""
    try:
        return await session.ask(prompt, max_tokens, extra, stream=stream)
    except engine_client.EngineRefused as error:
        if error.status not in (400, 404, 422, 501):
            raise
        return error.what


def _not_offered(name: str, words: str) -> CheckResult:
    return CheckResult(name, True, f"not offered: {words}", "note")


async def adapters(session: VerifySession) -> list[CheckResult]:
    """Each adapter between two questions to the base model, which it must not change."""
    names, results = session.expected.adapters, []

    async def asked(index: int | None) -> Answer:
        extra: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
        if session.expected.engine == "llamacpp":
            extra |= adapter_request(len(names), index)
        elif index is not None:
            extra["model"] = names[index]
        return await session.ask(TEXT_PROMPT, _LOGPROB_TOKENS, extra)

    base = await asked(None)
    for index, name in enumerate(names):
        results.append(api_checks.adapter(name, base, await asked(index), await asked(None)))
    return results
