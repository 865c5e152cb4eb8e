"""Speculative decoding on a real vLLM: is the acceptance that `firesteel bench` reads what the engine prints?

    python benchmarks/gpu/speculation.py --vllm ENV --models MODELS --out OUT

Starts vLLM with SmolLM2 twice, with n-gram drafts and with a draft model (`make_models.py` wrote both), runs
`firesteel bench`, and adds up the lines that vLLM prints every ten seconds beside its counters. n-gram drafts
need numba. Start it with the Python that firesteel is installed in.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gateway_in_front import wait

PORTS = {"ngram": 18711, "draft_model": 18712}
PRINTED = re.compile(r"Mean acceptance length: ([\d.]+),.*Accepted: (\d+) tokens, Drafted: (\d+) tokens")
COUNTER = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens)_total\{[^}]*\} ([\d.e+]+)", re.M
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool, (options.out / "speculation.jsonl").open("a") as out:
        for row in pool.map(lambda method: prove(method, options), PORTS):
            print(json.dumps(row), file=out, flush=True)
            print(row, flush=True)
    return 0


def prove(method: str, options: argparse.Namespace) -> dict[str, object]:
    port, log = PORTS[method], options.out / f"vllm-speculation-{method}.log"
    settings: dict[str, object] = {"method": method, "num_speculative_tokens": 3}
    if method == "ngram":
        settings |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    else:
        settings |= {"model": str(options.models / "draft")}
    argv = [
        str(options.vllm / "bin/vllm"), "serve", str(options.models / "smollm2"), "--served-model-name",
        "smollm2", "--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", "8", "--enforce-eager",
        "--kv-cache-memory-bytes", "2G", "--gpu-memory-utilization", "0.05", "--speculative-config",
        json.dumps(settings),
    ]  # fmt: skip
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with log.open("wb") as file:
        server = subprocess.Popen(argv, stdout=file, stderr=file, env=env, start_new_session=True)
    try:
        if not wait(f"http://127.0.0.1:{port}/health", server, 300):
            return {"method": method, "failed": log.read_text(errors="replace")[-1500:]}
        argv = [
            sys.executable, "-m", "firesteel", "bench", "--url", f"http://127.0.0.1:{port}/v1", "--users",
            "4", "--depth", "256", "--answer", "128", "--text", "code", "--budget", "25s", "--json",
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        time.sleep(11)  # its line comes every ten seconds
        return {"method": method, "code": done.returncode, **figures(done.stdout), **printed(log, port)}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def figures(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)["figures"]
    except (ValueError, KeyError):
        return {"failed": text[-800:]}
    return {"firesteel_accepted_per_step": [each["accepted_per_step"] for each in found]}


def printed(log: Path, port: int) -> dict[str, object]:
    lines = PRINTED.findall(log.read_text(errors="replace"))
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    counters = {name: float(value) for name, value in COUNTER.findall(metrics)}
    return {
        "printed_lengths": [float(length) for length, _, _ in lines],
        "printed_accepted": sum(int(accepted) for _, accepted, _ in lines),
        "printed_drafted": sum(int(drafted) for _, _, drafted in lines),
        "counters": counters,
        "accepted_per_step": round(1 + counters["accepted_tokens"] / counters["drafts"], 4)
        if counters
        else None,
    }


if __name__ == "__main__":
    sys.exit(main())
