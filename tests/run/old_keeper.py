"""Stands in for the supervisor of version 0.1.0, which was called keeper: `python old_keeper.py FOLDER`.

It leaves the same traces for others to see: the lock `keeper.lock`, held for life; `state.json` with the key
`keeper`; an engine that the kernel kills when the keeper goes; and a clean end on SIGTERM. Standard library
only, because it has to behave like that version whatever this one does.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

_RUNNING_STATE = Path(__file__).with_name("home_0_1") / "running_state.json"
_WRITE_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_PR_SET_PDEATHSIG = 1


class Stop(Exception):
    """SIGTERM came."""


def main(folder: Path) -> None:
    signal.signal(signal.SIGTERM, on_sigterm)
    with (folder / "keeper.lock").open("a") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WRITE_LOCK)
        engine = subprocess.Popen(("sleep", "600"), preexec_fn=die_with_parent)
        pids = {"keeper": pid(os.getpid()), "engine": pid(engine.pid)}
        state = {**json.loads(_RUNNING_STATE.read_text()), **pids, "started_at": time.time()}
        write(folder, state)
        try:
            engine.wait()
        except Stop:
            engine.terminate()
        code = engine.wait()
        write(folder, {**state, "ended_at": time.time(), "exit_code": code, "why": "it was told to stop"})


def on_sigterm(number: int, frame: object) -> None:
    raise Stop


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def pid(number: int) -> dict[str, int]:
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return {"number": number, "started_ticks": int(fields[19])}


def write(folder: Path, state: dict[str, object]) -> None:
    half = folder / ".state.json"
    half.write_text(json.dumps(state, indent=1))
    half.replace(folder / "state.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
