"""A checkpoint under audit: what it holds, and what follows from that, computed once for all checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

from firesteel.errors import FiresteelError
from firesteel.facts.model.architecture import Architecture, UnknownArchitecture
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.contents import (
    CheckpointContents,
    StoredModule,
    stored_modules,
)
from firesteel.facts.model.parameters import ParameterGroups, parameters_of_config
from firesteel.facts.model.quantization import (
    Quantization,
    UnknownQuantization,
    WeightFormat,
    read_quantization,
)
from firesteel.facts.model.tensors import Part, Role, Tensor, TensorGroup

LINEAR_ROLES = (Role.ATTENTION, Role.DENSE_MLP, Role.ROUTED_EXPERTS, Role.SHARED_EXPERT)
_LINEAR_LEAVES = frozenset(
    {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "gate_up_proj",
        "qkv_proj", "w1", "w2", "w3",
        "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "in_proj_qkv", "in_proj_z",
        "in_proj_qkvz", "out_proj",
    }
)  # fmt: skip
"""Linear layers by the names that all families share. Others may be kept out by the engine itself."""


class AuditedCheckpoint:
    def __init__(self, contents: CheckpointContents) -> None:
        self.contents = contents

    def tensors(self) -> Iterator[Tensor]:
        """What an engine loads."""
        for file in self.contents.files:
            if file.is_listed:
                yield from file.tensors

    @cached_property
    def modules(self) -> dict[str, StoredModule]:
        return stored_modules(self.tensors())

    @cached_property
    def kinds(self) -> dict[str, tuple[StoredModule, Counter[str]]]:
        """One module for the equal ones of all experts, with how many of them are stored in which format."""
        kinds: dict[str, tuple[StoredModule, Counter[str]]] = {}
        for module in self.modules.values():
            key = module.name_in_first_expert
            if key not in kinds:
                kinds[key] = (module, Counter())
            kinds[key][1][module.format] += 1
        return kinds

    @cached_property
    def representatives(self) -> tuple[StoredModule, ...]:
        return tuple(module for module, _ in self.kinds.values())

    @property
    def config(self) -> Mapping[str, object]:
        return self.contents.config or {}

    @cached_property
    def text_config(self) -> Mapping[str, object]:
        text = self.config.get("text_config")
        return text if isinstance(text, Mapping) else self.config

    def whole_number(self, *keys: str) -> int | None:
        """A value of the config, of the language model first."""
        for key in keys:
            for config in (self.text_config, self.config):
                if type(value := config.get(key)) is int:
                    return value
        return None

    @cached_property
    def architecture(self) -> Architecture | None:
        try:
            return architecture_of_config(self.contents.config)
        except UnknownArchitecture:
            return None

    @cached_property
    def parameters(self) -> ParameterGroups | None:
        try:
            return parameters_of_config(self.contents.config)
        except UnknownArchitecture:
            return None

    @cached_property
    def _declared(self) -> tuple[Quantization | None, str]:
        try:
            found = read_quantization(self.config) if self.config else None
            if found is None and self.contents.modelopt_config is not None:
                found = read_quantization(self.contents.modelopt_config)
            return found, ""
        except (UnknownQuantization, FiresteelError) as error:
            return None, error.what

    @property
    def declared(self) -> Quantization | None:
        """What the config says about the format of the weights."""
        return self._declared[0]

    @property
    def declared_error(self) -> str:
        return self._declared[1]

    @cached_property
    def section(self) -> Mapping[str, object]:
        """The `quantization_config` as it is written."""
        for config in (self.config, self.text_config):
            for key in ("quantization_config", "compression_config"):
                if isinstance(found := config.get(key), Mapping):
                    return found
        own = (self.contents.modelopt_config or {}).get("quantization")
        return own if isinstance(own, Mapping) else {}

    def declared_format(self, module: StoredModule) -> WeightFormat | None:
        """What the config says about one matrix; None: it is not to be quantized."""
        if self.declared is None or module.weight is None:
            return None
        part: Part = "head" if module.role is Role.HEAD else "other"
        group = TensorGroup(module.name, part, module.weight.shape, is_linear=True)
        form = self.declared.format_of(group)
        return form if form.bits < 16 else None

    @cached_property
    def quantized(self) -> tuple[StoredModule, ...]:
        """One for all experts."""
        return tuple(module for module in self.representatives if module.is_quantized and module.weight)

    @property
    def drafter_layers(self) -> int:
        """MTP layers that the config promises."""
        if self.architecture is not None:
            return self.architecture.drafter_layers
        return self.whole_number("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers") or 0

    @cached_property
    def bytes_by_role(self) -> Counter[Role]:
        sizes: Counter[Role] = Counter()
        for tensor in self.tensors():
            sizes[tensor.role] += tensor.bytes
        return sizes


def is_linear(module: StoredModule) -> bool:
    return (
        module.role in LINEAR_ROLES
        and module.name.rpartition(".")[2] in _LINEAR_LEAVES
        and (module.is_matrix or module.is_quantized)
    )
