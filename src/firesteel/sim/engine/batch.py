"""Continuous batching, as time: who is in the batch, how long a step takes, who gets a token at its end.

One step serves everybody. It takes what decoding so many sequences takes, and what reading the next piece of
a prompt takes. Steps end at absolute times, each counted from the one before and never from when a timer
went off: lateness does not add up, so a client that measures long enough finds the truth.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LATE_S = 1.0
"""Further behind than that, the clock starts anew: a burst would be worse than a pause."""
_BLOCK = 16
CACHED_BLOCKS = 60_000


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """The truth about one engine, as `order` wrote it."""

    step_ms: Sequence[tuple[int, float]]
    depths: Sequence[tuple[int, float]]
    prefill_tokens_per_s: float
    batched_tokens: int
    users: int
    context: int
    pool_tokens: int
    pool_blocks: int
    concurrency: float
    drafts: int
    acceptance: Mapping[str, float]
    draft_cost: float
    jitter: float
    seed: int
    caches_prefixes: bool

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> EngineSpeed:
        pairs = {key: [(int(a), float(b)) for a, b in told[key]] for key in ("step_ms", "depths")}
        return cls(**{**told, **pairs})

    def decode_s(self, users: int, depth: float) -> float:
        """One step of so many sequences, that deep on average, with what drafting adds."""
        plain = _between(self.step_ms, users) * _between(self.depths, depth) / 1000
        return plain * (1 + self.draft_cost * self.drafts * (1 + 0.1 * (users - 1)))

    def tokens_a_step(self, text: str) -> float:
        """How many come of one step on average, with the launch's drafter."""
        rate = self.acceptance.get(text, 0.5)
        return sum(rate**position for position in range(self.drafts + 1))

    def decode_tokens_per_s(self, users: int = 1, text: str = "prose", depth: float = 1024) -> float:
        """What a client should find for one of so many users: the truth, for tests and benchmarks."""
        return self.tokens_a_step(text) / self.decode_s(users, depth)


