"""What `upgrade` prints with `--json`."""

from __future__ import annotations

from typing import Literal

from firesteel.bench.upgrade.result import Outcome
from firesteel.edge.home import EngineRelease
from firesteel.library.documents.document import Document


class UpgradeJson(Document, kw_only=True):
    """`firesteel upgrade MODEL --json`"""

    document: Literal["firesteel.upgrade/1"] = "firesteel.upgrade/1"
    model: str
    outcome: Outcome
    before: EngineRelease
    after: EngineRelease
    tried: EngineRelease | None
    how: Literal["beside", "after", "neither"]
    reasons: tuple[str, ...]
    figures: tuple[str, ...]
