"""The text of `data/speed/fitted.yaml`, made from the runs that ship."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from firesteel.planner import anchors, calibration
from firesteel.planner.calibration_prefill import calibrate_prefill
from firesteel.planner.speed.accuracy import Errors, Fitted, Spread

_HEAD = """\
# Written by scripts/calibrate from data/measured; never by hand. `scripts/calibrate --check` compares.
# Costs of bytes: multiples of the time that the bandwidth of a GB10 takes for them. Costs of layers: ms.
# Prefill: ms a tera-operation (20 is 50 TFLOPS), recurrent layers ms a giga-channel, start ms.
# Errors are of tokens a second: mean and worst of |predicted / measured - 1|; 19 in 20 of measured /
# predicted lie between low and high. left_out: each model predicted with the others' figures.
"""


def calibrated() -> str:
    """The text of the file, from the runs that ship."""
    decode = {engine: calibration.calibrate(engine) for engine in calibration.COSTS}
    costs = {engine: found.costs for engine, found in decode.items()}
    lines = [_HEAD + "hardware: gb10", "engines:"]
    for engine, found in decode.items():
        lines.append(f"  {engine}:")
        lines += _fitted("decode", found)
        lines += _fitted("crowd", calibration.calibrate_crowd(engine, costs[engine]))
        lines += _fitted("prefill", calibrate_prefill(engine))
    sums = anchors.all_reduce_ms()
    lines += [f"repeated: {_flow(anchors.repeated(costs))}", f"carried: {_flow(anchors.carried(costs))}"]
    lines += [f"all_reduce_ms: {_flow(sums)}", f"two_sparks: {_flow(anchors.two_sparks(sums.expected))}"]
    lines.append("elsewhere:")
    lines += [f"  {engine}: {_flow(each)}" for engine, each in anchors.elsewhere(costs).items()]
    return "\n".join(lines) + "\n"


def _fitted(name: str, found: Fitted) -> list[str]:
    return [
        f"    {name}:",
        f"      costs: {_map(found.costs)}",
        f"      fitted: {_flow(found.fitted)}",
        f"      left_out: {_flow(found.left_out)}",
    ]


def _flow(value: Errors | Spread) -> str:
    return _map(asdict(value))


def _map(values: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {value:g}" for name, value in values.items()) + "}"
