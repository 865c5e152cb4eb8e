"""Runs against servers that are right, or wrong in one way: every fault is named, and no figure is made of
it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from firesteel.bench.load.client import RequestTimeouts
from firesteel.bench.load.measure import (
    RunFinished,
    RunOrder,
    RunProgress,
    RunStarted,
    SampleTaken,
    measure,
)
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.measurements import Point, RequestSettings, Subject
from firesteel.edge.sim.spark import SimSpark, TrueSpeed
from firesteel.edge.sim.spark import Text as PretendText
from firesteel.errors import ServerNotReady
from firesteel.values import replace
from tests.bench.faulty_server import MODEL, TEMPLATE, FaultyServer, serving, speaking
from tests.bench.paced_server import PacedServer, serving_paced
from tests.edge.sim.in_process import serving_engine
from tests.edge.sim.spark import VLLM, spark
from tests.simulated_time import SIMULATED_TIME

pytestmark = SIMULATED_TIME
POINT = Point("single", "prose", 1, 40, 24)
QUICK = RunLimits(budget_s=3, precision=0.5, least_repetitions=2, most_repetitions=3)
PATIENT = RequestTimeouts(20, 20, 30)


def assert_decode(done: RunFinished, truth: float) -> None:
    (found,) = done.run.figures
    assert found.decode_tokens_per_s is not None
    assert found.decode_tokens_per_s.value == pytest.approx(truth)


async def finish(order: RunOrder) -> RunFinished:
    (done,) = [event async for event in measure(order) if isinstance(event, RunFinished)]
    return done


async def run(url: str, point: Point = POINT, **more: Any) -> RunFinished:
    given = {"limits": QUICK, "timeouts": PATIENT, **more}
    return await finish(RunOrder(Subject(url, MODEL), (point,), **given))


async def test_a_correct_server_is_measured() -> None:
    server = FaultyServer(token_s=0.005)
    async with serving(server) as url:
        done = await run(url, limits=RunLimits(30, 0.02, 3, 4))
    (found,) = done.run.figures
    assert_decode(done, 200)
    assert not found.wrong and found.repetitions == found.samples >= 3
    assert found.ttft_mean_ms is not None and found.ttft_mean_ms.value == pytest.approx(10)
    assert found.cold["ttft_ms"] == pytest.approx(10)
    assert done.run.is_whole
    for sample in done.samples:
        assert sample.prompt_tokens == POINT.prompt_tokens + TEMPLATE
        assert sample.completion_tokens == 24 and len(sample.gaps_s) == 23


async def test_prompts_are_unique_and_depend_on_the_salt() -> None:
    server = FaultyServer(token_s=0)
    async with serving(server) as url:
        await run(url, salt="a")
        first = [each["messages"][0]["content"] for each in server.asked]
        server.asked.clear()
        await run(url, salt="a")
        again = [each["messages"][0]["content"] for each in server.asked]
        server.asked.clear()
        await run(url, salt="b")
        other = [each["messages"][0]["content"] for each in server.asked]
    assert len(set(first)) == len(first) >= 3
    assert first[:3] == again[:3]
    assert not {text[:12] for text in first} & {text[:12] for text in other}
    assert all(each["temperature"] == 0 and each["ignore_eos"] is True for each in server.asked)


FAULTS = {
    "500": ("http", "CUDA error"),
    "page": ("garbled", "not an event stream: <html>"),
    "breaks off": ("dropped", "without `finish_reason`"),
    "hangs up": ("dropped", ""),
    "error": ("dropped", "EngineCore died"),
    "garbage": ("garbled", "not JSON: {this is no JSON"),
    "stalls": ("stalled", "no data for "),
    "pauses": ("stalled", " s in the middle"),
    "endless": ("garbled", "no end after"),
    "no usage": ("no usage", "chunks are not tokens"),
    "not a number": ("no usage", ""),
    "half the tokens": ("wrong usage", "reports 12 tokens, but 24 chunks"),
    "twice the tokens": ("wrong usage", "reports 48 tokens where 24 were allowed"),
    "says more than it wrote": ("wrong usage", "its own tokenizer counts"),
    "another prompt": ("wrong usage", "its tokenizer counts 47"),
    "all from a cache": ("wrong usage", "cached tokens"),
    "short": ("short", "12 of 24 tokens"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_named_and_enters_no_figure(fault: str) -> None:
    kind, why = FAULTS[fault]
    more: dict[str, Any] = {"timeouts": RequestTimeouts(0.6, 0.4, 5)} if fault == "stalls" else {}
    point = replace(POINT, answer_tokens=64) if fault == "says more than it wrote" else POINT
    async with serving(FaultyServer(fault)) as url:
        done = await run(url, point, **more)
    (found,) = done.run.figures
    assert set(found.wrong) == {kind}, [each.why for each in done.samples]
    assert why in done.samples[-1].why
    assert (
        found.samples == 0
        and found.decode_tokens_per_s is None
        and found.ttft_ms == {}
        and found.total_tokens_per_s is None
    )
    assert any("nothing but wrong answers" in note for note in done.run.notes)
    assert len(done.samples) == 2, "it is given up after two visits"


async def test_an_occasionally_faulty_server_is_measured_by_the_rest() -> None:
    async with serving(FaultyServer("twice the tokens", every=3, token_s=0.005)) as url:
        done = await run(url, limits=RunLimits(30, 0.001, 5, 6))
    (found,) = done.run.figures
    assert_decode(done, 200)
    assert found.wrong == {"wrong usage": 2}
    assert found.samples == 4
    assert found.notes[0] == "2 of 6 requests wrong usage: reports 48 tokens where 24 were allowed"


async def test_streams_beside_a_failed_one_do_not_count() -> None:
    async with serving(FaultyServer("half the tokens", every=4)) as url:
        done = await run(url, replace(POINT, users=2))
    (found,) = done.run.figures
    good = sum(not each.wrong and not each.is_cold for each in done.samples)
    assert found.samples < good and any("also left out" in note for note in found.notes)


async def test_an_answer_in_one_piece_has_no_decode_rate() -> None:
    async with serving(FaultyServer("one piece")) as url:
        done = await run(url)
    (found,) = done.run.figures
    assert found.samples > 0 and found.decode_tokens_per_s is None and found.ttft_mean_ms is not None
    assert "came in one piece" in found.notes[0]


async def test_tokens_come_from_usage_and_not_from_chunks() -> None:
    async with serving(FaultyServer(tokens_a_chunk=4, token_s=0.004)) as url:
        done = await run(url, replace(POINT, answer_tokens=65), limits=RunLimits(30, 0.05, 3, 4))
    assert_decode(done, (65 - 4) / (64 * 0.004))  # the last is alone in its chunk
    assert len(done.samples[0].gaps_s) == 16


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
async def test_a_non_http_response_is_garbled(data: bytes) -> None:
    async with speaking(data) as url:
        done = await run(url)
    assert set(done.run.figures[0].wrong) == {"garbled"}


async def test_no_server_is_refused(free_port: int) -> None:
    done = await run(f"http://127.0.0.1:{free_port}")
    assert set(done.run.figures[0].wrong) == {"refused"}


async def test_without_a_tokenizer_lengths_are_estimates_and_noted() -> None:
    server = FaultyServer(has_tokenizer=False)
    async with serving(server) as url:
        done = await run(url, replace(POINT, prompt_tokens=400))
    assert any("no /tokenize" in note for note in done.run.notes)
    for sample in done.samples:
        assert not sample.wrong, sample.why
        assert sample.prompt_tokens == pytest.approx(400 + TEMPLATE, rel=0.1)


@pytest.mark.parametrize("server", [FaultyServer(obeys=False), FaultyServer("refuses ignore_eos")])
async def test_answers_that_end_early_are_accepted_without_ignore_eos(server: FaultyServer) -> None:
    async with serving(server) as url:
        done = await run(url)
    (found,) = done.run.figures
    assert not found.wrong and found.samples > 0
    assert any("ignore_eos" in note for note in done.run.notes)


async def test_a_turn_carries_all_turns_before_it() -> None:
    server = FaultyServer(token_s=0)
    async with serving(server) as url:
        done = await run(
            url, replace(POINT, turns=3, shared_tokens=60), limits=replace(QUICK, least_repetitions=1)
        )
    sizes = [len(each["messages"]) for each in server.asked]
    assert sizes[:3] == [1, 3, 5]
    first, second = (each["messages"][0]["content"] for each in (server.asked[0], server.asked[3]))
    assert first[:200] == second[:200] and first != second
    prompts = [each.prompt_tokens for each in done.samples[:3]]
    assert prompts[0] == 100 + TEMPLATE
    assert prompts[1] == 100 + 24 + 40 + 3 * TEMPLATE


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    server = FaultyServer(first_s=0.3, token_s=0)
    async with serving(server) as url:
        done = await run(
            url,
            replace(POINT, users=64, rate_per_s=40.0, answer_tokens=2),
            limits=replace(QUICK, least_repetitions=1),
        )
    warm = [each for each in done.samples if each.repetition == 1]
    assert len(warm) >= 30
    began = sorted(each.started_s - each.late_s for each in warm)
    assert began[-1] - began[0] > 0.3
    busiest = max(sum(a.started_s <= b.started_s < a.started_s + a.total_s for a in warm) for b in warm)
    assert busiest > 5
    assert (began[-1] - began[0]) / (len(began) - 1) == pytest.approx(1 / 40, rel=0.2)


async def test_the_seed_gives_the_order_of_points() -> None:
    async def order(seed: int) -> list[str]:
        points = tuple(replace(POINT, prompt_tokens=size, answer_tokens=2) for size in (30, 35, 40, 45))
        seen = []
        async with serving(FaultyServer(token_s=0)) as url:
            asked = RunOrder(Subject(url, MODEL), points, RequestSettings(seed=seed), limits=QUICK)
            async for event in measure(asked):
                if isinstance(event, RunProgress):
                    seen.append(event.text.split(":")[0])
        return seen[1:9]

    first, again, other = await order(1), await order(1), await order(2)
    assert first == again != other
    assert sorted(first[:4]) == sorted(first[4:]) and first[:4] != first[4:]


async def test_a_run_is_resumed() -> None:
    server = FaultyServer(token_s=0)
    async with serving(server) as url:
        order = RunOrder(Subject(url, MODEL), (POINT,), limits=replace(QUICK, precision=1e-9))
        kept, begun = [], []
        events = measure(order)
        async for event in events:
            if isinstance(event, RunStarted):
                begun.append(event.run)
            if isinstance(event, SampleTaken):
                kept.append(event.sample)
                if len(kept) == 2:
                    break
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert not begun[0].figures and not begun[0].is_whole
        done = await finish(replace(order, earlier_samples=tuple(kept)))
    assert list(done.samples[:2]) == kept
    assert [each.repetition for each in done.samples] == list(range(len(done.samples)))
    assert [each.is_cold for each in done.samples[:3]] == [True, False, False]
    assert len({each["messages"][0]["content"] for each in server.asked}) == len(server.asked)


# --- an engine whose truth is arithmetic ---


@pytest.mark.parametrize("slots", [512, 2])
async def test_figures_of_an_open_loop_include_queueing(slots: int) -> None:
    """One slot and twice the load: the queue grows, at the server or in the client."""
    engine = PacedServer(prefill_s=0.03, step_s=0.005, slots=1)
    point = replace(POINT, users=slots, rate_per_s=50.0, answer_tokens=3)
    async with serving_paced(engine) as url:
        done = await run(
            url,
            point,
            limits=replace(QUICK, most_repetitions=1),
            timeouts=RequestTimeouts(20, 20, 20),
            settings=RequestSettings(target={"ttft_ms": 200}),
        )
    (found,) = done.run.figures
    warm = sorted((each.started_s - each.late_s, each) for each in done.samples if not each.is_cold)
    free, truth = 0.0, []
    for due, _ in warm:
        begun = max(due, free)
        free = begun + 0.04
        truth.append(begun + 0.03 - due)
    assert len(warm) > 30 and not found.wrong, [each.why for _, each in warm]
    assert found.ttft_mean_ms is not None
    assert found.ttft_mean_ms.value / 1000 == pytest.approx(sum(truth) / len(truth))
    met = sum(wait <= 0.2 for wait in truth) / (len(truth) / 50)
    assert found.goodput_per_s == pytest.approx(met)
    assert found.goodput_per_s is not None and found.goodput_per_s < 25
    assert any(
        "of 50 requests per second: it does not keep up, and TTFT has no steady value" in x
        for x in found.notes
    )


async def test_no_overload_note_if_the_server_keeps_up() -> None:
    async with serving_paced(PacedServer(prefill_s=0.005, step_s=0.002)) as url:
        point = replace(POINT, users=512, rate_per_s=40.0, answer_tokens=8)
        limits = replace(QUICK, most_repetitions=2)
        done = await run(url, point, limits=limits, settings=RequestSettings(target={"ttft_ms": 5000}))
    (found,) = done.run.figures
    assert not any("keep up" in note for note in found.notes)
    assert found.goodput_per_s == pytest.approx(40), "all are met"


async def test_requests_without_a_slot_are_unsent_and_miss_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("firesteel.bench.load.repetition._DRAIN_S", 0.3)
    monkeypatch.setattr("firesteel.bench.load.repetition._DRAIN_FACTOR", 0.0)
    async with serving_paced(PacedServer(prefill_s=0.1, step_s=0.005, slots=1)) as url:
        point = replace(POINT, users=1, rate_per_s=40.0, answer_tokens=3)
        settings = RequestSettings(target={"ttft_ms": 60_000})
        done = await run(
            url,
            point,
            limits=replace(QUICK, most_repetitions=1),
            timeouts=RequestTimeouts(20, 20, 20),
            settings=settings,
        )
    (found,) = done.run.figures
    assert found.wrong["unsent"] > 5
    assert found.goodput_per_s is not None and found.goodput_per_s < 20
    assert any("had to wait for a free slot" in note for note in done.run.notes)


async def test_closed_loop_is_measured_while_all_users_are_active() -> None:
    """Steps go on while prompts are read one at a time: each request waits for the prompts of all others."""
    users, made, prefill, step = 4, 24, 0.03, 0.006
    async with serving_paced(PacedServer(prefill, step)) as url:
        point = replace(POINT, shape="sweep", users=users, answer_tokens=made)
        done = await run(url, point, limits=RunLimits(60, 0.001, 3, 3))
    (found,) = done.run.figures
    cycle = users * prefill + (made - 1) * step
    assert not found.wrong and found.repetitions == 3
    assert found.decode_tokens_per_s is not None and found.total_tokens_per_s is not None
    assert found.total_tokens_per_s.value == pytest.approx(users * made / cycle, rel=0.02)
    assert found.decode_tokens_per_s.value == pytest.approx((made - 1) / (cycle - prefill), rel=0.02)
    assert found.ttft_mean_ms is not None and found.ttft_mean_ms.value < 1000 * 1.6 * prefill
    assert found.decode_tokens_per_s.n == 3
    had = [
        sum(each.stream == user and each.repetition == 1 for each in done.samples) for user in range(users)
    ]
    assert had == [3] * users


async def test_a_burst_comes_at_once() -> None:
    async with serving_paced(PacedServer(0.01, 0.002)) as url:
        point = replace(POINT, shape="burst", users=3)
        done = await run(url, point, limits=replace(QUICK, most_repetitions=1))
    assert [each.stream for each in done.samples] == [None] * 6


async def test_a_large_first_chunk_does_not_raise_the_decode_rate() -> None:
    async with serving_paced(PacedServer(0.02, 0.005, held=20)) as url:
        done = await run(url, replace(POINT, answer_tokens=50), limits=RunLimits(30, 0.05, 2, 3))
    assert_decode(done, 200)
    assert done.samples[-1].first_tokens == 20


@pytest.mark.parametrize("collects", ["tokens", "events"])
@pytest.mark.parametrize("per_piece", [1, 4, 20, 96])
@pytest.mark.parametrize("has_tokenizer", [True, False])
async def test_prefill_is_true_or_left_out(
    per_piece: int, collects: Literal["tokens", "events"], has_tokenizer: bool
) -> None:
    """2,000 tok/s, however many tokens a piece holds; of an answer in one piece nobody can tell."""
    point = replace(POINT, prompt_tokens=512, answer_tokens=96)
    prompt_tokens = 512 + TEMPLATE
    engine = PacedServer(
        prompt_tokens / 2000, 0.008, per_piece=per_piece, collects=collects, has_tokenizer=has_tokenizer
    )
    async with serving_paced(engine) as url:
        done = await run(url, point, limits=RunLimits(60, 0.5, 3, 3))
    (found,) = done.run.figures
    assert not found.wrong and found.ttft_mean_ms is not None
    if per_piece == 96:
        assert found.prefill_tokens_per_s is None and found.decode_tokens_per_s is None
        assert "decode and prefill cannot be measured" in found.notes[0]
        return
    assert_decode(done, 125)
    assert found.prefill_tokens_per_s is not None
    near = 1e-6 if has_tokenizer else 0.02  # the length of the prompt is an estimate then
    assert found.prefill_tokens_per_s.value == pytest.approx(2000, rel=near)
    assert any("prefill leaves out the" in note for note in found.notes) == (per_piece > 1)


async def test_prefill_is_not_told_where_decode_was_most_of_the_wait() -> None:
    engine = PacedServer(0.02, 0.008, per_piece=20)
    async with serving_paced(engine) as url:
        done = await run(url, replace(POINT, prompt_tokens=512, answer_tokens=96))
    (found,) = done.run.figures
    assert found.decode_tokens_per_s is not None and found.prefill_tokens_per_s is None
    assert any("decoding them was most of the wait" in note for note in found.notes)


@pytest.mark.parametrize(
    ("held", "made", "more"),
    [(20, 50, {}), (10, 25, {"tells_held": False}), (30, 75, {"tells_held": False, "has_tokenizer": False})],
)
async def test_hidden_reasoning_leaves_decode_unknown(held: int, made: int, more: dict[str, Any]) -> None:
    """Whether `usage` reports it, the tokenizer shows it, or only the length of the text."""
    async with serving_paced(PacedServer(0.02, 0.005, held=held, shows_held=False, **more)) as url:
        done = await run(url, replace(POINT, prompt_tokens=200, answer_tokens=made))
    (found,) = done.run.figures
    assert not found.wrong and found.samples > 0 and found.ttft_mean_ms is not None
    assert found.decode_tokens_per_s is None and found.prefill_tokens_per_s is None
    (hidden,) = [note for note in found.notes if "were never shown" in note]
    assert held != 20 or "40% of the tokens" in hidden


async def test_a_short_budget_is_shared_among_the_points() -> None:
    """No number of users is left empty; only another kind of text is, and the run says so."""
    points = tuple(Point("quick", text, users, 40, 40) for users in (1, 4) for text in ("prose", "code"))
    async with serving(FaultyServer(first_s=0.2, token_s=0.005)) as url:
        done = await finish(RunOrder(Subject(url, MODEL), points, limits=RunLimits(2.5, 0.001)))
    assert done.run.is_whole
    visits = {(each.point.text, each.point.users): each.repetitions for each in done.run.figures}
    assert visits["prose", 1] >= 1 and visits["prose", 4] >= 1 and visits["code", 4] == 0
    assert abs(visits["prose", 1] - visits["prose", 4]) <= 1, visits
    assert any("left out or cut short" in note and "code with 4 users" in note for note in done.run.notes)


@pytest.mark.parametrize("budget_s", [5.0, 20.0, 60.0])
@pytest.mark.parametrize("token_s", [0.005, 0.05, 0.4])
async def test_a_budget_is_kept_within_a_tenth(budget_s: float, token_s: float) -> None:
    """Also by a server so slow that nothing can be measured; then it says how long would do."""
    points = tuple(Point("sweep", "prose", users, 100, 64) for users in (4, 1))
    async with serving_paced(PacedServer(0.2, token_s)) as url:
        began = time.perf_counter()
        done = await finish(RunOrder(Subject(url, MODEL), points, limits=RunLimits(budget_s, 0.0001)))
        assert time.perf_counter() - began <= 1.1 * budget_s
    has_figure = any(each.samples for each in done.run.figures)
    assert has_figure == (not done.too_short) and has_figure == (budget_s > 120 * token_s)
    if not has_figure:
        assert " is too short to measure anything here" in done.too_short and done.wanted_s > budget_s
    if not done.run.is_whole:
        assert any("with 4 users" in note and " would do" in note for note in done.run.notes), done.run.notes


async def test_a_server_that_never_answers_ends_with_the_budget() -> None:
    over = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        began = time.perf_counter()
        with pytest.raises(ServerNotReady, match="did not answer a few tiny requests in 10"):
            await run(url, limits=RunLimits(10))
        assert time.perf_counter() - began <= 11
        over.set()
        await asyncio.sleep(0.1)


async def test_precision_is_checked_from_the_sixth_repetition_on() -> None:
    async with serving(FaultyServer(token_s=0.001)) as url:
        done = await run(url, limits=RunLimits(20, 0.9))
    assert len({each.repetition for each in done.samples if not each.is_cold}) == 6


# --- the simulated Spark, whose speed is known ---


DRAFTS = ("--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}')


@pytest.fixture(scope="module")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    truth = TrueSpeed("openai/*", decode_tokens_per_s=150.0, prefill_tokens_per_s=4000.0)
    taken: dict[PretendText, float] = dict.fromkeys(get_args(PretendText), 0.7)
    world = SimSpark(images=("*",), truths=(truth,), jitter=0.01, acceptance=taken)
    return spark(tmp_path_factory.mktemp("truth"), world).folder


@pytest.mark.parametrize("more", [(), DRAFTS], ids=["plain", "drafts"])
async def test_a_simulated_spark_has_the_configured_speed(spark_folder: Path, more: tuple[str, ...]) -> None:
    """Drafted tokens come several to a chunk: whoever counts chunks finds half."""
    alone, four = Point("single", "code", 1, 64, 160), Point("sweep", "code", 4, 32, 96)
    async with serving_engine(spark_folder, *VLLM, *more) as (url, speed):
        points = (alone,) if more else (alone, four)
        last = await finish(RunOrder(Subject(url, "oss", "vllm"), points, limits=RunLimits(90, 0.001, 2, 2)))
    for found in last.run.figures:
        assert not found.wrong and found.decode_tokens_per_s is not None
        truth = speed.decode_tokens_per_s(found.point.users, "code")
        # Two visits; in a loop of four the prompts of the others are read in between, which is no error.
        near = 0.02 if found.point.users == 1 else 0.05
        assert found.decode_tokens_per_s.value == pytest.approx(truth, rel=near), found
    first = last.run.figures[0]
    assert (first.accepted_per_step or 1.0) == pytest.approx(speed.tokens_per_step("code"), rel=0.02)
    assert first.preemptions == 0
