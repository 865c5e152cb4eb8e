"""`image inspect`: opens an image, reads its files once, and says what is inside and what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path

from firesteel.catalog.catalog import Catalog
from firesteel.catalog.image import ImageInspection, with_inspections
from firesteel.catalog.launches import from_recipe
from firesteel.edge.home import Home, write_text
from firesteel.edge.records import inspections_folder
from firesteel.images.contents import read_contents
from firesteel.images.layers import Counts, ImageFile, visible_files
from firesteel.images.report import ImageReport, inspection, make_report
from firesteel.images.sources import OpenedImage
from firesteel.images.traps import with_problems
from firesteel.launch import Ask
from firesteel.rules.checker import Finding, check
from firesteel.values import Value, plain, replace

_PROGRESS_EVERY = 2_000


def inspect_image(
    opened: OpenedImage, scratch: Path, on_files: Callable[[int], None] = lambda files: None
) -> ImageReport:
    """Reads every layer that was opened. `scratch`: a folder for large libraries while they are read."""
    counts = Counts()
    files = _counted(visible_files(opened.layers, counts), on_files)
    contents = read_contents(files, scratch)
    report = make_report(opened, contents, counts, date.today().isoformat())
    return with_problems(report, contents, counts)


def _counted(files: Iterator[ImageFile], on_files: Callable[[int], None]) -> Iterator[ImageFile]:
    for index, file in enumerate(files):
        if index % _PROGRESS_EVERY == 0:
            on_files(index)
        yield file


def save_inspection(home: Home, report: ImageReport) -> Path | None:
    """Kept by digest, for `check`, `plan` and `up`; None when the image has none, or was read in part."""
    if not report.digests or not report.is_complete:
        return None
    path = inspections_folder(home) / f"{report.digests[0].replace(':', '-')}.json"
    write_text(path, json.dumps(plain(inspection(report)), indent=1) + "\n")
    return path


class RecipeVerdict(Value):
    """Whether the image can run a recipe of the catalog."""

    recipe: str
    model: str
    can_run: bool
    stops: tuple[str, ...]
    """The rules that stop it: `rule: what it says`."""
    warnings: tuple[str, ...]


def judge_recipes(report: ImageReport, catalog: Catalog) -> tuple[RecipeVerdict, ...]:
    """Every recipe for the engine inside, as if it named this image, under the rules for a GB10."""
    found = inspection(report)
    if found.engine is None:
        return ()
    reference = report.reference if re.fullmatch(r"[\w./:@-]+", report.reference) else "image"
    learned = replace(found, reference=reference)
    return tuple(
        _judge(name, catalog, learned)
        for name, recipe in sorted(catalog.recipes.items())
        if recipe.engine == found.engine and catalog.images.named[recipe.image].reference
    )


def _judge(name: str, catalog: Catalog, found: ImageInspection) -> RecipeVerdict:
    recipe = catalog.recipes[name]
    named = replace(catalog.images.named[recipe.image], reference=found.reference)
    images = replace(catalog.images, named={**catalog.images.named, recipe.image: named})
    images = with_inspections(images, [found])
    launch = from_recipe(replace(catalog, images=images), recipe, Ask(recipe.name))
    findings = check(launch, hardware="gb10", images=images)
    stops = _texts([finding for finding in findings if finding.level == "stop"])
    warnings = _texts([finding for finding in findings if finding.level == "warn"])
    return RecipeVerdict(recipe.name, recipe.model, not stops, stops, warnings)


def _texts(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(f"{finding.rule}: {finding.says}" for finding in findings)
