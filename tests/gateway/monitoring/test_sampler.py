"""The sampler: from the meter's counters and the engines' pages to rows and recent activity."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from firesteel.facts.host.gpus import GpuReading
from firesteel.gateway.admin.meter import Meter
from firesteel.gateway.admin.status import health_sentence
from firesteel.gateway.executor import ModelView
from firesteel.gateway.interfaces import OutcomeKind, RequestOutcome, Usage
from firesteel.gateway.monitoring.sampler import CurveSampler, page_activity, pause_s
from firesteel.gateway.monitoring.store import RANGES, VALUES, CurveStore, curves_document
from firesteel.gateway.scheduler.events import ModelPhase, ScheduledModel
from firesteel.gateway.service_config import ModelConfig

T0 = 1_800_000_000


class Gateway:
    """A meter, two models and a clock."""

    def __init__(self, folder: Path) -> None:
        self.meter = Meter(["coder", "small"])
        self.phases: dict[str, ModelPhase] = {"coder": "ready", "small": "off"}
        self.waiting = 0
        self.page = ""
        self.now = float(T0)
        self.power_w = 60.0
        self.said: list[str] = []
        self.sampler = CurveSampler(
            CurveStore(folder / "curves.db"),
            self.meter.totals,
            self.views,
            self.pages,
            gpu=lambda: GpuReading("NVIDIA GB10", temperature_c=50, power_w=self.power_w, clock_mhz=2000),
            wall_clock=lambda: self.now,
            clock=lambda: self.now,
            notify=self.said.append,
        )

    def views(self) -> list[ModelView]:
        return [
            ModelView(
                ModelConfig(name, "", ()),
                ScheduledModel(name, phase, 1, self.waiting, 1000, 0.0, "", 0.0, False, False, False),
                None,
                None,
            )
            for name, phase in self.phases.items()
        ]

    async def pages(self) -> Mapping[str, str]:
        return {"coder": self.page}

    async def step(self, seconds: float = 5.0) -> dict[str, dict[str, float | None]]:
        """The values of the step that ends now, by model."""
        self.now += seconds
        await self.sampler.sample()
        points = self.sampler.store.query(RANGES["15m"], self.now)
        start = int(self.now) - 5
        return {
            model: dict(zip(VALUES, found[start], strict=False))
            for model, found in points.items()
            if start in found
        }


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    gateway = Gateway(tmp_path)
    await gateway.sampler.sample()  # the first has nothing to compare with
    yield gateway
    await gateway.sampler.close()


def stream(meter: Meter, pieces: int, key: str = "laptop") -> None:
    counters = meter.counters("coder", key)
    counters.first(0.3)
    for _ in range(pieces - 1):
        counters.gap(0.02)


def end(
    meter: Meter, tokens: int, *, is_stream: bool = True, cached: int = 0, how: OutcomeKind = "whole"
) -> None:
    usage = Usage(100, tokens, cached)
    outcome = RequestOutcome(how, 200, usage, is_stream=is_stream, first_s=0.3, waited_s=0.1)
    meter.counters("coder", "laptop").finish("chat", outcome)


async def test_a_stream_moves_the_curve_while_it_runs_and_counts_once(gateway: Gateway) -> None:
    stream(gateway.meter, 100)
    assert (await gateway.step())["coder"]["tokens_per_s"] == 20.0
    stream(gateway.meter, 100, "desktop")
    end(gateway.meter, 100)
    end(gateway.meter, 100)
    assert (await gateway.step())["coder"]["tokens_per_s"] == 20.0, "its end adds nothing"


async def test_a_percentile_is_never_beyond_what_was_seen(gateway: Gateway) -> None:
    """26.8 s is between bounds of 25 and 50: its p50 was 37.5 s."""
    gateway.meter.counters("coder", "laptop").first(26.8)
    gateway.meter.counters("coder", "desktop").record_gaps(0.0, [0.021, 0.051])
    values = (await gateway.step())["coder"]
    assert values["ttft_p50_s"] == values["ttft_p95_s"] == 26.8
    assert 0.021 <= (values["gap_p50_s"] or 0) <= (values["gap_p95_s"] or 0) <= 0.0301
    gateway.meter.counters("coder", "laptop").first(0.3)
    assert (await gateway.step())["coder"]["ttft_p95_s"] == 0.3, "the least and the most are of one step"


async def test_a_few_requests_are_a_range(gateway: Gateway) -> None:
    for seconds in (0.2, 26.8, 1.0):
        gateway.meter.counters("coder", "laptop").first(seconds)
    await gateway.step()
    points = gateway.sampler.store.query(RANGES["15m"], gateway.now)
    document = json.loads(await curves_document(RANGES["15m"], int(gateway.now) - 10, points, {}))
    series = {row["name"]: row for row in document["series"] if row["model"] == "coder"}
    assert series["ttft_p50_s"]["few"][1] == {"requests": 3, "least": 0.2, "most": 26.8}
    assert "few" not in series["tokens_per_s"]
    for _ in range(20):
        gateway.meter.counters("coder", "laptop").first(1.0)
    await gateway.step()
    points = gateway.sampler.store.query(RANGES["15m"], gateway.now)
    document = json.loads(await curves_document(RANGES["15m"], int(gateway.now) - 10, points, {}))
    assert [row["few"][1] for row in document["series"] if row["name"] == "ttft_p50_s"] == [None, None]


async def test_pieces_with_several_tokens(gateway: Gateway) -> None:
    stream(gateway.meter, 100)
    end(gateway.meter, 300)
    await gateway.step()
    stream(gateway.meter, 100)
    values = await gateway.step()
    assert values["coder"]["tokens_per_s"] == pytest.approx(100 * 1.5 / 5), "300 tokens in 200 pieces so far"


async def test_an_answer_that_is_not_streamed_counts_at_its_end(gateway: Gateway) -> None:
    end(gateway.meter, 250, is_stream=False)
    assert (await gateway.step())["coder"]["tokens_per_s"] == 50.0


async def test_what_a_row_has(gateway: Gateway) -> None:
    gateway.waiting = 3
    gateway.page = "vllm:kv_cache_usage_perc 0.25\n"
    stream(gateway.meter, 50)
    values = await gateway.step()
    assert values["coder"]["ttft_p50_s"] == pytest.approx(0.3)
    assert values["coder"]["gap_p95_s"] == pytest.approx(0.02, abs=0.005)
    assert (values["coder"]["queue"], values["coder"]["kv_used"]) == (3.0, 0.25)
    assert values["coder"]["memory_bytes"] == 1000.0 and values["coder"]["power_w"] is None
    assert values[""]["power_w"] == 60.0 and values[""]["queue"] == 6.0, "the machine has the sum"
    assert (values[""]["memory_bytes"] or 0) > 1e6, "and the memory that is in use here"


async def test_a_model_that_is_off_has_no_values(gateway: Gateway) -> None:
    assert set(await gateway.step()) == {"coder", ""}
    gateway.phases["small"] = "loading"
    assert set(await gateway.step()) == {"coder", "small", ""}


async def test_recent_activity_is_of_the_last_five_minutes(gateway: Gateway) -> None:
    page = "vllm:spec_decode_num_draft_tokens_total {}\nvllm:spec_decode_num_accepted_tokens_total {}\n"
    gateway.page = page.format(0, 0)
    await gateway.step()
    gateway.page = page.format(1000, 600)
    stream(gateway.meter, 50)
    end(gateway.meter, 50, cached=80)
    end(gateway.meter, 5, how="broke")
    await gateway.step()
    recent = gateway.sampler.recent("coder")
    assert recent.acceptance == 0.6 and recent.tokens_per_s == pytest.approx(11.0)
    assert (recent.requests, recent.broke, sum(recent.cached_firsts)) == (2, 1, 1)
    for _ in range(60):
        await gateway.step()
    recent = gateway.sampler.recent("coder")
    assert (recent.requests, recent.drafted, sum(recent.gaps)) == (0, 0, 0)
    assert gateway.sampler.recent("nobody").requests == 0


async def test_a_load_does_not_make_a_model_look_slow(gateway: Gateway) -> None:
    counters = gateway.meter.counters("coder", "laptop")
    for _ in range(10):
        counters.first(78.3)
        loaded = RequestOutcome("whole", 200, Usage(100, 50, 80), is_stream=True, first_s=78.3, waited_s=78.0)
        counters.finish("chat", loaded)
        # The first byte of an answer that is not streamed is its end: nothing about how soon it began.
        whole = RequestOutcome("whole", 200, Usage(100, 50, 80), first_s=30.0, total_s=30.0)
        counters.finish("chat", whole)
    await gateway.step()
    (coder, _), recent = gateway.views(), gateway.sampler.recent("coder")
    said = health_sentence(coder, recent, None)
    assert said.ok and "first token within 0.29 s" in said.text, said
    assert sum(recent.cached_firsts) == sum(recent.unqueued_firsts) == 10


async def test_an_engine_that_restarted_begins_to_count_anew(gateway: Gateway) -> None:
    gateway.page = "vllm:num_preemptions_total 7\n"
    await gateway.step()
    gateway.page = "vllm:num_preemptions_total 2\n"
    await gateway.step()
    assert gateway.sampler.recent("coder").preempted == 0
    gateway.page = "vllm:num_preemptions_total 5\n"
    await gateway.step()
    assert gateway.sampler.recent("coder").preempted == 3


async def test_an_engine_that_does_not_answer_costs_its_own_figures_only(gateway: Gateway) -> None:
    async def hang() -> Mapping[str, str]:
        raise TimeoutError

    gateway.sampler._engine_metrics = hang
    assert (await gateway.step())["coder"]["kv_used"] is None


async def test_the_loop_takes_one_sample_a_step(tmp_path: Path) -> None:
    gateway, taken = Gateway(tmp_path), asyncio.Event()

    async def pages() -> Mapping[str, str]:
        taken.set()
        return {}

    gateway.sampler._engine_metrics = pages
    gateway.now = T0 + 4.4
    gateway.sampler.start()
    async with asyncio.timeout(120):
        await taken.wait()
    await gateway.sampler.close()


def test_a_timer_that_is_early_takes_no_second_sample_of_a_step() -> None:
    assert pause_s(T0 + 1.0) == 4.0 and pause_s(T0 + 0.001) == pytest.approx(4.999)
    assert pause_s(T0 + 4.999) == pytest.approx(5.001)


@pytest.mark.parametrize(
    ("page", "kv_used"),
    [
        ("sglang:token_usage 0.5", 0.5),
        ("# HELP x\nvllm:kv_cache_usage_perc 0.1\n", 0.1),
        ("", None),
        ("<html>vllm:kv_cache_usage_perc 0.1", None),
    ],
)
def test_the_engine_of_a_page(page: str, kv_used: float | None) -> None:
    assert page_activity(page).kv_usage == kv_used
