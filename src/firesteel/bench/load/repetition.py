"""One visit to a point: its prompts made, its load put on, its streams turned into samples.

Prompts are made and tokenized before the load begins, streams are read after it has ended: while it lasts
nothing of ours runs but the clock and the sockets.

    closed loop  each user asks again as soon as it is answered, until it has had its answers. They
                 begin one after the other, spread over the time of one request, as users do who have been at
                 it for a while; `figures.py` counts what lies while all of them are at it
    once         one user, a burst, and the first (cold) visit: each asks once
    open loop    each request is sent at its own time. One that must wait for room keeps its due time: what
                 it waited is part of what its user waited
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeVar

from firesteel.bench.load.client import RawResponse, RequestTimeouts, TargetServer, chat_body, exchange
from firesteel.bench.load.prepare import Prepared
from firesteel.bench.load.prompts import Prompt, PromptWriter
from firesteel.bench.load.transcript import (
    ExpectedSample,
    Transcript,
    count_is_off,
    first_tokens,
    read_stream,
    sample,
    unseen,
)
from firesteel.bench.results.figures import is_hidden, usual_gap_s
from firesteel.bench.values import Point, RequestSample
from firesteel.edge.host.process import uptime

T = TypeVar("T")
_AT_ONCE = 8
_RECOUNTED = 4
"""Answers of a visit whose words are counted again, to see whether `usage` lies."""
_COUNTED = 64
"""First chunks of a visit that the tokenizer counts, where they hold more than a token."""
_OPEN_LEAST, _OPEN_MOST = 8, 500
"""Requests of one visit in an open loop."""
_DRAIN_TIMES, _DRAIN_S = 4.0, 30.0
"""How long answers are waited for when an open loop's arrivals end: so many times as long, and some more."""
_ROUNDS = 3
_ONCE = ("burst",)
"""Shapes whose point is that all come at once."""
_PREFILL_AT_LEAST = 20.0
"""Tokens a second: slower than any machine that somebody would measure."""
_LONGEST_S = 1800.0
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class SharedLoad:
    """Everything that visits of a run share."""

    endpoint: TargetServer
    model: str
    prepared: Prepared
    salt: str
    """What makes this run's prompts differ from those of the last."""
    seed: int
    began: float
    """The run's zero, by `time.perf_counter`."""
    prefill_tokens_per_s: float | None = None
    """The least that the plan expects."""
    patience: RequestTimeouts | None = None
    """None: from the plan, and from what was seen before."""
    open_s: float = 20.0
    """How long requests arrive in one visit of an open loop."""
    rounds: int = _ROUNDS
    """Answers that every user of a closed loop has."""


@dataclass(slots=True)
class _Said:
    """One request and what came of it."""

    asked: ExpectedSample
    raw: RawResponse
    heard: Transcript | None = None


