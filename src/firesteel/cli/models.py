"""`firesteel models`"""

from __future__ import annotations

from typing import get_args

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.documents import ModelsJson
from firesteel.cli.output.fill import host_json, model_row
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import models_view, out
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName, Goal
from firesteel.rules import Proposal


@click.command("models")
@click.argument("text", required=False)
@common.host_option
@click.option("--fits", is_flag=True, help="Only what can run.")
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Only this engine's.")
@click.option("--modality", metavar="KIND", help="Only what takes text, image, video or audio.")
@click.option("--license", "license_", metavar="TEXT", help="Only licences with this in their name.")
@click.option("--goal", type=click.Choice(get_args(Goal)), help="What to rank by.")
@common.json_option
def command(
    text: str | None,
    host_name: str | None,
    fits: bool,
    engine: EngineName | None,
    modality: str | None,
    license_: str | None,
    goal: Goal | None,
    as_json: bool,
) -> None:
    """What there is, does it fit, how fast it would be.

    TEXT looks for models with it in their names. Best first: what can run, what somebody has run, what is
    fast; or by --goal.
    """
    host = library.host(host_name)
    found = tuple(
        each
        for each in library.propose(Ask(engine=engine, goal=goal), host)
        if (each.can_run or not fits) and _is_meant(each, text, modality, license_)
    )
    if not found:
        raise UsageError("no model in the catalog is like that", next="firesteel models")
    if as_json:
        common.print_json(ModelsJson(host=host_json(host), models=[model_row(each) for each in found]))
        return
    out.print(models_view(found))
    where = f" --host {host_name}" if host_name else ""
    out.print(typed(f"\nfor {host.title}, best first; next: firesteel plan {found[0].name}{where}"))


def _is_meant(each: Proposal, text: str | None, modality: str | None, license_: str | None) -> bool:
    model = each.model
    assert model is not None, "everything in the catalog has a model"
    named = f"{each.name} {model.id} {model.title} {model.family}".lower()
    return (
        (text is None or text.lower() in named)
        and (modality is None or modality.lower() in model.modality)
        and (license_ is None or license_.lower() in model.license.lower())
    )
