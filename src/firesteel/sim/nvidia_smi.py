"""The pretend `nvidia-smi`: `--query-gpu`, `--query-compute-apps`, `-L`, and the plain table.

A GB10 has no memory of its own: `memory.*` is `[N/A]`, while each process's share is known.
Seen in https://github.com/leptonai/gpud/pull/1170 and NVIDIA's own text for the Spark, 2026-11-15.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from firesteel.edge.host.machine_files import SIM
from firesteel.sim import memory
from firesteel.sim.spark import SimSpark, read_spark
from firesteel.units import MIB

_UUID = "GPU-00000000-0000-4000-8000-00000000b10c"
_MISSING = "[N/A]"


def main(words: Sequence[str], folder: Path) -> int:
    code, said = answer(words, folder)
    (sys.stderr if code and not said.startswith("Field") else sys.stdout).write(f"{said}\n" if said else "")
    return code


def answer(words: Sequence[str], folder: Path) -> tuple[int, str]:
    """Its exit code, and what it says."""
    world = read_spark(folder)
    asked = dict(_pair(word) for word in words)
    if "query-gpu" in asked:
        return _table(asked, [_gpu(world, folder)], asked["query-gpu"])
    if "query-compute-apps" in asked:
        return _table(asked, apps(world, folder), asked["query-compute-apps"])
    if "L" in asked or "list-gpus" in asked:
        return 0, f"GPU 0: NVIDIA GB10 (UUID: {_UUID})"
    if asked:
        return 2, f"the pretend nvidia-smi does not know {' '.join(words)}"
    return 0, _overview(world, folder)


def _overview(world: SimSpark, folder: Path) -> str:
    rows = [
        f"| {row['pid']:>8}  {row['process_name']:<40} {row['used_memory']:>12} |"
        for row in apps(world, folder)
    ]
    versions = f"NVIDIA-SMI {world.driver}    Driver Version: {world.driver}    CUDA Version: 13.0"
    head = [f"{versions}    (pretend)", "| NVIDIA GB10              Memory-Usage: Not Supported |"]
    return "\n".join([*head, *rows])


def apps(world: SimSpark, folder: Path) -> list[dict[str, str]]:
    ours = [(pid.number, "pretend engine", held) for pid, held in memory.held_bytes(folder).items() if held]
    foreign = [(user.pid, user.name, user.bytes) for user in world.gpu_users]
    return [
        {
            "pid": str(pid),
            "process_name": name,
            "name": name,
            "used_memory": f"{held // MIB} MiB",
            "used_gpu_memory": f"{held // MIB} MiB",
            "gpu_uuid": _UUID,
            "gpu_name": "NVIDIA GB10",
        }
        for pid, name, held in (*foreign, *ours)
    ]


def _gpu(world: SimSpark, folder: Path) -> dict[str, str]:
    busy = bool(memory.held_bytes(folder))
    clock = "2400 MHz" if busy else "208 MHz"
    return {
        "name": "NVIDIA GB10", "gpu_name": "NVIDIA GB10", "driver_version": world.driver,
        "compute_cap": "12.1", "index": "0", "count": "1",
        "memory.total": _MISSING, "memory.used": _MISSING, "memory.free": _MISSING,
        "uuid": _UUID, "gpu_uuid": _UUID, "temperature.gpu": "52" if busy else "38",
        "power.draw": "60.00 W" if busy else "8.00 W", "power.limit": _MISSING,
        "clocks.sm": clock, "clocks.current.sm": clock,
        "clocks.mem": _MISSING, "utilization.gpu": "90 %" if busy else "0 %", "utilization.memory": _MISSING,
        "pstate": "P0", "pci.bus_id": "0000000F:01:00.0", "persistence_mode": "Enabled",
    }  # fmt: skip


def _table(asked: dict[str, str], rows: list[dict[str, str]], columns: str) -> tuple[int, str]:
    shape = set(asked.get("format", "csv").split(","))
    names = [name.strip() for name in columns.split(",")]
    known = _gpu_columns if "query-gpu" in asked else _app_columns
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        return 2, f'Field "{unknown}" is not a valid field to query.\n'
    lines = [] if "noheader" in shape else [", ".join(names)]
    for row in rows:
        cells = (row[name].rsplit(" ", 1)[0] if _has_unit(row[name], shape) else row[name] for name in names)
        lines.append(", ".join(cells))
    return 0, "\n".join(lines)


def _has_unit(cell: str, shape: set[str]) -> bool:
    return "nounits" in shape and cell.endswith((" MiB", " W", " MHz", " %"))


def _pair(word: str) -> tuple[str, str]:
    name, _, value = word.lstrip("-").partition("=")
    return name, value


_gpu_columns = frozenset(_gpu(SimSpark(), Path("/nonexistent")))
_app_columns = frozenset(
    {"pid", "process_name", "name", "used_memory", "used_gpu_memory", "gpu_uuid", "gpu_name"}
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(os.environ[SIM])))
