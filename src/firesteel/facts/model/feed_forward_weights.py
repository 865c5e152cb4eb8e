"""The weights of MLPs and experts, and which layers have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from firesteel.facts.model.architecture import Architecture, Layer, NoCache, SharedKv
from firesteel.facts.model.families import ConfigValues
from firesteel.facts.model.layouts import Layout
from firesteel.facts.model.tensors import Part, TensorGroup, linear, norm

_FIRST_WITH_EXPERTS = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")


class FeedForwardWeights:
    def __init__(self, architecture: Architecture, values: ConfigValues, layout: Layout) -> None:
        self._architecture = architecture
        self._values = values
        self._layout = layout
        self._hidden = architecture.hidden_size

    def of(self, name: str, number: int, layer: Layer) -> Iterator[TensorGroup]:
        if self._values.family.pattern == "block_configs":
            yield from self._sized_mlp(name, number)
        elif self._values.model_type == "nemotron_h":
            if isinstance(layer, NoCache):
                yield from self._experts(name, number) if layer.block == "moe" else self.dense(name)
        elif self._values.is_true("enable_moe_block"):
            yield from self.dense(name, wide=2 if self._is_wide(layer) else 1)
            yield from self._gemma_experts(name)
        elif self._has_experts(number):
            yield from self._experts(name, number)
        elif self._values.model_type == "granitemoehybrid":
            size = self._values.integer("shared_intermediate_size")
            yield from self._mlp(f"{name}shared_mlp.", size, "dense_mlp")
        else:
            yield from self.dense(name, wide=2 if self._is_wide(layer) else 1)
        if self._values.first_integer(["hidden_size_per_layer_input"]):
            size = self._values.integer("hidden_size_per_layer_input")
            yield linear(f"{name}per_layer_input_gate", size, self._hidden, "other")
            yield linear(f"{name}per_layer_projection", self._hidden, size, "other")

    def _is_wide(self, layer: Layer) -> bool:
        return isinstance(layer, SharedKv) and self._values.is_true("use_double_wide_mlp")

    def dense(self, name: str, wide: int = 1) -> Iterator[TensorGroup]:
        size = wide * self._dense_size()
        yield from self._mlp(f"{name}{self._layout.mlp}.", size, "dense_mlp")

    def _dense_size(self) -> int:
        """LFM2 says the width before it is adjusted: two thirds, rounded up."""
        if self._values.model_type != "lfm2":
            return self._values.integer(self._layout.dense_key)
        stated = self._values.first_integer(["block_ff_dim"]) or self._values.integer("intermediate_size")
        if self._values.get("block_auto_adjust_ff_dim") is False:
            return stated
        multiplier = self._values.get("block_ffn_dim_multiplier")
        if multiplier is not None and not (isinstance(multiplier, int | float) and 0 < multiplier < 1000):
            raise self._values.unsupported(f"has the `block_ffn_dim_multiplier` {str(multiplier)[:40]}")
        width = int((multiplier or 1) * int(2 * stated / 3))
        multiple = self._values.integer_or("block_multiple_of", 256)
        return -(-width // multiple) * multiple

    def _mlp(self, name: str, size: int, part: Part) -> Iterator[TensorGroup]:
        if self._layout.gated:
            yield linear(f"{name}gate_proj", size, self._hidden, part)
        yield linear(f"{name}up_proj", size, self._hidden, part)
        yield linear(f"{name}down_proj", self._hidden, size, part)

    def _sized_mlp(self, name: str, number: int) -> Iterator[TensorGroup]:
        blocks = self._values.per_layer("block_configs", number + 1) or []
        block = blocks[number]
        own = block if isinstance(block, Mapping) else {}
        ffn = ConfigValues(self._values.model_type, own, self._values.family).nested("ffn")
        if ffn.is_true("no_op"):
            return
        if ffn.get("replace_with_linear") or ffn.get("sparsify"):
            raise self._values.unsupported("has an MLP that is replaced or sparse")
        yield from self._mlp(f"{name}mlp.", self._ffn_size(ffn), "dense_mlp")

    def _ffn_size(self, ffn: ConfigValues) -> int:
        """Two thirds of the multiple, rounded up to 256."""
        multiple = ffn.get("ffn_mult")
        if multiple is None:
            return ffn.integer("intermediate_size")
        if not isinstance(multiple, int | float) or not 0 < multiple < 1000:
            raise self._values.unsupported(f"has the `ffn_mult` {str(multiple)[:40]}")
        return -(-int(2 * multiple * self._hidden / 3) // 256) * 256

    def _has_experts(self, number: int) -> bool:
        if not self._architecture.experts:
            return False
        values, count = self._values, len(self._architecture.layers)
        if (kinds := values.per_layer("mlp_layer_types", count)) is not None:
            return kinds[number] == "sparse"
        if not isinstance(values.get("moe_layer_freq"), int | None):
            return bool((values.per_layer("moe_layer_freq", count) or [])[number])
        for key in ("moe_layers", "moe_layers_enum"):
            if (listed := _layer_numbers(values.get(key))) is not None:
                return number in listed
        if values.family.pattern == "alternate_mamba":
            offset = values.integer("expert_layer_offset", least=0)
            return number % values.integer("expert_layer_period") == offset
        if values.model_type == "llama4_text":
            return (number + 1) % values.integer_or("interleave_moe_layer_step", 1) == 0
        if number in (_layer_numbers(values.get("mlp_only_layers")) or ()):
            return False
        if number < values.first_integer(_FIRST_WITH_EXPERTS):
            return False
        if number > values.integer_or("moe_layer_end_index", count, least=0):
            return False
        every = values.integer_or("moe_layer_freq", 1)
        step = values.first_integer(["decoder_sparse_step", "moe_layer_interval"]) or 1
        return number % every == 0 and (number + 1) % step == 0

    def _experts(self, name: str, number: int) -> Iterator[TensorGroup]:
        layout, count = self._layout, self._architecture.experts
        own = f"{name}{layout.moe}."
        yield TensorGroup(f"{own}{layout.router}", "router", (count, self._hidden))
        if number < self._values.first_integer(["num_hash_layers"]):
            # DeepSeek-V4's first layers choose experts by the token id, from a table.
            table = (self._architecture.vocab_size, self._architecture.experts_per_token)
            yield TensorGroup(f"{own}{layout.router}.tid2eid", "router", table, bits=64)
        elif layout.corrects_router and (
            not layout.corrects_router_key or self._values.is_true(layout.corrects_router_key)
        ):
            yield TensorGroup(f"{own}{layout.router}.e_score_correction_bias", "router", (count,), bits=32)
        if layout.expert_biases:
            yield TensorGroup(f"{own}{layout.router}.bias", "router", (count,))
        yield from self._routed(own, count)
        if size := self._shared_size():
            shared = name if layout.moe == "block_sparse_moe" and layout.shared == "shared_mlp" else own
            yield from self._mlp(f"{shared}{layout.shared}.", size, "shared_experts")
            if layout.shared_gate:
                yield TensorGroup(f"{own}shared_expert_gate", "shared_experts", (1, self._hidden))

    def _routed(self, name: str, count: int) -> Iterator[TensorGroup]:
        layout, size = self._layout, self._values.integer(self._layout.expert_key)
        latent = self._values.first_integer(["moe_latent_size", "routed_expert_hidden_size"])
        if latent:
            yield from self._latent_experts(name, latent)
        width, fused = latent or self._hidden, "gate_up_proj" in layout.expert
        own = f"{name}experts." if fused else f"{name}experts.0."
        for part in layout.expert[:-1]:
            into = 2 * size if fused else size
            yield linear(f"{own}{part}", into, width, "routed_experts", count)
        yield linear(f"{own}{layout.expert[-1]}", width, size, "routed_experts", count)
        if layout.expert_biases:
            yield TensorGroup(f"{own}gate_up_proj_bias", "routed_experts", (2 * size + width,), count)

    def _latent_experts(self, name: str, latent: int) -> Iterator[TensorGroup]:
        """Experts in a smaller space, with shared projections into it and out of it."""
        into, out = (
            ("fc1_latent_proj", "fc2_latent_proj")
            if self._layout.moe == "mixer"
            else ("routed_expert_down_proj", "routed_expert_up_proj")
        )
        yield linear(f"{name}{into}", latent, self._hidden, "dense_mlp")
        yield linear(f"{name}{out}", self._hidden, latent, "dense_mlp")
        if self._values.is_true("latent_moe_use_norm"):
            yield norm(f"{name}routed_expert_norm", latent)

    def _shared_size(self) -> int:
        for key in self._layout.shared_keys:
            if self._values.get(key) is not None:
                return self._values.integer(key, least=0)
        shared = self._values.first_integer(_SHARED)
        return shared * self._values.integer(self._layout.expert_key) if shared else 0

    def _gemma_experts(self, name: str) -> Iterator[TensorGroup]:
        """Gemma 4 has its experts in addition to the MLP."""
        count, size = self._architecture.experts, self._values.integer("moe_intermediate_size")
        yield TensorGroup(f"{name}router.proj", "router", (count, self._hidden))
        yield TensorGroup(f"{name}router.scale", "router", (self._hidden,))
        yield TensorGroup(f"{name}router.per_expert_scale", "router", (count,))
        yield linear(f"{name}experts.0.gate_proj", size, self._hidden, "routed_experts", count)
        yield linear(f"{name}experts.0.up_proj", size, self._hidden, "routed_experts", count)
        yield linear(f"{name}experts.0.down_proj", self._hidden, size, "routed_experts", count)


def _layer_numbers(value: object) -> set[int] | None:
    """As a list or as `3,4,5`."""
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, Sequence):
        return None
    return {int(entry) for entry in entries if str(entry).isdecimal()}
