"""What else was true while it ran: clocks, power, heat, memory, and the engine's own counters.

A figure without its clock cannot be compared: a Spark in its low-power state decodes at a third of its
speed and says nothing. What cannot be seen is None, never zero. Only a server on this very machine is
looked at so; of others nothing is known.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, get_args

from firesteel.edge.host import memory, nvidia_smi
from firesteel.edge.host.process import uptime
from firesteel.edge.http.engine_client import metrics
from firesteel.engines.metrics import Activity, activity
from firesteel.launch import EngineName

EVERY_S = 1.0
_MAX_LOOKS = 4096
_LEAST_LOOKS = 3
_ASK = ("--query-gpu=clocks.sm,power.draw,temperature.gpu,utilization.gpu", "--format=csv,noheader,nounits")
_MORE: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {
        "drafts": "vllm:spec_decode_num_drafts_total",
        "cache_asked": "vllm:prefix_cache_queries_total",
        "cache_hit": "vllm:prefix_cache_hits_total",
    },
    "sglang": {},
    "llamacpp": {
        "drafts": "llamacpp:spec_decode_num_drafts_total",
        "cache_hit": "llamacpp:prompt_tokens_cached_total",
        "cache_missed": "llamacpp:prompt_tokens_total",
    },
}
"""Counters that `engines.metrics` does not read. https://docs.vllm.ai/en/latest/usage/metrics/ and
llama.cpp build 11549 asked, 2026-11-15."""


@dataclass(frozen=True, slots=True)
class HostReading:
    at_s: float
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    use_percent: float | None = None
    memory_available_bytes: int | None = None
    kv_usage: float | None = None


def parse_gpu(at_s: float, text: str) -> HostReading:
    """Of several GPUs the slowest clock, the hottest, and the power of all."""
    rows = [[_number(cell) for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    rows = [row for row in rows if len(row) == 4]
    clocks, power, heat, use = ([row[at] for row in rows] for at in range(4))
    known = [each for each in power if each is not None]
    return HostReading(
        at_s,
        clock_mhz=_least(clocks),
        power_w=sum(known) if known and len(known) == len(rows) else None,
        temperature_c=_most(heat),
        use_percent=_most(use),
    )


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


def _least(values: Iterable[float | None]) -> float | None:
    return min((each for each in values if each is not None), default=None)


def _most(values: Iterable[float | None]) -> float | None:
    return max((each for each in values if each is not None), default=None)


def read_host(at_s: float) -> HostReading:
    """At this machine. Takes some tens of milliseconds where there is a GPU."""
    seen = parse_gpu(at_s, nvidia_smi.query(*_ASK) or "")
    about = memory.sample().memory
    return replace(seen, memory_available_bytes=about.available_bytes if about else None)


@dataclass(slots=True)
class Sampler:
    """Looks once a second for as long as it is open. Beside the load, in a thread: it never holds up a
    stream."""

    url: str
    engine: EngineName | None
    key: str | None = None
    is_here: bool = True
    looks: list[HostReading] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Sampler:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:  # until it is closed
            at = uptime()
            seen = await asyncio.to_thread(read_host, at) if self.is_here else HostReading(at)
            counted = await self.counters()
            self.looks.append(replace(seen, kv_usage=counted.kv_usage if counted else None))
            if len(self.looks) >= _MAX_LOOKS:
                del self.looks[1::2]
            await asyncio.sleep(EVERY_S)

    async def counters(self) -> Counters | None:
        text = await metrics(self.url, key=self.key) if self.engine else None
        return read_counters(self.engine, text) if self.engine and text else None


_SEEN = ("clock_mhz", "power_w", "temperature_c", "use_percent", "memory_available_bytes", "kv_usage")
_DRAWN = 240


def summary(looks: Sequence[HostReading]) -> dict[str, Any]:
    """Least, middle and most of each thing that was seen."""
    found: dict[str, Any] = {}
    for name in _SEEN:
        values = [value for each in looks if (value := getattr(each, name)) is not None]
        if values:
            found[name] = {"least": min(values), "mean": sum(values) / len(values), "most": max(values)}
    return found | ({"looks": len(looks), "over_time": over_time(looks)} if found else {})


def over_time(looks: Sequence[HostReading]) -> dict[str, list[float | None]]:
    """Some of them, for a drawing: seconds since the first, and None where a thing was not seen."""
    kept = looks[:: max(1, ceil(len(looks) / _DRAWN))]
    columns = {name: [getattr(each, name) for each in kept] for name in _SEEN}
    seen = {name: values for name, values in columns.items() if any(each is not None for each in values)}
    return {"at_s": [round(each.at_s - kept[0].at_s, 1) for each in kept], **seen}


def during(looks: Iterable[HostReading], windows: Sequence[tuple[float, float]]) -> list[HostReading]:
    return [each for each in looks if any(began <= each.at_s <= ended for began, ended in windows)]


def mean_watts(looks: Sequence[HostReading]) -> float | None:
    """None where it was seen too seldom to say."""
    power = [each.power_w for each in looks if each.power_w is not None]
    return sum(power) / len(power) if len(power) >= _LEAST_LOOKS else None


# --- the engine's counters ---


@dataclass(frozen=True, slots=True)
class Counters:
    """Since the engine's start; the difference of two is what happened between."""

    preemptions: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    drafts: int | None = None
    cache_asked: int | None = None
    cache_hit: int | None = None
    kv_usage: float | None = None

    def since(self, before: Counters) -> Counters:
        """A counter that went back was started anew: nothing is known of it."""

        def less(name: str) -> int | None:
            now, then = getattr(self, name), getattr(before, name)
            return now - then if now is not None and then is not None and now >= then else None

        names = ("preemptions", "draft_tokens", "accepted_tokens", "drafts", "cache_asked", "cache_hit")
        return Counters(**{name: less(name) for name in names})

    @property
    def accepted_per_step(self) -> float | None:
        """Tokens of one step, the engine's own one included."""
        return 1 + (self.accepted_tokens or 0) / self.drafts if self.drafts else None

    @property
    def cached_share(self) -> float | None:
        return self.cache_hit / self.cache_asked if self.cache_asked and self.cache_hit is not None else None


def added(parts: Iterable[Counters]) -> Counters:
    """What several stretches came to; unknown where any of them is."""
    every = list(parts)

    def total(name: str) -> int | None:
        values = [getattr(each, name) for each in every]
        return sum(values) if values and None not in values else None

    names = ("preemptions", "draft_tokens", "accepted_tokens", "drafts", "cache_asked", "cache_hit")
    return Counters(**{name: total(name) for name in names})


def read_counters(engine: EngineName, text: str) -> Counters:
    assert engine in get_args(EngineName)
    known: Activity = activity(engine, text)
    more = {field: _counter(text, name) for field, name in _MORE[engine].items()}
    missed, hit = more.pop("cache_missed", None), more.get("cache_hit")
    if missed is not None and hit is not None:
        more["cache_asked"] = missed + hit
    return Counters(
        preemptions=known.preemptions,
        draft_tokens=known.draft_tokens,
        accepted_tokens=known.accepted_tokens,
        kv_usage=known.kv_usage,
        **more,
    )


def _counter(text: str, name: str) -> int | None:
    """The sum over the engines behind one port; None where it is not told."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^\n]{{0,2000}}?\}})? +([0-9.eE+]{{1,32}})$", text, re.M)
    values = [_number(each) for each in found]
    return round(sum(each for each in values if each is not None)) if values else None
