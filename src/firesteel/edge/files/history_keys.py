"""Keys of benchmark runs that an earlier version wrote, under the names that they have now.

`bench` reads every stored run and sample through `current_keys`, and so does the planner when it reads the
user's own measurements from the history. No other code knows the old names.
"""

from __future__ import annotations

from typing import Any

_RENAMED = {
    "decode_tps": "decode_tokens_per_s",
    "total_tps": "total_tokens_per_s",
    "prefill_tps": "prefill_tokens_per_s",
    "server_decode_tps": "server_decode_tokens_per_s",
    "server_prefill_tps": "server_prefill_tokens_per_s",
    "bound_tps": "bound_tokens_per_s",
    "each_tps": "each_tokens_per_s",
    "crowd": "batch",
    "visits": "repetitions",
}
_VERBATIM = ("launch", "host")
"""Flags and environment variables have names of their own, which are never ours to change."""


def current_keys(value: Any) -> Any:
    """A decoded JSON value with all renamed keys, at any depth."""
    if isinstance(value, dict):
        return {
            _RENAMED.get(key, key): item if key in _VERBATIM else current_keys(item)
            for key, item in value.items()
        }
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return [current_keys(item) for item in value]
    return value
