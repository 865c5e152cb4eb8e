"""How much sound a model writes down: requests of 30 seconds, one after another.

A request is a pass of the encoder, a short prompt where a language model follows it, and a decode step for
each token of the text. No run of such a model on a GB10 is published, so the costs are those of language
models: the encoder computes as a dense prompt does, and the text is decoded at the predicted rate.
"""

from __future__ import annotations

from firesteel.facts.model.architecture import Speech
from firesteel.facts.model.tensors import Role
from firesteel.planner.speed.constants import constants
from firesteel.planner.speed.decode import WEIGHTS_PER_BYTE, StoredBytes
from firesteel.planner.speed.speed import Speed
from firesteel.units import Band
from firesteel.values import replace

SOUND_S = 30
_TEXT_TOKENS = (50, 100, 150)
"""In half a minute of speech: 60, 75 and 110 words at one and a third to one and a half tokens a word."""
_SLOWER = 2.0
"""Encoders run without CUDA graphs, beside the decoding of sound on the CPU; nobody has measured how much it
costs."""


def with_speech(speed: Speed, speech: Speech, stored: StoredBytes) -> Speed:
    """Requests a second instead of everything that is said of decoding."""
    towers = {dtype: size for (role, dtype), size in stored.items() if role is Role.TOWER}
    encoder = sum(size * WEIGHTS_PER_BYTE.get(dtype, 0.5) for dtype, size in towers.items())
    costs = constants().engines["vllm"].prefill.costs
    before_ms = costs["start"] + 2 * encoder * speech.encoder_positions / 1e12 * costs["dense_wide"]
    if speed.prefill:
        before_ms += speed.prefill.ttft_ms.expected * speech.prompt_tokens / speed.prefill.prompt_tokens
    least, usual, most = (before_ms + 1000 * n / speed.decode_tokens_per_s.expected for n in _TEXT_TOKENS)
    return replace(
        speed,
        requests_per_s=Band(1000 / (_SLOWER * most), 1000 / usual, 1000 / least),
        sound_s=SOUND_S,
        basis="fitted",
        explanation=(
            f"no run of a speech model on a GB10 is published: its encoder as a dense prompt, and "
            f"{_TEXT_TOKENS[1]} tokens of text ({_TEXT_TOKENS[0]} to {_TEXT_TOKENS[2]}) at the rate of a "
            f"language model that reads as much; the low end takes twice as long"
        ),
        at_depth=(), batch=None, drafted=(), served=None, prefill=None,
    )  # fmt: skip
