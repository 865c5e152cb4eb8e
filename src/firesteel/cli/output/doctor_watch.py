"""`doctor --watch` as lines: one for each reading, and one for each alarm when it begins and ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.errors import escape_unprintable
from firesteel.library.hosts import watch_host
from firesteel.units import show_bytes
from firesteel.values import plain

if TYPE_CHECKING:
    from firesteel.hosts.doctor.examine import WatchReading


def show_watch(every_s: float, count: int | None, root: Path | None, as_json: bool) -> int:
    """Exits with 5 when the last reading has something that stops a launch."""
    active: dict[str, str] = {}
    for reading in watch_host(every_s, count, root):
        if as_json:
            click.echo(json.dumps({"document": "firesteel.doctor-watch/1", **plain(reading)}))
        else:
            _show(reading, active)
        active = {alarm.check: alarm.level for alarm in reading.alarms}
    return 5 if "stop" in active.values() else 0


def _show(reading: WatchReading, active: dict[str, str]) -> None:
    parts = [
        reading.at[11:19],
        _part(reading.clock_mhz, "{:.0f} MHz"),
        _part(reading.power_w, "{:.0f} W"),
        _part(reading.temperature_c, "{:.0f} °C"),
        _part(reading.use_percent, "GPU {:.0f} %"),
        f"{show_bytes(reading.memory_available_bytes)} available" if reading.memory_available_bytes else "",
        _part(reading.pressure_percent, "pressure {:.0f} %"),
        f"rails {reading.rails_up}/{reading.rails_cabled}" if reading.rails_cabled else "",
    ]
    alarms = ", ".join(alarm.check for alarm in reading.alarms)
    click.echo("  ".join(part for part in parts if part) + (f"  ALARM {alarms}" if alarms else ""))
    for alarm in reading.alarms:
        if alarm.is_new:
            click.echo(escape_unprintable(f"  {alarm.level}  {alarm.check}: {alarm.says} ({alarm.evidence})"))
    for check in active.keys() - {alarm.check for alarm in reading.alarms}:
        click.echo(f"  over  {check}")


def _part(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
