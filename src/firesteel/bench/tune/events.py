"""What a tune reports while it runs, and its result at the end."""

from __future__ import annotations

from pathlib import Path

from firesteel.bench.compare.stats import FigureDifference
from firesteel.bench.load.measure import RunProgress
from firesteel.bench.tune.journal import Journal, Role, Trial
from firesteel.bench.tune.space import SearchSpace
from firesteel.bench.tune.summary import DraftRow
from firesteel.run.events import Event as RunEvent
from firesteel.values import Value


class SpacePlanned(Value):
    """What can be tried."""

    space: SearchSpace
    refused: tuple[tuple[dict[str, str], str], ...]
    """Single changes that are never tried, with the reason."""


class TrialStarted(Value):
    number: int
    role: Role
    changes: dict[str, str]


class TrialFinished(Value):
    number: int
    trial: Trial
    changes: dict[str, str]


class TuneResult(Value):
    journal: Journal
    space: SearchSpace
    changes: dict[str, str]
    """Of the best setting, against the one before."""
    is_better: bool
    difference: FigureDifference
    text: str
    drafts: tuple[DraftRow, ...] = ()
    advice: tuple[str, ...] = ()
    recipe: str | None = None
    """Its name in the catalog."""
    recipe_path: Path | None = None
    running: str | None = None
    notes: tuple[str, ...] = ()


Event = RunEvent | RunProgress | SpacePlanned | TrialStarted | TrialFinished | TuneResult
