"""How weights are stored: the formats, the modules that are left out, and the bytes that follow.

How one weight is stored: its values in a few bits, and scales for a group, a block, a row or the tensor.

Layouts as ModelOpt, compressed-tensors, AutoGPTQ, AutoAWQ and bitsandbytes write them, read in vLLM 0.32,
`vllm/model_executor/layers/quantization`, seen 2026-11-15.

Names of modules, as quantizers write them in their ignore lists: exact, part of a path, `*` wildcards,
`re:`.

A config is untrusted input, so the number of patterns and the shape of regular expressions are limited.

How a checkpoint stores its weights: its `quantization_config`, and the bytes that follow from it.

Checkpoints mix formats and leave modules out by name, so a format belongs to a module, not to a model.
The keys of ModelOpt, compressed-tensors, AutoGPTQ, AutoAWQ, AutoRound and bitsandbytes as read in vLLM 0.32,
`vllm/model_executor/layers/quantization`, seen 2026-11-16.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cache, lru_cache
from itertools import accumulate
from math import ceil, prod
from typing import Literal

from msgspec import field

from firesteel.errors import FiresteelError, printable
from firesteel.facts.formats.byte_source import MAX_ERROR_CHARS
from firesteel.facts.model.parameters import ParameterGroups
from firesteel.facts.model.tensors import Role, Tensor, TensorGroup, Weights, sum_weights
from firesteel.values import Value, replace


class UnknownQuantization(FiresteelError):
    """A checkpoint whose size cannot be computed from its config."""

    def __init__(self, what: str) -> None:
        super().__init__(printable(what, MAX_ERROR_CHARS), next="firesteel models")


class WeightFormat(Value):
    name: str
    bits: int
    group_size: int = 0
    """Adjacent values of a row that share a scale; 0: no groups."""
    scale_bits: int = 0
    """Bits of the scale and zero point of a group, or of the scale of a block or a row."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale."""
    has_row_scales: bool = False
    column_bytes: int = 0
    """Bytes for each input, such as GPTQ's column order."""
    tensor_bytes: int = 0
    """Bytes for the whole tensor, such as a global scale and an input scale."""

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        rows, columns = prod(shape[:-1]), shape[-1]
        scales = 0
        if self.group_size:
            scales = rows * ceil(columns / self.group_size)
        elif self.block:
            scales = ceil(rows / self.block[0]) * ceil(columns / self.block[1])
        elif self.has_row_scales:
            scales = rows
        values = rows * ceil(columns * self.bits / 8)
        return values + ceil(scales * self.scale_bits / 8) + columns * self.column_bytes + self.tensor_bytes


@cache
def unquantized(bits: int) -> WeightFormat:
    return WeightFormat(f"{bits}-bit", bits)


NVFP4 = WeightFormat("nvfp4", 4, 16, 8, tensor_bytes=8)
NVFP4_WEIGHTS_ONLY = WeightFormat("nvfp4", 4, 16, 8, tensor_bytes=4)
MXFP4 = WeightFormat("mxfp4", 4, 32, 8)
MXFP8 = WeightFormat("mxfp8", 8, 32, 8)
FP8 = WeightFormat("fp8", 8, tensor_bytes=8)
FP8_ROWS = WeightFormat("fp8", 8, scale_bits=16, has_row_scales=True)
INT8_ROWS = WeightFormat("int8", 8, scale_bits=16, has_row_scales=True)
NF4 = WeightFormat("nf4", 4, 64, 8, tensor_bytes=4)
BNB_INT8 = WeightFormat("int8", 8, scale_bits=32, has_row_scales=True)


def fp8_block(rows: int, columns: int) -> WeightFormat:
    return WeightFormat("fp8", 8, scale_bits=32, block=(rows, columns))


_MAX_PATTERNS = 256
_WILDCARDS = frozenset("*?[")
_MAX_EXPRESSION_CHARS = 200
_MAX_EXPRESSIONS, _MAX_LOOPS = 32, 3
_RISKY = re.compile(r"\)[*+{]|\(\?|\\\d|[*+}][*+{]")
"""A repeated group, and other constructs that can make a regular expression run for ever."""


