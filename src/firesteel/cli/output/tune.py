"""The settings that `tune` searches, its trials and its result, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import table
from firesteel.library.tune import interval_of

if TYPE_CHECKING:
    from firesteel.bench.tune.journal import Trial
    from firesteel.bench.tune.outcome import SpacePlanned, TuneResult
    from firesteel.bench.tune.search import SearchSpace

ROLES = {"search": "", "confirm": "best, again", "twin": "drafting switched", "start": "start-up time"}
"""What a trial is for."""


def setting_text(changes: Mapping[str, str]) -> str:
    return ", ".join(f"{knob} {label}" for knob, label in changes.items()) or "as it is"


def space_text(event: SpacePlanned) -> str:
    names = ", ".join(f"{knob.name} ({len(knob.choices)})" for knob in event.space.knobs)
    refused = f"; {len(event.refused)} changes will not be tried" if event.refused else ""
    return f"{names or 'nothing to change'}: {event.space.size} settings{refused}"


def space_view(space: SearchSpace) -> RenderableType:
    """What would be tried, and what would not."""
    rows = [
        (knob.name, ", ".join(knob.labels), knob.labels[index], knob.why)
        for knob, index in zip(space.knobs, space.start, strict=True)
    ]
    return Group(table(("setting", "choices", "now", "why"), rows), *_refused_view(space))


def _refused_view(space: SearchSpace) -> list[RenderableType]:
    refused = [(setting_text(changes), why) for changes, why in space.refused()]
    return ["", table(("not tried", "why"), refused)] if refused else []


def outcome(trial: Trial) -> str:
    if trial.failed:
        return f"failed: {trial.failed}"
    interval = interval_of(trial)
    if interval is None:
        return f"up in {trial.start_s or 0:.1f} s"
    end = ", clearly slower than the best" if trial.was_beaten else ""
    return f"{interval.value:.1f} tok/s \u00b1{interval.half_width:.1%}{end}"


def view(result: TuneResult) -> RenderableType:
    journal, space = result.journal, result.space
    rows = [
        (
            str(number),
            setting_text(space.changes(space.setting(trial.labels))),
            ROLES[trial.role],
            outcome(trial),
            trial.run or "",
        )
        for number, trial in enumerate(journal.trials, 1)
    ]
    parts: list[RenderableType] = [table(("run", "setting", "", "result", "history"), rows)]
    parts += _refused_view(space)
    if result.advice:
        parts += ["", *result.advice]
    parts += ["", result.text, *result.notes]
    if result.recipe:
        parts.append(f"recipe {result.recipe}: {result.recipe_path}")
    if result.running:
        setting = "with the better setting" if result.is_better else "as it was"
        parts.append(f"{result.running} runs, {setting}")
    next_ = f"bench {result.running}" if result.running else f"up {result.recipe or journal.name}"
    parts.append(typed(f"\nnext: firesteel {next_}"))
    return Group(*parts)
