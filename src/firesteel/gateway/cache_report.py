"""What the engine's cache did with a prompt, in figures and a sentence: for the request's row and for `top`.

`prompt_chain` says how much of a prompt was there before; the engine's own count of cached tokens says at the
end how much of it was read again. If that is nothing, nothing is reported, whatever the prompts look like:
vLLM takes some lines out by itself. An engine that caches in large blocks (of hybrid models, whose recurrent
state is kept only at the end of a block) may be right with 0 %. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from firesteel.gateway.interfaces import RequestOutcome
from firesteel.gateway.prompt_causes import CAUSES, Cause
from firesteel.gateway.prompt_chain import SeenPrompt
from firesteel.gateway.service_config import PlannedFigures
from firesteel.units import show_seconds

_TOKENS_PER_BYTE = 0.25
_LEAST_TOKENS = 16
"""A block of vLLM's; the last one of a prompt is always read again."""
_SLACK = 0.1
"""Of the tokens that could be cached: places are estimated from bytes."""


class CacheReport(Struct):
    cause: Cause
    reread_tokens: int
    text: str


def report(
    seen: SeenPrompt,
    outcome: RequestOutcome,
    planned: PlannedFigures | None = None,
    cures: Mapping[str, str] | None = None,
    *,
    counts_cached: bool = True,
) -> CacheReport | None:
    """None: the engine had what it could have. `cures`: what prevents it, by cause. `counts_cached`: this
    engine says how much it had cached, so no figure means 0."""
    usage = outcome.usage
    prompt = usage.prompt_tokens if usage is not None else None
    cached = usage.cached_tokens if usage is not None else None
    if cached is None and counts_cached and prompt is not None:
        cached = 0
    rate = prompt / seen.total if prompt and seen.total else _TOKENS_PER_BYTE
    block = planned.cache_block_tokens if planned is not None else 1
    shared = int(seen.shared * rate)
    could = int((seen.shared + seen.lost) * rate)
    cause = seen.cause
    if cause is None:
        if cached is None or seen.before is None or not seen.before.was_answered:
            return None
        expected = shared // block * block
        if block > 1 and not cached and not expected and shared > _LEAST_TOKENS:
            text = f"{CAUSES['floor']}: {shared:,} tokens were shared, and the cache has blocks of {block:,}"
            return CacheReport("floor", 0, text[0].upper() + text[1:])
        reread, cause = expected - cached, _engines_cause(seen)
        if reread < max(_LEAST_TOKENS, 2 * _SLACK * expected):
            return None
    else:
        reread = could - shared
        if cached is not None and cached >= shared + max(_LEAST_TOKENS, reread / 2):
            return None  # whatever the prompts look like, the engine had it
        if cached is not None and not (1 - 2 * _SLACK) * shared <= cached <= shared:
            reread = could // block * block - cached
        if reread < _LEAST_TOKENS and cause != "history":
            return None
    if reread < _LEAST_TOKENS:
        text = CAUSES[cause]
    else:
        who, about = "turn" if seen.is_turn else "new conversation", "" if cached is not None else "about "
        text = f"this {who} read {about}{reread:,}{f' of {prompt:,}' if prompt else ''} tokens again"
        text += f"{_cost(reread, prompt, cached, outcome, planned)}: {CAUSES[cause]}"
    tokens_in = f"about {int(seen.at * rate):,} tokens in" if seen.where else ""
    if places := [each for each in (seen.detail, seen.where, tokens_in) if each]:
        text += f" ({', '.join(places)})"
    if cures and cause in cures:
        text += f"; {cures[cause]}"
    return CacheReport(cause, max(0, reread), text[0].upper() + text[1:])


def _engines_cause(seen: SeenPrompt) -> Cause:
    """The prompt was there before, and the engine did not have it."""
    before, now = seen.before or seen.now, seen.now
    if before.model != now.model:
        return "model"
    if before.era != now.era:
        return "restart"
    if before.replica != now.replica:
        return "replica"
    return "settings" if seen.has_other_settings else "evicted"


def _cost(
    reread: int,
    prompt: int | None,
    cached: int | None,
    outcome: RequestOutcome,
    planned: PlannedFigures | None,
) -> str:
    """What it took, by measurement and by the plan."""
    parts = []
    if outcome.is_stream and outcome.first_s is not None and prompt and prompt > (cached or 0):
        read_s = (outcome.first_s - outcome.waited_s) * min(1.0, reread / (prompt - (cached or 0)))
        parts.append(f", {show_seconds(read_s)}")
    if planned is not None and planned.prefill_tokens_per_s:
        parts.append(f" ({show_seconds(reread / planned.prefill_tokens_per_s)} by the plan)")
    return "".join(parts)
