"""Where the machine's own files are: this host's `/proc`, or that of a pretend Spark.

`FIRESTEEL_SIM` names the folder of a pretend Spark (`edge/sim`). What only a GB10 shows is read from there;
processes, ports and locks are always this host's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SIM = "FIRESTEEL_SIM"


def machine_file(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """`proc/meminfo` -> the file to read it from."""
    return Path(environ.get(SIM) or "/") / name
