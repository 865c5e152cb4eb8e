"""Reads what an audit judges: the headers of a checkpoint, its scales and its small files.

From a folder, a GGUF file, or the Hub by ranges. The work is bounded whatever the files claim: scalars are
read in runs, of large scale tensors the beginning, of weights nothing. 60 GB take seconds. A quantized model
has hundreds of thousands of scalars. They lie together, because files are written by type, so that a few
reads get them all; what would take more is left out and counted.
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from math import prod
from pathlib import Path
from typing import Any

from firesteel.edge.checkpoints import LFS_POINTER, FileSource, UrlSource
from firesteel.edge.home import find_home
from firesteel.edge.http.sync_client import Deadline, bearer, get_file
from firesteel.edge.hub.cache import cached_listing, find_store, local_snapshot, repository_of
from firesteel.edge.hub.files import HubFile
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.formats import gguf, safetensors
from firesteel.facts.formats.byte_source import BadHeader, ByteSource
from firesteel.facts.formats.number_bytes import ValueSummary, is_number_type, read_scalar, summarize
from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.contents import (
    SCALES,
    TOKENIZER_FILES,
    CheckpointContents,
    Defect,
    TokenizerFacts,
    WeightFile,
    split_name,
)
from firesteel.facts.model.tensors import Tensor
from firesteel.values import Value, replace

INDEX = "model.safetensors.index.json"
_MAX_TEXT = 64 * 2**20
_MAX_INDEX = 192 * 2**20
"""A million tensors, as many as an index may list, with long names."""
_MAX_FILES = 20_000
_MAX_TENSORS = 2_000_000
"""In all files together. Beyond, an audit would take gigabytes of memory itself."""


class _Files(Value):
    """A folder, wherever it is."""

    origin: str
    sizes: Mapping[str, int]
    """Of the files that are there."""
    published: Mapping[str, int]
    """Of the files as the Hub lists them; empty: not known."""
    text: Callable[[str], str | None]
    open: Callable[[str], AbstractContextManager[ByteSource]]
    limits: ReadLimits


def read_contents(model: str, environ: Mapping[str, str] = os.environ) -> CheckpointContents:
    """A folder, a GGUF file, or a Hub id: the pulled snapshot of it, else what the Hub has."""
    path = Path(model).expanduser().absolute()
    if path.suffix == ".gguf" and path.is_file():
        return _read_gguf(path)
    if path.is_dir():
        return read_folder(path, environ)
    if path.exists():
        raise UsageError(
            f"{path} is neither a folder with safetensors nor a GGUF file",
            next=f"firesteel audit {shlex.quote(str(path.parent))}",
        )
    if model.count("/") == 1 and not model.startswith((".", "~", "/")):
        return read_hub(model, environ)
    raise UsageError(f"{path} does not exist", next="firesteel audit FOLDER, FILE.gguf or ORG/NAME")


def read_local(model: str, environ: Mapping[str, str] = os.environ) -> CheckpointContents | None:
    """The same for what is on this disk; None: it is not, or it is a config alone."""
    path = Path(model).expanduser().absolute()
    if path.suffix == ".gguf" and path.is_file():
        return _read_gguf(path)
    if not path.exists() and model.count("/") == 1:
        path = local_snapshot(find_store(find_home(environ), environ), model) or path
    return read_folder(path, environ) if any(path.glob("*.safetensors")) else None


def read_folder(folder: Path, environ: Mapping[str, str] = os.environ) -> CheckpointContents:
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    if len(entries) > _MAX_FILES:
        raise UsageError(f"{folder} holds over {_MAX_FILES:,} files", next="give the folder of one model")
    sizes = {entry.name: _size(entry) for entry in entries if not entry.is_dir()}
    if first := _only_gguf(str(folder), sizes, "", f"{folder}/"):
        return _read_gguf(folder / first)

    def text(name: str) -> str | None:
        path = folder / name
        if name not in sizes:
            return None
        with FileSource(path) as source:
            if source.size > (limit := _limit(name)):
                raise FiresteelError(f"{path} is larger than {limit:,} bytes", next=f"ls -l {folder}")
            return str(source.read(0, source.size), "utf-8", errors="replace")

    published = {name: file.bytes for name, file in published_files(folder, environ).items()}
    return _read(
        _Files(str(folder), sizes, published, text, lambda name: FileSource(folder / name), FROM_DISK)
    )


def _only_gguf(origin: str, sizes: Mapping[str, int], label: str, example: str) -> str | None:
    """The GGUF with that label, or the only one; of one in parts, the first. None: there are safetensors."""
    if any(name.endswith(".safetensors") for name in sizes):
        return None
    ggufs = sorted(name for name in sizes if name.endswith(".gguf") and not name.startswith("mmproj"))
    firsts = [name for name in ggufs if "-of-" not in name or "-00001-of-" in name]
    chosen = [name for name in firsts if label.lower() in name.lower()]
    if len(chosen) == 1:
        return chosen[0]
    if not ggufs:
        return None
    what = f"{len(chosen)} GGUF files" if chosen else f"no GGUF file like `{label}`"
    raise UsageError(
        f"{origin} holds {what}", next=f"firesteel audit {example}{firsts[0] if firsts else ggufs[0]}"
    )


def _limit(name: str) -> int:
    return _MAX_INDEX if name == INDEX else _MAX_TEXT


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # a link of the Hub's cache whose blob is gone
        return -1


def published_files(folder: Path, environ: Mapping[str, str]) -> dict[str, HubFile]:
    """What the Hub listed for a folder of its cache."""
    store = find_store(find_home(environ), environ)
    found = repository_of(store, folder)
    listing = cached_listing(store, found[0], found[1]) if found else None
    return {file.path: file for file in listing.files} if listing else {}


def local_folder(contents: CheckpointContents, environ: Mapping[str, str]) -> Path | None:
    """Where its files are on this disk; None: only the Hub has them."""
    path = Path(contents.origin)
    if path.exists():
        return path.parent if path.is_file() else path
    return local_snapshot(find_store(find_home(environ), environ), contents.origin)


def read_hub(model: str, environ: Mapping[str, str] = os.environ) -> CheckpointContents:
    """`ORG/NAME`, or `ORG/NAME:LABEL` for one of several GGUF files."""
    repository, _, label = model.partition(":")
    if folder := local_snapshot(find_store(find_home(environ), environ), repository):
        return replace(read_folder(folder, environ), origin=repository)
    from firesteel.edge.hub.client import find_hub, list_files  # loads huggingface_hub's client

    hub = find_hub(environ)
    listing = asyncio.run(list_files(hub, repository, "main"))
    base = f"{hub.endpoint}/{repository}/resolve/{listing.commit}"
    headers, deadline = bearer(hub.token), Deadline()
    sizes = {file.path: file.bytes for file in listing.files if "/" not in file.path}

    def text(name: str) -> str | None:
        if name not in sizes:
            return None
        response = get_file(f"{base}/{name}", headers, limit_bytes=_limit(name), deadline=deadline)
        return str(response.body, "utf-8", errors="replace") if response else None

    def open_file(name: str) -> AbstractContextManager[ByteSource]:
        return nullcontext(UrlSource(f"{base}/{name}", headers, deadline))

    if first := _only_gguf(repository, sizes, label, f"{repository}:"):
        with ExitStack() as files:
            header = gguf.read_split(
                files.enter_context(open_file(first)), lambda name: files.enter_context(open_file(name))
            )
        return _gguf_contents(repository, header, sizes[first])
    return _read(_Files(repository, sizes, {}, text, open_file, FROM_HUB))


# --- safetensors ---


def _read(files: _Files) -> CheckpointContents:
    config, config_defect = _json(files, "config.json")
    modelopt, _ = _json(files, "hf_quant_config.json")
    generation, _ = _json(files, "generation_config.json")
    index, index_bytes, index_defect = _index(files)
    names = _weight_files(files, index)
    if not names:
        raise UsageError(
            f"{files.origin} holds no safetensors and no GGUF",
            next="firesteel audit FOLDER, FILE.gguf or ORG/NAME",
        )
    scales = ScaleReader(files.limits)
    layers = _layers(config)
    weight_files = [_weight_file(files, name, layers, listed, scales) for name, listed in names]
    tensors = sum(len(file.tensors) for file in weight_files)
    if tensors > _MAX_TENSORS:
        raise UsageError(
            f"{files.origin} has {tensors:,} tensors, more than any real model",
            next="give the folder of one model",
        )
    return CheckpointContents(
        files.origin,
        "safetensors",
        tuple(weight_files),
        config=config,
        config_defect=config_defect,
        modelopt_config=modelopt,
        generation_config=generation,
        index=index,
        index_bytes=index_bytes,
        index_defect=index_defect,
        scalars=scales.scalars,
        values=scales.values,
        tokenizer=_tokenizer(files),
        read_bytes=scales.read_bytes,
        unread=tuple(scales.unread()),
    )


def _json(files: _Files, name: str) -> tuple[dict[str, object] | None, str]:
    text = files.text(name)
    if text is None:
        return None, ""
    try:
        value = json.loads(text)
    except RecursionError:
        return None, f"{name} is nested deeper than any model's"
    except ValueError as error:
        return None, f"{name} is not JSON: {error}"
    return (value, "") if isinstance(value, dict) else (None, f"{name} holds no object with keys")


def _index(files: _Files) -> tuple[dict[str, str] | None, int | None, str]:
    text = files.text(INDEX)
    if text is None:
        return None, None, ""
    try:
        weight_map = safetensors.read_weight_map(INDEX, text)
    except BadHeader as error:
        return None, None, error.what
    return weight_map, _total_size(text), ""


def _total_size(text: str) -> int | None:
    """Of the index's metadata, which stands at its front as every library writes it."""
    metadata: Any = None
    head = text[:4096]
    start = head.find('"metadata"')
    if start >= 0 and (brace := head.find("{", start)) >= 0:
        try:
            metadata, _ = json.JSONDecoder().raw_decode(head, brace)
        except (ValueError, RecursionError):
            return None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return int(size) if isinstance(size, int | float) else None


