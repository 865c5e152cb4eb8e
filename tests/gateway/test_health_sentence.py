"""One sentence a model: healthy or not, and why."""

from __future__ import annotations

import pytest

from firesteel.facts.host.gpus import GpuReading
from firesteel.gateway.admin.status import health_sentence
from firesteel.gateway.executor import ModelView
from firesteel.gateway.interfaces import WaitStatus
from firesteel.gateway.monitoring.sampler import RecentActivity
from firesteel.gateway.scheduler.capacity import LoadPreview
from firesteel.gateway.scheduler.events import ModelPhase, ScheduledModel
from firesteel.gateway.service_config import ModelConfig, PlannedFigures, Reason
from firesteel.gateway.state import ModelHealth
from firesteel.units import Band
from firesteel.values import replace

PLAN = PlannedFigures(Band(1, 2, 3), Band(20.0, 40.0, 60.0))
COOL = GpuReading("NVIDIA GB10", temperature_c=52, power_w=60, clock_mhz=2400)
HOT = GpuReading("NVIDIA GB10", temperature_c=92, power_w=60, clock_mhz=900, reasons=0x40)
FIRSTS = (0, 0, 0, 0, 0, 20, *([0] * 11))
"""Twenty between 0.2 and 0.4 s."""
SPIKES = (0, 0, 0, 0, 0, 18, 0, 0, 0, 2, *([0] * 7))
"""Two of twenty between 3 and 6 s."""
GAPS = (*([0] * 6), 400, *([0] * 10))
BUSY = RecentActivity(
    300.0, 100.0, tokens=3000.0, pieces=420, gaps=GAPS, gaps_s=70.0, unqueued_firsts=FIRSTS,
    cached_firsts=FIRSTS, requests=20, drafted=1000, accepted=600, kv_used=0.31, tokens_per_s=30.0,
)  # fmt: skip


def view(phase: ModelPhase = "ready", why: str = "", note: str = "") -> ModelView:
    status = ScheduledModel("coder", phase, 0, 0, 0, 0.0, why, 0.0, False, False, False)
    return ModelView(ModelConfig("coder", "", (), planned=PLAN), status, None, None, note)


def test_a_healthy_model_says_how_it_does() -> None:
    said = health_sentence(view(), BUSY, COOL)
    assert said == ModelHealth(
        True, "healthy: 30 tokens/s, first token within 0.39 s, KV cache 31 % used, 60 % of drafts accepted"
    )


def test_large_figures_are_no_powers_of_ten() -> None:
    waited = (*([0] * 16), 20)
    text = health_sentence(view(), replace(BUSY, tokens=1_234_000.0, unqueued_firsts=waited), COOL).text
    assert "12340 tokens/s" in text and "e+" not in text, text


def test_an_idle_model_is_healthy() -> None:
    assert health_sentence(view(), RecentActivity(), None) == ModelHealth(
        True, "healthy: no request in the last 5 min"
    )
    few = replace(RecentActivity(), requests=2)
    assert health_sentence(view(), few, None).text == "healthy: 2 requests in the last 5 min"
    serving = view()
    assert serving.status
    serving = replace(serving, status=replace(serving.status, busy=1))
    assert health_sentence(serving, RecentActivity(), None).text == "healthy: a request is running"


@pytest.mark.parametrize(
    ("recent", "why"),
    [
        (replace(BUSY, broke=3), "3 of 20 requests failed in the last 5 min"),
        (replace(BUSY, preempted=2), "its KV cache was full: 2 requests lost their place"),
        (replace(BUSY, kv_used=0.99), "its KV cache is 99 % full"),
        (replace(BUSY, accepted=20), "only 2 % of its drafted tokens are accepted"),
        (replace(BUSY, cached_firsts=SPIKES), "later turns of a conversation are slow to start"),
        (replace(BUSY, gaps_s=7000.0), "slower than planned: a stream gets"),
    ],
)
def test_what_is_wrong_is_said(recent: RecentActivity, why: str) -> None:
    said = health_sentence(view(), recent, COOL)
    assert not said.ok and said.text.startswith(why)


@pytest.mark.parametrize(
    "recent",
    [
        replace(BUSY, requests=3, broke=1),
        replace(BUSY, drafted=100, accepted=1),
        replace(BUSY, cached_firsts=tuple(count // 10 for count in SPIKES)),
        replace(BUSY, gaps=tuple(count // 3 for count in GAPS), gaps_s=7000.0),
    ],
)
def test_a_few_requests_are_no_verdict(recent: RecentActivity) -> None:
    assert health_sentence(view(), recent, COOL).ok


def test_a_hot_gpu_slows_down_what_runs_on_it() -> None:
    said = health_sentence(view(), BUSY, HOT)
    assert not said.ok and "slowed down at 92 °C (hardware thermal slowdown)" in said.text
    outside = replace(view(), config=ModelConfig("coder", "", ("http://x",), is_outside=True))
    assert health_sentence(outside, BUSY, HOT).ok
    assert health_sentence(view("off"), BUSY, HOT).ok


@pytest.mark.parametrize(
    ("model", "ok", "text"),
    [
        (view("off"), True, "not loaded; a request loads it"),
        (replace(view("off"), preview=LoadPreview(why_not="no room")), True, "not loaded: no room"),
        (view("off", why="does not\nfit"), False, "its last load failed: does not fit"),
        (view("off", note="another coder runs"), False, "another coder runs"),
        (view("loading", note="restarting by itself: it crashed"), False, "restarting by itself: it crashed"),
        (view("unloading"), True, "unloading"),
        (view(note="no answer from http://x"), False, "no answer from http://x"),
        (view(note="coder answers again"), True, "healthy: no request in the last 5 min"),
    ],
)
def test_phases(model: ModelView, ok: bool, text: str) -> None:
    assert health_sentence(model, RecentActivity(), None) == ModelHealth(ok, text)


def test_a_load_says_how_far_it_is() -> None:
    loading = replace(view("loading"), progress=WaitStatus("loading coder: weights 43 %", 80.0))
    said = health_sentence(loading, RecentActivity(), None)
    assert said.ok and said.text.startswith("loading coder: weights 43 %, about")


def test_a_model_that_cannot_be_served() -> None:
    config = ModelConfig("coder", "", (), why_not=Reason("it does not fit", "--context 4096"))
    said = health_sentence(ModelView(config, None, None, None), RecentActivity(), None)
    assert said == ModelHealth(False, "coder cannot be served: it does not fit. Try: --context 4096")
