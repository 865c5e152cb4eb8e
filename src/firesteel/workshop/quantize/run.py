"""Runs a plan: threads over units, in bounded memory. A killed run can be resumed; no result is ever partial.

The journal has a line for each unit that is done, appended only after its bytes are on the disk. A line that
was torn when the run was killed, and all after it, is dropped.

    {"plan": "DIGEST"}
    [0, [["model.layers.0.mlp.up_proj", 0.01, 3.2]]]    unit 0: squared error and norm of its matrix
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from firesteel.edge.home import Locked, free_bytes, lock
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.units import show_bytes
from firesteel.values import Value
from firesteel.workshop.kernels.native import Kernel
from firesteel.workshop.quantize.formats import is_nvfp4
from firesteel.workshop.quantize.plan import QuantizationPlan
from firesteel.workshop.quantize.results import QuantizationResult, collect_errors, write_documents
from firesteel.workshop.quantize.source import INDEX
from firesteel.workshop.quantize.worker import (
    BlockError,
    CopyUnit,
    QuantizeUnit,
    Unit,
    Worker,
    row_blocks,
    units_of,
)

Entry = tuple[BlockError, ...]


def read_journal(path: Path, digest: str) -> list[Entry] | None:
    """The units that are done, in order; None: the journal is of another plan, or there is none."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    if not lines or _parse(lines[0]) != {"plan": digest}:
        return None
    done: list[Entry] = []
    for line in lines[1:]:
        entry = _entry(_parse(line), len(done))
        if entry is None:
            break
        done.append(entry)
    return done


def _parse(line: bytes) -> object:
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None


def _entry(value: object, number: int) -> Entry | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    own, errors = value
    try:
        entry = tuple(BlockError(str(name), float(error), float(norm)) for name, error, norm in errors)
    except (TypeError, ValueError):
        return None
    return entry if own == number else None


class UnitJournal:
    """Starts over, or continues after the entries that are kept."""

    def __init__(self, path: Path, digest: str, done: list[Entry]) -> None:
        temporary = path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"plan": digest}) + "\n")
            file.writelines(_line(number, entry) for number, entry in enumerate(done))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        self._file = path.open("a", encoding="utf-8")
        self._count = len(done)

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._file.write(_line(self._count, entry))
            self._count += 1
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _line(number: int, entry: Entry) -> str:
    return json.dumps([number, [[block.module, block.error, block.norm] for block in entry]]) + "\n"


MEMORY_BYTES = 2**30
"""What units in flight may take together; the process itself takes about 100 MB more."""
_SYNC_BYTES = 256 * 2**20
_C_BYTES, _NUMPY_BYTES, _FP8_BYTES = 8, 48, 40
"""Memory for each weight of a unit: in the C kernel, in numpy, and if FP8 is dequantized first."""
_SPARE_BYTES = 64 * 2**20
"""Disk space for the tokenizer and other small files."""


class QuantizationProgress(Value):
    done_bytes: int
    """Bytes of the source that are done."""
    total_bytes: int
    resumed_bytes: int
    """Done by an earlier run."""
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return (self.done_bytes - self.resumed_bytes) / self.seconds if self.seconds else 0.0

    @property
    def eta_s(self) -> float | None:
        speed = self.bytes_per_s
        return (self.total_bytes - self.done_bytes) / speed if speed else None


def staging_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.quantizing")


def is_result_of(plan: QuantizationPlan, out: Path) -> bool:
    """Whether a folder has all files of the plan: a run that ended, of which only the upload is left."""
    for file in plan.files:
        try:
            with (out / file.name).open("rb") as opened:
                if (
                    opened.read(len(file.header)) != file.header
                    or (out / file.name).stat().st_size != file.bytes
                ):
                    return False
        except OSError:
            return False
    return True


def require_place(plan: QuantizationPlan, out: Path) -> None:
    """The folder must not exist, and its disk have space; what an earlier run has written counts."""
    if os.path.lexists(out):
        raise UsageError(f"{out} already exists", next="--out another folder, or remove this one")
    staged = sum(path.stat().st_blocks * 512 for path in staging_folder(out).glob("out/*.safetensors"))
    needed, free = plan.bytes + _SPARE_BYTES - staged, free_bytes(out.parent)
    if needed > free:
        raise HostNotReady(
            f"{out.name} needs {show_bytes(needed)}; the disk under {out.parent} has {show_bytes(free)} free",
            next="free some space, or --out /path/with/space/NAME",
        )


def run_quantization(
    plan: QuantizationPlan,
    out: Path,
    kernel: Kernel,
    threads: int,
    report: Callable[[QuantizationProgress], None] = lambda progress: None,
    organization: str | None = None,
) -> QuantizationResult:
    """Writes the checkpoint into the folder `out`, which must not exist yet.

    `organization` is that of its future place on the Hub, for the catalog entries.
    """
    require_place(plan, out)
    staging = staging_folder(out)
    try:
        with _explain_full_disk(out), lock(staging / "lock"):
            result = _Run(plan, staging, kernel, threads, report).finish()
            write_documents(plan, staging / "out", result, out.name, organization)
            (staging / "out").rename(out)
            _sync_folder(out.parent)
    except Locked:
        raise FiresteelError(
            f"another process quantizes into {out} now", next="wait for it, or --out"
        ) from None
    shutil.rmtree(staging, ignore_errors=True)
    return result


