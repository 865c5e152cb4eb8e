#!/usr/bin/env python3
"""How long clients of `hour.py` wait by the schedule alone: its clients and faults in simulated time.

    PYTHONPATH=src python benchmarks/gateway/hour_waits.py [--hours 20]

The real scheduler, a made-up machine on which a load takes so and so long. What is slower than this in a real
hour is lost in the gateway; what is not is what its loads take.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Callable, Hashable
from functools import partial
from itertools import count

from firesteel.gateway.scheduler.events import (
    ConfigChanged,
    GrantRequest,
    LoadModel,
    LoadRequested,
    ModelCrashed,
    ModelLoaded,
    ModelUnloaded,
    RejectRequest,
    RequestArrived,
    RequestFinished,
    RequestReturned,
    SchedulerEvent,
    SchedulerLimits,
    TimePassed,
    UnloadModel,
)
from firesteel.gateway.scheduler.scheduler import Scheduler
from firesteel.gateway.service_config import ModelConfig

LIMITS = SchedulerLimits(100, min_dwell_s=2.0, max_wait_s=20.0)
FAULTS = ("kill", "mock", "stop", "mock", "unload", "mock", "kill supervisor", "file")
PAUSE_S, FROZEN_S, UNLOAD_S = 1.0, 31.0, 5.0
"""Until an engine that was killed is started again; until one that was stopped is; of an unload."""


class Hour:
    def __init__(self, load_s: tuple[float, float], answer_s: float, seed: int) -> None:
        self.chance, self.load_s, self.answer_s = random.Random(seed), load_s, answer_s
        self.now_s, self.version, self.ids = 0.0, 0, count()
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.began: dict[Hashable, float] = {}
        self.models_of: dict[Hashable, tuple[str, ...]] = {}
        self.served: dict[str, set[Hashable]] = {"first": set(), "second": set(), "mock": set()}
        self.generation = {"first": 0, "second": 0}
        self.waits_s: list[float] = []
        self.scheduler = Scheduler(self.models(), LIMITS, 0.0)

    def models(self) -> list[ModelConfig]:
        second = ModelConfig("second", "", (), 70, identity=str(self.version))
        return [ModelConfig("first", "", (), 70), second, ModelConfig("mock", "", (), 1, is_outside=True)]

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now_s + after_s, next(self.ids), action))

    def run(self) -> list[float]:
        self.tell(ModelLoaded("mock"))
        for client in range(6):
            self.ask(("first", "second") if client == 5 else ("first", "second", "mock"))
        for minute in range(1, 60):
            self.at(60.0 * minute, partial(self.fault, FAULTS[(minute - 1) % len(FAULTS)]))
        while self.queue and self.queue[0][0] < 3600:
            self.now_s, _, action = heapq.heappop(self.queue)
            action()
            while (due := self.scheduler.next_tick_s(self.now_s)) is not None and due <= self.now_s:
                self.tell(TimePassed())
            if due is not None:
                self.at(due - self.now_s, partial(self.tell, TimePassed()))
        return self.waits_s

    def ask(self, models: tuple[str, ...]) -> None:
        request = next(self.ids)
        self.began[request], self.models_of[request] = self.now_s, models
        self.tell(RequestArrived(request, self.chance.choice(models)))

    def tell(self, event: SchedulerEvent) -> None:
        for effect in self.scheduler.handle(event, self.now_s):
            match effect:
                case LoadModel(model):
                    self.bring_up(model, 0.0)
                case UnloadModel(model):
                    self.generation[model] += 1
                    self.at(UNLOAD_S, partial(self.tell, ModelUnloaded(model)))
                case GrantRequest(request, model):
                    self.served[model].add(request)
                    took_s = self.answer_s if model != "mock" else 0.5
                    self.at(took_s, partial(self.answer, request, model))
                case RejectRequest(request):
                    self.end(request, pause_s=0.5)

    def bring_up(self, model: str, after_s: float) -> None:
        self.generation[model] += 1
        number = self.generation[model]

        def loaded() -> None:
            if number == self.generation[model]:
                self.tell(ModelLoaded(model))

        self.at(after_s + self.chance.uniform(*self.load_s), loaded)

    def answer(self, request: Hashable, model: str) -> None:
        if request in self.served[model]:
            self.served[model].discard(request)
            self.tell(RequestFinished(request))
            self.end(request, pause_s=0.0)

    def end(self, request: Hashable, pause_s: float) -> None:
        self.waits_s.append(self.now_s - self.began.pop(request))
        self.at(pause_s, partial(self.ask, self.models_of.pop(request)))

    def fault(self, kind: str) -> None:
        now = self.scheduler.snapshot(self.now_s)
        running = [model.name for model in now if model.phase == "ready" and model.name != "mock"]
        if kind == "file":
            self.version += 1
            self.tell(ConfigChanged(tuple(self.models()), LIMITS))
        for model in running if kind != "mock" else []:
            if kind == "unload":
                self.tell(LoadRequested(model, False))
            elif kind != "file":
                back, self.served[model] = self.served[model], set()
                self.tell(ModelCrashed(model, "it died", is_returning=kind != "kill supervisor"))
                for request in back:
                    self.tell(RequestReturned(request, model))
                if kind != "kill supervisor":
                    self.bring_up(model, FROZEN_S if kind == "stop" else PAUSE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=int, default=20)
    hours = parser.parse_args().hours
    print("| a load takes | answers an hour | longest wait, median hour | worst hour | hours over 300 s |")
    print("|---|---:|---:|---:|---:|")
    for low, high in ((2, 4), (15, 30), (60, 120), (60, 180), (90, 240)):
        runs = [Hour((low, high), 1.0 if high < 10 else 6.0, seed).run() for seed in range(hours)]
        longest = sorted(max(waits) for waits in runs)
        over = sum(wait > 300 for wait in longest) / hours
        answers, middle = sum(map(len, runs)) / hours, longest[hours // 2]
        print(f"| {low} to {high} s | {answers:.0f} | {middle:.0f} s | {longest[-1]:.0f} s | {over:.0%} |")


if __name__ == "__main__":
    main()
