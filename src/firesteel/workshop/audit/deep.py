"""The deep audit: every byte of every weight file, read once, in bounded memory.

Weights that are not numbers, all block scales, and the digests that the Hub lists. What was read is dropped
from the page cache as it goes: on a Spark that is the GPU's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from firesteel.edge.files.home import find_home
from firesteel.edge.hub.cache import cached_listing, find_store, local_snapshot, repository_of
from firesteel.errors import UsageError
from firesteel.facts.formats.number_bytes import ValueSummary, is_number_type, merge, summarize
from firesteel.facts.model.checkpoint_contents import CheckpointContents, WeightFile
from firesteel.facts.model.stored_modules import SCALES, split_name
from firesteel.units import MIB

_PIECE = 8 * MIB
Progress = Callable[[int, int], None]


def read_everything(
    contents: CheckpointContents, on_progress: Progress, environ: Mapping[str, str] = os.environ
) -> CheckpointContents:
    folder = _folder(contents, environ)
    if contents.format == "gguf":
        return replace(contents, is_deep=True)
    digests = _digests(folder, environ)
    readable = [file for file in contents.files if file.is_listed and file.tensors and not _is_cut(file)]
    total, done = sum(file.bytes for file in readable), 0
    scales: dict[str, ValueSummary] = {}
    weights: dict[str, ValueSummary] = {}
    checked: dict[str, WeightFile] = {}
    for file in readable:
        digest = digests.get(file.name)
        hasher = digest.new_hash() if digest else None
        for part, name, dtype, piece in _pieces(folder / file.name, file):
            if hasher:
                hasher.update(piece)
            if name and is_number_type(dtype) and (part in SCALES or dtype != "U8"):
                found = summarize_fast(dtype, piece)
                table = scales if part in SCALES else weights
                table[name] = merge(table[name], found) if name in table else found
            done += len(piece)
            on_progress(done, total)
        if digest and hasher and hasher.hexdigest() != digest.digest:
            why = f"the bytes of {file.name} are not those that were published"
            checked[file.name] = replace(file, defect="wrong digest", why=why)
    files = tuple(checked.get(file.name, file) for file in contents.files)
    vectors = {name: found for name, found in scales.items() if name not in contents.scalars}
    return replace(
        contents, files=files, values=vectors, weight_values=weights, is_deep=True, read_bytes=done, unread=()
    )


def _is_cut(file: WeightFile) -> bool:
    return file.defect in ("truncated", "too long")


def _folder(contents: CheckpointContents, environ: Mapping[str, str]) -> Path:
    path = Path(contents.origin)
    if path.is_file():
        return path.parent
    if path.is_dir():
        return path
    folder = local_snapshot(find_store(find_home(environ), environ), contents.origin)
    if folder is None:
        raise UsageError(
            f"--deep reads every byte, and {contents.origin} is not on this disk",
            next=f"firesteel pull {contents.origin}",
        )
    return folder


def _digests(folder: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The files as the Hub lists them, where the folder is a snapshot of it."""
    store = find_store(find_home(environ), environ)
    found = repository_of(store, folder)
    listing = cached_listing(store, found[0], found[1]) if found else None
    return {file.path: file for file in listing.files} if listing else {}


def _pieces(path: Path, file: WeightFile) -> Iterator[tuple[str, str, str, bytes]]:
    """The whole file in order: part, tensor and dtype of each piece; the header has none."""
    with path.open("rb", buffering=0) as source:
        yield "", "", "", source.read(file.data_start)
        dropped = at = file.data_start
        for tensor in file.tensors:
            part, left = split_name(tensor.name)[1], tensor.bytes
            while left:
                piece = source.read(min(_PIECE, left))
                if not piece:
                    return
                left -= len(piece)
                at += len(piece)
                yield part, tensor.name, tensor.dtype, piece
            if at - dropped >= 64 * MIB:
                os.posix_fadvise(source.fileno(), dropped, at - dropped, os.POSIX_FADV_DONTNEED)
                dropped = at
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def summarize_fast(dtype: str, piece: bytes) -> ValueSummary:
    return summarize(dtype, piece)
