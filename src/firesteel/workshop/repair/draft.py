"""A checkpoint as it will be written: the tensors of each file, where their bytes come from, and the texts.

Values only: gigabytes stay where they are, and a change of scales is a table of 256 bytes or a new scalar.
`write_folder` makes a folder that gets its name when it is complete. `write_in_place` patches files in which
only a few bytes differ, after the old bytes were stored in the undo; others are rewritten and exchanged,
and the old ones moved into the undo. `restore` brings everything back, also after a repair that was killed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from firesteel.edge.contents import INDEX
from firesteel.edge.home import require_disk_space
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.formats import safetensors
from firesteel.facts.formats.safetensors import DTYPE_BITS
from firesteel.facts.model.contents import CheckpointContents, StoredModule, WeightFile, stored_modules
from firesteel.facts.model.tensors import Tensor, role_of
from firesteel.rules.checkpoint.audited import AuditedCheckpoint
from firesteel.units import MIB
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
    """Further files that are copied from another checkpoint."""
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
    layers = AuditedCheckpoint(before).whole_number("num_hidden_layers")
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


UNDO = ".firesteel-undo"


# --- writing ---

_PIECE = 8 * MIB
Progress = Callable[[int, int], None]


def write_folder(draft: Draft, target: Path, check: Callable[[Path], None], on_progress: Progress) -> None:
    """`check` gets the folder before it has its name, and raises where it is not better than before."""
    if target.exists():
        raise UsageError(f"{target} exists", next="--out another folder")
    needed = sum(tensor.size for tensor in draft.tensors())
    require_disk_space(target.parent, needed, "the repaired checkpoint")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _copy_small_files(draft, partial)
        _write_new(draft, draft.files, partial, partial, lambda done: on_progress(done, needed))
        check(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_new(
    draft: Draft, files: Iterable[DraftFile], old: Path, new: Path, on_bytes: Callable[[int], None]
) -> None:
    """These files with tensors, and the texts that say something else in `old`, into `new`."""
    done = 0
    for file in files:
        for count in _write_file(file, new / file.name):
            done += count
            on_bytes(done)
    for name, text in draft.all_texts().items():
        if not _says_the_same(old / name, text):
            (new / name).write_text(text, "utf-8")
    for name, path in draft.copied.items():
        shutil.copyfile(path, new / name)


def _copy_small_files(draft: Draft, target: Path) -> None:
    """Tokenizer, template, license and all other files in the folder."""
    for path in sorted(draft.folder.iterdir()):
        is_written = path.name.endswith((".safetensors", ".safetensors.index.json"))
        is_gone = path.name == "hf_quant_config.json" and draft.modelopt_config is None
        if path.is_file() and not is_written and not is_gone and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)


def _says_the_same(path: Path, text: str) -> bool:
    """A file whose values are right keeps its bytes."""
    try:
        return bool(json.loads(path.read_text("utf-8")) == json.loads(text))
    except (OSError, ValueError, RecursionError):
        return False


def _write_file(file: DraftFile, path: Path) -> Iterator[int]:
    """Header and data, tensor by tensor; yields the bytes of each piece."""
    front = safetensors.front(
        (tensor.name, tensor.dtype, tensor.shape, tensor.size) for tensor in file.tensors
    )
    with path.open("wb", buffering=0) as target:
        target.write(front)
        for tensor in file.tensors:
            for piece in pieces(tensor):
                target.write(piece)
                yield len(piece)
        os.fsync(target.fileno())
        os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pieces(tensor: DraftTensor) -> Iterator[bytes]:
    """The bytes of a tensor as they will be."""
    if tensor.content is not None:
        yield tensor.content
        return
    left, at = tensor.size, tensor.start
    with tensor.path.open("rb", buffering=0) as source:
        while left:
            piece = os.pread(source.fileno(), min(_PIECE, left), at)
            if not piece:
                raise FiresteelError(
                    f"{tensor.path} ended too early",
                    next=f"firesteel audit {shlex.quote(str(tensor.path.parent))}",
                )
            left -= len(piece)
            at += len(piece)
            yield piece.translate(tensor.table) if tensor.table else piece


def read_tensor(tensor: DraftTensor) -> bytes:
    return b"".join(pieces(tensor))


# --- in place ---


def write_in_place(draft: Draft, check: Callable[[Path], None], on_progress: Progress) -> None:
    folder, undo = draft.folder, draft.folder / UNDO
    if any(path.is_symlink() for path in folder.iterdir()):
        raise UsageError(
            f"{folder} holds links, as the Hub's cache does: other programs use the same files",
            next="--out FOLDER, which writes a new checkpoint",
        )
    if (undo / "journal.json").exists():
        raise UsageError(
            f"{folder} was repaired before",
            next=f"firesteel audit {shlex.quote(str(folder))} --undo, or remove {undo}",
        )
    shutil.rmtree(undo, ignore_errors=True)
    undo.mkdir()
    patched = [file for file in draft.files if _is_patch(file)]
    rewritten = [file for file in draft.files if not _is_patch(file) and not _is_untouched(file)]
    needed = sum(tensor.size for file in rewritten for tensor in file.tensors)
    require_disk_space(folder, needed, "the repaired checkpoint")
    new = undo / "new"
    new.mkdir()
    _write_new(draft, rewritten, folder, new, lambda done: on_progress(done, needed))
    gone = _gone(draft)
    replaced = sorted({*(path.name for path in new.iterdir()), *gone})
    patches = [entry for file in patched for entry in _save_patches(file, undo)]
    _write_journal(undo, {"replaced": replaced, "patches": patches})
    try:
        _apply(draft, folder, undo, replaced, patched)
        check(folder)
    except BaseException:
        restore(folder)
        raise


def _is_untouched(file: DraftFile) -> bool:
    return file.origin is not None and not any(tensor.is_changed for tensor in file.tensors)


def _is_patch(file: DraftFile) -> bool:
    """The same header; the bytes of some tensors differ."""
    return file.origin is not None and any(tensor.is_changed for tensor in file.tensors)


def _gone(draft: Draft) -> set[str]:
    """Weight files that the new checkpoint does not have, and a description that is no longer true."""
    names = {file.name for file in draft.files}
    gone = {path.name for path in draft.folder.glob("*.safetensors") if path.name not in names}
    description = draft.folder / "hf_quant_config.json"
    if draft.modelopt_config is None and description.exists():
        gone.add(description.name)
    return gone


def _save_patches(file: DraftFile, undo: Path) -> Iterator[dict[str, Any]]:
    """The old bytes of one file, end to end, and where they belong."""
    saved = undo / f"{file.name}.bytes"
    with saved.open("wb") as target:
        for tensor in file.tensors:
            if not tensor.is_changed:
                continue
            with tensor.path.open("rb", buffering=0) as source:
                target.write(os.pread(source.fileno(), tensor.size, tensor.start))
            yield {"file": file.name, "start": tensor.start, "bytes": tensor.size}
        target.flush()
        os.fsync(target.fileno())


def _apply(draft: Draft, folder: Path, undo: Path, replaced: list[str], patched: list[DraftFile]) -> None:
    old = undo / "old"
    old.mkdir()
    for name in replaced:
        if (folder / name).exists():
            (folder / name).rename(old / name)
        if (undo / "new" / name).exists():
            (undo / "new" / name).rename(folder / name)
    for file in patched:
        with (folder / file.name).open("r+b", buffering=0) as target:
            for tensor in file.tensors:
                if tensor.is_changed:
                    at = tensor.start
                    for piece in pieces(tensor):
                        at += os.pwrite(target.fileno(), piece, at)
            os.fsync(target.fileno())


def _write_journal(undo: Path, journal: dict[str, Any]) -> None:
    temporary = undo / "journal.partial"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(journal, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(undo / "journal.json")


def restore(folder: Path) -> tuple[str, ...]:
    """Undoes a repair in place, whole or half done; returns the files that were restored."""
    undo = folder / UNDO
    if not (undo / "journal.json").exists():
        shutil.rmtree(undo, ignore_errors=True)  # killed before it had changed anything
        raise UsageError(
            f"{folder} has no repair to undo", next=f"firesteel audit {shlex.quote(str(folder))} --fix"
        )
    journal = json.loads((undo / "journal.json").read_text("utf-8"))
    restored = set()
    offsets: dict[str, int] = {}
    for patch in journal["patches"]:
        name, start, size = str(patch["file"]), int(patch["start"]), int(patch["bytes"])
        at = offsets.get(name, 0)
        with (
            (undo / f"{name}.bytes").open("rb") as source,
            (folder / name).open("r+b", buffering=0) as target,
        ):
            source.seek(at)
            os.pwrite(target.fileno(), source.read(size), start)
        offsets[name] = at + size
        restored.add(name)
    for name in journal["replaced"]:
        if (undo / "old" / name).exists():
            (undo / "old" / name).replace(folder / name)
        elif not (undo / "new" / name).exists():  # it is new, and was put in place
            with suppress(FileNotFoundError):
                (folder / name).unlink()
        restored.add(name)
    shutil.rmtree(undo)
    return tuple(sorted(restored))
