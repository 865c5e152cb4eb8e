"""What a server is asked, by step: each step sends its requests and returns the results of its checks.

Plain questions come first, those of every start. Those about the API (conversations, parallel requests,
logprobs, JSON, tools, sampling) are right or wrong for a model of any size; what a server does not offer it
refuses, and that is not a failure. Pictures and sounds come in twos, so that one who looks at neither is
noticed. Embeddings and rerankers: a broken one returns numbers of the right shape, so their order is checked.
The checks of these last two stand next to their questions, and are pure.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import struct
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer
from firesteel.edge.http.engine_client import EngineRefused
from firesteel.engines import metrics
from firesteel.engines.engine import adapter_request
from firesteel.engines.logs import reported_memory
from firesteel.engines.metrics import PrometheusSample
from firesteel.run.verify import api_checks, checks, engine_checks
from firesteel.run.verify.checks import CheckResult, Level, matches
from firesteel.run.verify.garbage import quote
from firesteel.run.verify.languages import answer_pattern, is_foreign_language
from firesteel.run.verify.session import (
    MIDDLE,
    VerifySession,
    WarmUpLimits,
    needle_question,
    prompt_sizes,
    tokens_per_word,
    tokens_within,
    with_needles,
)
from firesteel.shipped_data import DATA
from firesteel.values import replace

SUM_PROMPT = "What is 2+2?"
TEXT_PROMPT = "Explain what a computer is."
TOOL_PROMPT = "What is the weather in Paris right now? Use the tool."
THINK_PROMPT = "What is 12*17?"
FACTS = {
    "What is 12*17?": r"(?<!\d)204(?!\d)",
    "What is the opposite of hot?": answer_pattern("cold"),
    "What colour is the sky on a clear day?": answer_pattern("blue"),
}
"""In whatever language the model answers."""
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}
FEW_TOKENS = 4
_MANY_THOUGHTS = 2048
_WORD = re.compile(r"\b[A-Za-z]{5,}")
_TEXT_S = 4
"""Seconds of decoding that give enough text to check."""
_CONTEXT_SHARE = 0.95
"""Of the context, for the prompt: its tokens are known to a few in a hundred."""
_PLACES = ("lighthouse", "windmill", "old bridge")


async def two_and_two(session: VerifySession) -> list[CheckResult]:
    session.metrics = await _metrics(session)
    session.log = session.read_log() if session.read_log else ""
    answer = await session.ask(SUM_PROMPT, 256 if session.expected.reasoning_parser else 64)
    session.firsts[SUM_PROMPT] = [answer]
    results = [checks.answered([answer])]
    if results[0].passed:
        results.append(checks.arithmetic(answer, session.expected.size))
    return results


async def text(session: VerifySession) -> list[CheckResult]:
    """The same question with and without streaming: equal answers pass two checks at once."""
    slowest = 64 if session.rate > 4 else 24  # at a token a second, 64 of them would take two minutes
    tokens = session.text_tokens = min(128, max(slowest, round(_TEXT_S * session.rate)))
    streamed = await session.ask(TEXT_PROMPT, tokens)
    plain = await session.ask(TEXT_PROMPT, tokens, stream=False)
    again = None
    second, later = plain, tuple[Answer, ...]()
    if not checks.has_same_text(streamed, plain):
        second = await session.ask(TEXT_PROMPT, tokens)
        again = second, await session.ask(TEXT_PROMPT, tokens, stream=False)
        later = plain, again[1]
    session.texts += [streamed, *(again[:1] if again else ())]
    session.firsts[TEXT_PROMPT] = [streamed, plain, *(again or ())]
    if is_foreign_language(streamed.full_text):
        session.script = "any"
    answered = checks.answered([streamed, plain, *(again or ())], "speaks at length")
    by_prompt = {TEXT_PROMPT: streamed, f"{TEXT_PROMPT} (plain)": plain}
    return [
        *([] if answered.passed else [answered]),
        checks.no_garbage(by_prompt, is_prose=True),
        checks.deterministic(streamed, second, later, TEXT_PROMPT),
        checks.stream_matches_plain(streamed, plain, again),
    ]


async def stop(session: VerifySession) -> list[CheckResult]:
    first = session.texts[0]
    if first.reasoning and not first.text.strip():
        observed = f"{first.completion_tokens} tokens of thoughts and no answer that could stop"
        return [CheckResult("stop", True, observed, "note")]
    word = stop_word(first.text)
    if word is None:
        return [CheckResult("stop", True, "the answer has no word to use as a stop sequence", "note")]

    async def stopped() -> list[Answer]:
        return [
            await session.ask(TEXT_PROMPT, session.text_tokens, {"stop": [word]}, stream=is_streamed)
            for is_streamed in (True, False)
        ]

    answers = await stopped()
    results = [checks.stop_sequence(answer, word, session.firsts[TEXT_PROMPT]) for answer in answers]
    result = next((result for result in results if not result.passed), results[0])
    return [result, *await repeated(session, "same twice", [TEXT_PROMPT] * 2, answers, stopped)]


def stop_word(text: str) -> str | None:
    """A word that first occurs about an eighth into the text, so that stopping there cuts much of it."""
    eighth = len(text) // 8
    words = (match[0] for match in _WORD.finditer(text, eighth))
    return next((word for word in words if text.find(word) >= eighth), None)


async def few_tokens(session: VerifySession) -> list[CheckResult]:
    async def few() -> list[Answer]:
        return [await session.ask(TEXT_PROMPT, FEW_TOKENS)]

    answers = await few()
    result = checks.max_tokens(answers[0], FEW_TOKENS)
    return [result, *await repeated(session, "same twice", [TEXT_PROMPT], answers, few)]


async def repeated(
    session: VerifySession,
    name: str,
    prompts: Sequence[str],
    answers: Sequence[Answer],
    ask: Callable[[], Awaitable[Sequence[Answer]]],
) -> list[CheckResult]:
    """Compares answers with the first ones to their prompts. Asks once more where one differs: only then is
    there anything to report."""
    found = checks.differences(list(zip(prompts, answers, strict=True)), session.firsts)
    if all(one.is_late for one in found.values()):
        return [CheckResult(name, True, one.observed, "note") for one in [*found.values()][:1]]
    once_more = checks.differences(list(zip(prompts, await ask(), strict=True)), session.firsts)
    return [checks.same_again(name, prompts, found, once_more)]


async def usage(session: VerifySession) -> list[CheckResult]:
    """Of the long answers, with and without streaming."""
    long = [e for e in session.exchanges if e.prompt == TEXT_PROMPT and e.max_tokens == session.text_tokens]
    asked_plainly = {
        prompt: [e.answer for e in session.exchanges if e.prompt == prompt and e.is_alone]
        for prompt in (SUM_PROMPT, TEXT_PROMPT)
    }
    found = api_checks.counts(session.answers) or api_checks.prompt_counts(asked_plainly, session.api_level)
    results = [found] if found else []
    for exchange in long[:2]:
        counted = await session.count_tokens(exchange.answer.full_text)
        results.append(checks.usage(exchange.answer, counted, exchange.max_tokens))
    counted = await session.count_tokens(SUM_PROMPT)
    added = api_checks.prompt_overhead(session.answers[0], SUM_PROMPT, counted)
    bad = next((result for result in results if not result.passed), None)
    return [bad or added or max(results, key=lambda result: result.level == "gate")]


async def facts(session: VerifySession) -> list[CheckResult]:
    if session.thinks:
        return await thoughts(session)
    answers = {prompt: (await session.ask(prompt, 24), right) for prompt, right in FACTS.items()}
    results = [checks.facts(answers, session.expected.size)]
    by_prompt = {prompt: answer for prompt, (answer, _) in answers.items()}
    session.firsts |= {prompt: [answer] for prompt, answer in by_prompt.items()}
    garbage = checks.no_garbage(by_prompt, name="facts are text", script=session.script)
    return results if garbage.passed else [*results, garbage]


async def thoughts(session: VerifySession) -> list[CheckResult]:
    tokens = min(_MANY_THOUGHTS, max(384, round(40 * session.rate)))
    answer = await session.ask(THINK_PROMPT, tokens, dict(session.expected.thinking_request))
    results = [checks.reasoning_split(answer, tokens < _MANY_THOUGHTS)]
    if answer.text.strip():
        results.append(checks.facts({THINK_PROMPT: (answer, FACTS[THINK_PROMPT])}, session.expected.size))
    return results


async def tool_call(session: VerifySession) -> list[CheckResult]:
    extra = {**session.expected.tool_requests, "tools": [WEATHER_TOOL], "tool_choice": "auto"}
    answer = await session.ask(TOOL_PROMPT, 512 if session.thinks else 128, extra)
    return [checks.tool_call(answer, session.expected.size)]


async def recipe_settings(session: VerifySession) -> list[CheckResult]:
    settings = dict(session.expected.requests)
    answer = await session.ask(TEXT_PROMPT, session.text_tokens, settings)
    return [checks.request_settings(answer, settings)]


async def long_prompt(session: VerifySession) -> list[CheckResult]:
    """First a prompt of a few hundred tokens, whose speed tells how long a prompt there is time for."""
    limits = WarmUpLimits.of(session.expected)
    planned = session.expected.plan.prefill_tokens_per_s
    limit_s = min(limits.prompt_s, 30.0 if planned else 10.0, max(0.0, session.left_s - 5))
    context = session.expected.context or 4 * MIDDLE
    large = prompt_sizes(context)[-1]
    first = min(large, MIDDLE)
    if session.expected.is_cpu:
        first = max(160, tokens_within(first, session.prefill_rate, limit_s))
    if planned and planned.low * limit_s >= large:
        first = large
    answer, results = await _needle(session, first)
    rate = (answer.prompt_tokens or first) / max(answer.first_token_s, 1e-3)
    more = tokens_within(large, rate, limit_s)
    if more >= 2 * first and all(result.passed or result.level == "note" for result in results):
        answer, results = await _needle(session, more)
    return results


async def _needle(
    session: VerifySession,
    tokens: int,
    place: str = _PLACES[0],
    *,
    is_new: bool = True,
    patience: float = 1,
) -> tuple[Answer, list[CheckResult]]:
    """Passwords at the head, in the middle and at the end of a long text; a question about one of them. The
    head is what a server loses that reads only the last part of a prompt."""
    session.seed += is_new
    needles = {
        place: f"mango-{(session.seed + 7 * index) % 9000 + 1000}" for index, place in enumerate(_PLACES)
    }
    per_word = await tokens_per_word(session.count_tokens)
    text = with_needles(round(tokens / per_word), session.seed, needles)
    session.long_text = text
    prompt = text + needle_question(place)
    answer = await session.ask(prompt, 256 if session.thinks else 24, patience=patience)
    counted, short = await session.count_tokens(prompt), await session.count_tokens(SUM_PROMPT)
    grown = counted - short if counted is not None and short is not None else None
    first = session.answers[0]
    read = api_checks.prompt_growth("long prompt", first, answer, grown, session.api_level, len(prompt))
    found = checks.long_prompt(answer, needles[place], session.expected.size, needles.values())
    return answer, [found] if read.passed else [read]


async def whole_context(session: VerifySession) -> list[CheckResult]:
    """Three questions about a prompt that fills the context, as far as it can be read in time."""
    answer = max(session.answers, key=lambda one: one.prompt_tokens or 0)
    rate = (answer.prompt_tokens or 1) / max(answer.first_token_s, 1e-3)
    room = (session.expected.context or 4 * MIDDLE) - 2 * (256 if session.thinks else 64)
    tokens = tokens_within(round(room * _CONTEXT_SHARE), rate, session.left_s / 4)
    patience = 1 + 3 * tokens / max(rate, 1) / session.request_s
    results = []
    for place in _PLACES:
        _, found = await _needle(session, tokens, place, is_new=place == _PLACES[0], patience=patience)
        results += found
    results = [replace(result, name="whole context") for result in results]
    observed = f"{len(results)} of {len(results)} found, {results[0].observed}"
    bad = [result for result in results if not result.passed]
    return bad or [replace(results[0], observed=observed)]


async def key(session: VerifySession) -> list[CheckResult]:
    status = await engine_client.status(f"{session.url}/v1/models", timeout_s=10)
    observed = f"without the key: {f'HTTP {status}' if status else 'no answer'}"
    return [CheckResult("key", status in (401, 403), observed, cause="wrong" if status else "silent")]


async def engine_reports(session: VerifySession) -> list[CheckResult]:
    now, log = await _metrics(session), session.read_log() if session.read_log else ""
    expected, engine = session.expected, session.expected.engine
    logged_tokens = reported_memory(engine, log).kv_tokens if engine and log else None
    results = [
        engine_checks.kv_cache(expected, now, logged_tokens),
        engine_checks.speculation(expected, session.metrics, now, session.answers),
        engine_checks.speculation_speedup(expected, engine_checks.fastest_decode(session.texts)),
        engine_checks.nan_logits(session.metrics, now),
        engine_checks.late_compilations(session.log, log),
        engine_checks.speed(expected, session.texts),
    ]
    kernels = engine_checks.kernels(expected, log) if log else []
    return [*kernels, *(result for result in results if result)]


async def _metrics(session: VerifySession) -> tuple[PrometheusSample, ...]:
    return tuple(metrics.parse(await engine_client.metrics(session.url, key=session.key) or ""))


# --- about the API: the answers are judged by `api_checks` ---

EXACT = {"text": "7 lamps & 18  naïve <café> in 東京 🚀"}
"""Words, digits, accents, characters of two, three and four bytes; two spaces and what HTML would escape."""
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
_SOME, _USUAL_USERS = 4, 8
"""Requests at once; users of a server of which nothing is planned."""
LONG_TOKENS = 512
LONG_PROMPTS = ("Explain in detail how a ship is built.", "Describe a day in the life of a farmer.")


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
    return await _at_once(session, (SUM_PROMPT, TEXT_PROMPT), _PARALLEL_TOKENS)


async def several_at_once(session: VerifySession) -> list[CheckResult]:
    """What has been asked alone before, so that the first questions are asked again late."""
    prompts = (SUM_PROMPT, TEXT_PROMPT, *FACTS)
    known = [prompt for prompt in prompts if prompt in session.firsts]
    asked = [known[at % len(known)] for at in range(max(_SOME, len(known)))]
    return await _at_once(session, asked, _PARALLEL_TOKENS)


async def all_users(session: VerifySession) -> list[CheckResult]:
    """As many as are planned, each with an answer of hundreds of tokens, which was asked alone before."""
    alone = {prompt: await session.ask(prompt, LONG_TOKENS) for prompt in LONG_PROMPTS}
    garbage = checks.long_answers(alone, session.expected.size, session.script)
    session.firsts |= {prompt: [answer] for prompt, answer in alone.items()}
    users = session.expected.users or _USUAL_USERS
    prompts = [LONG_PROMPTS[at % len(LONG_PROMPTS)] for at in range(users)]
    return [garbage, *await _at_once(session, prompts, LONG_TOKENS, "all users")]


async def _at_once(
    session: VerifySession, prompts: Sequence[str], tokens: int, name: str = "parallel requests"
) -> list[CheckResult]:
    async def together() -> list[Answer]:
        asked = (session.ask(prompt, tokens, patience=len(prompts)) for prompt in prompts)
        return await asyncio.gather(*asked)

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
    results = []
    for is_streamed in (False, True):
        answer = await _ask_for_json(session, is_streamed)
        if isinstance(answer, str):
            return [_not_offered("JSON", answer)]
        results.append(api_checks.exact_json(answer, EXACT, session.api_level))
    return [next((result for result in results if not result.passed), results[0])]


async def json_at_start(session: VerifySession) -> list[CheckResult]:
    """Once, and only as a note: a model without a working grammar is still worth serving."""
    try:
        answer = await _ask_for_json(session, True)
    except EngineRefused as error:
        return [CheckResult("JSON", False, error.what, "note", "refused")]
    if isinstance(answer, str):
        return [_not_offered("JSON", answer)]
    return [api_checks.exact_json(answer, EXACT, "note")]


async def _ask_for_json(session: VerifySession, is_streamed: bool) -> Answer | str:
    schema = {"name": "answer", "schema": _SCHEMA, "strict": True}
    extra = {"response_format": {"type": "json_schema", "json_schema": schema}}
    tokens = 512 if session.thinks else 64
    return await _ask_if_offered(session, f"Repeat: {EXACT['text']}", tokens, extra, stream=is_streamed)


async def prompt_parts(session: VerifySession) -> list[CheckResult]:
    """Whether the system prompt and foreign letters reach the model: its engine counts what it reads."""
    asked = {"role": "user", "content": SUM_PROMPT}
    chats = [{"messages": [{"role": "system", "content": role}, asked]} for role in _ROLES]
    short = await _ask_if_offered(session, SUM_PROMPT, 1, chats[0])
    long = await _ask_if_offered(session, SUM_PROMPT, _OTHERS_TOKENS, chats[1], stream=True)
    if isinstance(long, str) or isinstance(short, str):
        results = [_not_offered("system prompt", str(long))]
    else:
        grown = await _difference(session, *_ROLES)
        chars = len(_ROLES[1]) - len(_ROLES[0])
        level = session.api_level
        results = [api_checks.prompt_growth("system prompt", short, long, grown, level, chars)]
        as_user = await session.ask(_ROLES[1], _OTHERS_TOKENS)
        if results[0].passed and (found := api_checks.system_obeyed(long, as_user, session.answers[0])):
            results = [found]
    foreign = await session.ask(_FOREIGN, 1)
    grown = await _difference(session, SUM_PROMPT, _FOREIGN)
    first = session.answers[0]
    return [*results, api_checks.prompt_growth("Unicode", first, foreign, grown, session.api_level)]


async def _difference(session: VerifySession, short: str, long: str) -> int | None:
    counted = [await session.count_tokens(text) for text in (short, long)]
    return counted[1] - counted[0] if counted[0] is not None and counted[1] is not None else None


async def samples(session: VerifySession) -> list[CheckResult]:
    """Two samples, and the second once more with its seed; then two after a long prompt."""
    name, seed = "samples differ", session.seed
    found = await _samples(session, _SAMPLE_PROMPT)
    if isinstance(found, str):
        return [_not_offered(name, found)]
    results = [api_checks.samples_differ(found)]
    if results[0].passed and results[0].level == "gate":
        again = [await _sample(session, _SAMPLE_PROMPT, seed + 1)]
        if api_checks.seed_kept(found[1], again):
            again.append(await _sample(session, _SAMPLE_PROMPT, seed + 1))
        results += filter(None, [api_checks.seed_kept(found[1], again)])
        if session.long_text:
            long = await _samples(session, f"{session.long_text}\n\n{_SAMPLE_PROMPT}")
            if not isinstance(long, str):
                found_long = api_checks.samples_differ(long, "long samples differ")
                results.append(replace(found_long, level="note"))
    return results


async def _samples(session: VerifySession, prompt: str) -> list[Answer] | str:
    """Two samples; more only if they are equal, the last of which shows how sure the model is."""
    found: list[Answer] = []
    scored = {"logprobs": True, "top_logprobs": 1}
    for number in range(4):
        extra = {"temperature": 1.5, "seed": session.seed + number, **(scored if number == 3 else {})}
        answer = await _ask_if_offered(session, prompt, _OTHERS_TOKENS, extra, stream=number < 3)
        if isinstance(answer, str):
            return found or answer
        found.append(answer)
        if len({sample.full_text.strip() for sample in found}) > 1:
            break
    return found


async def _sample(session: VerifySession, prompt: str, seed: int) -> Answer:
    return await session.ask(prompt, _OTHERS_TOKENS, {"temperature": 1.5, "seed": seed})


async def demanded_tool_call(session: VerifySession) -> list[CheckResult]:
    """A call that the request demands, with and without streaming. Only a server that says that it can call
    tools fails by not calling one."""
    extra = {"tools": [WEATHER_TOOL], "tool_choice": "required"}
    tokens = 512 if session.thinks else 128
    results: list[CheckResult] = []
    called: list[Answer] = []
    for is_streamed in (False, True):
        answer = await _ask_if_offered(session, TOOL_PROMPT, tokens, extra, stream=is_streamed)
        if isinstance(answer, str):
            return [_not_offered("tool call", answer)]
        called += [answer] if answer.tool_calls else []
        if not answer.tool_calls and not session.expected.tool_parser:
            observed = f"a call was demanded, and there is none: {quote(answer.full_text)}"
            return [CheckResult("tool call", False, observed, "note")]
        results.append(checks.tool_call(answer, session.expected.size, must_call=True))
    bad = next((result for result in results if not result.passed), None)
    if called and (bad is None or bad.level == "note"):
        return [bad or results[0], await _tool_result(session, called[0])]
    return [bad or results[0]]


async def _tool_result(session: VerifySession, called: Answer) -> CheckResult:
    """The call's result as the next turn."""
    call, name = called.tool_calls[0], "tool result"
    function = {"name": call.name, "arguments": call.arguments}
    made = {"id": call.id or "call_1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": TOOL_PROMPT},
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": made["id"], "content": "18 degrees, light rain"},
    ]
    extra = {"messages": messages, "tools": [WEATHER_TOOL]}
    try:
        answer = await session.ask(TOOL_PROMPT, 128 if session.thinks else _OTHERS_TOKENS, extra)
    except EngineRefused as error:
        level: Level = "gate" if error.status >= 500 and session.expected.tool_parser else "note"
        return CheckResult(name, False, error.what, level, "refused")
    return checks.tool_result(answer)


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
    base, results = await _ask_adapter(session, None), []
    for index, name in enumerate(session.expected.adapters):
        adapted, again = await _ask_adapter(session, index), await _ask_adapter(session, None)
        results.append(api_checks.adapter(name, base, adapted, again))
        session.firsts |= {_adapter_prompt(session, None): [base], _adapter_prompt(session, index): [adapted]}
    return results


