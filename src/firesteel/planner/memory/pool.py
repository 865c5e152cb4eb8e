"""The memory that a launch uses: the host's, or that of a GPU with its own memory.

On a GB10 and on a machine without a GPU there is one pool. On any other machine a container with a GPU
loads its weights into the GPU's memory, and the host's memory says nothing about whether they fit.
"""

from __future__ import annotations

from firesteel.facts.host.gpus import discrete_gpu
from firesteel.facts.host.hardware import Host
from firesteel.launch import Launch
from firesteel.units import GIB
from firesteel.values import Value, replace


class MemoryPool(Value):
    total_bytes: int
    budget_bytes: int
    """What a launch may use."""
    bandwidth_bytes_per_s: float | None
    hardware: str | None
    """Name of the hardware file, for a launch that runs on its GPU."""
    has_gpu: bool
    is_host_memory: bool = True
    note: str | None = None


def pool(launch: Launch, host: Host) -> MemoryPool:
    """With several GPUs, that of the smallest: then the launch fits whichever GPU the engine takes."""
    shared = MemoryPool(
        host.memory_total_bytes,
        host.room_bytes,
        host.bandwidth_bytes_per_s,
        # The hardware's figures are those of its GPU; a container without one was always planned by them.
        host.hardware if launch.container or launch.uses_gpu else None,
        bool(host.gpus or host.hardware),
    )
    discrete = () if host.hardware else host.gpus
    if not discrete or not launch.uses_gpu:
        return shared
    sizes = [gpu.memory_bytes for gpu in discrete if gpu.memory_bytes]
    if not sizes:
        note = (
            f"the memory of {discrete[0].name} is not known, so this plan uses the host's; "
            "`nvidia-smi --query-gpu=memory.total --format=csv` shows it"
        )
        return replace(shared, bandwidth_bytes_per_s=None, note=note)
    total = min(sizes)
    known = discrete_gpu(discrete[0].name)
    rate = f"{known.bandwidth / 1e9:,.0f} GB/s by its data sheet" if known else "bandwidth not known"
    return replace(
        shared,
        total_bytes=total,
        budget_bytes=max(0, total - max(GIB, total // 20)),
        bandwidth_bytes_per_s=float(known.bandwidth) if known else None,
        is_host_memory=False,
        note=f"planned for the whole memory of one {discrete[0].name}, {rate}; the speed model is not "
        "calibrated for it: `firesteel bench` measures it",
    )
