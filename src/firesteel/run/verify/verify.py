"""Verify a running server with questions that a broken engine answers wrongly.

HTTP 200 proves nothing: with a wrong kernel an engine answers fluently, in nonsense. So the server gets the
requests that users will send, and `checks` compares every answer with what the plan expects (`Expected`).
Every step yields its progress, then its results; the last item is the `Verification`.

    async for item in verify("http://127.0.0.1:8000", "smollm2", expected):
        ...  # str: progress; CheckResult: one result; Verification: all results, at the end
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from firesteel import engines
from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer
from firesteel.engines import prometheus
from firesteel.engines.prometheus import PrometheusSample
from firesteel.errors import FiresteelError
from firesteel.run.verify import checks, engine_checks, warm_up
from firesteel.run.verify.checks import Cause, CheckResult
from firesteel.run.verify.expected import Expected
from firesteel.run.verify.prompts import with_needle

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
_FEW = 4
_MANY_THOUGHTS = 2048
_BUSY = frozenset({429, 502, 503, 504})
"""Overloaded, or a proxy without an engine behind it: the model did not answer."""
_WORD = re.compile(r"\b[A-Za-z]{5,}")
_TEXT_S = 4
"""Seconds of decoding that give enough text to check."""
_USUAL_TOKENS_PER_S = 5.0
"""From this speed on the usual time limits are enough."""


@dataclass(frozen=True, slots=True)
class VerifyBudget:
    """Time limits for everything and for one answer. A model of 120 billion parameters needs a minute."""

    total_s: float = 120
    request_s: float = 90

    @classmethod
    def of(cls, expected: Expected) -> VerifyBudget:
        """Longer on a host that is planned to be slow."""
        planned = expected.plan.decode_tokens_per_s
        slowness = max(1.0, _USUAL_TOKENS_PER_S / max(planned.low, 0.01)) if planned else 1.0
        return cls(cls().total_s * slowness, cls().request_s * slowness)


@dataclass(frozen=True, slots=True)
class Verification:
    checks: tuple[CheckResult, ...]
    texts: tuple[Answer, ...] = ()
    """The longer streamed answers, which are also the first speed measurements."""

    @property
    def is_good(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if check.fails_launch)

    @property
    def is_unanswered(self) -> bool:
        """No answer was wrong, but some never came: this proves nothing."""
        return bool(self.failed) and all(check.cause == "silent" for check in self.failed)


@dataclass(slots=True)
class _Session:
    """The server under test and its answers so far."""

    url: str
    model: str
    expected: Expected
    key: str | None
    read_log: Callable[[], str] | None
    deadline: float
    request_s: float
    seed: int
    text_tokens: int = 128
    """`max_tokens` of the longer answers."""
    texts: list[Answer] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    metrics: tuple[PrometheusSample, ...] = ()
    log: str = ""

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def rate(self) -> float:
        """Decoded tokens per second: measured, else planned, else a guess."""
        planned = self.expected.plan.decode_tokens_per_s
        return engine_checks.fastest_decode(self.answers) or (planned.low if planned else 30.0)

    @property
    def thinks(self) -> bool:
        return self.expected.reasoning_parser is not None or any(answer.reasoning for answer in self.answers)

    async def ask(self, prompt: str, max_tokens: int, extra: dict[str, Any] | None = None) -> Answer:
        answer = await engine_client.chat(
            self.url, self.model, prompt, max_tokens=max_tokens, extra=extra, timeout_s=self._timeout_s,
            key=self.key,
        )  # fmt: skip
        self.answers.append(answer)
        return answer

    async def ask_whole(self, prompt: str, max_tokens: int) -> Answer:
        return await engine_client.chat(
            self.url, self.model, prompt,
            max_tokens=max_tokens, stream=False, timeout_s=self._timeout_s, key=self.key,
        )  # fmt: skip

    @property
    def _timeout_s(self) -> float:
        return max(1.0, min(self.request_s, self.left_s + 10))

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second of the first prompt, which no prefix cache can have held."""
        first = self.answers[0]
        return (first.prompt_tokens or 0) / first.first_token_s if first.first_token_s > 0 else None


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    progress: str
    run: Callable[[_Session], Awaitable[list[CheckResult]]]
    is_first: bool = False
    """If it cannot be carried out, the steps after it make no sense."""
    is_free: bool = False
    """It sends no prompt, so it runs even when the time is up."""


