"""GPUs with memory of their own: how fast that memory is, as their makers state it."""

from __future__ import annotations

from typing import Annotated

from firesteel import shipped_data
from firesteel.facts.evidence import Sources
from firesteel.facts.host.hardware import SIZE
from firesteel.values import FileValue, PositiveInt


class DiscreteGpu(FileValue, kw_only=True):
    name: str
    """A part of the name that `nvidia-smi` prints."""
    bandwidth: Annotated[PositiveInt, SIZE]
    """Bytes per second."""
    sources: Sources


class DiscreteGpus(FileValue, kw_only=True):
    gpus: tuple[DiscreteGpu, ...]


def discrete_gpu(name: str) -> DiscreteGpu | None:
    """What is known of the GPU that `nvidia-smi` calls so."""
    known = shipped_data.load("gpus.yaml", DiscreteGpus).gpus
    return next((gpu for gpu in known if gpu.name.lower() in name.lower()), None)
