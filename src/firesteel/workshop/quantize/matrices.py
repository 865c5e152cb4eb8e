"""The tensors of a checkpoint -> matrices to quantize, tensors to keep with the reason, what stops the run.

Experts that a family stores in one 3-D tensor become one matrix each, cut along the axis that the family
uses: engines load one matrix for each expert. A layout that is not known is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import prod
from typing import Any

from firesteel.errors import Stopped, UsageError
from firesteel.facts.model.quantization import ModulePatterns
from firesteel.facts.model.tensors import Role, quantize_policy, scale_partners, split_leaf
from firesteel.values import Value, replace
from firesteel.workshop.quantize.formats import QuantizedFormat, Scheme, why_not
from firesteel.workshop.quantize.source import SourceCheckpoint, SourceTensor

PLAIN_DTYPES = ("BF16", "F16", "F32")
_QUANTIZED_ROLES = (Role.ATTENTION, Role.DENSE_MLP, Role.ROUTED_EXPERTS, Role.SHARED_EXPERT, Role.HEAD)
_SMALL = 2**18
"""Elements. A smaller tensor of unknown role is kept without a question: it costs next to nothing."""
_SHOWN = 5


class BlockScale(Value):
    """The scales of FP8 in blocks, one for each block."""

    tensor: SourceTensor
    block: tuple[int, int]
    """Rows and columns, as `weight_block_size` has them; blocks at the edges may be smaller."""


class Matrix(Value):
    """A matrix of the result, [outputs, inputs], and where it is in the source."""

    module: str
    role: Role
    scheme: Scheme
    shape: tuple[int, int]
    source: SourceTensor
    expert: int = 0
    first: int = 0
    """Its first output among those of its tensor: the up follows the gate."""
    outputs: int = 0
    """All outputs in the 2-D tensor, or in one expert of the 3-D one."""
    transposed: bool = False
    block_scale: BlockScale | None = None
    """Of FP8 in blocks, which is dequantized first."""

    @property
    def elements(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def is_bf16(self) -> bool:
        """FP8 becomes BF16 before anything else."""
        return self.source.dtype in ("BF16", "F8_E4M3")


class KeptTensor(Value):
    source: SourceTensor
    why: str
    block_scale: BlockScale | None = None
    cut_from: str | None = None
    """The 3-D tensor of which `source` is a part."""

    @property
    def dtype(self) -> str:
        return "BF16" if self.block_scale else self.source.dtype

    @property
    def bytes(self) -> int:
        return self.source.bytes * 2 if self.block_scale else self.source.bytes


class SortedTensors(Value):
    matrices: tuple[Matrix, ...]
    kept: tuple[KeptTensor, ...]


def sort_tensors(source: SourceCheckpoint, format: QuantizedFormat, keep: Sequence[str]) -> SortedTensors:
    """Raises Stopped when a matrix would stay unquantized by accident."""
    _refuse_quantized(source, format)
    family = quantize_policy().family(source.model_type)
    if family and family.refuse:
        raise UsageError(
            f"`{source.model_type}` cannot be quantized: {family.refuse}", next="firesteel models"
        )
    patterns = [part.strip() for pattern in keep for part in pattern.split(",") if part.strip()]
    _require_matches(source, patterns)
    sorter = _Sorter(source, format, ModulePatterns.parse(patterns))
    parts = list(sorter.parts())
    matrices = [part for part in parts if isinstance(part, Matrix)]
    kept = [part for part in parts if isinstance(part, KeptTensor)]
    _stop_for(sorter.accidents, format)
    if not matrices:
        raise UsageError(f"nothing of {source.name} would be quantized", next="firesteel quantize --help")
    _require_whole_groups(matrices, kept)
    return SortedTensors(tuple(matrices), tuple(kept))


def _require_matches(source: SourceCheckpoint, patterns: Sequence[str]) -> None:
    """What a pattern was meant to keep would be quantized if it is misspelled."""
    modules = {split_leaf(tensor.name)[0]: tensor for tensor in source.tensors}
    for pattern in patterns:
        if any(map(ModulePatterns.parse([pattern]).match, modules)):
            continue
        leaves = {module.rpartition(".")[2] for module, tensor in modules.items() if len(tensor.shape) > 1}
        close = get_close_matches(pattern.rpartition(".")[2], sorted(leaves), 1)
        raise UsageError(
            f"--keep {pattern} matches no module of {source.name}",
            next=f"--keep {close[0]}" if close else f"one of: {', '.join(sorted(leaves)[:12])}",
        )


def _refuse_quantized(source: SourceCheckpoint, format: QuantizedFormat) -> None:
    section = source.config.get("quantization_config")
    if (source.folder / "hf_quant_config.json").exists() and section is None:
        section = {"quant_method": "modelopt"}
    if not isinstance(section, Mapping):
        return
    method = str(section.get("quant_method") or section.get("quant_algo"))[:40]
    if method != "fp8" or not section.get("weight_block_size"):
        raise UsageError(
            f"{source.name} is already quantized ({method}); quantizing it again would add up two errors",
            next="firesteel quantize the BF16 original",
        )
    if format.name == "fp8-block":
        raise UsageError(f"{source.name} already has FP8 weights in blocks", next="--to nvfp4")
    _block_size(section)


def _block_size(section: Mapping[str, Any]) -> tuple[int, int]:
    size = section["weight_block_size"]
    match size:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise UsageError(
        f"its weight_block_size is {json.dumps(size)[:80]}, not the rows and columns of a block",
        next="correct config.json, for example: [128, 128]",
    )


class _Sorter:
    def __init__(self, source: SourceCheckpoint, format: QuantizedFormat, keep: ModulePatterns) -> None:
        self._source, self._format, self._keep = source, format, keep
        self._by_name = {tensor.name: tensor for tensor in source.tensors}
        family = quantize_policy().family(source.model_type)
        self._experts = family.experts if family else None
        self._is_tied = source.config.get("tie_word_embeddings") is True
        self.accidents: list[str] = []

    def parts(self) -> Iterator[Matrix | KeptTensor]:
        for tensor in self._source.tensors:
            module, leaf = split_leaf(tensor.name)
            if leaf == "weight_scale_inv" and f"{module}.weight" in self._by_name:
                continue  # goes with its weight
            scale = self._block_scale(tensor, module) if leaf == "weight" else None
            if why := self._why_kept(tensor, module):
                is_transposed = self._experts is not None and self._experts.transposed
                experts = [] if is_transposed else self._experts_of(tensor, module)
                yield from (_kept_expert(expert, why) for expert in experts)
                if not experts:
                    yield KeptTensor(tensor, why, scale)
            elif self._is_fused(module, tensor):
                yield from self._checked_experts(tensor, module)
            elif leaf == "weight" and len(tensor.shape) == 2 and tensor.role in _QUANTIZED_ROLES:
                rows, columns = tensor.shape
                yield from self._checked(
                    Matrix(module, tensor.role, self._scheme(tensor), (rows, columns), tensor,
                           outputs=rows, block_scale=scale)
                )  # fmt: skip
            else:
                self._refuse_accident(tensor)
                yield KeptTensor(tensor, "not a matrix" if len(tensor.shape) < 2 else "small", scale)

    def _block_scale(self, tensor: SourceTensor, module: str) -> BlockScale | None:
        """Where it does not fit its weight, `accidents` says so: wrong scales make other weights."""
        scale = self._by_name.get(f"{module}.weight_scale_inv")
        if scale is None:
            return None
        section = self._source.config.get("quantization_config")
        if not isinstance(section, Mapping) or not section.get("weight_block_size"):
            self.accidents.append(f"`{scale.name}`: config.json has no weight_block_size")
            return None
        block = _block_size(section)
        blocks = tuple(-(-size // step) for size, step in zip(tensor.shape, block, strict=False))
        if len(tensor.shape) != 2 or scale.shape != blocks:
            rows, columns = block
            self.accidents.append(
                f"`{scale.name}` is {list(scale.shape)}, but {list(tensor.shape)} in blocks of {rows} x "
                f"{columns} has {list(blocks)}"
            )
        return BlockScale(scale, block)

    def _why_kept(self, tensor: SourceTensor, module: str) -> str | None:
        if self._keep.match(module):
            return "--keep"
        if tensor.role is Role.HEAD and self._is_tied:
            return "the head is the embedding table"
        rule = quantize_policy().kept_by(module, tensor.role, self._source.model_type, self._format.name)
        return rule.why if rule else None

    def _scheme(self, tensor: SourceTensor) -> Scheme:
        return self._format.scheme_of(tensor.role)

    def _is_fused(self, module: str, tensor: SourceTensor) -> bool:
        if len(tensor.shape) != 3 or not self._experts:
            return False
        parent, _, own = module.rpartition(".")
        return parent.endswith("experts") and own in (self._experts.gate_up, self._experts.down)

    def _checked_experts(self, tensor: SourceTensor, module: str) -> Iterator[Matrix]:
        experts = self._experts_of(tensor, module)
        if not experts:
            about = self._source.architecture
            self.accidents.append(
                f"`{tensor.name}` is {list(tensor.shape)}, but a `{self._source.model_type}` with a hidden "
                f"size of {about.hidden_size:,} and {about.experts} experts has its experts in another shape"
            )
        for expert in experts:
            yield from self._checked(expert)

    def _experts_of(self, tensor: SourceTensor, module: str) -> list[Matrix]:
        """Empty where it holds no experts, or along an axis that the config contradicts."""
        if not self._is_fused(module, tensor) or self._experts is None:
            return []
        experts, second, third = tensor.shape
        is_transposed = self._experts.transposed
        outputs, inputs = (third, second) if is_transposed else (second, third)
        parent, _, own = module.rpartition(".")
        parts = ("gate_proj", "up_proj") if own == self._experts.gate_up else ("down_proj",)
        hidden, count = self._source.architecture.hidden_size, self._source.architecture.experts
        if hidden != (inputs if len(parts) == 2 else outputs) or outputs % len(parts) or experts != count:
            return []
        rows = outputs // len(parts)
        return [
            Matrix(
                f"{parent}.{expert}.{part}", tensor.role, self._scheme(tensor), (rows, inputs), tensor,
                expert, number * rows, outputs, is_transposed,
            )
            for expert in range(experts)
            for number, part in enumerate(parts)
        ]  # fmt: skip

    def _checked(self, matrix: Matrix) -> Iterator[Matrix]:
        dtype, reason = matrix.source.dtype, why_not(matrix.scheme, matrix.shape)
        if dtype == "F8_E4M3" and matrix.block_scale is None:
            reason = "it is FP8 and has no `weight_scale_inv`"
        elif dtype not in (*PLAIN_DTYPES, "F8_E4M3"):
            reason = f"its dtype is {dtype}"
        if reason:
            self.accidents.append(f"`{matrix.source.name}` cannot be {matrix.scheme}: {reason}")
        else:
            yield matrix

    def _refuse_accident(self, tensor: SourceTensor) -> None:
        if len(tensor.shape) < 2 or prod(tensor.shape) < _SMALL:
            return
        what = (
            f"the experts of `{self._source.model_type}` in one tensor"
            if len(tensor.shape) > 2
            else "what it is"
        )
        self.accidents.append(f"`{tensor.name}` {list(tensor.shape)}: firesteel does not know {what}")


def _kept_expert(expert: Matrix, why: str) -> KeptTensor:
    """Its rows under their own name: engines load one matrix for each expert of an MTP layer."""
    whole = expert.source
    row_bytes = whole.bytes // (whole.shape[0] * whole.shape[1])
    first = expert.expert * expert.outputs + expert.first
    part = replace(
        whole, name=f"{expert.module}.weight", shape=expert.shape, bytes=expert.shape[0] * row_bytes,
        offset=whole.offset + first * row_bytes,
    )  # fmt: skip
    return KeptTensor(part, why, cut_from=whole.name)


def _stop_for(accidents: Sequence[str], format: QuantizedFormat) -> None:
    if not accidents:
        return
    more = f"\n... and {len(accidents) - _SHOWN:,} more" if len(accidents) > _SHOWN else ""
    shown = "\n".join(accidents[:_SHOWN])
    first = accidents[0].split("`")[1]
    raise Stopped(
        f"these would stay as they are, although no rule keeps them:\n{shown}{more}",
        next=f"--keep {split_leaf(first)[0]}, if it is meant; or another format than {format.name}",
    )


def _require_whole_groups(matrices: Sequence[Matrix], kept: Sequence[KeptTensor]) -> None:
    """What an engine joins must be stored alike: it refuses to load q in 4 bits with k in 16."""
    modules = {split_leaf(tensor.source.name)[0] for tensor in kept if len(tensor.source.shape) > 1}
    for matrix in matrices:
        for partner in scale_partners(matrix.module):
            if partner in modules:
                raise UsageError(
                    f"`{partner}` is kept and `{matrix.module}` is not, but engines load them as one",
                    next=f"--keep '{matrix.module.rpartition('.')[0]}'",
                )
