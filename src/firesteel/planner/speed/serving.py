"""Requests of several users, served step by step as the engine's scheduler does it.

vLLM and llama.cpp fill each step in the same way: every running answer gets one token, and what is left of
the step's tokens goes to the prompts that wait, first come first served, in pieces where they are long. So a
prompt that arrives slows all answers down, and a queue of long prompts makes the last user wait for all the
others. One loop over steps shows all of it; there is no formula for each case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from firesteel.planner.speed.decode import kv_read_bytes, step_ms, terms
from firesteel.planner.speed.prefill import PromptModel, prompt_ms
from firesteel.values import Value, replace

_MAX_STEPS_AT_ONCE = 128
"""Steps in which nobody comes or goes are taken together; the cache grows a little meanwhile."""
_DEPTH_STEP = 64
_PROMPT_TOKENS, _ANSWER_TOKENS = 8192, 512


class RequestShape(Value):
    """What users send."""

    prompt_tokens: int
    answer_tokens: int
    shared_tokens: int = 0
    """How much of each prompt the engine has cached already."""


def usual_requests(
    context: int, prompt: int | None = None, answer: int | None = None, shared: int = 0
) -> RequestShape:
    """What is not asked for: prompts of 8,192 tokens and answers of 512, less where the context is short."""
    answer = min(answer or _ANSWER_TOKENS, max(1, context // 2))
    prompt = max(1, min(prompt or _PROMPT_TOKENS, context - answer))
    return RequestShape(prompt, answer, min(shared, prompt - 1))


class ServingModel:
    """The time of a step of one launch, whatever is in it."""

    def __init__(
        self,
        prompts: PromptModel,
        kv_dtype: str,
        costs: Mapping[str, float],
        prompt_costs: Mapping[str, float],
        decode_factor: float = 1.0,
    ) -> None:
        """`costs`: of decoding with several users. `decode_factor`: what measurements made of its time."""
        self.prompts = prompts
        self.start_ms = prompt_costs["start"]
        self._kv_dtype, self._costs, self._prompt_costs = kv_dtype, costs, prompt_costs
        self._decode_factor = decode_factor
        self._weights_ms: dict[int, float] = {}
        self._kv_ms: dict[int, float] = {}

    def step_ms(self, decoding: int, depth: float, pieces: Sequence[tuple[int, int]]) -> float:
        """`decoding` users, `depth` tokens into their conversations on average, and pieces of prompts."""
        kv_ms = decoding * self._read_kv_ms(depth) * self._decode_factor
        if pieces:
            return prompt_ms(self.prompts.step_terms(pieces, decoding), self._prompt_costs) + kv_ms
        return self._read_weights_ms(decoding) * self._decode_factor + kv_ms

    def _read_weights_ms(self, decoding: int) -> float:
        if decoding not in self._weights_ms:
            model = self.prompts
            reads = replace(model.reads, kv_bytes=0.0)
            parts = terms(reads, model.bandwidth, decoding, self._costs["independence"])
            self._weights_ms[decoding] = step_ms(model.engine, parts, self._costs)[1]
        return self._weights_ms[decoding]

    def _read_kv_ms(self, depth: float) -> float:
        """Of one user; in steps of a few tokens, since layers with windows make it slow to work out."""
        near = round(depth / _DEPTH_STEP) * _DEPTH_STEP
        if near not in self._kv_ms:
            size = kv_read_bytes(self.prompts.shape, near, self._kv_dtype)
            self._kv_ms[near] = 1000 * size / self.prompts.bandwidth * self._costs["kv"]
        return self._kv_ms[near]


class ServedRequest(Value):
    arrived_ms: float
    first_token_ms: float
    end_ms: float


def serve_burst(model: ServingModel, users: int, requests: RequestShape) -> list[ServedRequest]:
    """All users send one request at the same moment, as benchmarks do."""
    return _serve(model, requests, [0.0] * users, 1)


def serve_steadily(
    model: ServingModel, users: int, requests: RequestShape, rounds: int = 4
) -> list[ServedRequest]:
    """Every user sends the next request as soon as the last one is answered; without the first of each.

    They begin evenly spread over the time of one request, so that no burst is left to see.
    """
    alone = serve_burst(model, 1, requests)[0].end_ms
    served = _serve(model, requests, [alone * user / users for user in range(users)], rounds)
    return served[users:] or served


class _Waiting:
    def __init__(self, arrived_ms: float, tokens_left: int) -> None:
        self.arrived_ms, self.tokens_left = arrived_ms, tokens_left


def _fill_step(waiting: Iterable[_Waiting], room: int, prompt_tokens: int) -> list[tuple[int, int]]:
    pieces = []
    for prompt in waiting:
        if room < 1:
            break
        size = min(prompt.tokens_left, room)
        pieces.append((size, prompt_tokens - prompt.tokens_left))
        prompt.tokens_left -= size
        room -= size
    return pieces


def _serve(
    model: ServingModel, requests: RequestShape, arrivals: list[float], rounds: int
) -> list[ServedRequest]:
    """In the order in which they end. Runs until as many requests as `rounds` for each user are answered."""
    new_tokens = max(1, requests.prompt_tokens - requests.shared_tokens)
    coming = sorted(arrivals)  # times at which a user sends
    waiting: deque[_Waiting] = deque()
    running: list[tuple[int, float, float]] = []  # (number of the step that ends it, arrived, first token)
    served: list[ServedRequest] = []
    now, count, done_tokens = 0.0, 0, 0
    while len(served) < rounds * len(arrivals):
        while coming and coming[0] + model.start_ms <= now:
            waiting.append(_Waiting(heappop(coming), new_tokens))
        if not running and not waiting:
            now = coming[0] + model.start_ms
            continue
        pieces = _fill_step(waiting, model.prompts.tokens_per_step - len(running), requests.prompt_tokens)
        depth = requests.prompt_tokens + done_tokens / max(1, len(running))
        ms, steps = model.step_ms(len(running), depth, pieces), 1
        if not pieces:
            until_next = int((coming[0] + model.start_ms - now) / ms) + 1 if coming else _MAX_STEPS_AT_ONCE
            steps = min(running[0][0] - count, max(1, until_next), _MAX_STEPS_AT_ONCE)
        now, count, done_tokens = now + steps * ms, count + steps, done_tokens + steps * len(running)
        while running and running[0][0] <= count:
            _, arrived, first = heappop(running)
            served.append(ServedRequest(arrived, first, now))
            done_tokens -= requests.answer_tokens - 1
            if rounds > 1:
                heappush(coming, now)
        while waiting and not waiting[0].tokens_left:
            arrived = waiting.popleft().arrived_ms
            heappush(running, (count + max(1, requests.answer_tokens - 1), arrived, now))
    return served
