"""Runs the probe of `facts.host.probe` here, on a simulated Spark, or on a folder that stands for `/`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from firesteel.edge.host.machine_files import machine_file, sim_folder
from firesteel.errors import HostNotReady
from firesteel.facts.host.probe import Probe, parse_probe, probe_script

_TIMEOUT_S = 90
"""Its commands stop themselves after 3.5 s; this is for a shell that cannot, or a host with a load of 40."""


def read_probe(root: Path | None = None, only: tuple[str, ...] = ()) -> Probe:
    """Takes about a second; commands that do not answer are given up after 3.5 s."""
    if root is None and sim_folder():
        machine_file("proc/meminfo")  # brings the simulated /proc up to date
    folder = str(root.absolute()) if root else ""
    try:
        done = subprocess.run(
            ["sh", "-s"],
            input=probe_script(only, folder).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        what = f"this host is too busy to be read within {_TIMEOUT_S} s"
        raise HostNotReady(what, next="uptime, and stop what loads it") from error
    except OSError as error:
        raise HostNotReady(f"this host cannot be read: {error}", next="sh -c 'echo works'") from error
    return parse_probe(done.stdout.decode(errors="replace"))
