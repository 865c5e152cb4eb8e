"""Warm-up of a server whose first request of each size is slow, as with compiled kernels."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from tests.run.garbler import MODEL, Garbler, make_app
from tests.simulated_time import SIMULATED_TIME

from firesteel.errors import FiresteelError
from firesteel.planner.plan import PlanSummary
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.service import ServiceSpec
from firesteel.run.verify.expected import Expected
from firesteel.run.verify.session import (
    LARGE,
    MIDDLE,
    SMALL,
    HostRates,
    WarmUpLimits,
    filler,
    has_settled,
    prompt_sizes,
    tokens_within,
    warm,
    with_needles,
)
from firesteel.run.verify.verify import VerifyBudget
from firesteel.units import Band

pytestmark = SIMULATED_TIME
FAST = Expected(context=40_000, plan=PlanSummary(prefill_tokens_per_s=Band(1e6, 1e7, 1e8)))


@dataclass(slots=True)
class Lazy:
    """Compiles once a size (a power of four), and keeps whatever it has read."""

    compile_s: float = 0.3
    compiled: set[int] = field(default_factory=set)
    prompts: list[str] = field(default_factory=list)

    async def before(self, request: web.Request) -> None:
        prompt = (await request.json())["messages"][-1]["content"]
        size = len(prompt.split()).bit_length() // 2
        is_known = any(prompt[:60] == old[:60] for old in self.prompts)
        if size not in self.compiled and not is_known:
            self.compiled.add(size)
            await asyncio.sleep(self.compile_s)
        self.prompts.append(prompt)


async def run(
    lazy: Lazy,
    expect: Expected,
    limits: WarmUpLimits | None = None,
    context_tokens: int = 10**6,
    seen: list[Event] | None = None,
) -> list[Event]:
    """`seen` receives the events even if it raises."""
    events = [] if seen is None else seen

    @web.middleware
    async def slow(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.endswith("completions"):
            await lazy.before(request)
            if len(lazy.prompts[-1].split()) > context_tokens:
                return web.json_response({"error": {"message": "too long"}}, status=400)
        return await handler(request)

    app = make_app(Garbler())
    app.middlewares.append(slow)
    runner = web.AppRunner(app, shutdown_timeout=0.2, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    spec = ServiceSpec(MODEL, f"http://127.0.0.1:{runner.addresses[0][1]}", MODEL, ())
    try:
        async for event in warm(spec, expect, limits=limits):
            events.append(event)
        return events
    finally:
        await runner.cleanup()


def lengths(lazy: Lazy) -> list[int]:
    return [len(prompt.split()) for prompt in lazy.prompts]


async def test_each_size_is_repeated_until_it_gets_no_faster() -> None:
    lazy = Lazy()
    events = await run(lazy, FAST)
    # The first pays, the second does not, and the third shows that the second did not.
    assert len(lazy.prompts) == 9
    assert 0.95 < lengths(lazy)[-1] / LARGE < 1.05
    assert isinstance(events[-1], PhaseDone) and "s, then" in events[-1].text
    assert all(isinstance(event, PhaseProgress) for event in events[:-1])


async def test_no_two_prompts_begin_alike() -> None:
    lazy = Lazy(compile_s=0)
    await run(lazy, FAST)
    starts = [prompt[:40] for prompt in lazy.prompts]
    assert len(starts) == len(set(starts)) >= 6


async def test_the_rounds_are_limited() -> None:
    class Slower(Lazy):
        async def before(self, request: web.Request) -> None:
            await Lazy.before(self, request)
            await asyncio.sleep(max(0.0, 0.8 - 0.25 * len(self.prompts)))

    lazy = Slower(compile_s=0)
    await run(lazy, FAST, WarmUpLimits(60, 60, rounds=3))
    assert len(lazy.prompts) <= 9


async def test_sizes_that_would_take_too_long_are_skipped() -> None:
    lazy = Lazy(compile_s=0)
    slow = Expected(context=40_000, plan=PlanSummary(prefill_tokens_per_s=Band(100, 200, 300)))
    events = await run(lazy, slow, WarmUpLimits(prompt_s=1, total_s=60))
    assert max(lengths(lazy)) < MIDDLE
    # The measured speed may allow more than the plan; otherwise an event says that it was skipped.
    assert (
        any("skipped" in event.text for event in events if isinstance(event, PhaseProgress))
        or len(lazy.prompts) > 4
    )


async def test_a_refused_prompt_size_is_skipped() -> None:
    lazy = Lazy(compile_s=0)
    events = await run(lazy, FAST, context_tokens=5000)
    assert any(
        "the engine refused" in event.text and "(400)" in event.text
        for event in events
        if isinstance(event, PhaseProgress)
    )
    assert isinstance(events[-1], PhaseDone)


async def test_a_hung_engine_is_given_up_after_the_announced_time() -> None:
    lazy = Lazy(compile_s=7200)
    events: list[Event] = []
    with pytest.raises(FiresteelError, match=r"did not answer a prompt of about 32 tokens within 1 s$") as e:
        await run(lazy, FAST, WarmUpLimits(60, 60, compile_s=1), seen=events)
    assert e.value.next
    assert isinstance(events[-1], PhaseProgress) and "waiting up to 1.0 s" in events[-1].text


def test_the_timeout_grows_with_the_prompt_and_shrinks_with_the_speed() -> None:
    """A first prompt on a GPU may build kernels for three minutes; a CPU builds nothing."""
    gpu, cpu = WarmUpLimits.of(Expected()), WarmUpLimits.of(Expected(is_cpu=True))
    slow, fast = HostRates(1500, 20), HostRates(3000, 20)
    assert 180 <= gpu.wait_s(SMALL, slow) < 200 and gpu.wait_s(SMALL, HostRates()) == 180
    assert 200 < gpu.wait_s(LARGE, slow) < 300
    assert gpu.wait_s(LARGE, fast) < gpu.wait_s(LARGE, slow)
    assert 20 <= cpu.wait_s(SMALL, HostRates(250, 20)) <= 60
    assert gpu.wait_s(SMALL, HostRates(0, 0)) < 300


def test_the_timeout_follows_the_plan_of_a_slow_host() -> None:
    """At one token a second the template's tokens and the answer alone take longer than 40 s."""
    planned = PlanSummary(decode_tokens_per_s=Band(1, 3, 5), prefill_tokens_per_s=Band(30, 60, 90))
    expected = Expected(is_cpu=True, plan=planned)
    assert HostRates.of(expected) == HostRates(1, 1)
    assert WarmUpLimits.of(expected).wait_s(SMALL, HostRates.of(expected)) > 40 + 2 * (SMALL + 64 + 8)
    on_gpu = HostRates.of(Expected(plan=planned))
    assert on_gpu == HostRates(30, 1)
    assert VerifyBudget.of(expected).request_s >= 5 * VerifyBudget().request_s
    usual = Expected(plan=PlanSummary(decode_tokens_per_s=Band(20, 30, 40)))
    assert VerifyBudget.of(usual) == VerifyBudget.of(Expected()) == VerifyBudget()


