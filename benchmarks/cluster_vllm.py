#!/usr/bin/env python3
"""Serve SmolLM2 by real vLLM on a CPU over two hosts (TP=2) and over three (TP=3), and break it.

    python benchmarks/cluster_vllm.py --env ENV --gguf FILE [--hosts 2 3] [--only PATTERN] [--times 1]

ENV is an environment with vLLM's CPU build (`scripts/record-vllm-log` says how to make one), FILE is the GGUF
of `firesteel pull smollm2`. Hosts are network namespaces; needs root, sshd, ip and nft, and 3 GB of memory a
host. Two ranks cannot split 3 KV heads, so their model has heads of zeros besides, with the same answers.
First every command once, from `cluster add` to `down`; then, over two hosts, faults of `cluster_faults.py`
that match PATTERN (with `none` none). Ends with 1 if a command fails or a bar of that script is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cluster_faults import Served, are_bars_missed, break_it, small_disk
from tests.hosts.cluster.namespaces import NamespaceHost, hosts, missing
from tests.hosts.cluster.service import NAME, ask, engines_on

ROOT = Path(__file__).resolve().parent.parent
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
COMMIT = "0" * 40
SEEN = [{"url": f"https://huggingface.co/{MODEL}", "seen": "2026-11-16"}]
START_S = 1800


def make_model(gguf: Path, folder: Path, count: int) -> None:
    heads = ("--kv-heads", "4") if count == 2 else ()
    make = [sys.executable, str(ROOT / "scripts/make-smollm2-bf16"), str(folder), "--gguf", str(gguf), *heads]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)


def fill_hub_cache(head: NamespaceHost, model: Path) -> None:
    """As huggingface_hub keeps it: the head has the weights, the nodes have nothing."""
    folder = head.home / ".cache/huggingface/hub" / f"models--{MODEL.replace('/', '--')}"
    for part in ("blobs", f"snapshots/{COMMIT}", "refs"):
        (folder / part).mkdir(parents=True)
    (folder / "refs/main").write_text(COMMIT)
    for path in model.iterdir():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.rename(folder / "blobs" / digest)
        (folder / "snapshots" / COMMIT / path.name).symlink_to(f"../../blobs/{digest}")


def write_recipe(head: NamespaceHost, config: str, count: int) -> None:
    """A recipe of the user's own, which goes before the shipped one of that name."""
    model = {
        "id": MODEL, "title": "SmolLM2 135M", "family": "smollm2", "license": "Apache-2.0", "gated": False,
        "modality": ["text"], "config": config, "sources": SEEN,
    }  # fmt: skip
    recipe = {
        "title": f"SmolLM2 over {count} hosts", "model": MODEL, "engine": "vllm", "image": "vllm-openai-0.28",
        "sparks": count, "serves": {"context": 2048, "users": 2}, "status": "untried", "sources": SEEN,
        "flags": {
            "tensor-parallel-size": {"value": str(count), "why": "a part for each host"},
            "enforce-eager": {"value": True, "why": "compiling takes longer than all answers here"},
        },
        "env": {
            "VLLM_CPU_OMP_THREADS_BIND": {"value": "nobind", "why": "the hosts share their cores"},
            "OMP_NUM_THREADS": {"value": "1", "why": "the same"},
            "VLLM_CPU_KVCACHE_SPACE": {"value": "1", "why": "GiB; the CPU build does not read the flag"},
        },
    }  # fmt: skip
    for kind, document in (("models", model), ("recipes", recipe)):
        path = head.folder / "firesteel/catalog" / kind / f"{NAME}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document))


def commands(
    made: list[NamespaceHost], served: Served, engine: tuple[str, ...], are_all: bool
) -> Iterator[tuple[str, bool, str, float]]:
    """What was typed, whether it worked, what it printed last, and how long it took."""
    head = made[0]
    lines = [
        *(("cluster", "add", node.name, "--yes") for node in made[1:]), ("cluster", "check"),
        ("cluster", "stage", NAME, *engine), served.up, (),
    ]  # fmt: skip
    if are_all:
        bench = ("--users", "1", "--depth", "128", "--answer", "32", "--budget", "1m")
        lines += [("bench", NAME, *bench), ("ps",), ("logs", NAME, "--node", made[-1].name)]
    for words in lines:
        began = time.monotonic()
        if words:
            done = head.firesteel(*words, timeout_s=served.start_s)
            is_good, said, shown = done.code == 0, (done.out if done.code == 0 else done.err), " ".join(words)
        else:
            answer = ask(head, limit_s=served.answer_s)
            is_good, said, shown = "Paris" in answer, answer, "POST /v1/completions"
        yield shown, is_good, said, time.monotonic() - began


def down(made: list[NamespaceHost]) -> list[str]:
    made[0].firesteel("down", NAME)
    return [line for host in made for line in engines_on(host)]


def serve(made: list[NamespaceHost], env: Path, gguf: Path, only: str, times: int) -> bool:
    head, count = made[0], len(made)
    engine = ("--native", "--engine-path", str(env))
    served = Served(
        ("up", NAME, "--cluster", *engine, "--allow-tcp"),
        "VLLM::Worker", "VLLM::EngineCore", "tcp dport != 22", START_S, 120,
    )  # fmt: skip
    make_model(gguf, head.folder / "model", count)
    config = (head.folder / "model/config.json").read_text()
    fill_hub_cache(head, head.folder / "model")
    write_recipe(head, config, count)
    head.env |= {"HF_HOME": str(head.home / ".cache/huggingface"), "HF_HUB_OFFLINE": "1"}
    is_good = True
    for words, worked, said, took_s in commands(made, served, engine, are_all=only in ("", "none")):
        is_good &= worked
        how = f"{took_s:.0f} s{'' if worked else ', FAILED'}"
        print(f"## TP={count}: {words} ({how})\n{said.strip()[-1500:]}\n", flush=True)
    rows = break_it(served, head, made[1], times, only) if is_good and count == 2 else []
    left = down(made)
    print(f"TP={count}: left after down: {len(left)}", flush=True)
    return is_good and not left and not are_bars_missed(rows)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--only", default="", help="only these faults, without bench; `none` for none")
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    if lacks := missing():
        print(lacks)
        return 2
    os.environ.setdefault("PYTHONPATH", str(ROOT / "src"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or hosts and mounts would stay
    is_good = True
    for count in options.hosts:
        with (
            tempfile.TemporaryDirectory() as folder,
            hosts(Path(folder), count) as made,
            small_disk(made[1]),
        ):
            is_good &= serve(made, options.env, options.gguf, options.only, options.times)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
