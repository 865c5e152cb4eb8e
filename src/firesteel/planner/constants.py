"""The fitted figures of `data/speed/fitted.yaml`, which `scripts/calibrate` writes.

A figure and its errors travel together, so that no plan can show one without the other.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from firesteel import sheets

FILE = "fitted.yaml"


class ErrorsSheet(sheets.Sheet):
    runs: int
    models: int
    mean: float
    worst: float
    low: float
    high: float


class FittedSheet(sheets.Sheet):
    costs: dict[str, float]
    fitted: ErrorsSheet
    left_out: ErrorsSheet


class EngineSheet(sheets.Sheet):
    decode: FittedSheet
    crowd: FittedSheet
    prefill: FittedSheet


class SpreadSheet(sheets.Sheet):
    runs: int
    low: float
    expected: float
    high: float


class ConstantsSheet(sheets.Sheet):
    hardware: str
    engines: dict[str, EngineSheet]
    repeated: SpreadSheet
    """A run over what other runs of the same checkpoint, engine and version say."""
    carried: SpreadSheet
    """A run over what runs of the same weights in another version, or by another hand, say."""
    all_reduce_ms: SpreadSheet
    two_sparks: ErrorsSheet
    elsewhere: dict[str, ErrorsSheet]
    """Runs that nothing was fitted to, by engine; engines without figures of their own take vLLM's."""


@cache
def constants() -> ConstantsSheet:
    text = (files("firesteel") / "data" / "speed" / FILE).read_text("utf-8")
    return sheets.load(FILE, text, ConstantsSheet)
