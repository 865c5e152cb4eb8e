"""What the gateway changes in a model's requests: the recipe's settings, the file's parameters, adapters."""

from __future__ import annotations

from typing import TypedDict

from firesteel.catalog.recipe import RecipeRequests
from firesteel.engines.engine import adapter_request
from firesteel.gateway.interfaces import CancelPolicy, ServerApiName, Timeouts
from firesteel.gateway.service_config import ModelParameters
from firesteel.launch import EngineName
from firesteel.service_file import ModelEntry
from firesteel.service_settings import ParameterEntry
from firesteel.values import replace


def model_parameters(
    entry: ModelEntry, requests: RecipeRequests, adapters: tuple[str, ...] = (), engine: EngineName = "vllm"
) -> ParameterFields:
    """With what the recipe knows of requests as defaults below those of the file; an adapter is an alias that
    asks the engine for it."""
    own = replace(
        _of_entry(entry.parameters),
        recipe=requests.body,
        recipe_for_tools=requests.tool_body if requests.for_tools else {},
    )
    in_requests = engine == "llamacpp" and bool(adapters)
    if in_requests:
        own = replace(own, fixed={**own.fixed, **adapter_request(len(adapters), None)})
    by_alias = {name: own.overridden(_of_entry(each)) for name, each in entry.aliases.items()}
    for at, name in enumerate(adapters):
        asked = (
            ModelParameters(fixed=adapter_request(len(adapters), at))
            if in_requests
            else ModelParameters(served_name=name)
        )
        by_alias[name] = own.overridden(asked)
    fallbacks = entry.fallback.by_reason() if entry.fallback else {}
    limits = entry.timeouts
    return {
        "cancel": entry.cancel,
        "timeouts": Timeouts(limits.first_byte, limits.gap, limits.answer),
        "fallbacks": fallbacks,
        "aliases": tuple(by_alias),
        # llama.cpp's own `/v1/messages` drops the field that names an adapter (build 11549).
        "speaks": ("chat",) if in_requests else entry.speaks,
        "parameters": own,
        "alias_parameters": {name: each for name, each in by_alias.items() if each != own},
    }


class ParameterFields(TypedDict):
    cancel: CancelPolicy
    timeouts: Timeouts
    fallbacks: dict[str, str]
    speaks: tuple[ServerApiName, ...]
    aliases: tuple[str, ...]
    parameters: ModelParameters
    alias_parameters: dict[str, ModelParameters]


def _of_entry(entry: ParameterEntry) -> ModelParameters:
    limits = entry.limits
    return ModelParameters(entry.defaults, entry.fixed, entry.strip, limits.max_tokens, limits.context)
