"""What the shell offers after TAB: names of recipes, and of services that run."""

from __future__ import annotations

import click


def recipes(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    from firesteel.library import plans  # only when the shell asks

    return [name for name in sorted(plans.catalog().recipes) if name.startswith(start)]


def services(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    from firesteel.library import run  # only when the shell asks

    return [service.name for service in run.services() if service.name.startswith(start)]
