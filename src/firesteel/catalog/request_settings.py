"""Request settings of a recipe: how its model should be asked, with the reason.

    recipe.requests.body        {"temperature": 1.0, "chat_template_kwargs": {...}}: what a request should say
    recipe.requests.tool_body   the same for a request that offers tools

One value, used by every way that a request can take: launch flags (`launch_flags`), the files of
clients (`render.clients`), the gateway's defaults, and the questions of `verify`. What a request itself says
goes first in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from firesteel.engines.engine import request_flags
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName, FlagValue
from firesteel.values import Expand, FileValue, as_json

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed",
)  # fmt: skip
"""The names of a request body; every engine here takes them."""


Body = Annotated[Mapping[str, Any], Expand(as_json)]


class RecipeRequests(FileValue, kw_only=True):
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    thinking: Literal["on", "off"] | None = None
    """Whether the model thinks when it is asked so; None: it cannot, or it is not known."""
    per_request: Body = {}
    """More of the body, sent with every request: `{chat_template_kwargs: {enable_thinking: true}}`."""
    for_tools: Body = {}
    """In place of the above where a request offers tools."""
    instead: Mapping[str, Body] = {}
    """What a request may say instead, by what that does: `{no thinking: {...}}`."""
    system_prompt: str | None = None
    """The file of the repository with the prompt that its publisher wants first."""
    why: str | None = None
    source: Evidence | None = None

    @property
    def sampling(self) -> dict[str, float]:
        return {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}

    @property
    def body(self) -> dict[str, Any]:
        """What every request should say, as in a request body."""
        return {**self.sampling, **self.per_request}

    @property
    def tool_body(self) -> dict[str, Any]:
        """The same for a request that offers tools."""
        return {**self.body, **self.for_tools}

    @property
    def template(self) -> dict[str, Any]:
        """What the chat template is told: `{"enable_thinking": True}`."""
        return dict(self.per_request.get("chat_template_kwargs") or {})

    def launch_flags(self, engine: EngineName, version: str | None) -> dict[str, FlagValue]:
        """The part that this release of the engine takes as defaults of every request."""
        return request_flags(engine, version, self.sampling, self.template)

    def __bool__(self) -> bool:
        return bool(self.body or self.for_tools or self.instead or self.thinking or self.system_prompt)
