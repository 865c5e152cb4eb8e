"""Two servers in turns with the same prompts, so that drift affects both alike: which one is faster, and
which one answers better.

    speed       `interleave`: each side is its own run, as `measure` makes it, repetition by repetition
    agreement   the share of answers at temperature 0 that are equal word for word, and of tokens until they
                part; KL is how far apart their distributions of the next token are, from log probabilities
    questions   the share of right answers to a short built-in set, and whether the difference is chance

A prompt counts once, whatever its length, so that intervals are those of independent values.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from math import comb, exp, isfinite, log, sqrt
from typing import Annotated, Any, Literal

from firesteel import shipped_data
from firesteel.bench.compare.runs import INTERLEAVED_WITH
from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.load.measure import (
    Event,
    FoundServer,
    RunOrder,
    RunProgress,
    find_server,
    make_order,
    measure,
    record,
)
from firesteel.bench.load.schedule import RunLimits, Sizes
from firesteel.bench.measurements import MeasuredFigure, RequestSettings
from firesteel.bench.results.history import History
from firesteel.edge.home import Home
from firesteel.edge.http import engine_client
from firesteel.edge.http.answer import Answer, TokenLogprob
from firesteel.edge.http.engine_client import EngineRefused
from firesteel.errors import FiresteelError, UsageError
from firesteel.run.service import all_services, api_key
from firesteel.values import NOT_EMPTY, FileValue, Regex, Value, replace

Side = Literal[0, 1]
_UNCACHED_REQUESTS: Mapping[str, Mapping[str, Any]] = {"llamacpp": {"cache_prompt": False}}
"""Per engine, what keeps an answer independent of earlier prompts. Two servers of one llama.cpp build gave
different answers to 4 of 6 prompts while they reused parts of earlier ones, and to none without
(2026-11-15)."""


async def find_servers(
    home: Home, names: Sequence[str], model: str | None = None, key: str | None = None
) -> tuple[FoundServer, FoundServer]:
    """Two URLs or running services. They must differ: both get the same prompts, so that one server would
    answer the second time from its cache."""
    one, other = [await _find(home, name, model, key) for name in names]
    first, second = one[0].subject, other[0].subject
    if (first.url, first.model) == (second.url, second.model):
        raise UsageError(
            f"both are {first.model} at {first.url}; it would answer the second time from its cache",
            next="two servers; or, for one, firesteel bench twice, then firesteel bench compare last~1 last",
        )
    return one, other


async def _find(home: Home, name: str, model: str | None, key: str | None) -> FoundServer:
    if name.startswith(("http://", "https://")):
        return await find_server(home, None, name, model, key)
    service = next((each for each in all_services(home) if each.name == name), None)
    if service is None:
        raise UsageError(f"`{name[:80]}` is neither a URL nor a running service", next="firesteel ps")
    return await find_server(home, None, service.spec.url, service.spec.model, api_key(service.spec))


async def measure_in_turns(
    history: History,
    servers: tuple[FoundServer, FoundServer],
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    limits: RunLimits | None = None,
    seed: int = 0,
) -> AsyncIterator[tuple[Side, Event]]:
    """Each side is stored as its own run and gets half of the budget."""
    limits = limits or RunLimits(240.0)
    limits, settings = replace(limits, budget_s=limits.budget_s / 2), RequestSettings(seed=seed)
    context = min((found.context for found, _ in servers if found.context), default=None)
    orders = [
        make_order(
            server, shapes, sizes, settings, limits, context=context,
            requests=_UNCACHED_REQUESTS.get(server[0].subject.engine or ""),
        )
        for server in servers
    ]  # fmt: skip
    ids = [order.id for order in orders]
    first, second = (
        replace(order, notes=(*order.notes, f"{INTERLEAVED_WITH}{other}"))
        for order, other in zip(orders, reversed(ids), strict=True)
    )
    async for side, event in interleave(first, second):
        record(history, ids[side], event)
        yield side, event


async def measure_alone(
    history: History, server: FoundServer, salt: str, limits: RunLimits
) -> AsyncIterator[Event]:
    """One of two that cannot run side by side; with an equal `salt` the other gets the same prompts."""
    own = _UNCACHED_REQUESTS.get(server[0].subject.engine or "")
    order = replace(make_order(server, limits=limits, requests=own), salt=salt)
    async for event in measure(order):
        record(history, order.id, event)
        yield event


async def interleave(first: RunOrder, second: RunOrder) -> AsyncIterator[tuple[Side, Event]]:
    """Equal prompts in equal order. A turn lasts until a run is about to start its next repetition; the last
    one begins the next round."""
    salt = first.salt or first.id
    second = replace(second, salt=salt, points=first.points, settings=first.settings)
    one, other = measure(replace(first, salt=salt)), measure(second)
    async with aclosing(one) as a, aclosing(other) as b:  # type: ignore[type-var]  # they are generators
        unfinished: list[tuple[Side, AsyncIterator[Event]]] = [(0, a), (1, b)]
        while unfinished:
            for turn in tuple(unfinished):
                side, events = turn
                is_over = True
                async for event in events:
                    yield side, event
                    if isinstance(event, RunProgress):
                        is_over = False
                        break
                if is_over:
                    unfinished.remove(turn)
            unfinished.reverse()


# --- answers ---

QualityVerdict = Literal["first is better", "second is better", "cannot tell"]
TOP_LOGPROBS = 20
"""The most that vLLM and OpenAI give."""
ANSWER_TOKENS, PROMPT_TOKENS = 48, 64
"""Limits of answers to questions and to open prompts."""
_SIGNIFICANCE = 0.05
_Z = 1.959964
_REQUEST_S = 300
_LEAST = 1e-6
"""Engines print log probabilities with about six digits; a smaller divergence may be zero."""


class QualityQuestion(FileValue, kw_only=True):
    ask: str
    answer: Regex
    """A pattern that a right answer contains, ignoring case."""


class QualityQuestions(FileValue, kw_only=True):
    questions: Annotated[tuple[QualityQuestion, ...], NOT_EMPTY]
    prompts: Annotated[tuple[str, ...], NOT_EMPTY]


@cache
def quality_questions() -> QualityQuestions:
    return shipped_data.load("bench/questions.yaml", QualityQuestions)


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


async def ask_both(
    servers: tuple[FoundServer, FoundServer], budget_s: float, answer_tokens: int | None = None
) -> AsyncIterator[AskedPair]:
    end = time.monotonic() + budget_s
    for ask, pattern in _queue():
        tokens = answer_tokens or _answer_tokens(pattern)
        try:
            async with asyncio.timeout(end - time.monotonic()):
                first, second = await asyncio.gather(*(_ask(server, ask, tokens) for server in servers))
        except TimeoutError:
            return
        yield AskedPair(ask, first, second, pattern)


async def ask_alone(server: FoundServer, budget_s: float) -> tuple[Answer, ...]:
    """One of two that cannot run side by side; `paired` puts the answers of both together."""
    end, found = time.monotonic() + budget_s, []
    for ask, pattern in _queue():
        try:
            async with asyncio.timeout(end - time.monotonic()):
                found.append(await _ask(server, ask, _answer_tokens(pattern)))
        except TimeoutError:
            break
    return tuple(found)


def paired(first: Sequence[Answer], second: Sequence[Answer]) -> tuple[AskedPair, ...]:
    """The prompts that both answered, with both answers."""
    asked = zip(_queue(), first, second, strict=False)
    return tuple(AskedPair(ask, one, other, pattern) for (ask, pattern), one, other in asked)


def _queue() -> list[tuple[str, str | None]]:
    """Questions and prompts in turns, so that what a budget cuts off is a part of both."""
    book = quality_questions()
    share = max(1, len(book.questions) // len(book.prompts))
    queue: list[tuple[str, str | None]] = []
    for number, question in enumerate(book.questions):
        if number % share == 0 and number // share < len(book.prompts):
            queue.append((book.prompts[number // share], None))
        queue.append((question.ask, question.answer))
    return queue


def _answer_tokens(pattern: str | None) -> int:
    return ANSWER_TOKENS if pattern else PROMPT_TOKENS


async def _ask(server: FoundServer, prompt: str, tokens: int) -> Answer:
    """Ask with log probabilities if the engine gives them."""
    found, key = server
    subject = found.subject
    own = dict(_UNCACHED_REQUESTS.get(subject.engine or "", {}))
    options: tuple[dict[str, Any], ...] = (_logprobs(TOP_LOGPROBS), _logprobs(5), {})
    for extra in options:
        try:
            return await engine_client.chat(
                subject.url, subject.model, prompt, max_tokens=tokens, stream=False, extra={**own, **extra},
                timeout_s=_REQUEST_S, key=key,
            )  # fmt: skip
        except EngineRefused as error:
            if error.status not in (400, 422, 501) or not extra:
                raise
    raise AssertionError("the last request has no options that could be refused")


def _logprobs(top: int) -> dict[str, Any]:
    return {"logprobs": True, "top_logprobs": top}


def compare_quality(names: tuple[str, str], pairs: Sequence[AskedPair]) -> QualityComparison:
    if not pairs:
        raise FiresteelError("no prompt was answered in the time there was", next="--budget 10m")
    apart = [share for pair in pairs if (share := _share_until_apart(pair)) is not None]
    divergences = [found for pair in pairs if (found := _divergence(pair)) is not None]
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
        notes=tuple(_notes(pairs, divergences)),
    )


def _notes(pairs: Sequence[AskedPair], divergences: Sequence[object]) -> list[str]:
    notes = []
    if not divergences:
        notes.append("no KL: one of the engines gave no log probabilities")
    if thinking := sum(not pair.first.text or not pair.second.text for pair in pairs if pair.pattern):
        notes.append(f"{thinking} answers hold only thoughts; --answer 1024 lets them end")
    return notes


# --- tokens ---


def _share_until_apart(pair: AskedPair) -> float | None:
    ours, theirs = pair.first.logprobs, pair.second.logprobs
    if not ours or not theirs:
        return None
    return _common(ours, theirs) / max(len(ours), len(theirs))


def _common(ours: Sequence[TokenLogprob], theirs: Sequence[TokenLogprob]) -> int:
    """Tokens that are equal from the beginning on."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.text != other.text:
            return number
    return min(len(ours), len(theirs))