def _weight_files(files: _Files, index: Mapping[str, str] | None) -> list[tuple[str, bool]]:
    """The files with weights, and whether an engine loads them."""
    there = {
        name for name in files.sizes if name.endswith(".safetensors") and not name.startswith("adapter_")
    }
    if index is not None:
        listed = set(index.values())
        return [(name, name in listed) for name in sorted(there | listed)]
    named = {name for name in there if name.startswith("model")}
    # Mistral publishes its own format next to that of transformers; an engine loads one of them.
    listed = {name for name in there if not name.startswith("consolidated")} if named else there
    return [(name, name in listed) for name in sorted(there)]


def _layers(config: Mapping[str, object] | None) -> int | None:
    if config is None:
        return None
    try:
        return len(architecture_of_config(config).layers)
    except UnknownArchitecture:
        pass
    text = config.get("text_config")
    count = (text if isinstance(text, Mapping) else config).get("num_hidden_layers")
    return count if type(count) is int else None


def _weight_file(
    files: _Files, name: str, layers: int | None, is_listed: bool, scales: ScaleReader
) -> WeightFile:
    size = files.sizes.get(name, -1)
    if size < 0:
        return WeightFile(name, 0, defect="missing", why=f"{name} is not there", is_listed=is_listed)
    with files.open(name) as source:
        if source.read(0, min(len(LFS_POINTER), source.size)) == LFS_POINTER:
            return WeightFile(
                name, size, defect="pointer", why=f"{name} is a pointer of git-lfs", is_listed=is_listed
            )
        try:
            table = safetensors.read_table(source, layers)
        except BadHeader as error:
            return WeightFile(name, size, defect="damaged", why=error.what, is_listed=is_listed)
        file = WeightFile(name, size, table.tensors, table.data_start, is_listed=is_listed)
        if table.file_bytes > size:
            why = f"{name} has {size:,} bytes, {table.file_bytes - size:,} fewer than its header describes"
            return replace(file, defect="truncated", why=why)
        if table.file_bytes < size:
            why = f"{name} has {size:,} bytes, {size - table.file_bytes:,} more than its header describes"
            return replace(file, defect="too long", why=why)
        if is_listed:
            scales.read_scales(source, file)
        published = files.published.get(name, size)
        if published != size:
            why = f"{name} has {size:,} bytes, and {published:,} were published"
            return replace(file, defect="wrong size", why=why)
    return file


