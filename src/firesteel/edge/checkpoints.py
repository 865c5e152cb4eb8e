"""Opens what no catalog has: checkpoints (a GGUF file, a folder of safetensors, a repository on the Hub) and
LoRA adapters (a PEFT folder, a GGUF file, or a repository that was pulled).

Only headers are read, from a file or by ranges of a URL: megabytes before deciding on gigabytes. `FileSource`
and `UrlSource` are the byte sources of `facts`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from glob import escape
from pathlib import Path
from typing import Literal, Self

from firesteel.edge.home import find_home, is_path
from firesteel.edge.http.sync_client import Deadline, bearer, get_file
from firesteel.edge.hub.cache import Store, find_store, local_snapshot, repository_of
from firesteel.errors import FiresteelError, UsageError, printable
from firesteel.facts.formats import gguf, safetensors
from firesteel.facts.formats.byte_source import BadHeader, ByteSource, truncated
from firesteel.facts.formats.gguf_architecture import architecture_of_gguf
from firesteel.facts.model.adapter import Adapter
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
from firesteel.launch import is_hub_id

LFS_POINTER = b"version https://git-lfs.github.com/"
_MAX_POINTER = 1024
"""A pointer of git-lfs is smaller.
https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md, seen 2026-11-15"""
_MAX_TEXT = 64 * 2**20
"""The largest index of shards known is under 20 MB."""


def open_path(name: str, quant: str | None = None, *, assume_llama: bool = False) -> Checkpoint:
    """Opens a path. `quant` says how a config's weights are stored; weight files say it themselves.

    `assume_llama`: a family that firesteel does not know is treated like Llama, and its plan says so.
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
        next=f"firesteel plan {shlex.quote(str(path.parent))}",
    )


def _explain_header(error: BadHeader, path: Path, environ: Mapping[str, str] = os.environ) -> FiresteelError:
    """What to type about a file that is damaged: it depends on where it came from."""
    folder = path if path.is_dir() else path.parent
    for file in sorted(folder.iterdir()) if path.is_dir() else [path]:
        is_small = file.is_file() and file.stat().st_size <= _MAX_POINTER
        if is_small and file.read_bytes().startswith(LFS_POINTER):
            what = f"{file} is a pointer of git-lfs; the file itself was not downloaded"
            return FiresteelError(what, next=shlex.join(("git", "-C", str(folder), "lfs", "pull")))
    found = repository_of(find_store(find_home(environ), environ), path)
    if found is None:
        return error
    repository, commit, name = found
    include = ("--include", escape(name)) if name else ()
    return BadHeader(error.what, next=shlex.join(("firesteel", "pull", f"{repository}@{commit}", *include)))


def _open_config(path: Path, quant: str | None, assume_llama: bool) -> Checkpoint:
    """A config alone: sizes are assumed, from its own quantization or the usual layout of a label."""
    config, assumptions = _known_family(_parse_json(path.name, _read_text(path)), assume_llama)
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
        name,
        name,
        file_format,
        str(path),
        architecture,
        weights,
        sizes.unknown,
        kv_dtype,
        heavier,
        assumptions,
    )


def _known_family(config: object, assume_llama: bool) -> tuple[object, tuple[str, ...]]:
    known = as_llama(config) if assume_llama else config
    if known is config:
        return config, ()
    unknown = config.get("model_type") if isinstance(config, Mapping) else None
    what = f"firesteel does not know the family {printable(str(unknown), 80)}"
    return known, (f"{what}: layers, KV cache and speed are computed as if it were Llama",)


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
    from firesteel.edge.hub.client import find_hub  # loads huggingface_hub's client

    hub = find_hub(environ)
    base = f"{hub.endpoint}/{repository}/resolve/main"
    headers, deadline = bearer(hub.token), Deadline()

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
    config, assumptions = _known_family(_parse_json(f"config.json of {model}", config_text), assume_llama)
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
        return Checkpoint(name, model, "safetensors", model, architecture, weights, assumptions=assumptions)
    _require_same_model(model, weights, config, format)
    kv_dtype = format.kv_cache_dtype if format else None
    return Checkpoint(
        name,
        model,
        "safetensors",
        model,
        architecture,
        weights,
        kv_cache_dtype=kv_dtype,
        assumptions=assumptions,
    )


