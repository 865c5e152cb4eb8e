"""What a pretend Spark is: its memory, its GPU, how fast it truly is, and what goes wrong on it.

A World is data, kept as `world.json` in the Spark's folder. The truth about speed is the planner's own figure
unless a `Truth` says otherwise; then a benchmark has a known answer to find.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from firesteel.units import GB, GIB

FaultKind = Literal[
    "bad-usage", "crash", "disk-full", "drop", "fragmentation", "garbage", "hang", "http-500",
    "load-too-large", "memory-collapse", "no-docker", "no-gpu-in-docker", "nv-no-memory", "oom-kill",
    "pull-fails", "slow-start", "slow-tokens", "stall", "wrong-kernel",
]  # fmt: skip
Text = Literal["prose", "conversation", "code", "reasoning", "structured"]


@dataclass(frozen=True, slots=True)
class SimFault:
    """One thing that goes wrong. Which fields matter depends on the kind; `ABOUT` tells."""

    kind: FaultKind
    at: str = ""
    """The stage of a start: `start`, `load`, `compile`, `kv`, `graphs`, `warm`, `serving`."""
    after: float = 0.0
    """Seconds into serving, or requests served before it shows."""
    seconds: float = 0.0
    """How long it takes, in real seconds, however fast the start-up is played."""
    bytes: int = 0
    code: int = 1
    times: float = 1.0
    lines: tuple[str, ...] = ()
    """What the engine, docker or the kernel says."""


ABOUT: Mapping[str, str] = {
    "bad-usage": "`usage` counts `times` the tokens that came, from request `after` on",
    "crash": "the engine prints `lines` at stage `at` and exits with `code`",
    "disk-full": "docker says that there is no space left while it pulls",
    "drop": "streams are cut in the middle, from request `after` on",
    "fragmentation": "the kernel has no large free blocks left in /proc/buddyinfo",
    "garbage": "answers are token soup (`at`: soup, loop or foreign), from request `after` on",
    "hang": "requests run and no token comes, from request `after` on; /health stays 200",
    "http-500": "requests are answered with HTTP 500, from request `after` on",
    "load-too-large": "stage `at` takes `bytes` more than planned",
    "memory-collapse": "`after` seconds into serving, MemAvailable falls to `bytes` in `seconds`",
    "no-docker": "the docker daemon does not answer",
    "no-gpu-in-docker": "docker has no NVIDIA runtime",
    "nv-no-memory": "the kernel logs NV_ERR_NO_MEMORY at stage `at`",
    "oom-kill": "the kernel kills the engine at stage `at`",
    "pull-fails": "an image cannot be pulled: docker says `lines`",
    "slow-start": "every stage, or stage `at`, takes `times` as long",
    "slow-tokens": "decoding takes `times` as long as it should",
    "stall": "streams pause for `seconds` in the middle, from request `after` on",
    "wrong-kernel": "the log names `lines` in place of the kernels that the launch asks for",
}


@dataclass(frozen=True, slots=True)
class SimGpuProcess:
    """A process that has GPU memory and is not ours. What it holds is already gone from what is available."""

    pid: int
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TrueSpeed:
    """What is true of a model's speed here. The first that applies to a launch sets the rates, and the
    factors of all that apply multiply."""

    model: str = "*"
    """A model as the engine is given it, or a pattern such as `openai/*`."""
    when: Mapping[str, str] = field(default_factory=dict)
    """Flags that the launch must have, as text: `{"max-num-seqs": "8"}`."""
    decode_tokens_per_s: float | None = None
    """One user; the same however deep the conversation is."""
    prefill_tokens_per_s: float | None = None
    decode_times: float = 1.0
    prefill_times: float = 1.0


@dataclass(frozen=True, slots=True)
class SimSpark:
    name: str = ""
    """The scenario that it was made from; empty: from none."""
    memory_total_bytes: int = round(121.69 * GIB)
    memory_available_bytes: int = 117 * GIB
    """With no engine of ours."""
    driver: str = "580.95.05"
    kernel: str = "6.14.0-pretend"
    gpu_users: tuple[SimGpuProcess, ...] = ()
    disk_free_bytes: int = 2000 * GB
    images: tuple[str, ...] = ()
    """References that are there without a pull; `*` for all."""
    pull_s: float = 1.0
    truths: tuple[TrueSpeed, ...] = ()
    acceptance: Mapping[Text, float] = field(
        default_factory=lambda: {
            "prose": 0.55, "conversation": 0.6, "code": 0.75, "reasoning": 0.65, "structured": 0.88,
        }
    )  # fmt: skip
    """How likely a drafted token is right, when those before it were."""
    draft_cost: float = 0.25
    """What one drafted token adds to a step, as a share of it; a tenth more for each user but the first."""
    jitter: float = 0.0
    """Standard deviation of a step's time, as a share."""
    faster: float = 20.0
    """How much faster than planned an engine starts. It decodes at its true speed."""
    reads_faster: float = 1.0
    """How much faster than true a prompt is read: whoever only looks need not wait for 26,000 tokens."""
    seed: int = 0
    faults: tuple[SimFault, ...] = ()

    def fault(self, kind: FaultKind) -> SimFault | None:
        return next((fault for fault in self.faults if fault.kind == kind), None)


def write_spark(folder: Path, world: SimSpark) -> None:
    half = folder / ".world.json"
    half.write_text(json.dumps(asdict(world), indent=1))
    half.replace(folder / "world.json")


def read_spark(folder: Path) -> SimSpark:
    """Of a folder that `make` wrote."""
    found: dict[str, Any] = json.loads((folder / "world.json").read_text())
    found["faults"] = tuple(SimFault(**{**row, "lines": tuple(row["lines"])}) for row in found["faults"])
    found["gpu_users"] = tuple(SimGpuProcess(**row) for row in found["gpu_users"])
    found["truths"] = tuple(TrueSpeed(**row) for row in found["truths"])
    return SimSpark(**{**found, "images": tuple(found["images"])})