class ModulePatterns(Value):
    """A set of modules."""

    names: frozenset[str] = frozenset()
    """Modules and everything inside them; any part of a path matches."""
    trees: frozenset[str] = frozenset()
    """The same for whole paths: the meaning of `model.layers.1*`."""
    patterns: tuple[re.Pattern[str], ...] = ()

    def match(self, name: str) -> bool:
        parts = name.split(".")[:16]
        if self.trees and not self.trees.isdisjoint(accumulate(parts, "{}.{}".format)):
            return True
        if self.names and self._has_name(parts):
            return True
        return any(pattern.match(name) for pattern in self.patterns) if self.patterns else False

    def _has_name(self, parts: Sequence[str]) -> bool:
        lengths = _lengths(self.names)
        for start, part in enumerate(parts):
            for length in lengths.get(part, ()):
                if ".".join(parts[start : start + length]) in self.names:
                    return True
        return False

    @classmethod
    def parse(cls, entries: Iterable[object]) -> ModulePatterns:
        """`model.layers.1*` means layer 1 and what is in it, not layers 10 to 19."""
        names: set[str] = set()
        trees: set[str] = set()
        patterns: list[re.Pattern[str]] = []
        expressions = 0
        for entry in entries:
            if not isinstance(entry, str):
                continue
            stem = entry.removesuffix("*").removesuffix(".")
            if entry.startswith("re:"):
                patterns.append(_expression(entry[3:]))
                expressions += 1
            elif _WILDCARDS.isdisjoint(entry):
                names.add(entry)
            elif _WILDCARDS.isdisjoint(stem):
                trees.add(stem)
            else:
                patterns += [re.compile(translate(stem)), re.compile(translate(f"{stem}.*"))]
        if len(patterns) > _MAX_PATTERNS or expressions > _MAX_EXPRESSIONS:
            raise UnknownQuantization(
                f"{len(patterns):,} patterns of module names are more than any real model has"
            )
        return cls(frozenset(names), frozenset(trees), tuple(patterns))


def _expression(text: str) -> re.Pattern[str]:
    loops = sum(text.count(sign) for sign in "*+{")
    if len(text) > _MAX_EXPRESSION_CHARS or loops > _MAX_LOOPS or _RISKY.search(text):
        raise UnknownQuantization(f"`re:{text[:80]}` is a pattern of module names that may run for ever")
    try:
        return re.compile(text)
    except re.error as error:
        raise UnknownQuantization(f"`re:{text[:80]}` is not a regular expression: {error}") from None


@lru_cache(maxsize=64)
def _lengths(names: frozenset[str]) -> Mapping[str, frozenset[int]]:
    """By the first part of these paths, how many parts they have: mostly one, or as many as a layer's."""
    lengths: dict[str, set[int]] = {}
    for name in names:
        parts = name.split(".")
        lengths.setdefault(parts[0], set()).add(len(parts))
    return {first: frozenset(counts) for first, counts in lengths.items()}


Method = Literal[
    "modelopt", "compressed-tensors", "fp8", "mxfp4", "gptq", "awq", "auto-round", "bitsandbytes"
]  # fmt: skip


_MODELOPT = {
    "NVFP4": NVFP4, "W4A16_NVFP4": NVFP4_WEIGHTS_ONLY, "NVFP4_AWQ": NVFP4, "MXFP4": MXFP4, "MXFP8": MXFP8,
    "FP8": FP8, "FP8_PER_CHANNEL_PER_TOKEN": FP8_ROWS, "FP8_PB_WO": fp8_block(128, 128),
}  # fmt: skip


class Quantization(Value):
    method: Method
    format: WeightFormat | None
    """Of the linear layers that `others` does not list; None: they are not quantized."""
    others: tuple[tuple[ModulePatterns, WeightFormat], ...] = ()
    """Modules with another format; the first match counts."""
    ignored: ModulePatterns = field(default_factory=ModulePatterns)
    """Modules that are not quantized."""
    kv_cache_dtype: str | None = None
    """The KV cache dtype that the checkpoint is calibrated for; None: not given."""
    converts_head: bool = True

    @property
    def _main_format(self) -> WeightFormat:
        return self.format or (self.others[0][1] if self.others else unquantized(16))

    @property
    def bits(self) -> int:
        """Of most weights."""
        return self._main_format.bits

    @property
    def group_size(self) -> int:
        return self._main_format.group_size

    def format_of(self, group: TensorGroup) -> WeightFormat:
        if not group.is_linear:
            return unquantized(group.bits)
        # vLLM asks the ignore list of compressed-tensors first; ModelOpt lists its quantized layers singly.
        if self.method == "compressed-tensors" and self.ignored.match(group.name):
            return unquantized(group.bits)
        for modules, own in self.others:
            if modules.match(group.name):
                return own
        is_kept = group.role is Role.HEAD and not self.converts_head
        if self.format is None or is_kept or self.ignored.match(group.name):
            return unquantized(group.bits)
        return self.format


