"""Continuous batching as timing: what is in the batch, how long a step takes, who gets a token at its end.

One step serves all sequences. It takes as long as decoding all of them, plus reading the next piece of
a prompt. Steps end at absolute times, each counted from the one before and never from when a timer fired:
delays do not add up, so a client that measures long enough finds the true speed.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from firesteel.values import Value

_MAX_LATE_S = 1.0
"""When it is further behind, the clock restarts: a burst would be worse than a pause."""
_BLOCK = 16
CACHED_BLOCKS = 60_000


class EngineSpeed(Value):
    """The true speed of one engine, as `engine_config` wrote it."""

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
    def read(cls, document: Mapping[str, Any]) -> EngineSpeed:
        pairs = {key: [(int(a), float(b)) for a, b in document[key]] for key in ("step_ms", "depths")}
        return cls(**{**document, **pairs})

    def decode_s(self, users: int, depth: float) -> float:
        """One step of this many sequences at an average depth, including what drafting adds."""
        without_drafts = _interpolate(self.step_ms, users) * _interpolate(self.depths, depth) / 1000
        return without_drafts * (1 + self.draft_cost * self.drafts * (1 + 0.1 * (users - 1)))

    def tokens_per_step(self, text: str) -> float:
        """How many tokens one step gives on average, with the launch's drafter."""
        rate = self.acceptance.get(text, 0.5)
        return sum(rate**position for position in range(self.drafts + 1))

    def decode_tokens_per_s(self, users: int = 1, text: str = "prose", depth: float = 1024) -> float:
        """What a client should measure for one of this many users: what tests and benchmarks expect."""
        return self.tokens_per_step(text) / self.decode_s(users, depth)


def _interpolate(points: Sequence[tuple[int, float]], x: float) -> float:
    """Linear between the two nearest points and beyond the ends; never below half the smallest value."""
    if len(points) == 1:
        return points[0][1]
    index = min(max(bisect_right([known for known, _ in points], x), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return max(min(y for _, y in points) / 2, y0 + (y1 - y0) * (x - x0) / (x1 - x0))


class ActiveAnswer(Struct, eq=False):
    """One answer in progress."""

    prompt_tokens: int
    pieces: list[tuple[str, str]]
    text: str
    blocks: list[int] = []
    unread: int = 0
    """Tokens of the prompt that are still to be read."""
    cached: int = 0
    sent: int = 0
    credit: float = 0.0
    """Accepted draft tokens that are due, in fractions."""
    out: asyncio.Queue[list[tuple[str, str]] | None] = field(default_factory=asyncio.Queue)
    is_gone: bool = False
    """It is complete, or its client disconnected."""
    arrived: float = 0.0
    first: float | None = None

    @property
    def tokens(self) -> int:
        """What it takes of the KV cache when it is complete."""
        return self.prompt_tokens + len(self.pieces)


class BatchCounters(Struct):
    """Totals since the engine started."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0
    finished: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    by_position: list[int] = []
    prompt_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: list[float] = []


class Batch:
    def __init__(self, speed: EngineSpeed) -> None:
        self.speed = speed
        self.running: list[ActiveAnswer] = []
        self.waiting: deque[ActiveAnswer] = deque()
        self.counters = BatchCounters(by_position=[0] * speed.drafts)
        self.is_stuck: Callable[[], bool] = lambda: False
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._work_arrived = asyncio.Event()
        self._step_end = 0.0
        self._random = random.Random(speed.seed)

    def add(self, sequence: ActiveAnswer) -> None:
        sequence.arrived = asyncio.get_running_loop().time()
        self.waiting.append(sequence)
        self._work_arrived.set()

    @property
    def pool_share(self) -> float:
        used = sum(sequence.prompt_tokens + sequence.sent for sequence in self.running)
        return min(1.0, used / max(1, self.speed.pool_tokens))

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._admit()
            if not self.running:
                self._work_arrived.clear()
                await self._work_arrived.wait()
                self._step_end = loop.time()
                continue
            if self.is_stuck():  # the fault `hang`: requests stay in the batch and get no token
                await asyncio.sleep(0.1)
                self._step_end = loop.time()
                continue
            if loop.time() - self._step_end > _MAX_LATE_S:
                self._step_end = loop.time()
            reading = next((sequence for sequence in self.running if sequence.unread), None)
            step_s = self._step_s(reading)
            self._step_end += step_s
            await asyncio.sleep(max(0.0, self._step_end - loop.time()))
            self._advance(reading, step_s)

    def _admit(self) -> None:
        self.running = [sequence for sequence in self.running if not sequence.is_gone]
        reserved = sum(sequence.tokens for sequence in self.running)
        while self.waiting and len(self.running) < self.speed.users:
            first = self.waiting[0]
            # An answer that could never fit is admitted when it is alone, as it would block all others.
            if not first.is_gone and self.running and reserved + first.tokens > self.speed.pool_tokens:
                return
            self.waiting.popleft()
            if first.is_gone:
                continue
            reserved += first.tokens
            self._look_up_prefix(first)
            self.running.append(first)

    def _look_up_prefix(self, sequence: ActiveAnswer) -> None:
        """Tokens of a cached prefix are not read again; the last token of a prompt always is."""
        shared = 0
        for block in sequence.blocks if self.speed.caches_prefixes else ():
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
        self.counters.prompt_tokens += sequence.prompt_tokens
        self.counters.cached_tokens += sequence.cached

    def _step_s(self, reading: ActiveAnswer | None) -> float:
        speed, step_s = self.speed, 0.0
        if reading:
            step_s = min(reading.unread, speed.batched_tokens) / speed.prefill_tokens_per_s
        if decoding := [sequence for sequence in self.running if not sequence.unread]:
            depth = sum(sequence.prompt_tokens + sequence.sent for sequence in decoding) / len(decoding)
            step_s += speed.decode_s(len(decoding), depth)
        if speed.jitter:
            step_s *= max(0.2, self._random.gauss(1.0, speed.jitter))
        return step_s

    def _advance(self, reading: ActiveAnswer | None, step_s: float) -> None:
        for sequence in self.running:
            if not sequence.unread and not sequence.is_gone:
                self._send(sequence, self._accepted_drafts(sequence) + 1)
        if reading is None:
            self.counters.decode_s += step_s
            return
        self.counters.prompt_s += step_s
        reading.unread -= min(reading.unread, self.speed.batched_tokens)
        if not reading.unread:
            reading.first = asyncio.get_running_loop().time()
            self.counters.first_token_s.append(reading.first - reading.arrived)
            del self.counters.first_token_s[:-1000]  # a long benchmark must not grow it
            self._send(reading, 1)

    def _accepted_drafts(self, sequence: ActiveAnswer) -> int:
        """How many drafted tokens are right: whole numbers whose average is exactly the true rate."""
        if not self.speed.drafts:
            return 0
        sequence.credit += self.speed.tokens_per_step(sequence.text) - 1
        accepted = min(int(sequence.credit + 1e-9), self.speed.drafts)
        sequence.credit -= accepted
        self.counters.drafts += 1
        self.counters.drafted += self.speed.drafts
        self.counters.accepted += accepted
        for position in range(accepted):
            self.counters.by_position[position] += 1
        return accepted

    def _send(self, sequence: ActiveAnswer, count: int) -> None:
        pieces = sequence.pieces[sequence.sent : sequence.sent + count]
        sequence.sent += len(pieces)
        self.counters.generated += len(pieces)
        if pieces:
            sequence.out.put_nowait(pieces)
        if sequence.sent >= len(sequence.pieces):
            sequence.out.put_nowait(None)
            sequence.is_gone = True
            self.counters.finished += 1
