"""A checkpoint read from its own files: where it is, its format, its shape and its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.tensors import Weights

Format = Literal["gguf", "safetensors"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str
    model: str
    """What an engine is given: a path or a Hub id."""
    format: Format
    origin: str
    """Where it was read from, as a user would write it: the path or the Hub id."""
    architecture: Architecture
    weights: Weights
    unknown: tuple[str, ...] = ()
    """What it has beside these weights and nothing sizes, in words."""
    kv_cache_dtype: str | None = None
    """What it is calibrated to keep keys and values in; None: it does not say."""
    heavier: Weights | None = None
    """The same label in the layout that leaves more in 16 bits; None: the layout is not in doubt."""
