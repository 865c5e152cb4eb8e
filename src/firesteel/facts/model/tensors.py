"""Tensors: their roles, the bytes by role, and what a quantizer does with each.

The tensors of a checkpoint, their roles, and what a plan needs of them: bytes by role.

A decode step reads every weight once except the experts that the router did not pick, the embedding rows that
it does not look up, and towers without input. So bytes by role determine the speed.

The role of a tensor, from its name.

There are two naming schemes: Hugging Face's module paths
(`model.layers.3.mlp.experts.7.up_proj.weight_scale`) and GGUF's short names (`blk.3.ffn_up_exps.weight`). One
ordered table covers both: the first pattern found in the name wins, so everything inside a tower or a drafter
belongs to it, whatever its name there. Patterns match modules, not leaves: scales, zero points and biases
have the role of their weight. Every number is read as `#`.

What a quantizer does with each weight, by its name: kept or quantized, and which share a global scale.

    layers.0.self_attn.q_proj.weight_scale     module `layers.0.self_attn.q_proj`, leaf `weight_scale`

The rules are data, `data/quantize/policy.yaml`, each with its reason and source. `quantize` follows them and
`audit` checks them, so that both mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache, lru_cache
from math import prod
from typing import Annotated, Literal

from firesteel import shipped_data
from firesteel.facts.evidence import Sources
from firesteel.values import NOT_EMPTY, FileValue, Regex, Texts, Value


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
quantization. reported: a published figure."""


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


_REPLICATED = re.compile(r"[._ ](?:q_a_proj|kv_a_proj|wq_a|wkv|(?<=\.)(?:indexer|compressor)\.)")
"""MLA's projections into its latents, and sparse layers' indexers: they have no heads to split. As in vLLM
0.32, `model_executor/models/deepseek_v2.py` and `models/deepseek_v4/attention.py`, seen 2026-11-15."""


def sum_weights(tensors: Iterable[Tensor], provenance: Provenance, source: str) -> Weights:
    """Sum tensors by role. A model without a separate head uses its embedding table."""
    by_format: dict[tuple[Role, str], int] = {}
    replicated = 0
    for tensor in tensors:
        stored = tensor.role, tensor.dtype
        if tensor.role is Role.ATTENTION and _REPLICATED.search(f".{tensor.name[:256]}"):
            replicated += tensor.bytes
        by_format[stored] = by_format.get(stored, 0) + tensor.bytes
    by_role: dict[Role, int] = {}
    for (role, _), size in by_format.items():
        by_role[role] = by_role.get(role, 0) + size
    tied = Role.HEAD not in by_role
    return Weights(by_role, provenance, source, tied, by_format, replicated_bytes=replicated)


_TABLE: tuple[tuple[str, Role], ...] = (
    # Hugging Face towers and their projectors; whisper calls its audio tower the encoder
    (r"(^|\.)(visual|vision_(tower|model|encoder)|vision_\w*(adapter|projector)|embed_vision)\.", Role.TOWER),
    (
        r"(^|\.)(audio_(tower|model|encoder|projection)|sound_[\w#]+|embed_audio|whisper_encoder)\.",
        Role.TOWER,
    ),
    (r"(^|\.)(multi_?modal_projector|mm_projector|patch_merger|image_newline)\b", Role.TOWER),
    (r"^(model\.)?encoder\.|^mlp#\.", Role.TOWER),
    # GGUF: vision, audio, and the projector between them and the model
    (r"^(v|a|mm|resampler|adapter)\.", Role.TOWER),
    (r"(^|\.)(mtp|mtp_[\w#]+|nextn|(eagle|medusa|draft)[\w#]*)\.", Role.DRAFTER),
    (r"\.(eh_proj|enorm|hnorm|shared_head)\.", Role.DRAFTER),
    (r"^(output|embed_out|proj_out|head)\.|(^|\.)lm_head\.", Role.HEAD),
    (r"rotary_emb|^rope_(freqs|factors)", Role.OTHER),
    (
        r"(^|\.)(embed_tokens(_per_layer)?|embed_positions|word_embeddings|embeddings|wte|wpe)\.",
        Role.EMBEDDINGS,
    ),
    (r"^(embed|token_embd|per_layer_token_embd|position_embd|token_types)\.", Role.EMBEDDINGS),
    (r"(norm|norm_?#|norm_f|norm_exps)(\.(weight|bias|scale))?$|\.ln_[\w#]+\.", Role.NORMS),
    (r"\.shared?_experts?(_gate)?\.|\.shared_mlp\.|_shexp\.", Role.SHARED_EXPERT),
    (r"\.experts\.|_(ch)?exps\.|\.ffn_(gate|up|down)\.#\.", Role.ROUTED_EXPERTS),
    (r"\.moe\.(gate|up|down)_proj\.|\.block_sparse_moe\.(in|out)put_linear\.", Role.ROUTED_EXPERTS),
    (
        r"\.router\.|\.(mlp|block_sparse_moe|moe|mixer|feed_forward|ffn)\.gate\.|ffn_gate_(inp|tid#eid)\.",
        Role.ROUTER,
    ),
    (r"e_score_correction_bias|\.router_bias$|\.exp_probs_b\b", Role.ROUTER),
    # Nemotron-H calls every layer's one block its mixer, be it Mamba, attention or MLP
    (r"\.mixer\.(up_proj|down_proj|fc#_latent_proj)\.|\.routed_expert_(up|down)_proj\.", Role.DENSE_MLP),
    (r"\.(self_|linear_|cross_|encoder_)?attn\.|\.(self_)?attention\.|\.mixer\.|\.mamba\.", Role.ATTENTION),
    (r"\.layers\.#\.conv\.", Role.ATTENTION),
    (r"\.(cross_)?attn_\w+|\.ssm_\w+|\.(shortconv|indexer)|\.time_mix_", Role.ATTENTION),
    (r"\.(mlp|feed_forward|ffn)\.|\.ffn_\w+|\.fc#\.|\.channel_mix_", Role.DENSE_MLP),
)

_NUMBER = re.compile(r"\d+")
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h|blocks)\.(\d{1,6})\.")


def role_of(name: str, layers: int | None = None) -> Role:
    """`layers` is the count without MTP layers: some families number those after the last layer."""
    role = _role_of_kind(_NUMBER.sub("#", name[:256]))
    if layers is not None and role is not Role.TOWER:
        layer = _LAYER.search(name)
        if layer and int(layer[1]) >= layers:
            return Role.DRAFTER
    return role


@lru_cache(maxsize=4096)
def _role_of_kind(kind: str) -> Role:
    """Layers and experts differ only in their numbers, so a checkpoint has a few dozen kinds of names."""
    return next((role for pattern, role in _TABLE if re.search(pattern, kind)), Role.OTHER)


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
    """The last parts of their names; they have the same parent."""
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
