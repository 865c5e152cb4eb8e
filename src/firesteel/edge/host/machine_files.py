"""Where the machine's own files are: this host's `/proc`, or that of a simulated Spark.

`FIRESTEEL_SIM` names the folder of a simulated Spark (package `edge.sim`). What only a GB10 shows is read
from there; processes, ports and locks are always this host's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SIM = "FIRESTEEL_SIM"


def sim_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The simulated Spark that replaces this machine; None on a real one."""
    return Path(chosen) if (chosen := environ.get(SIM)) else None


def machine_file(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """`proc/meminfo` -> the file to read it from. A simulated `/proc` is brought up to date first."""
    folder = sim_folder(environ)
    if folder is None:
        return Path("/") / name
    if name.startswith("proc/"):
        from firesteel.edge.sim.spark import update_proc  # lazy: a real host never needs it

        update_proc(folder)
    return folder / name


def boot_id() -> str | None:
    """Another one after each boot. Always of the real machine: a simulated Spark does not boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def sim_free_bytes(environ: Mapping[str, str] = os.environ) -> int | None:
    """The free disk space of a simulated Spark; None on a real one."""
    folder = sim_folder(environ)
    if folder is None:
        return None
    from firesteel.edge.sim.spark import read_spark  # lazy: a real host never needs it

    return read_spark(folder).disk_free_bytes
