"""Timing: a client that measures finds the true speed that the Spark was given."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.edge.sim import tokenizer
from firesteel.edge.sim.answers import reply
from firesteel.edge.sim.batch import ActiveAnswer, Batch, EngineSpeed
from firesteel.edge.sim.engine_config import engine_config
from firesteel.edge.sim.spark import SimSpark, TrueSpeed
from tests.edge.sim.in_process import serving_engine
from tests.edge.sim.spark import LLAMACPP, VLLM, Spark, spark
from tests.simulated_time import SIMULATED_TIME

pytestmark = SIMULATED_TIME
DECODE, PREFILL = 120.0, 4000.0


def speed(**more: Any) -> EngineSpeed:
    defaults: dict[str, Any] = {
        "step_ms": [(1, 1000 / DECODE), (4, 2000 / DECODE)], "depths": [(0, 1.0)],
        "prefill_tokens_per_s": PREFILL, "batched_tokens": 2048, "users": 4, "context": 16384,
        "pool_tokens": 32768, "pool_blocks": 0, "concurrency": 4.0, "drafts": 0,
        "acceptance": {"prose": 0.55, "code": 0.75}, "draft_cost": 0.25, "jitter": 0.0, "seed": 0,
        "caches_prefixes": True,
    }  # fmt: skip
    return EngineSpeed.read({**defaults, **more})


async def serve(truth: EngineSpeed, sequences: list[ActiveAnswer]) -> tuple[Batch, list[float]]:
    """Seconds from the first to the last token of each sequence."""
    batch, clock = Batch(truth), asyncio.get_running_loop().time
    running = asyncio.create_task(batch.run())

    async def decode_s(sequence: ActiveAnswer) -> float:
        batch.add(sequence)
        times = []
        while await sequence.out.get() is not None:
            times.append(clock())
        return times[-1] - times[0]

    seconds = await asyncio.gather(*(decode_s(sequence) for sequence in sequences))
    running.cancel()
    return batch, list(seconds)


def request(tokens: int, text: str = "prose", prompt: int = 16) -> ActiveAnswer:
    return ActiveAnswer(prompt, [("content", "x")] * tokens, text)


async def decode_rate(
    truth: EngineSpeed, tokens: int, users: int = 1, text: str = "prose"
) -> tuple[Batch, float]:
    """Tokens a second of the slowest."""
    batch, seconds = await serve(truth, [request(tokens + 1, text) for _ in range(users)])
    return batch, tokens / max(seconds)


async def test_one_user_finds_the_decode_rate() -> None:
    _, rate = await decode_rate(speed(), 120)
    assert rate == pytest.approx(DECODE)


async def test_four_users_share_longer_steps() -> None:
    _, rate = await decode_rate(speed(), 60, users=4)
    assert rate == pytest.approx(DECODE / 2, rel=0.02)


async def test_drafting_gives_what_acceptance_and_cost_say() -> None:
    truth = speed(drafts=3)
    batch, rate = await decode_rate(truth, 200, text="code")
    gain = sum(0.75**position for position in range(4)) / (1 + 0.25 * 3)
    assert truth.decode_tokens_per_s(text="code") == pytest.approx(gain * DECODE)
    assert rate == pytest.approx(gain * DECODE, rel=0.02)
    counters, expected = batch.counters, sum(0.75**position for position in range(4))
    assert 1 + counters.accepted / counters.drafts == pytest.approx(expected, rel=0.05)


async def test_prompts_are_read_at_the_prefill_rate_and_wait_for_free_cache() -> None:
    batch, _ = await serve(speed(pool_tokens=3000), [request(2, prompt=1000), request(2, prompt=2500)])
    seconds = sorted(batch.counters.first_token_s)
    assert seconds == pytest.approx([1000 / PREFILL, 3500 / PREFILL + 1 / DECODE])


async def test_a_client_that_disconnects_frees_its_slot() -> None:
    truth = speed(users=1)
    batch = Batch(truth)
    running = asyncio.create_task(batch.run())
    endless, next_one = request(10_000), request(3)
    batch.add(endless)
    await endless.out.get()
    batch.add(next_one)
    endless.is_gone = True
    assert await asyncio.wait_for(next_one.out.get(), 120)
    running.cancel()


# --- over HTTP ---


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Spark:
    truths = (
        TrueSpeed("openai/*", decode_tokens_per_s=DECODE, prefill_tokens_per_s=PREFILL),
        TrueSpeed("openai/*", when={"max-num-seqs": "8"}, decode_times=1.5),
    )
    return spark(tmp_path_factory.mktemp("pace"), SimSpark(images=("*",), truths=truths))


async def test_a_client_measures_the_true_speed(host: Spark) -> None:
    times = []
    async with serving_engine(host.folder, *VLLM) as (url, _), aiohttp.ClientSession() as client:
        body = {"prompt": "Once upon a time", "max_tokens": 181, "ignore_eos": True, "stream": True}
        async with client.post(f"{url}/v1/completions", json=body) as answer:
            async for line in answer.content:
                if b'"text": "' in line and b'"text": ""' not in line:
                    times.append(time.perf_counter())
    assert len(times) == 181
    assert 180 / (times[-1] - times[0]) == pytest.approx(DECODE)


def _speed(host: Spark, *arguments: str) -> dict[str, Any]:
    speed: dict[str, Any] = engine_config([*arguments], host.folder, "id", {})["speed"]
    return speed


def test_flags_can_have_their_own_true_speed(host: Spark) -> None:
    plain, many = _speed(host, *VLLM), _speed(host, *VLLM, "--max-num-seqs", "8")
    assert plain["step_ms"][0] == (1, pytest.approx(1000 / DECODE))
    assert many["step_ms"][0] == (1, pytest.approx(1000 / DECODE / 1.5))
    assert plain["prefill_tokens_per_s"] == PREFILL
    planned = _speed(host, *LLAMACPP)
    assert len(planned["depths"]) > 1 and planned["step_ms"][1][1] > planned["step_ms"][0][1]


# --- tokens and answers ---


@given(st.text())
def test_the_pieces_of_a_text_are_the_text(text: str) -> None:
    assert "".join(tokenizer.pieces(text)) == text


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is 2+2?", "2+2 = 4."),
        ("What is 7 \u00d7 8?", "7 * 8 = 56."),
        ("What is (3 + 4) * 5? Answer with only the number.", "35"),
        ("What is 1 / 0?", ""),
        ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
        ('Reply with exactly "blue fox".', "blue fox"),
        ("Reply with the single word OK.", "OK"),
        ("Count from 1 to 5.", "1, 2, 3, 4, 5"),
        ("List three colors.", "red, green, blue"),
        ("How many days are in a week?", "There are 7 days in a week."),
    ],
)
def test_answers(question: str, expected: str) -> None:
    answer = reply(question)
    assert answer == reply(question)
    assert answer.content == expected if expected else len(answer.content) > 100
