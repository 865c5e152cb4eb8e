#!/usr/bin/env python3
"""What a gateway costs, side by side: CPU a request and an event, long prompts, added latency, memory.

    .venv/bin/python benchmarks/gateway/run.py [--rounds 5] [--only nginx,go,firesteel] [--json FILE]

One mock upstream, one load client (both on core 1), and these in turn on core 0, with the same requests:

    direct         no proxy: the baseline
    nginx          one worker, unbuffered, no log, no key: the minimum for a proxy
    nginx+key+log  the same with a key and an access log
    relay          uvloop and two protocols that pass bytes on unread: the minimum for Python
    go             httputil.ReverseProxy, GOMAXPROCS=1, a key, `model` out of the parsed body, as llama-swap
    aiohttp        server and client on uvloop, a key, `model` out of the parsed body
    litellm        if installed
    before         another checkout of firesteel, its `src` folder in FIRESTEEL_BEFORE
    firesteel      `firesteel serve` as users start it: a key, meters and log on

All run at the same time and are idle in between. In every round each load is applied to the stacks in a new
random order, so that a busy machine slows all of them alike. CPU time is the scheduler's own count for the
process tree of the proxy. The figure is the minimum over the rounds, because other processes can only add to
it; the median and the spread are shown beside it. The bytes of every answer are checked. Exits 1 if an answer
was wrong or a bar is missed.

Bars: a request <= 2 x nginx, an event <= 1.4 x nginx, both below Go, memory <= 60 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

import tree
from load import Load
from stacks import PYTHON, Proxy, Room, Stack, firesteel, go, litellm, nginx, python

HERE = Path(__file__).parent
STACKS = [
    Stack("direct", python.direct),
    Stack("nginx", nginx.start, nginx.missing),
    Stack("nginx+key+log", nginx.start_keyed, nginx.missing),
    Stack("relay", python.relay),
    Stack("go", go.start, go.missing),
    Stack("aiohttp", python.aiohttp),
    Stack("litellm", litellm.start, litellm.missing),
    Stack("before", firesteel.start_before, firesteel.missing_before),
    Stack("firesteel", firesteel.start, firesteel.missing),
]
MB = 1_000_000
LOADS: dict[str, dict[str, Any]] = {
    "request": {"at_once": 32, "count": 6000, "warm_up": 5},
    "prompt": {"at_once": 4, "count": 300, "prompt_bytes": 400_000, "warm_up": 3},
    "event": {"kind": "streams", "at_once": 8, "count": 24},
    "1 request": {"at_once": 1, "count": 1000, "warm_up": 20},
    "1 stream": {"kind": "streams", "at_once": 1, "count": 4},
    "32 streams": {"kind": "streams", "at_once": 32, "count": 96},
}
"""Beside each: what one unit is."""
BARS = {("request", "nginx"): 2.0, ("event", "nginx"): 1.4, ("request", "go"): 1.0, ("event", "go"): 1.0}
RSS_BAR = 60 * MB


@dataclass(slots=True)
class Seen:
    """One stack's figures, a list a load with one entry a round."""

    proxy: Proxy
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    idle_bytes: int = 0
    peak_bytes: int = 0
    after_bytes: int = 0

    def cpu(self, load: str) -> list[float]:
        return [each["cpu_us"] for each in self.rounds[load]]

    def least(self, load: str, figure: str, at: int) -> float:
        """The least of the rounds: p50 at 0, p99 at 1."""
        return min(cast(float, each[figure][at]) for each in self.rounds[load])


