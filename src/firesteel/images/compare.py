"""`image inspect A --compare B`: what differs between two images. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from firesteel.images.report import ImageReport
from firesteel.values import Value


class ImageDifference(Value):
    what: str
    first: str | None
    """None: only the other image has it."""
    second: str | None


class ImageComparison(Value):
    first: str
    second: str
    differences: tuple[ImageDifference, ...]
    """Versions, settings, variables and the code of GPU libraries."""
    first_bytes: int
    second_bytes: int
    parts: tuple[tuple[str, int], ...]
    """Part -> how many bytes more the second one has, the largest change first."""
    new_problems: tuple[str, ...]
    """`check: what it says`, only in the second."""
    gone_problems: tuple[str, ...]


def compare_reports(first: ImageReport, second: ImageReport) -> ImageComparison:
    return ImageComparison(
        first.reference,
        second.reference,
        tuple(_differences(first, second)),
        first.bytes,
        second.bytes,
        _parts(first, second),
        tuple(sorted(_problems(second) - _problems(first))),
        tuple(sorted(_problems(first) - _problems(second))),
    )


def _differences(first: ImageReport, second: ImageReport) -> Iterator[ImageDifference]:
    ours, theirs = _facts(first), _facts(second)
    for name in dict.fromkeys((*ours, *theirs)):
        if ours.get(name) != theirs.get(name):
            yield ImageDifference(name, ours.get(name), theirs.get(name))


def _facts(report: ImageReport) -> Mapping[str, str]:
    start = report.start
    facts = {
        "architecture": report.architecture or "",
        "base": report.base.version if report.base else "",
        "cuda": report.cuda.version if report.cuda else "",
        "entrypoint": " ".join(start.entrypoint),
        "command": " ".join(start.command),
        "user": start.user,
        "health check": " ".join(start.health_check),
        "ports": " ".join(start.ports),
        "volumes": " ".join(start.volumes),
    }
    versions: dict[str, str] = {}
    for component in report.components:
        before = versions.get(component.name)
        versions[component.name] = f"{before}, {component.version}" if before else component.version
    env = {f"env {name}": value for name, value in start.env.items()}
    code = {
        f"GPU code of {library.path}": ", ".join((*library.machine, *library.ptx))
        for library in report.gpu_libraries
    }
    return {name: value for name, value in {**facts, **versions, **env, **code}.items() if value}


def _parts(first: ImageReport, second: ImageReport) -> tuple[tuple[str, int], ...]:
    change = {part.name: part.bytes for part in second.parts}
    for part in first.parts:
        change[part.name] = change.get(part.name, 0) - part.bytes
    changed = [(name, size) for name, size in change.items() if size]
    return tuple(sorted(changed, key=lambda row: (-abs(row[1]), row[0])))


def _problems(report: ImageReport) -> set[str]:
    return {f"{problem.check}: {problem.says}" for problem in report.problems}
