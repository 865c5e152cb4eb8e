"""What is seen beside a run: unknown is None, never zero."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from firesteel.bench.load.sampler import (
    Counters,
    HostReading,
    Sampler,
    host_reading,
    mean_watts,
    read_counters,
    readings_within,
    sum_counters,
    summarize,
)
from firesteel.edge.sim.setup import create_spark, environment
from firesteel.edge.sim.spark import SimSpark
from firesteel.facts.host.gpus import GpuReading

RECORDED = Path(__file__).parent.parent / "engines/metrics/llamacpp-11549.txt"


def gpu(
    clock: float | None = None, power: float | None = None, temperature: float | None = None,
    use: float | None = None, reasons: int | None = None,
) -> GpuReading:  # fmt: skip
    return GpuReading(
        "NVIDIA GB10", clock_mhz=clock, power_w=power, temperature_c=temperature, use_percent=use,
        reasons=reasons,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "seen"),
    [
        ([gpu(2400, 60.5, 52, 90)], HostReading(1, 2400, 60.5, 52, 90)),
        ([gpu(208, None, 38, 0)], HostReading(1, 208, None, 38, 0)),
        ([gpu()], HostReading(1)),
        ([gpu(2400, 60, 52, 90), gpu(1200, 40, 70, 10)], HostReading(1, 1200, 100, 70, 90)),
        ([gpu(2400, 60, 52, 90), gpu(1200, None, 70, 10)], HostReading(1, 1200, None, 70, 90)),
        ([gpu(reasons=0x40), gpu(reasons=0x8)], HostReading(1, reasons=0x48)),
        ([], HostReading(1)),
    ],
)
def test_several_gpus_together(gpus: list[GpuReading], seen: HostReading) -> None:
    assert host_reading(1, gpus) == seen


async def test_the_simulated_spark_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_spark(tmp_path, SimSpark())
    for name, value in environment(tmp_path, {"PATH": "/usr/bin:/bin"}).items():
        monkeypatch.setenv(name, value)
    async with Sampler("http://127.0.0.1:9", None) as sampler:
        async with asyncio.timeout(60):
            while not sampler.readings:
                await asyncio.sleep(0.01)
    (first, *_) = sampler.readings
    assert (first.clock_mhz, first.power_w, first.temperature_c) == (208, 8, 38)
    assert first.memory_available_bytes is not None and first.memory_available_bytes > 100 * 2**30
    assert first.kv_usage is None


async def test_another_process_starts_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To start a program stops all threads of a process, and so every stream that the client reads."""
    program = tmp_path / "nvidia-smi"
    row = "NVIDIA GB10, 580.142, 12.1, [N/A], 52, 60, 2400, 3003, 90, P0, 0x0"
    program.write_text(f"#!/bin/sh\necho $PPID > {tmp_path}/parent\necho '{row}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    async with Sampler("http://127.0.0.1:9", None) as sampler:
        async with asyncio.timeout(60):
            while not sampler.readings:
                await asyncio.sleep(0.01)
    assert sampler.readings[0].clock_mhz == 2400
    parent = int((tmp_path / "parent").read_text())
    assert parent != os.getpid()
    async with asyncio.timeout(120):
        while Path(f"/proc/{parent}").exists():  # it ends with the sampler
            await asyncio.sleep(0.01)


async def test_a_remote_host_is_not_read() -> None:
    async with Sampler("http://127.0.0.1:9", None, is_local=False) as sampler:
        async with asyncio.timeout(60):
            while not sampler.readings:
                await asyncio.sleep(0.01)
    assert summarize(sampler.readings) == {} and mean_watts(sampler.readings) is None


def test_a_summary_leaves_out_unknown_quantities() -> None:
    looks = [HostReading(1, clock_mhz=200), HostReading(2, clock_mhz=2400, temperature_c=50)]
    found = summarize(looks)
    assert found["clock_mhz"] == {"least": 200, "mean": 1300, "most": 2400}
    assert found["temperature_c"]["mean"] == 50 and "power_w" not in found


def test_power_counts_under_load_only() -> None:
    looks = [HostReading(float(at), power_w=60 if 10 <= at <= 13 else 8) for at in range(20)]
    assert mean_watts(readings_within(looks, [(10, 11), (12.5, 13.5)])) == 60
    assert mean_watts(readings_within(looks, [(10, 11)])) is None, "twice is too seldom"


VLLM = """
vllm:num_preemptions_total{engine="0"} 3.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prefix_cache_queries_total{engine="0"} 1000.0
vllm:prefix_cache_hits_total{engine="0"} 250.0
vllm:spec_decode_num_drafts_total{engine="0"} 100.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 150.0
"""


def test_counters_of_vllm() -> None:
    found = read_counters("vllm", VLLM)
    assert (found.accepted_per_step, found.cached_share, found.preemptions) == (2.5, 0.25, 3)
    assert found.kv_usage == 0.25
    more = read_counters("vllm", VLLM.replace(" 100.0", " 110.0").replace(" 150.0", " 180.0"))
    assert more.since(found).accepted_per_step == 4.0
    assert more.since(found).cached_share is None and more.since(found).preemptions == 0


def test_a_counter_may_pass_a_billion() -> None:
    text = "vllm:prefix_cache_queries_total 3e9\nvllm:prefix_cache_hits_total 1.5e9\n"
    assert read_counters("vllm", text).cached_share == 0.5


def test_counters_of_llama_cpp() -> None:
    text = "llamacpp:prompt_tokens_total 75\nllamacpp:prompt_tokens_cached_total 25\n"
    text += "llamacpp:spec_decode_num_drafts_total 0\n"
    found = read_counters("llamacpp", text)
    assert (found.cache_queries, found.cache_hits, found.cached_share) == (100, 25, 0.25)
    assert found.accepted_per_step is None and found.preemptions is None


def test_a_decreased_counter_is_unknown() -> None:
    before, after = Counters(preemptions=5, drafts=10, accepted_tokens=9), Counters(preemptions=1, drafts=12)
    assert after.since(before) == Counters(drafts=2)


def test_periods_add_up_if_all_are_known() -> None:
    assert sum_counters([Counters(drafts=1, preemptions=2), Counters(drafts=3)]) == Counters(drafts=4)
    assert sum_counters([]) == Counters()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_metrics_of_another_program(engine: str) -> None:
    assert read_counters(engine, "<html>it works</html>") == Counters()  # type: ignore[arg-type]


def test_recorded_metrics_are_read() -> None:
    found = read_counters("llamacpp", RECORDED.read_text())
    assert found.cache_queries is not None and found.drafts is not None
