"""The lateness of the client: a loop that is blocked under load is late, otherwise nobody minds."""

from __future__ import annotations

import asyncio
import gc
import time

from firesteel.bench.load.client import ClientCost, Lateness, late_text


async def ticks(lateness: Lateness, count: int) -> None:
    async with asyncio.timeout(30):
        while len(lateness.client_s) < count:
            await asyncio.sleep(0.005)


async def test_only_the_time_under_load_counts() -> None:
    with ClientCost() as cost:
        with cost.under_load() as first:
            await ticks(first, 3)
        time.sleep(0.3)  # as long as it takes to parse many answers; nobody waits for it
        await asyncio.sleep(0.01)
        seen = len(first.client_s)
        with cost.under_load() as second:
            await asyncio.sleep(0.05)
            time.sleep(0.3)
            await ticks(second, 20)
    assert len(first.client_s) == seen, "ticks between loads are not counted"
    assert second.p99_s > 0.2, "ten ticks waited while the loop was blocked"
    summary = cost.summary()
    assert summary["p99_lag_ms"] > 200 and summary["machine_p99_lag_ms"] >= 0
    assert summary["cpu_share"] > 0


async def test_ticks_from_before_the_load_do_not_count() -> None:
    with ClientCost() as cost:
        with cost.under_load() as first:
            await ticks(first, 1)
        time.sleep(0.3)  # prompts are written; what ticked meanwhile is read only under the load
        with cost.under_load() as second:
            began = second.began
            await ticks(second, 3)
    assert max(second.client_s) <= time.perf_counter() - began


async def test_no_garbage_is_collected_under_load() -> None:
    with ClientCost() as cost:
        with cost.under_load():
            assert not gc.isenabled()
        assert gc.isenabled()


def test_whose_fault_it_was() -> None:
    assert late_text({}) is None and late_text({"p99_lag_ms": 0.9}) is None
    assert "the machine itself was not" in str(late_text({"p99_lag_ms": 30.0, "machine_p99_lag_ms": 0.2}))
    assert "this machine was busy" in str(late_text({"p99_lag_ms": 30.0, "machine_p99_lag_ms": 28.0}))
