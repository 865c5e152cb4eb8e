"""How a checkpoint's weights are stored: what its `quantization_config` says, and the bytes that follow.

A quantized weight is its values in a few bits, and scales: one for a group of values, for a block, a row
or the whole tensor. Checkpoints mix formats, and leave modules out by name, so a format belongs to a
module and not to a model.
Layouts as ModelOpt, compressed-tensors, AutoGPTQ, AutoAWQ and bitsandbytes write them, read in vLLM 0.32,
`vllm/model_executor/layers/quantization`, seen 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from math import ceil, prod
from typing import Literal

from firesteel.errors import FiresteelError
from firesteel.facts.formats.byte_source import one_line
from firesteel.facts.model.parameters import ParameterGroups
from firesteel.facts.model.tensor_groups import TensorGroup
from firesteel.facts.model.tensors import Role, Weights, is_replicated

Method = Literal["modelopt", "compressed-tensors", "fp8", "mxfp4", "gptq", "awq", "bitsandbytes"]


class UnknownQuantization(FiresteelError):
    """A checkpoint whose bytes cannot be told from its config."""

    def __init__(self, what: str) -> None:
        super().__init__(one_line(what), next="firesteel models")


@dataclass(frozen=True, slots=True)
class WeightFormat:
    name: str
    bits: int
    group_size: int = 0
    """Values in a row that share a scale; 0: no groups."""
    scale_bits: int = 0
    """Of a group's scale and zero point, or of a block's or a row's scale."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale."""
    has_row_scales: bool = False
    column_bytes: int = 0
    """For each input, such as GPTQ's order of columns."""
    tensor_bytes: int = 0
    """For the whole tensor, such as a global scale and an input scale."""

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


_MODELOPT = {
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4_WEIGHTS_ONLY,
    "NVFP4_AWQ": NVFP4,
    "MXFP4": MXFP4,
    "MXFP8": MXFP8,
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_ROWS,
    "FP8_PB_WO": fp8_block(128, 128),
}


@dataclass(frozen=True, slots=True)
class ModulePatterns:
    """Names of modules, as quantizers write them: exact or a part of a path, `*` wildcards, `re:`."""

    names: frozenset[str] = frozenset()
    """Modules with all that is in them; a part of a path is enough."""
    trees: frozenset[str] = frozenset()
    """The same, of whole paths: what `model.layers.1*` means."""
    patterns: tuple[re.Pattern[str], ...] = ()

    def holds(self, name: str) -> bool:
        words = name.split(".")[:16]
        return (
            any(".".join(words[:end]) in self.trees for end in range(1, len(words) + 1))
            or any(run in self.names for run in _runs(words))
            or any(pattern.match(name) for pattern in self.patterns)
        )


@dataclass(frozen=True, slots=True)
class Quantization:
    method: Method
    format: WeightFormat | None
    """Of the linear layers that nothing else is said of; None: they stay as they are."""
    others: tuple[tuple[ModulePatterns, WeightFormat], ...] = ()
    """Modules with a format of their own; the first that holds a module counts."""
    ignored: ModulePatterns = ModulePatterns()
    """Modules that stay as they are."""
    kv_cache_dtype: str | None = None
    """What the checkpoint is calibrated to keep keys and values in; None: it does not say."""
    converts_head: bool = True

    @property
    def bits(self) -> int:
        """Of most weights."""
        said = self.format or (self.others[0][1] if self.others else None)
        return said.bits if said else 16

    @property
    def group_size(self) -> int:
        said = self.format or (self.others[0][1] if self.others else None)
        return said.group_size if said else 0

    def format_of(self, group: TensorGroup) -> WeightFormat:
        if not group.is_linear:
            return unquantized(group.bits)
        for modules, own in self.others:
            if modules.holds(group.name):
                return own
        is_left = group.role is Role.HEAD and not self.converts_head
        if self.format is None or is_left or self.ignored.holds(group.name):
            return unquantized(group.bits)
        return self.format


def weights_of_config(
    parameters: ParameterGroups, quantization: Quantization | None, source: str = "config.json"
) -> Weights:
    """The bytes of a checkpoint by role, from its config alone; what the config does not size is left out."""
    by_role: dict[Role, int] = {}
    by_format: dict[tuple[Role, str], int] = {}
    whole = 0
    for group in parameters.groups:
        form = quantization.format_of(group) if quantization else unquantized(group.bits)
        size = group.count * form.bytes_of(group.shape)
        by_role[group.role] = by_role.get(group.role, 0) + size
        by_format[group.role, form.name] = by_format.get((group.role, form.name), 0) + size
        whole += size if group.role is Role.ATTENTION and is_replicated(group.name) else 0
    return Weights(by_role, "derived", source, parameters.tied_head, by_format, replicated_bytes=whole)


