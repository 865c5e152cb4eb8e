"""Reading memory from this very machine, and giving page cache back with real files."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from firesteel.edge.home import Home
from firesteel.edge.host import nvidia_smi
from firesteel.edge.host.machine import local_host
from firesteel.edge.host.memory import Evicted, KernelLog, evict, gpu_processes, sample, shm
from firesteel.errors import HostNotReady
from firesteel.facts.host.memory import GpuProcess
from firesteel.units import KIB, MIB

NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
    "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)


def program(folder: Path, name: str, text: str) -> None:
    """A fake program that comes first on PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_this_machine() -> None:
    seen = sample()
    assert seen.memory is not None
    assert 0 < seen.memory.free_bytes <= seen.memory.total_bytes
    assert seen.large_blocks_bytes is None or seen.large_blocks_bytes <= seen.memory.total_bytes
    assert seen.kernel is None, "nobody opened the log"
    assert sample().at_s > seen.at_s


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    seen = sample(proc=tmp_path)
    assert (seen.memory, seen.pressure, seen.large_blocks_bytes, seen.oom_kills) == (None,) * 4
    (tmp_path / "meminfo").write_text("MemTotal: many kB\n")
    (tmp_path / "vmstat").write_bytes(b"\xff\xfe")
    assert sample(proc=tmp_path).memory is None


def test_the_kernels_log_tells_what_came_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firesteel.edge.host.memory.machine_file", lambda name: tmp_path / name)
    kmsg = tmp_path / "dev" / "kmsg"
    kmsg.parent.mkdir()
    kmsg.write_text(f"3,1,1,-;{NO_MEMORY}\n")
    log = KernelLog()
    try:
        assert log.new_events() == ()
        with kmsg.open("a") as kernel:
            kernel.write(f"6,2,2,-;eth0: up\n3,3,3,-;{NO_MEMORY}\n3,4,4,-;NVRM: nvCheckOk")
        events = log.new_events()
        assert events is not None and [event.kind for event in events] == ["no-memory"]
        with kmsg.open("a") as kernel:
            kernel.write("FailedNoLog: Out of memory [NV_ERR_NO_MEMORY]\n")
        events = log.new_events()
        assert events is not None and [event.kind for event in events] == ["no-memory"], (
            "a line in two halves"
        )
        assert log.new_events() == ()
    finally:
        log.close()
    assert log.new_events() is None


def test_a_log_that_cannot_be_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firesteel.edge.host.memory.machine_file", lambda name: tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path))
    log = KernelLog()
    assert sample(log).kernel is None


def test_the_journal_is_read_where_kmsg_may_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake journalctl: an old line for `--lines=1`, a new one for `--follow`."""
    monkeypatch.setattr("firesteel.edge.host.memory.machine_file", lambda name: tmp_path / name)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    new, shown = tmp_path / "new", tmp_path / "shown"
    new.write_text(NO_MEMORY + "\n")
    program(
        tmp_path,
        "journalctl",
        f'case "$*" in *--follow*) cat "{new}"; : >"{shown}"; exec sleep 60;; *) echo "Linux 7";; esac',
    )
    log = KernelLog()
    try:
        deadline = time.monotonic() + 120
        while not shown.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        events = log.new_events()
        assert events is not None and [event.kind for event in events] == ["no-memory"]
    finally:
        log.close()


def test_an_empty_journal_is_not_ours_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firesteel.edge.host.memory.machine_file", lambda name: tmp_path / name)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "journalctl", "exit 0")
    assert KernelLog().new_events() is None


def cached_bytes(path: Path) -> int:
    """As util-linux's own tool counts them."""
    argv = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file on the disk and in the page cache."""
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(os.urandom(MIB) * 8)
        os.fsync(file.fileno())
    path.read_bytes()
    return path


@pytest.mark.skipif(shutil.which("fincore") is None, reason="needs fincore of util-linux")
def test_evict_drops_a_file_from_the_page_cache(written: Path) -> None:
    before = cached_bytes(written)
    if before != 8 * MIB:
        pytest.skip("this file system keeps no page cache")
    evicted = evict([written])
    assert cached_bytes(written) == 0
    assert evicted.files == 1
    assert evicted.bytes in (8 * MIB, None), "None on kernels before 6.5"
    assert written.read_bytes()[:MIB] == written.read_bytes()[MIB : 2 * MIB], "and it is still there"


def test_a_file_with_several_names_counts_once(written: Path, tmp_path: Path) -> None:
    """As the Hub's cache has it: blobs, and links to them."""
    (tmp_path / "link").symlink_to(written)
    (tmp_path / "hard").hardlink_to(written)
    assert evict([written, tmp_path / "link", tmp_path / "hard"]).files == 1


def test_what_cannot_be_evicted_is_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert evict([tmp_path, tmp_path / "nothing", tmp_path / "pipe"]) == Evicted(0, 0)


def test_shared_memory_has_a_size() -> None:
    size = shm()
    assert size is None or 0 <= size.used_bytes <= size.total_bytes


@pytest.mark.parametrize(
    ("script", "processes"),
    [
        ("echo '4242, VLLM::EngineCore, 80123 MiB'", (GpuProcess(4242, "VLLM::EngineCore", 80123 * MIB),)),
        ("echo '4242, python3, [N/A]'", (GpuProcess(4242, "python3"),)),
        ("", ()),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", None),
    ],
)
def test_gpu_processes(
    script: str, processes: tuple[GpuProcess, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "nvidia-smi", script)
    assert gpu_processes() == processes


def test_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_processes() is None


def test_an_nvidia_smi_that_hangs_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(nvidia_smi, "_TIMEOUT_S", 0.1)
    program(tmp_path, "nvidia-smi", "exec sleep 7200")
    assert gpu_processes() is None
    # a machine whose GPU did not answer is not one without a GPU: nothing is planned for it, nothing measured
    with pytest.raises(HostNotReady, match="nvidia-smi did not answer within"):
        local_host(Home(tmp_path))
    assert not (tmp_path / "bandwidth.json").exists()


def test_sizes_are_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4 kB\nMemFree: 1 kB\nMemAvailable: 2 kB\n")
    memory = sample(proc=tmp_path).memory
    assert memory is not None and memory.available_bytes == 2 * KIB
