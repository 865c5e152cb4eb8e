"""A config.json -> the parameters of the model, tensor by tensor, without the checkpoint.

A config determines every matrix of a language model. From them a plan can derive the bytes of any
quantization before anything is downloaded. One entry stands for all experts of a layer, and for equal
tensors; names are those of the checkpoint, so that the ignore list of a quantization can be applied to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from firesteel.facts.model.architecture import Architecture, Layer, NoCache, UnknownArchitecture
from firesteel.facts.model.attention_weights import AttentionWeights
from firesteel.facts.model.config import architecture_of_config, language_model_values, thinker_config
from firesteel.facts.model.encoder_weights import audio_groups, vision_groups, whisper_groups
from firesteel.facts.model.families import ConfigValues
from firesteel.facts.model.feed_forward_weights import FeedForwardWeights
from firesteel.facts.model.layouts import LAYOUTS
from firesteel.facts.model.tensors import Part, Role, TensorGroup, linear, norm
from firesteel.values import Value, replace


class ParameterGroups(Value):
    groups: tuple[TensorGroup, ...]
    experts: int
    experts_per_token: int
    tied_head: bool
    unknown: tuple[str, ...] = ()
    """Parts of the checkpoint that the config does not size, described for the user."""
    model_type: str = ""

    @property
    def by_role(self) -> Mapping[Role, int]:
        return _sums((group.role, group.elements) for group in self.groups)

    @property
    def by_part(self) -> Mapping[Part, int]:
        """Elements of the language model and its towers, without its drafter."""
        return _sums((group.part, group.elements) for group in self.groups if not group.in_drafter)

    @property
    def total(self) -> int:
        """Elements of the language model as publishers count them: without drafter and towers."""
        return sum(group.elements for group in self.groups if group.is_of_model)

    @property
    def drafter(self) -> int:
        return sum(group.elements for group in self.groups if group.in_drafter)

    @property
    def active(self) -> int:
        """Elements that one token uses; an embedding lookup reads one row and is not counted."""
        routed = self.by_part.get("routed_experts", 0)
        idle = routed - routed * self.experts_per_token // self.experts if self.experts else 0
        looked_up = [group.elements for group in self.groups if group.part == "embedding"]
        return self.total - idle - sum(looked_up[1 if self.tied_head else 0 :])


_Key = TypeVar("_Key")


def _sums(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    sums: dict[_Key, int] = {}
    for key, size in pairs:
        sums[key] = sums.get(key, 0) + size
    return sums


def parameters_of_config(config: object) -> ParameterGroups:
    """The parameters of the language model that a config describes."""
    architecture, values = architecture_of_config(config), language_model_values(config)
    if values.model_type == "whisper":
        return ParameterGroups(tuple(whisper_groups(values)), 0, 0, tied_head=True, model_type="whisper")
    if values.model_type not in LAYOUTS:
        raise UnknownArchitecture(
            f"firesteel knows the layers of `{values.model_type:.80}`, but not how it lays out its weights"
        )
    outer = thinker_config(config) if isinstance(config, Mapping) else {}
    builder = _TensorLister(architecture, values, outer)
    groups = tuple(builder.groups())
    return ParameterGroups(
        groups,
        architecture.experts,
        architecture.experts_per_token,
        builder.is_tied,
        tuple(builder.unknown(groups)),
        values.model_type,
    )


_TOWERS = ("vision_config", "audio_config", "sound_config", "speech_config")


class _TensorLister:
    """The tensors of one config, in the order of the checkpoint."""

    def __init__(
        self, architecture: Architecture, values: ConfigValues, config: Mapping[str, object]
    ) -> None:
        self._architecture = architecture
        self._values = values
        self._config = config
        self._layout = LAYOUTS[values.model_type]
        self._attention = AttentionWeights(architecture, values, self._layout)
        self._feed_forward = FeedForwardWeights(architecture, values, self._layout)
        self._hidden = architecture.hidden_size
        self._is_nested = isinstance(config.get("text_config"), Mapping)
        self._prefix = self._layout.nested_prefix if self._is_nested else self._layout.prefix

    @property
    def is_tied(self) -> bool:
        """The outer config decides: the head belongs to it."""
        for config in (self._config, self._values):
            if isinstance(is_tied := config.get("tie_word_embeddings"), bool):
                return is_tied
        return self._layout.tied

    def groups(self) -> Iterator[TensorGroup]:
        table = (self._architecture.vocab_size, self._hidden)
        yield TensorGroup(f"{self._prefix}{self._layout.embedding}", "embedding", table)
        if size := self._values.first_integer(["hidden_size_per_layer_input"]):
            width = size * len(self._architecture.layers)
            vocabulary = self._values.integer("vocab_size_per_layer_input")
            yield TensorGroup(f"{self._prefix}embed_tokens_per_layer", "embedding", (vocabulary, width))
            yield linear(f"{self._prefix}per_layer_model_projection", width, self._hidden, "other")
            yield norm(f"{self._prefix}per_layer_projection_norm", size)
        caches = 2 if self._values.family.pattern == "parallel_mamba" else 1
        for number, layer in enumerate(self._architecture.layers):
            name = f"{self._prefix}layers.{number // caches}."
            yield from self._attention.of(name, layer)
            if (number + 1) % caches == 0:
                yield from self._feed_forward.of(name, number, layer)
                yield from self._norms_and_residuals(name, layer)
        yield norm(f"{self._prefix}norm", self._hidden)
        if self._values.get("hc_mult") is not None:
            yield from self._hyper_head(self._prefix)
        if self._values.get("attn_res_block_size") is not None:
            yield norm(f"{self._prefix}output_attn_res_norm", self._hidden)
            yield TensorGroup(f"{self._prefix}output_attn_res_proj", "other", (1, self._hidden))
        if not self.is_tied:
            name = self._layout.nested_head if self._is_nested else self._layout.head
            yield TensorGroup(name, "head", table, is_linear=True)
        yield from (replace(group, in_drafter=True) for group in self._drafter())
        yield from vision_groups(self._config, self._hidden) or ()
        yield from audio_groups(self._config, self._hidden) or ()

    def unknown(self, groups: Sequence[TensorGroup]) -> Iterator[str]:
        towers = [key for key in _TOWERS if self._config.get(key)]
        for key in towers:
            part = "audio" if key == "audio_config" else "vis"
            is_sized = any(group.part == "tower" and part in group.name for group in groups)
            if key not in ("vision_config", "audio_config") or not is_sized:
                yield f"the size of the tower in `{key}`"
        if self._is_nested and not towers:
            yield "whether it has towers in addition to the language model, and their size"
        if self._architecture.drafter_layers and not any(group.in_drafter for group in groups):
            yield "the size of its MTP layers"
        if (
            self._values.model_type in ("step3p5", "step3p7")
            and self._values.get("attention_other_setting") is None
        ):
            yield "whether its sliding layers have other heads (`attention_other_setting`)"

    # -- a layer -------------------------------------------------------------------------------------

    def _norms_and_residuals(self, name: str, layer: Layer) -> Iterator[TensorGroup]:
        yield from self._norms(name, layer)
        if self._values.get("hc_mult") is not None:
            streams = self._values.integer("hc_mult")
            mix = (2 + streams) * streams
            yield TensorGroup(f"{name}hc_attn_fn", "other", (mix, streams * self._hidden), 2, bits=32)
            yield TensorGroup(f"{name}hc_attn_base", "other", (mix + 3,), 2, bits=32)
        if self._values.get("attn_res_block_size") is not None:
            for part in ("self_attention_res", "mlp_res"):
                yield norm(f"{name}{part}_norm", self._hidden)
                yield TensorGroup(f"{name}{part}_proj", "other", (1, self._hidden))

    def _norms(self, name: str, layer: Layer) -> Iterator[TensorGroup]:
        count = self._layout.norms
        if self._values.family.pattern == "block_configs" and isinstance(layer, NoCache):
            count = 1 if layer.block == "mlp" else 0
        if self._values.is_true("enable_moe_block"):
            count += 3
        if self._values.first_integer(["hidden_size_per_layer_input"]):
            count += 1
        if count:
            yield TensorGroup(f"{name}input_layernorm", "norm", (self._hidden,), count)
        if self._layout.scalars:
            yield TensorGroup(f"{name}layer_scalar", "other", (1,), self._layout.scalars)

    # -- outside the layers ---------------------------------------------------------------------------

    def _hyper_head(self, name: str) -> Iterator[TensorGroup]:
        streams = self._values.integer("hc_mult")
        yield TensorGroup(f"{name}hc_head_fn", "other", (streams, streams * self._hidden), bits=32)
        yield TensorGroup(f"{name}hc_head_base", "other", (streams + 1,), bits=32)

    # -- MTP layers ----------------------------------------------------------------------------------

    def _drafter(self) -> Iterator[TensorGroup]:
        count, drafters = self._architecture.drafter_layers, self._architecture.drafters
        if not count or self._layout.drafter == "none":
            return
        size = len(drafters) // count
        for number in range(count):
            yield from self._one_drafter(number, drafters[number * size : (number + 1) * size])

    def _one_drafter(self, number: int, layers: Sequence[Layer]) -> Iterator[TensorGroup]:
        """The projection of the last hidden state and the next token, then a layer like the last of the
        model."""
        last, hidden = len(self._architecture.layers) - 1, self._hidden
        match self._layout.drafter:
            case "eh_proj":
                name = f"{self._prefix}layers.{last + 1 + number}."
                yield TensorGroup(f"{name}eh_proj", "other", (hidden, 2 * hidden))
                yield TensorGroup(f"{name}enorm", "norm", (hidden,), 3)
                if self._layout.drafter_copies:
                    table = (self._architecture.vocab_size, hidden)
                    yield TensorGroup(f"{name}shared_head.head", "other", table, self._layout.drafter_copies)
            case "two_proj":
                name = f"mtp.{number}."
                yield linear(f"{name}e_proj", hidden, hidden, "other")
                yield linear(f"{name}h_proj", hidden, hidden, "other")
                yield TensorGroup(f"{name}enorm", "norm", (hidden,), 3)
                yield from self._hyper_head(name)
            case "fc":
                name = f"mtp.layers.{number}."
                if number == 0:
                    yield TensorGroup("mtp.fc", "other", (hidden, 2 * hidden))
                    yield TensorGroup("mtp.norm", "norm", (hidden,), 3)
            case "input_proj":
                name = f"{self._prefix}mtp_layers.{number}."
                yield TensorGroup(f"{name}input_proj", "other", (hidden, 2 * hidden))
                yield TensorGroup(f"{name}token_layernorm", "norm", (hidden,), 3)
            case _:
                name = "mtp.layers.0."
                yield TensorGroup(f"{name}eh_proj", "other", (hidden, 2 * hidden))
                yield TensorGroup(f"{name}enorm", "norm", (hidden,), 3)
        is_dense = self._layout.drafter_is_dense
        for layer in layers:
            yield from self._attention.of(name, layer)
            yield from (
                self._feed_forward.dense(name) if is_dense else self._feed_forward.of(name, last, layer)
            )
            yield from self._norms_and_residuals(name, layer)
