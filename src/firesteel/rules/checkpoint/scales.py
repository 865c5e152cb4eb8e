"""Checks of scales: present, of the right shape and type, usable numbers, and shared where engines share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from firesteel.facts.formats.number_bytes import ValueSummary
from firesteel.facts.model.contents import CheckpointContents, StoredModule, split_name
from firesteel.facts.model.tensors import Role, Tensor, scale_groups, scale_partners
from firesteel.rules.checkpoint.audited import AuditedCheckpoint
from firesteel.rules.checkpoint.checks import CheckpointFinding, finding

STOP_RATIO = 1.25
"""From this ratio on, weights are off by more than NVFP4 itself costs at its worst (20 %)."""
SAME_RATIO = 1.0005
"""Closer ones are equal up to rounding: a BF16 scale has three digits."""
_SATURATED_SHARE = 0.05
_ZERO_SHARE = 0.5
_SCALE_TYPES = {"nvfp4": ("F8_E4M3",), "mxfp4": ("U8", "F8_E8M0"), "mxfp8": ("U8", "F8_E8M0")}
_FLOATS = ("F32", "BF16", "F16")


def check_scales(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    yield from _each(checkpoint, "scale-missing", "`{}` has no scale", _missing)
    yield from _each(checkpoint, "scale-without-weight", "`{}` has scales and no weight", _orphan)
    yield from _each(checkpoint, "weight-twice", "`{}` has a weight in 16 bits and a packed one", _twice)
    yield from _each(checkpoint, "scale-shape", "a scale of `{}` has the wrong shape", _wrong_shape)
    yield from _each(checkpoint, "scale-dtype", "a scale of `{}` has the wrong type", _wrong_type)
    yield from _numbers(checkpoint)
    yield from _inverted(checkpoint)
    yield from _shared(checkpoint)


def _each(
    checkpoint: AuditedCheckpoint, check: str, says: str, why: Callable[[StoredModule], str | None]
) -> Iterator[CheckpointFinding]:
    """One finding for all modules with a mistake: experts have it by the thousand."""
    first: tuple[StoredModule, str] | None = None
    count = 0
    for module in checkpoint.modules.values():
        if evidence := why(module):
            first = first or (module, evidence)
            count += 1
    if first:
        yield finding(check, says.format(first[0].name), first[1], first[0].name, count)


def _missing(module: StoredModule) -> str | None:
    parts = module.parts
    stored = f"it is stored as {module.format} and has {', '.join(sorted(parts))}"
    if module.weight is None or not module.is_quantized or module.role is Role.EMBEDDINGS:
        return None
    match module.format:
        case "nvfp4":
            return None if "weight_scale" in parts and module.global_scale else stored
        case "mxfp4" | "mxfp8":
            return None if {"weight_scale", "scales", "weight_scale_inv"} & parts.keys() else stored
        case "fp8":
            has_scale = {"weight_scale", "weight_scale_inv", "scale", "scales"} & parts.keys()
            return None if has_scale else stored
    return None


def _orphan(module: StoredModule) -> str | None:
    scales = {
        "weight_scale",
        "weight_scale_2",
        "weight_global_scale",
        "weight_scale_inv",
    } & module.parts.keys()
    if module.weight is None and scales:
        return f"there is {', '.join(sorted(module.parts))}"
    return None


def _twice(module: StoredModule) -> str | None:
    if {"weight", "weight_packed"} <= module.parts.keys():
        return f"there is {', '.join(sorted(module.parts))}"
    return None


def _wrong_shape(module: StoredModule) -> str | None:
    weight, scale = module.weight, module.parts.get("weight_scale")
    if weight is None or not module.is_quantized:
        return None
    if len(weight.shape) < 2:
        return f"`{weight.name}` is {_shape(weight)}, and a matrix is expected"
    if (shared := module.global_scale) is not None and module.format == "nvfp4":
        allowed = weight.shape[0] if len(weight.shape) == 3 else 1
        if math.prod(shared.shape) not in (1, allowed):
            return f"`{shared.name}` is {_shape(shared)}, and one number is expected"
    if scale is None:
        return None
    *outer, columns = weight.shape
    match module.format:
        case "nvfp4":
            expected = (*outer, columns * 2 // 16)
        case "mxfp4":
            expected = (*outer, columns * 2 // 32)
        case "mxfp8":
            expected = (*outer, columns // 32)
        case "fp8":
            return _fp8_shape(weight, scale)
        case _:
            return None
    if scale.shape != expected:
        return f"`{scale.name}` is {_shape(scale)}, and the weight needs {list(expected)}"
    return None


def _fp8_shape(weight: Tensor, scale: Tensor) -> str | None:
    """A scale for the tensor, for each row, or for each block."""
    rows, columns = weight.shape[-2:]
    outer = math.prod(weight.shape[:-2])
    count = math.prod(scale.shape)
    if count in (1, outer, outer * rows):
        return None
    if len(scale.shape) == len(weight.shape) and scale.shape[:-2] == weight.shape[:-2]:
        blocks = scale.shape[-2:]
        if all(
            0 < block <= size and -(-size // -(-size // block)) == block
            for block, size in zip(blocks, (rows, columns), strict=True)
        ):
            return None
    return f"`{scale.name}` is {_shape(scale)}, and the weight is {_shape(weight)}"


def _wrong_type(module: StoredModule) -> str | None:
    scale, shared = module.parts.get("weight_scale"), module.global_scale
    if module.weight is None:
        return None
    if scale is not None and module.is_quantized and module.format != "int":
        wanted = _SCALE_TYPES.get(module.format, _FLOATS)
        if scale.dtype not in wanted:
            return f"`{scale.name}` is {scale.dtype}, and {module.format} needs {' or '.join(wanted)}"
    if shared is not None and shared.dtype != "F32":
        return f"`{shared.name}` is {shared.dtype}, and engines read it as F32"
    return None


def _numbers(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    contents = checkpoint.contents
    bad = {name: value for name, value in contents.scalars.items() if not (0 < value < math.inf)}
    if bad:
        name, value = next(iter(bad.items()))
        yield finding(
            "scale-not-positive", f"`{name}` is {value:g}", f"its value is {value!r}", name, len(bad)
        )
    broken = {
        name: values for name, values in contents.values.items() if values.negatives or values.not_finite
    }
    if broken:
        name, values = next(iter(broken.items()))
        yield finding(
            "scale-not-positive", f"`{name}` has unusable scales", _counts(values), name, len(broken)
        )
    zeros = {
        name: values
        for name, values in contents.values.items()
        if name not in broken and values.zeros > (_ZERO_SHARE * values.count if _is_packed(name) else 0)
    }
    if zeros:
        name, values = max(zeros.items(), key=lambda item: item[1].zeros / item[1].count)
        yield finding("scale-zeros", f"`{name}` has scales of zero", _counts(values), name, len(zeros))
    full = {
        name: values
        for name, values in contents.values.items()
        if values.at_maximum > max(3, _SATURATED_SHARE * values.count)
    }
    if full:
        name, values = max(full.items(), key=lambda item: item[1].at_maximum / item[1].count)
        evidence = f"{values.at_maximum:,} of {values.count:,} block scales are 448, E4M3's largest"
        yield finding("scale-saturated", f"`{name}` is saturated", evidence, name, len(full))
    yield from check_weights(checkpoint)


def _is_packed(name: str) -> bool:
    """Block scales in E4M3 are zero where the weights of the block are small compared with the rest."""
    return split_name(name)[1] == "weight_scale"


def check_weights(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """What a deep audit read."""
    values = checkpoint.contents.weight_values
    broken = [name for name, summary in values.items() if summary.not_finite]
    if broken:
        count = values[broken[0]].not_finite
        evidence = f"{count:,} of {values[broken[0]].count:,} values are NaN or infinite"
        yield finding(
            "weights-not-finite",
            f"`{broken[0]}` has values that are no numbers",
            evidence,
            broken[0],
            len(broken),
        )
    empty = [
        name for name, summary in values.items() if summary.count > 256 and summary.zeros == summary.count
    ]
    if empty:
        evidence = f"all {values[empty[0]].count:,} values are zero"
        yield finding("weights-all-zero", f"`{empty[0]}` is all zero", evidence, empty[0], len(empty))


def inverted_scales(contents: CheckpointContents) -> list[str]:
    """2688/amax is a divisor in the thousands, amax/2688 a factor under a thousandth."""
    wrong = []
    for name, value in contents.scalars.items():
        part = split_name(name)[1]
        is_factor = part == "weight_global_scale" and 0 < value < 0.5
        if is_factor or (part == "weight_scale_2" and 2 < value < math.inf):
            wrong.append(name)
    return wrong


def _inverted(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    wrong = inverted_scales(checkpoint.contents)
    if wrong:
        name, value = wrong[0], checkpoint.contents.scalars[wrong[0]]
        expects = "the divisor 2688/amax" if name.endswith("global_scale") else "the factor amax/2688"
        evidence = f"its value is {value:g}, and {expects} is expected"
        what = f"`{name}` is the inverse of what engines expect"
        yield finding("scale-inverted", what, evidence, name, len(wrong))


def shared_groups(checkpoint: AuditedCheckpoint) -> Iterator[tuple[str, ...]]:
    """NVFP4 modules that an engine stacks, in its order: it takes the scale of the first for all experts."""
    names = [module.name for module in checkpoint.modules.values() if module.format == "nvfp4"]
    for group in scale_groups(names):
        if len(group) > 1:
            yield tuple(sorted(group, key=scale_partners(group[0]).index))


def differing_groups(checkpoint: AuditedCheckpoint) -> Iterator[tuple[tuple[str, ...], float]]:
    """The modules that share a global scale in engines and not here, with the largest ratio among them."""
    scalars = checkpoint.contents.scalars
    for group in shared_groups(checkpoint):
        values = []
        for name in group:
            scale = checkpoint.modules[name].global_scale
            value = scalars.get(scale.name) if scale else None
            if value is not None and 0 < value < math.inf:
                values.append(value)
        if len(values) > 1 and max(values) / min(values) > SAME_RATIO:
            yield group, max(values) / min(values)


def _shared(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    differing = list(differing_groups(checkpoint))
    if not differing:
        return
    group, ratio = max(differing, key=lambda pair: pair[1])
    total = sum(1 for _ in shared_groups(checkpoint))
    scalars = checkpoint.contents.scalars
    shown = ", ".join(
        f"{name.rpartition('.')[2]} {scalars[scale.name]:g}"
        for name in group
        if (scale := checkpoint.modules[name].global_scale) and scale.name in scalars
    )
    evidence = f"{len(differing):,} of {total:,} groups differ, by up to {ratio:.3g} x: {shown}"
    yield finding(
        "shared-scales-differ",
        f"matrices that engines stack have different global scales, by up to {ratio:.3g} x",
        evidence,
        group[0],
        len(differing),
        "stop" if ratio >= STOP_RATIO else "warn",
    )


def _counts(values: ValueSummary) -> str:
    found = [(values.not_finite, "no numbers"), (values.negatives, "negative"), (values.zeros, "zero")]
    return f"of {values.count:,} values " + ", ".join(
        f"{count:,} are {what}" for count, what in found if count
    )


def _shape(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
