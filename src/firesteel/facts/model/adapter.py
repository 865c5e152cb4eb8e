"""LoRA adapters: what one changes in its base model, from its config and tensor headers alone.

An adapter holds a pair of small matrices for each module that it changes: A maps the module's inputs to
`rank` numbers, B maps these to its outputs. PEFT keeps them in a folder (`adapter_config.json`,
`adapter_model.safetensors`), llama.cpp in a GGUF. Both name the module in front of `lora_a` and `lora_b`, so
the shapes say which model an adapter belongs to, whatever its config claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from msgspec import field

from firesteel.errors import FiresteelError, printable
from firesteel.facts.formats.gguf import GgufHeader
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    FullAttention,
    SlidingAttention,
    SparseAttention,
)
from firesteel.facts.model.tensors import Tensor
from firesteel.values import Value

AdapterFormat = Literal["peft", "gguf"]
_LORA = re.compile(
    r"(?P<module>.+?)(?:\.weight)?\.(?P<part>lora_[ab])(?:\.default)?(?:\.weight)?\Z", re.IGNORECASE
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d{1,5})\.")
_GGUF_MODULES = {
    "attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj",
    "ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj", "output": "lm_head",
    "token_embd": "embed_tokens",
}  # fmt: skip
_GROUPED = (FullAttention, SlidingAttention, ChunkedAttention, SparseAttention)


class AdapterModule(Value):
    """One kind of module that an adapter changes, in all layers."""

    name: str
    """As PEFT spells it: `q_proj`."""
    inputs: int
    outputs: int


class Adapter(Value):
    name: str
    """The model that clients ask for."""
    path: str
    """What the engine is given: a folder, a file, or a Hub id."""
    format: AdapterFormat
    rank: int
    """The highest of its modules."""
    bytes: int
    modules: tuple[AdapterModule, ...]
    layers: int = 0
    """One more than the last layer that it changes."""
    base: str | None = None
    """The model that it was made for, as its files say."""
    architecture: str | None = None
    """Of a GGUF."""
    features: tuple[str, ...] = field(default=())
    """What it has in addition to plain low-rank pairs: `DoRA`, `modules_to_save`."""

    @classmethod
    def of_peft(cls, name: str, path: str, config: object, tensors: Iterable[Tensor]) -> Adapter:
        if not isinstance(config, Mapping) or str(config.get("peft_type", "LORA")).upper() != "LORA":
            kind = config.get("peft_type") if isinstance(config, Mapping) else None
            raise _bad(path, f"is a PEFT adapter of type {printable(str(kind), 40)}, not LoRA")
        base = config.get("base_model_name_or_path")
        features = tuple(
            title
            for title, is_there in (
                ("DoRA", config.get("use_dora")),
                ("modules_to_save", config.get("modules_to_save")),
                ("a bias", config.get("bias", "none") != "none" or config.get("lora_bias")),
            )
            if is_there
        )
        return _adapter(name, path, "peft", tensors, base if isinstance(base, str) else None, None, features)

    @classmethod
    def of_gguf(cls, name: str, path: str, header: GgufHeader) -> Adapter:
        metadata = header.metadata
        if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
            raise _bad(path, "is a GGUF, but not a LoRA adapter: its general.type is not `adapter`")
        base = metadata.get("general.base_model.0.name")
        architecture = metadata.get("general.architecture")
        return _adapter(
            name,
            path,
            "gguf",
            header.tensors,
            base if isinstance(base, str) else None,
            architecture if isinstance(architecture, str) else None,
            (),
        )

    def misfits(self, shape: Architecture) -> Iterator[str]:
        """Why it cannot belong to a model of this shape; modules that no shape is known of are not judged."""
        if self.layers > len(shape.layers):
            yield f"it changes {self.layers} layers, and the model has {len(shape.layers)}"
        expected = module_shapes(shape)
        for module in self.modules:
            known = expected.get(module.name)
            if known and (module.inputs, module.outputs) not in known:
                inputs, outputs = next(iter(known))
                yield (
                    f"its {module.name} has {module.inputs} inputs and {module.outputs} outputs, "
                    f"that of the model {inputs} and {outputs}"
                )


def _adapter(
    name: str,
    path: str,
    format: AdapterFormat,
    tensors: Iterable[Tensor],
    base: str | None,
    architecture: str | None,
    features: tuple[str, ...],
) -> Adapter:
    pairs: dict[str, dict[str, Tensor]] = {}
    total = 0
    for tensor in tensors:
        total += tensor.bytes
        match = _LORA.match(tensor.name)
        if match and len(tensor.shape) == 2:
            pairs.setdefault(match["module"], {})[match["part"].lower()] = tensor
    whole = {module: pair for module, pair in pairs.items() if len(pair) == 2}
    if not whole:
        raise _bad(path, "has no pairs of `lora_a` and `lora_b`")
    modules: dict[AdapterModule, None] = {}
    ranks, layers = [], [0]
    for module, pair in whole.items():
        a, b = pair["lora_a"].shape, pair["lora_b"].shape
        if a[0] != b[1]:
            raise _bad(
                path, f"is damaged: the two parts of {printable(module, 120)} have ranks {a[0]} and {b[1]}"
            )
        ranks.append(a[0])
        last = module.rpartition(".")[2]
        modules[AdapterModule(_GGUF_MODULES.get(last, last), a[1], b[0])] = None
        layers += [int(number) + 1 for number in _LAYER.findall(module)]
    return Adapter(
        name, path, format, max(ranks), total, tuple(modules), max(layers), base, architecture, features
    )


def _bad(path: str, what: str) -> FiresteelError:
    return FiresteelError(f"{path} {what}", next="give a PEFT folder or a GGUF that has a LoRA adapter")


def module_shapes(shape: Architecture) -> dict[str, dict[tuple[int, int], int]]:
    """By module of attention and dense MLP: (inputs, outputs) and in how many layers."""
    found: dict[str, dict[tuple[int, int], int]] = {}

    def add(name: str, inputs: int, outputs: int, layers: int) -> None:
        if inputs and outputs:
            sizes = found.setdefault(name, {})
            sizes[inputs, outputs] = sizes.get((inputs, outputs), 0) + layers

    hidden, heads = shape.hidden_size, shape.attention_heads
    for layer, count in shape.layer_counts.items():
        if isinstance(layer, _GROUPED):
            add("q_proj", hidden, heads * layer.key_dim, count)
            add("k_proj", hidden, layer.kv_heads * layer.key_dim, count)
            add("v_proj", hidden, layer.kv_heads * layer.value_dim, count)
            add("o_proj", heads * layer.value_dim, hidden, count)
    if not shape.is_moe:
        layers, width = len(shape.layers), shape.feed_forward_size
        add("gate_proj", hidden, width, layers)
        add("up_proj", hidden, width, layers)
        add("down_proj", width, hidden, layers)
    if "q_proj" in found:  # Qwen3-Next and later have a gate in the same matrix
        for inputs, outputs in tuple(found["q_proj"]):
            found["q_proj"].setdefault((inputs, 2 * outputs), 0)
    return found


def slot_bytes(shape: Architecture, rank: int) -> int:
    """Of one slot of vLLM or SGLang, which allocate pairs of the highest rank for every module, 16 bits a
    number: https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/lora/layers/base_linear.py,
    fused_moe.py; seen 2026-11-16. Modules of other kinds of layers are counted as four of the hidden size."""
    numbers = sum(
        (inputs + outputs) * count
        for sizes in module_shapes(shape).values()
        for (inputs, outputs), count in sizes.items()
    )
    others = sum(count for layer, count in shape.layer_counts.items() if not isinstance(layer, _GROUPED))
    numbers += others * 8 * shape.hidden_size
    if shape.is_moe:
        numbers += 3 * len(shape.layers) * shape.experts * (shape.hidden_size + shape.feed_forward_size)
    return 2 * rank * numbers