def _require_tensors(name: str, weights: Weights) -> None:
    """A sound header may list no tensors; a plan of zero bytes would fit everywhere."""
    if not weights.total_bytes:
        raise UsageError(f"{name} holds no tensors", next="download it again")


def _require_same_model(model: str, weights: Weights, config: object, format: Quantization | None) -> None:
    """Refuses files and a config of two different models, if the config allows an estimate of the size."""
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


_MAX_CONFIG = 1024 * 1024


def open_adapter(name: str, reference: str, store: Store) -> Adapter:
    """Raises FiresteelError with what to type."""
    if is_path(reference):
        path = Path(reference).expanduser().absolute()
        if not path.exists():
            raise UsageError(f"there is no adapter at {path}", next="give its PEFT folder or its GGUF")
        return _open_adapter(name, path, str(path))
    if not is_hub_id(reference):
        raise UsageError(
            f"`{reference}` is neither a path nor a Hub id", next="write a path with a `/` or ORG/NAME"
        )
    folder = local_snapshot(store, reference)
    if folder is None:
        raise UsageError(f"{reference} is not here yet", next=f"firesteel pull {reference}")
    return _open_adapter(name, folder, reference)


def _open_adapter(name: str, path: Path, given: str) -> Adapter:
    """`given`: a Hub id stays one, since its snapshot is a folder of links into the cache."""
    ggufs = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    if path.is_dir() and (path / "adapter_config.json").exists():
        return _open_peft(name, path, given)
    if not ggufs or ggufs[0].suffix != ".gguf":
        raise UsageError(
            f"{path} has neither an adapter_config.json nor a GGUF", next="give a PEFT folder or a GGUF"
        )
    with FileSource(ggufs[0]) as source:
        return Adapter.of_gguf(name, str(ggufs[0].resolve()), gguf.read_header(source))


def _open_peft(name: str, folder: Path, given: str) -> Adapter:
    config = folder / "adapter_config.json"
    weights = folder / "adapter_model.safetensors"
    if not weights.exists():
        raise UsageError(f"{folder} has no adapter_model.safetensors", next="save the adapter as safetensors")
    try:
        with config.open("rb") as file:
            parsed = json.loads(file.read(_MAX_CONFIG))
    except (ValueError, RecursionError) as error:
        raise FiresteelError(f"{config} is not JSON: {error}", next="download it again") from None
    with FileSource(weights) as source:
        return Adapter.of_peft(name, given, parsed, safetensors.read_header(source))


_FRONT_BYTES = 2**20


class FileSource:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            # O_NONBLOCK: opening a pipe without a writer would block.
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise FiresteelError(f"{path} cannot be read: {error.strerror}", next=f"ls -l {path}") from error
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise FiresteelError(f"{path} is not a file", next=f"ls -l {path}")
        self.size = status.st_size

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            raise truncated(self.name)
        return os.pread(self._fd, length, start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class UrlSource:
    """Reads only ranges; a server that ignores `Range` is refused."""

    def __init__(self, url: str, headers: Mapping[str, str], deadline: Deadline) -> None:
        self.name = url.rsplit("/", 1)[-1]
        self._url, self._headers, self._deadline = url, headers, deadline
        self.size = 0
        # Most headers fit into the first MiB, so that one request is enough.
        self._front = self._get(0, _FRONT_BYTES)

    def _get(self, start: int, length: int) -> bytes:
        headers = {**self._headers, "Range": f"bytes={start}-{start + length - 1}"}
        response = get_file(self._url, headers, limit_bytes=length, deadline=self._deadline)
        if response is None:
            raise FiresteelError(f"{self._url} does not exist", next="firesteel models")
        content_range = re.fullmatch(rf"bytes {start}-\d+/(\d+)", response.content_range or "")
        if response.status != 206 or content_range is None:
            raise FiresteelError(f"{self._url} does not serve ranges", next="download the file first")
        self.size = int(content_range[1])
        return response.body

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            raise truncated(self.name)
        if start + length <= len(self._front):
            return self._front[start : start + length]
        data = self._get(start, length)
        if len(data) != length:
            raise truncated(self.name)
        return data
