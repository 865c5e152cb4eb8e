"""The weights of each kind of attention, and of the recurrent layers that replace it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    GroupedAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba2,
    NoCache,
    SharedKv,
    SlidingAttention,
    SparseAttention,
)
from firesteel.facts.model.families import ConfigValues
from firesteel.facts.model.layouts import Layout
from firesteel.facts.model.tensors import Part, TensorGroup, linear, norm


class AttentionWeights:
    def __init__(self, architecture: Architecture, values: ConfigValues, layout: Layout) -> None:
        self._architecture = architecture
        self._values = values
        self._layout = layout
        self._hidden = architecture.hidden_size

    def of(self, name: str, layer: Layer) -> Iterator[TensorGroup]:
        own = f"{name}{self._layout.attention}."
        match layer:
            case FullAttention() | SlidingAttention() | ChunkedAttention():
                yield from self._grouped(own, layer)
            case SparseAttention():
                yield from self._grouped(own, layer)
                heads, dim = layer.indexer.heads, layer.indexer.head_dim
                yield linear(f"{own}index_q_proj", heads * dim, self._hidden, "indexer")
                yield linear(f"{own}index_k_proj", dim, self._hidden, "indexer")
                yield norm(f"{own}index_q_norm", dim)
                yield norm(f"{own}index_k_norm", dim)
            case LatentAttention():
                yield from self._latent(own, layer)
            case CompressedAttention():
                yield from self._compressed(f"{name}attn.", layer)
            case LinearAttention():
                yield from self._linear(name, own, layer)
            case Mamba2():
                is_block = self._layout.attention == "mixer"
                yield from self._mamba2(own if is_block else f"{name}mamba.", layer)
            case SharedKv():
                yield from self._shared_kv(own, self._architecture.layers[layer.of])
            case NoCache():
                pass

    def _linear(self, name: str, own: str, layer: LinearAttention) -> Iterator[TensorGroup]:
        match self._values.family.recurrence:
            case "kda" if self._values.family.pattern == "grouped_linear":
                yield from self._full_rank_kda(own, layer)
            case "kda":
                yield from self._kda(own)
            case "lightning":
                yield from self._lightning(own)
            case "short_conv":
                yield from self._short_conv(f"{name}conv.", layer)
            case "mamba":
                yield from self._mamba(f"{name}mamba.", layer)
            case _:
                yield from self._delta_net(f"{name}linear_attn.", layer)

    def _short_conv(self, name: str, layer: LinearAttention) -> Iterator[TensorGroup]:
        """LFM2: two gates and a convolution over the last few tokens."""
        yield linear(f"{name}in_proj", 3 * self._hidden, self._hidden, "recurrence")
        yield linear(f"{name}out_proj", self._hidden, self._hidden, "recurrence")
        yield TensorGroup(f"{name}conv", "recurrence", (layer.conv_channels, 1, layer.conv_kernel))
        if self._values.is_true("conv_bias"):
            yield TensorGroup(f"{name}conv.bias", "recurrence", (5 * self._hidden,))

    def _grouped(self, name: str, layer: GroupedAttention) -> Iterator[TensorGroup]:
        heads = self._heads(layer)
        queries = heads * layer.key_dim
        keys, values = layer.kv_heads * layer.key_dim, layer.kv_heads * layer.value_dim
        wide = 2 if self._layout.query_gate == "doubled" else 1
        if self._layout.fused:
            yield linear(f"{name}{self._layout.fused}", queries + keys + values, self._hidden)
        else:
            yield linear(f"{name}q_proj", wide * queries, self._hidden)
            yield linear(f"{name}k_proj", keys, self._hidden)
            keys_are_values = isinstance(layer, FullAttention) and self._values.is_true("attention_k_eq_v")
            if not keys_are_values:
                yield linear(f"{name}v_proj", values, self._hidden)
        yield linear(f"{name}{self._layout.output}", self._hidden, heads * layer.value_dim)
        if self._layout.query_gate == "heads":
            yield linear(f"{name}g_proj", heads, self._hidden)
        elif self._layout.query_gate == "wide":
            yield linear(f"{name}gate_proj", queries, self._hidden)
        yield from self._biases(name, queries + keys + values)
        yield from self._qk_norms(name, layer.key_dim, queries, keys)
        slides = isinstance(layer, SlidingAttention)
        sinks = "add_swa_attention_sink_bias" if slides else "add_full_attention_sink_bias"
        if self._layout.sinks or self._values.is_true(sinks):
            yield TensorGroup(f"{name}sinks", "attention", (heads,))

    def _biases(self, name: str, widths: int) -> Iterator[TensorGroup]:
        layout = self._layout
        if layout.bias != "none" and (not layout.bias_key or self._values.is_true(layout.bias_key)):
            yield TensorGroup(f"{name}q_proj.bias", "attention", (widths,))
            if layout.bias == "qkvo":
                yield TensorGroup(f"{name}o_proj.bias", "attention", (self._hidden,))

    def _qk_norms(self, name: str, dim: int, queries: int, keys: int) -> Iterator[TensorGroup]:
        key = self._layout.qk_norm_key
        if self._layout.qk_norm == "none" or (key and not self._values.is_true(key)):
            return
        flat = self._layout.qk_norm == "flat"
        yield norm(f"{name}q_norm", queries if flat else dim)
        yield norm(f"{name}k_norm", keys if flat else dim)

    def _shared_kv(self, name: str, source: Layer) -> Iterator[TensorGroup]:
        """A layer that uses the keys and values of another has queries only."""
        if not isinstance(source, FullAttention | SlidingAttention):
            raise self._values.unsupported("shares the cache of a layer that has no keys and values")
        width = self._heads(source) * source.key_dim
        yield linear(f"{name}q_proj", width, self._hidden)
        yield linear(f"{name}o_proj", self._hidden, width)
        yield norm(f"{name}q_norm", source.key_dim)

    def _heads(self, layer: Layer) -> int:
        if (listed := self._values.get("num_attention_heads_per_layer")) is not None:
            return self._listed_heads(listed, isinstance(layer, SlidingAttention))
        if isinstance(layer, SlidingAttention):
            if self._values.get("swa_num_attention_heads") is not None:
                return self._values.integer("swa_num_attention_heads")
            if isinstance(self._values.get("attention_other_setting"), Mapping):
                return self._values.nested("attention_other_setting").integer("num_attention_heads")
        return self._values.integer("num_attention_heads")

    def _listed_heads(self, listed: object, slides: bool) -> int:
        """Laguna lists the heads of every layer; those of one kind have as many."""
        kinds = self._values.get("layer_types")
        if isinstance(listed, list) and isinstance(kinds, list) and len(kinds) == len(listed):
            of_kind = [
                heads for heads, kind in zip(listed, kinds, strict=True) if ("sliding" in kind) is slides
            ]
            if of_kind and type(of_kind[0]) is int and of_kind.count(of_kind[0]) == len(of_kind):
                return of_kind[0]
        raise self._values.unsupported("has other `num_attention_heads_per_layer` in layers of one kind")

    def _latent(self, name: str, layer: LatentAttention) -> Iterator[TensorGroup]:
        integer = self._values.integer
        heads, nope = integer("num_attention_heads"), integer("qk_nope_head_dim")
        value = integer("v_head_dim")
        rank, queries = self._values.first_integer(["q_lora_rank"]), heads * (nope + layer.qk_rope_head_dim)
        if rank:
            yield linear(f"{name}q_a_proj", rank, self._hidden)
            yield norm(f"{name}q_a_layernorm", rank)
            yield linear(f"{name}q_b_proj", queries, rank)
        else:
            yield linear(f"{name}q_proj", queries, self._hidden)
        yield linear(f"{name}kv_a_proj_with_mqa", layer.latent_dim, self._hidden)
        yield norm(f"{name}kv_a_layernorm", layer.kv_lora_rank)
        yield linear(f"{name}kv_b_proj", heads * (nope + value), layer.kv_lora_rank)
        yield linear(f"{name}{self._layout.output}", self._hidden, heads * value)
        gate = {"head_wise": heads, "element_wise": heads * value}.get(
            str(self._values.get("gated_attention_proj_granularity_type")), 0
        )
        if self._values.is_true("mla_use_output_gate"):
            gate = heads * value
        if gate:
            yield linear(f"{name}g_proj", gate, self._hidden)
        yield from self._biases(name, rank + layer.latent_dim)
        if indexer := layer.indexer:
            own = f"{name}indexer."
            yield linear(f"{own}wq_b", indexer.heads * indexer.head_dim, rank, "indexer")
            yield linear(f"{own}wk", indexer.head_dim, self._hidden, "indexer")
            yield TensorGroup(f"{own}k_norm", "norm", (indexer.head_dim,), 2)
            yield TensorGroup(f"{own}weights_proj", "indexer", (indexer.heads, self._hidden))

    def _compressed(self, name: str, layer: CompressedAttention) -> Iterator[TensorGroup]:
        integer = self._values.integer
        heads, rank = integer("num_attention_heads"), integer("q_lora_rank")
        groups, out = integer("o_groups"), integer("o_lora_rank")
        yield TensorGroup(f"{name}attn_sink", "attention", (heads,), bits=32)
        yield linear(f"{name}wq_a", rank, self._hidden)
        yield norm(f"{name}q_norm", rank)
        yield linear(f"{name}wq_b", heads * layer.head_dim, rank)
        yield linear(f"{name}wkv", layer.head_dim, self._hidden)
        yield norm(f"{name}kv_norm", layer.head_dim)
        yield linear(f"{name}wo_a", groups * out, heads * layer.head_dim // groups)
        yield linear(f"{name}wo_b", self._hidden, groups * out)
        if layer.ratio:
            yield from self._compressor(f"{name}compressor.", layer.ratio, layer.head_dim, "attention")
        if layer.indexer:
            own = f"{name}indexer."
            yield linear(f"{own}wq_b", layer.indexer.heads * layer.indexer.head_dim, rank, "indexer")
            yield TensorGroup(f"{own}weights_proj", "indexer", (layer.indexer.heads, self._hidden))
            yield from self._compressor(f"{own}compressor.", layer.ratio, layer.indexer.head_dim, "indexer")

    def _compressor(self, name: str, ratio: int, dim: int, part: Part) -> Iterator[TensorGroup]:
        """Never quantized. Blocks of 4 tokens overlap, which doubles the width."""
        width = dim * (2 if ratio == 4 else 1)
        yield TensorGroup(f"{name}ape", part, (ratio, width), bits=32)
        yield TensorGroup(f"{name}wkv", part, (width, self._hidden), 2)
        yield norm(f"{name}norm", dim)

    def _delta_net(self, name: str, layer: LinearAttention) -> Iterator[TensorGroup]:
        integer = self._values.integer
        heads = integer("linear_num_value_heads")
        values = heads * integer("linear_value_head_dim")
        yield linear(f"{name}in_proj_qkv", layer.conv_channels, self._hidden, "recurrence")
        yield linear(f"{name}in_proj_z", values, self._hidden, "recurrence")
        yield linear(f"{name}in_proj_b", heads, self._hidden, "recurrence")
        yield linear(f"{name}in_proj_a", heads, self._hidden, "recurrence")
        yield linear(f"{name}out_proj", self._hidden, values, "recurrence")
        yield TensorGroup(f"{name}conv1d", "recurrence", (layer.conv_channels, 1, layer.conv_kernel))
        yield TensorGroup(f"{name}A_log", "recurrence", (heads,), 2)
        yield norm(f"{name}norm", integer("linear_value_head_dim"))

    def _kda(self, name: str) -> Iterator[TensorGroup]:
        kda = self._values.nested("linear_attn_config")
        heads, dim = kda.integer("num_heads"), kda.integer("head_dim")
        width, kernel = heads * dim, kda.integer("short_conv_kernel_size")
        for part in ("q", "k", "v"):
            yield linear(f"{name}{part}_proj", width, self._hidden, "recurrence")
            yield TensorGroup(f"{name}{part}_conv1d", "recurrence", (width, 1, kernel))
        yield linear(f"{name}f_a_proj", dim, self._hidden, "recurrence")
        yield linear(f"{name}f_b_proj", width, dim, "recurrence")
        yield linear(f"{name}b_proj", heads, self._hidden, "recurrence")
        if kda.is_true("use_full_rank_gate"):
            yield linear(f"{name}g_proj", width, self._hidden, "recurrence")
        else:
            yield linear(f"{name}g_a_proj", dim, self._hidden, "recurrence")
            yield linear(f"{name}g_b_proj", width, dim, "recurrence")
        yield linear(f"{name}o_proj", self._hidden, width, "recurrence")
        yield TensorGroup(f"{name}A_log", "recurrence", (heads,), bits=32)
        yield TensorGroup(f"{name}dt_bias", "recurrence", (width,), bits=32)
        yield norm(f"{name}o_norm", dim)

    def _full_rank_kda(self, name: str, layer: LinearAttention) -> Iterator[TensorGroup]:
        """Ling 3: its two gates are projections of full rank."""
        heads, dim = self._values.integer("num_attention_heads"), self._values.integer("head_dim")
        for part in ("q", "k", "v", "f", "g"):
            yield linear(f"{name}{part}_proj", heads * dim, self._hidden, "recurrence")
        yield linear(f"{name}b_proj", heads, self._hidden, "recurrence")
        yield linear(f"{name}o_proj", self._hidden, heads * dim, "recurrence")
        yield TensorGroup(f"{name}q_conv1d", "recurrence", (heads * dim, 1, layer.conv_kernel), 3, bits=32)
        yield TensorGroup(f"{name}A_log", "recurrence", (heads,), bits=32)
        yield TensorGroup(f"{name}dt_bias", "recurrence", (heads * dim,), bits=32)
        yield norm(f"{name}o_norm", dim)

    def _lightning(self, name: str) -> Iterator[TensorGroup]:
        """MiniMax-M1, Ling 2.5: queries, keys and values of all heads, a gate, and a norm of the output."""
        layout, heads = self._layout, self._values.integer("num_attention_heads")
        dim = self._values.integer_or("head_dim", self._hidden // heads)
        is_ling = layout.fused == "query_key_value"
        gate, out = ("g_proj", layout.output) if is_ling else ("output_gate", "out_proj")
        yield linear(f"{name}{layout.fused or 'qkv_proj'}", 3 * heads * dim, self._hidden, "recurrence")
        yield linear(f"{name}{gate}", heads * dim, self._hidden, "recurrence")
        yield linear(f"{name}{out}", self._hidden, heads * dim, "recurrence")
        yield norm(f"{name}{'g_norm' if is_ling else 'norm'}", heads * dim)
        yield from self._qk_norms(name, dim, heads * dim, heads * dim)

    def _mamba(self, name: str, layer: LinearAttention) -> Iterator[TensorGroup]:
        inner, state = layer.conv_channels, self._values.integer("mamba_d_state")
        rank = self._values.get("mamba_dt_rank")
        rank = -(-self._hidden // 16) if rank in (None, "auto") else self._values.integer("mamba_dt_rank")
        yield linear(f"{name}in_proj", 2 * inner, self._hidden, "recurrence")
        yield linear(f"{name}x_proj", rank + 2 * state, inner, "recurrence")
        yield linear(f"{name}dt_proj", inner, rank, "recurrence")
        yield linear(f"{name}out_proj", self._hidden, inner, "recurrence")
        yield TensorGroup(f"{name}conv1d", "recurrence", (inner, 1, layer.conv_kernel))
        yield TensorGroup(f"{name}A_log", "recurrence", (inner, state))
        yield TensorGroup(f"{name}D", "recurrence", (inner,), 2)  # and the bias of dt_proj
        if self._values.get("mamba_conv_bias") is not False:
            yield TensorGroup(f"{name}conv1d.bias", "recurrence", (inner,))
        if self._values.is_true("mamba_proj_bias"):
            yield TensorGroup(f"{name}in_proj.bias", "recurrence", (2 * inner + self._hidden,))
        yield norm(f"{name}dt_layernorm", rank)
        yield TensorGroup(f"{name}b_layernorm", "norm", (state,), 2)

    def _mamba2(self, name: str, layer: Mamba2) -> Iterator[TensorGroup]:
        inner, channels = layer.inner_size, layer.conv_channels
        into = inner + channels + layer.heads
        yield linear(f"{name}in_proj", into, self._hidden, "recurrence")
        yield linear(f"{name}out_proj", self._hidden, inner, "recurrence")
        yield TensorGroup(f"{name}conv1d", "recurrence", (channels, 1, layer.conv_kernel))
        if (
            self._values.get("use_conv_bias") is not False
            and self._values.get("mamba_conv_bias") is not False
        ):
            yield TensorGroup(f"{name}conv1d.bias", "recurrence", (channels,))
        if self._values.is_true("mamba_proj_bias") or self._values.is_true("use_bias"):
            yield TensorGroup(f"{name}in_proj.bias", "recurrence", (into + self._hidden,))
        yield TensorGroup(f"{name}A_log", "recurrence", (layer.heads,), 3, bits=32)
        if self._values.model_type != "falcon_h1" or self._values.is_true("mamba_rms_norm"):
            yield norm(f"{name}norm", inner)
