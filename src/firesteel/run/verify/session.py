"""A server under test: what it was asked, what it answered, how long it may take; and its warm-up.

The warm-up sends the first request of every prompt size, which pays for lazy initialization, before users do.
On a GPU those are compiled kernels and tuned plans, and every prompt size has its own: after a warm-up with
short prompts only, the first prompt of 20,000 tokens stalls, or its answer is garbage. So prompts of several
sizes are sent, the largest of about 26,000 tokens where the context allows, and each size is repeated until
it gets no faster. Every prompt is a new text, generated from a seed, because engines cache prefixes.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer
from firesteel.engines.metrics import PrometheusSample
from firesteel.errors import FiresteelError
from firesteel.planner.propose import MeasuredCalls
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.service import ServiceSpec
from firesteel.run.verify import engine_checks
from firesteel.run.verify.checks import Level
from firesteel.run.verify.expected import Expected
from firesteel.run.verify.garbage import Script
from firesteel.units import show_seconds
from firesteel.values import Value, replace

_IDLE_S = 30
"""Seconds between two tokens after which a stream has stalled."""
_MIN_RATE = 0.2
"""Tokens per second of the slowest server whose plain answers are waited for."""
_SPARE_LIMIT = 8
"""Tokens over `max_tokens`, and a quarter of it: a server that writes more may know another name for it."""


class AskedQuestion(Value):
    prompt: str
    max_tokens: int
    answer: Answer
    is_alone: bool = True
    """The prompt was all that was sent: no system prompt, no earlier turns, no tools."""


class VerifySession(Struct):
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
    texts: list[Answer] = []
    exchanges: list[AskedQuestion] = []
    firsts: dict[str, list[Answer]] = {}
    """The first answers to the prompts that are asked again, by prompt."""
    metrics: tuple[PrometheusSample, ...] = ()
    log: str = ""
    has_tokenizer: bool = True
    """Until it did not answer once: SGLang 0.5.16 logs a traceback each time it cannot."""
    limit_name: str = "max_tokens"
    has_tried_limit: bool = False
    """Whether `max_completion_tokens` was tried: some servers know only that."""
    script: Script = "latin"
    """Of the answers: of questions in English, unless the first long one was in another language."""
    long_text: str = ""
    """The last long prompt, without its question."""
    calls: MeasuredCalls | None = None
    """Tool calls, as far as they were measured."""

    @property
    def answers(self) -> list[Answer]:
        return [exchange.answer for exchange in self.exchanges]

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

    @property
    def api_level(self) -> Level:
        """The engines that we know must do what their API promises; of another server it is only noted."""
        return "gate" if self.expected.engine else "note"

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second of the first prompt, which no prefix cache can have held."""
        first = self.answers[0]
        return (first.prompt_tokens or 0) / first.first_token_s if first.first_token_s > 0 else None

    async def ask(
        self,
        prompt: str,
        max_tokens: int,
        extra: Mapping[str, Any] | None = None,
        *,
        stream: bool = True,
        patience: float = 1,
    ) -> Answer:
        """`extra` may replace anything in the request, also `messages`. `patience`: times the usual limit,
        for a request that may have to wait for others, or is long itself."""
        timeout_s = max(1.0, min(self.request_s * patience, self.left_s + 10))
        if not stream:  # nothing comes before all has been decoded
            timeout_s += max_tokens / max(self.rate, _MIN_RATE)

        async def asked() -> Answer:
            return await engine_client.chat(
                self.url, self.model, prompt, max_tokens=max_tokens, stream=stream, extra=extra,
                timeout_s=timeout_s, idle_s=min(_IDLE_S, self.request_s), key=self.key,
                limit_name=self.limit_name,
            )  # fmt: skip

        answer = await self._limited(asked, max_tokens)
        is_alone = not {"messages", "tools"} & (extra or {}).keys()
        self.exchanges.append(AskedQuestion(prompt, max_tokens, answer, is_alone))
        return answer

    async def _limited(self, ask: Callable[[], Awaitable[Answer]], max_tokens: int) -> Answer:
        """The answer. The other name of the limit is tried once: when the first request is refused, or the
        limit is far exceeded."""
        answer, refusal = None, None
        try:
            answer = await ask()
        except engine_client.EngineRefused as error:
            names_limit = "max_tokens" in error.what or not self.exchanges
            if self.has_tried_limit or error.status not in (400, 422) or not names_limit:
                raise
            refusal = error
        if answer and (
            self.has_tried_limit
            or (answer.completion_tokens or 0) <= max_tokens + max(_SPARE_LIMIT, max_tokens // 4)
        ):
            return answer
        self.has_tried_limit, self.limit_name = True, "max_completion_tokens"
        try:
            other = await ask()
        except engine_client.EngineRefused:
            other = None
        if other and (answer is None or (other.completion_tokens or 0) <= max_tokens):
            return other
        self.limit_name = "max_tokens"
        if answer is None:
            raise refusal or AssertionError("there was an answer or a refusal")
        return answer

    async def count_tokens(self, text: str) -> int | None:
        if not self.has_tokenizer:
            return None
        counted = await engine_client.count_tokens(self.url, self.model, text, key=self.key)
        self.has_tokenizer = counted is not None
        return counted


# --- long prompts that no prefix cache has seen: each begins differently from all before it ---

_WHO = (
    "the keeper",
    "a sailor",
    "the baker",
    "an old teacher",
    "the gardener",
    "a young doctor",
    "a painter",
)
_DID = ("found", "carried", "sold", "mended", "counted", "painted", "washed", "lost", "borrowed", "weighed")
_WHAT = ("a lamp", "the rope", "two letters", "an apple", "the wheel", "a map", "some bread", "a blue coat")
_WHERE = ("by the river", "in the market", "near the harbour", "under the bridge", "on the hill")
_WHEN = ("in the morning", "after the rain", "before noon", "last winter", "on a Monday", "at dusk")
TOKENS_PER_WORD = 1.3
"""An estimate for engines that do not offer their tokenizer."""


def filler(words: int, seed: int) -> str:
    """Text of at least that many words, in whole sentences; another seed gives another first word."""
    rng = random.Random(seed)
    sentences, count = [f"Note {seed}."], 2
    while count < words:
        sentence = " ".join(rng.choice(parts) for parts in (_WHO, _DID, _WHAT, _WHERE, _WHEN))
        sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")
        count += sentence.count(" ") + 1
    return " ".join(sentences)


def with_needles(words: int, seed: int, needles: Mapping[str, str]) -> str:
    """A long text with the password of each place, spread from its head to its end."""
    sentences = filler(words, seed).split(". ")
    last = max(1, len(needles) - 1)
    for number, (place, needle) in enumerate(needles.items()):
        at = 1 + round(number / last * (len(sentences) - 2))
        sentences.insert(at, f"The password of the {place} is {needle}")
    return ". ".join(sentences)


def needle_question(place: str) -> str:
    return f"\n\nWhat is the password of the {place}? Answer with the password only."


# --- warm-up ---

SMALL, MIDDLE, LARGE = 32, 512, 26_000
"""Tokens. Seen 2026-11-15: warming with about 26,000 real tokens cured a stall and garbage at 20,000
(https://github.com/jschmied/dgx-spark-setup-guide)."""
MAX_ROUNDS = 4
SETTLED_RATIO, SETTLED_SLACK_S = 1.3, 0.1
"""A repetition that is not faster by more than this shows that the one before had no first-time cost."""
_TIMEOUT_FACTOR = 3
"""Times the expected time for reading a prompt, before it is given up."""
_WARM_UP_TOKENS = 8
_TEMPLATE_TOKENS = 64
"""What a chat template adds to a prompt, before the engine has counted it."""
_ORDINALS = ("first", "second", "third", "fourth")


class WarmUpLimits(Value):
    """Time limits. They are short on a CPU, where engines compile nothing."""

    prompt_s: float
    total_s: float
    rounds: int = MAX_ROUNDS
    compile_s: float = 180
    """What the first prompt of a size may take in addition to being read; after that the engine hangs."""

    @classmethod
    def of(cls, expected: Expected) -> WarmUpLimits:
        return cls(0.75, 4, 2, 40) if expected.is_cpu else cls(60, 420)

    def wait_s(self, tokens: int, rates: HostRates) -> float:
        """Timeout for the answer to a prompt, at the speed of this host."""
        reading_s = (tokens + _TEMPLATE_TOKENS) / rates.prefill if rates.prefill else 0.0
        writing_s = _WARM_UP_TOKENS / rates.decode if rates.decode else 0.0
        return self.compile_s + _TIMEOUT_FACTOR * (reading_s + writing_s)


class HostRates(Value):
    """Tokens per second, planned at the least or measured; None: not known."""

    prefill: float | None = None
    decode: float | None = None

    @classmethod
    def of(cls, expected: Expected) -> HostRates:
        """On a CPU a prompt may be read no faster than an answer is written; it is never read slower."""
        prefill, decode = expected.plan.prefill_tokens_per_s, expected.plan.decode_tokens_per_s
        read, written = prefill.low if prefill else None, decode.low if decode else None
        if expected.is_cpu and written:
            read = min(read or written, written)
        return cls(read, written)


def prompt_sizes(context: int | None) -> tuple[int, ...]:
    """Prompt sizes in tokens: at most three quarters of the context, which leaves space for an answer."""
    largest = min(LARGE, (context or 4 * MIDDLE) * 3 // 4)
    return (
        *(
            size
            for size in (  # --- warm-up ---
                SMALL,
                MIDDLE,
            )
            if size * 2 <= largest
        ),
        largest,
    )


def tokens_within(tokens: int, tokens_per_s: float | None, limit_s: float) -> int:
    """As many of the tokens as can be read within the limit; all of them if no speed is known."""
    return tokens if tokens_per_s is None else min(tokens, int(tokens_per_s * limit_s))


def has_settled(ttfts_s: list[float]) -> bool:
    """Whether the last request was not faster than the one before, which then had no first-time cost."""
    return len(ttfts_s) > 1 and ttfts_s[-2] <= ttfts_s[-1] * SETTLED_RATIO + SETTLED_SLACK_S


async def warm(
    spec: ServiceSpec,
    expected: Expected | None = None,
    *,
    key: str | None = None,
    limits: WarmUpLimits | None = None,
) -> AsyncIterator[Event]:
    """Warm an engine up with prompts of growing length, each repeated until its time to the first token is
    stable."""
    expected = expected or Expected(is_cpu=True)
    limits = limits or WarmUpLimits.of(expected)
    sender = _WarmUpSender(spec, key, limits, time.monotonic() + limits.total_s, time.time_ns() % 10**9)
    count = partial(engine_client.count_tokens, spec.url, spec.model, key=key)
    sender.tokens_per_word = await tokens_per_word(count)
    prefill = expected.plan.prefill_tokens_per_s
    rate, rates = prefill.low if prefill else None, HostRates.of(expected)
    results: list[str] = []
    for wanted in prompt_sizes(expected.context):
        tokens = tokens_within(wanted, rate, limits.prompt_s) if wanted > SMALL else wanted
        if sender.largest and tokens < 1.2 * sender.largest:
            speed = f" at {rate:,.0f} tokens/s" if rate else ""
            reason = f"{wanted:,} tokens would take longer than {limits.prompt_s:.0f} s{speed}"
            yield PhaseProgress("warm", f"{reason}; skipped")
            continue
        ttfts: list[float] = []
        async for event in sender.until_settled(tokens, limits.wait_s(tokens, rates), ttfts):
            yield event
        if not ttfts:
            break
        # The measured speed of a prompt of some length is better than the planned one; a host that is slower
        # than planned shows it with a short prompt, too.
        measured = sender.largest / max(ttfts[-1], 1e-3)
        if rate is None or sender.largest >= MIDDLE // 2:
            rate = measured
        rates = replace(rates, prefill=min(measured, rates.prefill or measured))
        first = f"{ttfts[0]:.2f} s, then " if len(ttfts) > 1 else ""
        results.append(f"{sender.largest:,} tokens: {first}{ttfts[-1]:.2f} s to the first token")
    summary = "; ".join(results)
    yield PhaseDone("warm", f"{summary} (with the chat template's tokens)" if summary else "nothing was sent")


class _WarmUpSender(Struct):
    spec: ServiceSpec
    key: str | None
    limits: WarmUpLimits
    deadline: float
    seed: int
    tokens_per_word: float = TOKENS_PER_WORD
    largest: int = 0
    """Tokens of the last prompt, as the engine counted them."""

    async def until_settled(
        self, tokens: int, wait_s: float, ttfts_s: list[float]
    ) -> AsyncIterator[PhaseProgress]:
        """Send prompts of one size, and append the times to the first token to the list."""
        for number in range(self.limits.rounds):
            if time.monotonic() > self.deadline:
                spent_s = self.limits.total_s + time.monotonic() - self.deadline
                yield PhaseProgress("warm", f"{show_seconds(spent_s)} have passed; the rest is skipped")
                return
            ordinal = _ORDINALS[min(number, len(_ORDINALS) - 1)]
            # "About": the chat template adds tokens that only the engine can count.
            prompt = f"a prompt of about {tokens:,} tokens of text, {ordinal} time"
            yield PhaseProgress("warm", f"{prompt}; waiting up to {show_seconds(wait_s)}")
            try:
                answer = await self._send(tokens, wait_s)
            except engine_client.EngineRefused as error:
                if not self.largest:
                    raise
                yield PhaseProgress(
                    "warm", f"the engine refused about {tokens:,} tokens ({error.status}); skipped"
                )
                return
            ttfts_s.append(answer.first_token_s)
            self.largest = answer.prompt_tokens or tokens
            if has_settled(ttfts_s):
                return

    async def _send(self, tokens: int, wait_s: float) -> Answer:
        self.seed += 1
        prompt = filler(round(tokens / self.tokens_per_word), self.seed)
        try:
            return await engine_client.chat(
                self.spec.url, self.spec.model, prompt, max_tokens=_WARM_UP_TOKENS, timeout_s=wait_s,
                key=self.key,
            )  # fmt: skip
        except FiresteelError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            raise FiresteelError(
                f"the engine did not answer a prompt of about {tokens:,} tokens within {wait_s:.0f} s",
                next="firesteel logs",
            ) from error


async def tokens_per_word(count: Callable[[str], Awaitable[int | None]]) -> float:
    """Of `filler`, as the engine's own tokenizer counts them."""
    text = filler(200, 1)
    counted = await count(text)
    return counted / len(text.split()) if counted else TOKENS_PER_WORD
