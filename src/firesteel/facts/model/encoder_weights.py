"""The weights of encoders: vision towers, and models that listen.

The weights of vision towers whose configs size them; quantizers do not touch towers.

Seen in transformers 5.22.2, its classes built on the meta device, 2026-11-15.

Models that write down what is said: what a request with sound costs, and the weights of their encoders.

Engines cut sound into pieces of 30 seconds. Whisper's encoder turns each into 1,500 vectors, which its
decoder attends to; the others hand a quarter of as many to a language model, as tokens of its prompt.
Seen in transformers 5.19.0, its classes built on the meta device, and in vLLM 0.32, 2026-11-16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from firesteel.facts.model.architecture import Speech, UnknownArchitecture
from firesteel.facts.model.families import MAX_LAYERS, ConfigValues, Family
from firesteel.facts.model.tensors import TensorGroup, linear, norm

_QWEN = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision")


def vision_groups(model: Mapping[str, object], hidden: int) -> tuple[TensorGroup, ...] | None:
    """The tower in `vision_config` of a model, whose language model has this hidden size; None: not
    supported."""
    config = model.get("vision_config")
    if not isinstance(config, Mapping):
        return None
    kind = config.get("model_type") or model.get("model_type")
    if not isinstance(kind, str):
        return None
    values = ConfigValues(kind, config, Family(defaults={"in_channels": "in_chans"}))
    try:
        if kind in _QWEN:
            return tuple(_qwen(values))
        if kind in ("qwen2_5_vl", "qwen2_5_vl_vision"):
            return tuple(_qwen2_5(values))
        if kind == "pixtral":
            return tuple(_pixtral(values, hidden))
        if kind == "gemma4_vision" and not values.is_true("use_clipped_linears"):
            return tuple(_gemma4(values, hidden))
    except UnknownArchitecture:
        # without the size of a tower the language model can still be planned
        return None
    return None


def _qwen(values: ConfigValues) -> Iterator[TensorGroup]:
    name, width, deep = "model.visual.", values.integer("hidden_size"), values.integer("intermediate_size")
    pixels = values.integer("temporal_patch_size") * values.integer("patch_size") ** 2
    blocks = _layers(values, "depth")
    yield _tensor(f"{name}patch_embed", (width, values.integer("in_channels") * pixels + 1))
    yield _tensor(f"{name}pos_embed", (values.integer("num_position_embeddings"), width))
    yield _tensor(f"{name}blocks.0.attn.qkv", (3 * width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.attn.proj", (width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.mlp.linear_fc1", (deep, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.mlp.linear_fc2", (width, deep + 1), blocks)
    yield _tensor(f"{name}blocks.0.norm1", (width,), 4 * blocks)
    merged, out = width * values.integer("spatial_merge_size") ** 2, values.integer("out_hidden_size")
    indexes = values.get("deepstack_visual_indexes")
    mergers = 1 + (len(indexes) if isinstance(indexes, Sequence) else 0)
    yield _tensor(f"{name}merger.linear_fc1", (merged, merged + 1), mergers)
    yield _tensor(f"{name}merger.linear_fc2", (out, merged + 1), mergers)
    yield _tensor(f"{name}merger.norm", (width,), 2)
    if mergers > 1:
        yield _tensor(f"{name}deepstack_merger_list.0.norm", (merged,), 2 * (mergers - 1))


def _qwen2_5(values: ConfigValues) -> Iterator[TensorGroup]:
    name, width, deep = "visual.", values.integer("hidden_size"), values.integer("intermediate_size")
    pixels = values.integer("temporal_patch_size") * values.integer("patch_size") ** 2
    blocks = _layers(values, "depth")
    yield _tensor(f"{name}patch_embed", (width, values.integer_or("in_channels", 3) * pixels))
    yield _tensor(f"{name}blocks.0.attn.qkv", (3 * width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.attn.proj", (width, width + 1), blocks)
    yield _tensor(f"{name}blocks.0.mlp.up_proj", (deep, width + 1), 2 * blocks)
    yield _tensor(f"{name}blocks.0.mlp.down_proj", (width, deep + 1), blocks)
    yield _tensor(f"{name}blocks.0.norm1", (width,), 2 * blocks + 1)
    merged, out = width * values.integer("spatial_merge_size") ** 2, values.integer("out_hidden_size")
    yield _tensor(f"{name}merger.mlp.0", (merged, merged + 1))
    yield _tensor(f"{name}merger.mlp.2", (out, merged + 1))


def _pixtral(values: ConfigValues, hidden: int) -> Iterator[TensorGroup]:
    """With Mistral's projector, which merges 2 x 2 patches."""
    name, width, deep = "vision_tower.", values.integer("hidden_size"), values.integer("intermediate_size")
    blocks = _layers(values, "num_hidden_layers")
    own = f"{name}transformer.layers.0."
    pixels = values.integer_or("num_channels", 3) * values.integer("patch_size") ** 2
    yield _tensor(f"{name}patch_conv", (width, pixels))
    yield _tensor(f"{own}attention.q_proj", (width, width), 4 * blocks)
    yield _tensor(f"{own}feed_forward.up_proj", (deep, width), 3 * blocks)
    yield _tensor(f"{own}attention_norm", (width,), 2 * blocks + 2)  # one before, one in the projector
    yield _tensor("multi_modal_projector.patch_merger.merging_layer", (width, 4 * width))
    yield _tensor("multi_modal_projector.linear_1", (hidden, width + hidden))


