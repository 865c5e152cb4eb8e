"""Opens checkpoints that no catalog has: a GGUF file, a folder of safetensors, a repository on the Hub.

Only headers are read, from the Hub by ranges: megabytes before deciding on gigabytes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from glob import escape
from pathlib import Path
from typing import Literal

from firesteel.edge.files.byte_sources import FileSource, UrlSource
from firesteel.edge.files.home import find_home
from firesteel.edge.http.sync_client import Deadline, bearer, get_file
from firesteel.edge.hub.cache import find_store, local_snapshot, repository_of
from firesteel.errors import FiresteelError, UsageError, printable
from firesteel.facts.formats import gguf, safetensors
from firesteel.facts.formats.byte_source import BadHeader, ByteSource
from firesteel.facts.formats.gguf_architecture import architecture_of_gguf
from firesteel.facts.model.architecture import Checkpoint, UnknownArchitecture
from firesteel.facts.model.config import architecture_of_config, as_llama
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.quantization import (
    Quantization,
    UnknownQuantization,
    read_quantization,
    weights_of_config,
)
from firesteel.facts.model.tensors import Weights, sum_weights
from firesteel.facts.model.typical import heavier_weights, is_gguf, typical_weights

_HUB = "https://huggingface.co"
_POINTER = b"version https://git-lfs.github.com/"
_MAX_POINTER = 1024
"""A pointer of git-lfs is smaller.
https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md, seen 2026-11-15"""
_MAX_TEXT = 64 * 2**20
"""The largest index of shards known is under 20 MB."""


def open_path(name: str, quant: str | None = None, *, assume_llama: bool = False) -> Checkpoint:
    """Opens a path. `quant` says how a config's weights are stored; weight files say it themselves.

    `assume_llama`: a family that firesteel does not know is taken for one like Llama, and its plan says so.
    """
    path = Path(name).expanduser().absolute()  # not resolved: in the Hub's cache the links have the names
    if not path.exists():
        raise UsageError(f"{path} does not exist", next="firesteel models")
    try:
        return _open_path(path, quant, assume_llama)
    except BadHeader as error:
        raise _explain_header(error, path) from error


def _open_path(path: Path, quant: str | None, assume_llama: bool) -> Checkpoint:
    if path.is_dir():
        if (path / "config.json").exists() and not any(path.glob("*.safetensors*")):
            return _open_config(path / "config.json", quant, assume_llama)
        return _open_folder(path, assume_llama=assume_llama)
    if path.suffix == ".gguf":
        return _open_gguf(path)
    if path.suffix == ".json":
        return _open_config(path, quant, assume_llama)
    raise UsageError(
        f"{path} is neither a GGUF file, a config.json, nor a folder with config.json and safetensors",
        next=f"firesteel plan {path.parent}",
    )


def _explain_header(error: BadHeader, path: Path, environ: Mapping[str, str] = os.environ) -> FiresteelError:
    """What to type about a file that is damaged: it depends on where it came from."""
    folder = path if path.is_dir() else path.parent
    for file in sorted(folder.iterdir()) if path.is_dir() else [path]:
        if _is_pointer(file):
            what = f"{file} is a pointer of git-lfs; the file itself was not downloaded"
            return FiresteelError(what, next=shlex.join(("git", "-C", str(folder), "lfs", "pull")))
    found = repository_of(find_store(find_home(environ), environ), path)
    if found is None:
        return error
    repository, commit, name = found
    include = ("--include", escape(name)) if name else ()
    return BadHeader(error.what, next=shlex.join(("firesteel", "pull", f"{repository}@{commit}", *include)))


def _is_pointer(file: Path) -> bool:
    if not file.is_file() or file.stat().st_size > _MAX_POINTER:
        return False
    return file.read_bytes().startswith(_POINTER)


def _open_config(path: Path, quant: str | None, assume_llama: bool) -> Checkpoint:
    """A config alone: sizes are assumed, from its own quantization or the usual layout of a label."""
    config, doubts = _known_family(_parse_json(path.name, _read_text(path)), assume_llama)
    architecture, sizes = architecture_of_config(config), parameters_of_config(config)

    def text(name: str) -> str | None:
        return _read_text(path.with_name(name)) if path.with_name(name).exists() else None

    format = _quantization(config, text)
    name = path.parent.name if path.name == "config.json" else path.stem
    if quant is not None:
        weights = typical_weights(sizes, quant, path.name)
    else:
        if format is None:
            _refuse_unconfirmed_format(name)
        weights = weights_of_config(sizes, format, f"{path.name}{'' if format else ', as BF16'}")
    file_format: Literal["gguf", "safetensors"] = "gguf" if quant and is_gguf(quant) else "safetensors"
    heavier = heavier_weights(sizes, quant, path.name) if quant else None
    kv_dtype = format.kv_cache_dtype if format else None
    return Checkpoint(
        name, name, file_format, str(path), architecture, weights, sizes.unknown, kv_dtype, heavier, doubts
    )


def _known_family(config: object, assume_llama: bool) -> tuple[object, tuple[str, ...]]:
    known = as_llama(config) if assume_llama else config
    if known is config:
        return config, ()
    unknown = config.get("model_type") if isinstance(config, Mapping) else None
    doubt = f"firesteel does not know the family {printable(str(unknown), 80)}"
    return known, (f"{doubt}: layers, KV cache and speed are computed as if it were Llama",)


def _refuse_unconfirmed_format(name: str) -> None:
    """When the name says a format and the config does not, the weights are surely not BF16."""
    format = re.search(r"nvfp4|mxfp4|fp8|int4|int8|awq|gptq", name, re.IGNORECASE)
    if format:
        raise UsageError(
            f"{name} is called {format[0].upper()}, but its config.json does not say so; "
            "hf_quant_config.json next to it would",
            next=f"--quant {format[0].lower()}",
        )


def _read_text(path: Path) -> str:
    with FileSource(path) as source:
        if source.size > _MAX_TEXT:
            raise FiresteelError(f"{path} is larger than {_MAX_TEXT:,} bytes", next="give a config.json")
        return str(source.read(0, source.size), "utf-8", errors="replace")


def _parse_json(name: str, text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise FiresteelError(
            f"{name} is nested deeper than any model's config", next="give the config.json of a model"
        ) from None
    except ValueError as error:
        raise FiresteelError(f"{name} is not JSON: {error}", next="download it again") from error


def _open_gguf(path: Path) -> Checkpoint:
    with ExitStack() as files:

        def part(name: str) -> ByteSource:
            return files.enter_context(FileSource(path.with_name(name)))

        header = gguf.read_split(part(path.name), part)
    weights = sum_weights(header.tensors, "counted", f"the header of {path.name}")
    _require_tensors(path.name, weights)
    return Checkpoint(path.stem, str(path), "gguf", str(path), architecture_of_gguf(header), weights)


def _open_folder(folder: Path, repository: str | None = None, *, assume_llama: bool = False) -> Checkpoint:
    ggufs = sorted(folder.glob("*.gguf"))
    if not (folder / "config.json").exists():
        if ggufs:
            return _open_gguf(ggufs[0])
        raise UsageError(f"{folder} has no config.json and no GGUF", next="firesteel models")
    with ExitStack() as files:

        def shard(name: str) -> ByteSource:
            return files.enter_context(FileSource(folder / name))

        def text(name: str) -> str | None:
            path = folder / name
            return path.read_text("utf-8", errors="replace") if path.exists() else None

        name = repository.partition("/")[2] if repository else folder.name
        return _read_safetensors(name, repository or str(folder), text, shard, assume_llama)


def open_hub(
    repository: str, environ: Mapping[str, str] = os.environ, *, assume_llama: bool = False
) -> Checkpoint:
    """Opens a repository: from the store if it was pulled, without a request; else from the Hub."""
    if folder := local_snapshot(find_store(find_home(environ), environ), repository):
        try:
            return _open_folder(folder, repository, assume_llama=assume_llama)
        except BadHeader as error:
            raise _explain_header(error, folder, environ) from error
    base = f"{environ.get('HF_ENDPOINT', _HUB).rstrip('/')}/{repository}/resolve/main"
    headers, deadline = bearer(environ.get("HF_TOKEN")), Deadline()

    def shard(name: str) -> ByteSource:
        return UrlSource(f"{base}/{name}", headers, deadline)

    def text(name: str) -> str | None:
        response = get_file(f"{base}/{name}", headers, limit_bytes=_MAX_TEXT, deadline=deadline)
        return str(response.body, "utf-8", errors="replace") if response else None

    return _read_safetensors(repository.partition("/")[2], repository, text, shard, assume_llama)


def _read_safetensors(
    name: str,
    model: str,
    text: Callable[[str], str | None],
    shard: Callable[[str], ByteSource],
    assume_llama: bool,
) -> Checkpoint:
    config_text = text("config.json")
    if config_text is None:
        raise FiresteelError(f"{model} has no config.json", next="name a folder or repository that has one")
    config, doubts = _known_family(_parse_json(f"config.json of {model}", config_text), assume_llama)
    architecture = architecture_of_config(config)
    index = text("model.safetensors.index.json")
    layers = len(architecture.layers)
    if index is not None:
        tensors = safetensors.read_shards(index, shard, layers)
    else:
        tensors = safetensors.read_header(shard("model.safetensors"), layers)
    weights = sum_weights(tensors, "counted", f"the headers of {model}")
    _require_tensors(model, weights)
    try:
        format = _quantization(config, text)
    except UnknownQuantization:  # then nothing is known about the KV cache either
        return Checkpoint(name, model, "safetensors", model, architecture, weights, doubts=doubts)
    _require_same_model(model, weights, config, format)
    kv_dtype = format.kv_cache_dtype if format else None
    return Checkpoint(
        name, model, "safetensors", model, architecture, weights, kv_cache_dtype=kv_dtype, doubts=doubts
    )


def _require_tensors(name: str, weights: Weights) -> None:
    """A sound header may list no tensors; a plan of zero bytes would fit everywhere."""
    if not weights.total_bytes:
        raise UsageError(f"{name} holds no tensors", next="download it again")


def _require_same_model(model: str, weights: Weights, config: object, format: Quantization | None) -> None:
    """Refuses files and a config of two different models, where the config allows an estimate of the size."""
    try:
        assumed = weights_of_config(parameters_of_config(config), format).total_bytes
    except UnknownArchitecture:
        return
    # Wide on purpose: formats differ by a factor of eight, another model usually by more.
    if not 0.05 < weights.total_bytes / assumed < 20:
        raise UsageError(
            f"the files of {model} cannot belong to its config: they hold {weights.total_bytes:,} bytes, and "
            f"such a model has about {assumed:,}",
            next="download it again, config.json and safetensors from one place",
        )


def _quantization(config: object, text: Callable[[str], str | None]) -> Quantization | None:
    """From the config, or from the file that ModelOpt puts next to it."""
    format = read_quantization(config)
    if format is None and (modelopt := text("hf_quant_config.json")):
        format = read_quantization(_parse_json("hf_quant_config.json", modelopt))
    return format
