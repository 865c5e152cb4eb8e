#!/usr/bin/env python3
"""How long one event of the gateway's scheduler takes, by models and waiting requests.

    PYTHONPATH=src python benchmarks/gateway/schedule.py [--rounds N]

Every model has requests waiting. In `loading` one model is being loaded; in `blocked` a busy model holds the
memory that all the others wait for; in `half` every second model runs and is busy. An event that grants or
rejects many requests is reported per request, since its work grows with its effects. Times are CPU times.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import count

from firesteel.gateway.scheduler.events import (
    LoadModel,
    MemoryReading,
    ModelCrashed,
    ModelLoaded,
    ModelUnloaded,
    RequestAbandoned,
    RequestArrived,
    RequestFinished,
    SchedulerEvent,
    SchedulerLimits,
    TimePassed,
)
from firesteel.gateway.scheduler.scheduler import Scheduler
from firesteel.gateway.service_config import ModelConfig

MODELS = (2, 20, 100)
WAITING = (10, 100, 1_000, 10_000)
SITUATIONS = ("loading", "blocked", "half")
HOST_BYTES = 1_000


class World:
    """A scheduler in one situation, with `waiting` requests spread over the models that do not run."""

    def __init__(self, situation: str, models: int, waiting: int) -> None:
        self.now_s = 1_000.0
        self._ids = count()
        self.names = [f"m{index}" for index in range(models)]
        ready = models // 2 if situation == "half" else 1
        size = HOST_BYTES if situation != "half" else HOST_BYTES // ready
        limits = SchedulerLimits(HOST_BYTES, max_wait_s=3_600.0, queue=1_000_000)
        self.scheduler = Scheduler(
            [ModelConfig(name, "", (), size) for name in self.names], limits, self.now_s
        )
        self.running = self.names[:ready]
        for name in self.running:
            self.handle(RequestArrived(next(self._ids), name))
            if situation != "loading":
                self.handle(ModelLoaded(name))
        self.served = list(range(ready))
        others = self.names[ready:] or self.names
        for index in range(waiting):
            self.handle(RequestArrived(next(self._ids), others[index % len(others)], index % 3))
        self.waiting_name = others[-1]

    def handle(self, event: SchedulerEvent) -> float:
        began = time.thread_time()
        self.scheduler.handle(event, self.now_s)
        return time.thread_time() - began


def request_events(world: World, rounds: int) -> dict[str, list[float]]:
    """Events that leave the models as they are."""
    took: dict[str, list[float]] = {"arrives": [], "leaves": [], "memory": [], "tick": []}
    for index in range(rounds):
        world.now_s += 0.0001
        request = f"r{index}"
        took["arrives"].append(world.handle(RequestArrived(request, world.waiting_name)))
        took["leaves"].append(world.handle(RequestAbandoned(request)))
        took["memory"].append(world.handle(MemoryReading(HOST_BYTES)))
        took["tick"].append(world.handle(TimePassed()))
    return took


def swap_events(make: Callable[[], World], rounds: int) -> dict[str, list[float]]:
    """A model's request ends, it is evicted, another is loaded and crashes: each changes a model's phase."""
    events = ("finishes", "unloaded", "loaded, a grant", "crashes, a request")
    took: dict[str, list[float]] = {event: [] for event in events}
    for _ in range(rounds):
        world = make()
        gc.collect()
        world.now_s += 100.0  # its minimum dwell is over
        took["finishes"].append(world.handle(RequestFinished(world.served[0])))
        world.now_s += 0.1
        began = time.thread_time()
        effects = world.scheduler.handle(ModelUnloaded(world.running[0]), world.now_s)
        took["unloaded"].append(time.thread_time() - began)
        loading = next(effect.model for effect in effects if isinstance(effect, LoadModel))
        world.now_s += 1.0
        began = time.thread_time()
        effects = world.scheduler.handle(ModelLoaded(loading), world.now_s)
        took["loaded, a grant"].append((time.thread_time() - began) / len(effects))
        took["crashes, a request"].append(world.handle(ModelCrashed(loading, "died")) / len(effects))
        del effects  # so that freeing them is no part of the next round
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    print("| situation | models | waiting | event | median us | p99 us |\n|---|---:|---:|---|---:|---:|")
    worst = 0.0
    gc.disable()  # a collection of the benchmark's own worlds is not the scheduler's time
    for situation in SITUATIONS:
        for models in MODELS:
            for waiting in WAITING:
                took = request_events(World(situation, models, waiting), rounds)
                if situation != "loading":
                    few = max(11, min(rounds // 10, 20_000 // waiting))
                    took |= swap_events(partial(World, situation, models, waiting), few)
                for event, seconds in took.items():
                    median = statistics.median(seconds) * 1e6
                    p99 = sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))] * 1e6
                    worst = max(worst, median)
                    print(f"| {situation} | {models} | {waiting} | {event} | {median:.0f} | {p99:.0f} |")
    print(f"\nThe slowest median: {worst:.0f} us.")


if __name__ == "__main__":
    main()
