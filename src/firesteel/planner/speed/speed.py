"""The predicted speed of a launch as values: each figure has a band and says what it is based on.

`basis` names the best evidence that there is, from the best to the weakest:

    measured here     the user's own benchmarks of this launch on this machine (`own_runs.py`)
    measured recipe   published runs of this checkpoint in this engine and version, with this KV cache
    measured model    published runs of this checkpoint in this engine, other versions or settings
    fitted            the cost model of `decode.py`, with the errors it had on models left out of its fit
    roofline          a share of the bandwidth bound, as seen on such machines
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from firesteel.planner.speed.speculation import DraftedSpeed
from firesteel.planner.speed.startup import StartUp
from firesteel.units import Band
from firesteel.values import Value

SpeedBasis = Literal["measured here", "measured recipe", "measured model", "fitted", "roofline"]
DEPTH = 1024
"""Tokens already in the sequence when `decode_tokens_per_s` applies."""


class BatchSpeed(Value):
    """All users of a launch decoding at once, about a thousand tokens in, with no prompts arriving."""

    users: int
    per_user_tokens_per_s: Band
    total_tokens_per_s: Band
    explanation: str


class PrefillSpeed(Value):
    """One prompt on an idle server."""

    prompt_tokens: int
    tokens_per_s: Band
    """Rate of the prompt tokens that are not cached."""
    ttft_ms: Band
    explanation: str
    cached_tokens: int = 0
    first_prompts_ms: Band | None = None
    """What the first prompts after a start take in addition; None: not known."""


class ServedSpeed(Value):
    """All users at work: each sends the next request as soon as the last one is answered."""

    users: int
    prompt_tokens: int
    answer_tokens: int
    shared_tokens: int
    """How much of each prompt the engine has cached already."""
    per_user_tokens_per_s: Band
    """While a user's answer arrives."""
    total_tokens_per_s: Band
    """Tokens of answers, over all the time: prompts included."""
    ttft_ms: Band
    """Mean wait for the first token."""
    explanation: str


class Speed(Value):
    decode_tokens_per_s: Band
    """One user, no speculation, about a thousand tokens into the answer."""
    bound_tokens_per_s: float
    """The most that the bandwidth allows."""
    bytes_per_token: int
    bandwidth_bytes_per_s: float
    basis: SpeedBasis
    explanation: str
    """How the figure was obtained, in words."""
    sources: tuple[str, ...] = ()
    """URLs of the runs behind the figure."""
    parts_ms: Mapping[str, float] = {}
    """Where the time of a step goes; empty if the basis does not show it."""
    at_depth: tuple[tuple[int, Band], ...] = ()
    """The same figure deeper into a conversation, up to the context length."""
    batch: BatchSpeed | None = None
    """None for one user, or where nothing is known about several."""
    drafted: tuple[DraftedSpeed, ...] = ()
    """With the launch's own drafter, by kind of text; empty when it has none."""
    served: ServedSpeed | None = None
    """None for one user, or where the speed of prompts is not known."""
    prefill: PrefillSpeed | None = None
    requests_per_s: Band | None = None
    """For models that do not generate text; None: it generates, and the figures of decoding apply. Embedding,
    scoring and classifying models: prompts of the length of `prefill`, one by one. Transcription: pieces of
    `sound_s`."""
    sound_s: int | None = None
    """Seconds of audio in each request; None: it does not transcribe."""
    start_up: StartUp | None = None

    @property
    def drafted_tokens_per_s(self) -> Band | None:
        """One user with the launch's own drafter, on any kind of text; None: it has none."""
        bands = [row.decode_tokens_per_s for row in self.drafted]
        if not bands:
            return None
        expected = sum(band.expected for band in bands) / len(bands)
        return Band(min(band.low for band in bands), expected, max(band.high for band in bands))

    @property
    def loses_on(self) -> tuple[str, ...]:
        """Kinds of text on which drafting may be slower than decoding without it."""
        plain = self.decode_tokens_per_s.low
        return tuple(row.text for row in self.drafted if row.decode_tokens_per_s.low < plain)
