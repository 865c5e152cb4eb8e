"""The text of `data/speed/fitted.yaml`, computed from the published runs in the package."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from calibration import decode, run_pairs
from calibration.decode import run_errors
from calibration.prefill import calibrate_prefill, first_prompts_ms
from calibration.serving import predictions, served_errors
from firesteel.planner.speed.decode import ErrorsSchema, FittedSchema, SpreadSchema

_HEAD = """\
# Written by scripts/calibrate from data/measured; never by hand. `scripts/calibrate --check` compares.
# Costs of bytes: multiples of the time that the bandwidth of a GB10 takes for them. Costs of layers: ms.
# Prefill: ms per tera-operation (20 is 50 TFLOPS), recurrent layers ms per giga-channel, start ms, and for a
# ms of reading the weights as a decode step does.
# Errors are of tokens per second: mean and worst of |predicted / measured - 1|; 19 in 20 of measured /
# predicted lie between low and high. left_out: each model predicted with the costs of the others.
"""


def fitted_text() -> str:
    decode_fits = {engine: decode.calibrate_decode(engine) for engine in decode.COSTS}
    costs = {engine: fit.costs for engine, fit in decode_fits.items()}
    lines = [_HEAD + "hardware: gb10", "engines:"]
    for engine, fit in decode_fits.items():
        lines.append(f"  {engine}:")
        lines += _fit_lines("decode", fit)
        batch = decode.calibrate_batch(engine, costs[engine])
        lines += _fit_lines("crowd", batch)
        independence = batch.costs["independence"]
        prefill = calibrate_prefill(engine, costs[engine], independence)
        lines += _fit_lines("prefill", prefill)
        if engine == "vllm":
            first = first_prompts_ms(costs[engine], independence, prefill.costs)
            lines += [f"    first_prompts_ms: {_flow(first)}"]
            lines += ["    served:"]
            errors = served_errors(predictions(left_out=True))
            lines += [f"      {name}: {_flow(getattr(errors, name))}" for name in errors.__struct_fields__]
    all_reduce = run_pairs.all_reduce_ms()
    planned = run_pairs.planned_two_sparks(all_reduce.expected, costs)
    widest = run_pairs.range_of(planned + run_pairs.two_sparks(all_reduce.expected))
    lines += [
        f"repeated: {_flow(run_pairs.repeated(costs))}",
        f"carried: {_flow(run_pairs.carried(costs))}",
        f"all_reduce_ms: {_flow(all_reduce)}",
        f"two_sparks: {_flow(run_errors(run_pairs.two_sparks(all_reduce.expected)))}",
        f"planned_two_sparks: {_flow(run_pairs.with_range(run_errors(planned), *widest))}",
        "elsewhere:",
    ]
    lines += [
        f"  {engine}: {_flow(errors)}"
        for engine, errors in run_pairs.elsewhere(run_pairs.other_hands(costs)).items()
    ]
    return "\n".join(lines) + "\n"


def _fit_lines(name: str, fit: FittedSchema) -> list[str]:
    return [
        f"    {name}:",
        f"      costs: {_mapping(fit.costs)}",
        f"      fitted: {_flow(fit.fitted)}",
        f"      left_out: {_flow(fit.left_out)}",
    ]


def _flow(value: ErrorsSchema | SpreadSchema) -> str:
    return _mapping(structs.asdict(value))


def _mapping(values: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {value:g}" for name, value in values.items()) + "}"
