"""Proof that what came up is right: questions whose answers a broken engine gets wrong.

HTTP 200 proves nothing; a wrong kernel answers fast and fluently in nonsense. So the server is asked, as
users will ask it, and `judge` says of each answer whether it is right, at the level that this launch
promised (`Expect`). Each step says what it does, then its checks; the last thing is the `Proof`.

    async for each in verify("http://127.0.0.1:8000", "smollm2", expect):
        ...  # str: what is happening; Check: one result; Proof: all of them, and the end
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
from firesteel.engines import introspection
from firesteel.engines.introspection import PrometheusSample
from firesteel.errors import FiresteelError
from firesteel.run.verify import checks, engine_checks, warm_up
from firesteel.run.verify.checks import Cause, CheckResult
from firesteel.run.verify.expected import Expected
from firesteel.run.verify.prompts import TOKENS_PER_WORD, filler, with_needle

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
"""Too many ask, or nobody is behind the door: no word from the model."""
_WORD = re.compile(r"\b[A-Za-z]{5,}")
_TEXT_S = 4
"""So long an answer is enough to be judged."""


@dataclass(frozen=True, slots=True)
class VerifyBudget:
    """How long the whole may take, and one answer. A model of 120 billion parameters needs a minute."""

    total_s: float = 120
    request_s: float = 90


@dataclass(frozen=True, slots=True)
class Verification:
    checks: tuple[CheckResult, ...]
    texts: tuple[Answer, ...] = ()
    """Streamed answers of some length: the first speed measurements."""

    @property
    def is_good(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if check.fails_launch)

    @property
    def is_unanswered(self) -> bool:
        """It proves nothing: no answer was wrong, there was none."""
        return bool(self.failed) and all(check.cause == "silent" for check in self.failed)


@dataclass(slots=True)
class _Talk:
    """One server, and what it has said so far."""

    url: str
    model: str
    expect: Expected
    key: str | None
    read_log: Callable[[], str] | None
    deadline: float
    request_s: float
    seed: int
    text_tokens: int = 128
    """Of the answer that is read closely."""
    texts: list[Answer] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    metrics: tuple[PrometheusSample, ...] = ()
    log: str = ""

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def rate(self) -> float:
        """Tokens a second that it decodes, as far as is known by now."""
        planned = self.expect.decode_tokens_per_s
        return engine_checks.fastest_decode(self.answers) or (planned.low if planned else 30.0)

    @property
    def thinks(self) -> bool:
        return self.expect.reasoning_parser is not None or any(each.reasoning for each in self.answers)

    async def ask(self, prompt: str, max_tokens: int, extra: dict[str, Any] | None = None) -> Answer:
        answer = await engine_client.chat(
            self.url, self.model, prompt, max_tokens=max_tokens, extra=extra, timeout_s=self._timeout_s,
            key=self.key,
        )  # fmt: skip
        self.answers.append(answer)
        return answer

    async def ask_whole(self, prompt: str, max_tokens: int) -> Answer:
        return await engine_client.chat_whole(
            self.url, self.model, prompt, max_tokens=max_tokens, timeout_s=self._timeout_s, key=self.key
        )

    @property
    def _timeout_s(self) -> float:
        return max(1.0, min(self.request_s, self.left_s + 10))

    @property
    def prefill_rate(self) -> float | None:
        """Tokens a second that it reads, by the prompt that it can have had in no cache: the first."""
        first = self.answers[0]
        return (first.prompt_tokens or 0) / first.first_token_s if first.first_token_s > 0 else None


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    words: str
    take: Callable[[_Talk], Awaitable[list[CheckResult]]]
    is_first: bool = False
    """Nothing after it makes sense when it cannot be asked."""
    is_free: bool = False
    """It asks the model nothing, so it is taken however late it is."""


async def verify(
    url: str,
    model: str,
    expect: Expected | None = None,
    *,
    key: str | None = None,
    read_log: Callable[[], str] | None = None,
    budget: VerifyBudget | None = None,
) -> AsyncIterator[str | CheckResult | Verification]:
    """`read_log`: the engine's log so far, where it is at hand."""
    budget, expect = budget or VerifyBudget(), expect or Expected()
    talk = _Talk(
        url, model, expect, key, read_log, time.monotonic() + budget.total_s, budget.request_s,
        random.SystemRandom().randrange(10**6, 10**9),
    )  # fmt: skip
    checks: list[CheckResult] = []
    async for each in _walk(talk, _steps(talk)):
        if isinstance(each, CheckResult):
            checks.append(each)
        yield each
    yield Verification(tuple(checks), tuple(talk.texts))


