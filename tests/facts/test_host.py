from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.facts.host.hardware import Gpu, Host, Meminfo, keep_free_bytes
from firesteel.units import GIB, MIB

SPARK_MEMINFO = """\
MemTotal:       127600228 kB
MemFree:        11890412 kB
MemAvailable:   122034540 kB
Buffers:          412316 kB
Cached:         108034540 kB
SwapTotal:      16777212 kB
SwapFree:       16190460 kB
Shmem:             91228 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
"""


def test_meminfo_is_kib() -> None:
    memory = Meminfo.parse(SPARK_MEMINFO)
    assert memory.total_bytes == 127600228 * 1024
    assert memory.available_bytes == 122034540 * 1024
    assert memory.free_bytes == 11890412 * 1024


def test_meminfo_of_the_page_cache_swap_and_huge_pages() -> None:
    memory = Meminfo.parse(SPARK_MEMINFO)
    assert memory.cached_bytes == 108034540 * 1024
    assert memory.shmem_bytes == 91228 * 1024
    assert memory.swap_used_bytes == (16777212 - 16190460) * 1024
    assert memory.huge_pages_bytes == 0
    reserved = SPARK_MEMINFO.replace("HugePages_Total:       0", "HugePages_Total:    4096")
    assert Meminfo.parse(reserved).huge_pages_bytes == 8 * GIB


def test_meminfo_with_few_fields() -> None:
    memory = Meminfo.parse("MemTotal: 8 kB\nMemFree: 2 kB\nMemAvailable: 4 kB\nHugePages_Total: 3\n")
    assert memory == Meminfo(8192, 4096, 2048)
    assert memory.swap_used_bytes is None


def test_meminfo_without_what_we_need() -> None:
    with pytest.raises(ValueError, match="MemAvailable"):
        Meminfo.parse("MemTotal: 1 kB\nMemFree: 1 kB\n")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("NVIDIA GB10, 580.95.05, 12.1\n", (Gpu("NVIDIA GB10", "580.95.05", "12.1"),)),
        ("NVIDIA H200, 570.1, 9.0\nNVIDIA H200, 570.1, 9.0\n", (Gpu("NVIDIA H200", "570.1", "9.0"),) * 2),
        ("NVIDIA GB10, 580.95.05, 12.1, [N/A]\n", (Gpu("NVIDIA GB10", "580.95.05", "12.1"),)),
        ("NVIDIA H200, 570.1, 9.0, 143771 MiB\n", (Gpu("NVIDIA H200", "570.1", "9.0", 143771 * MIB),)),
        ("NVIDIA H200, 570.1, 9.0, 143771\n", (Gpu("NVIDIA H200", "570.1", "9.0", 143771 * MIB),)),
        ("", ()),
        ("No devices were found\n", ()),
    ],
)
def test_gpus(text: str, gpus: tuple[Gpu, ...]) -> None:
    assert Gpu.parse(text) == gpus


def test_only_a_gb10_is_a_gb10() -> None:
    assert Gpu("NVIDIA GB10", "580", "12.1").is_gb10
    assert not Gpu("NVIDIA GB200", "580", "10.0").is_gb10
    assert not Gpu("NVIDIA RTX PRO 6000", "580", "12.0").is_gb10


@pytest.mark.parametrize(
    ("total", "ceiling", "kept"),
    [
        (120 * GIB, 105 * GIB, 15 * GIB),
        (105 * GIB, 105 * GIB, 4 * GIB),
        (40 * GIB, 105 * GIB, 2 * GIB),
        (2 * GIB, None, 512 * MIB),
        (20 * GIB, None, GIB),
        (512 * GIB, None, 4 * GIB),
    ],
)
def test_memory_to_keep_free(total: int, ceiling: int | None, kept: int) -> None:
    assert keep_free_bytes(total, ceiling) == kept


@given(
    st.integers(GIB, 2048 * GIB), st.one_of(st.none(), st.integers(1, 256 * GIB)), st.integers(0, 2048 * GIB)
)
def test_some_memory_stays_free(total: int, ceiling: int | None, available: int) -> None:
    kept = keep_free_bytes(total, ceiling)
    assert 0 < kept < total
    host = Host("local", "a machine", None, 1, total, min(available, total), kept, None, "measured")
    assert 0 <= host.room_bytes <= host.memory_available_bytes
