"""What the largest step of vLLM takes besides weights and KV cache.

Before vLLM sizes its KV cache it runs one step of `--max-num-batched-tokens` tokens, then samples for
`--max-num-seqs` requests, and keeps the higher peak free. The terms are those of its own code: a layer's
widest tensors that live at once, the workspaces of experts (which stay), the sampler's copies of the logits.
Their factors were fitted on ten models on an H200 with vLLM 0.26 (`benchmarks/gpu/record_vllm_peaks.py`) and
held 15 others inside the band (`tests/planner/test_gpu_peaks.py`).
"""

from __future__ import annotations

from math import sqrt

from firesteel.engines.vllm.kv_settings import parse_release
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    LinearAttention,
    Mamba2,
    SlidingAttention,
    SparseAttention,
)
from firesteel.launch import Launch
from firesteel.units import MIB, Band
from firesteel.values import Value

_BF16 = 2
_BAND = sqrt(2)
"""A factor either way: the band is a factor of 2 wide."""
_LIBRARIES = 32 * MIB
"""cuBLAS keeps this from its first call on."""
_LATENT_TOKENS = 65536
"""MLA recomputes keys and values of at most so many cached tokens at once."""
_LATENT_HEAD = 256
"""Key and value of a head without its rotary part, as in DeepSeek and Kimi."""
_GRAPH_BYTES = Band(0.26 * MIB, 0.37 * MIB, 0.52 * MIB)
"""By layer and captured batch size: 0.23 to 0.56 MiB in nine boots on an H200."""


class StepLoad(Value):
    tokens: int
    sequences: int
    rows: int
    """Rows of logits: drafted tokens have their own."""
    context: int


def activations(launch: Launch, shape: Architecture, load: StepLoad) -> Band:
    workspace = _expert_workspace(shape, load.tokens)
    step = workspace + _latent_workspace(shape, load) + load.tokens * _widest_layer(shape) * _BF16
    logits = load.rows * shape.vocab_size
    hidden = load.tokens * shape.hidden_size * _BF16
    # The first model runner keeps the logits in BF16 and three copies in FP32; the second does not.
    sampler = 2 * logits + hidden if _has_second_runner(launch, shape) else workspace + 14 * logits
    # torch.compile takes the embedding table a second time while it compiles the first layers.
    compiled = shape.vocab_size * shape.hidden_size * _BF16 + 1.5 * hidden if not _is_eager(launch) else 0
    peak = _LIBRARIES + max(step, sampler, compiled)
    return Band(peak / _BAND, peak, peak * _BAND)


def graphs(launch: Launch, shape: Architecture, load: StepLoad) -> Band:
    """CUDA graphs: one for each batch size of vLLM's list, up to twice the sequences and at most 512."""
    if _is_eager(launch):
        return Band.exactly(0)
    largest = min(2 * load.sequences, 512)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    count = sum(size <= largest for size in sizes) * len(shape.layers)
    return Band(_GRAPH_BYTES.low * count, _GRAPH_BYTES.expected * count, _GRAPH_BYTES.high * count)


def rotary_tables(shape: Architecture) -> int:
    """A cosine and a sine for each position that the model was trained for, whatever `--max-model-len` is:
    2.5 GiB for the 10 million of Llama 4 Scout. Hybrids rotate a quarter of each head."""
    widths = [
        layer.key_dim for layer in shape.layer_counts if isinstance(layer, FullAttention | ChunkedAttention)
    ]
    part = 4 if any(isinstance(layer, LinearAttention) for layer in shape.layer_counts) else 1
    return shape.max_context * max(widths, default=0) * _BF16 // part


def _widest_layer(shape: Architecture) -> float:
    """Elements for each token that are there at once, in the layer that needs most."""
    hidden = shape.hidden_size
    widths = [0.0] if shape.is_moe else [3.0 * shape.feed_forward_size + 4 * hidden]
    for layer in shape.layer_counts:
        match layer:
            case FullAttention() | SlidingAttention() | ChunkedAttention() | SparseAttention():
                heads = shape.attention_heads or layer.kv_heads
                queries_keys_values = heads * layer.key_dim + layer.kv_heads * (
                    layer.key_dim + layer.value_dim
                )
                widths.append(5 * hidden + 1.2 * queries_keys_values)
            case LinearAttention():
                widths.append(7 * hidden + 4.5 * layer.conv_channels)
            case Mamba2():
                widths.append(7 * hidden + 2 * (layer.conv_channels + layer.inner_size))
            case _:
                widths.append(8 * hidden)
    return max(widths)


def _expert_workspace(shape: Architecture, tokens: int) -> int:
    """Two tensors with a row for each token and chosen expert, which vLLM keeps for all layers."""
    width, hidden = shape.feed_forward_size, shape.expert_input_size or shape.hidden_size
    rows = tokens * shape.experts_per_token
    return rows * (max(width, hidden) + max(2 * width, hidden)) * _BF16 if shape.is_moe else 0


def _latent_workspace(shape: Architecture, load: StepLoad) -> int:
    if not any(isinstance(layer, LatentAttention) for layer in shape.layer_counts):
        return 0
    tokens = min(max(8 * load.context, 64 * load.sequences), _LATENT_TOKENS)
    return tokens * shape.attention_heads * _LATENT_HEAD * _BF16


def _has_second_runner(launch: Launch, shape: Architecture) -> bool:
    """From 0.26 on for models without experts and states, from 0.30 on for all."""
    release = parse_release(launch.version) or (0, 0)
    is_hybrid = any(isinstance(layer, LinearAttention | Mamba2) for layer in shape.layer_counts)
    return release >= (0, 30) or (release >= (0, 26) and not shape.is_moe and not is_hybrid)


def _is_eager(launch: Launch) -> bool:
    return launch.flags.get("enforce-eager") is True or launch.flags.get("disable-cuda-graph") is True
