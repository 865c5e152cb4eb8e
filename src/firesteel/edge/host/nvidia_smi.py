"""What nvidia-smi reports, with a time limit that holds even when it cannot be killed: the GPUs now, their
temperature, power and clock, and whether they are slowed down.

With a driver in distress it has blocked for 737 s and could not be killed, so it is not waited for:
https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/23, seen 2026-11-15. It takes tens of
milliseconds, or ten seconds with such a driver: never call it on an event loop.
"""

from __future__ import annotations

import subprocess

from firesteel.edge.host.machine_files import sim_folder
from firesteel.errors import HostNotReady
from firesteel.facts.host.gpus import COLUMNS, GpuReading

_TIMEOUT_S = 10.0
_SIM_TIMEOUT_S = 60.0
"""The simulated one is a Python process, which a busy machine starts slowly."""
_abandoned: list[subprocess.Popen[bytes]] = []
"""Killed and not waited for. Kept, since Popen warns when it is deleted while the child runs."""


def query(*arguments: str) -> str | None:
    """Its output; None when it is not installed, fails or does not answer."""
    try:
        return require(*arguments)
    except HostNotReady:
        return None


def require(*arguments: str) -> str | None:
    """Its output; None when it is not installed or fails. No answer is an error: it says nothing about the
    machine, so nothing may be concluded from it."""
    limit_s = _SIM_TIMEOUT_S if sim_folder() else _TIMEOUT_S
    try:
        child = subprocess.Popen(
            ("nvidia-smi", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        output, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        _abandoned.append(child)
        raise HostNotReady(
            f"nvidia-smi did not answer within {limit_s:.0f} s, so the GPU of this machine is not known",
            next="firesteel doctor; or plan for a named machine: firesteel plan MODEL --host gb10",
        ) from None
    return output.decode(errors="replace") if child.returncode == 0 else None


def read_gpus() -> tuple[GpuReading, ...]:
    """Empty without a GPU, or if nvidia-smi does not work."""
    for columns in (COLUMNS, COLUMNS[:-1]):
        text = query(f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits")
        if text is not None:
            return GpuReading.parse(text)
    return ()


def read_gpu() -> GpuReading | None:
    """The first one."""
    return next(iter(read_gpus()), None)
