"""Container images: inspected, compared, built, followed upstream, removed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.edge.home import find_home
from firesteel.edge.programs.build import BuildProgress
from firesteel.errors import UsageError
from firesteel.values import Value
from firesteel.workshop.images.built import BuiltImage

if TYPE_CHECKING:  # loaded only by those who use them
    from firesteel.catalog.image_recipe import ImageRecipe
    from firesteel.workshop.images.factory.policy import FactoryState, ImagePolicy
    from firesteel.workshop.images.inspect import RecipeVerdict
    from firesteel.workshop.images.report import ImageComparison, ImageReport
    from firesteel.workshop.images.retention import OwnImage
    from firesteel.workshop.images.sources import OpenedImage

__all__ = ["BuildProgress", "BuiltImage"]  # events of its functions
FilesRead = Callable[[int], None]
"""Gets how many files were read so far."""


class Inspection(Value):
    """What is inside an image, which recipes it can serve, and where that was stored."""

    report: ImageReport
    recipes: tuple[RecipeVerdict, ...]
    saved: Path | None
    """None: the image was not read as a whole."""

    @property
    def exit_code(self) -> int:
        """3: something in it stops it on a GB10."""
        return 3 if any(problem.level == "stop" for problem in self.report.problems) else 0


class PrunePlan(Value):
    """The images that `build_image` made: all of them, and those that nothing needs."""

    images: tuple[OwnImage, ...]
    gone: tuple[OwnImage, ...]

    @property
    def kept(self) -> int:
        return len(self.images) - len(self.gone)


def open_image(
    reference: str, *, deep: bool = False, remote: bool = False, platform: str | None = None
) -> OpenedImage:
    """An OCI folder, an archive, an image that docker has, or one in a registry; nothing is pulled."""
    from firesteel.workshop.images import sources

    return sources.open_image(reference, platform=platform, deep=deep, remote=remote)


def read_image(opened: OpenedImage, on_progress: FilesRead = lambda files: None) -> ImageReport:
    from firesteel.workshop.images import inspect

    return inspect.inspect_image(opened, find_home().root / "tmp", on_progress)


def inspect_image(
    reference: str, *, deep: bool = False, remote: bool = False, platform: str | None = None
) -> ImageReport:
    """What is inside an image; kept by digest for `check`, `plan` and `up`."""
    return inspect_opened(open_image(reference, deep=deep, remote=remote, platform=platform)).report


def inspect_opened(opened: OpenedImage, on_progress: FilesRead = lambda files: None) -> Inspection:
    """The same, with the recipes that it can serve."""
    from firesteel.library.plans import catalog
    from firesteel.workshop.images import inspect

    report = read_image(opened, on_progress)
    saved = inspect.save_inspection(find_home(), report)
    return Inspection(report, inspect.judge_recipes(report, catalog()), saved)


def compare_images(first: ImageReport, second: ImageReport) -> ImageComparison:
    from firesteel.workshop.images.report import compare_reports

    return compare_reports(first, second)


# --- built here ---


def image_recipes() -> Mapping[str, ImageRecipe]:
    """The recipes for images that `build_image` knows by name."""
    from firesteel.catalog.image_recipe import image_recipe, image_recipe_names

    return {name: image_recipe(name) for name in image_recipe_names()}


def recipe_name(recipe: str) -> str:
    """Of a recipe for an image that is a name or a file."""
    from firesteel.edge.records import load_image_recipe

    return load_image_recipe(recipe)[0]


def build_image(recipe: str, *, builder: str | None = None) -> AsyncIterator[BuildProgress | BuiltImage]:
    """Build, inspect, start, verify and tag an image. The last event is `BuiltImage`.

    `builder`: one of `docker buildx ls`.
    """
    from firesteel.edge.records import load_image_recipe
    from firesteel.workshop.images import build

    return build.build_image(find_home(), *load_image_recipe(recipe), builder)


def plan_prune(keep: int = 2) -> PrunePlan:
    """The newest `keep` of each recipe stay, and so does what a container has or the user's catalog names."""
    from firesteel.edge.docker.image_sources import find_container_runtime
    from firesteel.workshop.images import retention
    from firesteel.workshop.images.factory.factory import all_candidates

    home, runtime = find_home(), find_container_runtime()
    stock = retention.image_stock(runtime, home)
    gone = retention.removable(stock.images, stock.used | all_candidates(home), stock.named, keep)
    return PrunePlan(stock.images, gone)


def prune_images(plan: PrunePlan) -> None:
    from firesteel.edge.docker.image_sources import find_container_runtime
    from firesteel.workshop.images import retention

    runtime = find_container_runtime()
    for image in plan.gone:
        retention.remove(runtime, image)


# --- followed upstream ---


def policy_file(path: Path | None = None) -> Path:
    return path or find_home().root / "factory.yaml"


def read_policies(path: Path) -> Mapping[str, ImagePolicy]:
    """What to build when upstream has a release, by the name of the image."""
    from firesteel.workshop.images.factory import policy

    return policy.read_policies(path)


def try_again(names: Mapping[str, ImagePolicy], tag: str) -> None:
    """Try a refused release once more."""
    from firesteel.workshop.images.factory import factory

    if not sum(factory.try_again(find_home(), name, tag) for name in names):
        raise UsageError(f"no release {tag} was refused", next="firesteel image watch --status")


async def next_action(path: Path, name: str, policy: ImagePolicy) -> str:
    """What `run_policy` would do next; nothing is changed."""
    from firesteel.workshop.images.factory import effects, factory
    from firesteel.workshop.images.factory.policy import policy_recipe

    docker = effects.DockerFactory(find_home(), name, policy, policy_recipe(path, policy))
    return await factory.next_action(name, policy, docker, find_home(), time.time())


async def run_policy(path: Path, name: str, policy: ImagePolicy) -> AsyncGenerator[BuildProgress | str]:
    """Do what is due: build, compare, promote or refuse; a sentence for each thing that was done."""
    from firesteel.workshop.images.factory import effects, factory
    from firesteel.workshop.images.factory.policy import policy_recipe

    docker = effects.DockerFactory(find_home(), name, policy, policy_recipe(path, policy))
    async for event in factory.run_policy(name, policy, docker, find_home(), time.time):
        yield factory.action_line(event) if isinstance(event, factory.ActionDone) else event


def policy_state(name: str) -> FactoryState:
    """How far each release has come."""
    from firesteel.workshop.images.factory import factory

    return factory.read_factory_state(find_home(), name)