def _gemma4(values: ConfigValues, hidden: int) -> Iterator[TensorGroup]:
    name = "model.vision_tower."
    width, deep = values.integer("hidden_size"), values.integer("intermediate_size")
    heads, dim = values.integer("num_attention_heads"), values.integer("head_dim")
    keys, blocks = values.integer("num_key_value_heads"), _layers(values, "num_hidden_layers")
    own = f"{name}encoder.layers.0."
    positions = values.integer("position_embedding_size")
    yield _tensor(f"{name}patch_embedder.position_embedding_table", (2, positions, width))
    yield _tensor(f"{name}patch_embedder.input_proj", (width, 3 * values.integer("patch_size") ** 2))
    yield _tensor(f"{own}self_attn.q_proj", (heads * dim, width), 2 * blocks)
    yield _tensor(f"{own}self_attn.k_proj", (keys * dim, width), 2 * blocks)
    yield _tensor(f"{own}self_attn.q_norm", (dim,), 2 * blocks)
    yield _tensor(f"{own}mlp.up_proj", (deep, width), 3 * blocks)
    yield _tensor(f"{own}input_layernorm", (width,), 4 * blocks)
    yield _tensor("model.embed_vision.embedding_projection", (hidden, width))
    if values.is_true("standardize"):
        yield _tensor(f"{name}std_bias", (width,), 2)


def _layers(values: ConfigValues, key: str) -> int:
    return min(values.integer(key), MAX_LAYERS)


def _tensor(name: str, shape: tuple[int, ...], count: int = 1) -> TensorGroup:
    """A weight; its bias, if any, counts as one more column."""
    return TensorGroup(name, "tower", shape, count)


_POSITIONS = 1500
_TYPES = frozenset({
    "whisper", "voxtral", "qwen3_asr", "granite_speech", "granite_speech_plus", "glmasr", "fun_asr_nano",
})  # fmt: skip
"""Those that vLLM 0.32 serves for transcription, and whose language model is known."""


