"""One repetition of a point: write its prompts, apply the load, turn the streams into samples.

Prompts are written and tokenized before the load begins, and streams are parsed after it has ended: during
the load nothing else runs here but the clock and the sockets.

    closed loop  each user asks again as soon as it is answered, until it has all its answers. Users start one
                 after the other, spread over the duration of one request, as if they had been at it for a
                 while; figures count the time in which all of them are active
    once         one user, a burst, and the first (cold) repetition: each user asks once
    open loop    each request is sent at its own time. One that has to wait for a free slot keeps its due
                 time: its user has waited that long
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Iterable, Sequence
from statistics import median
from typing import Any, TypeVar

from msgspec import Struct, field

from firesteel.bench.load.client import (
    ClientCost,
    RawResponse,
    RequestTimeouts,
    TargetServer,
    chat_body,
    stream_request,
)
from firesteel.bench.load.prompts import Message, Prompt, PromptWriter
from firesteel.bench.load.server import Prepared
from firesteel.bench.load.transcript import (
    ExpectedSample,
    Transcript,
    first_chunk_tokens,
    read_stream,
    to_sample,
    usage_contradicts_text,
    with_hidden_tokens,
)
from firesteel.bench.measurements import Point, RequestSample
from firesteel.bench.results.figures import is_hidden, usual_gap_s
from firesteel.edge.host.process import uptime
from firesteel.values import Value, replace

T = TypeVar("T")
_TOKENIZE_AT_ONCE = 8
_RECOUNTED_ANSWERS = 4
"""Answers per repetition that are tokenized again, to check `usage`."""
_COUNTED_FIRST_CHUNKS = 64
"""First chunks per repetition that the tokenizer counts, where they hold more than one token."""
MIN_ARRIVALS, _MAX_ARRIVALS = 8, 500
"""Requests of one repetition of an open loop."""
_DRAIN_FACTOR, _DRAIN_S = 4.0, 30.0
"""How long answers are awaited after the arrivals of an open loop: this multiple of their time, plus a fixed
part."""
_ROUNDS = 3
_ONCE = ("burst",)
"""Shapes whose purpose is that all requests come at once."""
_MIN_PREFILL_TOKENS_PER_S = 20.0
"""Slower than any machine worth measuring."""
_MAX_WAIT_S = 1800.0
Messages = list[Message]


class SharedLoad(Value):
    """What all repetitions of a run share."""

    server: TargetServer
    model: str
    prepared: Prepared
    cost: ClientCost
    salt: str
    """Makes the prompts of this run differ from those of the previous one."""
    seed: int
    began: float
    """Start of the run, by `time.perf_counter`."""
    prefill_tokens_per_s: float | None = None
    """Lower end of the plan's band."""
    timeouts: RequestTimeouts | None = None
    """None: derived from the plan and from earlier samples."""
    open_s: float = 20.0
    """How long requests arrive in one repetition of an open loop."""
    rounds: int = _ROUNDS
    """Answers for every user of a closed loop."""
    own: Sequence[Prompt] = ()
    """Prompts of the user's own; empty: they are generated."""


class _Exchange(Struct):
    """One request and its response."""

    expected: ExpectedSample
    raw: RawResponse
    transcript: Transcript | None = None


