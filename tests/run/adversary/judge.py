"""What the gates of `verify` say to one fault or oddity, and whether that fits."""

from __future__ import annotations

from dataclasses import dataclass

from tests.run.adversary.change import Change, Modification
from tests.run.adversary.honest import Honest
from tests.run.adversary.server import Adversary, serving
from tests.run.adversary.speaker import Speaker

from firesteel.errors import FiresteelError
from firesteel.run.verify.verify import Verification, VerifyBudget, target_at_url, verify

HONEST = Modification("honest", "nothing changed", "", Change())
SEED = 4242
"""Of the prompts, so that the recorded answers are those to what is asked."""

_TEXT = frozenset({"no garbage", "facts are text", "logprobs", "JSON"})
CHECKS_OF_KIND: dict[str, frozenset[str]] = {
    "stream equals plain": frozenset({"stream equals plain"}),
    "stopped answering": frozenset({"stopped answering"}),
    "stream ends properly": frozenset({"protocol", "speaks", "speaks at length", "stopped answering"}),
    "stream is well-formed": frozenset({"speaks", "protocol"}),
    "answer is well-formed": frozenset({"speaks", "protocol", "no garbage", "stopped answering"}),
    "the server's error in its own words": frozenset({"error"}),
    "garbage": _TEXT,
    "garbage in a long answer": _TEXT,
    "no control tokens in the content": _TEXT,
    "usage fits the text": frozenset({"usage", "logprobs"}),
    "Unicode survives": frozenset({"Unicode", "JSON", "no garbage"}),
    "speaks": frozenset({"speaks", "speaks at length"}),
    "known answers": frozenset({"answers its question", "conversation", "2+2", "facts"}),
    "known answers (2+2)": frozenset({"2+2", "JSON", "logprobs"}),
    "same twice": frozenset({"same twice"}),
    "parallel equals alone": frozenset({"parallel requests"}),
    "another answer than before": frozenset({"same twice", "parallel requests"}),
    "prompts cost more than they have": frozenset({"usage"}),
    "system prompt is followed": frozenset({"system prompt"}),
    "conversation is remembered": frozenset({"conversation"}),
    "conversation is followed": frozenset({"conversation"}),
    "long prompt": frozenset({"long prompt"}),
    "stop": frozenset({"stop"}),
    "max_tokens": frozenset({"max_tokens"}),
    "samples differ": frozenset({"samples differ"}),
    "finish reason": frozenset({"protocol"}),
    "model name": frozenset({"protocol"}),
    "usage": frozenset({"usage"}),
    "no reasoning in the content": frozenset({"no thoughts in the answer", "reasoning split"}),
    "tool call": frozenset({"tool call"}),
    "tool call, streamed": frozenset({"tool call"}),
    "JSON": frozenset({"JSON"}),
    "logprobs fit the text": frozenset({"logprobs"}),
}


NOTES = frozenset({"another answer than before", "same twice", "prompts cost more than they have"})
"""Kinds of which a note is enough: a sound engine may do this, too."""


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: str
    """passed, failed, or not tested: exit codes 0, 1 and 5."""
    failed: tuple[str, ...]
    noted: tuple[str, ...]
    observed: str
    """All that the failed gates say."""


async def judge(
    one: Modification,
    honest: Honest | Speaker,
    *,
    time_scale: float = 1.0,
    budget: VerifyBudget | None = None,
) -> Verdict:
    adversary = Adversary(
        honest.fresh(), one.change, reasoning="reasoning" in one.needs, time_scale=time_scale
    )
    async with serving(adversary) as url:
        try:
            target = await target_at_url(url)
            items = verify(url, target.model, target.expected, budget=budget, seed=SEED)
            found = [item async for item in items if isinstance(item, Verification)]
        except FiresteelError as error:
            return Verdict("not tested", (), (), error.what)
    verification = found[-1]
    noted = [check.name for check in verification.checks if not check.passed and not check.fails_launch]
    return Verdict(
        "passed" if verification.is_good else "not tested" if verification.is_unanswered else "failed",
        tuple(check.name for check in verification.failed),
        tuple(noted),
        "; ".join(f"{check.name}: {check.observed}" for check in verification.failed),
    )


def fits(one: Modification, verdict: Verdict) -> bool:
    """An oddity passes; a fault is named by a gate of the kind that it should be named by."""
    if not one.gate:
        return verdict.outcome == "passed"
    said = set(verdict.failed)
    if "stopped answering" in verdict.observed:
        said.add("stopped answering")
    if "CUDA error" in verdict.observed:  # the words of the adversary's errors
        said.add("error")
    kinds = [kind.strip() for kind in one.gate.split(";")]
    return any(
        (said | set(verdict.noted) if kind in NOTES else said) & CHECKS_OF_KIND[kind] for kind in kinds
    )
