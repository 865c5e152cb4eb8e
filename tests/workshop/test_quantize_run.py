"""Runs that are killed, run out of disk or meet another run."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.home import lock
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.workshop.kernels.native import NumpyKernel
from firesteel.workshop.quantize import run, worker
from firesteel.workshop.quantize.plan import QuantizationPlan, plan_quantization
from firesteel.workshop.quantize.run import UnitJournal, read_journal, run_quantization, staging_folder
from firesteel.workshop.quantize.source import open_source
from firesteel.workshop.quantize.worker import BlockError
from tests.workshop import made_checkpoints as made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return made.write_checkpoint(
        tmp_path / "source", made.QWEN3_MOE, made.fused(made.qwen3_moe(), 4), shards=3
    )


def files(folder: Path) -> dict[str, bytes]:
    """All but the catalog entries, which have the name of the folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def plan_of(source: Path, to: str = "nvfp4") -> QuantizationPlan:
    return plan_quantization(open_source(str(source)), to)


@pytest.mark.parametrize("to", ["nvfp4", "fp8-dynamic"])
def test_a_run_that_is_killed_five_times_gives_the_same_bytes(to: str, source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.workshop.killed_run", str(source)]
    root = Path(__file__).parents[2]
    alone: dict[str, Any] = {
        "check": True,
        "cwd": root,
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
    }
    subprocess.run([*command, str(tmp_path / "whole"), to], **alone)
    resumed = []
    for kill_after in (4, 24, 4, 16, 4):  # of 47 units; about every eleventh is synced
        argv = [*command, str(tmp_path / "out"), to]
        with subprocess.Popen(
            argv, cwd=root, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin and process.stdout
            first = process.stdout.readline()
            for _ in range(kill_after - 1):
                process.stdin.write(b"\n")
                process.stdout.readline()
            process.kill()
        resumed.append(int(first.split()[1]))
        assert not (tmp_path / "out").exists(), "the result appears when it is whole"
    subprocess.run([*command, str(tmp_path / "out"), to], **alone)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert resumed[-1] > 0, "later runs went on where earlier ones were"
    assert not staging_folder(tmp_path / "out").exists()


def test_large_matrices_go_by_rows(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for to in ("nvfp4", "fp8-block", "mxfp4", "nvfp4-spark"):
        run_quantization(plan_of(source, to), tmp_path / f"{to}-whole", NumpyKernel(), 2)
    monkeypatch.setattr(worker, "UNIT_ELEMENTS", 16_384)
    monkeypatch.setattr(run, "MEMORY_BYTES", 2**20)
    for to in ("nvfp4", "fp8-block", "mxfp4", "nvfp4-spark"):
        run_quantization(plan_of(source, to), tmp_path / f"{to}-rows", NumpyKernel(), 3)
        weights = (files(tmp_path / f"{to}-{kind}")["model.safetensors"] for kind in ("whole", "rows"))
        assert len(set(weights)) == 1, to


def test_another_plan_or_a_changed_source_starts_anew(source: Path, tmp_path: Path) -> None:
    plan = plan_of(source)
    staging = staging_folder(tmp_path / "out")
    (staging / "out").mkdir(parents=True)
    UnitJournal(staging / "journal.jsonl", plan.digest, [()] * 3).close()
    (shard,) = source.glob("*-00001-*")
    os.utime(shard, ns=(1, 1))
    changed = plan_of(source)
    assert read_journal(staging / "journal.jsonl", plan.digest) == [(), (), ()]
    assert read_journal(staging / "journal.jsonl", changed.digest) is None
    assert read_journal(staging / "journal.jsonl", plan_of(source, "mxfp4").digest) is None
    result = run_quantization(changed, tmp_path / "out", NumpyKernel(), 2)
    assert result.resumed_bytes == 0


def test_a_torn_journal_counts_up_to_the_tear(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    entries = [(BlockError("a", 0.1, 1.5),), (), (BlockError("b", 0.25, 3.0),)]
    journal = UnitJournal(path, "digest", [])
    journal.append(entries)
    journal.close()
    whole = path.read_bytes()
    assert read_journal(path, "digest") == entries
    counts = set()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        done = read_journal(path, "digest")
        assert done is None or done == entries[: len(done)]
        counts.add(None if done is None else len(done))
    assert counts == {None, 0, 1, 2}


def test_a_disk_that_is_too_small_is_told_before(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "free_bytes", lambda folder: 1000)
    with pytest.raises(HostNotReady, match=r"needs .* free"):
        run_quantization(plan_of(source), tmp_path / "out", NumpyKernel(), 2)
    assert not staging_folder(tmp_path / "out").exists()


def test_a_disk_that_becomes_full_is_told_and_the_run_goes_on_later(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/dev/full` cannot stand in for a file with offsets, so the tenth write fails like a full disk's."""
    writes = iter(range(10**6))
    pwrite = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if next(writes) >= 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(HostNotReady, match="is full"):
            run_quantization(plan_of(source), tmp_path / "out", NumpyKernel(), 2)
    assert not (tmp_path / "out").exists()
    run_quantization(plan_of(source), tmp_path / "out", NumpyKernel(), 2)
    run_quantization(plan_of(source), tmp_path / "again", NumpyKernel(), 2)
    assert files(tmp_path / "out") == files(tmp_path / "again")


def test_two_runs_do_not_write_into_one_folder(source: Path, tmp_path: Path) -> None:
    with (
        lock(staging_folder(tmp_path / "out") / "lock"),
        pytest.raises(FiresteelError, match="another process"),
    ):
        run_quantization(plan_of(source), tmp_path / "out", NumpyKernel(), 2)


def test_nothing_is_overwritten(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="already exists"):
        run_quantization(plan_of(source), tmp_path / "out", NumpyKernel(), 2)


def test_a_source_that_shrinks_meanwhile_is_told(source: Path, tmp_path: Path) -> None:
    plan = plan_of(source)
    (shard,) = source.glob("*-00002-*")
    os.truncate(shard, 5000)
    with pytest.raises(FiresteelError, match="ended in the middle"):
        run_quantization(plan, tmp_path / "out", NumpyKernel(), 2)


def test_an_interrupt_ends_the_run_and_keeps_what_is_done(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_SYNC_BYTES", 1)

    def interrupt(progress: run.QuantizationProgress) -> None:
        if progress.done_bytes > 300_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_quantization(plan_of(source), tmp_path / "out", NumpyKernel(), 2, interrupt)
    assert run_quantization(plan_of(source), tmp_path / "out", NumpyKernel(), 2).resumed_bytes > 300_000


def test_threads_do_not_change_the_bytes(source: Path, tmp_path: Path) -> None:
    for threads in (1, 4):
        run_quantization(plan_of(source), tmp_path / str(threads), NumpyKernel(), threads)
    assert files(tmp_path / "1") == files(tmp_path / "4")


def test_a_worker_closes_its_files(source: Path, tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    run_quantization(plan_of(source), tmp_path / "out", NumpyKernel(), 2)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