@contextmanager
def _explain_full_disk(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise HostNotReady(
            f"the disk under {out.parent} is full; what was written is kept",
            next="free some space and run the same command again: it resumes where it left off",
        ) from error


class _Run:
    def __init__(
        self,
        plan: QuantizationPlan,
        staging: Path,
        kernel: Kernel,
        threads: int,
        report: Callable[[QuantizationProgress], None],
    ) -> None:
        self._plan, self._kernel, self._threads, self._report = plan, kernel, threads, report
        self._folder = staging / "out"
        done = read_journal(staging / "journal.jsonl", plan.digest)
        if done is None or not self._has_files():
            done = []
            self._make_files()
        self._entries: list[Entry] = done
        self._resumed = sum(map(_source_bytes, islice(units_of(plan), len(done))))
        self._done_bytes = self._resumed
        self._journal = UnitJournal(staging / "journal.jsonl", plan.digest, done)
        self._worker = Worker(plan, self._folder, kernel)
        self._pending: list[Entry] = []
        self._pending_bytes = 0
        self._syncer = ThreadPoolExecutor(1)
        self._synced: Future[None] | None = None
        self._known: tuple[object, float] = (None, 0.0)
        """The group whose largest value was found last, and that value."""

    def finish(self) -> QuantizationResult:
        started = time.monotonic()
        in_flight: deque[tuple[Unit, Future[Entry], int]] = deque()
        memory = 0
        try:
            with ThreadPoolExecutor(self._threads) as pool:
                try:
                    for unit in islice(units_of(self._plan), len(self._entries), None):
                        cost = self._cost(unit)
                        while in_flight and (
                            memory + cost > MEMORY_BYTES or len(in_flight) > 4 * self._threads
                        ):
                            memory -= self._take(in_flight, started)
                        in_flight.append((unit, self._submit(pool, unit), cost))
                        memory += cost
                    while in_flight:
                        self._take(in_flight, started)
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
            self._sync()
            self._wait_for_sync()
        finally:
            self._syncer.shutdown()
            self._journal.close()
            self._worker.close()
        seconds = time.monotonic() - started
        return QuantizationResult(
            collect_errors(self._entries),
            self._plan.bytes,
            self._resumed,
            seconds,
            self._kernel.name,
            self._threads,
        )

    def _submit(self, pool: ThreadPoolExecutor, unit: Unit) -> Future[Entry]:
        if isinstance(unit, CopyUnit):
            return pool.submit(self._worker.copy, unit)
        largest = None
        if is_nvfp4(unit.blocks[0].matrix.scheme) and not unit.is_whole:
            largest = self._largest(pool, unit)
        return pool.submit(self._worker.quantize, unit, largest)

    def _largest(self, pool: ThreadPoolExecutor, unit: QuantizeUnit) -> float:
        """The largest value of a group that is too large for one unit. Its units follow each other, so one
        group is cached."""
        if self._known[0] is not unit.group:
            blocks = [block for matrix in unit.group.matrices for block in row_blocks(matrix)]
            found = [pool.submit(self._worker.largest, block) for block in blocks]
            self._known = unit.group, max(future.result() for future in found)
        return self._known[1]

    def _take(self, in_flight: deque[tuple[Unit, Future[Entry], int]], started: float) -> int:
        """Waits for the oldest unit; returns the memory that it gives back."""
        unit, future, cost = in_flight.popleft()
        entry = future.result()
        self._pending.append(entry)
        self._pending_bytes += _source_bytes(unit)
        self._done_bytes += _source_bytes(unit)
        if self._pending_bytes >= _SYNC_BYTES:
            self._sync()
        self._report(
            QuantizationProgress(
                self._done_bytes, self._plan.source.bytes, self._resumed, time.monotonic() - started
            )
        )
        return cost

    def _sync(self) -> None:
        """Sync what is finished in a separate thread; quantization continues until the next sync is due."""
        self._wait_for_sync()
        self._synced = self._syncer.submit(self._write_down, self._pending)
        self._entries += self._pending
        self._pending, self._pending_bytes = [], 0

    def _write_down(self, done: list[Entry]) -> None:
        self._worker.sync()
        self._journal.append(done)

    def _wait_for_sync(self) -> None:
        if self._synced:
            self._synced.result()

    def _cost(self, unit: Unit) -> int:
        if isinstance(unit, CopyUnit):
            return unit.elements * (_FP8_BYTES if unit.tensor.block_scale else 2)
        each = _C_BYTES if self._kernel.name == "C" else _NUMPY_BYTES
        matrix = unit.blocks[0].matrix
        if matrix.block_scale:
            each = max(each, _FP8_BYTES)
        return unit.elements * (each * 2 if unit.is_transposed else each)

    def _has_files(self) -> bool:
        paths = ((self._folder / file.name, file.bytes) for file in self._plan.files)
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def _make_files(self) -> None:
        """The headers, and holes where the data goes."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for file in self._plan.files:
            with (self._folder / file.name).open("wb") as opened:
                opened.write(file.header)
                opened.truncate(file.bytes)
        if len(self._plan.files) > 1:
            weight_map = {name: file.name for file in self._plan.files for name in file.offsets}
            total = sum(file.bytes - len(file.header) for file in self._plan.files)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            (self._folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")


def _source_bytes(unit: Unit) -> int:
    if isinstance(unit, CopyUnit):
        return unit.elements if unit.tensor.block_scale else unit.stop - unit.start
    item = {"F32": 4, "F8_E4M3": 1}.get(unit.blocks[0].matrix.source.dtype, 2)
    return unit.elements * item


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
