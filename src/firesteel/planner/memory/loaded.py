"""Weights as an engine holds them, which is not always as the checkpoint stores them.

A kernel takes matrices whose sides are multiples of its tile. vLLM pads the MXFP4 experts of gpt-oss
when it makes room for them, so the padding takes memory and is read with every token: Marlin makes
2944 x 3072 of 2880 x 2880, which is 9 % more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from firesteel.engines import speculative_tokens
from firesteel.facts import Architecture, Role, Weights
from firesteel.launch import Launch

_TILES = {
    "marlin": (256, 128),
    "flashinfer_trtllm": (256, 128),
    "flashinfer_trtllm_afp8": (256, 128),
    "flashinfer_cutlass": (128, 128),
    "flashinfer_cutlass_afp8": (128, 128),
    "deep_gemm": (128, 128),
    "triton": (1, 64),
    "triton_unfused": (1, 64),
}
"""By `--moe-backend`: what hidden and intermediate size are rounded up to, as in vLLM 0.28's
`model_executor/layers/fused_moe/oracle/mxfp4.py`."""
_DEFAULT = "marlin"
"""What is left on a GB10 when the others refuse it; elsewhere it is the most that a backend pads."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    stored: Weights
    padding_bytes: int = 0
    padding_why: str = ""

    @property
    def weights(self) -> Weights:
        """Bytes by role with the padding in them."""
        by_role = dict(self.stored.bytes_by_role)
        if self.padding_bytes:
            by_role[Role.ROUTED_EXPERTS] += self.padding_bytes
        return replace(self.stored, bytes_by_role=by_role)


def loaded_weights(launch: Launch, shape: Architecture, weights: Weights) -> LoadedWeights:
    weights = _without_idle_drafter(launch, weights)
    said = launch.flags.get("moe-backend")
    backend = said.replace("-", "_") if isinstance(said, str) and said != "auto" else _DEFAULT
    experts = shape.experts * len(shape.layers)
    if launch.engine != "vllm" or shape.model_type != "gpt_oss" or backend not in _TILES or not experts:
        return LoadedWeights(weights)
    stored = weights.bytes_by_role.get(Role.ROUTED_EXPERTS, 0)
    width = _intermediate_size(stored, experts, shape.hidden_size)
    if width is None:
        return LoadedWeights(weights)
    hidden_tile, width_tile = _TILES[backend]
    hidden, wide = _round(shape.hidden_size, hidden_tile), _round(width, width_tile)
    padding = experts * (_expert_bytes(hidden, wide) - _expert_bytes(shape.hidden_size, width))
    why = f"{backend} pads MXFP4 experts of {width} x {shape.hidden_size} to {wide} x {hidden}"
    return LoadedWeights(weights, padding, why)


def _without_idle_drafter(launch: Launch, weights: Weights) -> Weights:
    """vLLM and SGLang load a checkpoint's own draft layers only when told to draft."""
    drafts = speculative_tokens(launch.flags) or "speculative-algorithm" in launch.flags
    if launch.engine == "llamacpp" or drafts or Role.DRAFTER not in weights.bytes_by_role:
        return weights
    return replace(
        weights,
        bytes_by_role={
            role: size for role, size in weights.bytes_by_role.items() if role is not Role.DRAFTER
        },
        bytes_by_format={
            key: size for key, size in weights.bytes_by_format.items() if key[0] is not Role.DRAFTER
        },
        source=f"{weights.source}; without its drafter, which is not loaded",
    )


def _expert_bytes(hidden: int, width: int) -> int:
    """Gate, up and down in MXFP4 (17 bytes for 32 values), and their biases in BF16."""
    return 3 * hidden * width * 17 // 32 + 2 * (2 * width + hidden)


def _intermediate_size(stored: int, experts: int, hidden: int) -> int | None:
    """The size at which that many bytes are MXFP4 experts; None when they are something else, as BF16."""
    width = round((stored / experts - 2 * hidden) / (3 * hidden * 17 / 32 + 4))
    return width if width <= 4 * hidden and experts * _expert_bytes(hidden, width) == stored else None


def _round(size: int, tile: int) -> int:
    return -(-size // tile) * tile
