"""The fitted figures of `data/speed/fitted.yaml`, which `scripts/calibrate` writes.

A figure and its errors travel together, so that no plan can show one without the other.
"""

from __future__ import annotations

from functools import cache

from firesteel import yaml_schema


class ErrorsSchema(yaml_schema.FileSchema):
    runs: int
    models: int
    mean: float
    worst: float
    low: float
    high: float


class FittedSchema(yaml_schema.FileSchema):
    costs: dict[str, float]
    fitted: ErrorsSchema
    left_out: ErrorsSchema


class FittedEngineSchema(yaml_schema.FileSchema):
    decode: FittedSchema
    crowd: FittedSchema
    prefill: FittedSchema


class SpreadSchema(yaml_schema.FileSchema):
    runs: int
    low: float
    expected: float
    high: float


class ConstantsSchema(yaml_schema.FileSchema):
    hardware: str
    engines: dict[str, FittedEngineSchema]
    repeated: SpreadSchema
    """A run over what other runs of the same checkpoint, engine and version say."""
    carried: SpreadSchema
    """A run over what runs of the same weights in another version, or by another hand, say."""
    all_reduce_ms: SpreadSchema
    two_sparks: ErrorsSchema
    elsewhere: dict[str, ErrorsSchema]
    """Runs that nothing was fitted to, by engine; engines without figures of their own take vLLM's."""


@cache
def constants() -> ConstantsSchema:
    return yaml_schema.load_data("speed/fitted.yaml", ConstantsSchema)
