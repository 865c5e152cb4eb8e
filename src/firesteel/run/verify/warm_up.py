"""Warm: the first request of each size pays for what is made lazily, so we send it before any user does.

On a GPU that is compiled kernels and tuned plans, and each size of prompt has its own: after a warm-up with
short prompts alone, the first of 20,000 tokens stalls, or comes out as garbage. So several sizes are sent,
the largest of about 26,000 tokens where the context allows, and each until the same size again is no faster
than it was. Every prompt is another text: an engine that remembers the last one would show nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer
from firesteel.errors import FiresteelError
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.verify.expected import Expected
from firesteel.run.verify.prompts import TOKENS_PER_WORD, filler
from firesteel.units import show_seconds

SMALL, MIDDLE, LARGE = 32, 512, 26_000
"""Tokens. Seen 2026-11-15: warming with about 26,000 real tokens cured a stall and garbage at 20,000
(https://github.com/jschmied/dgx-spark-setup-guide)."""
MAX_ROUNDS = 4
SETTLED_RATIO, SETTLED_SLACK_S = 1.3, 0.1
"""No faster than this: the one before had no cost of its own."""
_PATIENCE = 3
"""So many times longer than it should a prompt may be read before it is given up."""
_ANSWER_TOKENS = 8
_ORDINALS = ("first", "second", "third", "fourth")


class WarmTarget(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def model(self) -> str: ...


@dataclass(frozen=True, slots=True)
class WarmUpLimits:
    """How long warming may take. A CPU engine compiles nothing, so there it is short."""

    prompt_s: float
    total_s: float
    rounds: int = MAX_ROUNDS
    compile_s: float = 180
    """What the first prompt of a size may take beyond its reading; silence for longer is a hang."""

    @classmethod
    def of(cls, expect: Expected) -> WarmUpLimits:
        return cls(0.75, 4, 2, 40) if expect.is_cpu else cls(60, 420)

    def wait_s(self, tokens: int, tokens_per_s: float | None) -> float:
        """How long the answer to a prompt is waited for, at the speed that was planned or seen."""
        reading_s = tokens / max(tokens_per_s, 1.0) if tokens_per_s is not None else 0.0
        return self.compile_s + _PATIENCE * reading_s


def prompt_sizes(context: int | None) -> tuple[int, ...]:
    """Tokens of prompt to send: three quarters of the context at most, so that an answer has room."""
    largest = min(LARGE, (context or 4 * MIDDLE) * 3 // 4)
    return (*(size for size in (SMALL, MIDDLE) if size * 2 <= largest), largest)


def tokens_within(tokens: int, tokens_per_s: float | None, limit_s: float) -> int:
    """As many of the tokens as the limit allows, at that speed; all of them where no speed is known."""
    return tokens if tokens_per_s is None else min(tokens, int(tokens_per_s * limit_s))


def has_settled(ttfts_s: list[float]) -> bool:
    """The last request was no faster than the one before, so that one had no first-time cost."""
    return len(ttfts_s) > 1 and ttfts_s[-2] <= ttfts_s[-1] * SETTLED_RATIO + SETTLED_SLACK_S


async def warm(
    server: WarmTarget,
    expect: Expected | None = None,
    *,
    key: str | None = None,
    limits: WarmUpLimits | None = None,
) -> AsyncIterator[Event]:
    expect = expect or Expected(is_cpu=True)
    limits = limits or WarmUpLimits.of(expect)
    sender = _Sender(server, key, limits, time.monotonic() + limits.total_s, time.time_ns() % 10**9)
    sender.tokens_per_word = await _tokens_per_word(server, key)
    rate = expect.prefill_tokens_per_s.low if expect.prefill_tokens_per_s else None
    done: list[str] = []
    for wanted in prompt_sizes(expect.context):
        tokens = tokens_within(wanted, rate, limits.prompt_s) if wanted > SMALL else wanted
        if sender.largest and tokens < 1.2 * sender.largest:
            yield PhaseProgress("warm", _skipped(wanted, rate, limits))
            continue
        ttfts: list[float] = []
        async for event in sender.until_settled(tokens, limits.wait_s(tokens, rate), ttfts):
            yield event
        if not ttfts:
            break
        # Once a prompt is long enough, its own speed says more than any plan.
        if rate is None or sender.largest >= MIDDLE // 2:
            rate = sender.largest / ttfts[-1]
        done.append(_came_to(sender.largest, ttfts))
    told = f"{'; '.join(done)} (counted with the chat template's own)" if done else "nothing was sent"
    yield PhaseDone("warm", told)


@dataclass(slots=True)
class _Sender:
    server: WarmTarget
    key: str | None
    limits: WarmUpLimits
    deadline: float
    seed: int
    tokens_per_word: float = TOKENS_PER_WORD
    largest: int = 0
    """Tokens of the last prompt, by the engine's own count."""

    async def until_settled(
        self, tokens: int, wait_s: float, ttfts_s: list[float]
    ) -> AsyncIterator[PhaseProgress]:
        """Sends prompts of one size, and puts the time to each first token into the list."""
        for number in range(self.limits.rounds):
            if time.monotonic() > self.deadline:
                yield PhaseProgress("warm", f"{self.limits.total_s:.0f} s are over; the rest is left out")
                return
            yield PhaseProgress("warm", _sending(tokens, number, wait_s))
            try:
                answer = await self._send(tokens, wait_s)
            except engine_client.EngineRefused as error:
                if not self.largest:
                    raise
                yield PhaseProgress(
                    "warm", f"about {tokens:,} tokens were refused ({error.status}); left out"
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
                self.server.url, self.server.model, prompt, max_tokens=_ANSWER_TOKENS, timeout_s=wait_s,
                key=self.key,
            )  # fmt: skip
        except FiresteelError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            raise FiresteelError(
                f"the engine took a prompt of about {tokens:,} tokens and said nothing for {wait_s:.0f} s",
                next="firesteel logs",
            ) from error


async def _tokens_per_word(server: WarmTarget, key: str | None) -> float:
    """By the engine's own tokenizer."""
    text = filler(200, 1)
    counted = await engine_client.count_tokens(server.url, server.model, text, key=key)
    return counted / len(text.split()) if counted else TOKENS_PER_WORD


def _sending(tokens: int, number: int, wait_s: float) -> str:
    """The chat template adds tokens of its own, which only the engine can count."""
    time_ = _ORDINALS[min(number, len(_ORDINALS) - 1)]
    up_to = show_seconds(wait_s)
    return f"a prompt of about {tokens:,} tokens of text, {time_} time; waiting for it up to {up_to}"


def _skipped(wanted: int, rate: float | None, limits: WarmUpLimits) -> str:
    pace = f" at {rate:,.0f} tokens/s" if rate else ""
    return f"{wanted:,} tokens would take longer than {limits.prompt_s:.0f} s{pace}; left out"


def _came_to(tokens: int, ttfts_s: list[float]) -> str:
    first, last = ttfts_s[0], ttfts_s[-1]
    was = f"{first:.2f} s, then " if len(ttfts_s) > 1 else ""
    return f"{tokens:,} tokens: {was}{last:.2f} s to the first token"