async def _walk(talk: _Talk, steps: list[_Step]) -> AsyncIterator[str | CheckResult]:
    for step in steps:
        if talk.left_s <= 0 and not step.is_free:
            yield CheckResult(step.name, True, "not asked: the time for it was over", "note")
            continue
        yield step.words
        try:
            found = await step.take(talk)
        except FiresteelError as error:
            yield CheckResult(step.name, False, error.what, cause=_cause(error))
            if step.is_first or not isinstance(error, engine_client.EngineRefused):
                return  # whoever asks a server on that does not answer only waits
            continue
        for check in found:
            yield check


def _cause(error: FiresteelError) -> Cause:
    if isinstance(error, engine_client.EngineRefused):
        return "silent" if error.status in _BUSY else "refused"
    # `http` keeps what broke as the cause; an answer that is no JSON is one of the last three.
    broke = error.__cause__
    is_answer = broke is None or isinstance(broke, (ValueError, TypeError, AttributeError))
    return "wrong" if is_answer else "silent"


def _steps(talk: _Talk) -> list[_Step]:
    expect = talk.expect
    steps = [
        _Step("speaks", "asking what 2+2 is", _sum, is_first=True),
        _Step("no garbage", "asking for a paragraph, as a stream and at once", _text, is_first=True),
        _Step("stop", "asking for it with a word to stop at", _stop),
        _Step("max_tokens", f"asking for {_FEW} tokens of it", _few),
        _Step("usage", "counting its tokens", _usage),
    ]
    if expect.reasoning_parser:
        steps.append(_Step("reasoning split", "asking it to think", _think))
    else:
        steps.append(_Step("facts", "asking for facts", _facts))
    if expect.tool_parser:
        steps.append(_Step("tool call", "asking for a tool call", _tool))
    if expect.requests:
        steps.append(_Step("recipe's settings", "asking with the recipe's own settings", _settings))
    steps.append(_Step("long prompt", "asking for one fact in a long prompt", _needle))
    if talk.key:
        steps.append(_Step("key", "asking without the key", _key, is_free=True))
    steps.append(_Step("engine", "reading what the engine tells of itself", _engine, is_free=True))
    return steps


async def _sum(talk: _Talk) -> list[CheckResult]:
    talk.metrics = await _metrics(talk)
    talk.log = talk.read_log() if talk.read_log else ""
    answer = await talk.ask(SUM_PROMPT, 256 if talk.expect.reasoning_parser else 64)
    found = [checks.answered([answer])]
    if found[0].passed:
        found.append(checks.arithmetic(answer, talk.expect.size))
    return found


async def _text(talk: _Talk) -> list[CheckResult]:
    """A stream and a plain answer to the same question: equal, they prove two things at once."""
    tokens = talk.text_tokens = min(128, max(64, round(_TEXT_S * talk.rate)))
    streamed = await talk.ask(TEXT_PROMPT, tokens)
    plain = await talk.ask_whole(TEXT_PROMPT, tokens)
    differ = (
        checks.common_prefix_chars(streamed.said, plain.said) < checks.MIN_EQUAL_CHARS
        and streamed.said != plain.said
    )
    again = await talk.ask(TEXT_PROMPT, tokens) if differ else None
    talk.texts += [streamed, *([again] if again else [])]
    spoken = checks.answered([streamed, plain, *talk.texts[1:]], "speaks at length")
    return [
        *([] if spoken.passed else [spoken]),
        checks.no_garbage({TEXT_PROMPT: streamed, f"{TEXT_PROMPT} (plain)": plain}, is_prose=True),
        checks.deterministic(streamed, again or plain),
        checks.stream_matches_plain(streamed, plain, again),
    ]


async def _stop(talk: _Talk) -> list[CheckResult]:
    first = talk.texts[0]
    if first.reasoning and not first.text.strip():
        saw = f"{first.completion_tokens} tokens of thoughts, and no answer in which to stop"
        return [CheckResult("stop", True, saw, "note")]
    stop = stop_word(first.text)
    if stop is None:
        return [CheckResult("stop", True, "the answer has no word to stop at", "note")]
    answer = await talk.ask(TEXT_PROMPT, talk.text_tokens, {"stop": [stop]})
    return [checks.stop_sequence(answer, stop)]


