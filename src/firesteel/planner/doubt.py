"""A published or measured rate held against what memory allows: too good, or suspiciously bad.

Bandwidth is a lie detector. Whatever claimed more than 95 % of it here turned out to be another
checkpoint, undeclared drafting or streams that shared their prompts; less than 45 % with one user has
been eager mode, a wrong kernel, a slow link or weights that spilled.
"""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.errors import UsageError

_TOO_GOOD, _TOO_BAD = 0.95, 0.45
_GOOD_REASONS = (
    "speculative decoding that was not declared",
    "another checkpoint: attention or head quantized, so a step reads less",
    "the same prompt in every stream, so that they share experts and cached tokens",
)
_BAD_REASONS = (
    "eager mode: no CUDA graphs",
    "a kernel that this GPU has no code for, or a fallback",
    "tensor parallel over TCP instead of RDMA",
    "weights or cache that spilled to the CPU, or another program on the GPU",
)


@dataclass(frozen=True, slots=True)
class SpeedDoubt:
    share: float
    """Of the bandwidth, by the bytes that a step of this checkpoint should read."""
    is_too_good: bool
    reasons: tuple[str, ...]


def doubt(
    decode_tokens_per_s: float, bytes_per_step: float, bandwidth: float, users: int = 1
) -> SpeedDoubt | None:
    """None for a rate that can be. `decode_tokens_per_s` is one user's, `bytes_per_step` what all read."""
    if not (decode_tokens_per_s > 0 and bytes_per_step > 0 and bandwidth > 0 and users > 0):
        raise UsageError(
            "a rate, its bytes, the bandwidth and the users must all be more than nothing",
            next="firesteel bench",
        )
    share = decode_tokens_per_s * bytes_per_step / bandwidth
    if share > _TOO_GOOD:
        return SpeedDoubt(share, True, _GOOD_REASONS)
    # With several users arithmetic and attention take their part, so a low share says little.
    return SpeedDoubt(share, False, _BAD_REASONS) if share < _TOO_BAD and users == 1 else None
