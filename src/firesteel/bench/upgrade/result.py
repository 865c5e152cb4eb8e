"""The options of `upgrade`, and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from firesteel.edge.home import EngineRelease
from firesteel.values import Value

if TYPE_CHECKING:  # loads the statistics of benchmarks
    from firesteel.bench.upgrade.trial import AnswerPolicy

Outcome = Literal["switched", "kept", "newest"]


class UpgradeOptions(Value):
    to: str | None = None
    answers: AnswerPolicy = "equal"
    budget_s: float = 240.0
    measures: bool = True
    """False: it switches once the candidate is verified."""


class UpgradeResult(Value, tag_field="document", tag="firesteel.upgrade/1"):
    """`firesteel upgrade MODEL --json`"""

    model: str
    outcome: Outcome
    before: EngineRelease
    after: EngineRelease
    """What it runs now."""
    tried: EngineRelease | None
    how: Literal["beside", "after", "neither"]
    """Whether the candidate ran alongside the model, or after it."""
    reasons: tuple[str, ...]
    figures: tuple[str, ...]
