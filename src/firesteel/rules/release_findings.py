"""What another release of its engine breaks in a recipe: flags, values, JSON keys and parsers."""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.catalog.image import Images
from firesteel.launch import Launch
from firesteel.rules.checker import check
from firesteel.rules.rule import Level
from firesteel.values import Value, replace


class ReleaseFinding(Value):
    recipe: str
    level: Level
    rule: str
    says: str
    instead: str | None


def release_findings(
    launch: Launch, version: str, hardware: str | None, images: Images
) -> Iterator[ReleaseFinding]:
    """Stops and warnings that the launch of a recipe has with this release, and not with its own.

    Its image is of its own release and would say so: only engine and flags are compared.
    """
    own = replace(launch, container=None)
    known = {finding.rule for finding in check(own, hardware=hardware, images=images)}
    for finding in check(replace(own, version=version), hardware=hardware, images=images):
        if finding.level in ("stop", "warn") and finding.rule not in known:
            yield ReleaseFinding(launch.name, finding.level, finding.rule, finding.says, finding.instead)
