"""The state of the host and the engine during a run: clocks, power, temperature, memory, engine counters.

A figure without its clock cannot be compared: a Spark in its low-power state decodes at a third of its speed
and gives no warning. What cannot be read is None, never zero. The host is read only if the server runs on
this machine; nothing is known about other hosts.
"""

from __future__ import annotations

import asyncio
import json
import select
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from math import ceil
from operator import or_
from typing import Any, TextIO, get_args

from msgspec import Struct
from msgspec.structs import fields

from firesteel.edge.host import memory
from firesteel.edge.host.nvidia_smi import read_gpus
from firesteel.edge.host.process import uptime
from firesteel.edge.http.sync_client import get_from_engine
from firesteel.engines.metrics import activity, totals
from firesteel.facts.host.gpus import GpuReading
from firesteel.launch import EngineName
from firesteel.values import Value, plain, replace

INTERVAL_S = 1.0
_MAX_READINGS = 4096
_READY_S = 5.0
_MIN_POWER_READINGS = 3
_COUNTERS: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {
        "drafts": "vllm:spec_decode_num_drafts_total",
        "cache_queries": "vllm:prefix_cache_queries_total",
        "cache_hits": "vllm:prefix_cache_hits_total",
    },
    "sglang": {},
    "llamacpp": {
        "drafts": "llamacpp:spec_decode_num_drafts_total",
        "cache_hits": "llamacpp:prompt_tokens_cached_total",
        "cache_misses": "llamacpp:prompt_tokens_total",
    },
}
"""Counters that `engines.metrics.activity` does not read. https://docs.vllm.ai/en/latest/usage/metrics/ and a
running llama.cpp build 11549, both seen 2026-11-15."""


class HostReading(Value):
    at_s: float
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    use_percent: float | None = None
    memory_available_bytes: int | None = None
    kv_usage: float | None = None
    reasons: int | None = None
    """The bits of `clocks_event_reasons.active`, of all GPUs together."""


_QUANTITIES = tuple(part.name for part in fields(HostReading) if part.name not in ("at_s", "reasons"))


def host_reading(at_s: float, gpus: Sequence[GpuReading]) -> HostReading:
    """Of several GPUs: the slowest clock, the highest temperature and use, and the sum of the power."""
    power = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
    bits = [gpu.reasons for gpu in gpus if gpu.reasons is not None]
    return HostReading(
        at_s,
        clock_mhz=_known(min, (gpu.clock_mhz for gpu in gpus)),
        power_w=sum(power) if power and len(power) == len(gpus) else None,
        temperature_c=_known(max, (gpu.temperature_c for gpu in gpus)),
        use_percent=_known(max, (gpu.use_percent for gpu in gpus)),
        reasons=reduce(or_, bits) if bits else None,
    )


