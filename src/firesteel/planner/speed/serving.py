"""What several users get: requests served step by step as the engine's scheduler does it.

vLLM and llama.cpp fill each step in the same way: every running answer gets one token, and what is left of
the step's tokens goes to the prompts that wait, first come first served, in pieces where they are long. So a
prompt that arrives slows all answers down, and a queue of long prompts makes the last user wait for all the
others. One loop over steps shows all of it; there is no formula for each case. Users who only decode are a
batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import hypot

from firesteel.engines.kv_cache import KvCache
from firesteel.planner.speed.decode import (
    ErrorsSchema,
    ServedErrorsSchema,
    StepModel,
    constants,
    fitted_costs,
    kv_read_bytes,
    step_ms,
    terms,
)
from firesteel.planner.speed.prefill import PromptModel, prompt_ms
from firesteel.planner.speed.speed import DEPTH, BatchSpeed, ServedSpeed
from firesteel.units import Band
from firesteel.values import Value, replace

_MAX_STEPS_AT_ONCE = 128
"""Steps in which no request begins or ends are taken together; the cache grows a little meanwhile."""
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


# --- what users get ---

_MEASURED_USERS = 20
"""The most whose prompts arrive while others decode, in the published runs."""
_FEWER_ROUNDS = 64
"""With more users than this, two rounds show the steady state."""


def served_speed(
    model: StepModel, prompts: PromptModel, kv: KvCache, requests: RequestShape, decode_factor: float
) -> ServedSpeed | None:
    """None for one user. `decode_factor`: how much slower published runs of the model are than the fit."""
    if kv.users < 2:
        return None
    fitted = fitted_costs(model.launch)
    costs = {**model.costs, **fitted.crowd.costs}
    serving = ServingModel(prompts, kv.dtype, costs, fitted.prefill.costs, decode_factor)
    served = serve_steadily(serving, kv.users, requests, 4 if kv.users <= _FEWER_ROUNDS else 2)
    each = _mean(1000 * (requests.answer_tokens - 1) / (one.end_ms - one.first_token_ms) for one in served)
    cycle_ms = _mean(one.end_ms - one.arrived_ms for one in served)
    errors = _errors(model)
    # Beyond the measured numbers of users nothing holds the model: the band grows with the ratio.
    beyond = max(1.0, kv.users / _MEASURED_USERS) ** 0.5
    return ServedSpeed(
        kv.users,
        requests.prompt_tokens,
        requests.answer_tokens,
        requests.shared_tokens,
        _band(each, errors.each, beyond),
        _band(1000 * kv.users * requests.answer_tokens / cycle_ms, errors.total, beyond),
        _waits(_mean(one.first_token_ms - one.arrived_ms for one in served), errors.first_token, beyond),
        _explain(model, kv.users, requests, errors, prompts),
    )


def _mean(values: Iterable[float]) -> float:
    some = list(values)
    return sum(some) / len(some)  # `statistics` takes longer to import than a plan to make


def _errors(model: StepModel) -> ServedErrorsSchema:
    """No published run of llama.cpp has prompts arriving: vLLM's errors, and those of its own parts."""
    own = fitted_costs(model.launch)
    if own.served:
        return own.served
    known = constants().engines["vllm"]
    assert known.served

    def widened(errors: ErrorsSchema) -> ErrorsSchema:
        parts = (own.crowd.left_out, own.prefill.left_out)
        low = 1 - hypot(1 - errors.low, *(1 - part.low for part in parts))
        high = 1 + hypot(errors.high - 1, *(part.high - 1 for part in parts))
        return replace(errors, low=max(0.2, low), high=high)

    served = known.served
    return ServedErrorsSchema(
        each=widened(served.each), total=widened(served.total), first_token=widened(served.first_token)
    )


def _band(expected: float, errors: ErrorsSchema, beyond: float) -> Band:
    return Band(
        expected * min(1.0, errors.low) / beyond, expected, expected * (1 + (errors.high - 1) * beyond)
    )


def _waits(expected_ms: float, errors: ErrorsSchema, beyond: float) -> Band:
    """Errors are of rates: a high rate is a short wait."""
    return Band(expected_ms / errors.high / beyond, expected_ms, expected_ms / errors.low * beyond)


def _explain(
    model: StepModel, users: int, requests: RequestShape, errors: ServedErrorsSchema, prompts: PromptModel
) -> str:
    cached = f", {requests.shared_tokens:,} of them cached" if requests.shared_tokens else ""
    beyond = (
        f"; measured up to {_MEASURED_USERS} users, so the band is wider" if users > _MEASURED_USERS else ""
    )
    if fitted_costs(model.launch).served is None:
        beyond += f"; no published run of {model.launch.engine} has prompts arriving, so the band is wider"
    return (
        f"every user sends a prompt of {requests.prompt_tokens:,} tokens{cached}, gets "
        f"{requests.answer_tokens:,}, and sends the next at once; simulated in steps of "
        f"{prompts.tokens_per_step:,} tokens; models left out were off by {errors.each.mean:.0%} each and "
        f"{errors.total.mean:.0%} in all{beyond}"
    )


# --- all decoding at once ---


def batch_speed(model: StepModel, kv: KvCache, single_user: Band) -> BatchSpeed | None:
    """None for one user."""
    if kv.users < 2:
        return None
    fit = fitted_costs(model.launch).crowd
    batch_model = replace(model, costs={**model.costs, **fit.costs})
    depth = min(DEPTH, kv.context)

    def rate(independence: float) -> float:
        return batch_model.tokens_per_s(batch_model.terms(depth, kv.users, independence)).expected

    engines = constants().engines
    expected = rate(engines["vllm"].crowd.costs["independence"])
    low = min(rate(1.0), expected * fit.left_out.low)
    high = max(rate(engines["llamacpp"].crowd.costs["independence"]), expected * fit.left_out.high)
    per_user = _at_most(Band(low, expected, high), single_user)
    explanation = (
        f"{fit.fitted.runs} runs of 2 to 32 users, off by {fit.left_out.mean:.0%} for models left out; "
        "slower when prompts have nothing in common, faster when they share experts"
    )
    return BatchSpeed(kv.users, per_user, per_user.scaled(kv.users), explanation)


def _at_most(rate: Band, single_user: Band) -> Band:
    """No user in a batch is faster than one alone, although the two separate fits may predict it."""
    if rate.expected <= single_user.expected:
        return rate
    expected = single_user.expected
    return Band(min(rate.low, single_user.low), expected, max(expected, min(rate.high, single_user.high)))