async def adapters_at_once(session: VerifySession) -> list[CheckResult]:
    """All of them and the base model in one batch, each of which was asked alone before."""
    indices = (None, *range(len(session.expected.adapters)))

    async def together() -> list[Answer]:
        return await asyncio.gather(*(_ask_adapter(session, index) for index in indices))

    name, prompts = "adapters at once", [_adapter_prompt(session, index) for index in indices]
    differs = await repeated(session, name, prompts, await together(), together)
    return differs or [CheckResult(name, True, f"{len(prompts)} at once, each with its own answer")]


def _adapter_prompt(session: VerifySession, index: int | None) -> str:
    return f"{TEXT_PROMPT} ({'the base model' if index is None else session.expected.adapters[index]})"


async def _ask_adapter(session: VerifySession, index: int | None) -> Answer:
    names = session.expected.adapters
    extra: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
    if session.expected.engine == "llamacpp":
        extra |= adapter_request(len(names), index)
    elif index is not None:
        extra["model"] = names[index]
    return await session.ask(TEXT_PROMPT, _LOGPROB_TOKENS, extra)


# --- pictures and sounds ---

# A picture is one colour, made here. A sound is one word, `data/verify/WORD.wav`: spoken by espeak-ng 1.51
# (`espeak-ng -v en-us -s 130`), 8,000 samples a second, silence cut off. Both are as small as they can be: a
# tower must have run for the answer to be right, and nothing else.
COLOURS = {"red": (220, 20, 20), "blue": (20, 20, 220)}
WORDS = {"seven": r"\bseven\b|\b7\b", "banana": r"\bbanana\b"}
_PICTURE_SIDE = 224
"""Pixels. Towers of 14 and of 16 pixels a patch divide it."""
_MEDIA_TOKENS, _MANY_MEDIA_TOKENS = 24, 512
_IMAGE_QUESTION = "What colour is this picture? Answer with one word."
_SOUND_QUESTION = "Which English word is spoken here? Answer with that word."


