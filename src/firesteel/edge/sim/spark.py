"""What a simulated Spark is: its memory, its GPU, its true speed, and what goes wrong on it.

A SimSpark is data, kept as `spark.json` in the Spark's folder. Its true speed is the planner's own figure
unless a `TrueSpeed` says otherwise; then a benchmark has a known answer to find. Each engine writes how much
memory it holds into `memory/PID-TICKS`. A reader adds up the files of processes that are alive and updates
`/proc`, so memory is free again the moment a process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import field

from firesteel.edge.host.process import Pid, is_alive
from firesteel.units import GB, GIB, parse_size
from firesteel.values import Expand, FileValue, Value, from_json, plain

FaultKind = Literal[
    "bad-usage",  # `usage` counts `times` the tokens that came, from request `after` on
    "crash",  # the engine prints `lines` at stage `at` and exits with `code`
    "disk-full",  # docker reports a full disk during a pull
    "drop",  # streams are cut in the middle, from request `after` on
    "fragmentation",  # the kernel has no large free blocks left in /proc/buddyinfo
    "garbage",  # answers are garbage (`at`: soup, loop or foreign), from request `after` on
    "hang",  # requests run and no token comes, from request `after` on; /health stays 200
    "hot",  # the GPU is slowed down by its temperature while an engine runs
    "http-500",  # requests are answered with HTTP 500, from request `after` on
    "load-too-large",  # stage `at` takes `bytes` more than planned
    "memory-collapse",  # `after` seconds into serving, MemAvailable falls to `bytes` in `seconds`
    "no-docker",  # the docker daemon does not answer
    "no-gpu-in-docker",  # docker has no NVIDIA runtime
    "nv-no-memory",  # the kernel logs NV_ERR_NO_MEMORY at stage `at`
    "oom-kill",  # the kernel kills the engine at stage `at`
    "pull-fails",  # an image cannot be pulled: docker says `lines`
    "slow-start",  # every stage, or stage `at`, takes `times` as long
    "slow-tokens",  # decoding takes `times` as long as it should
    "stall",  # streams pause for `seconds` in the middle, from request `after` on
    "wrong-kernel",  # the log names `lines` in place of the kernels that the launch asks for
]
Size = Annotated[int, Expand(parse_size)]
Text = Literal["prose", "conversation", "code", "reasoning", "structured"]

SPARK_FILE = "spark.json"


class SimFault(FileValue):
    """One thing that goes wrong. The comments at `FaultKind` say which fields a kind uses."""

    kind: FaultKind
    at: str = ""
    """The stage of a start: `start`, `load`, `compile`, `kv`, `graphs`, `warm`, `serving`."""
    after: float = 0.0
    """Seconds into serving, or requests served before it shows."""
    seconds: float = 0.0
    """How long it takes, in real seconds, however much faster the engine starts."""
    bytes: Size = 0
    code: int = 1
    times: float = 1.0
    lines: tuple[str, ...] = ()
    """What the engine, docker or the kernel prints."""


class SimGpuProcess(FileValue):
    """A foreign process with GPU memory, which is not part of the available memory."""

    pid: int
    name: str
    bytes: Size


class TrueSpeed(FileValue):
    """The true speed of a model here. The first one that applies to a launch sets the rates, and the factors
    of all that apply multiply."""

    model: str = "*"
    """A model as the engine is given it, or a pattern such as `openai/*`."""
    when: Mapping[str, str] = {}
    """Flags that the launch must have, as text: `{"max-num-seqs": "8"}`."""
    decode_tokens_per_s: float | None = None
    """Of one user; the same at every depth of the conversation."""
    prefill_tokens_per_s: float | None = None
    decode_times: float = 1.0
    prefill_times: float = 1.0


class SimSpark(Value):
    name: str = ""
    """The scenario that it was created from; empty: none."""
    memory_total_bytes: Size = round(121.69 * GIB)
    memory_available_bytes: Size = 117 * GIB
    """While none of our engines runs."""
    driver: str = "580.173.02"
    kernel: str = "6.17.0-1032-simulated"
    gpu_users: tuple[SimGpuProcess, ...] = ()
    disk_free_bytes: Size = 2000 * GB
    images: tuple[str, ...] = ()
    """References that need no pull; `*` for all."""
    pull_s: float = 1.0
    truths: tuple[TrueSpeed, ...] = ()
    acceptance: Mapping[Text, float] = field(
        default_factory=lambda: {
            "prose": 0.55, "conversation": 0.6, "code": 0.75, "reasoning": 0.65, "structured": 0.88,
        }
    )  # fmt: skip
    """The probability that a drafted token is right, given that those before it were."""
    draft_cost: float = 0.25
    """What one drafted token adds to a step, as a share of it; a tenth more per additional user."""
    jitter: float = 0.0
    """Standard deviation of a step's time, as a share."""
    faster: float = 20.0
    """How much faster than planned an engine starts. It still decodes at its true speed."""
    reads_faster: float = 1.0
    """How much faster than true a prompt is read, so that a demo need not wait for 26,000 tokens."""
    seed: int = 0
    faults: tuple[SimFault, ...] = ()
    host_fault: str = ""
    """The check of `doctor` that finds something wrong with the host; empty: none does."""
    nodes: int = 1
    """How many Sparks there are, joined by both rails."""

    def fault(self, kind: FaultKind) -> SimFault | None:
        return next((fault for fault in self.faults if fault.kind == kind), None)


