"""`firesteel recipe new|test|share|list|adopt`"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.catalog import Catalog
from firesteel.catalog.recipe import Recipe, Setting, flag_value, read_recipe
from firesteel.catalog.recipe_text import dump_recipe
from firesteel.catalog.shelf import reasons
from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import findings_view, out, table, verdict
from firesteel.edge.files import text_files
from firesteel.edge.files.home import find_home, shelf_files, write_text
from firesteel.edge.host.machine_files import SIM
from firesteel.errors import UsageError
from firesteel.launch import Ask
from firesteel.library import documents, run
from firesteel.printable import printable
from firesteel.workspace import find_workspace

if TYPE_CHECKING:
    from firesteel.proposals import Proposal


@click.group("recipe")
def command() -> None:
    """Write, test and share recipes.

    Recipes by others go into a folder of their own, `others` under FIRESTEEL_HOME, as files or a git
    checkout. They are trusted with flags alone: no environment, no files or packages, no images or models
    that the catalog does not have. `adopt` makes one of them your own, after you have read it.
    """


@command.command("new")
@click.argument("name")
@click.option("--from", "base", required=True, metavar="NAME", help="Begin with this service or recipe.")
@common.size_options
@click.option("--flag", "flags", multiple=True, metavar="NAME=VALUE", help="Set this flag, too; repeatable.")
@click.option("--why", default="set by hand", show_default=True, help="Give the reason of these flags.")
@click.option("--write", is_flag=True, help="Write it to your own catalog.")
@common.json_option
def new(
    name: str,
    base: str,
    context: int | None,
    users: int | None,
    port: int | None,
    flags: tuple[str, ...],
    why: str,
    write: bool,
    as_json: bool,
) -> None:
    """Print a recipe NAME like a running service or another recipe, or write it to your own catalog."""
    from firesteel.proposals.new_recipe import recipe_of_launch

    services = {service.name: service for service in run.services()}
    ask = replace(services[base].spec.ask, name=None) if base in services else Ask(base)
    ask = replace(ask, context=context or ask.context, users=users or ask.users, port=port)
    workspace = find_workspace()
    proposal = workspace.propose(ask, workspace.host("gb10"))[0]
    if proposal.recipe is None:
        raise UsageError(f"{base} has no recipe to begin with", next="firesteel models")
    recipe = recipe_of_launch(proposal.recipe, proposal, {})
    settings = {**recipe.flags, **_settings(flags, why)}
    recipe = replace(recipe, name=name, title=f"{recipe.title}, as {name}", flags=settings, status="untried")
    text = dump_recipe(recipe)
    path = find_home().catalog / "recipes" / f"{name}.yaml" if write else None
    if path:
        _write_own(path, text)
    if as_json:
        written = str(path) if path else None
        common.print_json(documents.recipe.RecipeNewJson(name=name, text=text, path=written))
        return
    if path is None:
        click.echo(text, nl=False)
        click.echo("--write puts it into your own catalog", err=True)
    else:
        out.print(typed(f"wrote {path}; next: firesteel recipe test {name}"))


def _settings(flags: Sequence[str], why: str) -> dict[str, Setting]:
    settings = {}
    for given in flags:
        name, equals, value = given.removeprefix("--").partition("=")
        settings[name] = Setting(flag_value(value) if equals else True, why)
    return settings


def _write_own(path: Path, text: str) -> None:
    if path.exists():
        raise UsageError(f"{path} exists already", next="another NAME, or remove the file")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


@command.command("test")
@click.argument("recipe", metavar="NAME|FILE")
@common.host_option
@common.json_option
def test(recipe: str, host_name: str | None, as_json: bool) -> int:
    """Read, plan and check a recipe, and say what it asks for beyond flags.

    Exits 4 when it does not fit, 3 when a rule stops it.
    """
    found, more, proposal = _tested(recipe, host_name)
    passed = not proposal.exit_code
    if as_json:
        document = documents.recipe.RecipeTestJson(
            name=found.name,
            path=found.path,
            more_than_flags=more,
            plan=documents.proposals.plan_json(proposal),
            passed=passed,
        )
        common.print_json(document)
    else:
        out.print(f"{found.name}  {found.path}")
        out.print(verdict(proposal))
        if proposal.findings:
            out.print(findings_view(proposal.findings))
        _print_more(more)
        out.print(typed(f"next: firesteel {f'plan {found.name}' if passed else 'models'}"), soft_wrap=True)
    return proposal.exit_code


def _print_more(more: tuple[str, ...]) -> None:
    for reason in more:
        out.print(f"asks for more than flags: {reason}")


def _tested(name: str, host_name: str | None) -> tuple[Recipe, tuple[str, ...], Proposal]:
    from firesteel.catalog.catalog import overlay
    from firesteel.proposals import propose

    workspace = find_workspace()
    known = workspace.catalog
    if name.endswith(".yaml"):
        path = Path(name)
        known = overlay(known, [(f"recipes/{path.name}", text_files.read_text(path))])
        name = path.stem
    found = _known(known, name)
    proposal = propose(known, workspace.host(host_name or "gb10"), Ask(name))[0]
    return found, tuple(reasons(found, known)), proposal


def _known(catalog: Catalog, name: str) -> Recipe:
    if name not in catalog.recipes:
        raise UsageError(f"there is no recipe `{printable(name, 80)}`", next="firesteel recipe list")
    return catalog.recipes[name]


@command.command("share")
@click.argument("name")
@click.option(
    "--to", "folder", default=".", type=click.Path(path_type=Path, file_okay=False), help="Write here."
)
@click.option("--patch", is_flag=True, help="Write a patch for firesteel's own catalog, too.")
@common.json_option
def share(name: str, folder: Path, patch: bool, as_json: bool) -> None:
    """Write recipe NAME as a file that others can drop in, with what was measured here beside it."""
    from firesteel.proposals.new_recipe import catalog_patch

    workspace = find_workspace()
    recipe = _known(workspace.catalog, name)
    text = dump_recipe(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / f"{name}.yaml": text}
    if measured := _measured(name):
        files[folder / f"{name}.measured.json"] = measured
    if patch:
        files[folder / f"{name}.patch"] = catalog_patch(recipe, text)
    for path, content in files.items():
        text_files.write_new(path, content)
    more = tuple(reasons(recipe, workspace.catalog))
    if as_json:
        written = tuple(map(str, files))
        common.print_json(documents.recipe.RecipeShareJson(name=name, files=written, more_than_flags=more))
        return
    for path in files:
        out.print(f"wrote {path}")
    if not measured:
        out.print(typed(f"nothing was measured here; firesteel up {name} and firesteel bench {name} would"))
    _print_more(more)


def _measured(name: str) -> str | None:
    """Planned and measured figures of the last start here, as JSON."""
    import json
    from dataclasses import asdict

    from firesteel.run.report import read_report
    from firesteel.run.service import load

    service = load(find_home(), name)
    try:
        report = read_report(service.report or {}) if service else None
    except ValueError:
        report = None
    if report is None:
        return None
    document = {
        "engine": report.engine, "version": report.version, "first_token_ms": report.first_token_ms,
        "start_s": report.start_s, "verified": report.is_verified, "simulated": SIM in os.environ,
        "compared": [asdict(row) for row in report.compared],
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


@command.command("list")
@common.json_option
def list_(as_json: bool) -> None:
    """List your own recipes, those by others, and those that were refused, with the reason."""
    workspace = find_workspace()
    home = find_home()
    paths = {name: Path(recipe.path) for name, recipe in workspace.catalog.recipes.items()}
    own = tuple(name for name, path in paths.items() if path.is_relative_to(home.catalog))
    others = tuple(name for name, path in paths.items() if path.is_relative_to(home.others))
    refused = workspace.refused_recipes
    if as_json:
        common.print_json(documents.recipe.RecipeListJson(own=own, others=others, refused=refused))
        return
    rows = [(name, "yours", "") for name in own] + [(name, "by others", "") for name in others]
    rows += [(row.name, "refused", row.why) for row in refused]
    if rows:
        out.print(table(("name", "whose", "why"), rows))
    else:
        out.print(typed(f"no recipes but those that ship; those by others go into {home.others}"))


@command.command("adopt")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Adopt it without a question.")
@common.json_option
def adopt(name: str, yes: bool, as_json: bool) -> None:
    """Make a recipe by others your own, with everything that it asks for."""
    home, workspace = find_home(), find_workspace()
    files = {Path(path).stem: (path, text) for path, text in shelf_files(home)}
    if name not in files:
        raise UsageError(
            f"no recipe by others is called `{printable(name, 80)}`", next="firesteel recipe list"
        )
    path, text = files[name]
    recipe = read_recipe(name, path, text)
    more = tuple(reasons(recipe, workspace.catalog))
    if not as_json:
        _print_more(more)
    if not yes and (as_json or not click.confirm(f"Adopt {name} with all of this?", err=True)):
        raise UsageError(
            f"{name} was not adopted", next=f"read {path}, then firesteel recipe adopt {name} --yes"
        )
    own = home.catalog / "recipes" / f"{name}.yaml"
    _write_own(own, text)
    if as_json:
        common.print_json(documents.recipe.RecipeAdoptJson(name=name, path=str(own), more_than_flags=more))
        return
    out.print(typed(f"wrote {own}; remove {path}; next: firesteel recipe test {name}"))
