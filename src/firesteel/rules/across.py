"""Findings about a text or about several launches of it: what was not read, and what cannot run side by
side.

The services of a compose file run at the same time, and so do containers that a script starts one after
another in the background. Other texts (a guide, a folder of units) may list alternatives, and nothing is
compared there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations

from firesteel.errors import escape_unprintable
from firesteel.launch import Launch, Spot
from firesteel.reads.launches import NotRead
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.stated import StatedMachine
from firesteel.rules.checker import Finding
from firesteel.rules.context import as_number
from firesteel.rules.rule import Rule, rules
from firesteel.values import replace

_SHARE = 0.9
"""What vLLM takes at least where nothing is said: 0.92, before 0.20.0 0.9."""
_EVERYWHERE = ("", "0.0.0.0", "[::]")
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_CACHES = ("huggingface", "/hub")

_ALTERNATIVES = "one model several times may be alternatives, or one for each GPU"

Clash = tuple[ReadLaunch, str, str, str]
"""The launch that fails, the part of it, what was seen, and the name of what clashes."""


def check_across(
    readings: Sequence[ReadLaunch], machines: Sequence[StatedMachine], unread: Sequence[NotRead]
) -> Iterator[Finding]:
    groups: dict[str, list[ReadLaunch]] = {}
    on_one_gpu: dict[str, list[ReadLaunch]] = {}
    for reading, machine in zip(readings, machines, strict=True):
        if reading.runs_with:
            groups.setdefault(reading.runs_with, []).append(reading)
        # Another machine may have a GPU, or a card that is none, for each of them.
        if reading.runs_with and (machine.kind != "other" or _gpu(reading.launch)):
            on_one_gpu.setdefault(reading.runs_with, []).append(reading)
    for rule in _across_rules():
        if rule.when.across == "not-read":
            yield from (
                _finding(rule, place.spot, place.spot.text, place.engine, place.why) for place in unread
            )
        elif rule.when.across:
            for group in (on_one_gpu if rule.when.across == "memory-shares" else groups).values():
                doubt = _ALTERNATIVES if len({reading.launch.model for reading in group}) == 1 else ""
                for reading, key, saw, name in _CHECKS[rule.when.across](group):
                    spot = (
                        reading.spots.get(key) or reading.spots.get("image") or reading.spots.get("program")
                    )
                    found = _finding(rule, spot, saw, name, saw, key)
                    is_doubtful = bool(doubt) and found.level == "stop"
                    yield (
                        replace(found, level="warn", says=f"{found.says} ({doubt})") if is_doubtful else found
                    )


@cache
def _across_rules() -> tuple[Rule, ...]:
    return tuple(rule for rule in rules() if rule.when.across)


def _finding(rule: Rule, spot: Spot | None, saw: str, name: str, value: str, key: str = "") -> Finding:
    says = rule.says.replace("{name}", name).replace("{value}", value)
    return Finding(
        rule=rule.id,
        level=rule.level,
        says=escape_unprintable(says),
        instead=rule.instead,
        spot=spot,
        saw=escape_unprintable(saw),
        confidence=rule.confidence,
        sources=rule.sources,
        scope="any engine",
        key=key,
    )


def _memory_shares(group: Sequence[ReadLaunch]) -> Iterator[Clash]:
    """More than all of the memory of one GPU, promised to several engines."""
    by_gpu: dict[str, list[tuple[ReadLaunch, float]]] = {}
    for reading in group:
        share = _share(reading.launch)
        if share is not None:
            by_gpu.setdefault(_gpu(reading.launch), []).append((reading, share))
    for shares in by_gpu.values():
        total = sum(share for _, share in shares)
        if len(shares) > 1 and total > 1:
            last = shares[-1][0]
            sum_text = " + ".join(f"{share:g}" for _, share in shares)
            yield last, "flag:gpu-memory-utilization", f"{sum_text} = {total:.2f}", f"{len(shares)} engines"


def _share(launch: Launch) -> float | None:
    """The part of a GPU's memory that the engine takes; None: not known, or spread over several GPUs."""
    if not launch.model and not launch.flags:
        return None  # an image with the engine's name may be anything
    ranks = [as_number(launch.flags.get(name)) or 1 for name in ("tensor-parallel-size", "tp-size", "nnodes")]
    if max(ranks) > 1 or launch.engine == "llamacpp" or "kv-cache-memory-bytes" in launch.flags:
        return None
    name = "gpu-memory-utilization" if launch.engine == "vllm" else "mem-fraction-static"
    given = launch.flags.get(name)
    if given is not None or launch.engine == "sglang" or "config" in launch.flags:
        return as_number(given)
    return _SHARE


def _gpu(launch: Launch) -> str:
    """Which GPU it is told to use; launches that are told nothing share one."""
    container = launch.container
    named = container.gpus if container and container.gpus and "device=" in container.gpus else ""
    return named or next((launch.env[name] for name in _GPU_VARIABLES if launch.env.get(name)), "")


def _host_ports(group: Sequence[ReadLaunch]) -> Iterator[Clash]:
    for first, second in combinations(group, 2):
        taken = list(_ports(first.launch))
        for key, address, port in _ports(second.launch):
            if any(port == other and _overlap(address, at) for _, at, other in taken):
                yield second, key, f"port {port} of the host", first.launch.name or "another container"
                break


def _ports(launch: Launch) -> Iterator[tuple[str, str, str]]:
    container = launch.container
    if container is None or container.network == "host":
        yield "flag:port", "", str(launch.port)
        return
    for published in container.publish:
        address, _, rest = published.rpartition(":")[0].rpartition(":")
        if rest.isdecimal():
            yield "option:publish", address, rest


def _overlap(first: str, second: str) -> bool:
    return first == second or first in _EVERYWHERE or second in _EVERYWHERE


def _names(group: Sequence[ReadLaunch]) -> Iterator[Clash]:
    seen: set[str] = set()
    for reading in group:
        container = reading.launch.container
        name = dict(container.options).get("name") if container else None
        if name and name in seen and "$" not in name:
            yield reading, "option:name", name, name
        seen.add(name or "")


def _volumes(group: Sequence[ReadLaunch]) -> Iterator[Clash]:
    """One folder, written by different engines as different things."""
    for first, second in combinations(group, 2):
        if not first.launch.container or not second.launch.container:
            continue
        mine = {m.source: m.target for m in first.launch.container.mounts if not m.read_only}
        for mount in second.launch.container.mounts:
            target = mine.get(mount.source)
            is_shared_hub = all(
                any(cache in path for cache in _CACHES) for path in (target or "", mount.target)
            )
            if (
                target
                and not mount.read_only
                and not is_shared_hub
                and first.launch.engine != second.launch.engine
            ):
                shown = f"{mount.source} at {target} and {mount.target}"
                yield second, "option:volume", shown, mount.source
                break


_CHECKS: dict[str, Callable[[Sequence[ReadLaunch]], Iterator[Clash]]] = {
    "memory-shares": _memory_shares,
    "host-port": _host_ports,
    "name": _names,
    "volume": _volumes,
}