def weights_of_config(
    parameters: ParameterGroups, quantization: Quantization | None, source: str = "config.json"
) -> Weights:
    """The bytes of a checkpoint by role, from its config alone; parts that the config does not size are left
    out."""

    def tensor(group: TensorGroup) -> Tensor:
        form = quantization.format_of(group) if quantization else unquantized(group.bits)
        size = group.count * form.bytes_of(group.shape)
        return Tensor(group.name, form.name, group.shape, size, group.role)

    weights = sum_weights(map(tensor, parameters.groups), "derived", source)
    return replace(weights, tied_head=parameters.tied_head)


def read_quantization(config: object) -> Quantization | None:
    """From a config.json or ModelOpt's `hf_quant_config.json`; None: the weights are not quantized."""
    if not isinstance(config, Mapping):
        raise UnknownQuantization(f"config.json holds a {type(config).__name__}, not an object with keys")
    section = _find_section(config)
    if section is None:
        return None
    result = _READERS[_method(section)](section)
    if config.get("expert_dtype") == "fp4":
        # DeepSeek-V4 keeps its experts in MXFP4 and everything else in block FP8.
        experts = (ModulePatterns(frozenset({"experts"})), MXFP4)
        result = replace(result, others=(*result.others, experts), converts_head=False)
    return result


