"""`doctor --measure` as lines: what is measured, and the figures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.edge.files.home import find_home
from firesteel.facts.host.host_facts import HostMeasurement, show_figure
from firesteel.hosts.doctor.measure import MeasureEvent, Measuring, NotMeasured, measure
from firesteel.library import documents


def _measure_links() -> Iterator[MeasureEvent]:
    from firesteel.hosts.doctor.measure_rails import measure_rails  # ssh

    yield Measuring("links to other hosts")
    yield from measure_rails(find_home())


def measure_host(as_json: bool) -> int:
    figures: list[HostMeasurement] = []
    missing: list[NotMeasured] = []
    for event in chain(measure(find_home()), _measure_links()):
        if isinstance(event, Measuring):
            click.echo(f"measuring {event.what} ...", err=True)
        elif isinstance(event, NotMeasured):
            missing.append(event)
        else:
            figures.append(event)
    if as_json:
        document = documents.hosts.DoctorMeasureJson(figures=tuple(figures), not_measured=tuple(missing))
        common.print_json(document)
        return 0
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        click.echo(f"{figure.name:<{width}}  {show_figure(figure)}")
    for each in missing:
        click.echo(f"not measured  {each.what}: {each.why}")
    click.echo(typed("next: firesteel doctor, which judges by these figures; `plan` uses them too"))
    return 0
