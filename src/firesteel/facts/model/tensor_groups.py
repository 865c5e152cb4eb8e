"""Groups of equal tensors, and the part of the model that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

from firesteel.facts.model.tensors import Role
from firesteel.values import Value

Part = Literal[
    "embedding", "head", "attention", "recurrence", "indexer", "dense_mlp", "routed_experts",
    "shared_experts", "router", "norm", "tower", "other",
]  # fmt: skip

_ROLES: Mapping[Part, Role] = {
    "embedding": Role.EMBEDDINGS, "head": Role.HEAD, "attention": Role.ATTENTION,
    "recurrence": Role.ATTENTION, "indexer": Role.ATTENTION, "dense_mlp": Role.DENSE_MLP,
    "routed_experts": Role.ROUTED_EXPERTS, "shared_experts": Role.SHARED_EXPERT, "router": Role.ROUTER,
    "norm": Role.NORMS, "tower": Role.TOWER, "other": Role.OTHER,
}  # fmt: skip


class TensorGroup(Value):
    """`count` equal tensors."""

    name: str
    """The path of the module in the checkpoint; expert 0 stands for all."""
    part: Part
    shape: tuple[int, ...]
    count: int = 1
    is_linear: bool = False
    """The weight of a linear layer that quantizers convert, `(out, in)`."""
    bits: int = 16
    """Bits per value when nothing is quantized."""
    in_drafter: bool = False

    @property
    def role(self) -> Role:
        return Role.DRAFTER if self.in_drafter else _ROLES[self.part]

    @property
    def is_of_model(self) -> bool:
        """Whether it belongs to the language model itself, not to its drafter or a tower."""
        return not self.in_drafter and self.part != "tower"

    @property
    def elements(self) -> int:
        return self.count * prod(self.shape)


def linear(name: str, out: int, into: int, part: Part = "attention", count: int = 1) -> TensorGroup:
    return TensorGroup(name, part, (out, into), count, is_linear=True)


def norm(name: str, size: int) -> TensorGroup:
    return TensorGroup(name, "norm", (size,))
