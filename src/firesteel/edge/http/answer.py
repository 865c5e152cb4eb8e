"""One completion of an engine with its timing. Separate from `engine_client`, which loads aiohttp."""

from __future__ import annotations

from firesteel.values import Value

STOP_REASONS = frozenset({"stop", "eos", "eos_token", "stop_sequence", "end_turn"})
LENGTH_REASONS = frozenset({"length", "max_tokens"})
"""As OpenAI, TGI (`eos_token`, `stop_sequence`) and Anthropic (`end_turn`, `max_tokens`) call them."""


class ToolCall(Value):
    name: str
    arguments: str
    """JSON as the engine sent it."""
    has_index: bool = True
    """False for a streamed call whose pieces do not say which call they belong to: clients need that."""


class TokenLogprob(Value):
    """One token of an answer, its log probability, and the highest one among the tokens in its place."""

    text: bytes
    logprob: float
    best_logprob: float | None
    top: tuple[tuple[bytes, float], ...] = ()
    """The likeliest tokens in its place with their log probabilities, as many as were asked for."""


class Answer(Value):
    """One completion. Token counts are the engine's own (`usage`), never a count of chunks."""

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    first_token_s: float
    """From sending the request to the first piece of text."""
    decode_s: float
    """From the first piece of text to the last."""
    reasoning: str = ""
    """The part that the engine's parser marked as reasoning."""
    tool_calls: tuple[ToolCall, ...] = ()
    is_whole: bool = True
    """False when the stream broke off before the engine ended it."""
    draft_tokens: int | None = None
    """llama.cpp's own count of drafted tokens; None where the engine does not send one."""
    accepted_tokens: int | None = None
    total_tokens: int | None = None
    """As `usage` has it, not the sum of the two counts."""
    reasoning_tokens: int | None = None
    """As `usage` has it: some servers leave them out of `completion_tokens`."""
    model: str | None = None
    role: str | None = None
    is_stream: bool = True
    has_done: bool = True
    """False for a stream without `[DONE]`, for which clients wait."""
    logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def was_cut(self) -> bool:
        """Whether `max_tokens` ended it."""
        return self.finish_reason in LENGTH_REASONS

    @property
    def has_stopped(self) -> bool:
        """Whether the model or a stop sequence ended it."""
        return self.finish_reason in STOP_REASONS

    @property
    def full_text(self) -> str:
        """Everything that the model wrote, in order: reasoning, then text."""
        return "\n".join(filter(None, (self.reasoning, self.text)))

    @property
    def decode_tokens_per_s(self) -> float | None:
        if not self.completion_tokens or self.completion_tokens < 2 or self.decode_s <= 0:
            return None
        return (self.completion_tokens - 1) / self.decode_s
