"""`audit`: reads a checkpoint, has it judged, and puts what was found into a report. Changes nothing.

Reads headers, scales and small files. The deep audit, only when asked, reads every byte of every weight file
once, in bounded memory: weights that are not numbers, all block scales, and the digests that the Hub lists.
What was read is dropped from the page cache as it goes: on a Spark that is the GPU's memory.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from firesteel.edge.contents import gguf_parts, local_folder, published_files, read_contents
from firesteel.edge.hub.files import HubFile
from firesteel.errors import UsageError
from firesteel.facts.formats.gguf import BLOCK_SCALES, GGML_TYPES, GgufHeader
from firesteel.facts.formats.number_bytes import (
    E4M3_MAX,
    ValueSummary,
    is_number_type,
    summarize,
    summarize_blocks,
    value_of,
)
from firesteel.facts.model.contents import SCALES, CheckpointContents, WeightFile, split_name
from firesteel.facts.model.tensors import Tensor
from firesteel.rules.checkpoint.audited import AuditedCheckpoint
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.rules.checkpoint.judge import CheckpointSummary, judge, summarize_checkpoint
from firesteel.units import MIB
from firesteel.values import Value, replace

np: Any
try:
    import numpy as np
except ImportError:  # then it takes longer
    np = None

_PIECE = 8 * MIB
_BLOCK_BYTES = {name: size for name, _, size in GGML_TYPES.values()}
Progress = Callable[[int, int], None]


def read_everything(
    contents: CheckpointContents, on_progress: Progress, environ: Mapping[str, str] = os.environ
) -> CheckpointContents:
    """Read every byte on the disk: compare the files with the published digests, and summarize the values of
    the tensors."""
    folder = local_folder(contents, environ)
    if folder is None:
        raise UsageError(
            f"--deep reads every byte, and {contents.origin} is not on this disk",
            next=f"firesteel pull {contents.origin}",
        )
    digests = published_files(folder, environ)
    if contents.format == "gguf":
        return _read_gguf(contents, folder, digests, on_progress)
    cut = ("truncated", "too long")
    readable = [file for file in contents.files if file.is_listed and file.tensors and file.defect not in cut]
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
                table[name] = table[name].merged(found) if name in table else found
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


def _read_gguf(
    contents: CheckpointContents, folder: Path, digests: Mapping[str, HubFile], on_progress: Progress
) -> CheckpointContents:
    """Every value that is a float, every scale of a block, and the digests that the Hub lists."""
    path = Path(contents.origin)
    if any(file.defect for file in contents.files):
        return replace(contents, is_deep=True)
    parts = gguf_parts(path if path.is_file() else folder / contents.files[0].name)
    total, done = sum(part.stat().st_size for part, _ in parts), 0
    weights: dict[str, ValueSummary] = {}
    wrong: list[WeightFile] = []
    for part, header in parts:
        digest = digests.get(part.name)
        hasher = digest.new_hash() if digest else None
        for tensor, piece in _gguf_pieces(part, header):
            if hasher:
                hasher.update(piece)
            if tensor and (found := _summarize_tensor(tensor, piece)):
                weights[tensor.name] = weights[tensor.name].merged(found) if tensor.name in weights else found
            done += len(piece)
            on_progress(done, total)
        if digest and hasher and hasher.hexdigest() != digest.digest:
            why = f"the bytes of {part.name} are not those that were published"
            wrong.append(WeightFile(part.name, part.stat().st_size, defect="wrong digest", why=why))
    files = tuple(wrong) or contents.files
    return replace(contents, files=files, weight_values=weights, is_deep=True, read_bytes=done)


def _gguf_pieces(path: Path, header: GgufHeader) -> Iterator[tuple[Tensor | None, bytes]]:
    """The whole file in order, in pieces of whole blocks; what lies between tensors has none."""
    with path.open("rb", buffering=0) as source:
        yield None, source.read(header.data_offset)
        for tensor in header.tensors:
            left, step = tensor.bytes, _PIECE // _BLOCK_BYTES[tensor.dtype] * _BLOCK_BYTES[tensor.dtype]
            while left:
                piece = source.read(min(step, left))
                if not piece:
                    return
                left -= len(piece)
                yield tensor, piece
            os.posix_fadvise(source.fileno(), 0, source.tell(), os.POSIX_FADV_DONTNEED)
            if padding := -source.tell() % header.alignment:
                yield None, source.read(padding)


def _summarize_tensor(tensor: Tensor, piece: bytes) -> ValueSummary | None:
    if starts := BLOCK_SCALES.get(tensor.dtype):
        return summarize_blocks(piece, _BLOCK_BYTES[tensor.dtype], starts)
    return summarize_fast(tensor.dtype, piece) if is_number_type(tensor.dtype) else None


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
    """With numpy where it is installed: ten times as fast."""
    if np is None or dtype not in ("BF16", "F16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "F32"):
        return summarize(dtype, piece)
    if dtype == "F32":
        return _summarize_floats(np.frombuffer(piece, "<f4"))
    bits = np.frombuffer(piece, "<u2" if dtype in ("BF16", "F16") else "u1")
    values = _values(dtype)
    counts = np.bincount(bits, minlength=len(values))
    is_finite = np.isfinite(values)
    seen = values[is_finite & (counts > 0)]
    return ValueSummary(
        len(bits),
        float(seen.min()) if len(seen) else math.nan,
        float(seen.max()) if len(seen) else math.nan,
        int(counts[values == 0].sum()),
        int(counts[is_finite & (values < 0)].sum()),
        int(counts[~is_finite].sum()),
        int(counts[values == E4M3_MAX].sum()) if dtype == "F8_E4M3" else 0,
    )


@cache
def _values(dtype: str) -> Any:
    """The number that each bit pattern stands for."""
    if dtype == "BF16":
        return (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    if dtype == "F16":
        return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    return np.array([value_of(dtype, bits) for bits in range(256)])


def _summarize_floats(values: Any) -> ValueSummary:
    finite = values[np.isfinite(values)]
    return ValueSummary(
        len(values),
        float(finite.min()) if len(finite) else math.nan,
        float(finite.max()) if len(finite) else math.nan,
        int((values == 0).sum()),
        int((finite < 0).sum()),
        len(values) - len(finite),
    )


class AuditReport(Value, tag_field="document", tag="firesteel.audit/1"):
    """`firesteel audit MODEL --json`"""

    model: str
    is_clean: bool
    """Nothing that an engine would stumble over; notes do not count."""
    is_deep: bool
    summary: CheckpointSummary
    findings: tuple[CheckpointFinding, ...]
    unread: tuple[str, ...]
    """What was not read, and why."""
    read_bytes: int
    seconds: float

    @property
    def exit_code(self) -> int:
        """3: an engine refuses it, or answers with garbage; 1: it is worse than it should be."""
        if any(found.level == "stop" for found in self.findings):
            return 3
        return 0 if self.is_clean else 1

    @property
    def mendable(self) -> tuple[CheckpointFinding, ...]:
        return tuple(found for found in self.findings if found.mend and found.level != "note")


def audit(
    model: str,
    *,
    deep: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    environ: Mapping[str, str] = os.environ,
) -> AuditReport:
    """`deep` reads every byte: weights, all scales, digests. `on_progress` gets the bytes done, and all."""
    began = time.monotonic()
    contents = read_contents(model, environ)
    if deep:
        contents = read_everything(contents, on_progress, environ)
    return report(contents, time.monotonic() - began)


def report(contents: CheckpointContents, seconds: float = 0.0) -> AuditReport:
    subject = AuditedCheckpoint(contents)
    findings = judge(subject)
    return AuditReport(
        contents.origin,
        all(found.level == "note" for found in findings),
        contents.is_deep,
        summarize_checkpoint(subject),
        findings,
        contents.unread,
        contents.read_bytes,
        seconds,
    )
