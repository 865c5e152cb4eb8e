"""A schedule and a clock, with short words for both: `play.ask(1, "a") == ["load a"]`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firesteel.gateway.schedule import Schedule
from firesteel.gateway.schedule_words import (
    Asked,
    Changed,
    Crashed,
    Effect,
    Event,
    Failed,
    Finished,
    Gone,
    Grant,
    Left,
    Limits,
    Load,
    Loaded,
    Memory,
    Model,
    Refuse,
    Ticked,
    Unload,
    Wanted,
)

CEILING = 100


class Play:
    """Bytes are small numbers, and the ceiling is 100, unless told."""

    def __init__(self, *models: Model, **limits: Any) -> None:
        self.now_s = 0.0
        self.limits = Limits(**{"ceiling_bytes": CEILING, "min_dwell_s": 60.0, "max_wait_s": 120.0, **limits})
        self.models = models
        self.schedule = Schedule(models, self.limits, self.now_s)
        self.refused: dict[object, Refuse] = {}
        self.first = self.tell(Ticked())

    def after(self, seconds: float) -> Play:
        self.now_s += seconds
        return self

    def tell(self, event: Event) -> list[str]:
        effects = self.schedule.tell(event, self.now_s)
        self.refused.update({each.request: each for each in effects if isinstance(each, Refuse)})
        return [_word(each) for each in effects]

    def ask(self, request: int, model: str, priority: int = 0) -> list[str]:
        return self.tell(Asked(request, model, priority))

    def leave(self, request: int) -> list[str]:
        return self.tell(Left(request))

    def finish(self, request: int) -> list[str]:
        return self.tell(Finished(request))

    def loaded(self, model: str, measured: int | None = None) -> list[str]:
        return self.tell(Loaded(model, measured))

    def failed(self, model: str, why: str = "no memory") -> list[str]:
        return self.tell(Failed(model, why))

    def gone(self, model: str) -> list[str]:
        return self.tell(Gone(model))

    def crashed(self, model: str, *, is_returning: bool = False) -> list[str]:
        return self.tell(Crashed(model, "it died", is_returning))

    def want(self, model: str) -> list[str]:
        return self.tell(Wanted(model, True))

    def unwant(self, model: str) -> list[str]:
        return self.tell(Wanted(model, False))

    def memory(self, available: int, keep: int = 0) -> list[str]:
        return self.tell(Memory(available, keep))

    def change(self, *models: Model, **limits: Any) -> list[str]:
        self.limits = replace(self.limits, **limits)
        return self.tell(Changed(models, self.limits))

    def tick(self) -> list[str]:
        return self.tell(Ticked())

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
        case Grant():
            return f"grant {effect.request}"
        case Refuse():
            return f"refuse {effect.request} {effect.kind}"
        case Load():
            return f"load {effect.model}"
        case Unload():
            return f"unload {effect.model}"
