"""Does the launch fit the machine's memory?

Two checks. The flags alone: a fraction of all memory and the size of `/dev/shm` come out of one pool. And,
where the weights of the model are known, the cache of a single request: vLLM refuses to start when its
share of memory cannot hold the weights and one request of full length.
"""

from __future__ import annotations

from collections.abc import Callable

from firesteel.catalog.catalog import shipped
from firesteel.engines.engine import served_capacity
from firesteel.engines.kv_cache import size_kv_cache
from firesteel.errors import FiresteelError
from firesteel.facts.host.hardware import Host, hardware, idle_host
from firesteel.rules.context import Context, Match
from firesteel.units import GIB, show_bytes
from firesteel.values import replace

_DEFAULT_FRACTION = 0.92
_OTHER_WEIGHTS = {"quantization", "cpu-offload-gb", "hf-overrides", "load-format", "config"}
"""Flags after which the weights in memory are not those of the checkpoint."""
_PARALLEL_FLAGS = (
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "nnodes", "tp", "tp-size",
)  # fmt: skip
"""Flags that split the weights over several GPUs or Sparks."""
_USUAL_SHM = 32 * GIB
"""Tools set limits up to this size for NCCL, and little of it is ever used."""


def promised_twice(context: Context) -> list[Match]:
    """The fraction and `/dev/shm` together are more than the memory."""
    container = context.launch.container
    fraction = context.number("gpu-memory-utilization")
    if context.hardware is None or container is None or not container.shm_bytes or fraction is None:
        return []
    total = hardware(context.hardware).memory_bytes
    wanted = round(fraction * total) + container.shm_bytes
    if wanted <= total or container.ipc == "host" or container.shm_bytes <= _USUAL_SHM:
        return []
    shown = f"{fraction:g} of {show_bytes(total)} and {show_bytes(container.shm_bytes)} of /dev/shm"
    return [Match("option:shm-size", shown, show_bytes(wanted), show_bytes(total))]


def too_large(context: Context) -> list[Match]:
    """Weights and one request exceed the engine's share, even with no other overhead counted."""
    model, launch = shipped().models.get(context.launch.model), context.launch
    if model is None or model.weights.provenance not in ("counted", "derived"):
        return []
    if context.hardware is None or not _is_decidable(context):
        return []
    if launch.engine == "vllm" and served_capacity(launch).users:  # one request at a time
        launch = replace(launch, flags={**launch.flags, "max-num-seqs": "1"})
    capacity = served_capacity(launch)
    tokens = capacity.context or model.architecture.max_context
    try:
        host = idle_host(hardware(context.hardware))
        cache = size_kv_cache(launch, model.architecture, tokens, capacity.users or 1)
    except FiresteelError:
        return []
    share, explanation = _share(context, host)
    needed = model.weights.total_bytes + (cache.pool.least_bytes if cache.pool else cache.bytes)
    if needed <= share:
        return []
    shown = f"{launch.model}: {show_bytes(needed)} for weights and one request, {explanation}"
    return [Match("model", shown, show_bytes(needed), explanation)]


def _is_decidable(context: Context) -> bool:
    """All inputs are known: the release, one Spark, and weights as in the checkpoint."""
    launch = context.launch
    if launch.engine == "sglang" or (launch.engine == "vllm" and launch.version is None):
        return False
    is_split = any((context.number(name) or 1) > 1 for name in _PARALLEL_FLAGS)
    return launch.sparks == 1 and not _OTHER_WEIGHTS & context.flags.keys() and not is_split


def _share(context: Context, host: Host) -> tuple[int, str]:
    if context.launch.engine != "vllm" or "kv-cache-memory-bytes" in context.flags:
        return host.room_bytes, f"{show_bytes(host.room_bytes)} are available"
    fraction = context.number("gpu-memory-utilization")
    if fraction is None:
        fraction = _DEFAULT_FRACTION
    share = round(min(fraction, 1.0) * host.memory_total_bytes)
    return share, f"{fraction:g} of all memory is {show_bytes(share)}"


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "promised-twice": promised_twice,
    "too-large": too_large,
}
