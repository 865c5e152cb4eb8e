"""A pretend docker, for tests: `run` starts the real embedded engine in place of the image.

It takes what a GPU image would be told and honours what matters to the path: port and name. What it was
called with is kept, a line of JSON a call, in the file named by PRETEND_DOCKER_CALLS.
"""

import json
import os
import signal
import sys
from pathlib import Path

words = sys.argv[1:]
calls = Path(os.environ["PRETEND_DOCKER_CALLS"])
with calls.open("a") as file:
    file.write(json.dumps(words) + "\n")
pids = calls.with_suffix(".pids")


def after(flag: str) -> str:
    return words[words.index(flag) + 1]


if words[0] == "run":
    pids.write_text(str(os.getpid()))
    engine = json.loads(os.environ["PRETEND_DOCKER_ENGINE"])
    os.execv(
        engine[0], [*engine, "--port", after("--port"), "--alias", after("--alias"), "--log-verbosity", "4"]
    )
if words[0] == "stop" and pids.exists():
    os.kill(int(pids.read_text()), signal.SIGTERM)
    pids.unlink()
if words[:2] == ["image", "inspect"]:
    sys.exit(0 if any("pull" in line for line in calls.read_text().splitlines()) else 1)