def _tokenizer(files: _Files) -> TokenizerFacts:
    there = frozenset(name for name in TOKENIZER_FILES if name in files.sizes)
    texts = {
        name: files.text(name)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
    }
    return TokenizerFacts.parse(there, {name: text for name, text in texts.items() if text is not None})


# --- GGUF ---


def _read_gguf(path: Path) -> CheckpointContents:
    with ExitStack() as files:
        first = files.enter_context(FileSource(path))
        try:
            header = gguf.read_split(
                first, lambda name: files.enter_context(FileSource(path.with_name(name)))
            )
        except BadHeader as error:
            defect: Defect = "truncated" if "truncated" in error.what else "damaged"
            broken = WeightFile(path.name, first.size, defect=defect, why=error.what)
            return CheckpointContents(str(path), "gguf", (broken,))
    return _gguf_contents(str(path), header, path.stat().st_size)


def gguf_parts(path: Path) -> list[tuple[Path, gguf.GgufHeader]]:
    """The files of a GGUF and their headers; of one in parts, `path` is any of them."""
    stem = re.sub(r"-\d{5}-of-(\d{5})\.gguf\Z", r"-*-of-\1.gguf", path.name)
    parts = []
    for part in sorted(path.parent.glob(glob.escape(stem).replace("[*]", "*"))):
        with FileSource(part) as source:
            parts.append((part, gguf.read_header(source)))
    return parts


