"""The simulated `ssh`: runs the command on another simulated Spark of the same folder, as its user.

    python -m firesteel.sim.ssh [OPTIONS] -- HOST COMMAND

Only what firesteel uses: options are read and ignored. A host that is not there does not answer, with
OpenSSH's words and exit code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from firesteel.edge.host.machine_files import SIM
from firesteel.sim.setup import environment

_FAILED = 255


def main(arguments: list[str], folder: Path) -> int:
    rest = arguments[arguments.index("--") + 1 :] if "--" in arguments else arguments[-2:]
    host, command = rest[0], rest[1:]
    node = folder / "nodes" / host
    if not (node / "spark.json").exists() or (node / "off").exists():
        sys.stderr.write(f"ssh: connect to host {host} port 22: No route to host\n")
        return _FAILED
    if "-O" in arguments:
        return 0
    user = node / "user"
    user.mkdir(exist_ok=True)
    env = {**environment(node, os.environ), "HOME": str(user)}
    return subprocess.run(["sh", "-c", " ".join(command)], env=env, cwd=user, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(os.environ[SIM])))