def png(colour: tuple[int, int, int], side: int = _PICTURE_SIDE) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(colour) * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


async def images(session: VerifySession) -> list[CheckResult]:
    def part(name: str) -> dict[str, Any]:
        url = f"data:image/png;base64,{base64.b64encode(png(COLOURS[name])).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}

    patterns = {name: rf"\b{name}\b" for name in COLOURS}
    return [await _seen(session, "image", _IMAGE_QUESTION, {name: part(name) for name in patterns}, patterns)]


async def sounds(session: VerifySession) -> list[CheckResult]:
    def part(name: str) -> dict[str, Any]:
        data = base64.b64encode((DATA / "verify" / f"{name}.wav").read_bytes()).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}

    return [await _seen(session, "sound", _SOUND_QUESTION, {name: part(name) for name in WORDS}, WORDS)]


async def _seen(
    session: VerifySession,
    check: str,
    question: str,
    parts: Mapping[str, dict[str, Any]],
    patterns: Mapping[str, str],
) -> CheckResult:
    tokens = _MANY_MEDIA_TOKENS if session.thinks else _MEDIA_TOKENS
    try:
        alone = await session.ask(question, 1)
        answers = {}
        for name, part in parts.items():
            message = {"role": "user", "content": [{"type": "text", "text": question}, part]}
            answers[name] = await session.ask(question, tokens, {"messages": [message]}, stream=False)
    except EngineRefused as error:
        return CheckResult(
            check, False, f"refused, though its model takes one: {error.what}", cause="refused"
        )
    return perceived(
        check, alone, answers, patterns, "note" if session.expected.size in ("tiny", "small") else "gate"
    )