def _gguf_contents(origin: str, header: gguf.GgufHeader, size: int) -> CheckpointContents:
    file = WeightFile(header.name, size, header.tensors, header.data_offset)
    return CheckpointContents(origin, "gguf", (file,), metadata=header.metadata)


_Wanted = tuple[Tensor, int, int]
"""A tensor, where its bytes start in the file, and how many of them are read."""
_SMALL_SCALES = ("F32", "BF16", "F16", "F64")
"""Scales of rows and blocks in these types are a thousandth of a checkpoint; E4M3 scales are an eighth."""


class ReadLimits(Value):
    """What reading scales may cost."""

    gap_bytes: int
    """Scales that are no further apart are read at once."""
    total_bytes: int
    reads: int
    sample_bytes: int = 4096
    samples: int = 512
    """How many large scale tensors are looked into."""


FROM_DISK = ReadLimits(gap_bytes=8 * 1024, total_bytes=256 * 2**20, reads=400_000)
FROM_HUB = ReadLimits(gap_bytes=256 * 1024, total_bytes=32 * 2**20, reads=64, sample_bytes=1024, samples=16)
_MAX_READ = 4 * 2**20


class ScaleReader:
    """Reads scales until a limit is reached, and counts what it left out."""

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self.scalars: dict[str, float] = {}
        self.values: dict[str, ValueSummary] = {}
        self.read_bytes = 0
        self._reads = self._left_out = 0
        self._sampled = 0

    def unread(self) -> Iterator[str]:
        if self._left_out:
            yield (
                f"{self._left_out:,} scale tensors were not read: they are too scattered for a quick audit; "
                "pull the model and audit the folder"
            )

    def read_scales(self, source: ByteSource, file: WeightFile) -> None:
        for run in self._runs(self._wanted(file)):
            start, end = run[0][1], run[-1][1] + run[-1][2]
            if self._reads >= self._limits.reads or self.read_bytes + end - start > self._limits.total_bytes:
                self._left_out += len(run)
                continue
            data = source.read(start, end - start)
            self._reads += 1
            self.read_bytes += len(data)
            for tensor, at, length in run:
                piece = data[at - start : at - start + length]
                if length == tensor.bytes and prod(tensor.shape) == 1:
                    self.scalars[tensor.name] = read_scalar(tensor.dtype, piece)
                else:
                    self.values[tensor.name] = summarize(tensor.dtype, piece)

    def _wanted(self, file: WeightFile) -> Iterator[_Wanted]:
        """Tensor, where it starts in the file, and how much of it is read."""
        at = file.data_start
        large = sum(1 for tensor in file.tensors if _is_large_scale(tensor))
        every, seen = max(1, large // max(1, self._limits.samples // 8)), 0
        for tensor in file.tensors:
            start, at = at, at + tensor.bytes
            if not tensor.bytes or not is_number_type(tensor.dtype):
                continue
            if _is_large_scale(tensor):
                seen += 1
                if seen % every == 0 and self._sampled < self._limits.samples:
                    self._sampled += 1
                    yield tensor, start, min(tensor.bytes, self._limits.sample_bytes)
            elif split_name(tensor.name)[1] in SCALES:
                yield tensor, start, min(tensor.bytes, _MAX_READ)

    def _runs(self, wanted: Iterator[_Wanted]) -> Iterator[list[_Wanted]]:
        run: list[_Wanted] = []
        for each in wanted:
            if run:
                end = run[-1][1] + run[-1][2]
                if each[1] - end > self._limits.gap_bytes or each[1] + each[2] - run[0][1] > _MAX_READ:
                    yield run
                    run = []
            run.append(each)
        if run:
            yield run


def _is_large_scale(tensor: Tensor) -> bool:
    return (
        tensor.dtype not in _SMALL_SCALES
        and tensor.bytes > 8
        and split_name(tensor.name)[1] in ("weight_scale", "scales")
    )
