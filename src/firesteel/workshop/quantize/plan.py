"""A checkpoint and a format -> what will be written, to the byte: groups, files, config.json."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from firesteel.facts.formats import safetensors
from firesteel.facts.model.tensors import Role, Tensor, scale_groups, split_leaf
from firesteel.values import Value
from firesteel.workshop.quantize.formats import (
    FORMATS,
    OutputTensor,
    QuantizedFormat,
    Scheme,
    is_nvfp4,
    outputs,
    quantization_config,
)
from firesteel.workshop.quantize.matrices import KeptTensor, Matrix, sort_tensors
from firesteel.workshop.quantize.source import SINGLE, SourceCheckpoint, SourceTensor

MAX_SHARD_BYTES = 5_000_000_000
MAX_SHARD_TENSORS = 2**18
"""A header of about 40 MB; the safetensors library reads none above 100 MB."""
COMPRESSED_TENSORS = "0.19.0"
"""The release whose layout is written."""
_PLAN_VERSION = 1
"""Goes up when the same command would write other bytes, so that no run continues an older one."""


class MatrixGroup(Value):
    """Matrices that share a global scale; without one, a matrix by itself."""

    matrices: tuple[Matrix, ...]

    @property
    def elements(self) -> int:
        return sum(matrix.elements for matrix in self.matrices)


Item = MatrixGroup | KeptTensor


class OutputFile(Value):
    name: str
    header: bytes
    offsets: Mapping[str, int]
    """Where the data of each tensor starts in the file."""
    bytes: int


class QuantizationPlan(Value):
    source: SourceCheckpoint
    format: QuantizedFormat
    keep: tuple[str, ...]
    items: tuple[Item, ...]
    """In the order of the source."""
    files: tuple[OutputFile, ...]
    ignore: tuple[str, ...]
    config: Mapping[str, Any]

    @property
    def matrices(self) -> Iterator[Matrix]:
        return (matrix for item in self.items if isinstance(item, MatrixGroup) for matrix in item.matrices)

    @property
    def kept(self) -> Iterator[KeptTensor]:
        return (item for item in self.items if isinstance(item, KeptTensor))

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def tensors(self) -> Iterator[Tensor]:
        """What will be written, as `facts` counts it."""
        for item in self.items:
            for role, tensor in _written(item):
                yield Tensor(tensor.name, tensor.dtype, tensor.shape, tensor.bytes, role)

    @property
    def digest(self) -> str:
        state = hashlib.blake2b(digest_size=16)
        state.update(f"{_PLAN_VERSION} {self.source.digest} {self.format.name} {self.keep}\n".encode())
        for file in self.files:
            state.update(file.header)
        return state.hexdigest()


def plan_quantization(source: SourceCheckpoint, to: str, keep: Sequence[str] = ()) -> QuantizationPlan:
    format = FORMATS[to]
    found = sort_tensors(source, format, keep)
    items = tuple(_items(source, found.matrices, found.kept))
    ignore = _ignore(found.matrices, found.kept)
    config = {key: value for key, value in source.config.items() if key != "quantization_config"}
    config["quantization_config"] = quantization_config(_targets(found.matrices), ignore, COMPRESSED_TENSORS)
    return QuantizationPlan(source, format, tuple(keep), items, tuple(_files(items)), ignore, config)


def _items(
    source: SourceCheckpoint, matrices: Sequence[Matrix], kept: Sequence[KeptTensor]
) -> Iterator[Item]:
    """In the order of the source; a group where its first matrix is, so that reading goes forward."""
    by_module = {matrix.module: matrix for matrix in matrices}
    groups: dict[str, MatrixGroup] = {}
    for names in scale_groups(by_module):
        own = [by_module[name] for name in names]
        parts = [own] if all(is_nvfp4(matrix.scheme) for matrix in own) else [[matrix] for matrix in own]
        for part in parts:
            groups[part[0].module] = MatrixGroup(tuple(part))
    by_tensor: dict[str, list[Matrix]] = {}
    for matrix in matrices:
        by_tensor.setdefault(matrix.source.name, []).append(matrix)
    keeps: dict[str, list[KeptTensor]] = {}
    for own_tensor in kept:
        keeps.setdefault(own_tensor.cut_from or own_tensor.source.name, []).append(own_tensor)
    for tensor in source.tensors:
        yield from keeps.get(tensor.name, ())
        for matrix in by_tensor.get(tensor.name, ()):
            if matrix.module in groups:
                yield groups.pop(matrix.module)


def _written(item: Item) -> Iterator[tuple[Role, OutputTensor]]:
    if isinstance(item, KeptTensor):
        yield item.source.role, OutputTensor(item.source.name, item.dtype, item.source.shape, item.bytes)
        return
    for matrix in item.matrices:
        for tensor in outputs(matrix.module, matrix.scheme, matrix.shape, matrix.is_bf16):
            yield matrix.role, tensor


# --- files ---


def _files(items: Iterable[Item]) -> Iterator[OutputFile]:
    shards: list[list[OutputTensor]] = [[]]
    size = 0
    for item in items:
        own = [tensor for _, tensor in _written(item)]
        own_bytes = sum(tensor.bytes for tensor in own)
        is_full = size + own_bytes > MAX_SHARD_BYTES or len(shards[-1]) + len(own) > MAX_SHARD_TENSORS
        if shards[-1] and is_full:
            shards.append([])
            size = 0
        shards[-1] += own
        size += own_bytes
    for number, tensors in enumerate(shards, 1):
        name = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        yield _file(name, tensors)


_ALIGNMENT = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}


def _file(name: str, tensors: Sequence[OutputTensor]) -> OutputFile:
    """Wide dtypes first, as the reference library has it: then every tensor is aligned."""
    ordered = sorted(tensors, key=lambda tensor: -_ALIGNMENT.get(tensor.dtype, 1))
    front = safetensors.front((tensor.name, tensor.dtype, tensor.shape, tensor.bytes) for tensor in ordered)
    *starts, end = accumulate((tensor.bytes for tensor in ordered), initial=len(front))
    return OutputFile(name, front, dict(zip((tensor.name for tensor in ordered), starts, strict=True)), end)


# --- config.json ---

_NUMBER = re.compile(r"\d+")
_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.\d+\.(\w+)\.")
_MAX_PATTERNS = 24
"""Of regular expressions: a longer list is written out by name."""
_OUTER = ("model", "language_model")


def _ignore(matrices: Sequence[Matrix], kept: Sequence[KeptTensor]) -> tuple[str, ...]:
    """The modules that engines must load as they are: patterns that match no quantized module, else names."""
    roles = {
        module: tensor.source.role
        for tensor in kept
        if tensor.source.role not in (Role.EMBEDDINGS, Role.NORMS)
        for module in _modules(tensor.source)
    }
    quantized = list(dict.fromkeys(_NUMBER.sub("0", matrix.module) for matrix in matrices))
    exact = [matrix.module for matrix in matrices if _LAYER.search(matrix.module)]
    entries: dict[str, None] = {} if any(m.role is Role.HEAD for m in matrices) else {"lm_head": None}
    patterns: dict[str, re.Pattern[str]] = {}
    for module, role in roles.items():
        pattern = _pattern(module, role)
        if pattern in patterns and patterns[pattern].match(module):
            continue
        compiled = re.compile(pattern)
        names = quantized if role is not Role.DRAFTER else exact
        if not _NUMBER.search(module) or any(map(compiled.match, names)) or len(patterns) == _MAX_PATTERNS:
            entries[module] = None
        else:
            patterns[pattern] = compiled
            entries[f"re:{pattern}"] = None
    return tuple(entries)


def _modules(tensor: SourceTensor) -> Iterator[str]:
    """The matrices that an engine makes of a tensor."""
    module = split_leaf(tensor.name)[0]
    parent = module.rpartition(".")[0]
    if len(tensor.shape) == 2:
        yield module
    elif len(tensor.shape) == 3 and parent.endswith("experts"):
        for expert in range(tensor.shape[0]):
            yield from (f"{parent}.{expert}.{part}_proj" for part in ("gate", "up", "down"))


def _pattern(module: str, role: Role) -> str:
    if role in (Role.TOWER, Role.DRAFTER):
        parts = [part for part in module.split(".") if part not in _OUTER]
        if parts[0] != "layers":  # MTP layers that are numbered after the last layer go by name
            return rf".*{re.escape(parts[0])}\..*"
    own = module.split("layers.", 1)[-1]
    own = _NUMBER.sub("#", re.escape(own)).replace("\\#", "#").replace("#", r"\d+")
    return rf".*{own}$"


def _targets(matrices: Sequence[Matrix]) -> dict[Scheme, list[str]]:
    """One scheme takes every Linear. Several are distinguished by the block of the layer that they are in."""
    schemes = list(dict.fromkeys(matrix.scheme for matrix in matrices))
    if len(schemes) == 1:
        # Engines join experts that are called w1 and w3 into a module that is not a Linear.
        others = any(matrix.module.endswith(".w1") for matrix in matrices)
        return {schemes[0]: ["Linear", *(["RoutedExperts"] if others else [])]}
    blocks: dict[Scheme, dict[str, None]] = {scheme: {} for scheme in schemes}
    for matrix in matrices:
        blocks[matrix.scheme][_block(matrix.module)] = None
    shared = set.intersection(*(set(names) for names in blocks.values()))
    if shared:
        return {scheme: [m.module for m in matrices if m.scheme == scheme] for scheme in schemes}
    return {scheme: list(names) for scheme, names in blocks.items()}


def _block(module: str) -> str:
    found = _LAYER.search(module)
    return rf"re:.*\.{found[1]}\..*" if found else f"re:.*{re.escape(module.rpartition('.')[2])}$"
