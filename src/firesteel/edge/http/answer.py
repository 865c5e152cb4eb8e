"""One completion of an engine with its timing. Separate from `engine_client`, which loads aiohttp."""

from __future__ import annotations

from firesteel.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """JSON as the engine sent it."""


@dataclass(frozen=True, slots=True)
class Answer:
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

    @property
    def full_text(self) -> str:
        """Everything that the model wrote, in order: reasoning, then text."""
        return "\n".join(filter(None, (self.reasoning, self.text)))

    @property
    def decode_tokens_per_s(self) -> float | None:
        if not self.completion_tokens or self.completion_tokens < 2 or self.decode_s <= 0:
            return None
        return (self.completion_tokens - 1) / self.decode_s
