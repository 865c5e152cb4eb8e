"""A server under test: what it was asked, what it answered, and how long it may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer
from firesteel.engines.metrics import PrometheusSample
from firesteel.run.verify import engine_checks
from firesteel.run.verify.checks import Level
from firesteel.run.verify.expected import Expected
from firesteel.values import Value

_IDLE_S = 30
"""Seconds between two tokens after which a stream has stalled."""
_MIN_RATE = 0.2
"""Tokens per second of the slowest server whose plain answers are waited for."""


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
        self, prompt: str, max_tokens: int, extra: Mapping[str, Any] | None = None, *, stream: bool = True
    ) -> Answer:
        """`extra` may replace anything in the request, also `messages`."""
        timeout_s = max(1.0, min(self.request_s, self.left_s + 10))
        if not stream:  # nothing comes before all has been decoded
            timeout_s += max_tokens / max(self.rate, _MIN_RATE)
        answer = await engine_client.chat(
            self.url, self.model, prompt, max_tokens=max_tokens, stream=stream, extra=extra,
            timeout_s=timeout_s, idle_s=min(_IDLE_S, self.request_s), key=self.key,
        )  # fmt: skip
        is_alone = not {"messages", "tools"} & (extra or {}).keys()
        self.exchanges.append(AskedQuestion(prompt, max_tokens, answer, is_alone))
        return answer

    async def count_tokens(self, text: str) -> int | None:
        if not self.has_tokenizer:
            return None
        counted = await engine_client.count_tokens(self.url, self.model, text, key=self.key)
        self.has_tokenizer = counted is not None
        return counted