def perceived(
    check: str, alone: Answer, answers: Mapping[str, Answer], patterns: Mapping[str, str], level: Level
) -> CheckResult:
    """`alone`: the question without a picture or sound. Being ignored is a fault of the engine whatever the
    model's size; a wrong word may be a small model's."""
    for answer in answers.values():
        if alone.prompt_tokens and answer.prompt_tokens and answer.prompt_tokens <= alone.prompt_tokens:
            what = f"{answer.prompt_tokens} tokens in the prompt with it, {alone.prompt_tokens} without"
            return CheckResult(check, False, f"ignored: {what}")
    shown = ", ".join(f"{name}: {quote(answer.full_text, 30)}" for name, answer in answers.items())
    texts = {re.sub(r"\W+", " ", answer.text).strip().lower() for answer in answers.values()}
    if len(texts) == 1 and texts != {""}:
        return CheckResult(check, False, f"ignored: the same answer to two of them: {shown}")
    wrong = [name for name, answer in answers.items() if not matches(answer, patterns[name])]
    return CheckResult(check, not wrong, shown, level)


# --- embeddings and rerankers ---

PAIRS = (
    ("The cat sleeps on the warm sofa.", "A kitten is napping on the couch."),
    ("The bank raised its interest rates again.", "Borrowing money has become more expensive."),
    ("Heavy rain flooded the streets of the town.", "After the storm the roads were under water."),
)
QUERY = "How do I make bread rise?"
DOCUMENTS = (
    "The parliament will vote on the new budget on Thursday.",
    "Yeast turns sugar into gas, which makes the dough of a bread rise before it is baked.",
    "The telescope was launched in December and took its first picture in July.",
)
_RIGHT_DOCUMENT = 1
LONG_TEXT = " ".join(sentence for pair in PAIRS for sentence in pair)
_EQUAL_COSINE = 0.999
_FEW_VALUES = 256
"""Of eight bits. Numbers of half the size have thousands."""
_SAME_NORM, _CUT_NORM = 1.002, 0.3
_VECTORS_TIMEOUT_S = 60.0

