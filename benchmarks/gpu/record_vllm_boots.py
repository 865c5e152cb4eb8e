#!/usr/bin/env python3
"""Boot vLLM on a real GPU with many model configs and record what its memory profiler found, to the byte.

    python3 benchmarks/gpu/record_vllm_boots.py BOOTS.json CONFIGS OUT [seconds]

BOOTS.json lists boots (`benchmarks/gpu/boots.json`), CONFIGS is a folder with `config.json` files under the
names that BOOTS.json uses (`tests/facts/configs`). Weights are random (`load_format=dummy`): memory does not
depend on their values, and no Hub is needed. OUT gets `boots.jsonl`, a line a boot, and a log each. A boot
that is in `boots.jsonl` already is skipped, so the script can be run a part at a time.

vLLM is imported once and every boot is a fork: importing takes half a minute, a boot then a few seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, where its worker can be asked
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
LIMIT_S = 240
ARCHITECTURES = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gpt_oss": "GptOssForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
}
"""By `model_type`: the recorded configs have no `architectures`, and vLLM chooses its class by that."""


def main(boots_path: str, configs: str, out: str, seconds: str = "600") -> int:
    deadline = time.monotonic() + float(seconds)
    results = Path(out, "boots.jsonl")
    results.parent.mkdir(parents=True, exist_ok=True)
    done, began = names_in(results), time.monotonic()
    version = import_vllm()
    print(f"vLLM {version} imported in {time.monotonic() - began:.0f} s", flush=True)
    for boot in json.loads(Path(boots_path).read_text()):
        if boot["name"] in done:
            continue
        if time.monotonic() > deadline - 45:
            print(f"out of time before {boot['name']}")
            break
        result = run(boot, Path(configs), Path(out))
        print({key: value for key, value in result.items() if key != "arguments"}, flush=True)
        with results.open("a") as file:
            file.write(json.dumps(result) + "\n")
    return 0


def names_in(results: Path) -> set[str]:
    lines = results.read_text().splitlines() if results.exists() else []
    return {json.loads(line)["name"] for line in lines}


def import_vllm() -> str:
    """Once, so that no fork loads it: its version."""
    import vllm
    from vllm.model_executor.models import registry

    import_module("vllm.entrypoints.llm")
    registry._run_in_subprocess = lambda function: function()  # it would import vLLM again for each model
    return str(vllm.__version__)


def run(boot: dict[str, Any], configs: Path, out: Path) -> dict[str, Any]:
    """One boot in a forked child; its figures come back through a file."""
    figures = out / f"{boot['name']}.json"
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        child(boot["name"], out, partial(_boot, boot, configs, out))
    status = None
    while time.monotonic() - began < LIMIT_S:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.2)
    else:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    found = json.loads(figures.read_text()) if figures.exists() else {"failed": f"status {status}"}
    figures.unlink(missing_ok=True)
    return {
        "name": boot["name"],
        "config": boot["config"],
        "set": boot.get("set", {}),
        "arguments": boot.get("arguments", {}),
        "seconds": round(time.monotonic() - began, 1),
        **found,
    }


def child(name: str, out: Path, measure: Callable[[], object]) -> None:
    """In a fork: what it prints goes to NAME.log, its figures or why there are none to NAME.json."""
    log = os.open(out / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    figures = out / f"{name}.json"
    try:
        figures.write_text(json.dumps(measure()))
    except BaseException as error:
        traceback.print_exc()
        figures.write_text(json.dumps({"failed": f"{type(error).__name__}: {error}"[:500]}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # not through the parent's handlers


def _boot(boot: dict[str, Any], configs: Path, out: Path) -> dict[str, Any]:
    from vllm.entrypoints.llm import LLM

    folder = write_model(boot, configs, out)
    arguments = {"max_model_len": 32768, "enforce_eager": True, **boot.get("arguments", {})}
    llm = LLM(str(folder), load_format="dummy", runner="generate", skip_tokenizer_init=True, **arguments)
    return _figures(llm) | (_speed(llm) if boot.get("speed") else {})


def write_model(boot: dict[str, Any], configs: Path, out: Path) -> Path:
    """A folder with the boot's config, changed as it asks."""
    folder = out / "models" / boot["name"]
    folder.mkdir(parents=True, exist_ok=True)
    config = changed_config(boot, configs)
    config.setdefault("architectures", [ARCHITECTURES[config["model_type"]]])
    config.pop("auto_map", None)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def changed_config(boot: dict[str, Any], configs: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((configs / boot["config"]).read_text())
    for path, value in boot.get("set", {}).items():
        *parents, key = path.split(".")
        holder = config
        for parent in parents:
            holder = holder[parent]
        if value is None:
            holder.pop(key, None)
        elif isinstance(value, dict) and "first" in value:  # the first N of a list by layer
            holder[key] = holder[key][: value["first"]]
        else:
            holder[key] = value
    return config


def _figures(llm: Any) -> dict[str, Any]:
    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    config, kv = core.vllm_config, core.scheduler.kv_cache_config
    return {
        "weights_bytes": int(worker.model_runner.model_memory_usage),
        "activation_bytes": int(worker.peak_activation_memory),
        "non_torch_bytes": int(worker.non_torch_memory),
        "graph_estimate_bytes": int(worker.cudagraph_memory_estimate),
        "requested_bytes": int(worker.requested_memory),
        "kv_bytes": int(worker.available_kv_cache_memory_bytes),
        "kv_blocks": int(kv.num_blocks),
        "kv_groups": len(kv.kv_cache_groups),
        "block_size": int(config.cache_config.block_size),
        "max_num_seqs": int(config.scheduler_config.max_num_seqs),
        "max_num_batched_tokens": int(config.scheduler_config.max_num_batched_tokens),
        "max_model_len": int(config.model_config.max_model_len),
    }


def _speed(llm: Any) -> dict[str, Any]:
    """Decode at one and four users, 512 tokens in, as differences of two lengths."""
    from vllm import SamplingParams

    def seconds(users: int, tokens: int) -> float:
        prompts = [
            {"prompt_token_ids": [1000 + (7 * i + 101 * user) % 3000 for i in range(512)]}
            for user in range(users)
        ]
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        began = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - began

    rates = {}
    for users in (1, 4):
        seconds(users, 16)
        short, long = (min(seconds(users, tokens) for _ in range(2)) for tokens in (16, 272))
        rates[f"decode_tokens_per_s_{users}"] = round(256 * users / (long - short), 2)
    return rates


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
