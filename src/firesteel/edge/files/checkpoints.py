"""Checkpoints that are in no catalog: a GGUF file, a folder of safetensors, a repository on the Hub.

Only headers are read, from the Hub by ranges: megabytes before deciding on gigabytes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from firesteel.edge.files.byte_sources import FileSource, UrlSource
from firesteel.edge.files.home import find_home
from firesteel.edge.http.sync_client import Deadline, get
from firesteel.edge.hub.cache import find_store, local_snapshot
from firesteel.edge.model_reference import is_hub_id, is_path
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts import (
    ByteSource,
    Checkpoint,
    Weights,
    architecture_of_config,
    architecture_of_gguf,
    weigh,
)
from firesteel.facts.formats import gguf, safetensors
from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.parameters import parameters
from firesteel.facts.model.quantization import (
    Quantization,
    UnknownQuantization,
    assumed_weights,
    quantization,
)
from firesteel.facts.model.typical import heavier_weights, is_gguf, typical_weights

__all__ = ["is_hub_id", "is_path", "open_hub", "open_path"]

_HUB = "https://huggingface.co"
_MAX_TEXT = 64 * 2**20
"""The largest index of shards known is under 20 MB."""


def open_path(word: str, quant: str | None = None) -> Checkpoint:
    """What a path holds. `quant` says how a config's weights are stored; files tell that themselves."""
    path = Path(word).expanduser().absolute()  # links stay: in the Hub's cache they have the names
    if not path.exists():
        raise UsageError(f"there is no {path}", next="firesteel models")
    if path.is_dir():
        if (path / "config.json").exists() and not any(path.glob("*.safetensors*")):
            return _open_config(path / "config.json", quant)
        return _open_folder(path)
    if path.suffix == ".gguf":
        return _open_gguf(path)
    if path.suffix == ".json":
        return _open_config(path, quant)
    raise UsageError(
        f"{path} is neither a GGUF file, a config.json, nor a folder with config.json and safetensors",
        next=f"firesteel plan {path.parent}",
    )


def _open_config(path: Path, quant: str | None) -> Checkpoint:
    """A config alone: bytes are assumed, from its own quantization or from the usual layout of a label."""
    config = _json(path.name, _text_of(path))
    beside = path.with_name("hf_quant_config.json")
    shape, sizes = architecture_of_config(config), parameters(config)
    said = quantization(config)
    if said is None and beside.exists():
        said = quantization(_json(beside.name, _text_of(beside)))
    calibrated = said.kv_cache_dtype if said else None
    name = path.parent.name if path.name == "config.json" else path.stem
    if quant is not None:
        weights = typical_weights(sizes, quant, path.name)
    else:
        _insist_on_format(name, said is not None)
        weights = assumed_weights(sizes, said, f"{path.name}{'' if said else ', as BF16'}")
    form: Literal["gguf", "safetensors"] = "gguf" if quant and is_gguf(quant) else "safetensors"
    heavier = heavier_weights(sizes, quant, path.name) if quant else None
    return Checkpoint(name, name, form, str(path), shape, weights, sizes.unknown, calibrated, heavier)


def _insist_on_format(name: str, is_told: bool) -> None:
    """A name that says a format, and a config that does not: its weights are surely not BF16."""
    said = re.search(r"nvfp4|mxfp4|fp8|int4|int8|awq|gptq", name, re.IGNORECASE)
    if said and not is_told:
        raise UsageError(
            f"{name} is called {said[0].upper()}, and its config.json does not say so; "
            "hf_quant_config.json beside it would",
            next=f"--quant {said[0].lower()}",
        )


def _text_of(path: Path) -> str:
    with FileSource(path) as source:
        if source.size > _MAX_TEXT:
            raise FiresteelError(f"{path} is larger than {_MAX_TEXT:,} bytes", next="give a config.json")
        return str(source.read(0, source.size), "utf-8", errors="replace")


