"""A checkpoint as it will be written: the tensors of each file, where their bytes come from, and the texts.

Values only: gigabytes stay where they are, and a change of scales is a table of 256 bytes or a new scalar.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from firesteel.edge.contents import INDEX
from firesteel.facts.formats.safetensors import DTYPE_BITS
from firesteel.facts.model.contents import CheckpointContents, StoredModule, WeightFile, stored_modules
from firesteel.facts.model.tensors import Tensor, role_of
from firesteel.rules.checkpoint.subject import AuditSubject
from firesteel.values import Value, replace


class DraftTensor(Value):
    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    """In bytes."""
    path: Path
    """The file that its bytes come from."""
    start: int
    content: bytes | None = None
    """New bytes in the place of the stored ones."""
    table: bytes | None = None
    """Every stored byte is replaced by the entry of its value."""

    @property
    def is_changed(self) -> bool:
        return self.content is not None or self.table is not None

    def as_tensor(self) -> Tensor:
        return Tensor(self.name, self.dtype, self.shape, self.size)


class DraftFile(Value):
    name: str
    tensors: tuple[DraftTensor, ...]
    origin: Path | None = None
    """The file that has these tensors in this order, so that only changed bytes differ; None: a new file."""


class Draft(Value):
    folder: Path
    """The checkpoint that is repaired."""
    files: tuple[DraftFile, ...]
    config: Mapping[str, Any] | None
    modelopt_config: Mapping[str, Any] | None
    has_index: bool
    texts: Mapping[str, str] = {}
    """Further files that are written."""
    copied: Mapping[str, Path] = {}
    """Further files that are copied from elsewhere."""
    done: tuple[str, ...] = ()
    """What was changed, for the user."""

    def tensors(self) -> Iterator[DraftTensor]:
        for file in self.files:
            yield from file.tensors

    def modules(self) -> dict[str, StoredModule]:
        return stored_modules(tensor.as_tensor() for tensor in self.tensors())

    def with_tensors(self, changed: Mapping[str, DraftTensor], did: str) -> Draft:
        """Tensors of the same name, type and shape with other bytes."""
        files = tuple(
            replace(file, tensors=tuple(changed.get(tensor.name, tensor) for tensor in file.tensors))
            for file in self.files
        )
        return replace(self, files=files, done=(*self.done, did))

    def index_text(self) -> str:
        weight_map = {tensor.name: file.name for file in self.files for tensor in file.tensors}
        total = sum(tensor.size for tensor in self.tensors())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        return json.dumps(index, indent=2) + "\n"

    def all_texts(self) -> dict[str, str]:
        """The files that are written as text, with the index where there is one."""
        texts = dict(self.texts)
        if self.config is not None:
            texts["config.json"] = json.dumps(self.config, indent=2) + "\n"
        if self.modelopt_config is not None:
            texts["hf_quant_config.json"] = json.dumps(self.modelopt_config, indent=2) + "\n"
        if self.has_index or len(self.files) > 1:
            texts[INDEX] = self.index_text()
        return texts


def draft_of(contents: CheckpointContents, folder: Path) -> Draft:
    """The checkpoint as it is, without files that no engine loads."""
    files = tuple(
        DraftFile(
            file.name, tuple(_tensors(folder / file.name, file.data_start, file.tensors)), folder / file.name
        )
        for file in contents.files
        if file.is_listed
    )
    return Draft(folder, files, contents.config, contents.modelopt_config, contents.index is not None)


def contents_of(draft: Draft, before: CheckpointContents) -> CheckpointContents:
    """What an audit will find in the draft; values of scales are those of before."""
    layers = AuditSubject(before).whole_number("num_hidden_layers")
    files = tuple(
        WeightFile(
            file.name,
            sum(tensor.size for tensor in file.tensors),
            tuple(replace(tensor.as_tensor(), role=role_of(tensor.name, layers)) for tensor in file.tensors),
        )
        for file in draft.files
    )
    return replace(before, files=files, config=draft.config, modelopt_config=draft.modelopt_config)


def _tensors(path: Path, at: int, tensors: Iterable[Tensor]) -> Iterator[DraftTensor]:
    for tensor in tensors:
        yield DraftTensor(tensor.name, tensor.dtype, tensor.shape, tensor.bytes, path, at)
        at += tensor.bytes


def in_file_order(tensors: Iterable[DraftTensor]) -> tuple[DraftTensor, ...]:
    """Wide types first, then by name, as the reference library writes them: every tensor is aligned."""
    return tuple(sorted(tensors, key=lambda tensor: (-DTYPE_BITS[tensor.dtype], tensor.name)))