def speech_of(model_type: object, cached: int = 0) -> Speech | None:
    """`cached`: the vectors that a decoder with cross-attention keeps for a request; 0: it has none."""
    if not isinstance(model_type, str) or model_type not in _TYPES:
        return None
    return Speech(_POSITIONS, prompt_tokens=4 if cached else _POSITIONS // 4, cached_tokens=cached)


def as_language_model(whisper: Mapping[str, object]) -> Mapping[str, object]:
    """Whisper's decoder in the keys of other configs."""
    names = {
        "num_hidden_layers": "decoder_layers", "hidden_size": "d_model",
        "intermediate_size": "decoder_ffn_dim",
        "num_attention_heads": "decoder_attention_heads", "num_key_value_heads": "decoder_attention_heads",
        "max_position_embeddings": "max_target_positions",
    }  # fmt: skip
    return dict(whisper) | {name: whisper.get(key) for name, key in names.items()}


def whisper_groups(values: ConfigValues) -> Iterator[TensorGroup]:
    """Its own layout: biases everywhere but at the keys, norms with biases, positions that are learned."""
    width, vocabulary = values.integer("hidden_size"), values.integer("vocab_size")
    layers, deep = values.integer("num_hidden_layers"), values.integer("intermediate_size")
    name = "model.decoder."
    yield TensorGroup(f"{name}embed_tokens", "embedding", (vocabulary, width))
    yield TensorGroup(f"{name}embed_positions", "embedding", (values.integer("max_target_positions"), width))
    for number in range(min(layers, MAX_LAYERS)):
        own = f"{name}layers.{number}."
        for attention in ("self_attn", "encoder_attn"):
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                yield linear(f"{own}{attention}.{part}", width, width)
            yield TensorGroup(f"{own}{attention}.q_proj.bias", "attention", (width,), 3)
        yield linear(f"{own}fc1", deep, width, "dense_mlp")
        yield linear(f"{own}fc2", width, deep, "dense_mlp")
        yield TensorGroup(f"{own}fc1.bias", "dense_mlp", (deep + width,))
        yield TensorGroup(f"{own}final_layer_norm", "norm", (width,), 6)
    yield norm(f"{name}layer_norm", 2 * width)
    encoder = {
        "d_model": width, "encoder_layers": values.get("encoder_layers"),
        "encoder_ffn_dim": values.get("encoder_ffn_dim"), "num_mel_bins": values.get("num_mel_bins"),
        "max_source_positions": values.get("max_source_positions"),
    }  # fmt: skip
    yield from _whisper_encoder("model.encoder.", ConfigValues("whisper", encoder, Family()))


def audio_groups(model: Mapping[str, object], hidden: int) -> tuple[TensorGroup, ...] | None:
    """The tower in `audio_config` of a model whose language model has this hidden size; None: not
    supported."""
    config = model.get("audio_config")
    kind = config.get("model_type") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(kind, str):
        return None
    same = {"d_model": "hidden_size", "encoder_layers": "num_hidden_layers"}
    values = ConfigValues(kind, config, Family(defaults=same | {"encoder_ffn_dim": "intermediate_size"}))
    try:
        if kind == "voxtral_encoder":
            return tuple(_voxtral(values, hidden))
        if kind in ("qwen3_asr_encoder", "qwen3_asr_audio_encoder"):
            return tuple(_qwen3_asr(values))
    except UnknownArchitecture:
        return None  # without the size of a tower the language model can still be planned
    return None


def _whisper_encoder(name: str, values: ConfigValues) -> Iterator[TensorGroup]:
    width, mels = values.integer("d_model"), values.integer("num_mel_bins")
    yield _tower(f"{name}conv1", width * (3 * mels + 1))
    yield _tower(f"{name}conv2", width * (3 * width + 1))
    yield _tower(f"{name}embed_positions", values.integer("max_source_positions") * width)
    yield from _encoder_layers(name, values, biases=3)
    yield _tower(f"{name}layer_norm", 2 * width)


def _encoder_layers(name: str, values: ConfigValues, biases: int) -> Iterator[TensorGroup]:
    width, deep = values.integer("d_model"), values.integer("encoder_ffn_dim")
    layers = min(values.integer("encoder_layers"), MAX_LAYERS)
    yield _tower(f"{name}layers.0.self_attn.q_proj", 4 * width * width + biases * width, layers)
    yield _tower(f"{name}layers.0.fc1", 2 * width * deep + width + deep, layers)
    yield _tower(f"{name}layers.0.final_layer_norm", 4 * width, layers)


def _voxtral(values: ConfigValues, hidden: int) -> Iterator[TensorGroup]:
    yield from _whisper_encoder("audio_tower.", values)
    wide = values.integer_or("encoder_ffn_dim", 4 * values.integer("d_model"))  # four vectors in one
    yield _tower("multi_modal_projector.linear_1", hidden * (wide + hidden))


def _qwen3_asr(values: ConfigValues) -> Iterator[TensorGroup]:
    name, width = "audio_tower.", values.integer("d_model")
    channels, out = values.integer("downsample_hidden_size"), values.integer("output_dim")
    mels = -(-values.integer("num_mel_bins") // 8)  # three convolutions, each over every second
    yield _tower(f"{name}conv2d1", channels * (9 + 1) + 2 * channels * (9 * channels + 1))
    yield _tower(f"{name}conv_out", width * channels * mels)
    yield from _encoder_layers(name, values, biases=4)
    yield _tower(f"{name}ln_post", 2 * width)
    yield _tower(f"{name}proj1", width * (width + 1) + out * (width + 1))


def _tower(name: str, size: int, count: int = 1) -> TensorGroup:
    return TensorGroup(name, "tower", (size,), count)
