"""What a build made: an image that is proved, and one that has its tag."""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.images.matrix_product import MatrixProduct
from firesteel.values import Value

PROVED = "proved.json"
"""In the folder of a build."""


class ProvedImage(Value):
    """An image that was built, inspected, started and verified. It has no tag yet."""

    id: str
    """`sha256:...`"""
    version: str
    uses_gpu: bool
    started: str
    seconds: float
    digests: Mapping[str, str]
    """Of bases that the recipe does not pin."""
    checks: tuple[str, ...]
    """Those that it passed."""
    folder: str
    """Dockerfile, log and, once it is tagged, provenance."""
    products: tuple[MatrixProduct, ...] = ()


class BuiltImage(Value):
    tag: str
    id: str
    engine: str
    version: str
    bytes: int
    seconds: float
    verified: tuple[str, ...]
    products: tuple[MatrixProduct, ...]
    folder: str