def write_spark(folder: Path, spark: SimSpark) -> None:
    _write(folder / SPARK_FILE, json.dumps(plain(spark), indent=1))


def read_spark(folder: Path) -> SimSpark:
    """The Spark that `create_spark` wrote into this folder."""
    return from_json(SimSpark, json.loads((folder / SPARK_FILE).read_text()))


_PAGE = 4096
_ORDERS = 11


def set_held_bytes(folder: Path, pid: Pid, held_bytes: int) -> None:
    """Records how much a process holds from now on."""
    path = folder / "memory" / f"{pid.number}-{pid.started_ticks}"
    _write(path, str(held_bytes))
    update_proc(folder)


def held_bytes(folder: Path) -> dict[Pid, int]:
    """By process, of those that are alive; files of others are removed."""
    held: dict[Pid, int] = {}
    for path in (folder / "memory").glob("[0-9]*-[0-9]*"):
        number, _, ticks = path.name.partition("-")
        pid = Pid(int(number), int(ticks))
        if not is_alive(pid):
            path.unlink(missing_ok=True)
            continue
        try:
            held[pid] = int(path.read_text())
        except (FileNotFoundError, ValueError):
            continue
    return held


def available_bytes(folder: Path, spark: SimSpark) -> int:
    return max(0, spark.memory_available_bytes - sum(held_bytes(folder).values()))


def update_proc(folder: Path) -> None:
    """Writes `/proc` as it is now; every file is replaced atomically."""
    spark, proc = read_spark(folder), folder / "proc"
    with (folder / "memory" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # or a slow writer would undo what a later one has seen
        available = available_bytes(folder, spark)
        _write(proc / "meminfo", _meminfo(spark, available))
        _write(proc / "pressure" / "memory", _pressure(available))
        _write(proc / "buddyinfo", _buddyinfo(spark, available))
        _write(proc / "vmstat", _vmstat(spark, available))


def log_kernel_message(folder: Path, message: str) -> None:
    """Appends a record in the kernel's format: priority, number, microseconds, flags; then the message."""
    path = folder / "dev" / "kmsg"
    with path.open("a+") as log:
        log.seek(0)
        number = sum(1 for _ in log)
        log.write(f"3,{number},{time.monotonic_ns() // 1000},-;{message}\n")


def _meminfo(spark: SimSpark, available: int) -> str:
    free = _free(available)
    total = spark.memory_total_bytes
    sizes = {
        "MemTotal": total, "MemFree": free, "MemAvailable": available, "Buffers": 0,
        "Cached": max(0, available - free), "SwapCached": 0, "Dirty": 0,
        "AnonPages": max(0, total - available), "Shmem": 0, "SwapTotal": 0, "SwapFree": 0,
    }  # fmt: skip
    rows = "".join(f"{name + ':':<16}{size // 1024:>8} kB\n" for name, size in sizes.items())
    return f"{rows}HugePages_Total:       0\nHugepagesize:       2048 kB\n"


def _free(available: int) -> int:
    """A tenth of the available memory is page cache, which the kernel would give back."""
    return available * 9 // 10


def _pressure(available: int) -> str:
    """No task waits for memory until less than 4 GiB are left; then all do."""
    # Made up: it only has to rise steeply, as PSI does when a real host starts to thrash.
    some = max(0.0, min(95.0, 100 * (1 - available / (4 * GIB))))
    line = "{} avg10={:.2f} avg60={:.2f} avg300={:.2f} total={}\n"
    total = round(some * 1e5)
    return line.format("some", some, some / 3, some / 9, total) + line.format(
        "full", some * 0.8, some / 4, some / 12, total * 4 // 5
    )


def _buddyinfo(spark: SimSpark, available: int) -> str:
    """Free memory in blocks of 2^n pages; a fragmented host has only small ones."""
    pages = _free(available) // _PAGE
    counts = [0] * _ORDERS
    if spark.fault("fragmentation"):
        counts[0], counts[1] = pages // 2, pages // 4
    else:
        counts[-1] = pages >> (_ORDERS - 1)
        counts[0] = pages - (counts[-1] << (_ORDERS - 1))
    return f"Node 0, zone   Normal {' '.join(f'{count:6}' for count in counts)} \n"


def _vmstat(spark: SimSpark, available: int) -> str:
    low = max(0, 4 * GIB - available) // _PAGE
    rows = {
        "nr_free_pages": _free(available) // _PAGE,
        "pgscan_direct": low,
        "pgsteal_direct": low // 2,
        "allocstall_normal": low // 64,
        "compact_stall": 5000 if spark.fault("fragmentation") else 0,
        "compact_fail": 4900 if spark.fault("fragmentation") else 0,
        "oom_kill": 0,
    }
    return "".join(f"{name} {count}\n" for name, count in rows.items())


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(text)
    temporary.replace(path)
