"""`firesteel image inspect|build|prune|watch`"""

from __future__ import annotations

import asyncio
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import SlowLines, build_line, last_of, told_on_interrupt
from firesteel.cli.output.show import LEVEL_STYLE, err, line, out
from firesteel.edge.host.signals import cancel_on_signals
from firesteel.errors import FiresteelError, escape_unprintable
from firesteel.library import documents, images
from firesteel.library.images import BuiltImage
from firesteel.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from firesteel.catalog.image import ImageProblem
    from firesteel.workshop.images.factory.policy import FactoryState, ImagePolicy
    from firesteel.workshop.images.inspect import RecipeVerdict
    from firesteel.workshop.images.report import ImageComparison, ImageReport
    from firesteel.workshop.images.sources import OpenedImage


_SHOWN_LIBRARIES = 12
_SHOWN_PARTS = 8


@click.group("image")
def command() -> None:
    """Say what is inside an image and whether it runs on a GB10; build one, and tag it once it is proved."""


@command.command("inspect")
@click.argument("reference", metavar="REF")
@click.option("--compare", "other", metavar="REF", help="Say what differs in this other image.")
@click.option("--deep", is_flag=True, help="Download the large layers of an image in a registry, too.")
@click.option("--remote", is_flag=True, help="Ask the registry, though docker has the image here.")
@click.option("--platform", metavar="OS/ARCH", help="Of an image for several (default linux/arm64).")
@options.json_option
def inspect(
    reference: str, other: str | None, deep: bool, remote: bool, platform: str | None, as_json: bool
) -> int:
    """Say what is inside an image: versions, GPU code, how it starts, and which traps it has on a GB10.

    REF is an OCI layout folder, an archive (`docker save`), an image or a container that docker has, or an
    image in a registry. Nothing is pulled, unpacked or run. Of a registry's image only small layers are read,
    unless --deep is given. `check`, `plan` and `up` use what was learnt about a complete image.

    \b
    Exits 0  it can run on a GB10
          3  something in it stops that
    """
    opened = _open(reference, platform, deep, remote)
    if other is not None:
        first = images.read_image(opened, _progress)
        second = images.read_image(_open(other, platform, deep, remote), _progress)
        _print_comparison(images.compare_images(first, second), as_json)
        return 0
    found = images.inspect_opened(opened, _progress)
    if as_json:
        options.print_json(documents.images.ImageInspectJson.of(found.report, found))
    else:
        _show(found.report, found.recipes)
    return found.exit_code


@command.command("build")
@click.argument("what", metavar="RECIPE", required=False)
@click.option("--list", "is_list", is_flag=True, help="List the recipes.")
@click.option(
    "--builder", metavar="NAME", help="Build on this builder of `docker buildx ls`, here or remote."
)
@options.json_option
def build(what: str | None, is_list: bool, builder: str | None, as_json: bool) -> None:
    """Build an image from a recipe, inspect it, start a model on it and verify that; tag it only then.

    RECIPE is a name that --list shows, or a YAML file. Stock images are enough for most: docs/images.md says
    when. What fails keeps its log under FIRESTEEL_HOME/builds and gets no tag. `firesteel render RECIPE --as
    dockerfile` prints the Dockerfile.
    """
    if is_list or what is None:
        recipes = images.image_recipes()
        if as_json:
            rows = [{"name": name, "title": it.title, "status": it.status} for name, it in recipes.items()]
            options.print_json(documents.images.ImageRecipesJson.of(recipes=rows))
            return
        for name, recipe in recipes.items():
            line(f"{name:<16} {recipe.title} ({recipe.status})")
        return
    with told_on_interrupt("nothing was tagged; docker keeps the steps that are done"):
        image = asyncio.run(last_of(images.build_image(what, builder=builder), BuiltImage))
    if as_json:
        options.print_json(image)
        return
    line(f"{image.tag}: {image.engine} {image.version}, {show_bytes(image.bytes)}")
    line(f"  verified      {', '.join(image.verified)}")
    for product in image.products:
        share = f", {product.peak_share:.0%} of the peak" if product.peak_share else ""
        line(f"  {product.format:<13} {product.tflops:.0f} TFLOPS on {product.gpu}{share}")
    line(f"  in            {show_seconds(image.seconds)}; Dockerfile, log and provenance in {image.folder}")
    _next(f"image: {images.recipe_name(what)} in a recipe of yours, or docker run {image.tag}")


