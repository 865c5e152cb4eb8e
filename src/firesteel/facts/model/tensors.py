"""The tensors of a checkpoint, their roles, and what a plan needs of them: bytes by role.

A decode step reads every weight once except the experts that the router did not pick, the embedding rows that
it does not look up, and towers without input. So bytes by role determine the speed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal

from firesteel.values import Value


class Role(StrEnum):
    ATTENTION = "attention"
    DENSE_MLP = "dense_mlp"
    ROUTED_EXPERTS = "routed_experts"
    SHARED_EXPERT = "shared_expert"
    ROUTER = "router"
    EMBEDDINGS = "embeddings"
    HEAD = "head"
    TOWER = "tower"
    """Vision and audio towers with their projectors."""
    DRAFTER = "drafter"
    """MTP layers, EAGLE and other draft heads bundled with the checkpoint."""
    NORMS = "norms"
    OTHER = "other"


Provenance = Literal["counted", "derived", "reported"]
"""counted: from the header of the checkpoint. derived: from published shapes and the layout of the
quantization. reported: a figure that somebody published."""


class Tensor(Value):
    name: str
    dtype: str
    """As the format spells it: `BF16`, `F8_E4M3`, `Q4_1`, `MXFP4`."""
    shape: tuple[int, ...]
    bytes: int
    role: Role = Role.OTHER


class Weights(Value):
    bytes_by_role: Mapping[Role, int]
    provenance: Provenance
    source: str
    tied_head: bool = False
    """The head is the embedding table, so decoding reads the whole table."""
    bytes_by_format: Mapping[tuple[Role, str], int] = {}
    """The same bytes by storage format; empty where only the sums are known."""
    spread: tuple[float, float] = (1.0, 1.0)
    """The least and the most of the total, as shares of it: files with one quantization label differ."""
    replicated_bytes: int = 0
    """The part of attention that tensor parallelism does not split, so that every Spark holds all of it."""

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_role.values())

    def bytes_read_per_token(self, experts: int, experts_per_token: int) -> int:
        """The bytes that one decode step of one sequence reads, without speculation.

        All experts count as read where the config does not have their number.
        """
        read = 0
        for role, size in self.bytes_by_role.items():
            if role is Role.ROUTED_EXPERTS and experts:
                read += size * experts_per_token // experts
            elif role is Role.EMBEDDINGS:
                read += size if self.tied_head else 0
            elif role not in (Role.TOWER, Role.DRAFTER):
                read += size
        return read


_REPLICATED = re.compile(r"(^|[._ ])(q_a_proj|kv_a_proj|wq_a|wkv)|\.(indexer|compressor)\.")
"""MLA's projections into its latents, and sparse layers' indexers: they have no heads to split. As in vLLM
0.32, `model_executor/models/deepseek_v2.py` and `models/deepseek_v4/attention.py`, seen 2026-11-15."""


def sum_weights(tensors: Iterable[Tensor], provenance: Provenance, source: str) -> Weights:
    """Sum tensors by role. A model without a separate head uses its embedding table."""
    by_format: dict[tuple[Role, str], int] = {}
    replicated = 0
    for tensor in tensors:
        stored = tensor.role, tensor.dtype
        if tensor.role is Role.ATTENTION and _REPLICATED.search(tensor.name[:256]):
            replicated += tensor.bytes
        by_format[stored] = by_format.get(stored, 0) + tensor.bytes
    by_role: dict[Role, int] = {}
    for (role, _), size in by_format.items():
        by_role[role] = by_role.get(role, 0) + size
    tied = Role.HEAD not in by_role
    return Weights(by_role, provenance, source, tied, by_format, replicated_bytes=replicated)