def _known(pick: Callable[[Sequence[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return pick(known) if known else None


def read_host(at_s: float) -> HostReading:
    """Read this machine; takes some tens of milliseconds where there is a GPU."""
    gpu = host_reading(at_s, read_gpus())
    host_memory = memory.sample().memory
    return replace(gpu, memory_available_bytes=host_memory.available_bytes if host_memory else None)


class Sampler(Struct):
    """Takes a reading every second while it is open, in a separate process: starting a program stops all
    threads of a process for a moment, and reading an engine's metrics takes the loop some time as well."""

    url: str
    engine: EngineName | None
    key: str | None = None
    is_local: bool = True
    readings: list[HostReading] = []
    _child: asyncio.subprocess.Process | None = None
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Sampler:
        with suppress(OSError):  # without it there are no readings
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "firesteel.bench.load.sampler",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            self._task = asyncio.create_task(self._read(self._child))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._child and self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            with suppress(ProcessLookupError):
                self._child.kill()
            await self._child.communicate()

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdin is not None and child.stdout is not None
        what = {"url": self.url, "engine": self.engine, "key": self.key, "is_local": self.is_local}
        child.stdin.write(json.dumps(what).encode() + b"\n")  # not an argument: others could read the key
        while line := await child.stdout.readline():
            self.readings.append(HostReading(**json.loads(line)))
            if len(self.readings) >= _MAX_READINGS:
                del self.readings[1::2]

    async def wait_ready(self) -> None:
        """Until the first reading, or until it is clear that there will be none soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                while self._task and not self._task.done() and not self.readings:
                    await asyncio.sleep(0.01)

    async def counters(self) -> Counters | None:
        # Not at the top: the process that samples does without aiohttp, and starts in half the time.
        from firesteel.edge.http.engine_client import metrics

        text = await metrics(self.url, key=self.key) if self.engine else None
        return read_counters(self.engine, text) if self.engine and text else None


_MAX_DRAWN = 240


def summarize(readings: Sequence[HostReading]) -> dict[str, Any]:
    """Minimum, mean and maximum of every quantity that was read."""
    found: dict[str, Any] = {}
    for name in _QUANTITIES:
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        if values:
            found[name] = {"least": min(values), "mean": sum(values) / len(values), "most": max(values)}
    return found | ({"looks": len(readings), "over_time": time_series(readings)} if found else {})


def time_series(readings: Sequence[HostReading]) -> dict[str, list[float | None]]:
    """Enough of the readings for a chart: seconds since the first; None where a quantity was not read."""
    drawn = readings[:: max(1, ceil(len(readings) / _MAX_DRAWN))]
    columns = {name: [getattr(reading, name) for reading in drawn] for name in _QUANTITIES}
    known = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    return {"at_s": [round(reading.at_s - drawn[0].at_s, 1) for reading in drawn], **known}


def readings_within(
    readings: Iterable[HostReading], windows: Sequence[tuple[float, float]]
) -> list[HostReading]:
    return [
        reading for reading in readings if any(began <= reading.at_s <= ended for began, ended in windows)
    ]


def mean_watts(readings: Sequence[HostReading]) -> float | None:
    """None where there are too few readings."""
    power = [reading.power_w for reading in readings if reading.power_w is not None]
    return sum(power) / len(power) if len(power) >= _MIN_POWER_READINGS else None


# --- counters of the engine ---


class Counters(Value):
    """Totals since the engine started; the difference of two is what happened in between."""

    preemptions: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    drafts: int | None = None
    cache_queries: int | None = None
    cache_hits: int | None = None
    kv_usage: float | None = None

    def since(self, before: Counters) -> Counters:
        """The increase; unknown for a counter that decreased, since the engine restarted."""

        def increase(name: str) -> int | None:
            now, then = getattr(self, name), getattr(before, name)
            return now - then if now is not None and then is not None and now >= then else None

        return Counters(**{name: increase(name) for name in _TOTALS})

    @property
    def accepted_per_step(self) -> float | None:
        """Tokens per step, including the one that the model itself adds."""
        return 1 + (self.accepted_tokens or 0) / self.drafts if self.drafts else None

    @property
    def cached_share(self) -> float | None:
        if not self.cache_queries or self.cache_hits is None:
            return None
        return self.cache_hits / self.cache_queries


_TOTALS = tuple(part.name for part in fields(Counters) if part.name != "kv_usage")


def sum_counters(parts: Sequence[Counters]) -> Counters:
    """The sum over several periods; unknown where any part is unknown."""

    def total(name: str) -> int | None:
        values = [getattr(part, name) for part in parts]
        return sum(values) if values and None not in values else None

    return Counters(**{name: total(name) for name in _TOTALS})


def read_counters(engine: EngineName, text: str) -> Counters:
    assert engine in get_args(EngineName)
    known = activity(engine, text)
    values = totals(text, _COUNTERS[engine].values())
    more = {field: round(values[name]) for field, name in _COUNTERS[engine].items() if name in values}
    misses, hits = more.pop("cache_misses", None), more.get("cache_hits")
    if misses is not None and hits is not None:
        more["cache_queries"] = misses + hits
    return Counters(
        preemptions=known.preemptions,
        draft_tokens=known.draft_tokens,
        accepted_tokens=known.accepted_tokens,
        kv_usage=known.kv_usage,
        **more,
    )


# --- the process ---


def main(orders: TextIO, out: TextIO) -> None:
    """Write a reading as JSON every second, until the other end is gone."""
    sampler = Sampler(**json.loads(orders.readline()))
    while True:
        now = uptime()
        reading = read_host(now) if sampler.is_local else HostReading(now)
        if sampler.engine:
            status, text = get_from_engine(f"{sampler.url}/metrics", sampler.key)
            usage = read_counters(sampler.engine, text).kv_usage if status == 200 and text else None
            reading = replace(reading, kv_usage=usage)
        print(json.dumps(plain(reading)), file=out, flush=True)
        if select.select([orders], [], [], INTERVAL_S)[0]:  # closed
            return


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main(sys.stdin, sys.stdout)
