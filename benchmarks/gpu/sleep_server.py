"""What `--enable-sleep-mode` costs a real `vllm serve`: starts, memory of each process, and how long a wake
takes.

    python benchmarks/gpu/sleep_server.py MODEL OUT [--cycles 5] [--seconds 560]
        [--starts plain sleep plain sleep]

MODEL is a checkpoint with a tokenizer, such as `large` of `make_sleepers.py`: Qwen3-8B's shapes in 16 GB of
random weights. The starts come one after the other on a compile cache that is empty at first, with the same
flags but for `--enable-sleep-mode`: the second shows what its first start costs where the model has run
before. With sleep mode, each cycle is level 2, a second asleep, wake the weights, `reload_weights`, wake the
KV cache, a first token. Memory: NVML's figure and PSS by process, awake and asleep. OUT gets `server.jsonl`
and logs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PORT = 18741
URL = f"http://127.0.0.1:{PORT}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--starts", nargs="*", default=["plain", "sleep", "plain", "sleep"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    os.environ["VLLM_CACHE_ROOT"] = str(options.out / "cache")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.out / "cache" / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(options.out / "cache" / "triton")
    for number, kind in enumerate(options.starts):
        if time.monotonic() > deadline - 60:
            print(f"out of time before start {number}", flush=True)
            break
        row = {"start": number, "kind": kind, **start(kind, number, options, deadline)}
        with (options.out / "server.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    return 0


def start(kind: str, number: int, options: argparse.Namespace, deadline: float) -> dict[str, Any]:
    argv = [
        sys.executable,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(options.model),
        "--served-model-name",
        "m",
        "--host",
        "127.0.0.1",
        "--port",
        str(PORT),
        "--max-model-len",
        "32768",
        "--kv-cache-memory-bytes",
        "16G",
    ]
    argv += ["--enable-sleep-mode"] if kind == "sleep" else []
    env = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    began = time.monotonic()
    with (options.out / f"{number}-{kind}.log").open("wb") as file:
        server = subprocess.Popen(argv, stdout=file, stderr=file, env=env, start_new_session=True)
    try:
        while server.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{URL}/health", timeout=5).read()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        row: dict[str, Any] = {"to_health_s": round(time.monotonic() - began, 1)}
        if server.poll() is not None:
            return row | {"failed": server.returncode}
        row["first_answers"] = [ask() for _ in range(2)]
        row["awake"] = memory(server.pid)
        if kind == "sleep":
            row["cycles"] = [cycle(server.pid) for _ in range(options.cycles)]
        return row
    except Exception as error:
        return {"failed": repr(error)[:400]}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)
        time.sleep(3)


def cycle(pid: int) -> dict[str, Any]:
    row: dict[str, Any] = {"sleep": post("/sleep?level=2")}
    time.sleep(1)
    row["asleep"] = memory(pid)
    row["wake_weights"] = post("/wake_up?tags=weights")
    row["reload"] = post("/collective_rpc", {"method": "reload_weights"})
    row["wake_kv"] = post("/wake_up?tags=kv_cache")
    row["answer"] = ask()
    return row


def post(path: str, body: dict[str, Any] | None = None) -> float:
    began = time.perf_counter()
    data = json.dumps(body).encode() if body else b""
    request = urllib.request.Request(
        URL + path, data=data, headers={"Content-Type": "application/json"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=120).read()
    return round(time.perf_counter() - began, 3)


def ask() -> dict[str, Any]:
    """The time to one token of a short prompt, and eight greedy tokens."""
    body = {
        "model": "m",
        "prompt": list(range(40, 90)),
        "temperature": 0,
        "max_tokens": 1,
        "ignore_eos": True,
        "allowed_token_ids": list(range(256)),
        "return_token_ids": True,
    }
    began = time.perf_counter()
    _completion(body)
    first = time.perf_counter() - began
    tokens = _completion(body | {"max_tokens": 8})["choices"][0].get("token_ids")
    return {"first_token_s": round(first, 3), "tokens": tokens}


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{URL}/v1/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    answer: dict[str, Any] = json.loads(urllib.request.urlopen(request, timeout=120).read())
    return answer


def memory(group: int) -> list[dict[str, Any]]:
    """By process of the server's session: its name, PSS, and what NVML counts for it."""
    listed = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    on_gpu = dict(line.replace(" ", "").split(",")[:2] for line in listed.stdout.splitlines() if "," in line)
    rows = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) != group and os.getsid(int(folder.name)) != group:
                continue
            text = (folder / "smaps_rollup").read_text()
            name = (folder / "comm").read_text().strip()
        except OSError:
            continue
        pss = int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])
        rows.append({"process": name, "pss_mib": pss // 1024, "gpu_mib": on_gpu.get(folder.name)})
    total = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [*sorted(rows, key=lambda row: -row["pss_mib"])[:4], {"whole_gpu_mib": total.stdout.strip()}]


if __name__ == "__main__":
    sys.exit(main())
