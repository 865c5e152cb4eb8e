"""What a checkpoint holds, as far as an audit needs it.

Read by `edge/contents.py` and judged by `rules/checkpoint`. A file that cannot be read is a
value too: an audit names everything that is wrong, where a plan stops at the first damage.

The modules of a checkpoint as they are stored: a weight with its scales, and the format that they make.

    model.layers.0.mlp.up_proj   weight_packed U8, weight_scale F8_E4M3, weight_global_scale F32   -> nvfp4

The format is read from the tensors alone, so that it can be compared with what the config claims. Suffixes as
compressed-tensors 0.17, ModelOpt 0.45, AutoGPTQ and AutoAWQ write them, seen 2026-11-15.

What the files of a tokenizer say: the highest token, the token that ends an answer, the chat template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from firesteel.facts.formats.gguf import MetadataValue
from firesteel.facts.formats.number_bytes import ValueSummary
from firesteel.facts.model.tensors import Role, Tensor
from firesteel.values import Value

Defect = Literal["missing", "pointer", "damaged", "truncated", "too long", "wrong size", "wrong digest"]


class WeightFile(Value):
    name: str
    bytes: int
    tensors: tuple[Tensor, ...] = ()
    """In the order of their data; empty where the header cannot be read."""
    data_start: int = 0
    defect: Defect | None = None
    why: str = ""
    """The defect, for the user."""
    is_listed: bool = True
    """In the index, or there is none. Engines do not load a file that is not."""


class TokenizerFacts(Value):
    files: frozenset[str]
    """Which of the known tokenizer files there are."""
    defect: str = ""
    highest_id: int | None = None
    """Of the vocabulary and the added tokens together; None: not known."""
    eos: str | None = None
    eos_id: int | None = None
    has_template: bool = False
    templates_differ: bool = False

    @classmethod
    def parse(cls, files: frozenset[str], texts: Mapping[str, str]) -> TokenizerFacts:
        """`texts`: the contents of those of tokenizer.json, tokenizer_config.json and the chat template that
        exist."""
        parsed: dict[str, Mapping[str, object]] = {}
        defect = ""
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.json"):
            if name not in texts:
                continue
            try:
                value = json.loads(texts[name])
            except (ValueError, RecursionError) as error:
                defect = f"{name} is not JSON: {str(error)[:120]}"
                continue
            if isinstance(value, dict):
                parsed[name] = value
        config = parsed.get("tokenizer_config.json", {})
        ids = _ids(parsed.get("tokenizer.json", {}), config)
        in_config = _template(config) or _template(parsed.get("chat_template.json", {}))
        template_file = texts.get("chat_template.jinja")
        token = config.get("eos_token")
        text = token.get("content") if isinstance(token, Mapping) else token
        eos = text if isinstance(text, str) else None
        return cls(
            files,
            defect,
            highest_id=max(ids.values(), default=None),
            eos=eos,
            eos_id=ids.get(eos) if eos else None,
            has_template=bool(in_config or template_file),
            templates_differ=bool(in_config and template_file and in_config.strip() != template_file.strip()),
        )


class CheckpointContents(Value):
    origin: str
    """The path or the Hub id, as a user would write it."""
    format: Literal["gguf", "safetensors"]
    files: tuple[WeightFile, ...]
    config: Mapping[str, object] | None = None
    config_defect: str = ""
    modelopt_config: Mapping[str, object] | None = None
    """`hf_quant_config.json`"""
    generation_config: Mapping[str, object] | None = None
    index: Mapping[str, str] | None = None
    """Tensor -> file, as the index has it; None: there is no index."""
    index_defect: str = ""
    index_bytes: int | None = None
    """`total_size` of the index."""
    scalars: Mapping[str, float] = {}
    """Tensors of one element that scale others."""
    values: Mapping[str, ValueSummary] = {}
    """Other scale tensors, or their beginning."""
    weight_values: Mapping[str, ValueSummary] = {}
    """Weights; only a deep audit reads them."""
    tokenizer: TokenizerFacts | None = None
    metadata: Mapping[str, MetadataValue] = {}
    """Of a GGUF."""
    read_bytes: int = 0
    is_deep: bool = False
    unread: tuple[str, ...] = ()
    """What was not read, and why."""

    @property
    def has_all_files(self) -> bool:
        """Every header could be read, so what is absent is absent from the checkpoint."""
        return not self.index_defect and all(
            file.defect not in ("missing", "pointer", "damaged") for file in self.files
        )

    @property
    def stored_bytes(self) -> int:
        return sum(tensor.bytes for file in self.files for tensor in file.tensors)


WrittenAs = Literal["compressed-tensors", "modelopt", "block-fp8", "mxfp4-blocks", "gptq-awq", "fp8", "plain"]
StoredFormat = Literal["nvfp4", "mxfp4", "mxfp8", "fp8", "int", "plain", "other"]

SCALES = frozenset(
    {
        "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale", "input_scale",
        "input_global_scale", "k_scale", "v_scale", "q_scale", "scale", "scales",
    }
)  # fmt: skip
GLOBAL_SCALES = ("weight_global_scale", "weight_scale_2")
_PARTS = SCALES | {
    "weight", "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx", "bias", "qweight",
    "qzeros", "g_idx", "blocks", "pre_quant_scale", "output_scale", "prob_output_scale",
}  # fmt: skip
_FUSED_PARTS = re.compile(
    r"(.*\.(?:gate_up_proj|down_proj|up_proj|gate_proj))_(blocks|scales|bias|weight_scale_2|weight_scale_inv|"
    r"weight_scale|weight_global_scale|input_scale|input_global_scale|weight_packed)\Z"
)
"""Experts that are stored in one tensor have no `.weight`: `experts.gate_up_proj`, `..._blocks`."""
_EXPERT = re.compile(r"(\.experts\.)\d+(\.)")
PLAIN_TYPES = frozenset({"BF16", "F16", "F32", "F64", "I64"})


class StoredModule(Value):
    name: str
    role: Role
    parts: Mapping[str, Tensor]

    @property
    def name_in_first_expert(self) -> str:
        """The name with expert 0 in the place of any: a layer's experts are stored alike."""
        return _EXPERT.sub(r"\g<1>0\2", self.name)

    @property
    def weight(self) -> Tensor | None:
        for part in ("weight", "weight_packed", "qweight", "blocks"):
            if part in self.parts:
                return self.parts[part]
        return None

    @property
    def global_scale(self) -> Tensor | None:
        return next((self.parts[part] for part in GLOBAL_SCALES if part in self.parts), None)

    @property
    def is_quantized(self) -> bool:
        return self.format != "plain"

    @property
    def is_matrix(self) -> bool:
        """Something that a quantizer could have converted; norms, biases and convolutions are not."""
        weight = self.weight
        if weight is None or len(weight.shape) < 2 or self.role is Role.NORMS:
            return False
        return min(weight.shape[-2:]) > 16 and "conv1d" not in self.name

    @property
    def format(self) -> StoredFormat:
        weight = self.weight
        if weight is None:
            return "other" if SCALES & self.parts.keys() else "plain"
        scale = self.parts.get("weight_scale") or self.parts.get("scales")
        is_exponents = scale is not None and scale.dtype in ("U8", "F8_E8M0")
        if "blocks" in self.parts:
            return "mxfp4"
        if "qweight" in self.parts or weight.dtype in ("I8", "I32", "U32"):
            return "int"
        if weight.dtype in ("U8", "F4"):
            return "mxfp4" if is_exponents and self.global_scale is None else "nvfp4"
        if weight.dtype == "F8_E4M3":
            return "mxfp8" if is_exponents else "fp8"
        return "plain" if weight.dtype in PLAIN_TYPES else "other"

    @property
    def layout(self) -> WrittenAs:
        """Who wrote it."""
        if "blocks" in self.parts:
            return "mxfp4-blocks"
        if "weight_packed" in self.parts or "weight_global_scale" in self.parts:
            return "compressed-tensors"
        if "qweight" in self.parts:
            return "gptq-awq"
        if "weight_scale_2" in self.parts or self.format == "nvfp4":
            return "modelopt"
        if "weight_scale_inv" in self.parts:
            return "block-fp8"
        return "fp8" if self.is_quantized else "plain"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of the weight before packing; None where the stored shape does not show it."""
        weight = self.weight
        if weight is None or self.format in ("int", "other") or "blocks" in self.parts:
            return None
        if weight.dtype == "U8":
            return (*weight.shape[:-1], weight.shape[-1] * 2) if weight.shape else None
        return weight.shape


def split_name(name: str) -> tuple[str, str]:
    """The module, and the part of it that a tensor is."""
    module, _, part = name.rpartition(".")
    if part in _PARTS and module:
        return module, part
    if fused := _FUSED_PARTS.match(name):
        return fused[1], fused[2]
    return name, "weight"


def stored_modules(tensors: Iterable[Tensor]) -> dict[str, StoredModule]:
    """By name, in the order of the files."""
    parts: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        module, part = split_name(tensor.name)
        parts.setdefault(module, {})[part] = tensor
    return {name: StoredModule(name, next(iter(own.values())).role, own) for name, own in parts.items()}


TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model", "vocab.txt",
    "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip


def _ids(tokenizer: Mapping[str, object], config: Mapping[str, object]) -> dict[str, int]:
    """Token -> id."""
    ids: dict[str, int] = {}
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocabulary, Mapping):
        ids = {str(token): number for token, number in vocabulary.items() if type(number) is int}
    elif isinstance(vocabulary, list):  # a unigram model lists pairs of token and score
        ids = {f"#{number}": number for number in range(len(vocabulary))}
        ids |= {
            str(pair[0]): number for number, pair in enumerate(vocabulary) if isinstance(pair, list) and pair
        }
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, Mapping) and type(number := token.get("id")) is int:
            ids[str(token.get("content"))] = number
    decoder = config.get("added_tokens_decoder")
    for number, token in decoder.items() if isinstance(decoder, Mapping) else ():
        if str(number).isdecimal() and isinstance(token, Mapping):
            ids.setdefault(str(token.get("content")), int(str(number)[:12]))
    return ids


def _template(config: Mapping[str, object]) -> str | None:
    value = config.get("chat_template")
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # several, of which `default` is used
        for entry in value:
            if isinstance(entry, Mapping) and entry.get("name") == "default":
                return str(entry.get("template"))
    return None