Vector = Sequence[float]


def cosine(one: Vector, other: Vector) -> float:
    norms = math.sqrt(sum(x * x for x in one)) * math.sqrt(sum(y * y for y in other))
    return sum(x * y for x, y in zip(one, other, strict=True)) / norms if norms else 0.0


def embedded(vectors: Sequence[Vector], alone: Vector, count: int, dimension: int | None) -> CheckResult:
    """`alone`: the first text once more, by itself. `dimension`: as the model's config has it, if known."""
    name = "embeddings"
    sizes = sorted({len(vector) for vector in (*vectors, alone)})
    if len(vectors) != count:
        return CheckResult(name, False, f"{count} texts were sent, {len(vectors)} vectors came back")
    if len(sizes) != 1 or not sizes[0]:
        return CheckResult(name, False, f"the vectors have {' and '.join(map(str, sizes))} numbers")
    if dimension and sizes[0] != dimension:
        return CheckResult(name, False, f"{sizes[0]} numbers a text, the model has {dimension}")
    if dimension is None and sizes[0] % 8:
        return CheckResult(name, False, f"{sizes[0]} numbers a text, as no model has; cut?", "note")
    if not all(math.isfinite(x) for vector in (*vectors, alone) for x in vector):
        return CheckResult(name, False, "a vector has numbers that are not finite (NaN)")
    if any(not any(vector) for vector in vectors):
        return CheckResult(name, False, "a vector is all zeros")
    near = [cosine(vectors[0], vector) for vector in vectors[1:]]
    if min(near) > _EQUAL_COSINE:
        return CheckResult(name, False, f"all texts have one vector (cosine {min(near):.4f})")
    if len({x for vector in vectors for x in vector}) <= _FEW_VALUES < sizes[0] * len(vectors) / 4:
        values = len({x for vector in vectors for x in vector})
        return CheckResult(
            name, False, f"{sizes[0] * len(vectors):,} numbers have only {values} values", "note"
        )
    if cosine(vectors[0], alone) < _EQUAL_COSINE:
        same = cosine(vectors[0], alone)
        return CheckResult(name, False, f"a text has another vector in a batch than alone: cosine {same:.3f}")
    return CheckResult(name, True, f"{len(vectors)} vectors of {sizes[0]} numbers, alone as in a batch")


