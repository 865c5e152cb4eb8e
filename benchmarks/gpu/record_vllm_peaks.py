#!/usr/bin/env python3
"""What a step of vLLM takes besides weights and KV cache, by its parts: several boots at once on one GPU.

    python3 benchmarks/gpu/record_vllm_peaks.py peaks.json CONFIGS OUT [seconds] [at-once]

peaks.json lists models and loads (`benchmarks/gpu/peaks.json`), CONFIGS is a folder with `config.json` files
(`tests/facts/configs`). Models are cut to a few layers and have random weights: the peak of a step is that of
one layer. OUT gets `peaks.jsonl`, a line a boot, and a log each; a boot that is there already is skipped.

The figures are torch's own counters around vLLM's profile run, so that boots beside it do not disturb them:
`forward` (the largest step), `kept` (what stays afterwards: workspaces of experts), `sampler` (with what was
kept), `graphs` (what nvidia-smi counts for the process, after less before the capture).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from record_vllm_boots import child, import_vllm, names_in, write_model

LIMIT_S = 200


def main(peaks: str, configs: str, out: str, seconds: str = "600", at_once: str = "4") -> int:
    deadline = time.monotonic() + float(seconds)
    results = Path(out, "peaks.jsonl")
    results.parent.mkdir(parents=True, exist_ok=True)
    done = names_in(results)
    import_vllm()
    running: dict[int, tuple[dict[str, Any], float]] = {}
    waiting = [boot for boot in boots(json.loads(Path(peaks).read_text())) if boot["name"] not in done]
    while running or waiting:
        while waiting and len(running) < int(at_once) and time.monotonic() < deadline - 60:
            boot = waiting.pop(0)
            pid = os.fork()
            if not pid:
                child(boot["name"], Path(out), partial(measure, boot, Path(configs), Path(out)))
            running[pid] = (boot, time.monotonic())
        if not running:
            break
        for pid, (boot, began) in list(running.items()):
            if time.monotonic() > min(began + LIMIT_S, deadline):
                os.kill(pid, 9)
            if os.waitpid(pid, os.WNOHANG)[0]:
                del running[pid]
                collect(boot, Path(out), results, time.monotonic() - began)
        time.sleep(0.1)
    print(f"{len(waiting)} boots left")
    return 0


def boots(peaks: dict[str, Any]) -> list[dict[str, Any]]:
    """Each model with each load: tokens of a step, sequences, and whether graphs are captured."""
    return [
        {**model, **load, "name": f"{model['name']}-{load['tokens']}-{load['sequences']}{suffix}"}
        for load in peaks["loads"]
        for suffix in (["-graphs"] if load.get("graphs") else [""])
        for model in peaks["models"]
        if (model["name"] in load["only"] if "only" in load else model.get("whole") == load.get("graphs"))
    ]


def collect(boot: dict[str, Any], out: Path, results: Path, seconds: float) -> None:
    path = out / f"{boot['name']}.json"
    found = json.loads(path.read_text()) if path.exists() else {"failed": "ended without figures"}
    path.unlink(missing_ok=True)
    keys = ("name", "config", "set", "tokens", "sequences", "graphs", "judge")
    row = {key: boot[key] for key in keys if key in boot} | {"seconds": round(seconds, 1)} | found
    with results.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row)[:400], flush=True)


def measure(boot: dict[str, Any], configs: Path, out: Path) -> dict[str, Any]:
    import torch
    from vllm.entrypoints.llm import LLM
    from vllm.v1.worker import gpu_model_runner as first
    from vllm.v1.worker.gpu import model_runner as second

    figures: dict[str, Any] = {}

    def wrap(owner: Any, method: str, around: Any) -> None:
        original = getattr(owner, method)
        setattr(owner, method, lambda self, *args, **kwargs: around(original, self, *args, **kwargs))

    def counted(key: str, call: Any) -> Any:
        """The peak of one call over what was there before the profile run."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        figures[f"{key}_bytes"] = torch.cuda.max_memory_allocated() - figures["before_bytes"]
        figures["kept_bytes"] = torch.cuda.memory_allocated() - figures["before_bytes"]
        return result

    def profile(original: Any, self: Any) -> Any:
        figures["runner"] = 2 if isinstance(self, second.GPUModelRunner) else 1
        figures["before_bytes"] = torch.cuda.memory_allocated()
        result = original(self)
        figures["kept_bytes"] = torch.cuda.memory_allocated() - figures["before_bytes"]
        figures["profiled"] = True
        return result

    def part(key: str, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        call = partial(original, self, *args, **kwargs)
        return counted(key, call) if "before_bytes" in figures and "profiled" not in figures else call()

    def capture(original: Any, self: Any) -> Any:
        before = own_gpu_mib()
        result = original(self)
        figures["graphs_mib"] = own_gpu_mib() - before
        return result

    for runner in (first.GPUModelRunner, second.GPUModelRunner):
        wrap(runner, "profile_run", profile)
        wrap(runner, "_dummy_run", partial(part, "forward"))
        wrap(runner, "_dummy_sampler_run", partial(part, "sampler"))
        wrap(runner, "capture_model", capture)
    folder = write_model(boot, configs, out)
    llm = LLM(
        str(folder), load_format="dummy", runner="generate", skip_tokenizer_init=True, max_model_len=8192,
        enforce_eager=not boot.get("graphs"), max_num_seqs=boot["sequences"], gpu_memory_utilization=0.2,
        max_num_batched_tokens=boot["tokens"], kv_cache_memory_bytes=boot.get("kv_gib", 4) << 30,
        **boot.get("arguments", {}),
    )  # fmt: skip
    config = llm.llm_engine.vllm_config
    figures["capture_sizes"] = len(config.compilation_config.cudagraph_capture_sizes or [])
    return figures


def own_gpu_mib() -> int:
    argv = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    for line in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines():
        pid, _, used = line.partition(",")
        if int(pid) == os.getpid():
            return int(used)
    raise RuntimeError("nvidia-smi does not list this process")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
