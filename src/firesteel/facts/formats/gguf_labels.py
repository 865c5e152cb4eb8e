"""The type that llama.cpp's quantizer gives each tensor under a label such as Q4_K_M.

A label is a mixture, not a format. It names the type of most tensors; the head, the values of attention and
the down projections get a better one, in some layers or in all of them. A type packs blocks of 256 or of 32
values, and a tensor whose rows are not a multiple of its block falls back to another, mostly larger type: so
do nearly all tensors of gpt-oss (2880 wide) and of Nemotron-3-Nano (2688). Rules as in llama.cpp's
`src/llama-quant.cpp`, https://github.com/ggml-org/llama.cpp, seen 2026-11-15; compared with the quantizer of
build 11739: the tensor sums are equal for every label here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from firesteel.facts.formats.gguf import GGML_TYPES
from firesteel.facts.model.parameters import ParameterGroups
from firesteel.facts.model.tensors import TensorGroup
from firesteel.values import Value, replace

BASE_TYPES: Mapping[str, str] = {
    "q8_0": "Q8_0", "q6_k": "Q6_K", "q5_k_m": "Q5_K", "q5_k_s": "Q5_K", "q5_1": "Q5_1", "q5_0": "Q5_0",
    "q4_k_m": "Q4_K", "q4_k_s": "Q4_K", "q4_1": "Q4_1", "q4_0": "Q4_0", "iq4_nl": "IQ4_NL",
    "iq4_xs": "IQ4_XS", "mxfp4_moe": "MXFP4", "q3_k_l": "Q3_K", "q3_k_m": "Q3_K", "q3_k_s": "Q3_K",
    "iq3_m": "IQ3_S", "iq3_s": "IQ3_S", "iq3_xs": "IQ3_S", "iq3_xxs": "IQ3_XXS", "q2_k": "Q2_K",
    "q2_k_s": "Q2_K",
    "iq2_m": "IQ2_S", "iq2_s": "IQ2_XS", "iq2_xs": "IQ2_XS", "iq2_xxs": "IQ2_XXS", "iq1_m": "IQ1_M",
    "iq1_s": "IQ1_S",
}  # fmt: skip
"""By label, largest first: the type of most tensors."""
NEEDS_IMATRIX = frozenset(
    {"q2_k_s", "iq3_xs", "iq3_xxs", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"}
)
"""Labels that the quantizer refuses without an importance matrix."""
_FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
_TINY = ("iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq1_s", "iq1_m")
_RICHER_OUTPUT = frozenset({
    "q2_k", "iq3_xs", "iq3_xxs", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq3_s", "iq3_m", "iq4_xs",
})  # fmt: skip
"""Labels under which a model with eight experts has its attention output in Q5_K."""
_BLOCKS = {name: (elements, size) for name, elements, size in GGML_TYPES.values()}


class StoredType(Value):
    """A group of equal tensors, and the type that they are stored in."""

    group: TensorGroup
    type: str
    fell_back: bool = False
    """Its rows are not a multiple of the block of the type that the label asks for."""

    @property
    def bytes(self) -> int:
        elements, size = _BLOCKS[self.type]
        return self.group.elements * size // elements


def stored_types(parameters: ParameterGroups, label: str, with_imatrix: bool = False) -> Iterator[StoredType]:
    """Every tensor with its type; a tower is a separate file in 16 bits."""
    model = _Model.of(parameters)
    rules = _Rules(label, BASE_TYPES[label], with_imatrix, model)
    for group in parameters.groups:
        if group.part == "tower":
            yield StoredType(group, "F16" if len(group.shape) > 1 else "F32")
        elif not _is_quantized(group):
            yield StoredType(group, "F32")
        elif model.experts_are_mxfp4 and group.part == "routed_experts":
            yield StoredType(group, "MXFP4")
        else:
            for tensor in _converted_tensors(group, model):
                wanted = rules.type_of(tensor)
                kind = _fitting_type(wanted, tensor.shape[-1])
                yield StoredType(tensor, kind, kind != wanted)


def _is_quantized(group: TensorGroup) -> bool:
    """Matrices; but not routers, convolutions, and some small ones by name."""
    rows = [side for side in group.shape if side > 1]
    small = ("conv1d", "index_q_proj", "index_k_proj", "per_layer_model_projection", "compressor.ape")
    return (
        len(rows) > 1
        and group.part not in ("norm", "router")
        and group.bits == 16
        and not any(name in group.name for name in small)
    )


def _fitting_type(kind: str, columns: int) -> str:
    if columns % _BLOCKS[kind][0] == 0:
        return kind
    other = _FALLBACK.get(kind, "F16")
    return other if columns % _BLOCKS[other][0] == 0 else "F16"


class _Model(Value):
    layers: int
    experts: int
    queries_per_key: int
    """Query heads that share a key, in the first layer; 0 where it has none."""
    value_tensors: int
    is_tied: bool
    is_70b: bool
    experts_are_mxfp4: bool
    """gpt-oss is published so, and files with any label keep it: https://huggingface.co/unsloth/gpt-oss-20b-GGUF,
    seen 2026-11-15, has 11.5 to 13.8 GB from Q2_K to F16."""
    latent: tuple[int, int] | None
    """For MLA: the dimensions of a head's key without rope, and of its value."""

    @classmethod
    def of(cls, parameters: ParameterGroups) -> _Model:
        own = [group for group in parameters.groups if not group.in_drafter and group.part != "tower"]
        layers = 1 + max((_layer(group) for group in own), default=0)
        shared = _queries_per_key(own)
        family = parameters.model_type
        return cls(
            layers=layers,
            experts=parameters.experts,
            queries_per_key=shared,
            value_tensors=sum(_tensor_kind(group) == "value" for group in own),
            is_tied=parameters.tied_head,
            is_70b=layers == 80 and (family == "qwen2" or (family in ("llama", "mistral") and shared > 1)),
            experts_are_mxfp4=family == "gpt_oss",
            latent=_latent(own),
        )


