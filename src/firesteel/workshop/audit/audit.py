"""A checkpoint, read and judged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from firesteel.edge.contents import read_contents
from firesteel.facts.model.contents import CheckpointContents
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.rules.checkpoint.judge import CheckpointSummary, judge, summarize_checkpoint
from firesteel.rules.checkpoint.subject import AuditSubject
from firesteel.values import Value
from firesteel.workshop.audit.deep import read_everything


class AuditReport(Value):
    model: str
    summary: CheckpointSummary
    findings: tuple[CheckpointFinding, ...]
    is_deep: bool
    read_bytes: int
    seconds: float
    unread: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Nothing that an engine would stumble over; notes do not count."""
        return all(found.level == "note" for found in self.findings)

    @property
    def exit_code(self) -> int:
        """3: an engine refuses it, or answers with garbage; 1: it is worse than it should be."""
        if any(found.level == "stop" for found in self.findings):
            return 3
        return 0 if self.is_clean else 1

    @property
    def mendable(self) -> tuple[CheckpointFinding, ...]:
        return tuple(found for found in self.findings if found.mend and found.level != "note")


def audit(
    model: str,
    *,
    deep: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    environ: Mapping[str, str] = os.environ,
) -> AuditReport:
    """`deep` reads every byte: weights, all scales, digests. `on_progress` gets the bytes done, and all."""
    began = time.monotonic()
    contents = read_contents(model, environ)
    if deep:
        contents = read_everything(contents, on_progress, environ)
    return report(contents, time.monotonic() - began)


def report(contents: CheckpointContents, seconds: float = 0.0) -> AuditReport:
    subject = AuditSubject(contents)
    return AuditReport(
        contents.origin,
        summarize_checkpoint(subject),
        judge(subject),
        contents.is_deep,
        contents.read_bytes,
        seconds,
        contents.unread,
    )