async def verify(
    url: str,
    model: str,
    expected: Expected | None = None,
    *,
    key: str | None = None,
    read_log: Callable[[], str] | None = None,
    budget: VerifyBudget | None = None,
) -> AsyncIterator[str | CheckResult | Verification]:
    """`read_log` returns the engine's log so far, where that is available."""
    expected = expected or Expected()
    budget = budget or VerifyBudget.of(expected)
    session = _Session(
        url, model, expected, key, read_log, time.monotonic() + budget.total_s, budget.request_s,
        random.SystemRandom().randrange(10**6, 10**9),
    )  # fmt: skip
    results: list[CheckResult] = []
    async for item in _run(session, _steps(session)):
        if isinstance(item, CheckResult):
            results.append(item)
        yield item
    yield Verification(tuple(results), tuple(session.texts))


async def _run(session: _Session, steps: list[_Step]) -> AsyncIterator[str | CheckResult]:
    for step in steps:
        if session.left_s <= 0 and not step.is_free:
            yield CheckResult(step.name, True, "skipped: the time limit was reached", "note")
            continue
        yield step.progress
        try:
            results = await step.run(session)
        except FiresteelError as error:
            yield CheckResult(step.name, False, error.what, cause=_cause(error))
            if step.is_first or not isinstance(error, engine_client.EngineRefused):
                return  # every further request would only wait for its timeout
            continue
        for result in results:
            yield result


def _cause(error: FiresteelError) -> Cause:
    if isinstance(error, engine_client.EngineRefused):
        return "silent" if error.status in _BUSY else "refused"
    # `engine_client` chains what went wrong: these three come from an answer that is not JSON as expected.
    cause = error.__cause__
    has_answered = cause is None or isinstance(cause, (ValueError, TypeError, AttributeError))
    return "wrong" if has_answered else "silent"


def _steps(session: _Session) -> list[_Step]:
    expected = session.expected
    steps = [
        _Step("speaks", "asking what 2+2 is", _sum, is_first=True),
        _Step("no garbage", "asking for a paragraph, with and without streaming", _text, is_first=True),
        _Step("stop", "asking for it with a stop sequence", _stop),
        _Step("max_tokens", f"asking for {_FEW} tokens of it", _few),
        _Step("usage", "counting its tokens", _usage),
    ]
    if expected.reasoning_parser:
        steps.append(_Step("reasoning split", "asking it to think", _think))
    else:
        steps.append(_Step("facts", "asking for facts", _facts))
    if expected.tool_parser:
        steps.append(_Step("tool call", "asking for a tool call", _tool))
    if expected.requests:
        steps.append(_Step("recipe's settings", "asking with the recipe's own settings", _settings))
    steps.append(_Step("long prompt", "asking for one fact in a long prompt", _needle))
    if session.key:
        steps.append(_Step("key", "asking without the key", _key, is_free=True))
    steps.append(_Step("engine", "reading the engine's log and metrics", _engine, is_free=True))
    return steps


async def _sum(session: _Session) -> list[CheckResult]:
    session.metrics = await _metrics(session)
    session.log = session.read_log() if session.read_log else ""
    answer = await session.ask(SUM_PROMPT, 256 if session.expected.reasoning_parser else 64)
    results = [checks.answered([answer])]
    if results[0].passed:
        results.append(checks.arithmetic(answer, session.expected.size))
    return results


async def _text(session: _Session) -> list[CheckResult]:
    """The same question with and without streaming: equal answers pass two checks at once."""
    tokens = session.text_tokens = min(128, max(64, round(_TEXT_S * session.rate)))
    streamed = await session.ask(TEXT_PROMPT, tokens)
    plain = await session.ask_whole(TEXT_PROMPT, tokens)
    again = None if checks.deterministic(streamed, plain).passed else await session.ask(TEXT_PROMPT, tokens)
    session.texts += [streamed, *([again] if again else [])]
    answered = checks.answered([streamed, plain, *session.texts[1:]], "speaks at length")
    return [
        *([] if answered.passed else [answered]),
        checks.no_garbage({TEXT_PROMPT: streamed, f"{TEXT_PROMPT} (plain)": plain}, is_prose=True),
        checks.deterministic(streamed, again or plain),
        checks.stream_matches_plain(streamed, plain, again),
    ]


async def _stop(session: _Session) -> list[CheckResult]:
    first = session.texts[0]
    if first.reasoning and not first.text.strip():
        observed = f"{first.completion_tokens} tokens of thoughts and no answer that could stop"
        return [CheckResult("stop", True, observed, "note")]
    stop = stop_word(first.text)
    if stop is None:
        return [CheckResult("stop", True, "the answer has no word to use as a stop sequence", "note")]
    answer = await session.ask(TEXT_PROMPT, session.text_tokens, {"stop": [stop]})
    return [checks.stop_sequence(answer, stop)]


