"""Tensors alike, and the part of a model that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from firesteel.facts.model.tensors import Role

Part = Literal[
    "embedding",
    "head",
    "attention",
    "recurrence",
    "indexer",
    "dense_mlp",
    "routed_experts",
    "shared_experts",
    "router",
    "norm",
    "tower",
    "other",
]

_ROLES: Mapping[Part, Role] = {
    "embedding": Role.EMBEDDINGS,
    "head": Role.HEAD,
    "attention": Role.ATTENTION,
    "recurrence": Role.ATTENTION,
    "indexer": Role.ATTENTION,
    "dense_mlp": Role.DENSE_MLP,
    "routed_experts": Role.ROUTED_EXPERTS,
    "shared_experts": Role.SHARED_EXPERT,
    "router": Role.ROUTER,
    "norm": Role.NORMS,
    "tower": Role.TOWER,
    "other": Role.OTHER,
}


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """`count` tensors alike."""

    name: str
    """The module's path in the checkpoint; expert 0 stands for all."""
    part: Part
    shape: tuple[int, ...]
    count: int = 1
    is_linear: bool = False
    """The weight of a linear layer that quantizers convert, `(out, in)`."""
    bits: int = 16
    """A value as the checkpoint keeps it when nothing is quantized."""
    in_drafter: bool = False

    @property
    def role(self) -> Role:
        return Role.DRAFTER if self.in_drafter else _ROLES[self.part]

    @property
    def is_of_model(self) -> bool:
        """Of the language model itself, not of its drafter nor of a tower beside it."""
        return not self.in_drafter and self.part != "tower"

    @property
    def elements(self) -> int:
        return self.count * prod(self.shape)


def linear(name: str, out: int, into: int, part: Part = "attention", count: int = 1) -> TensorGroup:
    return TensorGroup(name, part, (out, into), count, is_linear=True)


def norm(name: str, size: int) -> TensorGroup:
    return TensorGroup(name, "norm", (size,))
