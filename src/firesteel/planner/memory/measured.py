"""Use what an earlier start of the same launch measured on this host instead of estimates.

Weights and KV cache can be counted before a start; what an engine takes for itself cannot, and the bands
from three boots of other models are gigabytes wide. Once a launch has run here, its process shows it: all the
memory it holds, less weights and cache, is what the estimates were about. The next plan of that launch uses
that figure and says so. A counted part stays as counted unless the engine itself reported another figure.

Two things may have changed since, although the launch is identical: the file at its path, and the number of
bytes that the cache gets. So a measurement also records the size of its checkpoint: other weights are
another model, and the measurement does not apply. The cache of that time is only subtracted; the current
one is as planned.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from firesteel.engines.kv_cache import PLANNED_FLAGS
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.launch import Launch
from firesteel.planner.memory.account import MemoryAccount, MemoryPart
from firesteel.units import MIB, Band, show_bytes
from firesteel.values import replace

_IRRELEVANT_FLAGS = frozenset(
    {
        "api-key", "served-model-name", "host", "port", "alias",
        # how requests are answered, not how much memory that takes
        "override-generation-config", "default-chat-template-kwargs", "chat-template-kwargs",
        "temp", "top-p", "top-k", "min-p", "seed", "presence-penalty", "frequency-penalty", "repeat-penalty",
    }
)  # fmt: skip
_SECRET = re.compile(r"token|secret|password|api_?key|credential", re.IGNORECASE)
_TOLERANCE = 0.02
"""Engines round, and count buffers that are in no header; a smaller difference is ignored."""
_VARIATION_SHARE, _VARIATION_BYTES = 0.05, 64 * MIB
"""How much a second start of the same launch may differ from the first: allocators, drivers and the pages of
mapped files vary. Starts of the embedded model took from 280 to 334 MiB."""


_RANK_FLAGS = frozenset({
    "nnodes", "node-rank", "master-addr", "master-port", "dist-init-addr", "headless", "rpc",
    "distributed-executor-backend",
})  # fmt: skip
_RANK_VARIABLE = re.compile(r"NCCL_|GLOO_|TP_SOCKET|UCX_NET|OMPI_MCA|VLLM_HOST_IP|VLLM_EXECUTE_MODEL_TIMEOUT")


def launch_key(launch: Launch) -> str:
    """Equal for launches that take the same memory, in every process and on every day.

    Names, ports, addresses, secrets and the figures that a plan adds itself are left out; over several hosts
    also what each of them allocates itself.
    """
    is_joined = launch.sparks > 1
    ignored = {*PLANNED_FLAGS} | _IRRELEVANT_FLAGS | (_RANK_FLAGS if is_joined else frozenset())
    relevant = {
        "engine": launch.engine,
        "version": launch.version,
        "model": launch.model,
        "flags": {name: value for name, value in launch.flags.items() if name not in ignored},
        "env": {
            name: value
            for name, value in launch.env.items()
            if not (_SECRET.search(name) or (is_joined and _RANK_VARIABLE.match(name)))
        },
        "image": launch.container.image if launch.container else None,
        "sparks": launch.sparks,
        "extra": list(launch.extra),
    }
    if launch.program:  # only then: what was measured before programs could be started keeps its key
        relevant["program"] = list(launch.program.argv)
    text = json.dumps(relevant, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def apply_measured(
    memory: MemoryAccount,
    launch: Launch,
    measured: MeasuredMemory,
    checkpoint_bytes: int,
    tokens: int | None = None,
) -> tuple[MemoryAccount, tuple[str, ...]]:
    """The account with the measurement in place of estimates, and notes about it.

    `checkpoint_bytes` is the planned size of the whole checkpoint, `tokens` the cache size that the engine is
    expected to report.
    """
    if reason := _unusable(memory, launch, measured, checkpoint_bytes):
        return memory, (f"{reason}, so it is not used",)
    parts = tuple(_as_loaded(part, memory, measured) for part in memory.parts)
    counted = sum(part.bytes.expected for part in parts if part.basis != "estimated" and part.bytes.low > 0)
    rest = measured.process_bytes - (counted - _kv_bytes(memory) + _kv_bytes_then(memory, measured))
    if rest <= 0:
        total = f"the total of {show_bytes(measured.process_bytes)} measured on {measured.seen}"
        return memory, (f"{total} is less than its parts, so it is not used",)
    kept = tuple(part for part in parts if part.basis != "estimated")
    margin = max(_VARIATION_SHARE * measured.process_bytes, _VARIATION_BYTES)
    band = Band(max(0.0, rest - margin), rest, rest + margin)
    engine = MemoryPart("engine", band, "measured", _explain_rest(memory, measured))
    # After what is always there, before what grows from 0 as conversations go on.
    index = next((index for index, part in enumerate(kept) if part.bytes.expected == 0), len(kept))
    notes = (*_weight_notes(memory, parts, measured), *_kv_notes(memory, measured, tokens))
    return replace(memory, parts=(*kept[:index], engine, *kept[index:])), notes


def _unusable(memory: MemoryAccount, launch: Launch, measured: MeasuredMemory, checkpoint_bytes: int) -> str:
    """Why the measurement does not apply to this launch; empty when it does."""
    what = f"the measurement of {measured.seen}"
    if measured.key != launch_key(launch):
        return f"{what} is of another launch"
    if measured.checkpoint_bytes is not None:
        then, now = measured.checkpoint_bytes, float(checkpoint_bytes)
    elif measured.weights_bytes is not None:  # the engine's own sum, on one Spark
        then, now = measured.weights_bytes, _loaded_bytes(memory, measured.weights_bytes)
    else:
        return f"{what} does not say of which weights"
    if not _is_same(now, then):
        return f"{what} is of other weights: {show_bytes(then)}, and these have {show_bytes(round(now))}"
    if measured.kv_bytes is None and measured.planned_kv_bytes is None:
        return f"{what} does not give the size of its KV cache"
    return ""


def _expected(memory: MemoryAccount, name: str) -> float:
    return next((part.bytes.expected for part in memory.parts if part.name == name), 0.0)


def _loaded_bytes(memory: MemoryAccount, reported: int) -> float:
    """The planned weights, with the padding that some engines include where that is nearer."""
    weights = _expected(memory, "weights")
    return min(weights, weights + _expected(memory, "expert padding"), key=lambda size: abs(size - reported))


def _kv_bytes(memory: MemoryAccount) -> float:
    return _expected(memory, "KV cache")


def _kv_bytes_then(memory: MemoryAccount, measured: MeasuredMemory) -> float:
    """What the plan of that time gave the cache: anything beyond it belongs to the engine.

    Where only the engine's figure is known, at most the size of the current cache is subtracted.
    """
    if measured.planned_kv_bytes is not None:
        return measured.planned_kv_bytes
    return min(measured.kv_bytes or 0, _kv_bytes(memory))


def _explain_rest(memory: MemoryAccount, measured: MeasuredMemory) -> str:
    text = f"{show_bytes(measured.process_bytes)} in all when it ran here on {measured.seen}, less the above"
    then = round(_kv_bytes_then(memory, measured))
    if _is_same(_kv_bytes(memory), then):
        return text
    return f"{text}, with the {show_bytes(then)} that its cache had then"


def _as_loaded(part: MemoryPart, memory: MemoryAccount, measured: MeasuredMemory) -> MemoryPart:
    """Weights as the engine reported them; counted ones stay where it reports the same figure."""
    reported = measured.weights_bytes
    if part.name != "weights" or reported is None:
        return part
    if part.basis in ("counted", "formula") and _is_same(_loaded_bytes(memory, reported), reported):
        return part
    explanation = f"as {measured.engine} itself reported on {measured.seen}; {part.explanation}"
    return replace(part, bytes=Band.exactly(reported), basis="measured", explanation=explanation)


def _is_same(planned: float, reported: int) -> bool:
    return abs(planned - reported) <= _TOLERANCE * max(planned, reported)


def _weight_notes(
    memory: MemoryAccount, parts: tuple[MemoryPart, ...], measured: MeasuredMemory
) -> Iterator[str]:
    for planned, used in zip(memory.parts, parts, strict=True):
        if planned.basis in ("counted", "formula") and used.basis == "measured":
            ours, theirs = (show_bytes(round(part.bytes.expected)) for part in (planned, used))
            yield f"{planned.name}: {ours} {planned.basis}, {theirs} by {measured.engine} on {measured.seen}"


def _kv_notes(memory: MemoryAccount, measured: MeasuredMemory, tokens: int | None) -> Iterator[str]:
    """Where the engine made another cache of the same bytes than planned."""
    now, reported = _kv_bytes(memory), measured.kv_bytes
    if measured.planned_kv_bytes is not None and not _is_same(now, measured.planned_kv_bytes):
        return
    if reported is not None and not _is_same(now, reported):
        ours, theirs = show_bytes(round(now)), show_bytes(reported)
        yield f"KV cache: {ours} planned, {theirs} by {measured.engine} on {measured.seen}"
    elif tokens is not None and measured.kv_tokens is not None and tokens != measured.kv_tokens:
        yield (
            f"the KV cache held {measured.kv_tokens:,} tokens when it ran here on {measured.seen}; "
            f"{tokens:,} are planned"
        )
