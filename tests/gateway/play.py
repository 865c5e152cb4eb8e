"""A scheduler with a clock, driven in short calls: `play.ask(1, "a") == ["load a"]`."""

from __future__ import annotations

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
    RejectRequest,
    RequestAbandoned,
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
from firesteel.values import replace

CEILING = 100


def scheduled(
    name: str,
    bytes: int,
    load_s: float = 60.0,
    pinned: bool = False,
    ttl_s: float | None = None,
    is_outside: bool = False,
    identity: str = "",
) -> ModelConfig:
    """A model with what a scheduler looks at."""
    return ModelConfig(name, identity, (), bytes, load_s, is_outside=is_outside, pinned=pinned, ttl_s=ttl_s)


class Play:
    """Sizes are small numbers; the ceiling is 100 bytes by default."""

    def __init__(self, *models: ModelConfig, **limits: Any) -> None:
        self.now_s = 0.0
        self.limits = SchedulerLimits(
            **{"ceiling_bytes": CEILING, "min_dwell_s": 60.0, "max_wait_s": 120.0, **limits}
        )
        self.models = models
        self.scheduler = Scheduler(models, self.limits, self.now_s)
        self.rejected: dict[object, RejectRequest] = {}
        self.first = self.handle(TimePassed())

    def after(self, seconds: float) -> Play:
        self.now_s += seconds
        return self

    def handle(self, event: SchedulerEvent) -> list[str]:
        effects = self.scheduler.handle(event, self.now_s)
        self.rejected.update(
            {effect.request: effect for effect in effects if isinstance(effect, RejectRequest)}
        )
        return [_text(effect) for effect in effects]

    def ask(self, request: int, model: str, priority: int = 0, key: str = "") -> list[str]:
        return self.handle(RequestArrived(request, model, priority, key))

    def leave(self, request: int) -> list[str]:
        return self.handle(RequestAbandoned(request))

    def finish(self, request: int) -> list[str]:
        return self.handle(RequestFinished(request))

    def give_back(self, request: int, model: str) -> list[str]:
        return self.handle(RequestReturned(request, model))

    def loaded(self, model: str, measured: int | None = None) -> list[str]:
        return self.handle(ModelLoaded(model, measured))

    def failed(self, model: str, why: str = "no memory") -> list[str]:
        return self.handle(LoadFailed(model, why))

    def gone(self, model: str) -> list[str]:
        return self.handle(ModelUnloaded(model))

    def crashed(self, model: str, *, is_returning: bool = False) -> list[str]:
        return self.handle(ModelCrashed(model, "it died", is_returning))

    def load(self, model: str) -> list[str]:
        return self.handle(LoadRequested(model, True))

    def unload(self, model: str) -> list[str]:
        return self.handle(LoadRequested(model, False))

    def cancel(self, model: str) -> list[str]:
        return self.handle(LoadRequested(model, False, cancels=True))

    def memory(self, available: int, keep: int = 0) -> list[str]:
        return self.handle(MemoryReading(available, keep))

    def change(self, *models: ModelConfig, **limits: Any) -> list[str]:
        self.limits = replace(self.limits, **limits)
        return self.handle(ConfigChanged(models, self.limits))

    def tick(self) -> list[str]:
        return self.handle(TimePassed())

    def tick_when_due(self) -> list[str]:
        due_s = self.scheduler.next_tick_s(self.now_s)
        assert due_s is not None
        self.now_s = due_s
        return self.tick()

    def up(self, *names: str) -> Play:
        """Load these, and wait until their minimum dwell is over."""
        for name in names:
            assert self.load(name) == [f"load {name}"]
            assert self.loaded(name) == []
        return self.after(self.limits.min_dwell_s)


def _text(effect: Effect) -> str:
    match effect:
        case GrantRequest():
            return f"grant {effect.request}"
        case RejectRequest():
            return f"reject {effect.request} {effect.kind}"
        case LoadModel():
            return f"load {effect.model}"
        case UnloadModel():
            return f"unload {effect.model}"
