"""Creates a simulated Spark in a folder, and the environment of the processes that run on it.

spark.json    what it is                      proc/ dev/    what its kernel shows
bin/          docker, nvidia-smi              containers/   a record and a log per container
memory/       how much each process holds     images.json   the images that were pulled
etc/ sys/ var/ commands/   what `doctor` reads on it
home/         its own FIRESTEEL_HOME, so that real and simulated services never mix

Scenarios are named Sparks (`data/sim/scenarios`); one may be several Sparks, joined by the rails of a cable.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, MutableMapping
from functools import cache
from pathlib import Path, PurePosixPath

from firesteel import shipped_data
from firesteel.edge.home import find_home, is_locked, writable_folder
from firesteel.edge.host.machine_files import SIM, sim_folder
from firesteel.edge.sim.containers import all_records
from firesteel.edge.sim.host_files import host_faults, write_spark_host
from firesteel.edge.sim.spark import (
    SPARK_FILE,
    SimSpark,
    read_spark,
    update_proc,
    write_spark,
)
from firesteel.errors import UsageError
from firesteel.values import replace

SPEED = "FIRESTEEL_SIM_SPEED"
_FOLDERS = ("proc/pressure", "dev", "bin", "containers", "memory", "home")
_PROGRAMS = {"docker": "docker", "nvidia-smi": "nvidia_smi"}
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
            # A program that knows its own Spark, whatever environment it is called from.
            command = shlex.join([sys.executable, "-P", "-m", f"firesteel.edge.sim.{module}"])
            text = f'#!/bin/sh\n{SIM}={shlex.quote(str(folder))} exec {command} "$@"\n'
            _write_program(folder / "bin" / name, text)
        write_spark_host(folder, spark)
        _join(folder, spark)
    update_proc(folder)


def _join(folder: Path, spark: SimSpark) -> None:
    """The other Sparks, if there are any: reached by a simulated `ssh`, and already added as nodes."""
    (folder / "bin" / "ssh").unlink(missing_ok=True)
    for number in range(2, spark.nodes + 1):
        name = f"spark{number}"
        node = folder / "nodes" / name
        create_spark(node, replace(spark, nodes=1, faults=()))
        _write_facts(node, spark, number, node / "user")
        added = folder / "home" / "cluster" / name  # as `cluster add` would
        added.mkdir(parents=True, exist_ok=True)
        (added / "node.json").write_text(json.dumps({"name": name, "host": name}))
        _write_program(folder / "bin" / "ssh", _SSH.format(nodes=shlex.quote(str(folder / "nodes"))))
    if spark.nodes > 1:
        _write_facts(folder, spark, 1, Path.home())


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
        spark = replace(scenario(name or "idle"), name=name or "idle")
        _clear_state(folder, spark.name)
        create_spark(folder, _with_speed(spark, environ.get(SPEED)))
    environ.update(environment(folder, environ))
    return folder


def _clear_state(folder: Path, new_name: str) -> None:
    """Removes what the previous Spark left behind; refuses while something runs on it."""
    locks = (folder / "home" / "services").glob("*/*.lock")  # of a supervisor, or of an `up` in progress
    services = {lock.parent.name for lock in locks if is_locked(lock)}
    containers = (record for record in all_records(folder) if record.is_running)
    running = sorted(services | {record.labels.get("firesteel", record.name) for record in containers})
    if not running:
        for name in _STATE:
            (folder / name).unlink(missing_ok=True)
    elif (current := read_spark(folder).name) != new_name:
        names, verb = ", ".join(running), "runs" if len(running) == 1 else "run"
        raise UsageError(
            f"{names} {verb} on this simulated Spark (`{current}`), so it cannot become `{new_name}`",
            next="firesteel --sim ps, and firesteel --sim down --all",
        )


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


_RAILS = (("enp1s0f1np1", "rocep1s0f1", 100), ("enP2p1s0f1np1", "roceP2p1s0f1", 101))


def _write_facts(folder: Path, spark: SimSpark, number: int, user: Path) -> None:
    """What the agent of a node reads about its host."""
    facts = {
        "hostname": f"spark{number}", "home": str(user), "time_s": 0.0, "kernel": spark.kernel,
        "python": "3.12.3", "machine": "aarch64", "driver": spark.driver, "bios": None,
        "product": "simulated Spark", "docker": "28.5.1", "memory_total_bytes": spark.memory_total_bytes,
        "memory_available_bytes": spark.memory_available_bytes, "disk_free_bytes": spark.disk_free_bytes,
        "cores": 20,
        "interfaces": [
            {"name": name, "mtu": 9000, "state": "up", "has_carrier": True, "speed_mbps": 200_000,
             "port": "sim/p1", "pcie": "32.0 GT/s PCIe x4", "firmware": "28.45.4028",
             "address": f"192.168.{subnet}.{9 + number}", "netmask": "255.255.255.0",
             "is_wireless": False, "is_virtual": False}
            for name, _, subnet in _RAILS
        ],
        "rdma": [
            {"name": device, "state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)", "interface": name,
             "roce_v2_ipv4_gids": [3]}
            for name, device, _ in _RAILS
        ],
    }  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(facts, indent=1))


BAD_HOST = "bad-"
"""Followed by the name of a check of `doctor`: an idle Spark on which it finds something."""


class Scenario(SimSpark, kw_only=True, forbid_unknown_fields=True):
    """Everything that differs from an idle Spark."""

    about: str
    source: str | None = None
    reads_faster: float = 10.0


@cache
def scenarios() -> dict[str, str]:
    """Name -> what happens in it."""
    return {name: _scenario(name).about for name in _names()}


def scenario(name: str) -> SimSpark:
    fault = name.removeprefix(BAD_HOST)
    if fault != name and fault in host_faults().faults:
        return replace(scenario("idle"), host_fault=fault)
    if name not in _names():
        raise UsageError(
            f"there is no scenario `{name}`; there are {', '.join(_names())}, "
            f"and {BAD_HOST}CHECK for each check of `doctor`",
            next="firesteel --sim idle up gpt-oss-120b-llamacpp",
        )
    return SimSpark(*(getattr(_scenario(name), key) for key in SimSpark.__struct_fields__))


@cache
def _names() -> tuple[str, ...]:
    return tuple(PurePosixPath(path).stem for path in shipped_data.names("sim/scenarios"))


@cache
def _scenario(name: str) -> Scenario:
    return shipped_data.load(f"sim/scenarios/{name}.yaml", Scenario)
