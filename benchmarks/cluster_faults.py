#!/usr/bin/env python3
"""Break a service over two hosts in every way, several times, and write down what was told and what was left.

    python benchmarks/cluster_faults.py [--times 5] [--only PATTERN] [--weights FOLDER]

Needs root, sshd, ip and nft, the built llama.cpp (`scripts/make-test-engine PYTHON`) and the weights of
`firesteel pull smollm2`. Hosts are network namespaces; the engines are real, on the CPU. A row of the table:
the fault, what `ps` told, after how many seconds (the longest), after how many all engines on all hosts had
ended, what was left a minute later, and whether the service came back. Ends with 1 if a bar is missed: a loss
is told within 15 s, nothing is left.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.built_engine import find_built_engine
from tests.hosts.cluster.namespaces import NamespaceHost, hosts, missing
from tests.hosts.cluster.service import (
    LONG,
    ask,
    engines_on,
    equip,
    kill,
    notices,
    read,
    wait_until,
)

TOLD_S = 15.0
Act = Callable[[NamespaceHost, NamespaceHost], None]


@dataclass(frozen=True)
class Served:
    """What is broken: how it is started, what its processes are called, how long a start may take."""

    up: tuple[str, ...]
    worker: str
    head: str
    firewalled: str
    start_s: float
    answer_s: float


LLAMACPP = Served(
    ("up", "smollm2", "--cluster"), "ggml-rpc-server", "bin/llama-server", "tcp dport 50052", 300, 10
)


@dataclass
class Row:
    fault: str
    told: str = "-"
    told_s: list[float] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    left: int = 0
    back: int = 0


def nothing(head: NamespaceHost, node: NamespaceHost) -> None:
    return


def cable_for(seconds: float) -> Act:
    def act(head: NamespaceHost, node: NamespaceHost) -> None:
        node.cable(False)
        time.sleep(seconds)
        node.cable(True)

    return act


class CableOut:
    """Out for a while, whatever happens meanwhile."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.timer: threading.Timer | None = None

    def out(self, head: NamespaceHost, node: NamespaceHost) -> None:
        node.cable(False)
        self.timer = threading.Timer(self.seconds, node.cable, (True,))
        self.timer.start()

    def back(self, head: NamespaceHost, node: NamespaceHost) -> None:
        if self.timer:
            self.timer.join()


MINUTE = CableOut(60)


def request_then(act: Act) -> Act:
    def both(head: NamespaceHost, node: NamespaceHost) -> None:
        act(head, node)
        ask(head, LONG, 2)

    return both


@contextmanager
def small_disk(node: NamespaceHost) -> Iterator[None]:
    """A disk of the node's own, so that it can be full. Mounted outside, so that it outlives a power cut."""
    folder = node.home / ".local/share/firesteel/cluster"
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], check=True)
    try:
        node.power_off()
        node.power_on()
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill_disk(head: NamespaceHost, node: NamespaceHost) -> None:
    node.run("sh", "-c", "cd ~/.local/share/firesteel/cluster && cat /dev/zero > full; true")


def empty_disk(head: NamespaceHost, node: NamespaceHost) -> None:
    node.run("rm", "-f", f"{node.home}/.local/share/firesteel/cluster/full")


def faults(served: Served) -> dict[str, tuple[Act, Act, bool]]:
    """fault: how it is made, how it is mended, whether the service must ride it out"""
    return {
        "kill -9 of the worker's engine": (lambda head, node: kill(node, served.worker), nothing, False),
        "cable out for 3 s": (cable_for(3), nothing, True),
        "cable out for 60 s": (MINUTE.out, MINUTE.back, False),
        "kill -9 of the worker's agent": (lambda head, node: kill(node, " hold "), nothing, False),
        "kill -9 of the head's engine": (lambda head, node: kill(head, served.head), nothing, False),
        "kill -9 of the ssh session": (lambda head, node: kill(head, "agent-", "hold"), nothing, True),
        "kill -9 of the runner": (lambda head, node: kill(head, "cluster.runner", "nothing"), nothing, False),
        "cable out for 8 s": (cable_for(8), nothing, True),
        "power cut of the node, then back": (
            lambda head, node: node.power_off(), lambda head, node: node.power_on(), False,
        ),
        "reboot of the node": (
            lambda head, node: node.shut_down(), lambda head, node: node.power_on(), False,
        ),
        "MTU lowered to 1500, a request": (
            request_then(lambda head, node: node.mtu(1500)), lambda head, node: node.mtu(9000), False,
        ),
        f"{served.firewalled} firewalled, a request": (
            request_then(lambda head, node: node.firewall(f"{served.firewalled} drop")),
            lambda head, node: node.firewall(""), False,
        ),
        "disk full on the node": (fill_disk, empty_disk, True),
    }  # fmt: skip


def told_since(head: NamespaceHost, before: set[str]) -> str:
    why = str(read(head, "state.json").get("why") or "").partition("; start ")[0]
    fresh = [line for line in notices(head) if line not in before and "spark" in line]
    words = [line[9:] for line in fresh if "is started" not in line and "answers on" not in line]
    return (why if why not in before else "") or (words[-1] if words else "")


def has_ended(head: NamespaceHost, node: NamespaceHost, runner: object) -> bool:
    """No engine runs on any host, or the next start is under way."""
    return read(head, "state.json").get("engine") not in (runner, None) or not (
        engines_on(head) or engines_on(node)
    )


