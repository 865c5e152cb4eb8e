"""What a server is asked, by step: each step sends its requests and returns the results of its checks.

These are the questions of every start. `api_questions` has those about the API.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer
from firesteel.engines import metrics
from firesteel.engines.logs import reported_memory
from firesteel.engines.metrics import PrometheusSample
from firesteel.run.verify import api_checks, checks, engine_checks, repeats, warm_up
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.prompts import needle_question, with_needles
from firesteel.run.verify.session import VerifySession

SUM_PROMPT = "What is 2+2?"
TEXT_PROMPT = "Explain what a computer is."
TOOL_PROMPT = "What is the weather in Paris right now? Use the tool."
THINK_PROMPT = "What is 12*17?"
FACTS = {
    "What is 12*17?": r"\b204\b",
    "What is the opposite of hot?": r"\bcold\b",
    "What colour is the sky on a clear day?": r"\bblue\b",
}
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
    if not checks.has_same_text(streamed, plain):
        second = await session.ask(TEXT_PROMPT, tokens)
        again = second, await session.ask(TEXT_PROMPT, tokens, stream=False)
    session.texts += [streamed, *(again[:1] if again else ())]
    session.firsts[TEXT_PROMPT] = [streamed, plain, *(again or ())]
    answered = checks.answered([streamed, plain, *(again or ())], "speaks at length")
    by_prompt = {TEXT_PROMPT: streamed, f"{TEXT_PROMPT} (plain)": plain}
    return [
        *([] if answered.passed else [answered]),
        checks.no_garbage(by_prompt, is_prose=True),
        checks.deterministic(streamed, *((again[0], (plain, again[1])) if again else (plain,))),
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
    found = repeats.differences(list(zip(prompts, answers, strict=True)), session.firsts)
    if not found:
        return []
    once_more = repeats.differences(list(zip(prompts, await ask(), strict=True)), session.firsts)
    return [repeats.same_again(name, prompts, found, once_more)]


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
    added = api_checks.prompt_overhead(session.answers[0], await session.count_tokens(SUM_PROMPT))
    bad = next((result for result in results if not result.passed), None)
    return [bad or added or max(results, key=lambda result: result.level == "gate")]


async def facts(session: VerifySession) -> list[CheckResult]:
    if session.thinks:
        return await thoughts(session)
    answers = {prompt: (await session.ask(prompt, 24), right) for prompt, right in FACTS.items()}
    results = [checks.facts(answers, session.expected.size)]
    by_prompt = {prompt: answer for prompt, (answer, _) in answers.items()}
    garbage = checks.no_garbage(by_prompt, name="facts are text")
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
    limits = warm_up.WarmUpLimits.of(session.expected)
    planned = session.expected.plan.prefill_tokens_per_s
    limit_s = min(limits.prompt_s, 30.0 if planned else 10.0, max(0.0, session.left_s - 5))
    context = session.expected.context or 4 * warm_up.MIDDLE
    large = warm_up.prompt_sizes(context)[-1]
    first = min(large, warm_up.MIDDLE)
    if session.expected.is_cpu:
        first = max(160, warm_up.tokens_within(first, session.prefill_rate, limit_s))
    if planned and planned.low * limit_s >= large:
        first = large
    answer, results = await _needle(session, first)
    rate = (answer.prompt_tokens or first) / max(answer.first_token_s, 1e-3)
    more = warm_up.tokens_within(large, rate, limit_s)
    if more >= 2 * first and all(result.passed or result.level == "note" for result in results):
        answer, results = await _needle(session, more)
    return results


async def _needle(session: VerifySession, tokens: int) -> tuple[Answer, list[CheckResult]]:
    """Passwords at the head, in the middle and at the end of a long text; a question about one of them."""
    session.seed += 1
    needles = {
        place: f"mango-{(session.seed + 7 * index) % 9000 + 1000}" for index, place in enumerate(_PLACES)
    }
    per_word = await warm_up.tokens_per_word(session.count_tokens)
    text = with_needles(round(tokens / per_word), session.seed, needles)
    # The head is what a server loses that reads only the last part of a prompt.
    place = _PLACES[0]
    prompt = text + needle_question(place)
    answer = await session.ask(prompt, 256 if session.thinks else 24)
    counted, short = await session.count_tokens(prompt), await session.count_tokens(SUM_PROMPT)
    grown = counted - short if counted is not None and short is not None else None
    first = session.answers[0]
    read = api_checks.prompt_growth("long prompt", first, answer, grown, session.api_level, len(prompt))
    found = checks.long_prompt(answer, needles[place], session.expected.size, needles.values())
    return answer, [found] if read.passed else [read]


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
