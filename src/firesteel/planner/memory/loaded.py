"""Weights as the engine holds them in memory, which is not always how the checkpoint stores them.

A kernel takes matrices whose sides are multiples of its tile. vLLM pads the MXFP4 experts of gpt-oss when it
allocates them, so the padding takes memory and is read with every token: Marlin turns 2880 x 2880 into
2944 x 3072, which is 9 % more.
"""

from __future__ import annotations

from firesteel.engines.vllm.kv_settings import speculative_tokens
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.tensors import Role, Weights
from firesteel.launch import Launch
from firesteel.values import Value, replace

_TILES = {
    **dict.fromkeys(("marlin", "flashinfer_trtllm", "flashinfer_trtllm_afp8"), (256, 128)),
    **dict.fromkeys(("flashinfer_cutlass", "flashinfer_cutlass_afp8", "deep_gemm"), (128, 128)),
    **dict.fromkeys(("triton", "triton_unfused"), (1, 64)),
}
"""By `--moe-backend`: what hidden and intermediate size are rounded up to, as in vLLM 0.28's
`model_executor/layers/fused_moe/oracle/mxfp4.py`."""
_DEFAULT = "marlin"
"""The only backend that accepts a GB10; elsewhere it is the one that pads most."""


class LoadedWeights(Value):
    stored: Weights
    padding_bytes: int = 0
    padding_reason: str = ""

    @property
    def weights(self) -> Weights:
        """Bytes by role with the padding in them."""
        by_role = dict(self.stored.bytes_by_role)
        if self.padding_bytes:
            by_role[Role.ROUTED_EXPERTS] += self.padding_bytes
        return replace(self.stored, bytes_by_role=by_role)


def loaded_weights(launch: Launch, shape: Architecture, weights: Weights) -> LoadedWeights:
    weights = _without_idle_parts(launch, weights)
    flag = launch.flags.get("moe-backend")
    backend = flag.replace("-", "_") if isinstance(flag, str) and flag != "auto" else _DEFAULT
    experts = shape.experts * len(shape.layers)
    if launch.engine != "vllm" or shape.model_type != "gpt_oss" or backend not in _TILES or not experts:
        return LoadedWeights(weights)
    stored = weights.bytes_by_role.get(Role.ROUTED_EXPERTS, 0)
    width = _intermediate_size(stored, experts, shape.hidden_size)
    if width is None:
        return LoadedWeights(weights)
    hidden_tile, width_tile = _TILES[backend]
    padded_hidden, padded_width = _round_up(shape.hidden_size, hidden_tile), _round_up(width, width_tile)
    expert_padding = _expert_bytes(padded_hidden, padded_width) - _expert_bytes(shape.hidden_size, width)
    size, padded = f"{width} x {shape.hidden_size}", f"{padded_width} x {padded_hidden}"
    reason = f"{backend} pads MXFP4 experts of {size} to {padded}"
    return LoadedWeights(weights, experts * expert_padding, reason)


def _without_idle_parts(launch: Launch, weights: Weights) -> Weights:
    """vLLM and SGLang load the draft layers of a checkpoint only when speculation is on, and vLLM its towers
    only when the launch takes pictures or sound (seen with 0.26)."""
    drafts = speculative_tokens(launch.flags)
    idle = {
        Role.DRAFTER: "drafter" if launch.engine != "llamacpp" and not drafts else None,
        Role.TOWER: "vision tower" if launch.engine == "vllm" and _takes_text_alone(launch) else None,
    }
    left_out = {role: name for role, name in idle.items() if name and role in weights.bytes_by_role}
    if not left_out:
        return weights
    by_role, by_format = weights.bytes_by_role.items(), weights.bytes_by_format.items()
    return replace(
        weights,
        bytes_by_role={role: size for role, size in by_role if role not in left_out},
        bytes_by_format={key: size for key, size in by_format if key[0] not in left_out},
        source=f"{weights.source}; without the {' and the '.join(left_out.values())}, which is not loaded",
    )


def _takes_text_alone(launch: Launch) -> bool:
    """By `--language-model-only`, or by limits of 0 for each kind of input: `{"image": 0, "video": 0}`."""
    limits = launch.flags.get("limit-mm-per-prompt")
    is_limited = isinstance(limits, dict) and bool(limits) and not any(limits.values())
    return is_limited or launch.flags.get("language-model-only") is True


def _expert_bytes(hidden: int, width: int) -> int:
    """Gate, up and down in MXFP4 (17 bytes for 32 values), and their biases in BF16."""
    return 3 * hidden * width * 17 // 32 + 2 * (2 * width + hidden)


def _intermediate_size(stored: int, experts: int, hidden: int) -> int | None:
    """The size at which that many bytes are MXFP4 experts; None when they have another format, as BF16."""
    width = round((stored / experts - 2 * hidden) / (3 * hidden * 17 / 32 + 4))
    return width if width <= 4 * hidden and experts * _expert_bytes(hidden, width) == stored else None


def _round_up(size: int, tile: int) -> int:
    return -(-size // tile) * tile
