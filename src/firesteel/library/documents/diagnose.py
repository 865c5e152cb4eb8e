"""`firesteel diagnose --json`"""

from __future__ import annotations

from typing import Literal

from firesteel.engines.diagnosis import Cause, Diagnosis, Folded, PhaseMark, State
from firesteel.library.documents.document import Document


class SuspectJson(Document, kw_only=True):
    """The first error of an unknown kind."""

    line: int
    text: str


class DiagnosisJson(Document, kw_only=True):
    """`firesteel diagnose LOG --json`; `causes` has the likeliest first"""

    document: Literal["firesteel.diagnose/1"] = "firesteel.diagnose/1"
    log: str
    engine: str | None
    version: str | None
    state: State
    stage: str | None
    lines: int
    causes: tuple[Cause, ...]
    follows: tuple[Cause, ...]
    notes: tuple[Cause, ...]
    folded: tuple[Folded, ...]
    """Harmless lines that look bad."""
    suspect: SuspectJson | None
    phases: tuple[PhaseMark, ...]
    """Where the stages of the start begin."""


def diagnosis_json(log: str, diagnosis: Diagnosis) -> DiagnosisJson:
    suspect = diagnosis.suspect
    return DiagnosisJson.of(
        diagnosis,
        log=log,
        stage=diagnosis.reached.stage if diagnosis.reached else None,
        suspect=SuspectJson.of(line=suspect[0], text=suspect[1]) if suspect else None,
    )
