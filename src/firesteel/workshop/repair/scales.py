"""One global scale for matrices that engines stack, in closed form; and tensors from another checkpoint.

A weight is `code * block scale / divisor`. Another divisor means other block scales, `scale * new / old`,
rounded to E4M3 again. Scaling by a power of two is exact, so the new divisor is one of the group's own times
a power of two, the largest at which no block scale exceeds 448. Which of them costs the least is known before
anything is written, from how often each of the 256 block scales occurs: that is an eighth of the bytes. The
4-bit payload stays as it is. `graft` takes from another checkpoint of the same model what is absent or
damaged here.
"""

from __future__ import annotations

import math
import shlex
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from firesteel.errors import FiresteelError
from firesteel.facts.formats.number_bytes import E4M3_MAX, E4M3_VALUES
from firesteel.facts.model.contents import TOKENIZER_FILES, CheckpointContents, StoredModule, split_name
from firesteel.facts.model.tensors import Role, role_of
from firesteel.rules.checkpoint.audited import AuditedCheckpoint
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.rules.checkpoint.scales import differing_groups, inverted_scales
from firesteel.values import Value, replace
from firesteel.workshop.repair.draft import Draft, DraftTensor, in_file_order

ReadTensor = Callable[[DraftTensor], bytes]
_VALUES = E4M3_VALUES
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
    subject = AuditedCheckpoint(contents)
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
    subject: AuditedCheckpoint,
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
    subject: AuditedCheckpoint, matrix: _Matrix, divisor: float, tensors: Mapping[str, DraftTensor]
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


# --- tensors from another checkpoint ---

_SMALL_FILES = (*TOKENIZER_FILES, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_PLAIN = {
    "router-quantized": Role.ROUTER, "embeddings-quantized": Role.EMBEDDINGS, "norms-quantized": Role.NORMS,
    "mtp-quantized": Role.DRAFTER,
}  # fmt: skip
_BROKEN_SCALES = ("scale-missing", "scale-shape", "scale-dtype", "scale-not-positive", "weights-not-finite")


def graft(
    draft: Draft,
    contents: CheckpointContents,
    findings: Iterable[CheckpointFinding],
    other: Draft,
    other_contents: CheckpointContents,
) -> Draft:
    checks = {found.check for found in findings}
    named = {
        split_name(found.tensor)[0] for found in findings if found.check in _BROKEN_SCALES and found.tensor
    }
    theirs = {tensor.name: tensor for tensor in other.tensors()}
    their_modules, modules = other.modules(), draft.modules()
    wanted = _replaced(AuditedCheckpoint(contents), checks, named, their_modules)
    wanted |= {
        name for name in their_modules if name not in modules and _belongs(name, other_contents, checks)
    }
    if not wanted and "tokenizer-missing" not in checks and "tokenizer-damaged" not in checks:
        raise FiresteelError(
            f"{other.folder} has nothing that {draft.folder} lacks",
            next=f"firesteel audit {shlex.quote(str(draft.folder))}",
        )
    added = [theirs[part.name] for name in sorted(wanted) for part in their_modules[name].parts.values()]
    copied = {
        name: other.folder / name
        for name in _SMALL_FILES
        if (other.folder / name).is_file() and not (draft.folder / name).exists()
    }
    if checks & {"tokenizer-damaged", "tokenizer-missing"}:
        copied |= {name: other.folder / name for name in _SMALL_FILES if (other.folder / name).is_file()}
    return _with(draft, wanted, added, copied)


def _replaced(
    subject: AuditedCheckpoint, checks: set[str], named: set[str], theirs: dict[str, StoredModule]
) -> set[str]:
    """Modules that are here and damaged, where the other checkpoint has them sound."""
    roles = {role for check, role in _PLAIN.items() if check in checks}
    plain = {
        module.name
        for module in subject.modules.values()
        if module.role in roles and module.is_quantized and module.name in theirs
        and not theirs[module.name].is_quantized
    }  # fmt: skip
    broken = {
        name
        for name in named
        if name in theirs and name in subject.modules and theirs[name].format == subject.modules[name].format
    }
    return plain | broken


def _belongs(name: str, other: CheckpointContents, checks: set[str]) -> bool:
    """What is absent here: MTP layers only where they are missed."""
    if role_of(name, AuditedCheckpoint(other).whole_number("num_hidden_layers")) is Role.DRAFTER:
        return bool(checks & {"mtp-missing", "mtp-quantized"})
    return bool(
        checks & {"layers-missing", "experts-missing", "tensor-missing", "head-missing", "scale-missing"}
    )


def _with(draft: Draft, modules: set[str], added: list[DraftTensor], copied: dict[str, Path]) -> Draft:
    """New parts of a module replace the old ones in their file; those of a new module go into the last."""
    names = {tensor.name for tensor in added}
    home: dict[str, str] = {}
    files = []
    for file in draft.files:
        kept = [
            tensor
            for tensor in file.tensors
            if split_name(tensor.name)[0] not in modules and tensor.name not in names
        ]
        for tensor in file.tensors:
            module = split_name(tensor.name)[0]
            if module in modules:
                home.setdefault(module, file.name)
        is_same = len(kept) == len(file.tensors)
        files.append(file if is_same else replace(file, tensors=tuple(kept), origin=None))
    last = files[-1].name
    placed = []
    for file in files:
        own = [tensor for tensor in added if home.get(split_name(tensor.name)[0], last) == file.name]
        is_changed = bool(own) or file.origin is None
        placed.append(
            replace(file, tensors=in_file_order((*file.tensors, *own)), origin=None) if is_changed else file
        )
    did = f"{len(added):,} tensors of {len(modules):,} modules" if added else ""
    small = ", ".join(sorted(copied))
    what = " and ".join(text for text in (did, small) if text)
    return replace(
        draft, files=tuple(placed), copied={**draft.copied, **copied},
        done=(*draft.done, f"{what} taken from the other checkpoint"),
    )  # fmt: skip
