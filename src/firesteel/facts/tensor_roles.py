"""What a quantizer does with each weight, by its name: kept or quantized, and which share a global scale.

    layers.0.self_attn.q_proj.weight_scale     module `layers.0.self_attn.q_proj`, leaf `weight_scale`

The rules are data, `data/quantize/policy.yaml`, each with its reason and source. `quantize` follows them and
`audit` checks them, so that both mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Annotated

from firesteel import shipped_data
from firesteel.facts.evidence import Sources
from firesteel.facts.model.tensors import Role
from firesteel.values import NOT_EMPTY, FileValue, Regex, Texts

LEAVES = frozenset(
    {
        "weight", "bias", "weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv",
        "weight_global_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "input_scale",
        "input_global_scale", "k_scale", "v_scale", "q_scale", "output_scale", "blocks", "scales",
    }
)  # fmt: skip
"""The last part of a tensor's name, where it is not a module: a weight, or what dequantizes it."""


def split_leaf(name: str) -> tuple[str, str]:
    """Module and leaf of a tensor. A parameter without a leaf, such as `A_log`, is its own module."""
    module, _, leaf = name.rpartition(".")
    return (module, leaf) if leaf in LEAVES and module else (name, "")


class SharedScale(FileValue, kw_only=True):
    modules: Annotated[tuple[str, ...], NOT_EMPTY]
    """The last parts of their names; they stand beside each other in one parent."""
    why: str
    sources: Sources


class KeepRule(FileValue, kw_only=True):
    role: Role | None = None
    modules: Regex | None = None
    except_in: tuple[str, ...] = ()
    why: str
    sources: Sources

    def covers(self, module: str, role: Role, format: str) -> bool:
        if format in self.except_in:
            return False
        return role is self.role or bool(self.modules and re.search(self.modules, module))


class ExpertLayout(FileValue, kw_only=True):
    """Experts that are stored in one 3-D tensor: [experts, outputs, inputs], the gate before the up."""

    gate_up: str
    down: str
    transposed: bool = False
    """[experts, inputs, outputs]."""


class FamilyPolicy(FileValue, kw_only=True):
    model_types: Texts
    experts: ExpertLayout | None = None
    refuse: str | None = None
    keep: tuple[KeepRule, ...] = ()
    why: str
    sources: Sources


class QuantizePolicy(FileValue, kw_only=True):
    shared_scales: tuple[SharedScale, ...]
    keep: tuple[KeepRule, ...]
    families: tuple[FamilyPolicy, ...]

    def family(self, model_type: str) -> FamilyPolicy | None:
        return next((family for family in self.families if model_type in family.model_types), None)

    def kept_by(self, module: str, role: Role, model_type: str, format: str) -> KeepRule | None:
        """The rule that keeps a module as it is; None: it is quantized."""
        family = self.family(model_type)
        rules = (*(family.keep if family else ()), *self.keep)
        return next((rule for rule in rules if rule.covers(module, role, format)), None)


@cache
def quantize_policy() -> QuantizePolicy:
    return shipped_data.load("quantize/policy.yaml", QuantizePolicy)


@cache
def _shared() -> dict[str, tuple[str, ...]]:
    return {module: shared.modules for shared in quantize_policy().shared_scales for module in shared.modules}


def scale_partners(module: str) -> tuple[str, ...]:
    """All modules that an engine joins with this one, itself among them; some may not exist."""
    parent, dot, own = module.rpartition(".")
    return tuple(f"{parent}{dot}{name}" for name in _shared().get(own, (own,)))


def scale_groups(modules: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The modules in groups that need one global scale, in order of first appearance; most stand alone."""
    names = dict.fromkeys(modules)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(scale_partners(name)[0], []).append(name)
    return tuple(tuple(group) for group in groups.values())