def _json(name: str, text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        what = f"{name} is nested deeper than any model's config"
        raise FiresteelError(what, next="give the config.json of a model") from None
    except ValueError as error:
        raise FiresteelError(f"{name} is not JSON: {error}", next="download it again") from error


def _open_gguf(path: Path) -> Checkpoint:
    with ExitStack() as files:

        def part(name: str) -> ByteSource:
            return files.enter_context(FileSource(path.with_name(name)))

        header = gguf.read_split(part(path.name), part)
    weights = weigh(header.tensors, "counted", f"the header of {path.name}")
    _insist_on_tensors(path.name, weights)
    return Checkpoint(path.stem, str(path), "gguf", str(path), architecture_of_gguf(header), weights)


def _open_folder(folder: Path, repository: str | None = None) -> Checkpoint:
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
        return _read_safetensors(name, repository or str(folder), text, shard)


def open_hub(repository: str, environ: Mapping[str, str] = os.environ) -> Checkpoint:
    """From the store if it was pulled, without a request."""
    if folder := local_snapshot(find_store(find_home(environ), environ), repository):
        return _open_folder(folder, repository)
    base = f"{environ.get('HF_ENDPOINT', _HUB).rstrip('/')}/{repository}/resolve/main"
    token = environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    patience = Deadline()

    def shard(name: str) -> ByteSource:
        return UrlSource(f"{base}/{name}", headers, patience)

    def text(name: str) -> str | None:
        got = get(f"{base}/{name}", headers, limit_bytes=_MAX_TEXT, patience=patience)
        return str(got.body, "utf-8", errors="replace") if got else None

    return _read_safetensors(repository.partition("/")[2], repository, text, shard)


def _read_safetensors(
    name: str, model: str, text: Callable[[str], str | None], shard: Callable[[str], ByteSource]
) -> Checkpoint:
    config = text("config.json")
    if config is None:
        raise FiresteelError(f"{model} has no config.json", next="name a folder or repository that has one")
    told = _json(f"config.json of {model}", config)
    shape = architecture_of_config(told)
    index = text("model.safetensors.index.json")
    layers = len(shape.layers)
    if index is not None:
        tensors = safetensors.read_shards(index, shard, layers)
    else:
        tensors = safetensors.read_header(shard("model.safetensors"), layers)
    weights = weigh(tensors, "counted", f"the headers of {model}")
    _insist_on_tensors(model, weights)
    try:
        said = _quantization(told, text)
    except UnknownQuantization:  # it says nothing of the cache either
        return Checkpoint(name, model, "safetensors", model, shape, weights)
    _insist_on_this_model(model, weights, told, said)
    calibrated = said.kv_cache_dtype if said else None
    return Checkpoint(name, model, "safetensors", model, shape, weights, kv_cache_dtype=calibrated)


def _insist_on_tensors(name: str, weights: Weights) -> None:
    """A header may be sound and hold nothing; a plan of no bytes would fit everywhere."""
    if not weights.total_bytes:
        raise UsageError(f"{name} holds no tensors", next="download it again")


def _insist_on_this_model(model: str, weights: Weights, config: object, said: Quantization | None) -> None:
    """Files and config may come from two models; what the config does not size says nothing."""
    try:
        assumed = assumed_weights(parameters(config), said).total_bytes
    except UnknownArchitecture:
        return
    if not 0.05 < weights.total_bytes / assumed < 20:
        raise UsageError(
            f"the files of {model} hold {weights.total_bytes:,} bytes and cannot be this model: its config "
            f"makes it about {assumed:,}",
            next="download it again, config.json and safetensors from one place",
        )


def _quantization(config: object, text: Callable[[str], str | None]) -> Quantization | None:
    """What the config says, or the file that ModelOpt puts beside it."""
    said = quantization(config)
    if said is None and (beside := text("hf_quant_config.json")):
        said = quantization(_json("hf_quant_config.json", beside))
    return said