def norms(vectors: Sequence[Vector], texts: Sequence[str]) -> CheckResult | None:
    """Lengths of vectors. They are 1, or each has its own; what follows the length of the text, or falls a
    little short of 1, was not made by a model."""
    found = [math.sqrt(sum(x * x for x in vector)) for vector in vectors]
    low, high = min(found), max(found)
    shown = f"{low:.3g} to {high:.3g}"
    by_length = [norm for _, norm in sorted(zip(map(len, texts), found, strict=True))]
    if high > low * _SAME_NORM and by_length == sorted(by_length):
        return CheckResult("norms", False, f"vectors are the longer, the longer the text is: {shown}", "note")
    if high > low * _SAME_NORM and low > _CUT_NORM and high < 1:
        return CheckResult("norms", False, f"vectors are a little shorter than 1: {shown}; cut?", "note")
    return None


def in_order(vectors: Sequence[Vector]) -> CheckResult:
    """Each text is nearest to the one that says the same in other words: texts come in pairs."""
    wrong = []
    for index, vector in enumerate(vectors):
        others = {at: cosine(vector, other) for at, other in enumerate(vectors) if at != index}
        if max(others, key=lambda at: others[at]) != index ^ 1:
            wrong.append(index)
    observed = f"{len(vectors) - len(wrong)} of {len(vectors)} texts are nearest to their like"
    return CheckResult("similarity", len(wrong) <= 1, observed)


