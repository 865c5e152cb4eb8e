"""What is counted, and that nobody can make the counting grow."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from firesteel.gateway.admin.meter import GatewayGauges, Histogram, Meter, ModelGauges, route_kind
from firesteel.gateway.admin.prometheus import render
from firesteel.gateway.http.routes import ROUTES
from firesteel.gateway.interfaces import RequestOutcome, Usage

WHOLE = RequestOutcome(
    "whole", 200, Usage(10, 20, 4), True, 100, 900, waited_s=0.002, first_s=0.1, total_s=1.5
)
NOTHING = GatewayGauges()


def samples(meter: Meter, now: GatewayGauges = NOTHING) -> Iterator[Sample]:
    for family in text_string_to_metric_families(asyncio.run(render(meter.families(now))).decode()):
        yield from family.samples


def value(meter: Meter, name: str, now: GatewayGauges = NOTHING, /, **labels: str) -> float:
    found = [each.value for each in samples(meter, now) if each.name == name and each.labels == labels]
    assert len(found) == 1, (name, labels)
    return found[0]


def test_a_request_is_counted_by_model_key_route_and_end() -> None:
    meter = Meter(["coder"])
    meter.counters("coder", "laptop").finish("chat", WHOLE)
    meter.counters("coder", "laptop").finish("chat", WHOLE)
    meter.counters("coder", "laptop").finish("chat", RequestOutcome("broke", 502))
    whose = {"model": "coder", "key": "laptop"}
    counted = {"route": "chat", "how": "whole", "status": "200", **whose}
    assert value(meter, "firesteel_requests_total", **counted) == 2
    assert value(meter, "firesteel_requests_total", **{**counted, "how": "broke", "status": "502"}) == 1
    for kind, tokens in (("prompt", 20), ("completion", 40), ("cached", 8)):
        assert value(meter, f"firesteel_{kind}_tokens_total", **whose) == tokens
    assert value(meter, "firesteel_request_seconds_count", **whose) == 2, "only those that came whole"
    assert value(meter, "firesteel_wait_seconds_count", **whose) == 3
    assert value(meter, "firesteel_request_seconds_sum", **whose) == 3


def test_chunks() -> None:
    meter = Meter(["coder"])
    counters = meter.counters("coder", "")
    assert counters is meter.counters("coder", ""), "made once"
    counters.first(0.15)
    for gap in (0.01, 0.0101, 0.5, 1000.0):
        counters.gap(gap)
    whose = {"model": "coder", "key": ""}
    assert value(meter, "firesteel_time_to_first_token_seconds_bucket", le="0.2", **whose) == 1
    assert value(meter, "firesteel_time_to_first_token_seconds_bucket", le="0.1", **whose) == 0
    bucket = "firesteel_inter_token_seconds_bucket"
    counts = [
        value(meter, bucket, le=le, **whose) for le in ("0.005", "0.01", "0.015", "0.8", "10.0", "+Inf")
    ]
    assert counts == [0, 1, 2, 3, 3, 4], "a value on a bound is under it"
    assert value(meter, "firesteel_inter_token_seconds_sum", **whose) == pytest.approx(1000.5201)


@given(st.lists(st.floats(0, 1e6, allow_nan=False), max_size=200))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[float]) -> None:
    bounds = (0.001, 0.1, 1.0, 100.0)
    histogram = Histogram(bounds)
    for each in values:
        histogram.add(each)
    so_far = [sum(histogram.counts[: index + 1]) for index in range(len(bounds))]
    assert so_far == [sum(each <= bound for each in values) for bound in bounds]
    assert sum(histogram.counts) == len(values) and math.isclose(histogram.total, sum(values))


def test_names_that_somebody_made_up_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter(["coder"])
    before = sum(1 for _ in samples(meter))
    for index in range(1000):
        meter.counters(f"made-up-{index}", "laptop").finish("chat", RequestOutcome("refused", 404))
        meter.rejected_early(f"kind-{index}")
        meter.load_failed(f"made-up-{index}", f"reason-{index}")
        meter.unloaded(f"made-up-{index}")
        meter.loaded(f"made-up-{index}", 1.0)
        meter.counters("coder", "laptop").finish(f"route-{index}", RequestOutcome("whole", index))
    assert sum(1 for _ in samples(meter)) < before + 600
    unknown = {"model": "unknown", "key": "laptop", "route": "chat", "how": "refused", "status": "404"}
    assert value(meter, "firesteel_requests_total", **unknown) == 1000
    assert sum(each.value for each in samples(meter) if each.name == "firesteel_rejected_early_total") == 1000
    monkeypatch.setattr("firesteel.gateway.admin.meter.MAX_KEYS", 50)
    for index in range(200):
        meter.counters("coder", f"key-{index}").first(1)
    assert len({each.labels["key"] for each in samples(meter) if "key" in each.labels}) == 51


def test_evicts_and_loads() -> None:
    meter = Meter(["coder"])
    meter.loaded("coder", 100.0)
    meter.unloaded("coder")
    meter.load_failed("coder", "does_not_fit")
    assert value(meter, "firesteel_load_seconds_count", model="coder") == 1
    assert value(meter, "firesteel_load_seconds_bucket", model="coder", le="120.0") == 1
    assert value(meter, "firesteel_unloads_total", model="coder") == 1
    assert value(meter, "firesteel_load_failures_total", model="coder", reason="does_not_fit") == 1


def test_what_is_so_now() -> None:
    models = {"coder": ModelGauges("ready", 3, 2, 40 * 2**30), "small": ModelGauges("off", waiting=1)}
    now = GatewayGauges(models, ceiling_bytes=110 * 2**30, available_bytes=None, log_rows=7, log_dropped=2)
    meter = Meter(models)
    assert value(meter, "firesteel_model_busy", now, model="coder") == 3
    assert value(meter, "firesteel_model_bytes", now, model="coder") == 40 * 2**30
    assert value(meter, "firesteel_queue_length", now) == 3
    assert value(meter, "firesteel_model_phase", now, model="coder", phase="ready") == 1
    assert value(meter, "firesteel_model_phase", now, model="coder", phase="off") == 0
    assert value(meter, "firesteel_memory_ceiling_bytes", now) == 110 * 2**30
    assert not [each for each in samples(meter, now) if each.name == "firesteel_memory_available_bytes"]
    assert value(meter, "firesteel_request_log_dropped_total", now) == 2


def test_models_that_come_later_are_known() -> None:
    meter = Meter(["coder"])
    meter.counters("small", "a").first(1)
    meter.add_models(["small"])
    meter.counters("small", "a").first(1)
    name = "firesteel_time_to_first_token_seconds_count"
    assert value(meter, name, model="unknown", key="a") == value(meter, name, model="small", key="a") == 1


def test_routes_have_the_kinds_of_the_http_server() -> None:
    assert all(route_kind(path) == route.kind for path, route in ROUTES.items())
    assert route_kind(b"/v1/made-up") == "other"


def test_a_page_that_is_written_while_it_counts_is_whole() -> None:
    """Rendering a page and counting requests alternate on the loop."""
    meter = Meter([f"m{index}" for index in range(40)])
    for index in range(20):
        meter.counters(f"m{index}", "a").finish("chat", WHOLE)
    lines: list[str] = []
    for index, family in enumerate(meter.families(GatewayGauges())):
        for sample in family.samples:
            meter.counters(f"m{20 + index % 20}", "a").finish("chat", WHOLE)
            meter.counters("m1", "a").finish(f"route{len(lines)}", WHOLE)
            lines.append(f"{family.name}{sample.suffix}")
    assert lines.count("firesteel_request_seconds_count") >= 20
