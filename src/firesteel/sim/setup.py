"""Making a pretend Spark in a folder, and living on it.

world.json    what it is                 proc/ dev/     what its kernel shows
bin/          docker, nvidia-smi         containers/    one record and one log each
memory/       who holds how much         images.json    what was pulled
home/         FIRESTEEL_HOME of what lives on it, so that real and pretend services never mix
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path

from firesteel.edge.files.home import find_home, is_locked, writable_folder
from firesteel.edge.host.machine_files import SIM, sim_folder
from firesteel.errors import UsageError
from firesteel.sim.docker.records import all_records
from firesteel.sim.memory import update_proc
from firesteel.sim.spark import SimSpark, read_spark, write_spark

SPEED = "FIRESTEEL_SIM_SPEED"
_FOLDERS = ("proc/pressure", "dev", "bin", "containers", "memory", "home")
_PROGRAMS = {"docker": "docker.cli", "nvidia-smi": "nvidia_smi"}
_OF_BEFORE = ("images.json", "home/gpu_in_container.json", "dev/kmsg")
"""What was pulled, in which images a GPU was seen, and what the kernel said: of a new Spark, nothing."""


def create_spark(folder: Path, world: SimSpark) -> None:
    """Writes the Spark. Where there is one already its world changes, and what runs on it runs on."""
    with writable_folder(folder):
        for name in _FOLDERS:
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        write_spark(folder, world)
        (folder / "dev" / "kmsg").touch()
        (folder / "proc" / "version").write_text(f"Linux version {world.kernel} (pretend)\n")
        for name, module in _PROGRAMS.items():
            _launcher(folder / "bin" / name, module, folder)
    update_proc(folder)


def _launcher(path: Path, module: str, folder: Path) -> None:
    """Knows its own Spark: whatever environment it is called from, it is this one's docker."""
    words = shlex.join([sys.executable, "-P", "-m", f"firesteel.sim.{module}"])
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(f'#!/bin/sh\n{SIM}={shlex.quote(str(folder))} exec {words} "$@"\n')
    half.chmod(0o755)
    half.replace(path)


def environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that lives on this Spark."""
    bin = f"{folder / 'bin'}{os.pathsep}"
    path = f"{bin}{environ.get('PATH', os.defpath).removeprefix(bin)}"
    return {**environ, SIM: str(folder), "FIRESTEEL_HOME": str(folder / "home"), "PATH": path}


def enter(name: str | None, environ: MutableMapping[str, str]) -> Path:
    """For `--sim`: this process, and what it starts, live on the pretend Spark under its FIRESTEEL_HOME.

    A scenario's name makes the Spark anew; without one it stays as it was, or is an idle one. While something
    runs on it, it is not made anew, and its own name changes nothing. Who lives on a pretend Spark already
    stays on it.
    """
    folder = sim_folder(environ) or find_home(environ).root / "sim"
    if name is not None or not (folder / "world.json").exists():
        from firesteel.sim.scenario_files import scenario  # reads YAML: only when a Spark is made

        world = replace(scenario(name or "idle"), name=name or "idle")
        _leave(folder, world)
        create_spark(folder, _paced(world, environ.get(SPEED)))
    environ.update(environment(folder, environ))
    return folder


def _leave(folder: Path, new: SimSpark) -> None:
    """Nothing of the Spark before goes over to the next, and nothing that runs is lost."""
    running = sorted(_running(folder))
    if not running:
        for name in _OF_BEFORE:
            (folder / name).unlink(missing_ok=True)
    elif (now := read_spark(folder).name) != new.name:
        runs = "runs" if len(running) == 1 else "run"
        raise UsageError(
            f"{', '.join(running)} {runs} on this pretend Spark (`{now}`), so it cannot become `{new.name}`",
            next="firesteel --sim ps, and firesteel --sim down --all",
        )


def _running(folder: Path) -> set[str]:
    """Services with a keeper or an `up` under way, and containers that have none."""
    locks = (folder / "home" / "services").glob("*/*.lock")
    kept = {lock.parent.name for lock in locks if is_locked(lock)}
    loose = (record for record in all_records(folder) if record.is_running)
    return kept | {record.labels.get("firesteel", record.name) for record in loose}


def _paced(world: SimSpark, speed: str | None) -> SimSpark:
    if not speed:
        return world
    try:
        faster = float(speed)
    except ValueError:
        faster = 0.0
    if not 0.1 <= faster <= 1000:
        raise UsageError(f"{SPEED} is `{speed}`, and must be between 0.1 and 1000", next=f"{SPEED}=20")
    return replace(world, faster=faster)
