"""The memory that a launch lives in: the host's, or that of a GPU that has its own.

On a GB10 and on a machine without a GPU that is the same pool. In any other machine a container with a
GPU loads its weights into the GPU's memory, and the host's memory says nothing about whether they fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from firesteel.facts import Host
from firesteel.launch import Launch
from firesteel.units import GIB


@dataclass(frozen=True, slots=True)
class MemoryPool:
    total_bytes: int
    room_bytes: int
    keep_free_bytes: int
    bandwidth_bytes_per_s: float | None
    hardware: str | None
    """Name of the hardware file, for what runs on its GPU."""
    has_gpu: bool
    is_host_memory: bool = True
    note: str | None = None


def pool(launch: Launch, host: Host) -> MemoryPool:
    """With several GPUs, the smallest: whichever the engine takes, it fits."""
    shared = MemoryPool(
        host.memory_total_bytes,
        host.room_bytes,
        host.keep_free_bytes,
        host.bandwidth_bytes_per_s,
        # A child process is the embedded engine, which runs on the CPU whatever GPU there is.
        host.hardware if launch.container else None,
        bool(host.gpus or host.hardware),
    )
    discrete = () if host.hardware else host.gpus
    if not discrete or launch.container is None or launch.container.gpus is None:
        return shared
    sizes = [gpu.memory_bytes for gpu in discrete if gpu.memory_bytes]
    if not sizes:
        note = (
            f"the memory of {discrete[0].name} is not known, so this is planned with the host's; "
            "`nvidia-smi --query-gpu=memory.total --format=csv` would tell"
        )
        return replace(shared, bandwidth_bytes_per_s=None, note=note)
    total = min(sizes)
    kept = max(GIB, total // 20)
    return replace(
        shared,
        total_bytes=total,
        room_bytes=max(0, total - kept),
        keep_free_bytes=kept,
        bandwidth_bytes_per_s=None,
        is_host_memory=False,
        note=f"planned for the memory of one {discrete[0].name}, as if empty; its bandwidth is not known",
    )
