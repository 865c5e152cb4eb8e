"""`doctor --measure` as lines: what is measured, and the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.library import documents
from firesteel.library.host_measurements import Measuring, NotMeasured, measure_host
from firesteel.library.hosts import figure_text

if TYPE_CHECKING:
    from firesteel.facts.host.host_facts import HostMeasurement


def show_measurements(as_json: bool) -> int:
    figures: list[HostMeasurement] = []
    missing: list[NotMeasured] = []
    for event in measure_host():
        if isinstance(event, Measuring):
            click.echo(f"measuring {event.what} ...", err=True)
        elif isinstance(event, NotMeasured):
            missing.append(event)
        else:
            figures.append(event)
    if as_json:
        document = documents.hosts.DoctorMeasureJson.of(figures=tuple(figures), not_measured=tuple(missing))
        common.print_json(document)
        return 0
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        click.echo(f"{figure.name:<{width}}  {figure_text(figure)}")
    for each in missing:
        click.echo(f"not measured  {each.what}: {each.why}")
    click.echo(typed("next: firesteel doctor, which judges by these figures; `plan` uses them too"))
    return 0
