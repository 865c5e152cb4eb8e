"""A schedule and a clock, with short words for both: `play.ask(1, "a") == ["load a"]`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firesteel.gateway.scheduler.events import (
    ConfigChanged,
    Effect,
    GrantRequest,
    LoadFailed,
    LoadModel,
    LoadRequested,
    MemoryReading,
    ModelCrashed,
    ModelLoaded,
    ModelUnloaded,
    RefuseRequest,
    RequestAbandoned,
    RequestArrived,
    RequestFinished,
    ScheduledModel,
    SchedulerEvent,
    SchedulerLimits,
    TimePassed,
    UnloadModel,
)
from firesteel.gateway.scheduler.scheduler import Scheduler

CEILING = 100


class Play:
    """Bytes are small numbers, and the ceiling is 100, unless told."""

    def __init__(self, *models: ScheduledModel, **limits: Any) -> None:
        self.now_s = 0.0
        self.limits = SchedulerLimits(
            **{"ceiling_bytes": CEILING, "min_dwell_s": 60.0, "max_wait_s": 120.0, **limits}
        )
        self.models = models
        self.schedule = Scheduler(models, self.limits, self.now_s)
        self.refused: dict[object, RefuseRequest] = {}
        self.first = self.tell(TimePassed())

    def after(self, seconds: float) -> Play:
        self.now_s += seconds
        return self

    def tell(self, event: SchedulerEvent) -> list[str]:
        effects = self.schedule.tell(event, self.now_s)
        self.refused.update({each.request: each for each in effects if isinstance(each, RefuseRequest)})
        return [_word(each) for each in effects]

    def ask(self, request: int, model: str, priority: int = 0) -> list[str]:
        return self.tell(RequestArrived(request, model, priority))

    def leave(self, request: int) -> list[str]:
        return self.tell(RequestAbandoned(request))

    def finish(self, request: int) -> list[str]:
        return self.tell(RequestFinished(request))

    def loaded(self, model: str, measured: int | None = None) -> list[str]:
        return self.tell(ModelLoaded(model, measured))

    def failed(self, model: str, why: str = "no memory") -> list[str]:
        return self.tell(LoadFailed(model, why))

    def gone(self, model: str) -> list[str]:
        return self.tell(ModelUnloaded(model))

    def crashed(self, model: str, *, is_returning: bool = False) -> list[str]:
        return self.tell(ModelCrashed(model, "it died", is_returning))

    def want(self, model: str) -> list[str]:
        return self.tell(LoadRequested(model, True))

    def unwant(self, model: str) -> list[str]:
        return self.tell(LoadRequested(model, False))

    def memory(self, available: int, keep: int = 0) -> list[str]:
        return self.tell(MemoryReading(available, keep))

    def change(self, *models: ScheduledModel, **limits: Any) -> list[str]:
        self.limits = replace(self.limits, **limits)
        return self.tell(ConfigChanged(models, self.limits))

    def tick(self) -> list[str]:
        return self.tell(TimePassed())

    def tick_when_due(self) -> list[str]:
        due_s = self.schedule.next_tick_s(self.now_s)
        assert due_s is not None
        self.now_s = due_s
        return self.tick()

    def up(self, *names: str) -> Play:
        """These are loaded, and have dwelt."""
        for name in names:
            assert self.want(name) == [f"load {name}"]
            assert self.loaded(name) == []
        return self.after(self.limits.min_dwell_s)


def _word(effect: Effect) -> str:
    match effect:
        case GrantRequest():
            return f"grant {effect.request}"
        case RefuseRequest():
            return f"refuse {effect.request} {effect.kind}"
        case LoadModel():
            return f"load {effect.model}"
        case UnloadModel():
            return f"unload {effect.model}"