def _find_section(config: Mapping[str, object]) -> Mapping[str, object] | None:
    text = config.get("text_config")
    for parent in (config, text if isinstance(text, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(section := parent.get(key), Mapping):
                return section
    own = config.get("quantization")
    if isinstance(own, Mapping) and "quant_algo" in own:
        return {**own, "quant_method": "modelopt"}
    return None


def _method(section: Mapping[str, object]) -> Method:
    method = section.get("quant_method")
    if method is None and "quant_algo" in section:
        method = "modelopt"
    if method in ("modelopt_fp4", "modelopt_mixed"):
        method = "modelopt"
    for known in _READERS:
        if method == known:
            return known
    raise UnknownQuantization(f"`{str(method)[:40]}` is a quant_method that firesteel does not know")


# -- one reader per method -----------------------------------------------------------------------------


def _modelopt(section: Mapping[str, object]) -> Quantization:
    algorithm = str(section.get("quant_algo")).upper()
    others = _quantized_layers(section) if algorithm == "MIXED_PRECISION" else ()
    form = None if algorithm == "MIXED_PRECISION" else _algorithm(algorithm)
    ignored = ModulePatterns.parse([*_list(section, "ignore"), *_list(section, "exclude_modules")])
    return Quantization("modelopt", form, others, ignored, _kv_cache_dtype(section))


def _algorithm(name: str) -> WeightFormat:
    if name not in _MODELOPT:
        raise UnknownQuantization(f"`{name[:40]}` is a ModelOpt algorithm that firesteel does not know")
    return _MODELOPT[name]


def _quantized_layers(section: Mapping[str, object]) -> tuple[tuple[ModulePatterns, WeightFormat], ...]:
    layers = section.get("quantized_layers")
    if not isinstance(layers, Mapping) or not layers:
        raise UnknownQuantization("`MIXED_PRECISION` needs `quantized_layers` to list what is quantized")
    names: dict[str, list[object]] = {}
    for name, own in layers.items():
        algorithm = str(own.get("quant_algo")).upper() if isinstance(own, Mapping) else ""
        names.setdefault(algorithm, []).append(name)
    return tuple((ModulePatterns.parse(own), _algorithm(algorithm)) for algorithm, own in names.items())


def _fp8(section: Mapping[str, object]) -> Quantization:
    block = section.get("weight_block_size")
    form = FP8 if block is None else fp8_block(*_pair(block))
    kept = [*_list(section, "modules_to_not_convert"), *_list(section, "ignored_layers")]
    ignored = ModulePatterns.parse(kept)
    others = _quantized_layers(section) if section.get("quantized_layers") else ()
    return Quantization("fp8", form, others, ignored, _kv_cache_dtype(section), converts_head=False)


def _compressed_tensors(section: Mapping[str, object]) -> Quantization:
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnknownQuantization("compressed-tensors needs `config_groups` to list what is quantized")
    form, others = None, []
    for group in groups.values():
        if not isinstance(group, Mapping):
            raise UnknownQuantization("compressed-tensors has a group that is not an object")
        own, targets = _weight_format(group, section), _list(group, "targets")
        if "Linear" in targets:
            form = own
        else:
            others.append((ModulePatterns.parse(targets), own))
    ignored = ModulePatterns.parse(_list(section, "ignore"))
    return Quantization("compressed-tensors", form, tuple(others), ignored, _kv_cache_dtype(section))


def _weight_format(group: Mapping[str, object], section: Mapping[str, object]) -> WeightFormat:
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise UnknownQuantization("compressed-tensors has a group without `weights`")
    layout = str(group.get("format") or section.get("format"))
    kind, bits = str(weights.get("type")), _number(weights, "num_bits")
    strategy, size = str(weights.get("strategy")), weights.get("group_size")
    if layout.startswith("mxfp4"):
        return MXFP4
    if layout.startswith("nvfp4") or (kind, bits, size) == ("float", 4, 16):
        return NVFP4 if group.get("input_activations") else NVFP4_WEIGHTS_ONLY
    if (kind, bits, strategy) == ("float", 8, "block"):
        return fp8_block(*_pair(weights.get("block_structure")))
    if (kind, bits) == ("float", 8):
        return FP8_ROWS if strategy == "channel" else FP8
    if kind == "int" and bits in (4, 8) and strategy == "group":
        zero = 0 if weights.get("symmetric") is not False else bits
        # the shape before packing is stored too, as two 64-bit numbers
        return WeightFormat(f"int{bits}", bits, _number(weights, "group_size"), 16 + zero, tensor_bytes=16)
    if (kind, bits, strategy) == ("int", 8, "channel"):
        return INT8_ROWS
    raise UnknownQuantization(f"compressed-tensors weights of {bits} bits, `{kind:.20}` by `{strategy:.20}`")


def _mxfp4(section: Mapping[str, object]) -> Quantization:
    ignored = ModulePatterns.parse(_list(section, "modules_to_not_convert"))
    return Quantization("mxfp4", MXFP4, (), ignored, converts_head=False)


def _gptq(section: Mapping[str, object]) -> Quantization:
    bits, size = _number(section, "bits"), _group_size(section)
    form = WeightFormat(f"int{bits}", bits, size, 16 + bits, column_bytes=4)
    ignored = ModulePatterns.parse(_list(section, "modules_to_not_convert"))
    return Quantization("gptq", form, (), ignored, converts_head=section.get("lm_head") is True)


def _awq(section: Mapping[str, object]) -> Quantization:
    bits = _number(section, "bits" if "bits" in section else "w_bit")
    form = WeightFormat(f"int{bits}", bits, _group_size(section), 16 + bits)
    return Quantization(
        "awq", form, (), ModulePatterns.parse(_list(section, "modules_to_not_convert")), converts_head=False
    )


def _auto_round(section: Mapping[str, object]) -> Quantization:
    """Packed as GPTQ or AWQ would; `extra_config` names the modules of other widths, by name or pattern."""
    packed_as_awq = "awq" in str(section.get("packing_format"))
    base = _awq(section) if packed_as_awq else _gptq(section)
    own = section.get("extra_config")
    kept: list[object] = []
    for name, config in (own if isinstance(own, Mapping) else {}).items():
        bits = config.get("bits") if isinstance(config, Mapping) else None
        if not isinstance(bits, int) or bits < 16:
            raise UnknownQuantization(f"AutoRound has `{str(name)[:60]}` of another width")
        kept.append(f"re:{name}" if "*" in str(name) else name)
    return replace(base, method="auto-round", ignored=ModulePatterns.parse(kept))


def _bitsandbytes(section: Mapping[str, object]) -> Quantization:
    ignored = ModulePatterns.parse(_list(section, "llm_int8_skip_modules"))
    form = NF4 if section.get("load_in_4bit") is True else BNB_INT8
    return Quantization("bitsandbytes", form, (), ignored, converts_head=False)


_READERS: Mapping[Method, Callable[[Mapping[str, object]], Quantization]] = {
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "bitsandbytes": _bitsandbytes,
}


# -- values of the config ----------------------------------------------------------------------------


def _kv_cache_dtype(section: Mapping[str, object]) -> str | None:
    scheme = section.get("kv_cache_scheme") or section.get("kv_cache_quant_algo")
    if isinstance(scheme, str):
        return scheme.lower()
    if isinstance(scheme, Mapping):
        return f"{'fp' if scheme.get('type') == 'float' else 'int'}{_number(scheme, 'num_bits')}"
    return None


def _list(section: Mapping[str, object], key: str) -> list[object]:
    value = section.get(key)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []


def _number(section: Mapping[str, object], key: str) -> int:
    value = section.get(key)
    if type(value) is not int or not 1 <= value <= 4096:
        raise UnknownQuantization(f"the quantization has the `{key}` {str(value)[:40]}")
    return value


def _group_size(section: Mapping[str, object]) -> int:
    """-1 is one group per row, which costs next to nothing; taken as the largest possible group."""
    key = "group_size" if "group_size" in section else "q_group_size"
    return 2**20 if section.get(key) == -1 else _number(section, key)


def _pair(value: object) -> tuple[int, int]:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise UnknownQuantization(
            f"the quantization has blocks of {str(value)[:40]}, not of rows and columns"
        )
    return _number({"rows": value[0]}, "rows"), _number({"columns": value[1]}, "columns")
