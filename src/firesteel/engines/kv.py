"""How much memory each engine sets aside for the past: KV pages, KV cells, recurrent state.

Attention keeps a key and a value a token and KV head; a sliding window stops growing at its width;
linear attention keeps one state whatever the length. Engines round all three in their own way, and
the rounding is not small: vLLM pads attention pages to the size of a recurrent state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from firesteel.errors import UsageError
from firesteel.facts import Architecture, FullAttention, LinearAttention, SlidingAttention
from firesteel.launch import FlagValue, Launch

_VLLM_BYTES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}
_LLAMACPP_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32,
    "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
_SGLANG_BYTES = {"auto": 2.0, "bf16": 2.0, "bfloat16": 2.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}
_VLLM_BLOCK = 16
_VLLM_BATCHED_TOKENS = 8192
"""`max_num_batched_tokens` of a server on a GPU with 70 GiB or more, when the flag does not say."""
_LLAMACPP_PAD = 256
_LLAMACPP_UBATCH = 512


@dataclass(frozen=True, slots=True)
class Cache:
    """What `users` sequences of `context` tokens take."""

    bytes: int
    bytes_per_token: int
    """Growth a token and sequence, once sliding windows are full."""
    state_bytes: int
    """Of `bytes`, what does not grow with length."""
    context: int
    users: int
    dtype: str


def cache(launch: Launch, shape: Architecture, context: int, users: int) -> Cache:
    if launch.engine == "llamacpp":
        return _llamacpp(launch.flags, shape, context, users)
    if launch.engine == "vllm":
        return _vllm(launch.flags, shape, context, users)
    return _sglang(launch.flags, shape, context, users)


def speculative_tokens(flags: Mapping[str, FlagValue]) -> int:
    config = flags.get("speculative-config")
    count = config.get("num_speculative_tokens", 0) if isinstance(config, dict) else 0
    return count if isinstance(count, int) else 0


def _vllm(flags: Mapping[str, FlagValue], shape: Architecture, context: int, users: int) -> Cache:
    dtype = _text(flags, "kv-cache-dtype", "auto")
    width = _width(_VLLM_BYTES, dtype, "--kv-cache-dtype")
    spec = speculative_tokens(flags)
    drafters = shape.drafter_layers if spec else 0
    full = [layer for layer in shape.layers if isinstance(layer, FullAttention)]
    sliding = [layer for layer in shape.layers if isinstance(layer, SlidingAttention)]
    linear = [layer for layer in shape.layers if isinstance(layer, LinearAttention)]
    per_layer = [int(_elements(layer) * width) for layer in full]
    growing = sum(per_layer) + drafters * max(per_layer, default=0)
    if linear and full:
        a_sequence = _vllm_hybrid(linear, max(per_layer), len(full) + drafters, spec, context)
        state = sum(layer.state_elements * 4 + _conv(layer, spec) * 2 for layer in linear)
        return Cache(a_sequence * users, growing, state * users, context, users, dtype)
    batched = int(_text(flags, "max-num-batched-tokens", str(_VLLM_BATCHED_TOKENS)))
    a_sequence = growing * _round(context, _VLLM_BLOCK)
    for layer in sliding:
        held = min(context, layer.window - 1 + batched)
        a_sequence += int(_elements(layer) * width) * (_round(held, _VLLM_BLOCK) + _VLLM_BLOCK)
    return Cache(a_sequence * users, growing, 0, context, users, dtype)


def _vllm_hybrid(linear: list[LinearAttention], attention: int, group: int, spec: int, context: int) -> int:
    """Bytes of one sequence: attention blocks are made as large as a recurrent state, and layers are
    handed out in groups as large as the attention group, so states take whole blocks too."""
    page = max(layer.state_elements * 4 + _conv(layer, spec) * 2 for layer in linear)
    block = _round(ceil(page / attention), _VLLM_BLOCK)
    state_groups = ceil(len(linear) / group)
    blocks = ceil(context / block) + state_groups * (1 + spec)
    return blocks * block * attention * group


def _llamacpp(flags: Mapping[str, FlagValue], shape: Architecture, context: int, users: int) -> Cache:
    keys = _width(_LLAMACPP_BYTES, _text(flags, "cache-type-k", "f16"), "--cache-type-k")
    values = _width(_LLAMACPP_BYTES, _text(flags, "cache-type-v", "f16"), "--cache-type-v")
    ubatch = int(_text(flags, "ubatch-size", str(_LLAMACPP_UBATCH)))
    cells = _round(context, _LLAMACPP_PAD)
    total, growing, state = 0.0, 0.0, 0
    for layer in shape.layers:
        if isinstance(layer, LinearAttention):
            state += (layer.state_elements + _conv(layer, 0)) * 4
            continue
        a_cell = layer.kv_heads * (layer.key_dim * keys + layer.value_dim * values)
        if isinstance(layer, SlidingAttention):
            total += a_cell * min(cells, _round(layer.window + ubatch, _LLAMACPP_PAD))
        else:
            growing += a_cell
            total += a_cell * cells
    dtype = _text(flags, "cache-type-k", "f16")
    return Cache(int(total + state) * users, int(growing), state * users, context, users, dtype)


def _sglang(flags: Mapping[str, FlagValue], shape: Architecture, context: int, users: int) -> Cache:
    dtype = _text(flags, "kv-cache-dtype", "auto")
    width = _width(_SGLANG_BYTES, dtype, "--kv-cache-dtype")
    attention = [layer for layer in shape.layers if not isinstance(layer, LinearAttention)]
    growing = sum(int(_elements(layer) * width) for layer in attention)
    state = sum(
        layer.state_elements * 4 + _conv(layer, 0) * 2
        for layer in shape.layers
        if isinstance(layer, LinearAttention)
    )
    return Cache((growing * context + state) * users, growing, state * users, context, users, dtype)


def _elements(layer: FullAttention | SlidingAttention) -> int:
    return layer.kv_heads * (layer.key_dim + layer.value_dim)


def _conv(layer: LinearAttention, spec: int) -> int:
    return layer.conv_channels * (layer.conv_kernel - 1 + spec)


def _round(count: int, step: int) -> int:
    return -(-count // step) * step


def _text(flags: Mapping[str, FlagValue], name: str, default: str) -> str:
    value = flags.get(name, default)
    return value if isinstance(value, str) else default


def _width(known: Mapping[str, float], dtype: str, flag: str) -> float:
    if dtype not in known:
        raise UsageError(
            f"how many bytes `{flag} {dtype}` takes a value is not known here",
            next=f"one of {', '.join(known)}",
        )
    return known[dtype]
