"""The simulated `nvidia-smi`: `--query-gpu`, `--query-compute-apps`, `-L`, and the plain table.

A GB10 shares the host's memory: `memory.*` is `[N/A]`, while each process's share is known.
Seen in https://github.com/leptonai/gpud/pull/1170 and NVIDIA's own text for the Spark, 2026-11-15.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from firesteel.edge.host.machine_files import SIM
from firesteel.edge.sim.spark import SimSpark, held_bytes, read_spark
from firesteel.units import MIB

_UUID = "GPU-00000000-0000-4000-8000-00000000b10c"
_MISSING = "[N/A]"


def main(arguments: Sequence[str], folder: Path) -> int:
    code, output = run(arguments, folder)
    stream = sys.stderr if code and not output.startswith("Field") else sys.stdout
    stream.write(f"{output}\n" if output else "")
    return code


def run(arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    """Its exit code and output."""
    spark = read_spark(folder)
    parts = (argument.lstrip("-").partition("=") for argument in arguments)
    options = {name: value for name, _, value in parts}
    if columns := options.get("query-gpu"):
        return _table(columns, _GPU_COLUMNS, [_gpu(spark, folder)], options)
    if columns := options.get("query-compute-apps"):
        return _table(columns, _APP_COLUMNS, apps(spark, folder), options)
    if "L" in options or "list-gpus" in options:
        return 0, f"GPU 0: NVIDIA GB10 (UUID: {_UUID})"
    if options:
        return 2, f"the simulated nvidia-smi does not know {' '.join(arguments)}"
    return 0, _overview(spark, folder)


def _overview(spark: SimSpark, folder: Path) -> str:
    rows = [
        f"| {row['pid']:>8}  {row['process_name']:<40} {row['used_memory']:>12} |"
        for row in apps(spark, folder)
    ]
    versions = f"NVIDIA-SMI {spark.driver}    Driver Version: {spark.driver}    CUDA Version: 13.0"
    head = [f"{versions}    (simulated)", "| NVIDIA GB10              Memory-Usage: Not Supported |"]
    return "\n".join([*head, *rows])


def apps(spark: SimSpark, folder: Path) -> list[dict[str, str]]:
    held = held_bytes(folder).items()
    engines = [(pid.number, "simulated engine", size) for pid, size in held if size]
    foreign = [(process.pid, process.name, process.bytes) for process in spark.gpu_users]
    return [_app(*process) for process in (*foreign, *engines)]


def _app(pid: int, name: str, size: int) -> dict[str, str]:
    used = f"{size // MIB} MiB"
    return {
        "pid": str(pid), "process_name": name, "name": name, "used_memory": used, "used_gpu_memory": used,
        "gpu_uuid": _UUID, "gpu_name": "NVIDIA GB10",
    }  # fmt: skip


def _gpu(spark: SimSpark, folder: Path) -> dict[str, str]:
    busy, hot = bool(held_bytes(folder)), spark.fault("hot") is not None
    clock = ("900 MHz" if hot else "2400 MHz") if busy else "208 MHz"
    return {
        "name": "NVIDIA GB10", "gpu_name": "NVIDIA GB10", "driver_version": spark.driver,
        "compute_cap": "12.1", "index": "0", "count": "1",
        "memory.total": _MISSING, "memory.used": _MISSING, "memory.free": _MISSING,
        "uuid": _UUID, "gpu_uuid": _UUID, "temperature.gpu": "92" if hot and busy else "52" if busy else "38",
        "power.draw": "60.00 W" if busy else "8.00 W", "power.limit": _MISSING,
        "clocks_event_reasons.active": f"0x{(0x40 if hot else 0) if busy else 1:016x}",
        "clocks.sm": clock, "clocks.current.sm": clock,
        "clocks.max.sm": "3003 MHz",
        "clocks.mem": _MISSING, "utilization.gpu": "90 %" if busy else "0 %", "utilization.memory": _MISSING,
        **_faulty(folder),
        "pstate": "P0", "pci.bus_id": "0000000F:01:00.0", "persistence_mode": "Enabled",
    }  # fmt: skip


def _faulty(folder: Path) -> dict[str, str]:
    """What a fault of the host has the GPU show: the last columns that `doctor` asks for."""
    try:
        cells = (folder / "commands/gpu").read_text().splitlines()[0].split(", ")
        temperature, power, clock, _, use, _, reasons = cells[-7:]
    except (OSError, IndexError, ValueError):
        return {}
    return {
        "temperature.gpu": temperature, "power.draw": f"{power} W", "clocks.sm": f"{clock} MHz",
        "clocks.current.sm": f"{clock} MHz", "utilization.gpu": f"{use} %",
        "clocks_event_reasons.active": reasons,
    }  # fmt: skip


def _table(
    columns: str, known: frozenset[str], rows: list[dict[str, str]], options: dict[str, str]
) -> tuple[int, str]:
    format = set(options.get("format", "csv").split(","))
    names = [name.strip() for name in columns.split(",")]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        return 2, f'Field "{unknown}" is not a valid field to query.\n'
    lines = [] if "noheader" in format else [", ".join(names)]
    for row in rows:
        cells = (row[name] for name in names)
        lines.append(", ".join(map(_without_unit, cells) if "nounits" in format else cells))
    return 0, "\n".join(lines)


def _without_unit(cell: str) -> str:
    return cell.rsplit(" ", 1)[0] if cell.endswith((" MiB", " W", " MHz", " %")) else cell


_GPU_COLUMNS = frozenset(_gpu(SimSpark(), Path("/nonexistent")))
_APP_COLUMNS = frozenset(_app(0, "", 0))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(os.environ[SIM])))
