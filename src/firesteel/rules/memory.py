"""Does it fit? What a launch is told to take, and what its model needs, against the machine's memory.

Two questions. What the text itself says: a fraction of all memory and a `/dev/shm` beside it come out of one
pool. And, where the weights of the model are known, the plan for a single request: vLLM refuses to start when
its share does not hold the weights and one request of the full length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from firesteel import catalog, engines
from firesteel.catalog import Model
from firesteel.errors import FiresteelError
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Launch
from firesteel.planner import Plan, plan
from firesteel.rules.context import Context, Match
from firesteel.units import GIB, show_bytes

_DEFAULT_FRACTION = 0.92
_USUAL_SHM = 32 * GIB
"""A limit up to here is what tools set for NCCL, and little of it is ever used."""


def promised_twice(scene: Context) -> list[Match]:
    """The fraction and `/dev/shm` together are more than there is."""
    box = scene.launch.container
    fraction = scene.number("gpu-memory-utilization")
    if scene.hardware is None or box is None or not box.shm_bytes or fraction is None:
        return []
    total = hardware(scene.hardware).memory_bytes
    wanted = round(fraction * total) + box.shm_bytes
    if wanted <= total or box.ipc == "host" or box.shm_bytes <= _USUAL_SHM:
        return []
    words = f"{fraction:g} of {show_bytes(total)} and {show_bytes(box.shm_bytes)} of /dev/shm"
    return [Match("option:shm-size", words, show_bytes(wanted), show_bytes(total))]


def too_large(scene: Context) -> list[Match]:
    """The weights and one request are more than the engine's share, with nothing else counted at all."""
    model = _known_model(scene)
    if model is None or scene.hardware is None or not _is_told(scene):
        return []
    try:
        machine = idle_host(hardware(scene.hardware))
        planned = plan(_for_one(scene.launch), model.architecture, model.weights, machine)
    except FiresteelError:
        return []
    share, words = _share(scene, planned)
    pool = planned.cache.pool
    needed = model.weights.total_bytes + (pool.least_bytes if pool else planned.cache.bytes)
    if needed <= share:
        return []
    saw = f"{scene.launch.model}: {show_bytes(needed)} for weights and one request, {words}"
    return [Match("model", saw, show_bytes(needed), words)]


def _is_told(scene: Context) -> bool:
    """Everything that decides is there: the release, one Spark, and weights as the checkpoint has them."""
    launch = scene.launch
    if launch.engine == "sglang" or (launch.engine == "vllm" and launch.version is None):
        return False
    changed = {"quantization", "cpu-offload-gb", "hf-overrides", "load-format", "config"} & scene.flags.keys()
    return launch.sparks == 1 and not changed and not _is_split(scene)


def _known_model(scene: Context) -> Model | None:
    known = catalog.shipped().models
    model = known.get(scene.launch.model)
    return model if model and model.weights.provenance in ("counted", "derived") else None


def _is_split(scene: Context) -> bool:
    """Over several GPUs or Sparks; each then holds a part."""
    names = (
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "nnodes",
        "tp",
        "tp-size",
    )
    return any((scene.number(name) or 1) > 1 for name in names)


def _for_one(launch: Launch) -> Launch:
    """The same launch for one request at a time."""
    offered = engines.served_capacity(launch)
    if launch.engine != "vllm" or not offered.users:
        return launch
    return replace(launch, flags={**launch.flags, "max-num-seqs": "1"})


def _share(scene: Context, planned: Plan) -> tuple[int, str]:
    room = planned.memory.room_bytes
    if scene.launch.engine != "vllm" or "kv-cache-memory-bytes" in scene.flags:
        return room, f"there is room for {show_bytes(room)}"
    fraction = scene.number("gpu-memory-utilization")
    if fraction is None:
        fraction = _DEFAULT_FRACTION
    share = round(min(fraction, 1.0) * planned.memory.host_total_bytes)
    return share, f"{fraction:g} of all memory is {show_bytes(share)}"


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "promised-twice": promised_twice,
    "too-large": too_large,
}
