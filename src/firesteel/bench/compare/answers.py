"""The answers of two servers to the same prompts: how often they agree, and which one answers better.

    agreement   the share of answers at temperature 0 that are equal word for word, and of tokens until they
                part; KL is how far apart their distributions of the next token are, from log probabilities
    questions   the share of right answers to a short built-in set, and whether the difference is chance

A prompt counts once, whatever its length, so that intervals are those of independent values.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from functools import cache
from math import comb, exp, isfinite, log, sqrt
from typing import Annotated, Any, Literal

from firesteel import shipped_data
from firesteel.bench.compare.servers import UNCACHED_REQUESTS
from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.load.measure import FoundServer
from firesteel.bench.measurements import MeasuredFigure
from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer, TokenLogprob
from firesteel.edge.http.engine_client import EngineRefused
from firesteel.errors import FiresteelError
from firesteel.values import NOT_EMPTY, FileValue, Regex, Value

QualityVerdict = Literal["first is better", "second is better", "cannot tell"]
ANSWER_TOKENS, PROMPT_TOKENS = 48, 64
"""Limits of answers to questions and to open prompts."""
TOP_LOGPROBS = 20
"""How many of the likeliest next tokens to ask for: the most that vLLM and OpenAI give."""
_REQUEST_LIMIT_S = 300
"""The time limit of one request: a slow model that thinks takes minutes."""
_LEAST_PROBABILITY = 1e-6
"""Engines print log probabilities with about six digits; a smaller divergence may be zero."""
_SIGNIFICANCE = 0.05
"""A difference that chance makes less often than this is a difference."""
_Z_95 = 1.959964
"""95 % of a normal distribution is within this many standard deviations."""


class QualityQuestion(FileValue, kw_only=True):
    ask: str
    answer: Regex
    """A pattern that a right answer contains, ignoring case."""


class QualityQuestions(FileValue, kw_only=True):
    questions: Annotated[tuple[QualityQuestion, ...], NOT_EMPTY]
    prompts: Annotated[tuple[str, ...], NOT_EMPTY]


class AskedPair(Value):
    """One prompt and both answers."""

    ask: str
    first: Answer
    second: Answer
    pattern: str | None = None
    """What a right answer contains; None: an open prompt."""

    @property
    def is_equal(self) -> bool:
        return self.first.full_text.strip() == self.second.full_text.strip()

    def is_right(self, answer: Answer) -> bool:
        text = answer.text or answer.reasoning
        return bool(self.pattern and re.search(self.pattern, text, re.IGNORECASE))


class QuestionScore(Value):
    asked: int
    first: MeasuredFigure
    """The share of right answers, with its interval (Wilson's)."""
    second: MeasuredFigure
    only_first: int
    """Questions that the first answered and the second did not."""
    only_second: int
    p: float
    """How often chance alone would part them as much."""
    verdict: QualityVerdict


class QualityComparison(Value):
    first: str
    second: str
    prompts: int
    agreement: MeasuredFigure
    """The share of all answers that are equal word for word."""
    tokens_until_apart: MeasuredFigure | None
    """The share of an answer's tokens before the first difference; None: the engines list no tokens."""
    kl: MeasuredFigure | None
    """Nats per token, mean over prompts; None: an engine gave no log probabilities."""
    top_token_agreement: MeasuredFigure | None
    """How often both find the same next token the likeliest after the same words."""
    questions: QuestionScore
    differing: tuple[tuple[str, str, str], ...]
    """Some prompts with both answers, where they differ."""
    notes: tuple[str, ...] = ()


@cache
def quality_questions() -> QualityQuestions:
    return shipped_data.load("bench/questions.yaml", QualityQuestions)


async def ask_both(
    servers: tuple[FoundServer, FoundServer], budget_s: float, answer_tokens: int | None = None
) -> AsyncIterator[AskedPair]:
    """Ask both servers questions and open prompts until the budget is spent."""
    end = time.monotonic() + budget_s
    for ask, pattern in _order_prompts():
        tokens = answer_tokens or _limit_answer(pattern)
        try:
            async with asyncio.timeout(end - time.monotonic()):
                first, second = await asyncio.gather(
                    *(_ask_with_logprobs(server, ask, tokens) for server in servers)
                )
        except TimeoutError:
            return
        yield AskedPair(ask, first, second, pattern)


async def ask_alone(server: FoundServer, budget_s: float) -> tuple[Answer, ...]:
    """Ask one of two that cannot run side by side; `paired` puts the answers of both together."""
    end, found = time.monotonic() + budget_s, []
    for ask, pattern in _order_prompts():
        try:
            async with asyncio.timeout(end - time.monotonic()):
                found.append(await _ask_with_logprobs(server, ask, _limit_answer(pattern)))
        except TimeoutError:
            break
    return tuple(found)


def paired(first: Sequence[Answer], second: Sequence[Answer]) -> tuple[AskedPair, ...]:
    """The prompts that both answered, with both answers."""
    asked = zip(_order_prompts(), first, second, strict=False)
    return tuple(AskedPair(ask, one, other, pattern) for (ask, pattern), one, other in asked)


def _order_prompts() -> list[tuple[str, str | None]]:
    """Questions and prompts in turns, so that what a budget cuts off is a part of both."""
    book = quality_questions()
    share = max(1, len(book.questions) // len(book.prompts))
    queue: list[tuple[str, str | None]] = []
    for number, question in enumerate(book.questions):
        if number % share == 0 and number // share < len(book.prompts):
            queue.append((book.prompts[number // share], None))
        queue.append((question.ask, question.answer))
    return queue


def _limit_answer(pattern: str | None) -> int:
    return ANSWER_TOKENS if pattern else PROMPT_TOKENS


async def _ask_with_logprobs(server: FoundServer, prompt: str, tokens: int) -> Answer:
    """Ask with log probabilities if the engine gives them."""
    found, key = server
    subject = found.subject
    own = dict(UNCACHED_REQUESTS.get(subject.engine or "", {}))
    options: tuple[dict[str, Any], ...] = (_request_logprobs(TOP_LOGPROBS), _request_logprobs(5), {})
    for extra in options:
        try:
            return await engine_client.chat(
                subject.url, subject.model, prompt, max_tokens=tokens, stream=False, extra={**own, **extra},
                timeout_s=_REQUEST_LIMIT_S, key=key,
            )  # fmt: skip
        except EngineRefused as error:
            if error.status not in (400, 422, 501) or not extra:
                raise
    raise AssertionError("the last request has no options that could be refused")


def _request_logprobs(top: int) -> dict[str, Any]:
    return {"logprobs": True, "top_logprobs": top}


def compare_quality(names: tuple[str, str], pairs: Sequence[AskedPair]) -> QualityComparison:
    """What the answers of two servers, by name, say about their agreement and which one is better."""
    if not pairs:
        raise FiresteelError("no prompt was answered in the time there was", next="--budget 10m")
    apart = [share for pair in pairs if (share := _measure_share_until_apart(pair)) is not None]
    divergences = [found for pair in pairs if (found := _measure_divergence(pair)) is not None]
    equal = sum(pair.is_equal for pair in pairs)
    return QualityComparison(
        names[0],
        names[1],
        len(pairs),
        agreement=share_interval(equal, len(pairs)),
        tokens_until_apart=mean_interval(apart),
        kl=mean_interval([kl for kl, _ in divergences]),
        top_token_agreement=mean_interval([same for _, same in divergences]),
        questions=score([pair for pair in pairs if pair.pattern]),
        differing=tuple(
            (pair.ask, pair.first.full_text[:200], pair.second.full_text[:200])
            for pair in pairs
            if not pair.is_equal
        )[:5],
        notes=tuple(_write_notes(pairs, divergences)),
    )


def _write_notes(pairs: Sequence[AskedPair], divergences: Sequence[object]) -> list[str]:
    notes = []
    if not divergences:
        notes.append("no KL: one of the engines gave no log probabilities")
    if thinking := sum(not pair.first.text or not pair.second.text for pair in pairs if pair.pattern):
        notes.append(f"{thinking} answers hold only thoughts; --answer 1024 lets them end")
    return notes


# --- tokens ---


def _measure_share_until_apart(pair: AskedPair) -> float | None:
    """The share of an answer's tokens before the first difference; None: an engine lists no tokens."""
    ours, theirs = pair.first.logprobs, pair.second.logprobs
    if not ours or not theirs:
        return None
    return _count_common_tokens(ours, theirs) / max(len(ours), len(theirs))


def _measure_divergence(pair: AskedPair) -> tuple[float, float] | None:
    """KL per token and the share of equal likeliest tokens, where both had the same words before them."""
    ours, theirs = pair.first.logprobs, pair.second.logprobs
    if not ours or not theirs or not all(map(_is_listed, (*ours, *theirs))):
        return None
    count = min(_count_common_tokens(ours, theirs) + 1, len(ours), len(theirs))
    rows = list(zip(ours[:count], theirs[:count], strict=True))
    kls = [kl_divergence(one.top, other.top) for one, other in rows]
    same = sum(_find_likeliest(one) == _find_likeliest(other) for one, other in rows)
    return sum(kls) / count, same / count


def _count_common_tokens(ours: Sequence[TokenLogprob], theirs: Sequence[TokenLogprob]) -> int:
    """How many tokens are equal from the beginning on."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.text != other.text:
            return number
    return min(len(ours), len(theirs))


def _is_listed(token: TokenLogprob) -> bool:
    return bool(token.top) and all(isfinite(logprob) for _, logprob in token.top)


def _find_likeliest(token: TokenLogprob) -> bytes:
    return max(token.top, key=lambda row: row[1])[0]


def kl_divergence(first: Sequence[tuple[bytes, float]], second: Sequence[tuple[bytes, float]]) -> float:
    """KL(first || second) in nats from the likeliest tokens of each; the others count as one.

    Tokens that only one of them lists are among the others. Joining tokens never raises a KL, so the true one
    is at least this.
    """
    ours, theirs = dict(first), dict(second)
    both = [token for token in ours if token in theirs]
    result = sum(exp(ours[token]) * (ours[token] - theirs[token]) for token in both)
    rest = max(_LEAST_PROBABILITY, 1 - sum(exp(ours[token]) for token in both))
    other_rest = max(_LEAST_PROBABILITY, 1 - sum(exp(theirs[token]) for token in both))
    return max(0.0, result + rest * (log(rest) - log(other_rest)))


# --- questions ---


def score(pairs: Sequence[AskedPair]) -> QuestionScore:
    """Who answered more questions right, and whether that may be chance."""
    first = [pair.is_right(pair.first) for pair in pairs]
    second = [pair.is_right(pair.second) for pair in pairs]
    only_first = sum(one and not other for one, other in zip(first, second, strict=True))
    only_second = sum(other and not one for one, other in zip(first, second, strict=True))
    p = sign_test(only_first, only_second)
    verdict: QualityVerdict = "cannot tell"
    if p < _SIGNIFICANCE:
        verdict = "first is better" if only_first > only_second else "second is better"
    return QuestionScore(
        len(pairs),
        share_interval(sum(first), len(pairs)),
        share_interval(sum(second), len(pairs)),
        only_first,
        only_second,
        p,
        verdict,
    )


def sign_test(one: int, other: int) -> float:
    """How often a fair coin splits this many throws as unevenly, or more (McNemar's exact test)."""
    total = one + other
    if not total:
        return 1.0
    tail = sum(comb(total, count) for count in range(min(one, other) + 1))
    return min(1.0, float(2 * tail / (1 << total)))


def share_interval(hits: int, total: int) -> MeasuredFigure:
    """Wilson's interval of 95 %, which is right for few values and for shares near 0 and 1 too."""
    if not total:
        return MeasuredFigure(0.0, 0.0, 1.0, 0)
    share, square = hits / total, _Z_95**2
    centre = (share + square / (2 * total)) / (1 + square / total)
    margin = _Z_95 * sqrt(share * (1 - share) / total + square / (4 * total**2)) / (1 + square / total)
    return MeasuredFigure(share, max(0.0, centre - margin), min(1.0, centre + margin), total)