def read_quantization(config: object) -> Quantization | None:
    """What a config.json, or ModelOpt's `hf_quant_config.json`, says; None: the weights are not quantized."""
    if not isinstance(config, Mapping):
        raise UnknownQuantization(f"config.json holds a {type(config).__name__}, not an object with keys")
    said = _said(config)
    if said is None:
        return None
    method = _method(said)
    found = _READERS[method](said)
    if config.get("expert_dtype") == "fp4":
        # DeepSeek-V4 keeps its experts in MXFP4 and everything else in block FP8.
        experts = (ModulePatterns(frozenset({"experts"})), MXFP4)
        found = Quantization(
            found.method, found.format, (*found.others, experts), found.ignored, found.kv_cache_dtype, False
        )
    return found


def _said(config: Mapping[str, object]) -> Mapping[str, object] | None:
    text = config.get("text_config")
    for holder in (config, text if isinstance(text, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(said := holder.get(key), Mapping):
                return said
    own = config.get("quantization")
    if isinstance(own, Mapping) and "quant_algo" in own:
        return {**own, "quant_method": "modelopt"}
    return None


def _method(said: Mapping[str, object]) -> Method:
    method = said.get("quant_method")
    if method is None and "quant_algo" in said:
        method = "modelopt"
    if method in ("modelopt_fp4", "modelopt_mixed"):
        method = "modelopt"
    for known in _READERS:
        if method == known:
            return known
    raise UnknownQuantization(f"`{str(method)[:40]}` is a quant_method that firesteel does not know")


# -- one reader a method -----------------------------------------------------------------------------


def _modelopt(said: Mapping[str, object]) -> Quantization:
    algorithm = str(said.get("quant_algo")).upper()
    others = _quantized_layers(said) if algorithm == "MIXED_PRECISION" else ()
    form = None if algorithm == "MIXED_PRECISION" else _algorithm(algorithm)
    ignored = parse_modules([*_list(said, "ignore"), *_list(said, "exclude_modules")])
    return Quantization("modelopt", form, others, ignored, _kv_cache_dtype(said))


def _algorithm(name: str) -> WeightFormat:
    if name not in _MODELOPT:
        raise UnknownQuantization(f"`{name[:40]}` is a ModelOpt algorithm that firesteel does not know")
    return _MODELOPT[name]


def _quantized_layers(said: Mapping[str, object]) -> tuple[tuple[ModulePatterns, WeightFormat], ...]:
    layers = said.get("quantized_layers")
    if not isinstance(layers, Mapping) or not layers:
        raise UnknownQuantization(
            "`MIXED_PRECISION` without `quantized_layers` does not say what is quantized"
        )
    names: dict[str, list[object]] = {}
    for name, own in layers.items():
        algorithm = str(own.get("quant_algo")).upper() if isinstance(own, Mapping) else ""
        names.setdefault(algorithm, []).append(name)
    return tuple((parse_modules(own), _algorithm(algorithm)) for algorithm, own in names.items())


def _fp8(said: Mapping[str, object]) -> Quantization:
    block = said.get("weight_block_size")
    form = FP8
    if block is not None:
        form = fp8_block(*_pair(block))
    ignored = parse_modules([*_list(said, "modules_to_not_convert"), *_list(said, "ignored_layers")])
    others = _quantized_layers(said) if said.get("quantized_layers") else ()
    return Quantization("fp8", form, others, ignored, _kv_cache_dtype(said), converts_head=False)


def _compressed_tensors(said: Mapping[str, object]) -> Quantization:
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnknownQuantization("compressed-tensors without `config_groups` does not say what is quantized")
    form, others = None, []
    for group in groups.values():
        if not isinstance(group, Mapping):
            raise UnknownQuantization("compressed-tensors has a group that is no object")
        own, targets = _scheme(group, said), _list(group, "targets")
        if "Linear" in targets:
            form = own
        else:
            others.append((parse_modules(targets), own))
    ignored = parse_modules(_list(said, "ignore"))
    return Quantization("compressed-tensors", form, tuple(others), ignored, _kv_cache_dtype(said))


def _scheme(group: Mapping[str, object], said: Mapping[str, object]) -> WeightFormat:
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise UnknownQuantization("compressed-tensors has a group without `weights`")
    layout = str(group.get("format") or said.get("format"))
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
        # the shape before packing is kept beside, as two 64-bit numbers
        return WeightFormat(f"int{bits}", bits, _number(weights, "group_size"), 16 + zero, tensor_bytes=16)
    if (kind, bits, strategy) == ("int", 8, "channel"):
        return INT8_ROWS
    raise UnknownQuantization(f"compressed-tensors weights of {bits} bits, `{kind:.20}` by `{strategy:.20}`")


def _mxfp4(said: Mapping[str, object]) -> Quantization:
    ignored = parse_modules(_list(said, "modules_to_not_convert"))
    return Quantization("mxfp4", MXFP4, (), ignored, converts_head=False)


def _gptq(said: Mapping[str, object]) -> Quantization:
    bits, size = _number(said, "bits"), _group_size(said)
    form = WeightFormat(f"int{bits}", bits, size, 16 + bits, column_bytes=4)
    ignored = parse_modules(_list(said, "modules_to_not_convert"))
    return Quantization("gptq", form, (), ignored, converts_head=said.get("lm_head") is True)


def _awq(said: Mapping[str, object]) -> Quantization:
    bits = _number(said, "bits" if "bits" in said else "w_bit")
    form = WeightFormat(f"int{bits}", bits, _group_size(said), 16 + bits)
    return Quantization(
        "awq", form, (), parse_modules(_list(said, "modules_to_not_convert")), converts_head=False
    )


def _bitsandbytes(said: Mapping[str, object]) -> Quantization:
    ignored = parse_modules(_list(said, "llm_int8_skip_modules"))
    form = NF4 if said.get("load_in_4bit") is True else BNB_INT8
    return Quantization("bitsandbytes", form, (), ignored, converts_head=False)


_READERS: Mapping[Method, Callable[[Mapping[str, object]], Quantization]] = {
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
}


# -- names of modules --------------------------------------------------------------------------------

_MAX_PATTERNS = 256
_WILD = frozenset("*?[")
_MAX_PATTERN = 200
_MAX_EXPRESSIONS, _MAX_LOOPS = 32, 3
_RISKY = re.compile(r"\)[*+{]|\(\?|\\\d|[*+}][*+{]")
"""A repeated group, and other things that can make a regular expression run for ever."""


def parse_modules(said: Iterable[object]) -> ModulePatterns:
    """`model.layers.1*` means layer 1 and what is in it, not layers 10 to 19."""
    names: set[str] = set()
    trees: set[str] = set()
    patterns: list[re.Pattern[str]] = []
    expressions = 0
    for entry in said:
        if not isinstance(entry, str):
            continue
        stem = entry.removesuffix("*").removesuffix(".")
        if entry.startswith("re:"):
            patterns.append(_expression(entry[3:]))
            expressions += 1
        elif _WILD.isdisjoint(entry):
            names.add(entry)
        elif _WILD.isdisjoint(stem):
            trees.add(stem)
        else:
            patterns += [re.compile(translate(stem)), re.compile(translate(f"{stem}.*"))]
    if len(patterns) > _MAX_PATTERNS or expressions > _MAX_EXPRESSIONS:
        raise UnknownQuantization(f"{len(patterns):,} patterns of module names are more than a model has")
    return ModulePatterns(frozenset(names), frozenset(trees), tuple(patterns))


def _expression(text: str) -> re.Pattern[str]:
    loops = sum(text.count(sign) for sign in "*+{")
    if len(text) > _MAX_PATTERN or loops > _MAX_LOOPS or _RISKY.search(text):
        raise UnknownQuantization(f"`re:{text[:80]}` is a pattern of module names that may never end")
    try:
        return re.compile(text)
    except re.error as error:
        raise UnknownQuantization(f"`re:{text[:80]}` is no regular expression: {error}") from None


def _runs(words: Sequence[str]) -> Iterable[str]:
    """Every run of whole words in a path: `a.b.c` has `a`, `a.b`, `a.b.c`, `b`, `b.c` and `c`."""
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            yield ".".join(words[start:end])


# -- words -------------------------------------------------------------------------------------------


def _kv_cache_dtype(said: Mapping[str, object]) -> str | None:
    scheme = said.get("kv_cache_scheme") or said.get("kv_cache_quant_algo")
    if isinstance(scheme, str):
        return scheme.lower()
    if isinstance(scheme, Mapping):
        return f"{'fp' if scheme.get('type') == 'float' else 'int'}{_number(scheme, 'num_bits')}"
    return None


def _list(said: Mapping[str, object], key: str) -> list[object]:
    value = said.get(key)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []


def _number(said: Mapping[str, object], key: str) -> int:
    value = said.get(key)
    if type(value) is not int or not 1 <= value <= 4096:
        raise UnknownQuantization(f"the quantization has the `{key}` {str(value)[:40]}")
    return value


def _group_size(said: Mapping[str, object]) -> int:
    """-1 is one group for a whole row, which costs next to nothing; told as the largest group there is."""
    key = "group_size" if "group_size" in said else "q_group_size"
    return 2**20 if said.get(key) == -1 else _number(said, key)


def _pair(value: object) -> tuple[int, int]:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise UnknownQuantization(
            f"the quantization has blocks of {str(value)[:40]}, not of rows and columns"
        )
    return _number({"rows": value[0]}, "rows"), _number({"columns": value[1]}, "columns")
