#!/usr/bin/env python3
"""Two embedded models, room for one, six clients: answers in a minute, and a cold load to its first token.

    PYTHONPATH=src python benchmarks/gateway/swaps.py [--before TREE] [--home HOME] [--seconds 60]

`--before`: the root of an older source tree, measured first, in the same run. `--home`: a FIRESTEEL_HOME with
`smollm2` pulled; its engines and weights are used, nothing else of it. Both models are loaded once before the
clock starts, so that both trees have proved them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

from served import ROOT, ServedGateway, free_ports

CLIENTS = 6
FILE = """\
listen: 127.0.0.1:{0}
memory: {{ceiling: 500MiB}}
queue: {{min_dwell: 1s, max_wait: 20s}}
models:
  first: {{recipe: smollm2, context: 2048, port: {1}}}
  second: {{recipe: smollm2, context: 4096, port: {2}}}
"""


class Gateway(ServedGateway):
    def __init__(self, tree: Path, pulled: Path, folder: Path) -> None:
        ports = free_ports(3)
        super().__init__(folder, pulled, ports[0], tree)
        self.file.write_text(FILE.format(*ports))
        self.start()

    def ask(self, model: str, *, stream: bool = False) -> float:
        """Return the seconds to the first byte of the answer's text."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 8,
            "stream": stream,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        began, first = time.perf_counter(), 0.0
        with urllib.request.urlopen(request, timeout=600) as answer:
            for line in answer:
                if not first and (not stream or line.startswith(b"data:")):
                    first = time.perf_counter() - began
        return first

    def unload(self, model: str) -> None:
        request = urllib.request.Request(f"{self.url}/api/models/{model}/unload", b"", method="POST")
        urllib.request.urlopen(request, timeout=10).close()
        while any(each["phase"] != "off" for each in self.state()):
            time.sleep(0.05)

    def state(self) -> list[dict[str, str]]:
        with urllib.request.urlopen(f"{self.url}/api/state", timeout=10) as answer:
            models: list[dict[str, str]] = json.load(answer)["models"]
            return models


@dataclass(frozen=True)
class Served:
    """What six clients got in one run; an answer after the time is up does not count, its wait does."""

    first: int
    second: int
    longest_wait_s: float

    @property
    def answers(self) -> int:
        return self.first + self.second

    @property
    def row(self) -> str:
        return f"{self.answers} ({self.first} + {self.second}) | {self.longest_wait_s:.1f} s"


def serve_clients(gateway: Gateway, seconds: float, *, alternate: bool) -> Served:
    """Six clients, each with one request at a time: three for each model, or all for one after the other."""
    done, waits, ends = Counter[str](), list[float](), time.monotonic() + seconds

    def client(index: int) -> None:
        for turn in count():
            if (began := time.monotonic()) >= ends:
                return
            model = "first" if (index + turn * alternate) % 2 else "second"
            gateway.ask(model)
            now = time.monotonic()
            with lock:
                waits.append(now - began)
                done[model] += now < ends

    lock = threading.Lock()
    threads = [threading.Thread(target=client, args=(index,)) for index in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Served(done["first"], done["second"], max(waits))


def measure(name: str, tree: Path, pulled: Path, seconds: float) -> list[Served]:
    with tempfile.TemporaryDirectory() as folder:
        gateway = Gateway(tree, pulled, Path(folder))
        try:
            gateway.ask("first")
            gateway.ask("second")
            cold = []
            for _ in range(3):
                gateway.unload("second")
                cold.append(gateway.ask("second", stream=True))
            served = [serve_clients(gateway, seconds, alternate=alternate) for alternate in (False, True)]
        finally:
            gateway.close()
    print(f"| {name} | {median(cold):.1f} s | {' | '.join(each.row for each in served)} |", flush=True)
    return served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--home", type=Path, default=Path("~/.firesteel").expanduser())
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    print(f"Answers in {asked.seconds:.0f} s (first + second model), and the longest wait, of six clients.\n")
    print("| tree | cold load to the first token | three clients a model | wait | clients alternate | wait |")
    print("|---|---:|---:|---:|---:|---:|")
    trees = [("before", asked.before), ("now", ROOT)]
    runs = [measure(name, tree, asked.home, asked.seconds) for name, tree in trees if tree]
    if len(runs) == 2:
        separate, alternating = (now.answers / max(1, old.answers) for old, now in zip(*runs, strict=True))
        print(
            f"\nTimes the answers: {separate:.1f} with three clients a model, {alternating:.1f} alternating."
        )


if __name__ == "__main__":
    main()
