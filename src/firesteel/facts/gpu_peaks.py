"""The peak of a GPU's tensor cores by format, dense, as its maker states it."""

from __future__ import annotations

from firesteel import shipped_data
from firesteel.facts.evidence import Sources
from firesteel.values import FileValue


class GpuPeak(FileValue, kw_only=True):
    name: str
    """A part of the name that CUDA and `nvidia-smi` give."""
    tflops: dict[str, float]
    """By format: bf16, fp8, nvfp4. Without sparsity, which no engine here uses."""
    sources: Sources


class GpuPeaks(FileValue, kw_only=True):
    peaks: tuple[GpuPeak, ...]


def peak_tflops(gpu: str, format: str) -> float | None:
    known = shipped_data.load("gpu_peaks.yaml", GpuPeaks).peaks
    found = next((peak for peak in known if peak.name.lower() in gpu.lower()), None)
    return found.tflops.get(format) if found else None