def ask(proxy: Proxy, load: str, core: int | None, seed: int) -> dict[str, Any]:
    words = LOADS[load] | {"count": max(LOADS[load]["count"] // proxy.slowness, LOADS[load]["at_once"])}
    return run_load(Load(proxy.port, proxy.pid, proxy.headers, proxy.is_exact, seed=seed, **words), core)


def run_load(load: Load, core: int | None) -> dict[str, Any]:
    pinned = ["taskset", "-c", str(core)] if core is not None else []
    words = [*pinned, PYTHON, str(HERE / "load.py"), json.dumps(asdict(load))]
    done = subprocess.run(words, capture_output=True, timeout=load.limit_s + 30, check=False)
    if done.returncode:
        raise RuntimeError(f"the client failed at {load}:\n{done.stderr.decode()[-2000:]}")
    return cast(dict[str, Any], json.loads(done.stdout))


def start_mock(room: Room) -> int:
    pinned = ["taskset", "-c", str(room.core)] if room.core is not None else []
    child = subprocess.Popen([*pinned, PYTHON, str(HERE / "mock.py")], stdout=subprocess.PIPE)
    room.children.append(child)
    assert child.stdout
    return int(child.stdout.readline())


def start_all(stacks: Iterable[Stack], rooms: list[Room], scratch: Path, upstream: int) -> dict[str, Seen]:
    seen = {}
    for stack in stacks:
        if why := stack.missing():
            print(f"{stack.name}: not here ({why})", file=sys.stderr)
            continue
        room = Room(scratch / stack.name, None if rooms[0].core is None else 0)
        room.folder.mkdir()
        rooms.append(room)
        seen[stack.name] = Seen(stack.start(room, upstream))
    return seen


def measure(seen: dict[str, Seen], rounds: int, core: int | None, dice: random.Random) -> None:
    for number in range(rounds):
        for load in LOADS:
            for name in dice.sample(list(seen), len(seen)):
                figures = ask(seen[name].proxy, load, core, number + 1)
                seen[name].rounds.setdefault(load, []).append(figures)
                print(
                    f"round {number + 1} {load:<10} {name:<14} {figures['cpu_us']:9.1f} us", file=sys.stderr
                )


def memory(seen: dict[str, Seen], when: str) -> None:
    for each in seen.values():
        if each.proxy.pid is not None:
            read = tree.peak_bytes if when == "peak_bytes" else tree.rss_bytes
            setattr(each, when, read(each.proxy.pid))


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def ratio(spent: list[float], base: list[float] | None) -> str:
    """Of the least, and in brackets the smallest and the largest of a round."""
    if base is None:
        return ""
    rounds = [mine / theirs for mine, theirs in zip(spent, base, strict=True)]
    return f"{min(spent) / min(base):.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def cpu_table(seen: dict[str, Seen]) -> list[str]:
    """Least, median and spread, and the least against nginx's and Go's."""
    lines = []
    for load, unit in (
        ("request", "request, c=32"),
        ("event", "SSE event, 8 streams"),
        ("1 stream", "SSE event, 1 stream"),
        ("prompt", "400 KB prompt"),
    ):
        lines += ["", f"CPU us a {unit}", row(["stack", "least", "median", "most", "/ nginx", "/ go"])]
        lines.append(row(["---"] * 6))
        bases = [seen[name].cpu(load) if name in seen else None for name in ("nginx", "go")]
        for name, each in seen.items():
            if each.proxy.pid is not None:
                spent = each.cpu(load)
                cells = [f"{value:.1f}" for value in (min(spent), median(spent), max(spent))]
                lines.append(row([name, *cells, *(ratio(spent, base) for base in bases)]))
    return lines


def latency_table(seen: dict[str, Seen]) -> list[str]:
    """Microseconds: direct as it is, the others as what they add to it."""
    columns = [
        ("1 request", "first_us", "answer, 1 at once"),
        ("1 stream", "first_us", "first byte, 1 stream"),
        ("1 stream", "event_us", "event, 1 stream"),
        ("32 streams", "first_us", "first byte, 32 streams"),
        ("32 streams", "event_us", "event, 32 streams"),
        ("32 streams", "gap_us", "gap, 32 streams"),
    ]
    lines = [
        "",
        "Latency us p50 / p99: direct, then what each adds",
        row(["stack", *(each[2] for each in columns)]),
    ]
    lines.append(row(["---"] * (len(columns) + 1)))
    for name, each in seen.items():
        cells = []
        for load, figure, _ in columns:
            p50, p99 = (each.least(load, figure, at) for at in (0, 1))
            if name != "direct" and "direct" in seen:
                base = seen["direct"]
                p50, p99 = p50 - base.least(load, figure, 0), p99 - base.least(load, figure, 1)
            cells.append(f"{p50:.0f} / {p99:.0f}")
        lines.append(row([name, *cells]))
    return lines


def memory_table(seen: dict[str, Seen]) -> list[str]:
    lines = ["", "Memory MB, resident", row(["stack", "idle", "peak", "after"]), row(["---"] * 4)]
    for name, each in seen.items():
        if each.proxy.pid is not None:
            cells = (f"{size / MB:.0f}" for size in (each.idle_bytes, each.peak_bytes, each.after_bytes))
            lines.append(row([name, *cells]))
    return lines


def missed(seen: dict[str, Seen]) -> list[str]:
    wrong = [
        f"{name}: {load}: {fault}"
        for name, each in seen.items()
        for load, rounds in each.rounds.items()
        for figures in rounds
        for fault in figures["faults"]
    ]
    if ours := seen.get("firesteel"):
        for (load, name), bar in BARS.items():
            if name in seen and min(ours.cpu(load)) > bar * min(seen[name].cpu(load)):
                wrong.append(f"firesteel: more than {bar} x {name} a {load}")
        if ours.peak_bytes > RSS_BAR:
            wrong.append(f"firesteel: {ours.peak_bytes / MB:.0f} MB at the peak, more than 60")
    return wrong


def main(rounds: int, only: str | None, file: Path | None, seed: int) -> int:
    stacks = [each for each in STACKS if not only or each.name in ["direct", *only.split(",")]]
    pinned = hasattr(os, "sched_getaffinity") and {0, 1} <= os.sched_getaffinity(0)
    rooms: list[Room] = []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            rooms.append(Room(Path(scratch), 1 if pinned else None))
            seen = start_all(stacks, rooms, Path(scratch), start_mock(rooms[0]))
            memory(seen, "idle_bytes")
            measure(seen, rounds, rooms[0].core, random.Random(seed))
            memory(seen, "after_bytes")
            memory(seen, "peak_bytes")
        finally:
            for room in reversed(rooms):
                room.end()
    print("\n".join([*cpu_table(seen), *latency_table(seen), *memory_table(seen)]))
    if not pinned:
        print("\nnot pinned: cores 0 and 1 are not both ours")
    if file:
        file.write_text(json.dumps({name: asdict(each) for name, each in seen.items()}, indent=1))
    faults = missed(seen)
    bars = ", every bar held" if "firesteel" in seen else ""
    print("\n".join(["", *faults]) if faults else f"\nevery byte right{bars}")
    return int(bool(faults))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="names with commas between; direct is always there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.exit(main(given.rounds, given.only, given.json, given.seed))
