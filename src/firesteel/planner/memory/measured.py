"""What an earlier start of the same launch took on this host, in place of what was only estimated.

Weights and cache can be counted before a start; what an engine takes for itself cannot, and the bands that
three boots of other models give are gigabytes wide. Once a launch has run here its process tells: all it
holds, less its weights and its cache, is what the estimates were about. The next plan of that launch takes
that figure and says so. A counted part stays as counted unless the engine itself gave another figure.

Two things may have changed since, though the launch is the same word for word: the file under its path, and
how many bytes its cache is told. So a start also tells what its checkpoint weighed: other weights are
another model, and their start says nothing. The cache of then is only taken off; that of now is as planned.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from firesteel.launch import EngineName, Launch
from firesteel.planner.band import Band
from firesteel.planner.memory.account import MemoryAccount, MemoryPart
from firesteel.units import MIB, show_bytes

_SIZED = frozenset({"kv-cache-memory-bytes", "gpu-memory-utilization"})
"""Flags that a plan sets from its own figures: another figure is not another launch."""
_BESIDE = frozenset({"api-key", "served-model-name", "host", "port", "alias"})
_SECRET = re.compile(r"token|secret|password|api_?key|credential", re.IGNORECASE)
_SAME = 0.02
"""Engines round, and count buffers that no header has; what differs by less is the same figure."""
_AGAIN_SHARE, _AGAIN_BYTES = 0.05, 64 * MIB
"""How far a second start of the same launch may be off the first, of all that it took: allocators, drivers
and the pages of mapped files are not exact. Starts of the embedded model took from 280 to 334 MiB."""


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """What one start took, as far as it could be seen; None: not seen."""

    key: str
    """`launch_key` of what was started."""
    engine: EngineName
    version: str | None
    process_bytes: int
    """All that its processes hold, on one Spark, once it serves."""
    seen: str
    """When, as a date."""
    weights_bytes: int | None = None
    kv_bytes: int | None = None
    kv_tokens: int | None = None
    checkpoint_bytes: int | None = None
    """What its plan took the whole checkpoint to weigh: another sum now is another file."""
    planned_kv_bytes: int | None = None
    """What its plan gave the cache."""


def launch_key(launch: Launch) -> str:
    """The same for launches that take the same memory, in every process and on every day.

    Left out are names, ports and addresses, secrets, and the figures that a plan adds by itself.
    """
    said = {
        "engine": launch.engine,
        "version": launch.version,
        "model": launch.model,
        "flags": {name: value for name, value in launch.flags.items() if name not in _SIZED | _BESIDE},
        "env": {name: value for name, value in launch.env.items() if not _SECRET.search(name)},
        "image": launch.container.image if launch.container else None,
        "sparks": launch.sparks,
        "extra": list(launch.extra),
    }
    text = json.dumps(said, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def measured_memory(
    memory: MemoryAccount,
    launch: Launch,
    realised: MeasuredMemory,
    checkpoint_bytes: int,
    tokens: int | None = None,
) -> tuple[MemoryAccount, tuple[str, ...]]:
    """The account with what was measured, and what there is to say of it.

    `checkpoint_bytes` is what the plan takes the whole checkpoint to weigh, `tokens` what the engine was
    expected to print of its cache.
    """
    if why := _unusable(memory, launch, realised, checkpoint_bytes):
        return memory, (f"{why}, and is not used",)
    parts = tuple(_engines_own(part, memory, realised) for part in memory.parts)
    sure = sum(part.bytes.expected for part in parts if part.basis != "estimated" and part.bytes.low > 0)
    rest = realised.process_bytes - (sure - _kv_bytes(memory) + _kv_then(memory, realised))
    if rest <= 0:
        held = f"the sum of {show_bytes(realised.process_bytes)} measured on {realised.seen}"
        return memory, (f"{held} is less than its parts, and is not used",)
    kept = tuple(part for part in parts if part.basis != "estimated")
    slack = max(_AGAIN_SHARE * realised.process_bytes, _AGAIN_BYTES)
    band = Band(max(0.0, rest - slack), rest, rest + slack)
    engine = MemoryPart("engine", band, "measured", _engine_words(memory, realised))
    notes = (*_differences(memory, parts, realised), *_kv_notes(memory, realised, tokens))
    return replace(memory, parts=_before_copies(kept, engine)), notes


def _unusable(memory: MemoryAccount, launch: Launch, realised: MeasuredMemory, checkpoint_bytes: int) -> str:
    """Why that start says nothing of this one; empty when it does."""
    what = f"what was measured on {realised.seen}"
    if realised.key != launch_key(launch):
        return f"{what} is another launch's"
    if realised.checkpoint_bytes is not None:
        then, now = realised.checkpoint_bytes, float(checkpoint_bytes)
    elif realised.weights_bytes is not None:  # the engine's own sum, on one Spark
        then, now = realised.weights_bytes, _loaded(memory, realised.weights_bytes)
    else:
        return f"{what} does not say of which weights"
    if not _is_same(now, then):
        return f"{what} is of other weights, {show_bytes(then)} where these have {show_bytes(round(now))}"
    if realised.kv_bytes is None and realised.planned_kv_bytes is None:
        return f"{what} does not say with how large a cache"
    return ""


def _expected(memory: MemoryAccount, name: str) -> float:
    return next((part.bytes.expected for part in memory.parts if part.name == name), 0.0)


def _loaded(memory: MemoryAccount, said: int) -> float:
    """The planned weights, with the padding that some engines count among them where that is nearer."""
    weights = _expected(memory, "weights")
    return min(weights, weights + _expected(memory, "expert padding"), key=lambda each: abs(each - said))


def _kv_bytes(memory: MemoryAccount) -> float:
    return _expected(memory, "KV cache")


def _kv_then(memory: MemoryAccount, realised: MeasuredMemory) -> float:
    """What the plan of then gave the cache: what the engine took beyond that is still its own.

    Where only the engine's figure is known, no more is taken off than the cache has now.
    """
    if realised.planned_kv_bytes is not None:
        return realised.planned_kv_bytes
    return min(realised.kv_bytes or 0, _kv_bytes(memory))


def _engine_words(memory: MemoryAccount, realised: MeasuredMemory) -> str:
    words = f"{show_bytes(realised.process_bytes)} in all when it ran here on {realised.seen}, less the above"
    then = round(_kv_then(memory, realised))
    if _is_same(_kv_bytes(memory), then):
        return words
    return f"{words}, with the {show_bytes(then)} that its cache had then"


def _engines_own(part: MemoryPart, memory: MemoryAccount, realised: MeasuredMemory) -> MemoryPart:
    """Weights as the engine loaded them; counted ones stay where it gives the same figure."""
    said = realised.weights_bytes
    if part.name != "weights" or said is None:
        return part
    if part.basis in ("counted", "formula") and _is_same(_loaded(memory, said), said):
        return part
    words = f"as {realised.engine} itself reported on {realised.seen}; {part.why}"
    return replace(part, bytes=Band.exactly(said), basis="measured", why=words)


def _is_same(planned: float, said: int) -> bool:
    return abs(planned - said) <= _SAME * max(planned, said)


def _differences(
    memory: MemoryAccount, parts: tuple[MemoryPart, ...], realised: MeasuredMemory
) -> Iterator[str]:
    for planned, found in zip(memory.parts, parts, strict=True):
        if planned.basis in ("counted", "formula") and found.basis == "measured":
            ours, theirs = (show_bytes(round(part.bytes.expected)) for part in (planned, found))
            yield f"{planned.name}: {ours} {planned.basis}, {theirs} by {realised.engine} on {realised.seen}"


def _kv_notes(memory: MemoryAccount, realised: MeasuredMemory, tokens: int | None) -> Iterator[str]:
    """Where the engine made another cache of the same bytes than is reckoned."""
    now, said = _kv_bytes(memory), realised.kv_bytes
    if realised.planned_kv_bytes is not None and not _is_same(now, realised.planned_kv_bytes):
        return
    if said is not None and not _is_same(now, said):
        ours, theirs = show_bytes(round(now)), show_bytes(said)
        yield f"KV cache: {ours} planned, {theirs} by {realised.engine} on {realised.seen}"
    elif tokens is not None and realised.kv_tokens is not None and tokens != realised.kv_tokens:
        yield (
            f"the cache held {realised.kv_tokens:,} tokens when it ran here on {realised.seen}, "
            f"where {tokens:,} are reckoned"
        )


def _before_copies(kept: tuple[MemoryPart, ...], engine: MemoryPart) -> tuple[MemoryPart, ...]:
    """Where the estimates stood: after what is always there, before what grows as conversations go on."""
    first = next((at for at, part in enumerate(kept) if part.bytes.expected == 0), len(kept))
    return (*kept[:first], engine, *kept[first:])
