"""The figures of a plan that are kept after it: with the service that it started, and with benchmark runs.

A plan depends on the host and the catalog of its moment. What it promised is compared with measurements weeks
later, when the same launch may no longer be plannable.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.planner.plan import Plan
from firesteel.planner.speed.speed import SpeedBasis
from firesteel.units import Band
from firesteel.values import Value


class PlanSummary(Value):
    """None or empty: not predicted, or not stored by an earlier version."""

    needed_bytes: Band | None = None
    """All memory."""
    decode_tokens_per_s: Band | None = None
    """One user, without speculation."""
    at_depth: tuple[tuple[int, Band], ...] = ()
    """The same, deeper into a conversation."""
    batch_users: int | None = None
    batch_tokens_per_s: Band | None = None
    """Of each of these users, all decoding at once."""
    drafted: Mapping[str, Band] = {}
    """One user with the launch's drafter, by kind of text."""
    prefill_tokens_per_s: Band | None = None
    ttft_ms: Band | None = None
    prompt_tokens: int | None = None
    """Of the prompt that `ttft_ms` is for."""
    bytes_per_token: int | None = None
    bandwidth_bytes_per_s: float | None = None
    bound_tokens_per_s: float | None = None
    basis: SpeedBasis | None = None
    explanation: str = ""


def summarize(plan: Plan) -> PlanSummary:
    speed, needed = plan.speed, plan.memory.needed
    if speed is None:
        return PlanSummary(needed)
    batch, prefill = speed.batch, speed.prefill
    return PlanSummary(
        needed_bytes=needed,
        decode_tokens_per_s=speed.decode_tokens_per_s,
        at_depth=speed.at_depth,
        batch_users=batch.users if batch else None,
        batch_tokens_per_s=batch.per_user_tokens_per_s if batch else None,
        drafted={row.text: row.decode_tokens_per_s for row in speed.drafted},
        prefill_tokens_per_s=prefill.tokens_per_s if prefill else None,
        ttft_ms=prefill.ttft_ms if prefill else None,
        prompt_tokens=prefill.prompt_tokens if prefill else None,
        bytes_per_token=speed.bytes_per_token,
        bandwidth_bytes_per_s=speed.bandwidth_bytes_per_s,
        bound_tokens_per_s=speed.bound_tokens_per_s,
        basis=speed.basis,
        explanation=speed.explanation,
    )
