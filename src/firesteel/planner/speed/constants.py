"""The fitted costs in `data/speed/fitted.yaml`, which `scripts/calibrate` writes.

Costs and their errors are stored together, so that no plan can show one without the other.
"""

from __future__ import annotations

from functools import cache

from firesteel import shipped_data
from firesteel.values import FileValue


class ErrorsSchema(FileValue, kw_only=True):
    """Of predicted over measured; 19 in 20 of measured over predicted lie between `low` and `high`."""

    runs: int
    models: int
    mean: float
    worst: float
    low: float
    high: float


class FittedSchema(FileValue, kw_only=True):
    costs: dict[str, float]
    fitted: ErrorsSchema
    left_out: ErrorsSchema


class ServedErrorsSchema(FileValue, kw_only=True):
    """Of several users whose prompts arrive while others decode, for models left out of all three fits."""

    each: ErrorsSchema
    total: ErrorsSchema
    first_token: ErrorsSchema


class FittedEngineSchema(FileValue, kw_only=True):
    decode: FittedSchema
    crowd: FittedSchema
    """Of several users who decode at once."""
    prefill: FittedSchema
    served: ServedErrorsSchema | None = None
    """None where no run shows it."""
    first_prompts_ms: SpreadSchema | None = None
    """How much longer the first prompts after a start took; None where no run shows it."""


class SpreadSchema(FileValue, kw_only=True):
    """The median of some ratios or times, and the range that holds 19 in 20 of them."""

    runs: int
    low: float
    expected: float
    high: float


class ConstantsSchema(FileValue, kw_only=True):
    hardware: str
    engines: dict[str, FittedEngineSchema]
    repeated: SpreadSchema
    """A run over what other runs of the same checkpoint, engine and version predict."""
    carried: SpreadSchema
    """A run over what runs of the same weights in another version, or by other people, predict."""
    all_reduce_ms: SpreadSchema
    two_sparks: ErrorsSchema
    """Of runs on two Sparks, from runs of the same people on one."""
    planned_two_sparks: ErrorsSchema
    """Of runs of one user on two Sparks, from the costs of one; `low` and `high` are the least and the most
    of these and of `two_sparks`."""
    elsewhere: dict[str, ErrorsSchema]
    """Runs by other hands, which nothing was fitted to, by engine; engines without costs of their own use
    those of vLLM. `low` and `high`: the range of these runs, and at least 8 in 10 of all with the same
    costs."""


@cache
def constants() -> ConstantsSchema:
    return shipped_data.load("speed/fitted.yaml", ConstantsSchema)