def _divergence(pair: AskedPair) -> tuple[float, float] | None:
    """KL per token and the share of equal likeliest tokens, where both had the same words before them."""
    ours, theirs = pair.first.logprobs, pair.second.logprobs
    if not ours or not theirs or not all(map(_is_listed, (*ours, *theirs))):
        return None
    count = min(_common(ours, theirs) + 1, len(ours), len(theirs))
    rows = list(zip(ours[:count], theirs[:count], strict=True))
    kls = [kl_divergence(one.top, other.top) for one, other in rows]
    same = sum(_likeliest(one) == _likeliest(other) for one, other in rows)
    return sum(kls) / count, same / count


def _is_listed(token: TokenLogprob) -> bool:
    return bool(token.top) and all(isfinite(logprob) for _, logprob in token.top)


def _likeliest(token: TokenLogprob) -> bytes:
    return max(token.top, key=lambda row: row[1])[0]


def kl_divergence(first: Sequence[tuple[bytes, float]], second: Sequence[tuple[bytes, float]]) -> float:
    """KL(first || second) in nats from the likeliest tokens of each; the others count as one.

    Tokens that only one of them lists are among the others. Joining tokens never raises a KL, so the true one
    is at least this.
    """
    ours, theirs = dict(first), dict(second)
    both = [token for token in ours if token in theirs]
    result = sum(exp(ours[token]) * (ours[token] - theirs[token]) for token in both)
    rest = max(_LEAST, 1 - sum(exp(ours[token]) for token in both))
    other_rest = max(_LEAST, 1 - sum(exp(theirs[token]) for token in both))
    return max(0.0, result + rest * (log(rest) - log(other_rest)))


# --- questions ---


def score(pairs: Sequence[AskedPair]) -> QuestionScore:
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
    share, square = hits / total, _Z**2
    centre = (share + square / (2 * total)) / (1 + square / total)
    margin = _Z * sqrt(share * (1 - share) / total + square / (4 * total**2)) / (1 + square / total)
    return MeasuredFigure(share, max(0.0, centre - margin), min(1.0, centre + margin), total)
