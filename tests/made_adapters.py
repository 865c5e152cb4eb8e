"""LoRA adapters for SmolLM2-135M, made here: small random matrices, large enough to change its answers.

python -m tests.made_adapters FILE.gguf
"""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path

HIDDEN, WIDTH, LAYERS = 576, 1536, 30
"""Of SmolLM2-135M; 9 heads and 3 KV heads of 64."""
SHAPES = {"q_proj": (HIDDEN, HIDDEN), "v_proj": (HIDDEN, 192), "down_proj": (WIDTH, HIDDEN)}
_GGUF = {"q_proj": "attn_q", "v_proj": "attn_v", "down_proj": "ffn_down"}
_PEFT = {"q_proj": "self_attn.q_proj", "v_proj": "self_attn.v_proj", "down_proj": "mlp.down_proj"}
Shapes = dict[str, tuple[int, int]]


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _floats(source: random.Random, count: int) -> bytes:
    return struct.pack(f"<{count}f", *(source.uniform(-0.2, 0.2) for _ in range(count)))


def write_gguf(
    path: Path,
    modules: tuple[str, ...] = ("q_proj", "down_proj"),
    shapes: Shapes = SHAPES,
    *,
    rank: int = 4,
    layers: int = LAYERS,
    architecture: str = "llama",
    seed: int = 1,
) -> Path:
    source, offset, infos, data = random.Random(seed), 0, b"", b""
    for layer in range(layers):
        for module in modules:
            inputs, outputs = shapes[module]
            for part, sizes in (("a", (inputs, rank)), ("b", (rank, outputs))):
                name = f"blk.{layer}.{_GGUF[module]}.weight.lora_{part}"
                infos += _string(name) + struct.pack("<IQQIQ", 2, *sizes, 0, offset)
                data += _floats(source, sizes[0] * sizes[1])
                data += bytes(-len(data) % 32)
                offset = len(data)
    texts = {
        "general.type": "adapter",
        "general.architecture": architecture,
        "general.base_model.0.name": "SmolLM2 135M Instruct",
        "adapter.type": "lora",
    }
    keys = b"".join(_string(name) + struct.pack("<I", 8) + _string(text) for name, text in texts.items())
    keys += _string("adapter.lora.alpha") + struct.pack("<If", 6, 2.0 * rank)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2 * layers * len(modules), len(texts) + 1) + keys + infos
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def write_peft(
    folder: Path,
    modules: tuple[str, ...] = ("q_proj", "down_proj"),
    shapes: Shapes = SHAPES,
    *,
    rank: int = 4,
    layers: int = LAYERS,
    **config: object,
) -> Path:
    """`config`: more of adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(modules),
        "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
    }
    (folder / "adapter_config.json").write_text(json.dumps(known | config))
    source, header, data = random.Random(1), {}, b""
    for layer in range(layers):
        for module in modules:
            inputs, outputs = shapes[module]
            for part, sizes in (("A", (rank, inputs)), ("B", (outputs, rank))):
                name = f"base_model.model.model.layers.{layer}.{_PEFT[module]}.lora_{part}.weight"
                start = len(data)
                data += _floats(source, sizes[0] * sizes[1])
                header[name] = {"dtype": "F32", "shape": list(sizes), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]))
