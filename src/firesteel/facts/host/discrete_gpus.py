"""GPUs with memory of their own: how fast that memory is, as their makers state it."""

from __future__ import annotations

from typing import Annotated

from firesteel import yaml_schema
from firesteel.facts.evidence import Sources
from firesteel.facts.host.hardware import SIZE
from firesteel.file_schema import PositiveInt, file_schema


@file_schema
class DiscreteGpu:
    name: str
    """A part of the name that `nvidia-smi` prints."""
    bandwidth: Annotated[PositiveInt, SIZE]
    """Bytes per second."""
    sources: Sources


@file_schema
class DiscreteGpus:
    gpus: tuple[DiscreteGpu, ...]


def discrete_gpu(name: str) -> DiscreteGpu | None:
    """What is known of the GPU that `nvidia-smi` calls so."""
    known = yaml_schema.load_data("gpus.yaml", DiscreteGpus).gpus
    return next((gpu for gpu in known if gpu.name.lower() in name.lower()), None)
