"""`kill -9` and full disks at random moments of a service's life: what `up`, `ps` and the next `up` say then.

    PYTHONPATH=src:. python benchmarks/kill_rounds.py kills --rounds 100 --pulled HOME
    PYTHONPATH=src:. python benchmarks/kill_rounds.py disk --rounds 30 --pulled HOME

The second mounts a tmpfs, so it needs root.

HOME has had `firesteel pull smollm2`. The engine is `tests/quick_engine.py`, which starts and answers like
the embedded one and does not compute; with FIRESTEEL_TEST_REAL_ENGINE=1 it is the real one. Every round ends
with `down` and a look at what is left: processes, the port, the service's folder. The rounds are a function
of the seed, their moments also of the machine's pace.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.conftest import find_free_port, know_bandwidth, quick_engines

from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.run.service import SERVICE_VARIABLE, load

LIMIT_S = 300
SIZE_MIB = 300
"""`up` asks for 256 MiB of free space."""
NAME = "smollm2"
_KEPT = ("engine.log", "supervisor.log", "supervisor.lock", "work.lock")
"""`down` keeps the logs, for `firesteel logs`; a lock that nobody holds is an empty file."""


class Rounds:
    def __init__(self, root: Path, seed: int) -> None:
        self.home, self.port, self.chance = Home(root), find_free_port(), random.Random(seed)
        self.usual_s = 0.0

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words), env=self.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "firesteel", *words]

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "FIRESTEEL_HOME": str(self.home.root)}

    @property
    def up(self) -> tuple[str, ...]:
        return ("up", NAME, "--port", str(self.port))

    def time_a_start(self) -> None:
        began = time.monotonic()
        done = self.run(*self.up)
        assert done.returncode == 0, done.stderr
        self.usual_s = time.monotonic() - began
        assert self.run("down", "--all").returncode == 0

    def pids(self) -> dict[str, process.Pid]:
        service = load(self.home, NAME)
        state = service.state if service else None
        found = {"supervisor": state.supervisor, "engine": state.engine} if state else {}
        return {who: pid for who, pid in found.items() if pid and process.is_alive(pid)}

    def kill_round(self) -> dict[str, Any]:
        moment_s = self.chance.uniform(0, 1.3 * self.usual_s)
        with subprocess.Popen(
            self.argv(*self.up), env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as up:
            time.sleep(moment_s)
            is_over, pids = up.poll() is not None, self.pids()
            victim = self.chance.choice([*([] if is_over else ["up"]), *pids])
            row: dict[str, Any] = {"victim": victim, "moment_s": round(moment_s, 2), "was_ready": is_over}
            if victim == "up":
                up.kill()
            else:
                process.send(pids[victim], signal.SIGKILL)
            text = self.end_of(up)
        row |= {"code": up.returncode, "said": _last(text)}
        time.sleep(self.chance.uniform(0, 2))
        return row | self.after()

    def disk_round(self, disk: Path) -> dict[str, Any]:
        moment_s = self.chance.uniform(0, 1.3 * self.usual_s)
        kills = self.chance.random() < 0.5
        with subprocess.Popen(
            self.argv(*self.up), env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as up:
            time.sleep(moment_s)
            row: dict[str, Any] = {"moment_s": round(moment_s, 2), "was_ready": up.poll() is not None}
            fill(disk)
            text = self.end_of(up)
        row |= {"code": up.returncode, "said": _last(text)}
        if kills and up.returncode == 0 and (engine := self.pids().get("engine")):
            process.send(engine, signal.SIGKILL)
            row["victim"] = "engine"
            self.wait(lambda: "engine" not in self.pids(), 10)
            time.sleep(3)
        row["ps_full"] = self.ps()
        row["up_full"] = self.said("up", NAME, "--port", str(self.port))
        (disk / "filler").unlink()
        if "victim" in row:
            row["comes_back"] = self.wait(lambda: self.phase() == "ready", 120)
        return row | self.after()

    def end_of(self, up: subprocess.Popen[str]) -> str:
        try:
            return up.communicate(timeout=LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            print(f"no end within {LIMIT_S} s: {self.ps()}, {self.pids()}", flush=True)
            up.kill()
            return up.communicate()[1]

    def after(self) -> dict[str, Any]:
        """What `ps`, the next `up` and `down` say, and what is left then."""
        row: dict[str, Any] = {"ps": self.ps(), "next_up": self.said(*self.up)}
        row |= {"is_ready": self.phase() == "ready", "down": self.said("down", "--all")}
        left = process.with_variable(SERVICE_VARIABLE, str(self.home.services / NAME))
        row["left"] = [f"process {pid.number}" for pid in left]
        row["left"] += [] if process.port_is_free(self.port) else ["the port"]
        row["left"] += [path.name for path in self.home.services.glob("*/*") if path.name not in _KEPT]
        return row

    def phase(self) -> str | None:
        service = load(self.home, NAME)
        return service.phase if service else None

    def ps(self) -> list[str]:
        done = self.run("ps", "--json")
        with suppress(ValueError, KeyError):
            rows = json.loads(done.stdout)["services"]
            return [": ".join(filter(None, (row["phase"], row.get("why")))) for row in rows]
        return [f"exit {done.returncode}: {_last(done.stderr)}"]

    def said(self, *words: str) -> str:
        done = self.run(*words)
        return str(done.returncode) if done.returncode == 0 else f"{done.returncode}: {_last(done.stderr)}"

    def wait(self, holds: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if holds():
                return True
            time.sleep(0.1)
        return False


def _last(text: str) -> str:
    """The error, without its `next:`."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("next:")]
    return lines[-1].strip()[:300] if lines else ""


