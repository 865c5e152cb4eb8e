"""Several users, step by step: against what can be worked out by hand, and against published runs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.facts.model.architecture import Architecture, FullAttention
from firesteel.planner.speed.decode import StepReads, step_ms, terms
from firesteel.planner.speed.prefill import PromptModel, prompt_ms
from firesteel.planner.speed.serving import (
    RequestShape,
    ServedRequest,
    ServingModel,
    serve_burst,
    serve_steadily,
    usual_requests,
)

SHAPE = Architecture("made", (FullAttention(8, 128, 128),) * 32, 4096, 32000, 131072, 0, 0)
COSTS = {"wide": 1.0, "kv": 1.0, "attention_layer": 0.05, "independence": 1.0}
PROMPT_COSTS = {"dense_wide": 15.0, "attention": 10.0, "recurrent": 0.0, "read": 1.0, "start": 40.0}
BANDWIDTH = 273e9


def model(tokens_per_step: int = 8192) -> ServingModel:
    reads = StepReads({"wide": 16e9}, {}, 0, 0, 0.0, 0.0, 32, 0, 0)
    prompts = PromptModel(
        SHAPE, "vllm", "dense_wide", 8e9, reads, COSTS, 1.0, BANDWIDTH, tokens_per_step, tokens_per_step
    )
    return ServingModel(prompts, "auto", COSTS, PROMPT_COSTS)


def rate(requests: RequestShape, served: list[ServedRequest]) -> float:
    return sum(
        1000 * (requests.answer_tokens - 1) / (one.end_ms - one.first_token_ms) for one in served
    ) / len(served)


def total(requests: RequestShape, users: int, served: list[ServedRequest]) -> float:
    return (
        1000
        * users
        * requests.answer_tokens
        * len(served)
        / sum(one.end_ms - one.arrived_ms for one in served)
    )


def test_one_user_waits_for_the_prompt_and_then_decodes() -> None:
    serving, requests = model(), RequestShape(12000, 257)
    (request,) = serve_burst(serving, 1, requests)
    assert request.first_token_ms == pytest.approx(
        prompt_ms(serving.prompts.prompt_terms(12000), PROMPT_COSTS)
    )
    reads = StepReads({"wide": 16e9}, {}, 0, 0, 2 * 2 * 8 * 128 * 32 * (12000 + 128), 0.0, 32, 0, 0)
    step = step_ms("vllm", terms(reads, BANDWIDTH), COSTS)[1]
    assert (request.end_ms - request.first_token_ms) / 256 == pytest.approx(step, rel=0.01)


def test_prompts_of_a_burst_are_read_one_after_the_other() -> None:
    """Two prompts that fill a step each: the second user waits twice as long, the first decodes slower."""
    requests = RequestShape(8000, 256)
    alone = serve_burst(model(), 1, requests)[0]
    burst = sorted(serve_burst(model(), 4, requests), key=lambda one: one.first_token_ms)
    assert burst[0].first_token_ms >= alone.first_token_ms
    gaps = [later.first_token_ms - one.first_token_ms for one, later in pairwise(burst)]
    assert all(gap > 0.8 * alone.first_token_ms for gap in gaps)
    assert burst[0].end_ms - burst[0].first_token_ms > 3 * 0.8 * alone.first_token_ms


def test_short_prompts_share_a_step() -> None:
    burst = serve_burst(model(), 8, RequestShape(1000, 64))
    assert len({one.first_token_ms for one in burst}) == 1


def test_a_cached_prefix_costs_no_arithmetic() -> None:
    users, whole = 8, RequestShape(16000, 512)
    shared = RequestShape(16000, 512, shared_tokens=12000)
    plain, cached = (serve_steadily(model(), users, requests) for requests in (whole, shared))
    assert total(shared, users, cached) > 1.2 * total(whole, users, plain)
    assert rate(shared, cached) > rate(whole, plain)


def test_without_prompts_to_speak_of_users_get_what_a_batch_of_them_gets() -> None:
    users, requests = 8, RequestShape(16, 4096)
    served = serve_steadily(model(), users, requests)
    reads = StepReads({"wide": 16e9}, {}, 0, 0, 2 * 2 * 8 * 128 * 32 * 2048, 0.0, 32, 0, 0)
    batch = 1000 / step_ms("vllm", terms(reads, BANDWIDTH, users), COSTS)[1]
    assert rate(requests, served) == pytest.approx(batch, rel=0.03)
    assert total(requests, users, served) == pytest.approx(users * batch, rel=0.05)


@settings(max_examples=60, deadline=None)
@given(
    users=st.integers(1, 40),
    prompt=st.integers(1, 40_000),
    answer=st.integers(2, 600),
    step=st.sampled_from([512, 2048, 8192]),
)
def test_time_runs_forward_and_everyone_is_served(users: int, prompt: int, answer: int, step: int) -> None:
    requests = RequestShape(prompt, answer)
    served = serve_steadily(model(step), users, requests, rounds=2)
    assert len(served) >= users
    assert all(one.arrived_ms < one.first_token_ms < one.end_ms for one in served)
    alone = serve_burst(model(step), 1, requests)[0]
    fastest = 1000 * (answer - 1) / (alone.end_ms - alone.first_token_ms)
    # The depth is an average over users, and steps are taken together: a percent for that.
    assert rate(requests, served) <= fastest * 1.01
    assert total(requests, users, served) <= users * fastest * 1.02


@pytest.mark.parametrize(
    ("context", "prompt", "answer", "shared", "expected"),
    [
        (131072, None, None, 0, RequestShape(8192, 512)),
        (16384, 16384, None, 0, RequestShape(15872, 512)),
        (16384, 30, None, 0, RequestShape(30, 512)),
        (100, None, None, 0, RequestShape(50, 50)),
        (16384, 16384, 1000, 20000, RequestShape(15384, 1000, 15383)),
        (1, None, None, 0, RequestShape(1, 1)),
    ],
)
def test_usual_requests(
    context: int, prompt: int | None, answer: int | None, shared: int, expected: RequestShape
) -> None:
    assert usual_requests(context, prompt, answer, shared) == expected