@command.command("prune")
@click.option(
    "--keep", type=click.IntRange(1), default=2, show_default=True, help="Keep this many of a recipe."
)
@click.option("--yes", is_flag=True, help="Remove them; without it they are only listed.")
@options.json_option
def prune(keep: int, yes: bool, as_json: bool) -> None:
    """List or remove the images that `image build` made and nothing needs.

    The newest of each recipe stay, and so does whatever a container has, running or stopped, or your catalog
    names. Images that were built and refused go. Other images are never touched.
    """
    plan = images.plan_prune(keep)
    if yes:
        images.prune_images(plan)
    if as_json:
        shown = documents.images.ImagePruneJson.of(removed=yes, images=plan.gone, kept=plan.kept)
        options.print_json(shown)
        return
    for image in plan.gone:
        name = image.tag or f"{image.id[:19]} (refused)"
        line(f"{'removed' if yes else 'would remove'} {name}, {show_bytes(image.bytes)}")
    line(f"{plan.kept} of {len(plan.images)} images {'stay' if yes else 'would stay'}")
    if plan.gone and not yes:
        _next("firesteel image prune --yes")


def _open(reference: str, platform: str | None, deep: bool, remote: bool) -> OpenedImage:
    opened = images.open_image(reference, platform=platform, deep=deep, remote=remote)
    if opened.source == "registry":
        size = sum(layer.stored_bytes or 0 for layer in opened.layers)
        err.print(f"fetch   {len(opened.layers)} layers, {show_bytes(size)}, to be read and not kept")
    return opened


def _progress(files: int) -> None:
    if err.is_terminal:
        err.print(f"read    {files:,} files", end="\r")


def _print_comparison(comparison: ImageComparison, as_json: bool) -> None:
    if as_json:
        options.print_json(comparison)
        return
    line(f"{comparison.first} ({show_bytes(comparison.first_bytes)})")
    line(f"{comparison.second} ({show_bytes(comparison.second_bytes)})")
    for row in comparison.differences:
        line(f"  {row.what}: {row.first or 'not there'} -> {row.second or 'not there'}")
    for name, size in comparison.parts[:_SHOWN_PARTS]:
        line(f"  size of {name}: {'+' if size > 0 else '-'}{show_bytes(abs(size))}")
    for problem in comparison.gone_problems:
        line(f"  only in the first   {problem}")
    for problem in comparison.new_problems:
        line(f"  only in the second  {problem}")
    if not comparison.differences and not comparison.parts:
        line("no difference in versions, settings, GPU code or sizes")


def _show(report: ImageReport, recipes: tuple[RecipeVerdict, ...]) -> None:
    engine = f"{report.engine} {report.version}" if report.engine else "no engine that firesteel knows"
    line(f"{report.reference}: {engine}, {report.source}")
    for name, value in _rows(report):
        if value:
            line(f"  {name:<13} {value}")
    _show_gpu_code(report)
    _show_sizes(report)
    for problem in report.problems:
        _show_problem(problem)
    _show_recipes(recipes)
    if not report.is_complete:
        line(
            f"not read  {report.unread_layers} layers, {show_bytes(report.unread_bytes)}: what is in them is "
            "not known"
        )
        _next(f"firesteel image inspect {shlex.quote(report.reference)} --deep")
    elif report.engine and report.source in ("local image", "registry"):
        _next("firesteel check 'docker run ...', which now knows this image")


def _next(text: str) -> None:
    err.print(typed(f"next: {text}"), soft_wrap=True)


def _rows(report: ImageReport) -> list[tuple[str, str]]:
    start = report.start
    known = [found for found in (report.base, report.cuda, report.driver) if found]
    return [
        ("digest", report.digests[0] if report.digests else ""),
        (
            "for",
            " ".join(
                filter(
                    None,
                    (report.architecture, f"(of {', '.join(report.platforms)})" if report.platforms else ""),
                )
            ),
        ),
        *((found.name, f"{found.version}  ({found.how})") for found in (*known, *report.components)),
        ("entrypoint", " ".join((start.style + ":", *start.entrypoint)) if start.entrypoint else start.style),
        ("command", " ".join(start.command)),
        ("user", start.user),
        ("folder", start.folder),
        ("health check", " ".join(start.health_check)),
        ("ports", " ".join(start.ports)),
        ("volumes", " ".join(start.volumes)),
        *(("env", f"{name}={value}") for name, value in start.env.items()),
    ]


def _show_gpu_code(report: ImageReport) -> None:
    libraries = report.gpu_libraries
    if not libraries:
        line("  GPU code      none" + ("" if report.is_complete else " in the layers that were read"))
        return
    for library_ in libraries[:_SHOWN_LIBRARIES]:
        code = f"{', '.join((*library_.machine, *library_.ptx))}; on a GB10 {library_.on_gb10}"
        line(f"  GPU code      {library_.path} ({show_bytes(library_.bytes)}): {code}")
    rest = libraries[_SHOWN_LIBRARIES:]
    if rest:
        verdicts = sorted({library_.on_gb10 for library_ in rest})
        counts = ", ".join(
            f"{sum(library_.on_gb10 == verdict for library_ in rest)} {verdict}" for verdict in verdicts
        )
        line(f"  GPU code      {len(rest)} smaller libraries; on a GB10: {counts} (--json lists them)")