@dataclass(slots=True)
class Repetition:
    load: SharedLoad
    at: int
    point: Point
    repetition: int
    is_cold: bool
    before: Sequence[RequestSample] = ()
    """Of this point, earlier: they say how long is too long."""
    said: list[_Said] = field(default_factory=list)
    window: tuple[float, float] = (0.0, 0.0)
    """When the load was on, by `uptime`."""
    unsent: list[RequestSample] = field(default_factory=list)
    until: float = float("inf")
    """When an open loop ends, whatever is still open."""
    crowded: int = 0
    """Requests of an open loop that found as many open as may be, and had to wait."""

    async def run(self) -> list[RequestSample]:
        prompts = await self._prompts()
        began = uptime()
        if self._is_open_loop:
            await self._open_loop(prompts)
        elif self._loops:
            await self._closed_loop(prompts)
        else:
            await asyncio.gather(*(self._talk(each) for each in prompts))
        self.window = began, uptime()
        return await self._samples()

    @property
    def _is_open_loop(self) -> bool:
        return self.point.rate_per_s is not None

    @property
    def _loops(self) -> bool:
        return is_loop(self.point) and not self.is_cold

    @property
    def _rounds(self) -> int:
        """Conversations of each user; one of several turns is several answers."""
        return -(-self.load.rounds // self.point.turns)

    # --- words ---

    @property
    def _writer(self) -> PromptWriter:
        return self.load.prepared.writers[self.point.text]

    def _seed(self, *more: object) -> str:
        return "/".join(str(each) for each in (self.load.seed, self.at, *more))

    async def _prompts(self) -> list[list[Prompt]]:
        """For each conversation the words of each turn."""
        shared = await self._shared() if self.point.shared_tokens else Prompt("", 0)
        many = self._arrivals if self._is_open_loop else self.point.users
        many *= self._rounds if self._loops else 1
        talks = (self._turns(stream, shared) for stream in range(many))
        return await _few_at_once(talks)

    async def _shared(self) -> Prompt:
        """The same for every visit of the point."""
        point, tag = self.point, f"Shared by all of part {self.at} in {self.load.salt}"
        made = await self._writer.prompt(point.text, point.shared_tokens, self._seed("shared"), tag)
        return Prompt(f"{made.text}\n", made.tokens)

    async def _turns(self, stream: int, shared: Prompt) -> list[Prompt]:
        found = []
        for turn in range(self.point.turns):
            tag = f"Part {self.load.salt}-{self.at}-{self.repetition}-{stream}-{turn}"
            before = shared.text if turn == 0 else ""
            size = self.point.prompt_tokens + (self.point.shared_tokens if turn == 0 else 0)
            seed = self._seed(self.repetition, stream, turn)
            found.append(await self._writer.prompt(self.point.text, size, seed, tag, before))
        return found

    # --- load ---

    async def _closed_loop(self, prompts: Sequence[Sequence[Prompt]]) -> None:
        """So many answers for each, whoever is quicker: two set-ups are asked the same."""
        users, began = self.point.users, time.perf_counter()
        apart = self._request_s / users

        async def user(stream: int) -> None:
            await asyncio.sleep(max(0.0, began + stream * apart - time.perf_counter()))
            for turns in prompts[stream::users]:
                await self._talk(turns, stream=stream)

        await asyncio.gather(*map(user, range(users)))

    @property
    def _request_s(self) -> float:
        """How long one takes, by those before. Of first words the quickest: the cold one says nothing."""
        good = [each for each in self.before if not each.wrong and each.first_s is not None and each.last_s]
        if not good:
            return 0.0
        writing = median((each.last_s or 0.0) - (each.first_s or 0.0) for each in good)
        return writing + min(each.first_s or 0.0 for each in good)

    async def _talk(
        self,
        turns: Sequence[Prompt],
        due: float | None = None,
        queued_s: float = 0.0,
        stream: int | None = None,
    ) -> None:
        """A conversation: every turn carries all before it."""
        messages: Messages = []
        last: int | None = 0
        for prompt in turns:
            messages.append({"role": "user", "content": prompt.text})
            expected = self._expected(prompt) if len(messages) == 1 else None
            said = await self._ask(messages, expected, due, queued_s, stream)
            due, queued_s = None, 0.0  # what comes after was due when it was asked
            if len(turns) == 1:
                return
            said.heard = read_stream(said.raw)
            told = said.heard.usage.get("prompt_tokens")
            if not said.heard.is_done or not isinstance(told, int) or last is None:
                return
            if told < last + prompt.tokens // 2:
                said.asked = replace(said.asked, prompt_tokens=last + prompt.tokens, slack=prompt.tokens // 2)
            last = told
            messages.append({"role": "assistant", "content": said.heard.text})

    def _expected(self, prompt: Prompt) -> int | None:
        added = self.load.prepared.template_tokens
        return None if added is None else prompt.tokens + added

    async def _ask(
        self,
        messages: Messages,
        expected: int | None,
        due: float | None,
        queued_s: float,
        stream: int | None,
    ) -> _Said:
        point, load = self.point, self.load
        body = chat_body(load.model, messages, point.answer_tokens, load.prepared.extra)
        began = time.perf_counter()
        raw = await exchange(load.endpoint, body, self._patience_now(), point.answer_tokens)
        wait = max(0.0, raw.sent - began) if due is not None else 0.0  # for a connection: the server's doing
        said = _Said(
            ExpectedSample(
                self.at, self.repetition, raw.sent - load.began, point.answer_tokens, expected,
                load.prepared.slack(expected or 0), load.prepared.goes_on,
                max(0.0, raw.sent - due) if due is not None else 0.0, queued_s + wait, stream, self.is_cold,
            ),
            raw,
        )  # fmt: skip
        self.said.append(said)
        return said

    @property
    def _arrivals(self) -> int:
        assert self.point.rate_per_s is not None
        return round(min(_OPEN_MOST, max(_OPEN_LEAST, self.point.rate_per_s * self.load.open_s)))

    async def _open_loop(self, prompts: Sequence[Sequence[Prompt]]) -> None:
        """Each at its own time, drawn beforehand; nobody waits for an answer to ask. Times are those of a
        Poisson process in which so many arrive within the window: the rate is the one that was asked for."""
        assert self.point.rate_per_s is not None
        order = random.Random(self._seed(self.repetition, "arrivals"))
        room = asyncio.Semaphore(self.point.users)
        window, now = len(prompts) / self.point.rate_per_s, time.perf_counter()
        dues = sorted(now + order.uniform(0, window) for _ in prompts)
        self.until = now + window * (1 + _DRAIN_TIMES) + _DRAIN_S

        async def arrive(turns: Sequence[Prompt], due: float) -> None:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            waits, asked = room.locked(), time.perf_counter()
            self.crowded += waits
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + self._left_s):
                    await room.acquire()
            except TimeoutError:
                self._leave_out(due)
                return
            try:
                await self._talk(turns, due, time.perf_counter() - asked if waits else 0.0)
            finally:
                room.release()

        await asyncio.gather(*(arrive(*each) for each in zip(prompts, dues, strict=True)))

    def _leave_out(self, due: float) -> None:
        waited = time.perf_counter() - due
        why = f"not sent: {self.point.users} were open for {waited:.1f} s"
        began = due - self.load.began
        self.unsent.append(
            RequestSample(
                self.at, self.repetition, began + waited, wrong="unsent", why=why, late_s=waited,
                queued_s=waited, is_cold=self.is_cold,
            )
        )  # fmt: skip

    @property
    def _left_s(self) -> float:
        return max(0.05, self.until - time.perf_counter())

    def _patience_now(self) -> RequestTimeouts:
        """A load that is too much must end too: nothing of an open loop is waited for beyond its drain."""
        usual, left = self.patience, self._left_s
        return replace(usual, whole_s=min(usual.whole_s, left)) if self._is_open_loop else usual

    @property
    def patience(self) -> RequestTimeouts:
        """What the plan or the requests before make of `too long`."""
        if self.load.patience is not None:
            return self.load.patience
        point, good = self.point, [each for each in self.before if not each.wrong]
        firsts = [each.first_s for each in good if each.first_s is not None]
        if len(firsts) >= 2:
            first, between = (
                max(10.0, 10 * max(firsts)),
                max(5.0, 3 * max(firsts), 100 * (usual_gap_s(good) or 0)),
            )
        else:
            rate = max(1.0, (self.load.prefill_tokens_per_s or _PREFILL_AT_LEAST) / 2)
            tokens = point.users * (
                point.depth + (point.turns - 1) * (point.prompt_tokens + point.answer_tokens)
            )
            first = between = min(_LONGEST_S, 30 + tokens / rate)
        gap = 20 * (usual_gap_s(good) or 0.1)
        return RequestTimeouts(
            first, between, min(2 * _LONGEST_S, first + point.answer_tokens * gap + between)
        )

    # --- what came of it ---

    async def _samples(self) -> list[RequestSample]:
        heard = [each.heard or read_stream(each.raw) for each in self.said]
        longest = max((each.times[0] for each in heard if each.times), default=0.0)
        asked = [replace(each.asked, longest_wait_s=longest) for each in self.said]
        found = [
            sample(each.raw, words, what) for each, words, what in zip(self.said, heard, asked, strict=True)
        ]
        await self._recount(found, heard)
        return found + self.unsent

    async def _count_first(
        self, found: list[RequestSample], heard: Sequence[Transcript], good: Sequence[int]
    ) -> None:
        """Where a first chunk seems to hold several tokens: how many, by the tokenizer."""
        for at in [at for at in good if found[at].first_tokens > 1][:_COUNTED]:
            counted = await self._writer.count(heard[at].first_words)
            found[at] = replace(found[at], first_tokens=first_tokens(heard[at], counted or None))

    async def _recount(self, found: list[RequestSample], heard: Sequence[Transcript]) -> None:
        """The words themselves, by the server's tokenizer, where `usage` and chunks differ most."""
        if not self.load.prepared.is_exact:
            for at, each in enumerate(found):
                found[at] = unseen(each, heard[at], await self._writer.count(heard[at].text), is_exact=False)
            return
        good = [at for at, each in enumerate(found) if not each.wrong]
        good.sort(key=lambda at: len(heard[at].times) - (found[at].completion_tokens or 0))
        await self._count_first(found, heard, good)
        off = 0
        for many, at in enumerate(good):
            if many >= _RECOUNTED + 2 * off:  # where one lies, the next may
                return
            told, chunks = (
                (found[at].completion_tokens or 0) - found[at].hidden_tokens,
                len(heard[at].times),
            )
            counted = await self._writer.count(heard[at].text)
            if counted and count_is_off(told, counted, chunks):
                off += 1
                why = f"says {told} tokens; its own tokenizer makes {counted} of the answer"
                found[at] = replace(found[at], wrong="wrong usage", why=why)
            elif counted:
                found[at] = unseen(found[at], heard[at], counted)
                off += is_hidden(found[at])


def is_loop(point: Point) -> bool:
    """Do its users ask again and again, so that a steady state can be seen?"""
    return point.users > 1 and point.rate_per_s is None and point.shape not in _ONCE


async def _few_at_once(every: Iterable[Awaitable[T]]) -> list[T]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(each: Awaitable[T]) -> T:
        async with room:
            return await each

    return list(await asyncio.gather(*(one(each) for each in every)))