def stop_word(text: str) -> str | None:
    """A word that comes first about a quarter in: far enough to be reached, near enough to cut much."""
    for found in _WORD.finditer(text, len(text) // 4):
        if text.find(found[0]) >= len(text) // 4:
            return found[0]
    return None


async def _few(talk: _Talk) -> list[CheckResult]:
    return [checks.max_tokens(await talk.ask(TEXT_PROMPT, _FEW), _FEW)]


async def _usage(talk: _Talk) -> list[CheckResult]:
    answer = talk.texts[0]
    counted = await engine_client.count_tokens(talk.url, talk.model, answer.said, key=talk.key)
    return [checks.usage(answer, counted, talk.text_tokens)]


async def _facts(talk: _Talk) -> list[CheckResult]:
    tokens = 160 if talk.thinks else 24
    answers = {asked: (await talk.ask(asked, tokens), known) for asked, known in FACTS.items()}
    plain = {asked: answer for asked, (answer, _) in answers.items()}
    found = [checks.facts(answers, talk.expect.size)]
    garbage = checks.no_garbage(plain, name="facts are text")
    return found if garbage.passed else [*found, garbage]


async def _think(talk: _Talk) -> list[CheckResult]:
    tokens = min(_MANY_THOUGHTS, max(384, round(40 * talk.rate)))
    answer = await talk.ask(THINK_PROMPT, tokens, dict(talk.expect.thinking_request))
    found = [checks.reasoning_split(answer, tokens < _MANY_THOUGHTS)]
    if answer.text.strip():
        found.append(checks.facts({THINK_PROMPT: (answer, FACTS[THINK_PROMPT])}, talk.expect.size))
    return found


async def _tool(talk: _Talk) -> list[CheckResult]:
    extra = {**talk.expect.tool_requests, "tools": [WEATHER_TOOL], "tool_choice": "auto"}
    answer = await talk.ask(TOOL_PROMPT, 512 if talk.thinks else 128, extra)
    return [checks.tool_call(answer, talk.expect.size)]


async def _settings(talk: _Talk) -> list[CheckResult]:
    settings = dict(talk.expect.requests)
    answer = await talk.ask(TEXT_PROMPT, talk.text_tokens, settings)
    return [checks.request_settings(answer, settings)]


async def _needle(talk: _Talk) -> list[CheckResult]:
    """A prompt of some hundred tokens first, which tells how many more there is time for."""
    limits = warm_up.WarmUpLimits.of(talk.expect)
    planned = talk.expect.prefill_tokens_per_s
    limit_s = min(limits.prompt_s, 30.0 if planned else 10.0, max(0.0, talk.left_s - 5))
    context = talk.expect.context or 4 * warm_up.MIDDLE
    large = warm_up.prompt_sizes(context)[-1]
    first = min(large, warm_up.MIDDLE)
    if talk.expect.is_cpu:
        first = max(128, warm_up.tokens_within(first, talk.prefill_rate, limit_s))
    if planned and planned.low * limit_s >= large:
        first = large
    answer, needle = await _hide(talk, first)
    rate = (answer.prompt_tokens or first) / max(answer.first_token_s, 1e-3)
    more = warm_up.tokens_within(large, rate, limit_s)
    if more >= 2 * first:
        answer, needle = await _hide(talk, more)
    return [checks.long_prompt(answer, needle, talk.expect.size)]


async def _hide(talk: _Talk, tokens: int) -> tuple[Answer, str]:
    talk.seed += 1
    needle = f"mango-{talk.seed % 9000 + 1000}"
    sample = filler(200, talk.seed)
    counted = await engine_client.count_tokens(talk.url, talk.model, sample, key=talk.key)
    per_word = counted / len(sample.split()) if counted else TOKENS_PER_WORD
    prompt = with_needle(round(tokens / per_word), talk.seed, needle)
    return await talk.ask(prompt, 256 if talk.thinks else 24), needle


async def _key(talk: _Talk) -> list[CheckResult]:
    status = await engine_client.status(f"{talk.url}/v1/models", timeout_s=10)
    saw = f"without the key: {f'HTTP {status}' if status else 'no answer'}"
    return [CheckResult("key", status in (401, 403), saw, cause="wrong" if status else "silent")]


async def _engine(talk: _Talk) -> list[CheckResult]:
    now, log = await _metrics(talk), talk.read_log() if talk.read_log else ""
    expect, engine = talk.expect, talk.expect.engine
    told = engines.reported_memory(engine, log).kv_tokens if engine and log else None
    found = [
        engine_checks.kv_cache(expect, now, told),
        engine_checks.speculation(expect, talk.metrics, now, talk.answers),
        engine_checks.speculation_speedup(expect, engine_checks.fastest_decode(talk.texts)),
        engine_checks.nan_logits(talk.metrics, now),
        engine_checks.late_compilations(talk.log, log),
        engine_checks.speed(expect, talk.texts),
    ]
    path = engine_checks.kernels(expect, log) if log else []
    return [*path, *(check for check in found if check)]


async def _metrics(talk: _Talk) -> tuple[PrometheusSample, ...]:
    return introspection.read_metrics(await engine_client.metrics(talk.url, key=talk.key) or "")