def _show_sizes(report: ImageReport) -> None:
    parts = ", ".join(f"{part.name} {show_bytes(part.bytes)}" for part in report.parts[:_SHOWN_PARTS])
    line(f"  size          {show_bytes(report.bytes)} in {report.files:,} files: {parts}")
    for part in report.waste:
        if part.bytes >= 1_000_000:
            line(f"  could go      {show_bytes(part.bytes)} {part.name}")
    for what in report.unreadable[:5]:
        line(f"  not read      {what}")


def _show_problem(problem: ImageProblem) -> None:
    head = Text(f"{problem.level:<6}", LEVEL_STYLE[problem.level]) + Text(problem.check, "bold")
    out.print(head + Text(f": {escape_unprintable(problem.says)}"))
    out.print(Text(f"      found  {escape_unprintable(problem.evidence)}"))
    out.print(Text(f"      use    {escape_unprintable(problem.instead)}"))
    out.print(Text(f"      seen   {problem.source}", style="dim"))


def _show_recipes(recipes: tuple[RecipeVerdict, ...]) -> None:
    if runs := ", ".join(verdict.recipe for verdict in recipes if verdict.can_run):
        line(f"  runs          {runs}")
    reasons: dict[str, list[str]] = {}
    for verdict in recipes:
        if not verdict.can_run:
            reasons.setdefault(verdict.stops[0], []).append(verdict.recipe)
    for reason, names in reasons.items():
        which = f"any of {len(names)} recipes" if len(names) == len(recipes) > 1 else ", ".join(names)
        line(f"  cannot run    {which}: {reason}")


# --- images that follow upstream ---


_SHOWN_RELEASES = 10


@command.command("watch")
@click.argument("path", metavar="[FILE]", required=False, type=options.PATH)
@click.option(
    "--dry-run", is_flag=True, help="Look upstream, and say what would be done next; change nothing."
)
@click.option("--status", is_flag=True, help="Show how far each release has come, and look at nothing.")
@click.option("--again", metavar="TAG", help="Try a refused release once more.")
@options.json_option
def watch(path: Path | None, dry_run: bool, status: bool, again: str | None, as_json: bool) -> int:
    """Build new upstream releases, compare them with the current image, promote or refuse them.

    FILE says which (default FIRESTEEL_HOME/factory.yaml; docs/images.md has an example). Does what is due now
    and ends: a timer or a workflow runs it again (`firesteel render FILE --as timer|workflow`). What was
    interrupted is continued.

    \b
    Exits 0  done, or nothing was due
          1  a release was refused, or upstream could not be asked
    """
    path = images.policy_file(path)
    policies = images.read_policies(path)
    done: dict[str, list[str]] = {name: [] for name in policies}
    problems: list[FiresteelError] = []
    if again:
        images.try_again(policies, again)
    if not status:
        for name, policy in policies.items():
            try:
                with told_on_interrupt("the same command resumes where it left off"):
                    asyncio.run(_run_policy(path, name, policy, done[name], dry_run))
            except FiresteelError as error:  # the other images do not depend on it
                problems.append(error)
    states = {name: images.policy_state(name) for name in policies}
    _show_releases(states, done, as_json)
    if problems:
        raise problems[0]
    return int(any("refused" in line for lines in done.values() for line in lines))


async def _run_policy(path: Path, name: str, policy: ImagePolicy, done: list[str], dry_run: bool) -> None:
    cancel_on_signals()
    if dry_run:
        done.append(await images.next_action(path, name, policy))
        return
    lines = SlowLines()
    async for event in images.run_policy(path, name, policy):
        if isinstance(event, str):
            done.append(event)
            lines.print(f"{name}: {escape_unprintable(event)}")
        else:
            lines.print(f"{name}: {build_line(event)}")


def _show_releases(states: dict[str, FactoryState], done: dict[str, list[str]], as_json: bool) -> None:
    if as_json:
        shown = tuple(
            documents.images.FactoryImageJson.of(
                name=name,
                looked=_day(state.looked_s) if state.looked_s else None,
                current=state.current.tag if state.current else None,
                releases=state.releases,
                done=tuple(done[name]),
            )
            for name, state in states.items()
        )
        options.print_json(documents.images.ImageWatchJson.of(images=shown))
        return
    for name, state in states.items():
        looked = f"looked {_day(state.looked_s)}" if state.looked_s else "never looked"
        line(f"{name}: {looked}; current {state.current.image_tag if state.current else 'none'}")
        for action in done[name]:
            line(f"  now           {action}")
        for found in state.releases[:_SHOWN_RELEASES]:
            why = f": {'; '.join(found.why)}" if found.why else ""
            stage = "current" if found == state.current else found.stage
            line(f"  {found.tag:<13} {stage}{why}")
        if len(state.releases) > _SHOWN_RELEASES:
            line(f"  ... and {len(state.releases) - _SHOWN_RELEASES} older ones (--json lists them)")


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
