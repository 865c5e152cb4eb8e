"""Make GGUF files with random weights, load each with llama.cpp, and record where its memory goes.

    python benchmarks/gpu/random_ggufs.py make TOKENIZER.gguf OUT
    python benchmarks/gpu/random_ggufs.py load LLAMA_SERVER OUT

Memory does not depend on the values of weights. `make` needs numpy and gguf, and takes the tokenizer from the
given file; `load` writes OUT/ggufs.jsonl and a log for each.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CONTEXT = 4096
KEYS = ("arch", "type", "tied", "layers", "hidden", "heads", "kv", "inner", "experts")
SHAPES: dict[str, dict[str, Any]] = {
    name: dict(zip(KEYS, row, strict=True))
    for name, *row in (
        ("llama-tied-f16", "llama", "F16", True, 12, 1024, 16, 4, 2816, 0),
        ("llama-untied-q8_0", "llama", "Q8_0", False, 16, 1024, 16, 8, 2816, 0),
        ("llama-tied-q4_0", "llama", "Q4_0", True, 8, 2048, 32, 8, 5632, 0),
        ("qwen3-tied-q8_0", "qwen3", "Q8_0", True, 10, 1024, 16, 8, 3072, 0),
        ("qwen3-untied-f16", "qwen3", "F16", False, 6, 1536, 12, 2, 4096, 0),
        ("qwen3moe-q8_0", "qwen3moe", "Q8_0", False, 4, 1024, 16, 4, 512, 16),
    )
}
HEAD = 64
BUFFER = re.compile(r"(\S+)\s+(model|KV|compute|output) buffer size\s*=\s*([\d.]+) MiB")


def make(tokenizer: Path, out: Path) -> None:
    import gguf
    import numpy as np

    out.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(str(tokenizer))
    vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    random = np.random.default_rng(1)
    for name, shape in SHAPES.items():
        kind = gguf.GGMLQuantizationType[shape["type"]]
        writer = gguf.GGUFWriter(str(out / f"{name}.gguf"), shape["arch"])
        for key, field in reader.fields.items():
            if key.startswith("tokenizer."):
                sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), field.types[0], sub)
        writer.add_block_count(shape["layers"])
        writer.add_context_length(8192)
        writer.add_embedding_length(shape["hidden"])
        writer.add_feed_forward_length(shape["inner"])
        writer.add_head_count(shape["heads"])
        writer.add_head_count_kv(shape["kv"])
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        writer.add_rope_dimension_count(HEAD)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(vocab)
        if experts := shape.get("experts"):
            writer.add_expert_count(experts)
            writer.add_expert_used_count(4)
            writer.add_expert_feed_forward_length(shape["inner"])
        for tensor, dims in tensors(shape, vocab).items():
            if len(dims) == 1 or tensor.endswith("ffn_gate_inp.weight"):
                writer.add_tensor(tensor, np.ones(dims, np.float32))
                continue
            values = random.standard_normal(dims, np.float32) * np.float32(0.02)
            if shape["type"] == "F16":
                writer.add_tensor(tensor, values.astype(np.float16))
            else:
                writer.add_tensor(tensor, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def tensors(shape: dict[str, Any], vocab: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape["hidden"], shape["inner"]
    queries, keys = HEAD * shape["heads"], HEAD * shape["kv"]
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, hidden),
        "output_norm.weight": (hidden,),
    }
    if not shape["tied"]:
        found["output.weight"] = (vocab, hidden)
    for layer in range(shape["layers"]):
        at = f"blk.{layer}"
        found |= {
            f"{at}.attn_norm.weight": (hidden,),
            f"{at}.ffn_norm.weight": (hidden,),
            f"{at}.attn_q.weight": (queries, hidden),
            f"{at}.attn_k.weight": (keys, hidden),
            f"{at}.attn_v.weight": (keys, hidden),
            f"{at}.attn_output.weight": (hidden, queries),
        }
        if shape["arch"].startswith("qwen3"):
            found |= {f"{at}.attn_q_norm.weight": (HEAD,), f"{at}.attn_k_norm.weight": (HEAD,)}
        if experts := shape.get("experts"):
            found |= {
                f"{at}.ffn_gate_inp.weight": (experts, hidden),
                f"{at}.ffn_gate_exps.weight": (experts, inner, hidden),
                f"{at}.ffn_up_exps.weight": (experts, inner, hidden),
                f"{at}.ffn_down_exps.weight": (experts, hidden, inner),
            }
        else:
            found |= {
                f"{at}.ffn_gate.weight": (inner, hidden),
                f"{at}.ffn_up.weight": (inner, hidden),
                f"{at}.ffn_down.weight": (hidden, inner),
            }
    return found


def load(server: Path, out: Path) -> None:
    with (out / "ggufs.jsonl").open("a") as results:
        for number, name in enumerate(SHAPES):
            log = out / f"{name}.log"
            argv = [
                str(server), "-m", str(out / f"{name}.gguf"), "--ctx-size", str(CONTEXT), "--parallel", "1",
                "--host", "127.0.0.1", "--port", str(19300 + number), "--log-verbosity", "4",
            ]  # fmt: skip
            with log.open("wb") as file:
                process = subprocess.Popen(argv, stdout=file, stderr=file)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                if "model loaded" in log.read_text(errors="replace"):
                    break
                time.sleep(0.1)
            process.terminate()
            process.wait(20)
            buffers = BUFFER.findall(log.read_text(errors="replace"))
            row = {"name": name, "context": CONTEXT, "buffers": buffers, "shape": SHAPES[name]}
            print(json.dumps(row), file=results, flush=True)
            print(row, flush=True)


if __name__ == "__main__":
    {"make": make, "load": load}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
