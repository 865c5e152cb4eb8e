"""Creates a simulated Spark in a folder, and the environment of the processes that run on it.

spark.json    what it is                      proc/ dev/    what its kernel shows
bin/          docker, nvidia-smi              containers/   a record and a log per container
memory/       how much each process holds     images.json   the images that were pulled
etc/ sys/ var/ commands/   what `doctor` reads on it
home/         its own FIRESTEEL_HOME, so that real and simulated services never mix
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from firesteel.edge.files.home import find_home, is_locked, writable_folder
from firesteel.edge.host.machine_files import SIM, sim_folder
from firesteel.errors import UsageError
from firesteel.sim.docker.records import all_records
from firesteel.sim.memory import update_proc
from firesteel.sim.nodes import node_names, write_facts, write_node
from firesteel.sim.spark import SPARK_FILE, SimSpark, read_spark, write_spark
from firesteel.values import replace

SPEED = "FIRESTEEL_SIM_SPEED"
_FOLDERS = ("proc/pressure", "dev", "bin", "containers", "memory", "home")
_PROGRAMS = {"docker": "docker.cli", "nvidia-smi": "nvidia_smi"}
_SSH = """#!/bin/sh
# ssh [OPTIONS] -- HOST COMMAND: runs it on another simulated Spark. A host that is not there does not answer,
# with OpenSSH's words and exit code. Not in Python, whose start would be most of every command on a cluster.
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  [ "$1" = -O ] && exit 0
  shift
done
node={nodes}/$2
if [ ! -e "$node/spark.json" ] || [ -e "$node/off" ]; then
  echo "ssh: connect to host $2 port 22: No route to host" >&2
  exit 255
fi
shift 2
mkdir -p "$node/user" && cd "$node/user" || exit 255
export FIRESTEEL_SIM="$node" FIRESTEEL_HOME="$node/home" PATH="$node/bin:$PATH" HOME="$node/user"
exec sh -c "$*"
"""
_STATE = ("images.json", "home/gpu_in_container.json", "dev/kmsg")
"""Pulled images, images that saw the GPU, and the kernel log: a new Spark has none of them."""


def create_spark(folder: Path, spark: SimSpark) -> None:
    """Writes the Spark. An existing one changes, and its containers keep running."""
    with writable_folder(folder):
        for name in _FOLDERS:
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        write_spark(folder, spark)
        (folder / "dev" / "kmsg").touch()
        (folder / "proc" / "version").write_text(f"Linux version {spark.kernel} (simulated)\n")
        for name, module in _PROGRAMS.items():
            _write_launcher(folder / "bin" / name, module, folder)
        from firesteel.sim.host_files import write_spark_host  # lazy: reads YAML

        write_spark_host(folder, spark)
        _join(folder, spark)
    update_proc(folder)


def _join(folder: Path, spark: SimSpark) -> None:
    """The other Sparks, if there are any: reached by a simulated `ssh`, and nodes already."""
    (folder / "bin" / "ssh").unlink(missing_ok=True)
    for number, name in enumerate(node_names(spark), 2):
        node = folder / "nodes" / name
        create_spark(node, replace(spark, nodes=1, faults=()))
        write_facts(node, spark, number, node / "user")
        write_node(folder / "home", name)
        _write_program(folder / "bin" / "ssh", _SSH.format(nodes=shlex.quote(str(folder / "nodes"))))
    if spark.nodes > 1:
        write_facts(folder, spark, 1, Path.home())


def _write_launcher(path: Path, module: str, folder: Path) -> None:
    """A program that knows its own Spark, whatever environment it is called from."""
    command = shlex.join([sys.executable, "-P", "-m", f"firesteel.sim.{module}"])
    _write_program(path, f'#!/bin/sh\n{SIM}={shlex.quote(str(folder))} exec {command} "$@"\n')


def _write_program(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)


def environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that runs on this Spark."""
    bin = f"{folder / 'bin'}{os.pathsep}"
    path = f"{bin}{environ.get('PATH', os.defpath).removeprefix(bin)}"
    return {**environ, SIM: str(folder), "FIRESTEEL_HOME": str(folder / "home"), "PATH": path}


def enter(name: str | None, environ: MutableMapping[str, str]) -> Path:
    """For `--sim`: this process and its children run on the simulated Spark under its FIRESTEEL_HOME.

    The name of a scenario creates a new Spark; without one the last Spark stays, or an idle one is created.
    While something runs on it, it can change only to the same scenario. A process that runs on a simulated
    Spark already stays on it.
    """
    folder = sim_folder(environ) or find_home(environ).root / "sim"
    if name is not None or not (folder / SPARK_FILE).exists():
        from firesteel.sim.scenario_files import scenario  # lazy: reads YAML

        spark = replace(scenario(name or "idle"), name=name or "idle")
        _clear_state(folder, spark.name)
        create_spark(folder, _with_speed(spark, environ.get(SPEED)))
    environ.update(environment(folder, environ))
    return folder


def _clear_state(folder: Path, new_name: str) -> None:
    """Removes what the previous Spark left behind; refuses while something runs on it."""
    running = sorted(_running(folder))
    if not running:
        for name in _STATE:
            (folder / name).unlink(missing_ok=True)
    elif (current := read_spark(folder).name) != new_name:
        names, verb = ", ".join(running), "runs" if len(running) == 1 else "run"
        raise UsageError(
            f"{names} {verb} on this simulated Spark (`{current}`), so it cannot become `{new_name}`",
            next="firesteel --sim ps, and firesteel --sim down --all",
        )


def _running(folder: Path) -> set[str]:
    """Services with a supervisor or an `up` in progress, and running containers."""
    locks = (folder / "home" / "services").glob("*/*.lock")
    services = {lock.parent.name for lock in locks if is_locked(lock)}
    containers = (record for record in all_records(folder) if record.is_running)
    return services | {record.labels.get("firesteel", record.name) for record in containers}


def _with_speed(spark: SimSpark, speed: str | None) -> SimSpark:
    if not speed:
        return spark
    try:
        faster = float(speed)
    except ValueError:
        faster = 0.0
    if not 0.1 <= faster <= 1000:
        raise UsageError(f"{SPEED} is `{speed}`, and must be between 0.1 and 1000", next=f"{SPEED}=20")
    return replace(spark, faster=faster)