def fill(disk: Path) -> None:
    with (disk / "filler").open("ab", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def play(rounds: Rounds, one: Callable[[], dict[str, Any]], count: int, out: Path) -> None:
    rounds.time_a_start()
    rows = []
    for number in range(count):
        rows.append({"round": number, **one()})
        out.write_text(json.dumps({"usual_s": rounds.usual_s, "rounds": rows}, indent=1) + "\n")
    print(summary(rows))


def summary(rows: list[dict[str, Any]]) -> str:
    def kind(text: str) -> str:
        return " ".join(word for word in text.split() if not any(letter.isdigit() for letter in word))[:100]

    counts = {
        "exit codes of `up`": Counter(str(row["code"]) for row in rows),
        "ps": Counter(kind(" | ".join(row["ps"])) or "nothing" for row in rows),
        "next up": Counter(row["next_up"][:60] for row in rows),
        "ready after it": Counter(str(row["is_ready"]) for row in rows),
        "down": Counter(row["down"][:60] for row in rows),
        "left": Counter(", ".join(row["left"]) or "nothing" for row in rows),
    }
    if any("ps_full" in row for row in rows):
        counts["ps while full"] = Counter(kind(" | ".join(row["ps_full"])) or "nothing" for row in rows)
        counts["up while full"] = Counter(kind(row["up_full"]) for row in rows)
        counts["a killed engine comes back"] = Counter(str(row.get("comes_back", "-")) for row in rows)
    lines = [f"{len(rows)} rounds"]
    for what, found in counts.items():
        lines += [what, *(f"  {count:>4}  {value}" for value, count in found.most_common())]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("kills", "disk"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pulled", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("rounds.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pulled, base = Home(given.pulled.absolute()), Path(folder)
        engines = quick_engines(pulled, base)

        def home_in(parent: Path) -> Path:
            home = Home(parent / "home")
            home.root.mkdir()
            know_bandwidth(home)
            (home.root / pulled.engines.name).symlink_to(engines)
            (home.root / pulled.weights.name).symlink_to(pulled.weights)
            return home.root

        if given.what == "kills":
            rounds = Rounds(home_in(base), given.seed)
            play(rounds, rounds.kill_round, given.rounds, given.out)
        else:
            with small_disk(base / "disk") as disk:
                rounds = Rounds(home_in(disk), given.seed)
                play(rounds, lambda: rounds.disk_round(disk), given.rounds, given.out)


if __name__ == "__main__":
    main()
