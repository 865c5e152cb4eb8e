"""What `/proc`, the kernel's log and nvidia-smi say. Pages of this kind were read on real hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.facts.host.memory import (
    GpuProcess,
    Pressure,
    parse_buddyinfo,
    parse_gpu_processes,
    parse_kernel_log,
    parse_oom_kills,
    parse_pressure,
)
from firesteel.units import MIB

BUDDYINFO = """\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal  18993  10991   7645   3735   2055    828   1813   1497   1152    924   3766
"""
NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
    "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)
KILLED = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/user.slice,task=VLLM::EngineCor,pid=4242,uid=1000"
)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (
            "some avg10=1.50 avg60=0.31 avg300=0.06 total=345\n"
            "full avg10=0.25 avg60=0.00 avg300=0.00 total=9\n",
            Pressure(1.5, 0.25),
        ),
        ("some avg10=1.50 avg60=0.31 avg300=0.06 total=345\n", None),
        ("", None),
        ("some avg10=x\nfull avg10=y\n", None),
    ],
)
def test_pressure(text: str, seen: Pressure | None) -> None:
    assert parse_pressure(text) == seen


@pytest.mark.parametrize(
    ("text", "page", "free"),
    [
        (BUDDYINFO, 4096, (1 + 924) * 2 * MIB + (3 + 3766) * 4 * MIB),
        # Pages of 64 KiB: blocks of 2 MiB are of order 5.
        ("Node 0, zone   Normal 9 9 9 9 9 1 1 0 0 0 0 0 0 0\n", 65536, 2 * MIB + 4 * MIB),
        # A fragmented host: https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/23
        ("Node 0, zone   Normal 35000 100 0 0 0 0 0 0 0 0 0\n", 4096, 0),
        ("", 4096, None),
        ("Node 0, zone\n", 4096, None),
    ],
)
def test_free_memory_in_large_blocks(text: str, page: int, free: int | None) -> None:
    assert parse_buddyinfo(text, page) == free


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("nr_free_pages 5\nallocstall_normal 7\noom_kill 2\n", 2),
        ("oom_kill 0\n", 0),
        ("nr_free_pages 5\n", None),
        ("", None),
    ],
)
def test_oom_kills(text: str, seen: int | None) -> None:
    assert parse_oom_kills(text) == seen


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"3,1359,81033194223,-;{NO_MEMORY}\n SUBSYSTEM=pci\n DEVICE=+pci:000f:01:00.0\n", ["no-memory"]),
        (f"[81033.194223] {NO_MEMORY}\n[81033.2] {NO_MEMORY}\n", ["no-memory"] * 2),
        (f"Sep 14 23:16:52 spark kernel: {NO_MEMORY}\n", ["no-memory"]),
        ("4,1,2,-;NVRM: Xid (PCI:000f:01:00): 31, pid=975, name=VLLM::EngineCore, Ch 00000002\n", ["xid"]),
        (f"6,1,2,-;{KILLED}\n3,2,3,-;Out of memory: Killed process 4242 (VLLM::EngineCor)\n", ["oom"] * 2),
        (
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/docker/ab,task=python3\n"
            "3,2,3,-;Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB\n",
            ["oom-cgroup"] * 2,
        ),
        ("6,1,2,-;docker0: port 1(veth6f131f0) entered disabled state\n", []),
        # A program that mentions the message in its own log is not the driver.
        ("6,1,2,-;python3 says NV_ERR_NO_MEMORY\n", []),
        ("", []),
    ],
)
def test_the_kernels_log(text: str, kinds: list[str]) -> None:
    assert [event.kind for event in parse_kernel_log(text)] == kinds


def test_an_event_has_the_message_without_prefix_and_limited() -> None:
    (event,) = parse_kernel_log(f"3,1359,81033194223,-;{NO_MEMORY}\n")
    assert event.text == NO_MEMORY
    (long,) = parse_kernel_log(NO_MEMORY + "x" * 100_000)
    assert len(long.text) == 300


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ("4242, VLLM::EngineCore, 80123 MiB\n", (GpuProcess(4242, "VLLM::EngineCore", 80123 * MIB),)),
        ("4242, python3, [N/A]\n", (GpuProcess(4242, "python3"),)),
        (
            "7, /opt/a, b/run, 5 MiB\n8, x, [Not Supported]\n",
            (GpuProcess(7, "/opt/a, b/run", 5 * MIB), GpuProcess(8, "x")),
        ),
        ("No running processes found\n", ()),
        ("", ()),
    ],
)
def test_who_uses_the_gpu(text: str, users: tuple[GpuProcess, ...]) -> None:
    assert parse_gpu_processes(text) == users


@given(st.text(max_size=300))
def test_no_text_makes_a_reader_fail(text: str) -> None:
    for read in (parse_pressure, parse_buddyinfo, parse_oom_kills, parse_kernel_log, parse_gpu_processes):
        read(text)
