"""One global scale for matrices that engines stack, in closed form: the 4-bit payload stays as it is.

A weight is `code * block scale / divisor`. Another divisor means other block scales, `scale * new / old`,
rounded to E4M3 again. Scaling by a power of two is exact, so the new divisor is one of the group's own times
a power of two, the largest at which no block scale exceeds 448. Which of them costs the least is known before
anything is written, from how often each of the 256 block scales occurs: that is an eighth of the bytes.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from firesteel.facts.formats.number_bytes import E4M3_MAX, e4m3_values
from firesteel.facts.model.contents import CheckpointContents, split_name
from firesteel.rules.checkpoint.scales import differing_groups, inverted_scales
from firesteel.rules.checkpoint.subject import AuditSubject
from firesteel.values import Value, replace
from firesteel.workshop.repair.draft import Draft, DraftTensor

ReadTensor = Callable[[DraftTensor], bytes]
_VALUES = e4m3_values()
_POSITIVE = _VALUES[:127]
"""The codes of positive numbers, in ascending order; 127 is not a number."""


class ReconciledGroup(Value):
    modules: tuple[str, ...]
    ratio: float
    divisor: float
    """That all of them get."""
    error_before: float
    """Relative, against what the weights mean, where an engine uses the first scale for all."""
    error_after: float
    """What rounding the block scales again costs."""


class _Matrix(Value):
    name: str
    divisor: float
    is_factor: bool
    """ModelOpt stores the inverse of the divisor."""
    counts: Counter[int]
    """How often each block scale occurs."""

    @property
    def highest(self) -> float:
        return max((_VALUES[code] for code, count in self.counts.items() if count), default=0.0)

    @property
    def energy(self) -> float:
        """Of the weights, up to a factor that all blocks share: the largest weight of a block is always 6."""
        return sum(count * (_VALUES[code] / self.divisor) ** 2 for code, count in self.counts.items())

    def error(self, divisor: float) -> float:
        """Squared, in the same unit, with block scales rounded for another divisor."""
        table = scale_table(divisor / self.divisor)
        return sum(
            count * (_VALUES[table[code]] / divisor - _VALUES[code] / self.divisor) ** 2
            for code, count in self.counts.items()
        )


def reconcile(
    draft: Draft, contents: CheckpointContents, read: ReadTensor
) -> tuple[Draft, tuple[ReconciledGroup, ...]]:
    """Groups that a new divisor does not make better stay as they are."""
    subject = AuditSubject(contents)
    tensors = {tensor.name: tensor for tensor in draft.tensors()}
    scalars = {**contents.scalars}
    changed: dict[str, DraftTensor] = {}
    for name in inverted_scales(contents):
        scalars[name] = 1 / scalars[name]
        changed[name] = _with_scalar(tensors[name], scalars[name])
    inverted = len(changed)
    subject.contents = replace(contents, scalars=scalars)
    groups = []
    for modules, ratio in differing_groups(subject):
        matrices = [_matrix(subject, name, scalars, tensors, read) for name in modules]
        found = [matrix for matrix in matrices if matrix is not None]
        if len(found) != len(modules):
            continue
        group = _reconciled(found, ratio)
        if group.error_after >= group.error_before:
            continue
        groups.append(group)
        for matrix in found:
            changed |= _rescaled(subject, matrix, group.divisor, tensors)
    did = f"{len(groups):,} groups of stacked matrices share a global scale"
    if inverted:
        did = f"{inverted:,} global scales were inverted" + (f"; {did}" if groups else "")
    return (draft.with_tensors(changed, did) if changed else draft), tuple(groups)


def _matrix(
    subject: AuditSubject,
    name: str,
    scalars: Mapping[str, float],
    tensors: Mapping[str, DraftTensor],
    read: ReadTensor,
) -> _Matrix | None:
    module = subject.modules[name]
    shared, blocks = module.global_scale, module.parts.get("weight_scale")
    if shared is None or blocks is None or shared.name not in scalars or blocks.dtype != "F8_E4M3":
        return None
    value = scalars[shared.name]
    counts = Counter(read(tensors[blocks.name]))
    if not 0 < value < math.inf or any(code > 126 for code in counts):
        return None
    is_factor = split_name(shared.name)[1] == "weight_scale_2"
    return _Matrix(name, 1 / value if is_factor else value, is_factor, counts)


def _reconciled(matrices: Sequence[_Matrix], ratio: float) -> ReconciledGroup:
    limits = [E4M3_MAX / matrix.highest * matrix.divisor for matrix in matrices if matrix.highest]
    limit = min(limits, default=matrices[0].divisor)
    candidates = {
        matrix.divisor * 2.0 ** math.floor(math.log2(limit / matrix.divisor) + 1e-9) for matrix in matrices
    }
    best = min(candidates, key=lambda divisor: sum(matrix.error(divisor) for matrix in matrices))
    divisor = struct.unpack("<f", struct.pack("<f", best))[0]
    energy = sum(matrix.energy for matrix in matrices) or 1.0
    first = matrices[0].divisor
    before = sum(matrix.energy * (1 - matrix.divisor / first) ** 2 for matrix in matrices)
    after = sum(matrix.error(divisor) for matrix in matrices)
    return ReconciledGroup(
        tuple(matrix.name for matrix in matrices),
        ratio,
        divisor,
        math.sqrt(before / energy),
        math.sqrt(after / energy),
    )


def _rescaled(
    subject: AuditSubject, matrix: _Matrix, divisor: float, tensors: Mapping[str, DraftTensor]
) -> dict[str, DraftTensor]:
    module = subject.modules[matrix.name]
    shared, blocks = module.global_scale, module.parts["weight_scale"]
    assert shared is not None
    value = 1 / divisor if matrix.is_factor else divisor
    return {
        shared.name: _with_scalar(tensors[shared.name], value),
        blocks.name: replace(tensors[blocks.name], table=scale_table(divisor / matrix.divisor)),
    }


def _with_scalar(tensor: DraftTensor, value: float) -> DraftTensor:
    return replace(tensor, content=struct.pack("<f", value))


def scale_table(factor: float) -> bytes:
    """For every E4M3 code, the code of its value times a factor: nearest, ties to even, at most 448."""
    codes = [_nearest(value * factor) for value in _POSITIVE]
    return bytes([*codes, 127, *(code | 0x80 for code in codes), 255])


def _nearest(value: float) -> int:
    low, high = 0, len(_POSITIVE) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _POSITIVE[middle] <= value else (low, middle)
    below, above = value - _POSITIVE[low], _POSITIVE[high] - value
    if value >= _POSITIVE[high] or above < below or (above == below and high % 2 == 0):
        return high
    return low
