"""What an earlier start of the same launch took on this host, in place of what was only estimated.

Weights and cache can be counted before a start; what an engine takes for itself cannot, and the bands that
three boots of other models give are gigabytes wide. Once a launch has run here its process tells: all it
holds, less its weights and its cache, is what the estimates were about. The next plan of that launch takes
that figure and says so. A counted part stays as counted unless the engine itself gave another figure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from firesteel.launch import EngineName, Launch
from firesteel.planner.band import Band
from firesteel.planner.memory import Memory, Part
from firesteel.units import show_bytes

_SIZED = frozenset({"kv-cache-memory-bytes", "gpu-memory-utilization"})
"""Flags that a plan sets from its own figures: another figure is not another launch."""
_BESIDE = frozenset({"api-key", "served-model-name", "host", "port", "alias"})
_SECRET = re.compile(r"token|secret|password|api_?key|credential", re.IGNORECASE)
_SAME = 0.02
"""Engines round, and count buffers that no header has; what differs by less is the same figure."""
_AGAIN = (0.97, 1.05)
"""How far a second start of the same launch may be off the first: allocators and drivers are not exact."""


@dataclass(frozen=True, slots=True)
class Realised:
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


def as_realised(
    memory: Memory, launch: Launch, realised: Realised, tokens: int | None = None
) -> tuple[Memory, tuple[str, ...]]:
    """The account with what was measured, and what there is to say of it.

    `tokens` is what the engine was expected to print of its cache.
    """
    if realised.key != launch_key(launch):
        return memory, (f"what was measured on {realised.seen} is another launch's, and is not used",)
    told = {"weights": realised.weights_bytes, "KV cache": realised.kv_bytes}
    parts = tuple(_engines_own(part, told.get(part.name), realised) for part in memory.parts)
    sure = sum(part.bytes.expected for part in parts if part.basis != "estimated" and part.bytes.low > 0)
    rest = realised.process_bytes - sure
    if rest <= 0:
        note = f"the {show_bytes(realised.process_bytes)} measured on {realised.seen} are less than its parts"
        return memory, (f"{note}, and are not used",)
    kept = tuple(part for part in parts if part.basis != "estimated")
    words = f"{show_bytes(realised.process_bytes)} in all when it ran here on {realised.seen}, less the above"
    low, high = _AGAIN
    engine = Part("engine", Band(low * rest, rest, high * rest), "measured", words)
    notes = (*_differences(memory, parts, realised), *_token_note(realised, tokens))
    return replace(memory, parts=_before_copies(kept, engine)), notes


def _engines_own(part: Part, said: int | None, realised: Realised) -> Part:
    """A counted part stays as it is where the engine gives the same figure."""
    if said is None or (part.basis in ("counted", "formula") and _is_same(part.bytes.expected, said)):
        return part
    words = f"as {realised.engine} itself reported on {realised.seen}; {part.why}"
    return replace(part, bytes=Band.exactly(said), basis="measured", why=words)


def _is_same(planned: float, said: int) -> bool:
    return abs(planned - said) <= _SAME * max(planned, said)


def _differences(memory: Memory, parts: tuple[Part, ...], realised: Realised) -> Iterator[str]:
    for planned, found in zip(memory.parts, parts, strict=True):
        if planned.basis in ("counted", "formula") and found.basis == "measured":
            ours, theirs = (show_bytes(round(part.bytes.expected)) for part in (planned, found))
            yield f"{planned.name}: {ours} {planned.basis}, {theirs} by {realised.engine} on {realised.seen}"


def _token_note(realised: Realised, tokens: int | None) -> Iterator[str]:
    if tokens is not None and realised.kv_tokens is not None and tokens != realised.kv_tokens:
        yield (
            f"the cache held {realised.kv_tokens:,} tokens when it ran here on {realised.seen}, "
            f"where {tokens:,} are reckoned"
        )


def _before_copies(kept: tuple[Part, ...], engine: Part) -> tuple[Part, ...]:
    """Where the estimates stood: after what is always there, before what grows as conversations go on."""
    first = next((at for at, part in enumerate(kept) if part.bytes.expected == 0), len(kept))
    return (*kept[:first], engine, *kept[first:])
