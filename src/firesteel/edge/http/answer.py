"""An answer of an engine, with the times at which it came. Apart from `http`, which loads aiohttp."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """JSON as the engine sent it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion. Tokens are the engine's own count (`usage`), never a count of chunks."""

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    first_token_s: float
    """From sending the request to the first piece of text."""
    decode_s: float
    """From the first piece of text to the last."""
    reasoning: str = ""
    """What the engine's parser took for thoughts."""
    tool_calls: tuple[ToolCall, ...] = ()
    is_whole: bool = True
    """The engine ended it; False: the stream broke off before its end."""
    draft_tokens: int | None = None
    """llama.cpp's own count of drafted tokens; None where the engine does not tell with the answer."""
    accepted_tokens: int | None = None

    @property
    def said(self) -> str:
        """All that the model wrote, in the order in which it did."""
        return (
            f"{self.reasoning}\n{self.text}" if self.reasoning and self.text else self.reasoning + self.text
        )

    @property
    def decode_tokens_per_s(self) -> float | None:
        if not self.completion_tokens or self.completion_tokens < 2 or self.decode_s <= 0:
            return None
        return (self.completion_tokens - 1) / self.decode_s