class Repetition(Struct):
    load: SharedLoad
    point_index: int
    point: Point
    number: int
    is_cold: bool
    earlier: Sequence[RequestSample] = ()
    """Samples of this point from earlier repetitions: the timeouts depend on them."""
    window: tuple[float, float] = (0.0, 0.0)
    """When the load was applied, by `uptime`."""
    queued: int = 0
    """Requests of an open loop that had to wait for a free slot."""
    _exchanges: list[_Exchange] = []
    _unsent: list[RequestSample] = []
    _deadline: float = float("inf")
    """When an open loop ends, even with requests still open."""
    _timeouts: RequestTimeouts = field(default_factory=RequestTimeouts)

    async def run(self) -> list[RequestSample]:
        conversations = await self._write_prompts()
        # Read all earlier samples now: there are so many that no request may wait for it.
        self._timeouts, request_s = self._derive_timeouts(), self._usual_request_s()
        began = uptime()
        with self.load.cost.under_load() as lateness:
            if self._is_open_loop:
                await self._open_loop(conversations)
            elif self._is_closed_loop:
                await self._closed_loop(conversations, request_s)
            else:
                await asyncio.gather(*(self._converse(turns) for turns in conversations))
        self.window = began, uptime()
        return [replace(sample, client_late_s=lateness.p99_s) for sample in await self._samples()]

    @property
    def _is_open_loop(self) -> bool:
        return self.point.rate_per_s is not None

    @property
    def _is_closed_loop(self) -> bool:
        return is_closed_loop(self.point) and not self.is_cold

    # --- prompts ---

    @property
    def _writer(self) -> PromptWriter:
        return self.load.prepared.writers[self.point.text]

    def _seed(self, *parts: object) -> str:
        return "/".join(str(part) for part in (self.load.seed, self.point_index, *parts))

    async def _write_prompts(self) -> list[list[Prompt]]:
        """Write the prompts of each conversation, one for each turn."""
        point, count, shared = self.point, self.point.users, ""
        if point.shared_tokens:  # equal in every repetition of the point
            tag = f"Shared by all of part {self.point_index} in {self.load.salt}"
            seed = self._seed("shared")
            shared = f"{(await self._writer.prompt(point.text, point.shared_tokens, seed, tag)).text}\n"
        if point.rate_per_s is not None:
            count = round(min(_MAX_ARRIVALS, max(MIN_ARRIVALS, point.rate_per_s * self.load.open_s)))
        elif self._is_closed_loop:  # a conversation of several turns is several answers
            count *= -(-self.load.rounds // point.turns)
        if own := self.load.own:  # all of them in turn, over the repetitions
            first = self.number * count
            return [[own[(first + stream) % len(own)]] for stream in range(count)]
        return await gather_limited(self._conversation(stream, shared) for stream in range(count))

    async def _conversation(self, stream: int, shared: str) -> list[Prompt]:
        prompts = []
        for turn in range(self.point.turns):
            tag = f"Part {self.load.salt}-{self.point_index}-{self.number}-{stream}-{turn}"
            prefix = shared if turn == 0 else ""
            size = self.point.prompt_tokens + (self.point.shared_tokens if turn == 0 else 0)
            seed = self._seed(self.number, stream, turn)
            prompts.append(await self._writer.prompt(self.point.text, size, seed, tag, prefix))
        return prompts

    # --- load ---

    async def _closed_loop(self, conversations: Sequence[Sequence[Prompt]], request_s: float) -> None:
        """A fixed number of answers per user, fast or slow: two servers get the same requests."""
        users, began = self.point.users, time.perf_counter()
        spacing_s = request_s / users

        async def user(stream: int) -> None:
            await asyncio.sleep(max(0.0, began + stream * spacing_s - time.perf_counter()))
            for turns in conversations[stream::users]:
                await self._converse(turns, stream=stream)

        await asyncio.gather(*map(user, range(users)))

    def _usual_request_s(self) -> float:
        """How long one request takes, by earlier samples. The fastest TTFT counts: the cold one is not
        typical."""
        times = [
            (sample.first_s, sample.last_s)
            for sample in self.earlier
            if not sample.wrong and sample.first_s is not None and sample.last_s
        ]
        if not times:
            return 0.0
        return median(last - first for first, last in times) + min(first for first, _ in times)

    async def _converse(
        self,
        turns: Sequence[Prompt],
        due: float | None = None,
        queued_s: float = 0.0,
        stream: int | None = None,
    ) -> None:
        """A conversation: every turn carries all turns before it."""
        messages: Messages = [*turns[0].before]
        previous_tokens = 0
        for prompt in turns:
            messages.append({"role": "user", "content": prompt.text})
            template = self.load.prepared.template_tokens
            is_first = len(messages) == 1 and not self.load.own  # a template may trim or read own text
            expected_tokens = prompt.tokens + template if is_first and template is not None else None
            exchange = await self._send(messages, expected_tokens, due, queued_s, stream)
            due, queued_s = None, 0.0  # later turns are due when they are sent
            if len(turns) == 1:
                return
            exchange.transcript = transcript = read_stream(exchange.raw)
            prompt_tokens = transcript.usage.get("prompt_tokens")
            if not transcript.is_done or not isinstance(prompt_tokens, int):
                return
            if prompt_tokens < previous_tokens + prompt.tokens // 2:
                # It cannot hold the turns before it: let the check of `usage` fail.
                exchange.expected = replace(
                    exchange.expected,
                    prompt_tokens=previous_tokens + prompt.tokens,
                    slack=prompt.tokens // 2,
                )
            previous_tokens = prompt_tokens
            messages.append({"role": "assistant", "content": transcript.text})

    async def _send(
        self,
        messages: Messages,
        expected_tokens: int | None,
        due: float | None,
        queued_s: float,
        stream: int | None,
    ) -> _Exchange:
        point, load = self.point, self.load
        body = chat_body(load.model, messages, point.answer_tokens, load.prepared.extra)
        began = time.perf_counter()
        timeouts = self._timeouts
        if self._is_open_loop:  # an overload must end as well: no request is awaited beyond the deadline
            timeouts = replace(timeouts, whole_s=min(timeouts.whole_s, self._left_s))
        raw = await stream_request(load.server, body, timeouts, point.answer_tokens)
        late_s = 0.0
        if due is not None:
            late_s = max(0.0, raw.sent - due)
            queued_s += max(0.0, raw.sent - began)  # waiting for a connection is the server's fault
        expected = ExpectedSample(
            point=self.point_index,
            repetition=self.number,
            started_s=raw.sent - load.began,
            max_tokens=point.answer_tokens,
            prompt_tokens=expected_tokens,
            slack=load.prepared.slack(expected_tokens or 0),
            must_continue=load.prepared.obeys_ignore_eos,
            late_s=late_s,
            queued_s=queued_s,
            stream=stream,
            is_cold=self.is_cold,
        )
        exchange = _Exchange(expected, raw)
        self._exchanges.append(exchange)
        return exchange

    async def _open_loop(self, conversations: Sequence[Sequence[Prompt]]) -> None:
        """Send each request at its own time, drawn beforehand, without waiting for answers. The times are
        those of a Poisson process with exactly this many arrivals in the window: the rate is the one asked
        for."""
        assert self.point.rate_per_s is not None
        rng = random.Random(self._seed(self.number, "arrivals"))
        slots = asyncio.Semaphore(self.point.users)
        window_s, now = len(conversations) / self.point.rate_per_s, time.perf_counter()
        dues = sorted(now + rng.uniform(0, window_s) for _ in conversations)
        self._deadline = now + window_s * (1 + _DRAIN_FACTOR) + _DRAIN_S

        async def arrive(turns: Sequence[Prompt], due: float) -> None:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            must_wait, began = slots.locked(), time.perf_counter()
            self.queued += must_wait
            try:
                async with asyncio.timeout(self._left_s):
                    await slots.acquire()
            except TimeoutError:
                self._record_unsent(due)
                return
            try:
                await self._converse(turns, due, time.perf_counter() - began if must_wait else 0.0)
            finally:
                slots.release()

        await asyncio.gather(*map(arrive, conversations, dues))

    def _record_unsent(self, due: float) -> None:
        waited_s = time.perf_counter() - due
        why = f"not sent: {self.point.users} requests were open for {waited_s:.1f} s"
        started_s = due - self.load.began + waited_s
        self._unsent.append(
            RequestSample(
                self.point_index, self.number, started_s, wrong="unsent", why=why, late_s=waited_s,
                queued_s=waited_s, is_cold=self.is_cold,
            )
        )  # fmt: skip

    @property
    def _left_s(self) -> float:
        return max(0.05, self._deadline - time.perf_counter())

    def _derive_timeouts(self) -> RequestTimeouts:
        """The timeouts that were given, or timeouts derived from the plan and from earlier samples."""
        if self.load.timeouts is not None:
            return self.load.timeouts
        point, good = self.point, [sample for sample in self.earlier if not sample.wrong]
        firsts = [sample.first_s for sample in good if sample.first_s is not None]
        gap_s = usual_gap_s(good)
        if len(firsts) >= 2:
            slowest = max(firsts)
            first = max(10.0, 10 * slowest)
            between = max(5.0, 3 * slowest, 100 * (gap_s or 0))
        else:
            rate = max(1.0, (self.load.prefill_tokens_per_s or _MIN_PREFILL_TOKENS_PER_S) / 2)
            later_turns = (point.turns - 1) * (point.prompt_tokens + point.answer_tokens)
            tokens = point.users * (point.depth + later_turns)
            first = between = min(_MAX_WAIT_S, 30 + tokens / rate)
        whole = first + point.answer_tokens * 20 * (gap_s or 0.1) + between
        return RequestTimeouts(first, between, min(2 * _MAX_WAIT_S, whole))

    # --- samples ---

    async def _samples(self) -> list[RequestSample]:
        transcripts = [each.transcript or read_stream(each.raw) for each in self._exchanges]
        longest = max((found.times[0] for found in transcripts if found.times), default=0.0)
        samples = [
            to_sample(each.raw, transcript, replace(each.expected, longest_ttft_s=longest))
            for each, transcript in zip(self._exchanges, transcripts, strict=True)
        ]
        if self.load.prepared.is_exact:
            await self._recount(samples, transcripts)
        else:
            for index, transcript in enumerate(transcripts):
                counted = await self._writer.count(transcript.text)
                samples[index] = with_hidden_tokens(samples[index], transcript, counted, is_exact=False)
        return samples + self._unsent

    async def _recount(self, samples: list[RequestSample], transcripts: Sequence[Transcript]) -> None:
        """Tokenize answers again, starting where `usage` and the number of chunks differ most."""
        good = [index for index, sample in enumerate(samples) if not sample.wrong]
        good.sort(key=lambda index: len(transcripts[index].times) - (samples[index].completion_tokens or 0))
        for index in [index for index in good if samples[index].first_tokens > 1][:_COUNTED_FIRST_CHUNKS]:
            counted = await self._writer.count(transcripts[index].first_text)
            tokens = first_chunk_tokens(transcripts[index], counted or None)
            samples[index] = replace(samples[index], first_tokens=tokens)
        suspicious = 0
        for checked, index in enumerate(good):
            if checked >= _RECOUNTED_ANSWERS + 2 * suspicious:  # where one is wrong, the next may be
                return
            sample, transcript = samples[index], transcripts[index]
            reported = (sample.completion_tokens or 0) - sample.hidden_tokens
            counted = await self._writer.count(transcript.text)
            if counted and usage_contradicts_text(reported, counted, len(transcript.times)):
                suspicious += 1
                why = f"reports {reported} tokens; its own tokenizer counts {counted} in the answer"
                samples[index] = replace(sample, wrong="wrong usage", why=why)
            elif counted:
                samples[index] = with_hidden_tokens(sample, transcript, counted)
                suspicious += is_hidden(samples[index])


def is_closed_loop(point: Point) -> bool:
    """Do its users ask again and again, so that there is a steady state to measure?"""
    return point.users > 1 and point.rate_per_s is None and point.shape not in _ONCE


async def gather_limited(tasks: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    slots = asyncio.Semaphore(_TOKENIZE_AT_ONCE)

    async def limited(task: Coroutine[Any, Any, T]) -> T:
        try:
            async with slots:
                return await task
        finally:
            task.close()  # one that was cancelled before its turn

    return list(await asyncio.gather(*map(limited, tasks)))
