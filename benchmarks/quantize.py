"""`quantize` beside llm-compressor's `model_free_ptq` and `cp`, on one made model, in one run.

    python benchmarks/quantize.py [--mb 1500] [--experts] [--repeat 3] [--llmcompressor VENV/bin/python]...

The model has random BF16 weights in large tensors; with `--experts` these are experts in one 3-D tensor a
layer. Tools take turns. Rates are bytes of the source for each second of wall time and, since other work may
run on the machine, for each second of CPU time (user and system, all threads), for the ratios a core.
`cp` is measured as it is and with a sync at the end, which `quantize` always has.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from firesteel.facts.formats import safetensors

HIDDEN, WIDE, HEADS = 2048, 5632, 16
EXPERTS, EXPERT_WIDE = 32, 768
SCHEMES = {"fp8-dynamic": "FP8_DYNAMIC", "nvfp4": "NVFP4A16"}
PTQ = """
import sys, time
from llmcompressor import model_free_ptq
source, out, scheme = sys.argv[1:]
began = time.monotonic(), time.process_time()
model_free_ptq(source, out, scheme=scheme, ignore=["lm_head", "re:.*embed_tokens$", "re:.*mlp.gate$"])
print("TIMES", time.monotonic() - began[0], time.process_time() - began[1])
"""


def make_model(folder: Path, megabytes: int, has_experts: bool) -> int:
    """Returns its bytes."""
    folder.mkdir()
    layer = _layer(has_experts)
    layer_bytes = sum(2 * int(np.prod(shape)) for shape in layer.values())
    layers = max(1, megabytes * 10**6 // layer_bytes)
    shapes = {"model.embed_tokens.weight": (4096, HIDDEN)}
    for number in range(layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (4096, HIDDEN)}
    config = {
        "model_type": "qwen3_moe" if has_experts else "llama", "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS, "vocab_size": 4096, "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    if has_experts:
        config |= {"num_experts": EXPERTS, "num_experts_per_tok": 4, "moe_intermediate_size": EXPERT_WIDE}
    (folder / "config.json").write_text(json.dumps(config))
    return _write(folder / "model.safetensors", shapes)


def _layer(has_experts: bool) -> dict[str, tuple[int, ...]]:
    square, wide = (HIDDEN, HIDDEN), (WIDE, HIDDEN)
    attention = {f"self_attn.{name}_proj.weight": square for name in "qkvo"}
    norms = {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
    if has_experts:
        experts = {
            "mlp.gate.weight": (EXPERTS, HIDDEN),
            "mlp.experts.gate_up_proj": (EXPERTS, 2 * EXPERT_WIDE, HIDDEN),
            "mlp.experts.down_proj": (EXPERTS, HIDDEN, EXPERT_WIDE),
        }
        return attention | experts | norms
    mlp = {"mlp.gate_proj.weight": wide, "mlp.up_proj.weight": wide, "mlp.down_proj.weight": (HIDDEN, WIDE)}
    return attention | mlp | norms


def _write(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    sizes = {name: 2 * int(np.prod(shape)) for name, shape in shapes.items()}
    rng = np.random.default_rng(1)
    with path.open("wb") as file:
        file.write(safetensors.front((name, "BF16", shape, sizes[name]) for name, shape in shapes.items()))
        for shape in shapes.values():
            left = int(np.prod(shape))
            while left:
                count = min(left, 2**22)
                values = rng.standard_normal(count, np.float32) * np.float32(0.02)
                file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
                left -= count
    return sum(sizes.values())


def timed(command: Sequence[str], env: dict[str, str] | None = None) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds, output."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **(env or {})}
    )
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def ours(source: Path, out: Path, to: str, threads: int) -> tuple[float, float]:
    """Without the start of Python and the plan, like the others."""
    code = (
        "import sys, os, time; from pathlib import Path\n"
        "from firesteel.workshop.kernels.native import load_kernel\n"
        "from firesteel.workshop.quantize.plan import plan_quantization\n"
        "from firesteel.workshop.quantize.run import run_quantization\n"
        "from firesteel.workshop.quantize.source import open_source\n"
        "source, out, to, threads, kernels = sys.argv[1:]\n"
        "kernel = load_kernel(Path(kernels)); assert kernel.name == 'C'\n"
        "began = time.monotonic(), time.process_time()\n"
        "run_quantization(plan_quantization(open_source(source), to), Path(out), kernel, int(threads))\n"
        "print('TIMES', time.monotonic() - began[0], time.process_time() - began[1])\n"
    )
    kernels = str(Path(tempfile.gettempdir()) / "firesteel-bench-kernels")
    command = [sys.executable, "-c", code, str(source), str(out), to, str(threads), kernels]
    return _reported(timed(command)[2])


def theirs(python: str, source: Path, out: Path, to: str) -> tuple[float, float]:
    env = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return _reported(timed([python, "-c", PTQ, str(source), str(out), SCHEMES[to]], env)[2])


def _reported(output: str) -> tuple[float, float]:
    line = next(line for line in output.splitlines() if line.startswith("TIMES"))
    wall, cpu = line.split()[1:]
    return float(wall), float(cpu)


def copy(source: Path, out: Path, syncs: bool) -> tuple[float, float]:
    out.mkdir()
    sync = f" && sync -d {out}/model.safetensors" if syncs else ""
    wall, cpu, _ = timed(["sh", "-c", f"cp {source}/model.safetensors {out}/{sync}"])
    return wall, cpu


def version_of(python: str) -> str:
    code = "from importlib.metadata import version; print(version('llmcompressor'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=1500)
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--to", action="append", choices=SCHEMES, help="only these formats")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--llmcompressor", action="append", default=[])
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, out = folder / "model", folder / "out"
        size = make_model(source, options.mb, options.experts)
        jobs: dict[str, Callable[[], tuple[float, float]]] = {
            "cp": lambda: copy(source, out, False),
            "cp, synced": lambda: copy(source, out, True),
        }
        for to in options.to or SCHEMES:
            for threads in dict.fromkeys((1, cores)):
                jobs[f"quantize {to}, {threads} thread(s)"] = lambda to=to, threads=threads: ours(
                    source, out, to, threads
                )
            for python in options.llmcompressor:
                jobs[f"llm-compressor {version_of(python)} {to}"] = lambda to=to, python=python: theirs(
                    python, source, out, to
                )
        times: dict[str, list[tuple[float, float]]] = {job: [] for job in jobs}
        for _ in range(options.repeat):
            for job, run in jobs.items():
                (source / "model.safetensors").read_bytes()  # in the page cache for everybody
                times[job].append(run())
                shutil.rmtree(out)
    kind = "experts" if options.experts else "dense"
    print(f"{size / 1e6:,.0f} MB, {kind}, {cores} cores, load {os.getloadavg()[0]:.0f}")
    print("| tool | wall, s (best) | GB/s | CPU, s (median) | GB/s a core |\n|---|---:|---:|---:|---:|")
    for job, measured in times.items():
        wall, cpu = min(w for w, _ in measured), statistics.median(c for _, c in measured)
        print(f"| {job} | {wall:.2f} | {size / wall / 1e9:.3f} | {cpu:.2f} | {size / cpu / 1e9:.3f} |")


if __name__ == "__main__":
    main()