async def test_a_slow_host_is_waited_for_as_long_as_announced() -> None:
    """Its first answer takes longer than a usual host may take."""
    lazy = Lazy(compile_s=3)
    planned = PlanSummary(decode_tokens_per_s=Band(20, 30, 40), prefill_tokens_per_s=Band(1e6, 1e7, 1e8))
    events = await run(lazy, Expected(is_cpu=True, plan=planned), WarmUpLimits(60, 60, 2, compile_s=1))
    assert isinstance(events[0], PhaseProgress) and "waiting up to 17 s" in events[0].text
    assert isinstance(events[-1], PhaseDone)


async def test_events_say_whether_the_template_is_counted() -> None:
    events = await run(Lazy(compile_s=0), FAST)
    first, last = events[0], events[-1]
    assert isinstance(first, PhaseProgress) and first.text.startswith(
        "a prompt of about 32 tokens of text, first time"
    )
    assert isinstance(last, PhaseDone) and last.text.endswith("(with the chat template's tokens)")


async def test_time_is_bounded() -> None:
    lazy = Lazy(compile_s=30)
    events = await run(lazy, FAST, WarmUpLimits(60, total_s=20))
    assert len(lazy.prompts) == 1 and isinstance(events[-1], PhaseDone)


def test_prompt_sizes_leave_space_for_an_answer() -> None:
    assert prompt_sizes(131_072) == (SMALL, MIDDLE, LARGE)
    assert prompt_sizes(4096) == (SMALL, MIDDLE, 3072)
    assert prompt_sizes(1024) == (SMALL, 768)
    assert prompt_sizes(64) == (48,)
    assert prompt_sizes(None)[-1] < 2048
    assert tokens_within(26_000, 250, 60) == 15_000 and tokens_within(26_000, None, 1) == 26_000


def test_settled() -> None:
    assert not has_settled([])
    assert not has_settled([30.0])
    assert not has_settled([30.0, 0.5])
    assert has_settled([30.0, 0.5, 0.48])
    assert has_settled([0.5, 0.6])


def test_a_prompt_has_its_needle_once_and_the_requested_length() -> None:
    for words in (50, 500, 20_000):
        text = with_needles(words, 7, {"mill": "mango-4821", "barn": "mango-17", "inn": "mango-9"})
        places = [text.find(needle) / len(text) for needle in ("mango-4821", "mango-17.", "mango-9.")]
        assert text.count("mango-") == 3
        assert places[0] < 0.2 and 0.3 < places[1] < 0.7 and places[2] > 0.8
        assert 0.8 * words < len(text.split()) < 1.1 * words + 40
    assert filler(100, 1)[:20] != filler(100, 2)[:20] and filler(100, 1) == filler(100, 1)
