"""Conditions that matchers cannot express, by name: functions from a context to its matches."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.launch import ENGINE_KEY_VARIABLES
from firesteel.rules import (
    any_release,
    containers,
    exposure,
    kernels,
    memory,
    misplaced_arguments,
    model_flags,
    speculation,
    value_syntax,
)
from firesteel.rules.context import Context, Match, as_number
from firesteel.rules.release_predicates import (
    refused_values,
    stray_arguments,
    unknown_flags,
    unread_variables,
)

_EVERYWHERE = ("0.0.0.0", "[::]", "")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_KEY_FLAGS = ("api-key", "api-key-file")


def published_everywhere(context: Context) -> list[Match]:
    """A port open on every interface.

    `8000:8000` and `8000` have no address and `0.0.0.0:8000:8000` has every one; neither has `-P`, and on
    the host's network nothing needs to be published.
    """
    container = context.launch.container
    if container is None:
        return []
    for published in container.publish:
        parts = published.rsplit(":", 2)
        if len(parts) < 3 or parts[0] in _EVERYWHERE:
            return [Match("option:publish", f"-p {published}", "publish", f"-p {published}")]
    if ("publish-all", None) in container.options:
        return [Match("option:publish-all", "-P", "publish-all", "-P")]
    if container.network == "host" and context.launch.flags.get("host") not in _LOOPBACK:
        return [Match("option:network", "--network host", "network", "--network host")]
    return []


def asks_for_a_key(context: Context) -> list[Match]:
    """A key that is not empty: engines treat an empty one as none."""
    flags, env = context.launch.flags, context.launch.env
    for name in _KEY_FLAGS:
        if name in flags and flags[name] not in ("", [""]):
            return [Match(f"flag:{name}", f"--{name}", name)]
    return [Match(f"env:{name}", name, name) for name in ENGINE_KEY_VARIABLES.values() if env.get(name)]


def drafts_overflow_batch(context: Context) -> list[Match]:
    """More draft tokens per step than allowed: users x tokens > max-num-batched-tokens."""
    config = context.flags.get("speculative-config")
    drafted = as_number(config.get("num_speculative_tokens")) if isinstance(config, dict) else None
    users, batch = context.number("max-num-seqs"), context.number("max-num-batched-tokens")
    if drafted is None or users is None or batch is None or drafted * users <= batch:
        return []
    shown = f"{drafted:g} draft tokens x {users:g} users > --max-num-batched-tokens {batch:g}"
    return [Match("flag:max-num-batched-tokens", shown, "max-num-batched-tokens", f"{batch:g}")]


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "unknown-flags": unknown_flags,
    "refused-values": refused_values,
    "unread-variables": unread_variables,
    "stray-words": stray_arguments,
    "asks-for-a-key": asks_for_a_key,
    "published-everywhere": published_everywhere,
    "drafts-overflow-batch": drafts_overflow_batch,
}
PREDICATES |= exposure.PREDICATES | containers.PREDICATES | misplaced_arguments.PREDICATES
PREDICATES |= any_release.PREDICATES | kernels.PREDICATES | speculation.PREDICATES | memory.PREDICATES
PREDICATES |= model_flags.PREDICATES | value_syntax.PREDICATES
