"""`firesteel doctor [CHECK]...`: what is wrong with this host; its fixes, figures and alarms."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.errors import HostNotReady, UsageError, escape_unprintable
from firesteel.library import documents, hosts
from firesteel.library.hosts import Measuring, NotMeasured, measure_host, watch_host
from firesteel.units import show_bytes
from firesteel.values import plain

if TYPE_CHECKING:
    from firesteel.facts.host.host_facts import HostMeasurement
    from firesteel.hosts.doctor.examine import Examination, WatchReading
    from firesteel.hosts.doctor.fix import Fixed
    from firesteel.rules.host.fixes import FixPlan

_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command("doctor")
@click.argument("checks", nargs=-1, metavar="[CHECK]...")
@click.option("--all", "everything", is_flag=True, help="Show also what is good, with what was read.")
@click.option("--fix", is_flag=True, help="Show what a fix would change, ask, and change it.")
@click.option("--undo", is_flag=True, help="Take back what --fix changed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--measure", is_flag=True, help="Measure memory, disk, wake-up, GPU and links; takes a minute.")
@click.option("--watch", is_flag=True, help="Show the host's state every few seconds, and alarms.")
@click.option("--every", type=click.FloatRange(0.2), default=2.0, help="Seconds between readings of --watch.")
@click.option("--count", type=click.IntRange(1), help="Stop --watch after this many readings.")
@click.option("--bundle", type=options.PATH, help="Write what was read, without secrets.")
@click.option("--from", "source", type=options.PATH, help="Judge a bundle, not this host.")
@click.option("--cluster", is_flag=True, help="Examine every node of the cluster, and what differs.")
@click.option("--root", type=_FOLDER, help="Examine and change this folder in place of /.")
@options.json_option
def command(
    checks: tuple[str, ...],
    everything: bool,
    fix: bool,
    undo: bool,
    yes: bool,
    measure: bool,
    watch: bool,
    every: float,
    count: int | None,
    bundle: Path | None,
    source: Path | None,
    cluster: bool,
    root: Path | None,
    as_json: bool,
) -> int:
    """Say what is wrong with this host, what it costs and what to type.

    Reads in a few seconds, without root; loads and changes nothing. CHECK limits it to the checks of these
    names. Exits with 5 when something stops a launch.
    """
    modes = [name for name, given in (("--fix", fix), ("--undo", undo), ("--measure", measure)) if given]
    modes += [name for name, given in (("--watch", watch), ("--bundle", bundle), ("--from", source)) if given]
    modes += ["--cluster"] if cluster else []
    if len(modes) > 1:
        raise UsageError(f"{modes[0]} and {modes[1]} do not go together", next="firesteel doctor --help")
    if cluster:
        return _cluster(checks, as_json)
    if bundle:
        return _bundle(bundle, root, as_json)
    if undo:
        return _undo(checks, root, yes, as_json)
    if watch:
        return show_watch(every, count, root, as_json)
    if measure:
        return show_measurements(as_json)
    examination = hosts.doctor(checks, root=root, source=source)
    if fix:
        return _fix(examination, checks, root, yes, as_json)
    if not source:
        _tell_half_done(root)
    return _show(examination, everything, as_json, is_here=source is None)


def _tell_half_done(root: Path | None) -> None:
    for name in hosts.half_done(root):
        again = f"firesteel doctor --undo {name}{_root_words(root)}"
        click.echo(typed(f"the fix of {name} was interrupted half-way; next: {again}"), err=True)


def _root_words(root: Path | None) -> str:
    return f" --root {shlex.quote(str(root))}" if root else ""


def _show(examination: Examination, everything: bool, as_json: bool, *, is_here: bool) -> int:
    if as_json:
        options.print_json(documents.hosts.doctor_json(examination))
    else:
        from firesteel.cli.output.doctor import show_examination

        show_examination(examination, everything=everything, is_here=is_here)
    return HostNotReady.exit_code if examination.level == "stop" else 0


def _cluster(checks: tuple[str, ...], as_json: bool) -> int:
    found = asyncio.run(hosts.doctor_cluster(checks))
    if as_json:
        options.print_json(documents.hosts.doctor_cluster_json(found))
    else:
        from firesteel.cli.output.doctor import show_cluster

        show_cluster(found)
    return HostNotReady.exit_code if found.level == "stop" else 0


def _bundle(path: Path, root: Path | None, as_json: bool) -> int:
    sections = hosts.write_bundle(path, root)
    if as_json:
        options.print_json(documents.hosts.DoctorBundleJson.of(file=path, sections=sections))
        return 0
    click.echo(f"{path}: {len(sections)} sections, secrets removed; look through it before you send it")
    click.echo(typed(f"next: firesteel doctor --from {shlex.quote(str(path))}"))
    return 0


def _fix(
    examination: Examination, names: tuple[str, ...], root: Path | None, yes: bool, as_json: bool
) -> int:
    fixes = hosts.plan_fixes(examination, names, root)
    possible = [fix for fix in fixes if not fix.plan.refused]
    for fix in fixes:
        _show_plan(fix.plan, fix.diff)
    done: list[Fixed] = []
    if possible:
        hosts.require_root(" ".join(["firesteel doctor --fix", *(fix.plan.check for fix in possible)]), root)
        if yes or click.confirm(f"change {_count(len(possible))} on this host?", default=False, err=True):
            for fixed in hosts.apply_fixes(possible, root):
                done.append(fixed)
                click.echo(f"{'done' if fixed.verified else 'failed'}  {fixed.check}: {fixed.says}", err=True)
            click.echo(typed(f"firesteel doctor --undo{_root_words(root)} takes it back"), err=True)
        else:
            click.echo("nothing was changed", err=True)
    elif not fixes:
        click.echo("there is nothing to fix", err=True)
    if as_json:
        plans = tuple(fix.plan for fix in fixes)
        diffs = {fix.plan.check: fix.diff if not done else "" for fix in fixes}
        options.print_json(documents.hosts.doctor_fix_json(plans, diffs, done))
    return 0 if all(fixed.verified for fixed in done) else 1


def _count(number: int) -> str:
    return "one thing" if number == 1 else f"{number} things"


def _show_plan(plan: FixPlan, diff: str) -> None:
    click.echo(f"{plan.check}:" + (f" not done: {plan.refused}" if plan.refused else ""), err=True)
    for note in plan.notes:
        click.echo(f"  note: {note}", err=True)
    for line in diff.splitlines():
        click.echo(f"  {line}", err=True)
    if plan.later and not plan.refused:
        click.echo(f"  takes effect {plan.later}", err=True)


def _undo(names: tuple[str, ...], root: Path | None, yes: bool, as_json: bool) -> int:
    entries = hosts.fixes_to_undo(names, root)
    for entry in entries:
        state = "half done" if entry.state == "applying" else "done"
        click.echo(f"{entry.check}: {state} at {entry.at}", err=True)
        for change in entry.changes:
            click.echo(f"  {'/' + change.path if change.path else ' '.join(change.command)}", err=True)
    undone = []
    if entries:
        hosts.require_root(" ".join(["firesteel doctor --undo", *names]), root)
        if yes or click.confirm(f"take {_count(len(entries))} back?", default=False, err=True):
            undone = [hosts.undo_fix(entry, root) for entry in entries]
    else:
        click.echo("there is nothing to take back", err=True)
    for result in undone:
        rest = f"; {'; '.join(result.left)}" if result.left else ""
        click.echo(f"reverted  {result.entry.check}{rest}", err=True)
    if as_json:
        options.print_json(documents.hosts.doctor_undo_json(undone))
    return 1 if any(result.left for result in undone) else 0


# --- --measure and --watch ---


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
        options.print_json(document)
        return 0
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        click.echo(f"{figure.name:<{width}}  {figure}")
    for each in missing:
        click.echo(f"not measured  {each.what}: {each.why}")
    click.echo(typed("next: firesteel doctor, which judges by these figures; `plan` uses them too"))
    return 0


def show_watch(every_s: float, count: int | None, root: Path | None, as_json: bool) -> int:
    """Exits with 5 when the last reading has something that stops a launch."""
    active: dict[str, str] = {}
    for reading in watch_host(every_s, count, root):
        if as_json:
            click.echo(json.dumps({"document": "firesteel.doctor-watch/1", **plain(reading)}))
        else:
            _show_reading(reading, active)
        active = {alarm.check: alarm.level for alarm in reading.alarms}
    return 5 if "stop" in active.values() else 0


def _show_reading(reading: WatchReading, active: dict[str, str]) -> None:
    parts = [
        reading.at[11:19],
        _reading_part(reading.clock_mhz, "{:.0f} MHz"),
        _reading_part(reading.power_w, "{:.0f} W"),
        _reading_part(reading.temperature_c, "{:.0f} °C"),
        _reading_part(reading.use_percent, "GPU {:.0f} %"),
        f"{show_bytes(reading.memory_available_bytes)} available" if reading.memory_available_bytes else "",
        _reading_part(reading.pressure_percent, "pressure {:.0f} %"),
        f"rails {reading.rails_up}/{reading.rails_cabled}" if reading.rails_cabled else "",
    ]
    alarms = ", ".join(alarm.check for alarm in reading.alarms)
    click.echo("  ".join(part for part in parts if part) + (f"  ALARM {alarms}" if alarms else ""))
    for alarm in reading.alarms:
        if alarm.is_new:
            click.echo(escape_unprintable(f"  {alarm.level}  {alarm.check}: {alarm.says} ({alarm.evidence})"))
    for check in active.keys() - {alarm.check for alarm in reading.alarms}:
        click.echo(f"  over  {check}")


def _reading_part(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