def _queries_per_key(groups: Sequence[TensorGroup]) -> int:
    """The output of attention is as wide as all heads, its values as those that are cached."""
    first = [group for group in groups if group.name.endswith("v_proj") and group.part == "attention"][:1]
    outputs = {_layer(group): group.shape[-1] for group in groups if _tensor_kind(group) == "output"}
    if not first or (_layer(first[0]) > 0 and not any(".linear_attn." in group.name for group in groups)):
        return 0  # files of such hybrids list heads layer by layer; those of Qwen have one number for all
    return outputs.get(_layer(first[0]), 0) // first[0].shape[0]


def _latent(groups: Sequence[TensorGroup]) -> tuple[int, int] | None:
    """From the shapes of MLA's matrices, none of which has the dimensions of a head by itself."""
    shapes = {group.name.rsplit(".", 1)[-1]: group.shape for group in groups if group.part == "attention"}
    if not {"kv_b_proj", "kv_a_proj_with_mqa", "o_proj"} <= shapes.keys():
        return None
    (out, rank), values = shapes["kv_b_proj"], shapes["o_proj"][-1]
    queries = shapes.get("q_b_proj", shapes.get("q_proj", (0, 0)))[0]
    rope, keys = shapes["kv_a_proj_with_mqa"][0] - rank, out - values
    heads = (queries - keys) // rope if rope > 0 else 0
    return (keys // heads, values // heads) if heads > 0 else None


def _converted_tensors(group: TensorGroup, model: _Model) -> Iterator[TensorGroup]:
    """The converter splits MLA's projection out of the latent: one into it for keys, one out of it for
    values."""
    if not group.name.endswith("kv_b_proj") or model.latent is None:
        yield group
        return
    key, value = model.latent
    rank, heads = group.shape[-1], group.shape[0] // (key + value)
    yield replace(group, name=f"{group.name}.k_b", shape=(heads, rank, key))
    yield replace(group, name=f"{group.name}.v_b", shape=(heads, value, rank))


_KINDS = {
    "v_proj": "value", "qkv_proj": "value", "in_proj_qkv": "value", "in_proj_qkvz": "value",
    "q_proj": "query", "k_proj": "key", "o_proj": "output",
    "gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "gate_up_proj": "up",
    "down_proj": "down", "w2": "down",
}  # fmt: skip
"""By the last part of a module's name: the kind of its tensor for the quantizer. Fused queries, keys and
values are treated as values."""


def _tensor_kind(group: TensorGroup) -> str:
    return "" if group.part == "indexer" else _KINDS.get(group.name.rsplit(".", 1)[-1], "")


def _layer(group: TensorGroup) -> int:
    return _layer_number(group.name)


@lru_cache(maxsize=4096)
def _layer_number(name: str) -> int:
    match = re.search(r"layers\.(\d+)\.", name)
    return int(match[1]) if match else 0


class _Rules:
    """The rules of one label. It counts tensors as the quantizer does: the third value tensor, the fifth down
    one."""

    def __init__(self, label: str, base: str, with_imatrix: bool, model: _Model) -> None:
        self._label = label
        self._base = base
        self._imatrix = with_imatrix
        self._model = model
        self._values = 0
        self._downs = 0

    def type_of(self, group: TensorGroup) -> str:
        if group.part == "head" or (group.part == "embedding" and self._model.is_tied):
            return self._head(group)
        if self._label == "mxfp4_moe":
            return "MXFP4" if group.part == "routed_experts" or len(group.shape) > 2 else "Q8_0"
        if group.part == "embedding":
            if self._label in ("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"):
                return "Q2_K"
            return "IQ3_S" if self._label in ("iq2_s", "iq2_m", "iq3_xxs") else self._base
        kind = _tensor_kind(group)
        if kind == "value":
            self._values += 1
            return self._value(self._values - 1)
        if kind == "down":
            self._downs += 1
            by_layer = self._model.experts > 1 and self._label not in _TINY
            return self._down(_layer(group) if by_layer else self._downs - 1)
        if kind == "output":
            return self._output()
        if kind in ("key", "query"):
            if kind == "key" and self._model.experts == 8:
                return "Q4_K" if self._label in _TINY else "Q8_0"
            return {"iq3_xs": "IQ3_XXS", "iq3_xxs": "IQ2_S"}.get(self._label, self._base)
        inside = self._model.layers // 8 <= _layer(group) < 7 * self._model.layers // 8
        return "IQ3_XXS" if self._label == "iq3_xs" and kind in ("gate", "up") and inside else self._base

    def _head(self, group: TensorGroup) -> str:
        if self._label == "mxfp4_moe" or group.shape[-1] % _BLOCKS[self._base][0]:
            return "Q8_0"
        if self._label in _TINY or self._label == "iq3_xxs":
            return "Q5_K"
        return "Q8_0" if self._base == "Q8_0" else "Q6_K"

    def _value(self, number: int) -> str:
        if self._label in _TINY:
            if self._model.queries_per_key >= 4 or self._model.experts >= 4:
                return "Q4_K"
            return "IQ3_S" if self._label in ("iq2_s", "iq2_m") else "Q2_K"
        if self._model.experts == 8:
            return "Q8_0"
        kind = self._plain_value(number)
        return "Q5_K" if self._model.is_70b and kind in ("Q3_K", "Q4_K") else kind

    def _plain_value(self, number: int) -> str:
        shared = self._model.queries_per_key >= 4
        match self._label:
            case "q2_k":
                return "Q4_K" if shared else "Q3_K"
            case "q2_k_s" | "iq3_xs" | "iq3_s" if shared:
                return "Q4_K"
            case "iq3_xxs":
                return "Q4_K" if shared else "IQ3_XXS" if self._imatrix else "IQ3_S"
            case "iq3_m":
                return "Q4_K"
            case "q3_k_m":
                return "Q5_K" if number < 2 else "Q4_K"
            case "q3_k_l":
                return "Q5_K"
            case "iq4_nl" | "iq4_xs" if shared:
                return "Q5_K"
            case "q4_k_m" | "q5_k_m" if _gets_more_bits(number, self._model.value_tensors):
                return "Q6_K"
            case "q4_k_s" if number < 4:
                return "Q5_K"
        return self._base

    def _down(self, number: int) -> str:
        layers = self._model.layers
        first, more = number < layers // 8, _gets_more_bits(number, layers)
        match self._label:
            case "iq2_s" | "iq2_m" if first:
                return "IQ3_S"
            case "iq2_xxs" | "iq2_xs" | "iq1_s" | "iq1_m" if first:
                return "Q2_K"
            case "q2_k":
                return "Q3_K"
            case "q2_k_s" if first:
                return "Q4_K"
            case "iq3_xxs" if not self._imatrix:
                return "Q4_K" if first else "Q3_K"
            case "q3_k_m":
                return "Q5_K" if number < layers // 16 else "Q4_K"
            case "iq3_m" if first or (self._model.experts == 8 and more):
                return "Q4_K"
            case "q3_k_l":
                return "Q5_K"
            case "q4_k_m" | "q5_k_m" if more:
                return "Q6_K"
            case "iq4_nl" | "iq4_xs" if first and not self._imatrix:
                return "Q5_K"
            case "q4_k_s" if first:
                return "Q5_K"
            case "q4_0" | "q5_0" if first and self._imatrix:
                return "Q4_1" if self._label == "q4_0" else "Q5_1"
        return self._base

    def _output(self) -> str:
        if self._model.experts == 8:
            return "Q5_K" if self._label in _RICHER_OUTPUT or self._label in _TINY else self._base
        richer = {
            "iq1_s": "IQ2_XXS", "iq1_m": "IQ2_XXS", "iq2_s": "IQ3_S", "iq2_m": "IQ3_S", "q2_k": "Q3_K",
            "iq3_xxs": "IQ3_S", "q3_k_m": "Q4_K", "q3_k_l": "Q5_K", "iq3_m": "Q4_K",
        }  # fmt: skip
        return richer.get(self._label, self._base)


def _gets_more_bits(layer: int, layers: int) -> bool:
    """The first eighth, the last, and every third in between."""
    edge = layers // 8
    return layer < edge or layer >= 7 * layers // 8 or (layer - edge) % 3 == 2