def try_once(
    served: Served, row: Row, head: NamespaceHost, node: NamespaceHost, rides_out: bool, act: Act, mend: Act
) -> None:
    wait_until("not ready before the fault", lambda: serves(head, served), served.start_s)
    restarts, before = read(head, "state.json")["restarts"], {*notices(head), told_since(head, set())}
    runner = read(head, "state.json")["engine"]
    began = time.monotonic()
    act(head, node)
    if rides_out:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not told_since(head, before):
            time.sleep(0.2)
    else:
        wait_until("nothing is told", lambda: told_since(head, before), 240)
        row.told_s.append(time.monotonic() - began)
        if node.unshare and node.unshare.poll() is None:
            wait_until("engines stay", lambda: has_ended(head, node, runner), 90)
            row.ended_s.append(time.monotonic() - began)
    row.told = told_since(head, before) or row.told
    mend(head, node)
    wait_until("it does not come back", lambda: serves(head, served), served.start_s)
    row.back += 1
    if rides_out:
        assert read(head, "state.json")["restarts"] == restarts, f"{row.fault}: it was restarted"


def serves(head: NamespaceHost, served: Served) -> bool:
    """It answers, with every rank running. Its verification goes on for a minute, and is not waited for."""
    status = read(head, "cluster.json")
    return (
        status.get("phase") == "running"
        and all(node["phase"] == "running" for node in status["nodes"])
        and "Paris" in ask(head, limit_s=served.answer_s)
    )


def lose_head(served: Served, row: Row, head: NamespaceHost, node: NamespaceHost, has_power: bool) -> None:
    """Nobody is left to tell; each rank ends itself. `up` starts it again."""
    wait_until("not ready before the fault", lambda: serves(head, served), served.start_s)
    began = time.monotonic()
    if has_power:
        kill(head, "supervise.supervisor")
    else:
        head.power_off()
    wait_until("engines stay", lambda: not (engines_on(node) or (has_power and engines_on(head))), 90)
    row.ended_s.append(time.monotonic() - began)
    if not has_power:
        head.power_on()
    row.told = head.firesteel("ps").out.strip().splitlines()[-1][:160]
    up(head, served)
    row.back += 1


def up(head: NamespaceHost, served: Served) -> None:
    done = head.firesteel(*served.up, timeout_s=served.start_s)
    assert done.code == 0, done.err


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--weights", type=Path, required=True, help="FIRESTEEL_HOME/weights after a pull")
    options = parser.parse_args()
    engine = find_built_engine()
    if lacks := missing() or (None if engine else "no built llama.cpp"):
        print(lacks)
        return 2
    assert engine is not None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or hosts and mounts would stay
    with (
        tempfile.TemporaryDirectory() as folder,
        hosts(Path(folder), 2) as (head, node),
        small_disk(node),
    ):
        equip(head, engine, options.weights)
        assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
        up(head, LLAMACPP)
        rows = break_it(LLAMACPP, head, node, options.times, options.only)
        head.firesteel("down", "smollm2")
        left = [line for host in (head, node) for line in engines_on(host)]
    print(f"left after down: {len(left)}")
    return 1 if left or are_bars_missed(rows) else 0


def break_it(served: Served, head: NamespaceHost, node: NamespaceHost, times: int, only: str) -> list[Row]:
    special = {"kill -9 of the supervisor": True, "power cut of the head": False}
    usual = faults(served)
    rows: list[Row] = []
    chosen = [fault for fault in [*usual, *special] if re.search(only, fault)]
    for fault in chosen:
        row = Row(fault)
        rows.append(row)
        for _ in range(times):
            try:
                if fault in special:
                    lose_head(served, row, head, node, special[fault])
                else:
                    act, mend, rides_out = usual[fault]
                    try_once(served, row, head, node, rides_out, act, mend)
            except AssertionError as error:
                row.left += 1
                print(f"# {fault}: {error}; ps: {head.firesteel('ps').out}", flush=True)
                node.cable(True)
                node.firewall("")
                node.mtu(9000)
                fresh_start(served, head, node)
            print(show(row), flush=True)  # after every try: a run that is cut short has shown what it saw
        if times > 1 and fault != chosen[-1]:
            fresh_start(served, head, node)
    return rows


def are_bars_missed(rows: list[Row]) -> bool:
    slow = (row for row in rows if row.told_s and max(row.told_s) > TOLD_S and "request" not in row.fault)
    return any(slow) or any(row.left for row in rows)


def fresh_start(served: Served, head: NamespaceHost, node: NamespaceHost) -> None:
    """Restarts are counted and few, with growing pauses: every kind of fault begins with none."""
    if read(head, "state.json").get("restarts") or not serves(head, served):
        head.firesteel("down", "smollm2")
        assert not (engines_on(head) or engines_on(node)), "something was left"
        up(head, served)


def show(row: Row) -> str:
    told = f"{max(row.told_s):.1f}" if row.told_s else "-"
    ended = f"{max(row.ended_s):.1f}" if row.ended_s else "-"
    return f"| {row.fault} | {row.back} | {row.told} | {told} | {ended} | {row.left} | {row.back} |"


if __name__ == "__main__":
    sys.exit(main())
