"""A checkpoint read from its own files: location, format, architecture and bytes."""

from __future__ import annotations

from typing import Literal

from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.tensors import Weights
from firesteel.values import Value

Format = Literal["gguf", "safetensors"]


class Checkpoint(Value):
    name: str
    model: str
    """What the engine gets: a path or a Hub id."""
    format: Format
    origin: str
    """Where it was read from, as a user would write it: the path or the Hub id."""
    architecture: Architecture
    weights: Weights
    unknown: tuple[str, ...] = ()
    """Parts of the checkpoint whose size is not known, described for the user."""
    kv_cache_dtype: str | None = None
    """The KV cache dtype that it is calibrated for; None: not given."""
    heavier: Weights | None = None
    """The weights in the layout that keeps more in 16 bits; None: the layout is known."""
    doubts: tuple[str, ...] = ()
    """What was assumed because the files do not say it, described for the user."""