def _between(points: Sequence[tuple[int, float]], at: float) -> float:
    """On the line through the two nearest points, and on beyond the ends; never below half the least."""
    if len(points) == 1:
        return points[0][1]
    index = min(max(bisect_right([x for x, _ in points], at), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return max(min(y for _, y in points) / 2, y0 + (y1 - y0) * (at - x0) / (x1 - x0))


@dataclass(eq=False)
class ActiveAnswer:
    """One answer under way."""

    prompt_tokens: int
    pieces: list[tuple[str, str]]
    text: str
    blocks: list[int] = field(default_factory=list)
    unread: int = 0
    """Of the prompt."""
    cached: int = 0
    sent: int = 0
    credit: float = 0.0
    out: asyncio.Queue[list[tuple[str, str]] | None] = field(default_factory=asyncio.Queue)
    is_gone: bool = False
    """Its client went away."""
    arrived: float = 0.0
    first: float | None = None

    @property
    def tokens(self) -> int:
        """Of the pool, when it is done."""
        return self.prompt_tokens + len(self.pieces)


@dataclass
class BatchCounters:
    """Since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0
    finished: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    by_position: list[int] = field(default_factory=list)
    prompt_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: list[float] = field(default_factory=list)


class Batch:
    def __init__(self, pace: EngineSpeed) -> None:
        self.pace = pace
        self.running: list[ActiveAnswer] = []
        self.waiting: deque[ActiveAnswer] = deque()
        self.counted = BatchCounters(by_position=[0] * pace.drafts)
        self.is_stuck: Callable[[], bool] = lambda: False
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._news = asyncio.Event()
        self._at = 0.0
        self._chance = random.Random(pace.seed)

    def add(self, sequence: ActiveAnswer) -> None:
        sequence.arrived = asyncio.get_running_loop().time()
        self.waiting.append(sequence)
        self._news.set()

    @property
    def pool_share(self) -> float:
        held = sum(each.prompt_tokens + each.sent for each in self.running)
        return min(1.0, held / max(1, self.pace.pool_tokens))

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._admit()
            if not self.running:
                self._news.clear()
                await self._news.wait()
                self._at = loop.time()
                continue
            if self.is_stuck():
                await asyncio.sleep(0.1)
                self._at = loop.time()
                continue
            if loop.time() - self._at > _LATE_S:
                self._at = loop.time()
            reading = next((each for each in self.running if each.unread), None)
            took = self._step_s(reading)
            self._at += took
            await asyncio.sleep(max(0.0, self._at - loop.time()))
            self._advance(reading, took)

    def _admit(self) -> None:
        self.running = [each for each in self.running if not each.is_gone]
        held = sum(each.tokens for each in self.running)
        while self.waiting and len(self.running) < self.pace.users:
            first = self.waiting[0]
            if not first.is_gone and self.running and held + first.tokens > self.pace.pool_tokens:
                return
            self.waiting.popleft()
            if first.is_gone:
                continue
            held += first.tokens
            self._look_up(first)
            self.running.append(first)

    def _look_up(self, sequence: ActiveAnswer) -> None:
        """What of the prompt is cached is not read again; the last token always is."""
        shared = 0
        for block in sequence.blocks if self.pace.caches_prefixes else ():
            if block not in self._cache:
                break
            self._cache.move_to_end(block)
            shared += 1
        sequence.cached = min(shared * _BLOCK, sequence.prompt_tokens - 1)
        sequence.unread = sequence.prompt_tokens - sequence.cached
        for block in sequence.blocks:
            self._cache[block] = None
        while len(self._cache) > CACHED_BLOCKS:
            self._cache.popitem(last=False)
        self.counted.prompt_tokens += sequence.prompt_tokens
        self.counted.cached_tokens += sequence.cached

    def _step_s(self, reading: ActiveAnswer | None) -> float:
        writing = [each for each in self.running if not each.unread]
        took = (
            min(reading.unread, self.pace.batched_tokens) / self.pace.prefill_tokens_per_s if reading else 0.0
        )
        if writing:
            depth = sum(each.prompt_tokens + each.sent for each in writing) / len(writing)
            took += self.pace.decode_s(len(writing), depth)
        if self.pace.jitter:
            took *= max(0.2, self._chance.gauss(1.0, self.pace.jitter))
        return took

    def _advance(self, reading: ActiveAnswer | None, took: float) -> None:
        for each in self.running:
            if not each.unread and not each.is_gone:
                self._give(each, self._accepted(each) + 1)
        if reading is None:
            self.counted.decode_s += took
            return
        self.counted.prompt_s += took
        reading.unread -= min(reading.unread, self.pace.batched_tokens)
        if not reading.unread:
            reading.first = asyncio.get_running_loop().time()
            self.counted.first_token_s.append(reading.first - reading.arrived)
            del self.counted.first_token_s[:-1000]
            self._give(reading, 1)

    def _accepted(self, sequence: ActiveAnswer) -> int:
        """Drafted tokens that were right: on average exactly what the truth says, in whole numbers."""
        if not self.pace.drafts:
            return 0
        sequence.credit += self.pace.tokens_a_step(sequence.text) - 1
        right = min(int(sequence.credit + 1e-9), self.pace.drafts)
        sequence.credit -= right
        self.counted.drafts += 1
        self.counted.drafted += self.pace.drafts
        self.counted.accepted += right
        for position in range(right):
            self.counted.by_position[position] += 1
        return right

    def _give(self, sequence: ActiveAnswer, many: int) -> None:
        piece = sequence.pieces[sequence.sent : sequence.sent + many]
        sequence.sent += len(piece)
        self.counted.generated += len(piece)
        if piece:
            sequence.out.put_nowait(piece)
        if sequence.sent >= len(sequence.pieces):
            sequence.out.put_nowait(None)
            sequence.is_gone = True
            self.counted.finished += 1