def reranked(scores: Sequence[float | None]) -> CheckResult:
    """By document, in the order that they were sent; None: it has no score."""
    name = "rerank"
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return CheckResult(name, False, f"{len(known)} of {len(scores)} documents have a score")
    if not all(math.isfinite(score) for score in known):
        return CheckResult(name, False, "a score is not finite (NaN)")
    shown = ", ".join(f"{score:.3g}" for score in known)
    if len(set(known)) == 1:
        return CheckResult(name, False, f"all documents have one score: {shown}")
    return CheckResult(
        name, max(known) == known[_RIGHT_DOCUMENT], f"scores {shown}; the right document is the second"
    )


async def embeddings(session: VerifySession) -> list[CheckResult]:
    texts = [text for pair in PAIRS for text in pair]

    async def asked(some: list[str]) -> list[list[float]]:
        return await engine_client.embeddings(
            session.url,
            session.model,
            some,
            timeout_s=min(_VECTORS_TIMEOUT_S, session.request_s),
            key=session.key,
        )

    sent = [*texts, LONG_TEXT]
    vectors = await asked(sent)
    alone = (await asked(texts[:1]) or [[]])[0]
    size = session.expected.embedding_size
    found = embedded(vectors, alone, len(sent), size)
    if not found.passed:
        return [found]
    odd = norms(vectors, sent)
    return [found, *([odd] if odd else []), in_order(vectors[: len(texts)])]


async def rerank(session: VerifySession) -> list[CheckResult]:
    scores = await engine_client.rerank(
        session.url, session.model, QUERY, list(DOCUMENTS), timeout_s=_VECTORS_TIMEOUT_S, key=session.key
    )
    return [reranked(scores)]