def stop_word(text: str) -> str | None:
    """A word that first occurs about a quarter into the text, so that stopping there cuts much of it."""
    quarter = len(text) // 4
    words = (match[0] for match in _WORD.finditer(text, quarter))
    return next((word for word in words if text.find(word) >= quarter), None)


async def _few(session: _Session) -> list[CheckResult]:
    return [checks.max_tokens(await session.ask(TEXT_PROMPT, _FEW), _FEW)]


async def _usage(session: _Session) -> list[CheckResult]:
    answer = session.texts[0]
    counted = await engine_client.count_tokens(session.url, session.model, answer.full_text, key=session.key)
    return [checks.usage(answer, counted, session.text_tokens)]


async def _facts(session: _Session) -> list[CheckResult]:
    tokens = 160 if session.thinks else 24
    answers = {prompt: (await session.ask(prompt, tokens), right) for prompt, right in FACTS.items()}
    results = [checks.facts(answers, session.expected.size)]
    by_prompt = {prompt: answer for prompt, (answer, _) in answers.items()}
    garbage = checks.no_garbage(by_prompt, name="facts are text")
    return results if garbage.passed else [*results, garbage]


async def _think(session: _Session) -> list[CheckResult]:
    tokens = min(_MANY_THOUGHTS, max(384, round(40 * session.rate)))
    answer = await session.ask(THINK_PROMPT, tokens, dict(session.expected.thinking_request))
    results = [checks.reasoning_split(answer, tokens < _MANY_THOUGHTS)]
    if answer.text.strip():
        results.append(checks.facts({THINK_PROMPT: (answer, FACTS[THINK_PROMPT])}, session.expected.size))
    return results


async def _tool(session: _Session) -> list[CheckResult]:
    extra = {**session.expected.tool_requests, "tools": [WEATHER_TOOL], "tool_choice": "auto"}
    answer = await session.ask(TOOL_PROMPT, 512 if session.thinks else 128, extra)
    return [checks.tool_call(answer, session.expected.size)]


async def _settings(session: _Session) -> list[CheckResult]:
    settings = dict(session.expected.requests)
    answer = await session.ask(TEXT_PROMPT, session.text_tokens, settings)
    return [checks.request_settings(answer, settings)]


async def _needle(session: _Session) -> list[CheckResult]:
    """First a prompt of a few hundred tokens, whose speed tells how long a prompt there is time for."""
    limits = warm_up.WarmUpLimits.of(session.expected)
    planned = session.expected.plan.prefill_tokens_per_s
    limit_s = min(limits.prompt_s, 30.0 if planned else 10.0, max(0.0, session.left_s - 5))
    context = session.expected.context or 4 * warm_up.MIDDLE
    large = warm_up.prompt_sizes(context)[-1]
    first = min(large, warm_up.MIDDLE)
    if session.expected.is_cpu:
        first = max(128, warm_up.tokens_within(first, session.prefill_rate, limit_s))
    if planned and planned.low * limit_s >= large:
        first = large
    answer, needle = await _ask_with_needle(session, first)
    rate = (answer.prompt_tokens or first) / max(answer.first_token_s, 1e-3)
    more = warm_up.tokens_within(large, rate, limit_s)
    if more >= 2 * first:
        answer, needle = await _ask_with_needle(session, more)
    return [checks.long_prompt(answer, needle, session.expected.size)]


async def _ask_with_needle(session: _Session, tokens: int) -> tuple[Answer, str]:
    session.seed += 1
    needle = f"mango-{session.seed % 9000 + 1000}"
    per_word = await warm_up.tokens_per_word(session.url, session.model, session.key)
    prompt = with_needle(round(tokens / per_word), session.seed, needle)
    return await session.ask(prompt, 256 if session.thinks else 24), needle


async def _key(session: _Session) -> list[CheckResult]:
    status = await engine_client.status(f"{session.url}/v1/models", timeout_s=10)
    observed = f"without the key: {f'HTTP {status}' if status else 'no answer'}"
    return [CheckResult("key", status in (401, 403), observed, cause="wrong" if status else "silent")]


async def _engine(session: _Session) -> list[CheckResult]:
    now, log = await _metrics(session), session.read_log() if session.read_log else ""
    expected, engine = session.expected, session.expected.engine
    logged_tokens = engines.reported_memory(engine, log).kv_tokens if engine and log else None
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


async def _metrics(session: _Session) -> tuple[PrometheusSample, ...]:
    return tuple(prometheus.parse(await engine_client.metrics(session.url, key=session.key) or ""))
