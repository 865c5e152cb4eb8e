"""Processes that outlive their parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firesteel.edge.host import process


def test_a_detached_process_inherits_no_open_files(tmp_path: Path) -> None:
    """Whoever reads a pipe to its end must not wait for a supervisor."""
    reads, writes = os.pipe()
    os.set_inheritable(writes, True)
    ready = tmp_path / "ready"
    code = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    number = process.start_detached([sys.executable, "-c", code], tmp_path / "log", os.environ)
    try:
        os.close(writes)
        for _ in range(200):
            if ready.exists():
                break
            time.sleep(0.05)
        assert ready.exists(), (tmp_path / "log").read_text()
        files = {entry.name: str(entry.readlink()) for entry in Path(f"/proc/{number}/fd").iterdir()}
        assert files == {"0": "/dev/null", "1": str(tmp_path / "log"), "2": str(tmp_path / "log")}
        os.set_blocking(reads, False)
        assert os.read(reads, 1) == b"", "nobody holds the other end"
    finally:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        os.close(reads)


def test_two_engines_with_the_same_weights_need_them_each(tmp_path: Path) -> None:
    size = 64 * 2**20
    (tmp_path / "weights").write_bytes(b"x" * size)
    code = (
        "import mmap, os, sys\n"
        f"file = os.open({str(tmp_path / 'weights')!r}, os.O_RDONLY)\n"
        "view = mmap.mmap(file, 0, prot=mmap.PROT_READ)\n"
        "assert sum(view[at] for at in range(0, len(view), 4096))\n"
        "print('mapped', flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for child in both:
            assert child.stdout and child.stdout.readline() == b"mapped\n"
        found = [process.memory(process.find(child.pid) or pytest.fail("it is gone")) for child in both]
    finally:
        for child in both:
            child.communicate()
    assert all(size <= memory.total_bytes < size + 100 * 2**20 for memory in found)
    assert all(memory.own_bytes < size for memory in found), "files are not given back by its end"


async def test_a_cancelled_program_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    file = tmp_path / "number"
    program = asyncio.create_task(
        process.run("sh", "-c", f"sleep 3600 & echo $! >{file}.new; mv {file}.new {file}; wait")
    )
    async with asyncio.timeout(90):
        while not file.exists():
            await asyncio.sleep(0.02)
        program.cancel()
        with pytest.raises(asyncio.CancelledError):
            await program
        while process.find(int(file.read_text())):  # it was killed; ending takes a moment
            await asyncio.sleep(0.02)


def test_a_process_name_may_end_inside_a_character() -> None:
    """Linux cuts the name after 15 bytes."""
    name = rb"mod\xc3\xa8le-\xc3\xa9\xc3\xa9\xc3\xa9\xc3".decode()
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        assert (pid := process.find(child.pid)) is not None
        assert process.tree_activity(child.pid) is not None
        assert process.memory(pid).total_bytes > 0
    finally:
        child.kill()
        child.communicate()
