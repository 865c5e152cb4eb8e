"""A run of `quantize` in a process of its own, which a test kills: small units, a sync after each few.

python -m tests.workshop.killed_run SOURCE OUT FORMAT

It prints a line for each finished unit, and goes on when it reads one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from firesteel.workshop.kernels.native import NumpyKernel
from firesteel.workshop.quantize import run, worker
from firesteel.workshop.quantize.plan import plan_quantization
from firesteel.workshop.quantize.source import open_source


def main() -> None:
    source, out, to = sys.argv[1:]
    worker.UNIT_ELEMENTS = 16_384
    run._SYNC_BYTES = 100_000
    plan = plan_quantization(open_source(source), to)

    def report(progress: run.QuantizationProgress) -> None:
        sys.stdout.write(f"{progress.done_bytes} {progress.resumed_bytes}\n")
        sys.stdout.flush()
        sys.stdin.readline()

    run.run_quantization(plan, Path(out), NumpyKernel(), 2, report)


if __name__ == "__main__":
    main()
