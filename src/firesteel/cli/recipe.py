"""`firesteel recipe new|test|share|list|adopt`"""

from __future__ import annotations

from pathlib import Path

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import findings_view, out, table, verdict
from firesteel.errors import UsageError
from firesteel.library import documents, recipes


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
@options.size_options
@click.option("--flag", "flags", multiple=True, metavar="NAME=VALUE", help="Set this flag, too; repeatable.")
@click.option("--why", default="set by hand", show_default=True, help="Give the reason of these flags.")
@click.option("--write", is_flag=True, help="Write it to your own catalog.")
@options.json_option
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
    made = recipes.new_recipe(
        name, base, context=context, users=users, port=port, flags=flags, why=why, write=write
    )
    path, text = made.path, made.text
    if as_json:
        options.print_json(made)
        return
    if path is None:
        click.echo(text, nl=False)
        click.echo("--write puts it into your own catalog", err=True)
    else:
        out.print(typed(f"wrote {path}; next: firesteel recipe test {name}"), soft_wrap=True)


@command.command("test")
@click.argument("recipe", metavar="NAME|FILE")
@options.host_option
@options.json_option
def test(recipe: str, host_name: str | None, as_json: bool) -> int:
    """Read, plan and check a recipe, and say what it asks for beyond flags.

    Exits 4 when it does not fit, 3 when a rule stops it.
    """
    planned = recipes.plan_recipe(recipe, host_name)
    found, proposal, more = planned.recipe, planned.proposal, planned.more
    passed = not proposal.exit_code
    if as_json:
        document = documents.plans.RecipeTestJson.of(
            name=found.name,
            path=found.path,
            more_than_flags=more,
            plan=documents.plans.plan_json(proposal),
            passed=passed,
        )
        options.print_json(document)
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


@command.command("share")
@click.argument("name")
@click.option(
    "--to", "folder", default=".", type=click.Path(path_type=Path, file_okay=False), help="Write here."
)
@click.option("--patch", is_flag=True, help="Write a patch for firesteel's own catalog, too.")
@options.json_option
def share(name: str, folder: Path, patch: bool, as_json: bool) -> None:
    """Write recipe NAME as a file that others can drop in, together with what was measured here."""
    shared = recipes.share_recipe(name, folder, patch=patch)
    if as_json:
        options.print_json(documents.plans.RecipeShareJson.of(shared, more_than_flags=shared.more))
        return
    for path in shared.files:
        out.print(f"wrote {path}")
    if not shared.is_measured:
        out.print(typed(f"nothing was measured here; firesteel up {name} and firesteel bench {name} would"))
    _print_more(shared.more)


@command.command("list")
@options.json_option
def list_(as_json: bool) -> None:
    """List your own recipes, those by others, and those that were refused, with the reason."""
    found = recipes.list_recipes()
    own, others, refused = found.own, found.others, found.refused
    if as_json:
        options.print_json(found)
        return
    rows = [(name, "yours", "") for name in own] + [(name, "by others", "") for name in others]
    rows += [(row.name, "refused", row.why) for row in refused]
    if rows:
        out.print(table(("name", "whose", "why"), rows))
    else:
        out.print(typed(f"no recipes but those that ship; those by others go into {recipes.others_folder()}"))


@command.command("adopt")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Adopt it without a question.")
@options.json_option
def adopt(name: str, yes: bool, as_json: bool) -> None:
    """Make a recipe by others your own, with everything that it asks for."""
    recipe = recipes.foreign_recipe(name)
    if not as_json:
        _print_more(recipe.more)
    if not yes and (as_json or not click.confirm(f"Adopt {name} with all of this?", err=True)):
        raise UsageError(
            f"{name} was not adopted", next=f"read {recipe.path}, then firesteel recipe adopt {name} --yes"
        )
    own = recipes.adopt_recipe(recipe)
    if as_json:
        options.print_json(
            documents.plans.RecipeAdoptJson.of(name=name, path=own, more_than_flags=recipe.more)
        )
        return
    out.print(typed(f"wrote {own}; remove {recipe.path}; next: firesteel recipe test {name}"), soft_wrap=True)
