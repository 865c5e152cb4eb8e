"""The checkpoint to quantize: a folder, or a Hub ID in the cache. Reads headers and config only."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from firesteel.edge.checkpoints import FileSource
from firesteel.edge.home import find_home, is_path
from firesteel.edge.hub.cache import find_store, local_snapshot
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.formats import safetensors
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.config import architecture_of_config, language_model_values
from firesteel.facts.model.tensors import Role
from firesteel.values import Value

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_PREFIX_BYTES = 8
_MAX_TEXT_BYTES = 64 * 2**20


class SourceTensor(Value):
    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    role: Role
    file: str
    offset: int
    """Where its data starts in the file."""


class SourceCheckpoint(Value):
    folder: Path
    name: str
    """Of the model: the folder's, or the second part of the Hub ID."""
    origin: str
    """As the user wrote it, for README and recipe."""
    config: Mapping[str, Any]
    architecture: Architecture
    model_type: str
    tensors: tuple[SourceTensor, ...]
    digest: str
    """Changes when any weight file is replaced."""

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)


def open_source(model: str, environ: Mapping[str, str] = os.environ) -> SourceCheckpoint:
    folder, name = _find(model, environ)
    config = _read_config(folder)
    architecture = architecture_of_config(config)
    tensors = tuple(_tensors(folder, len(architecture.layers)))
    if not tensors:
        raise UsageError(f"{folder} holds no tensors", next="download it again")
    return SourceCheckpoint(
        folder,
        name,
        model,
        config,
        architecture,
        language_model_values(config).model_type,
        tensors,
        _digest(folder, tensors),
    )


def _find(model: str, environ: Mapping[str, str]) -> tuple[Path, str]:
    if is_path(model):
        folder = Path(model).expanduser().absolute()
        if folder.suffix == ".gguf":
            raise UsageError(
                f"{folder.name} is a GGUF file; quantize takes the safetensors that it was made from",
                next="firesteel quantize FOLDER --to q4_k_m, for another GGUF of the original",
            )
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "does not exist"
            raise UsageError(f"{folder} {what}", next="firesteel quantize --help")
        return folder, folder.name
    snapshot = local_snapshot(find_store(find_home(environ), environ), model)
    if snapshot is None:
        raise UsageError(f"{model} is not in the cache", next=f"firesteel pull {model} --weights-only")
    return snapshot, model.partition("/")[2] or model


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    if (folder / "adapter_config.json").exists():
        raise UsageError(
            f"{folder} is a LoRA adapter, which engines load next to its base model in 16 bits",
            next="quantize the base model and serve both: firesteel up BASE --adapter NAME=FOLDER; or merge "
            "them first, with merge_and_unload() of peft",
        )
    if not path.is_file():
        raise UsageError(
            f"{folder} has no config.json", next="name a folder with config.json and safetensors"
        )
    if path.stat().st_size > _MAX_TEXT_BYTES:
        raise FiresteelError(f"{path} is larger than any config", next="download it again")
    try:
        config = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FiresteelError(f"{path} is not JSON: {error}", next="download it again") from None
    if not isinstance(config, dict):
        raise FiresteelError(f"{path} is not a JSON object", next="download it again")
    return config


def _tensors(folder: Path, layers: int) -> Iterator[SourceTensor]:
    """All tensors; an index must agree with its shards."""
    index = folder / INDEX
    if index.exists():
        text = index.read_text("utf-8", errors="replace")
        with ExitStack() as opened:

            def shard(name: str) -> FileSource:
                opened.close()  # one at a time
                return opened.enter_context(FileSource(folder / name))

            safetensors.read_shards(text, shard, layers)
        files = safetensors.read_index(INDEX, text)
    elif (folder / SINGLE).exists():
        files = (SINGLE,)
    else:
        raise UsageError(
            f"{folder} has neither {SINGLE} nor {INDEX}",
            next="name a folder with config.json and safetensors",
        )
    for file in files:
        with FileSource(folder / file) as source:
            offset = _PREFIX_BYTES + int.from_bytes(source.read(0, _PREFIX_BYTES), "little")
            for tensor in safetensors.read_header(source, layers):
                yield SourceTensor(
                    tensor.name, tensor.dtype, tensor.shape, tensor.bytes, tensor.role, file, offset
                )
                offset += tensor.bytes


def _digest(folder: Path, tensors: tuple[SourceTensor, ...]) -> str:
    state = hashlib.blake2b(digest_size=16)
    state.update((folder / "config.json").read_bytes())
    for file in sorted({tensor.file for tensor in tensors}):
        status = (folder / file).stat()
        state.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    for tensor in tensors:
        state.update(f"{tensor.name} {tensor.dtype} {tensor.shape} {tensor.offset}\n".encode())
    return state.hexdigest()
