"""What a simulated Spark is: its memory, its GPU, its true speed, and what goes wrong on it.

A SimSpark is data, kept as `spark.json` in the Spark's folder. Its true speed is the planner's own figure
unless a `TrueSpeed` says otherwise; then a benchmark has a known answer to find.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import field

from firesteel.units import GB, GIB
from firesteel.values import FileValue, Value, from_json, plain

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
    bytes: int = 0
    code: int = 1
    times: float = 1.0
    lines: tuple[str, ...] = ()
    """What the engine, docker or the kernel prints."""


class SimGpuProcess(FileValue):
    """A foreign process with GPU memory, which is not part of the available memory."""

    pid: int
    name: str
    bytes: int


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
    memory_total_bytes: int = round(121.69 * GIB)
    memory_available_bytes: int = 117 * GIB
    """While none of our engines runs."""
    driver: str = "580.173.02"
    kernel: str = "6.17.0-1032-simulated"
    gpu_users: tuple[SimGpuProcess, ...] = ()
    disk_free_bytes: int = 2000 * GB
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
    temporary = folder / ".spark.json"
    temporary.write_text(json.dumps(plain(spark), indent=1))
    temporary.replace(folder / SPARK_FILE)


def read_spark(folder: Path) -> SimSpark:
    """The Spark that `create_spark` wrote into this folder."""
    return from_json(SimSpark, json.loads((folder / SPARK_FILE).read_text()))
