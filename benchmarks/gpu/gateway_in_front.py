"""What the gateway adds in front of a real engine: one load, direct and through `firesteel serve`, in turns.

    python benchmarks/gpu/gateway_in_front.py --url http://127.0.0.1:8000 --model NAME --out FILE.jsonl \
        [--users 128] [--prompt 128] [--answer 128] [--rounds 3] [--budget 20s] [--tokenizer FOLDER]

Starts a gateway of its own on --port with that server as its only model. FILE gets a line for each turn, and
one with the differences of the medians. With --tokenizer, vLLM's own client measures instead of firesteel's.
Start it with the Python that firesteel is installed in.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

KEYS = ("ttft_ms", "time_per_output_token_ms", "inter_token_ms", "total_tokens_per_s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, default=18601)
    parser.add_argument("--users", default="128")
    parser.add_argument("--prompt", default="128")
    parser.add_argument("--answer", default="128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", default="20s")
    parser.add_argument("--tokenizer", help="of the model, for vLLM's own client")
    options = parser.parse_args()
    home = tempfile.mkdtemp(prefix="firesteel-")
    file = Path(home, "service.yaml")
    file.write_text(
        f"listen: 127.0.0.1:{options.port}\n"
        f"models:\n  {options.model}: {{url: '{options.url}', memory: 20GiB}}\n"
    )
    env = {**os.environ, "FIRESTEEL_HOME": home}
    argv = [sys.executable, "-m", "firesteel", "serve", "-f", str(file)]
    with Path(home, "gateway.log").open("wb") as log:
        gateway = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
    try:
        if not wait(f"http://127.0.0.1:{options.port}/v1/models", gateway, 60):
            raise TimeoutError("the gateway did not start")
        urls = {"direct": f"{options.url}/v1", "gateway": f"http://127.0.0.1:{options.port}/v1"}
        turns: dict[str, list[dict[str, Any]]] = {"direct": [], "gateway": []}
        with options.out.open("a") as out:
            for number in range(options.rounds):
                # Each goes first in turn: the second finds the server warmer.
                for way, url in sorted(urls.items(), reverse=number % 2 == 1):
                    before = cpu_s(gateway.pid)
                    row = vllm_bench(url, options) if options.tokenizer else bench(url, options, env)
                    row |= {"way": way, "gateway_cpu_s": round(cpu_s(gateway.pid) - before, 2)}
                    print(json.dumps({"model": options.model, **row}), file=out, flush=True)
                    print(row, flush=True)
                    turns[way].append(row)
            summary = {"model": options.model, "users": options.users, **differences(turns)}
            print(json.dumps(summary), file=out, flush=True)
            print(summary, flush=True)
    finally:
        gateway.terminate()
        gateway.wait(20)
        print(Path(home, "gateway.log").read_text()[-600:])
    return 0


def wait(url: str, process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Until it answers. False: it has ended, or takes longer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).read()
            return True
        except OSError:
            time.sleep(0.2)
    return False


def bench(url: str, options: argparse.Namespace, env: dict[str, str]) -> dict[str, Any]:
    argv = [
        sys.executable, "-m", "firesteel", "bench", "--url", url, "--model", options.model, "--users",
        options.users, "--depth", options.prompt, "--answer", options.answer, "--text", "prose", "--budget",
        options.budget, "--json",
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        return {"failed": (done.stdout + done.stderr)[-1500:]}
    document = json.loads(done.stdout)
    figures = document["figures"][0]
    return {
        "ttft_ms": figures["ttft_ms"].get("p50"),
        "time_per_output_token_ms": figures["time_per_output_token_ms"].get("p50"),
        "inter_token_ms": figures["inter_token_ms"].get("p50"),
        "total_tokens_per_s": (figures["total_tokens_per_s"] or {}).get("value"),
        "repetitions": figures["repetitions"],
        "wrong": figures["wrong"],
        "client": document["client"],
        "notes": figures["notes"],
    }


def vllm_bench(url: str, options: argparse.Namespace) -> dict[str, Any]:
    from compare_bench import vllm_result

    result = vllm_result(options, int(options.answer), int(options.users), 4, url=url.removesuffix("/v1"))
    return {
        "ttft_ms": result["median_ttft_ms"],
        "time_per_output_token_ms": result["median_tpot_ms"],
        "inter_token_ms": result["median_itl_ms"],
        "total_tokens_per_s": result["output_throughput"],
        "completed": result["completed"],
    }


def differences(turns: dict[str, list[dict[str, Any]]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key in KEYS:
        values = {way: [row[key] for row in rows if row.get(key)] for way, rows in turns.items()}
        if all(values.values()):
            direct, through = (median(values[way]) for way in ("direct", "gateway"))
            found[key] = {"direct": direct, "gateway": through, "ratio": round(through / direct, 4)}
    return found


def cpu_s(pid: int) -> float:
    """Of the process and its children that still run."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parent.name) == pid or int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
