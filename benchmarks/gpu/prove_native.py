"""Goes the whole way with engines of this machine on a real GPU, and writes what was seen as JSON lines.

    python benchmarks/gpu/prove_native.py --engine llamacpp --engine-path BUILD --model MODEL.gguf --out FILE
    python benchmarks/gpu/prove_native.py --engine vllm --engine-path ENV --model FOLDER --out FILE

`up` with its proof, `ps`, `verify`, a short `bench`; kill -9 of the engine (it is started again and
proves it), kill -9 of the supervisor (nothing may stay), `down`; before and after each, the GPU memory that
nvidia-smi counts. Uses a home of its own; start it with the Python that firesteel is installed in.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PORT = 18765


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", required=True)
    parser.add_argument("--engine-path", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="60s", help="for the benchmark; 0 leaves it out")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--only-up", action="store_true", help="only the start and its proof")
    options = parser.parse_args()
    home = Path(os.environ.setdefault("FIRESTEEL_HOME", tempfile.mkdtemp(prefix="firesteel-")))
    with options.out.open("a") as out:
        return Proof(options, home, out).run()


class Proof:
    def __init__(self, options: argparse.Namespace, home: Path, out: Any) -> None:
        self.options, self.home, self.out = options, home, out

    def note(self, step: str, **values: object) -> None:
        row = {
            "step": step,
            "engine": self.options.engine,
            "model": self.options.model,
            "gpu_used_mib": gpu_used_mib(),
            **values,
        }
        print(json.dumps(row), file=self.out, flush=True)
        print({name: str(value)[:300] for name, value in row.items()}, flush=True)

    def run(self) -> int:
        self.note("before", gpu=smi("name,driver_version,memory.total"))
        began = time.monotonic()
        code, output = firesteel(
            "up", self.options.model, "--native", "--engine", self.options.engine,
            "--engine-path", self.options.engine_path, "--port", str(self.options.port), "--json",
        )  # fmt: skip
        document = json.loads(output) if code == 0 else {"output": output[-3000:]}
        self.note("up", code=code, seconds=round(time.monotonic() - began, 1), document=document)
        if code or self.options.only_up:
            self.down()
            return code
        name = document["name"]
        self.note("ps", document=json.loads(firesteel("ps", "--json")[1]))
        code, output = firesteel("verify", name)
        self.note("verify", code=code, output=output[-3000:])
        if self.options.budget != "0":
            code, output = firesteel(
                "bench", name, "--budget", self.options.budget, "--users", "1,4,16", "--depth", "512",
                "--answer", "128", "--json",
            )  # fmt: skip
            self.note("bench", code=code, document=json.loads(output) if code == 0 else output[-3000:])
        self.kill(name)
        self.down()
        return 0

    def kill(self, name: str) -> None:
        state = json.loads((self.home / "services" / name / "state.json").read_text())
        os.kill(state["engine"]["number"], signal.SIGKILL)
        began, seen = time.monotonic(), []
        while time.monotonic() - began < 240:
            phase = self.phase(name)
            if not seen or seen[-1][1] != phase:
                seen.append((round(time.monotonic() - began, 1), phase))
            if phase == "ready" and len(seen) > 1:
                break
            time.sleep(0.5)
        self.note("kill -9 of the engine", phases=seen)
        state = json.loads((self.home / "services" / name / "state.json").read_text())
        os.kill(state["supervisor"]["number"], signal.SIGKILL)
        began = time.monotonic()
        while self.left() and time.monotonic() - began < 60:
            time.sleep(0.2)
        self.note(
            "kill -9 of the supervisor", seconds=round(time.monotonic() - began, 1), left=self.left(),
            phase=self.phase(name),
        )  # fmt: skip

    def phase(self, name: str) -> str:
        rows = json.loads(firesteel("ps", "--json")[1]).get("services", [])
        return next((str(row.get("phase")) for row in rows if row.get("name") == name), "gone")

    def left(self) -> list[str]:
        """Processes that carry the home in their environment, this script's own aside."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                environment = path.read_bytes()
                if f"FIRESTEEL_SERVICE={self.home}".encode() in environment:
                    found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
            except OSError:
                continue
        return found

    def down(self) -> None:
        code, output = firesteel("down", "--all")
        self.note("down", code=code, output=output[-500:], left=self.left())


def firesteel(*arguments: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "firesteel", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def smi(query: str) -> str:
    argv = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def gpu_used_mib() -> int | None:
    text = smi("memory.used")
    return int(text.splitlines()[0]) if text else None


if __name__ == "__main__":
    sys.exit(main())
