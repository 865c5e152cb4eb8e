"""One query and one parser of the GPU's state, for `doctor`, the gateway and `bench`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from firesteel import shipped_data
from firesteel.edge.sim import nvidia_smi
from firesteel.edge.sim.setup import create_spark
from firesteel.edge.sim.spark import SimSpark
from firesteel.facts.host.gpus import COLUMNS, GpuReading


def row(
    temperature: str = "52", power: str = "60.00", clock: str = "2400", use: str = "90", reasons: str = ""
) -> str:
    bits = [reasons] if reasons else []
    cells = ["NVIDIA GB10", "580.142", "12.1", "[N/A]", temperature, power, clock, "3003", use, "P0", *bits]
    return ", ".join(cells)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (row(reasons="0x0000000000000000"), (52, 60, 2400, 90, 0, None)),
        (row(reasons="0x0000000000000004"), (52, 60, 2400, 90, 4, None)),
        (row("92", "[N/A]", "900", reasons="0x60"), (92, None, 900, 90, 0x60, "hardware thermal slowdown")),
        (row(reasons="[N/A]"), (52, 60, 2400, 90, None, None)),
        (row(), (52, 60, 2400, 90, None, None)),
        (row("nan", "inf", "-3", "1e99"), (None, None, None, None, None, None)),
    ],
)
def test_a_row(text: str, seen: tuple[object, ...]) -> None:
    (gpu,) = GpuReading.parse(f"{text}\n")
    found = (gpu.temperature_c, gpu.power_w, gpu.clock_mhz, gpu.use_percent, gpu.reasons, gpu.throttle)
    assert found == seen and gpu.line == text


@pytest.mark.parametrize("text", ["", "No devices were found\n", "Failed to initialize NVML: mismatch\n"])
def test_no_gpu(text: str) -> None:
    assert GpuReading.parse(text) == ()


def test_the_probe_asks_for_the_same_columns() -> None:
    asked = re.search(r"^COLUMNS_GPU='(.+)'$", shipped_data.read_text("checks/probe.sh"), re.M)
    assert asked and tuple(asked[1].split(",")) == COLUMNS


def test_the_simulated_spark_answers_them(tmp_path: Path) -> None:
    create_spark(tmp_path, SimSpark())
    query = [f"--query-gpu={','.join(COLUMNS)}", "--format=csv,noheader,nounits"]
    code, text = nvidia_smi.run(query, tmp_path)
    (gpu,) = GpuReading.parse(text)
    assert (code, gpu.temperature_c, gpu.power_w, gpu.clock_mhz, gpu.throttle) == (0, 38, 8, 208, None)
