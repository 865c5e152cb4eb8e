"""`firesteel models`"""

from __future__ import annotations

from typing import get_args

import click
from rich.text import Text

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import models_view, out
from firesteel.launch import EngineName, Goal
from firesteel.library import documents, plans

_WORDS = (
    "weights: counted in the checkpoint, derived from its config, or reported by others; "
    "recipe: measured with firesteel, reported by others, or untried"
)


@click.command("models")
@click.argument("text", required=False)
@options.host_option
@click.option("--fits", is_flag=True, help="List only models that can run.")
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="List only recipes for this engine.")
@click.option("--modality", metavar="KIND", help="List only models that take text, image, video or audio.")
@click.option(
    "--license", "license_", metavar="TEXT", help="List only models whose licence name contains TEXT."
)
@click.option("--goal", type=click.Choice(get_args(Goal)), help="Rank by this goal.")
@click.option("--context", type=click.IntRange(1), help="Plan with this many tokens for each request.")
@click.option("--users", type=click.IntRange(1), help="Plan for this many requests at once.")
@options.json_option
def command(
    text: str | None,
    host_name: str | None,
    fits: bool,
    engine: EngineName | None,
    modality: str | None,
    license_: str | None,
    goal: Goal | None,
    context: int | None,
    users: int | None,
    as_json: bool,
) -> None:
    """List the models of the catalog: whether each fits, and how fast it would be.

    TEXT selects models with this text in their names. The best come first: those that can run, then those
    that others have run, then the fast ones; --goal ranks by something else.
    """
    found = plans.find_models(
        text, host_name=host_name, fits=fits, engine=engine, modality=modality, license=license_,
        goal=goal, context=context, users=users,
    )  # fmt: skip
    if as_json:
        rows = tuple(map(documents.plans.model_row, found.proposals))
        options.print_json(documents.plans.ModelsJson.of(host=found.host, models=rows))
        return
    out.print(models_view(found.proposals))
    out.print(Text(_WORDS, style="dim"))
    where = f" --host {host_name}" if host_name else ""
    first = found.proposals[0].name
    out.print(
        typed(f"\nfor {found.host.title}, best first; next: firesteel plan {first}{where}"), soft_wrap=True
    )
