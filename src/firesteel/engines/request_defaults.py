"""Launch flags that give an engine's requests their defaults: sampling, and what the chat template is told.

A request that says otherwise has its way in every engine. What no flag carries (an effort, other values for
requests with tools) is left to the gateway and to clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from firesteel.launch import EngineName, FlagValue
from firesteel.version_range import is_in_range

TEMPLATE_FLAGS: Mapping[EngineName, tuple[str, str]] = {
    "vllm": ("default-chat-template-kwargs", ">=0.14.0"),
    "sglang": ("default-chat-template-kwargs", ">=0.5.16"),
    "llamacpp": ("chat-template-kwargs", ">=5780"),
}
"""Each with the releases that have it."""
_VLLM_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What `--override-generation-config` may set: `get_diff_sampling_param` of
https://github.com/vllm-project/vllm/blob/v0.24.0/vllm/config/model.py, seen 2026-11-16."""
_LLAMACPP_SAMPLING = {
    "temperature": "temp", "top_p": "top-p", "top_k": "top-k", "min_p": "min-p", "seed": "seed",
    "presence_penalty": "presence-penalty", "frequency_penalty": "frequency-penalty",
    "repetition_penalty": "repeat-penalty",
}  # fmt: skip


def request_flags(
    engine: EngineName, version: str | None, sampling: Mapping[str, float], template: Mapping[str, Any]
) -> dict[str, FlagValue]:
    """A version that is not known counts as a new one.

    SGLang gets no sampling: the flag that it has, `--preferred-sampling-params`, is overruled by the
    defaults of its own OpenAI endpoint.
    """
    flags: dict[str, FlagValue] = {}
    known: dict[str, object] = {name: value for name, value in sampling.items() if name in _VLLM_SAMPLING}
    if engine == "vllm" and known:
        flags["override-generation-config"] = known
    if engine == "llamacpp":
        named = ((flag, sampling.get(name)) for name, flag in _LLAMACPP_SAMPLING.items())
        flags |= {flag: f"{value:g}" for flag, value in named if value is not None}
    name, releases = TEMPLATE_FLAGS[engine]
    if template and _is_in(version, releases):
        flags[name] = dict(template)
    return flags


def _is_in(version: str | None, releases: str) -> bool:
    try:
        return version is None or is_in_range(Version(version), releases)
    except InvalidVersion:
        return True


def merged(defaults: Mapping[str, FlagValue], own: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """A recipe's own flags go first, and inside a JSON flag its own keys."""
    both = {**own, **{name: value for name, value in defaults.items() if name not in own}}
    for name, value in defaults.items():
        mine = own.get(name)
        if isinstance(value, dict) and isinstance(mine, dict):
            both[name] = {**value, **mine}
    return both
